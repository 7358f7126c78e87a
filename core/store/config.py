"""The store's section of the configuration.

Owns: StoreConfig. Must not touch: the environment, files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from motelog.core.config import SectionFault, refuse
from motelog.core.store.due_time import DEFAULT_DELAY_LEVELS, DueTimes

#: Keys that take effect while a store is open.
LIVE: Final = frozenset(
    {
        "retention_hours", "cleanup_hours", "cleanup_expired_percent", "cleanup_oldest_percent",
        "cleanup_interval_ms", "cleanup_files_max", "cleanup_pause_ms",
        "disk_used_percent_max", "disk_counted_bytes_max", "disk_free_bytes_min",
        "disk_check_interval_ms",
    }
)  # fmt: skip


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the store is and what it guarantees; units are in the names."""

    directory: str
    """Folder of the store; created if missing."""

    commitlog_file_bytes: int = 1 << 30
    """Size of a CommitLog file, by default RocketMQ's. A folder with files keeps their size."""

    consume_queue_file_units: int = 300_000
    """Units of 20 bytes in a ConsumeQueue file, by default as in RocketMQ."""

    flush: Literal["async", "sync"] = "async"
    """When messages are acknowledged. async: when in the page cache; sync: when on disk."""

    flush_interval_ms: int = 500
    """How far the disk may lag behind, even with little traffic."""

    flush_timeout_ms: int = 5_000
    """A producer that waits longer for the disk (with ``flush = "sync"``), or for the next
    CommitLog file, gets a timeout error. RocketMQ's syncFlushTimeout."""

    write_buffer: bool = False
    """Collect records in memory and copy them to the page cache every ``write_buffer_commit_ms``. A
    killed process loses those not yet copied. Only with ``flush = "async"``."""

    write_buffer_commit_ms: int = 200
    """How long a record may stay in a write buffer."""

    write_buffer_files_max: int = 3
    """Most write buffers, each of the size of a CommitLog file. When all are in use, the next file
    is mapped without a buffer."""

    checkpoint_interval_ms: int = 10_000
    """How much of the log, in time, a start after a crash must read again."""

    message_bytes_max: int = 4_194_304
    """Largest message, body and properties together."""

    disk_used_percent_max: int = 90
    """How full the disk may be; above that appends are refused, and reads go on. A disk larger than
    ``disk_counted_bytes_max`` may be fuller."""

    disk_counted_bytes_max: int = 107_374_182_400
    """Disk size to which the percentages apply at most: larger disks need no more free space than
    one of this size. At 90 % that is 10 GiB."""

    disk_free_bytes_min: int = 268_435_456
    """Free space that even a small disk must have; below it appends are refused. Below twice as
    much, old files are removed."""

    disk_check_interval_ms: int = 1_000
    """Time between checks of the disk."""

    page_cache_busy_ms: int = 1_000
    """Producers get SYSTEM_BUSY if an append takes longer, or waits longer for the next CommitLog
    file. RocketMQ's osPageCacheBusyTimeOutMills."""

    commitlog_touch_ahead_bytes: int = 4_194_304
    """How much of the last file a worker thread prepares ahead of appends; 0: nothing. No effect
    with a write buffer or ``flush = "sync"``."""

    commitlog_files_mapped_max: int = 256
    """CommitLog files mapped for reading, besides the last ones; each takes a descriptor."""

    consume_queue_flush_interval_ms: int = 1_000
    """Time between checks for ConsumeQueue units to write."""

    consume_queue_flush_least_pages: int = 2
    """Pages of units that a queue collects in memory before they are written; a checkpoint writes
    all."""

    consume_queue_memory_bytes_max: int = 67_108_864
    """Most units of all queues in memory. At half of this they are written at once; at this number
    an append writes them itself."""

    consume_queue_files_open_max: int = 256
    """ConsumeQueue files open for reading; each takes a descriptor."""

    index_slots: int = 5_000_000
    """Hash slots of a new index file, by default as in RocketMQ. Existing files of another shape
    can be read."""

    index_entries: int = 20_000_000
    """Entries of a new index file. A file of RocketMQ's shape has 420 MB, but only used entries
    take disk space."""

    cached_memory_percent: int = 40
    """Percentage of the machine's memory that is assumed to hold the end of the log (RocketMQ's
    accessMessageInMemoryMaxRatio). Readers of older messages may be sent to a slave."""

    retention_hours: int = 72
    """Retention: a file whose newest message is older is removed during ``cleanup_hours``."""

    cleanup_hours: tuple[int, ...] = (4,)
    """Hours of the day, local time, in which files are removed by age."""

    cleanup_expired_percent: int = 75
    """Disk usage above which expired files are removed at any hour; large disks as above."""

    cleanup_oldest_percent: int = 85
    """Disk usage above which the oldest files are removed, expired or not; large disks as above."""

    cleanup_interval_ms: int = 10_000
    """Time between rounds of cleaning."""

    cleanup_files_max: int = 10
    """Most files that one round removes."""

    cleanup_pause_ms: int = 100
    """Pause after each removed file, so that the disk has time for other work."""

    delay_levels: str = DEFAULT_DELAY_LEVELS
    """Delays that a message can choose by level; the first is level 1."""

    lmq: bool = False
    """Put messages into the light queues that INNER_MULTI_DISPATCH names, like RocketMQ's enableLmq
    and enableMultiDispatch; RocketMQ's MQTT gateway needs it."""

    lmq_queues_max: int = 20_000
    """Most light queues that sends may create; a send that names a further one is refused."""

    @property
    def promise(self) -> str:
        """The meaning of an acknowledgement as text."""
        if self.flush == "sync":
            return "acknowledged when on the disk"
        if self.write_buffer:
            return (
                "acknowledged when in this process's memory, in the page cache within "
                f"{self.write_buffer_commit_ms} ms, on the disk within {self.flush_interval_ms} ms"
            )
        return (
            f"acknowledged when in the page cache, on the disk within {self.flush_interval_ms} ms"
        )

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def _faults(self) -> Iterator[SectionFault]:
        if not self.directory:
            yield SectionFault("must name a folder", ("directory",))
        if self.commitlog_file_bytes < 4096 or self.commitlog_file_bytes % 4096:
            yield SectionFault(
                f"{self.commitlog_file_bytes} is not a multiple of 4096; sizes like 64MiB and 1GiB"
                " are",
                ("commitlog_file_bytes",),
            )
        for name, (low, high) in BETWEEN.items():
            value = getattr(self, name)
            if not low <= value <= high:
                yield SectionFault(f"{value} is not in [{low}, {high}]", (name,))
        for name, low in AT_LEAST.items():
            value = getattr(self, name)
            if value < low:
                yield SectionFault(f"must be at least {low}, but is {value}", (name,))
        if self.write_buffer and self.flush == "sync":
            yield SectionFault(
                'write_buffer needs flush = "async": with "sync" records must not wait in memory '
                "before they go to the disk",
                ("write_buffer", "flush"),
            )
        if not all(0 <= hour < 24 for hour in self.cleanup_hours):
            yield SectionFault("hours of the day must be in [0, 23]", ("cleanup_hours",))
        try:
            DueTimes(self.delay_levels)
        except ValueError as exc:
            yield SectionFault(str(exc), ("delay_levels",))


#: Key -> its smallest value.
AT_LEAST: Final = {
    "commitlog_files_mapped_max": 1,
    "flush_interval_ms": 1,
    "flush_timeout_ms": 1,
    "page_cache_busy_ms": 1,
    "write_buffer_commit_ms": 1,
    "write_buffer_files_max": 1,
    "consume_queue_flush_interval_ms": 1,
    "consume_queue_flush_least_pages": 1,
    "consume_queue_memory_bytes_max": 1,
    "consume_queue_files_open_max": 2,
    "checkpoint_interval_ms": 1,
    "commitlog_touch_ahead_bytes": 0,
    "disk_check_interval_ms": 1,
    "disk_counted_bytes_max": 1 << 20,
    "disk_free_bytes_min": 0,
    "retention_hours": 1,
    "cleanup_interval_ms": 1,
    "cleanup_files_max": 1,
    "cleanup_pause_ms": 1,
    "lmq_queues_max": 1,
}
#: Key -> its smallest and largest value.
BETWEEN: Final = {
    "consume_queue_file_units": (1, 1 << 26),
    "message_bytes_max": (1, 1 << 30),
    "index_slots": (1, 1 << 26),
    "index_entries": (1, 1 << 26),
    "cached_memory_percent": (1, 100),
    "disk_used_percent_max": (1, 100),
    "cleanup_expired_percent": (1, 100),
    "cleanup_oldest_percent": (1, 100),
}
