"""The store's section of the configuration.

Owns: StoreConfig. Must not touch: the environment, files.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the store lives and what it promises; units are in the names."""

    directory: str
    # RocketMQ's size. A folder that already has files keeps theirs.
    commitlog_file_bytes: int = 1 << 30
    consume_queue_file_units: int = 300_000
    # async: acknowledged when in the page cache; sync: when on the disk.
    flush: Literal["async", "sync"] = "async"
    # How far the disk may be behind, also when there is little traffic.
    flush_interval_ms: int = 500
    # How much log a start after a crash has to read again, in time.
    checkpoint_interval_ms: int = 10_000
    message_bytes_max: int = 4_194_304
    # Above either limit appends are refused and reads go on.
    disk_used_percent_max: int = 90
    disk_free_bytes_min: int = 268_435_456
    disk_check_interval_ms: int = 1_000
    # Mapped ConsumeQueue files; each costs two descriptors.
    consume_queue_files_open_max: int = 256

    def __post_init__(self) -> None:
        if self.commitlog_file_bytes < 4096 or self.commitlog_file_bytes % 4096:
            raise ValueError("commitlog_file_bytes must be a multiple of 4096")
        if not 1 <= self.consume_queue_file_units <= 1 << 26:
            raise ValueError("consume_queue_file_units must lie in [1, 67108864]")
        if not 1 <= self.message_bytes_max <= 1 << 30:
            raise ValueError("message_bytes_max must lie in [1, 1073741824]")
        for name in ("flush_interval_ms", "checkpoint_interval_ms", "disk_check_interval_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 1 <= self.disk_used_percent_max <= 100:
            raise ValueError("disk_used_percent_max must lie in [1, 100]")
        if self.disk_free_bytes_min < 0 or self.consume_queue_files_open_max < 2:
            raise ValueError(
                "disk_free_bytes_min must not be negative, consume_queue_files_open_max at least 2"
            )
