"""The store's section of the configuration.

Owns: StoreConfig. Must not touch: the environment, files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from motelog.core.config import SectionFault, refuse
from motelog.core.store.due_time import DEFAULT_DELAY_LEVELS, DueTimes

#: Keys that a store takes while it is open.
LIVE: Final = frozenset(
    {
        "retention_hours", "cleanup_hours", "cleanup_expired_percent", "cleanup_oldest_percent",
        "cleanup_interval_ms", "cleanup_files_max", "cleanup_pause_ms",
        "disk_used_percent_max", "disk_counted_bytes_max", "disk_free_bytes_min",
        "disk_check_interval_ms",
    }
)  # fmt: skip


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the store lives and what it promises; units are in the names."""

    directory: str
    """Folder of the store; made if it is not there."""

    commitlog_file_bytes: int = 1 << 30
    """Size of a CommitLog file, RocketMQ's. A folder that already has files keeps theirs."""

    consume_queue_file_units: int = 300_000
    """Units of 20 bytes in a ConsumeQueue file, as RocketMQ has them."""

    flush: Literal["async", "sync"] = "async"
    """async: acknowledged when in the page cache; sync: when on the disk."""

    flush_interval_ms: int = 500
    """How far the disk may be behind, also when there is little traffic."""

    flush_timeout_ms: int = 5_000
    """A publisher that waits longer for the disk (with ``flush = "sync"``), or for the next
    CommitLog file, is told that it is too slow. RocketMQ's syncFlushTimeout."""

    write_buffer: bool = False
    """Collect records in memory and copy them into the page cache each ``write_buffer_commit_ms``.
    A process that is killed loses records not yet copied. Only with ``flush = "async"``."""

    write_buffer_commit_ms: int = 200
    """How long a record may stay in a write buffer."""

    write_buffer_files_max: int = 3
    """How many write buffers there may be, each of the size of a CommitLog file. When all are in
    use, the next file is mapped without a buffer."""

    checkpoint_interval_ms: int = 10_000
    """How much of the log a start after a crash has to read again, in time."""

    message_bytes_max: int = 4_194_304
    """Largest message, body and properties together."""

    disk_used_percent_max: int = 90
    """How full the disk may be; above it appends are refused and reads go on. On a disk larger than
    ``disk_counted_bytes_max`` it may be fuller."""

    disk_counted_bytes_max: int = 107_374_182_400
    """How much of the disk the shares are taken of: what must be free on a disk of 100 GiB is
    enough on any larger one. At 90 % that is 10 GiB."""

    disk_free_bytes_min: int = 268_435_456
    """What a small disk must have free too; below it appends are refused and reads go on. Below
    twice as much, old files are removed."""

    disk_check_interval_ms: int = 1_000
    """Time between two looks at the disk."""

    page_cache_busy_ms: int = 1_000
    """An append that takes longer, or waits longer for the next CommitLog file, means that the page
    cache is busy; then producers are told SYSTEM_BUSY. RocketMQ's osPageCacheBusyTimeOutMills."""

    commitlog_touch_ahead_bytes: int = 4_194_304
    """How much of the last file a worker thread makes ready ahead of the append; 0: nothing. It has
    no effect in a write buffer, or with ``flush = "sync"``, whose flushes would write those pages
    twice."""

    commitlog_files_mapped_max: int = 256
    """CommitLog files mapped to be read, besides the last ones; each costs a descriptor."""

    consume_queue_flush_interval_ms: int = 1_000
    """Time between two looks for ConsumeQueue units to be written."""

    consume_queue_flush_least_pages: int = 2
    """Pages of units that a queue collects in memory before they are written; at the next
    checkpoint all are."""

    consume_queue_memory_bytes_max: int = 67_108_864
    """Units of all queues that may wait in memory. With half as many they are written at once; with
    as many an append writes them itself."""

    consume_queue_files_open_max: int = 256
    """ConsumeQueue files open for reading, a descriptor each."""

    index_slots: int = 5_000_000
    """Hash slots of a new index file, as RocketMQ has them. Files of another shape are read as they
    are."""

    index_entries: int = 20_000_000
    """Entries of a new index file. A file of RocketMQ's shape has 420 MB, but only used entries
    take room on the disk."""

    cached_memory_percent: int = 40
    """The share of the machine's memory that the end of the log is assumed to fill: RocketMQ's
    accessMessageInMemoryMaxRatio. Readers of older messages may be sent to a slave."""

    retention_hours: int = 72
    """A file whose newest message is older than this is removed during ``cleanup_hours``."""

    cleanup_hours: tuple[int, ...] = (4,)
    """Hours of the day, local time, in which files are removed by age."""

    cleanup_expired_percent: int = 75
    """How full the disk is when expired files are removed at any hour; large disks as above."""

    cleanup_oldest_percent: int = 85
    """How full the disk is when the oldest files are removed, expired or not, before appends are
    refused; large disks as above."""

    cleanup_interval_ms: int = 10_000
    """Time between two rounds of cleaning."""

    cleanup_files_max: int = 10
    """Files that one round removes at most."""

    cleanup_pause_ms: int = 100
    """Pause after each removed file, so that the disk has time for others."""

    delay_levels: str = DEFAULT_DELAY_LEVELS
    """Delays that a message can ask for by level; the first is level 1."""

    lmq: bool = False
    """Dispatch messages to the light queues that they name in INNER_MULTI_DISPATCH, as RocketMQ
    does with enableLmq and enableMultiDispatch; RocketMQ's own MQTT gateway needs it."""

    lmq_queues_max: int = 20_000
    """Light queues that sends may make; one that names a further one is refused."""

    @property
    def promise(self) -> str:
        """The meaning of an acknowledgement, in words."""
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
                yield SectionFault(f"{value} does not lie in [{low}, {high}]", (name,))
        for name, low in AT_LEAST.items():
            value = getattr(self, name)
            if value < low:
                yield SectionFault(f"must be at least {low}, and is {value}", (name,))
        if self.write_buffer and self.flush == "sync":
            yield SectionFault(
                'write_buffer needs flush = "async": what waits for the disk must not wait in '
                "memory first",
                ("write_buffer", "flush"),
            )
        if not all(0 <= hour < 24 for hour in self.cleanup_hours):
            yield SectionFault("hours of the day lie in [0, 23]", ("cleanup_hours",))
        try:
            DueTimes(self.delay_levels)
        except ValueError as exc:
            yield SectionFault(str(exc), ("delay_levels",))


#: Key -> its least value.
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
#: Key -> its least and its largest value.
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
