"""The store's section of the configuration.

Owns: StoreConfig. Must not touch: the environment, files.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from core.store.due_time import DEFAULT_DELAY_LEVELS, DueTimes


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
    # Shape of new index files; RocketMQ's, 420 MB, of which only what is used takes room. Files
    # of another shape are read as they are.
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    # A file whose newest message is older than this is removed during `cleanup_hours`.
    retention_hours: int = 72
    # Hours of the day, local time.
    cleanup_hours: tuple[int, ...] = (4,)
    # Above this, expired files are removed at any hour.
    cleanup_expired_percent: int = 75
    # Above this, the oldest files are removed, expired or not, before appends are refused.
    cleanup_oldest_percent: int = 85
    cleanup_interval_ms: int = 10_000
    # Removed in one round at most, with a pause after each, so that the disk has time for others.
    cleanup_files_max: int = 10
    cleanup_pause_ms: int = 100
    # Delays that a message can ask for by level; the first is level 1.
    delay_levels: str = DEFAULT_DELAY_LEVELS

    def __post_init__(self) -> None:
        if self.commitlog_file_bytes < 4096 or self.commitlog_file_bytes % 4096:
            raise ValueError("commitlog_file_bytes must be a multiple of 4096")
        if not 1 <= self.consume_queue_file_units <= 1 << 26:
            raise ValueError("consume_queue_file_units must lie in [1, 67108864]")
        if not 1 <= self.message_bytes_max <= 1 << 30:
            raise ValueError("message_bytes_max must lie in [1, 1073741824]")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in _PERCENT:
            if not 1 <= getattr(self, name) <= 100:
                raise ValueError(f"{name} must lie in [1, 100]")
        if not all(0 <= hour < 24 for hour in self.cleanup_hours):
            raise ValueError("cleanup_hours must lie in [0, 23]")
        DueTimes(self.delay_levels)
        for name in ("index_slots", "index_entries"):
            if not 1 <= getattr(self, name) <= 1 << 26:
                raise ValueError(f"{name} must lie in [1, 67108864]")
        if self.disk_free_bytes_min < 0 or self.consume_queue_files_open_max < 2:
            raise ValueError(
                "disk_free_bytes_min must not be negative, consume_queue_files_open_max at least 2"
            )


_AT_LEAST_ONE = (
    "flush_interval_ms",
    "checkpoint_interval_ms",
    "disk_check_interval_ms",
    "retention_hours",
    "cleanup_interval_ms",
    "cleanup_files_max",
    "cleanup_pause_ms",
)
_PERCENT = ("disk_used_percent_max", "cleanup_expired_percent", "cleanup_oldest_percent")
