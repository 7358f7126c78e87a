"""Removal of old CommitLog files and of the derived files that point into them.

Owns: Retention (which file is expired), LogCleaner (the order of removal, rounds, pauses).
Must not touch: what is in a record beyond its store timestamp.
Spec: RocketMQ DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService.

    each 10 s:  hour of the day is 04, or the disk is over 75 % full -> remove expired files
                the disk is over 85 % full                           -> remove the oldest files
    one file:   listeners append again what they need from it -> that is on disk -> the file leaves
                the list -> it is removed, its directory synced
    at the end: ConsumeQueue files and others that point only into removed files

Invariants: files are removed in the order of the log, and the newest stays. A file is removed only
when the records that listeners appended again from it are durable. Setting the wall clock in either
direction, while the store is open or stopped, expires nothing early.
Concurrency: a reader cannot find a file that has left the list. The file is unmapped when the last
holder releases its view. The flusher never syncs a file below its offset.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec
import trio

from motelog.core.clock import Clock, SteadyClock
from motelog.core.errors import StoreError
from motelog.core.flag import Flag
from motelog.core.records.scan import scan
from motelog.core.store.config import StoreConfig
from motelog.core.store.disk.files import NO_ROOM, DiskUsage
from motelog.core.store.log.mapped_file_queue import MappedFile
from motelog.core.store.parts import StoreParts
from motelog.core.store.quarantine import UnitsAsideError
from motelog.core.store.queues.consume_queue import ConsumeQueue
from motelog.core.store.readable import Readable
from motelog.core.threads import run_in_thread

logger = logging.getLogger(__name__)

HOUR_MS: Final = 3_600_000
QUEUES_PER_STEP: Final = 64


BeforeRemoval = Callable[[int, int], Awaitable[None]]


class Retention:
    """The age of files, which does not change when the wall clock is set.

    Only the time in which the store is open counts. If the clock is ahead after a stop, it is not
    known whether that time has really passed.
    """

    def __init__(self, clock: SteadyClock, wall: Clock, retention_hours: int) -> None:
        self._clock = clock
        self._wall = wall
        self.keep(retention_hours)

    def keep(self, retention_hours: int) -> None:
        """Set the retention from now on."""
        self._retention_ms = retention_hours * HOUR_MS

    def is_expired(self, newest_ms: int) -> bool:
        """Return whether messages up to ``newest_ms`` have exceeded the retention."""
        return self._clock.age_ms(newest_ms) > self._retention_ms

    def hour(self) -> int:
        """Return the hour of the day in local time."""
        return time.localtime(self._wall.now_ms() / 1000).tm_hour


class LogCleaner:
    """Removes files of one open store, round by round.

    ``before_removal`` are called with a file's [begin, end) and may append; ``after_removal`` with
    the log's new begin, and return the paths of files that point only below it.
    """

    def __init__(
        self,
        parts: StoreParts,
        config: StoreConfig,
        queues: Mapping[tuple[str, int], ConsumeQueue],
        readable: Readable,
        *,
        wall: Clock,
    ) -> None:
        self._config = config
        self._configured_hours = config.retention_hours
        self._clock = parts.clock
        self._retention = Retention(parts.clock, wall, config.retention_hours)
        self._storage = parts.storage
        self._log = parts.log
        self._queues = queues
        self._readable = readable
        self._flusher = parts.flusher
        self._files_lock = parts.files_lock
        self._on_failure = parts.on_failure
        self.before_removal: list[BeforeRemoval] = []
        self.after_removal: list[Callable[[int], list[str]]] = []
        self._wanted = Flag()

    def configure(self, config: StoreConfig) -> None:
        """Use these limits from the next round on."""
        hours = self._config.retention_hours  # may have been set since by ``keep``
        if config.retention_hours != self._configured_hours:
            self._configured_hours = hours = config.retention_hours
        self._config = config
        self.keep(hours)

    def keep(self, retention_hours: int) -> None:
        """Set the retention from the next round on, until the configuration changes it."""
        self._retention.keep(retention_hours)
        self._config = msgspec.structs.replace(self._config, retention_hours=retention_hours)

    def want(self) -> None:
        """Start the next round at once."""
        self._wanted.set()

    async def run(self) -> None:
        """Clean each interval until cancelled."""
        # A crash may have left derived files whose log files are gone.
        await self._try(self.remove_derived)
        while True:
            if await self._wanted.take(self._config.cleanup_interval_ms / 1000):
                await self._try(self.remove_derived)
            await self._try(self.clean)

    async def _try(self, step: Callable[[], Awaitable[int]]) -> None:
        try:
            await step()
        except (StoreError, OSError) as exc:
            # Only removable files were removed; the next round tries again.
            logger.warning(
                "a round of cleaning failed and may leave old files; the next one tries again "
                "reason=%s",
                exc,
            )

    async def clean(self) -> int:
        """Do one round; return how many CommitLog files were removed."""
        removed = 0
        while removed < self._config.cleanup_files_max and len(self._log.queue.files) > 1:
            if self._flusher.is_fenced:
                break
            oldest = self._log.queue.files[0]
            if oldest.end > self._readable.offset:
                # Its records cannot all be read.
                break
            newest_ms = self._newest_ms(oldest)
            if not await self._goes(newest_ms):
                break
            size = self._log.end_offset - self._log.begin_offset
            await self._remove(oldest)
            removed += 1
            self._clock.forget_before(newest_ms)
            if self._log.end_offset - self._log.begin_offset > size - oldest.size // 2:
                # Nearly all of it was still needed. Continuing would copy the log, not shorten it.
                break
            await trio.sleep(self._config.cleanup_pause_ms / 1000)
        if removed:
            followed = await self.remove_derived()
            logger.info(
                "old files were removed commitlog_files=%d consumequeue_files=%d", removed, followed
            )
        return removed

    def retention_left_s(self, usage: DiskUsage, put_bytes_per_s: float) -> float:
        """Return the seconds until a full disk removes messages before ``retention_hours``.

        It assumes that the log keeps growing at ``put_bytes_per_s``. Infinite if the disk has room
        for the full retention.
        """
        wanted = self._free_bytes_wanted(usage, self._config.cleanup_oldest_percent)
        room_bytes = usage.free_bytes - wanted
        if room_bytes <= 0:
            return 0.0
        log_bytes = self._log.end_offset - self._log.begin_offset
        kept_bytes = put_bytes_per_s * self._config.retention_hours * 3600
        return math.inf if kept_bytes <= log_bytes + room_bytes else room_bytes / put_bytes_per_s

    def _newest_ms(self, file: MappedFile) -> int:
        """Return a time at or after that of the file's newest message.

        Store timestamps do not decrease along the log, so that of the next message can be used.
        """
        for later in self._log.queue.between(file.end, self._log.end_offset):
            first, _, _ = scan(later.view, 0, later.size, later.begin, 1)
            if first:
                return first[0][7]
        return self._log.last_store_timestamp_ms

    async def _goes(self, newest_ms: int) -> bool:
        is_expired = self._retention.is_expired(newest_ms)
        if is_expired and self._retention.hour() in self._config.cleanup_hours:
            return True
        usage = await run_in_thread(self._storage.disk_usage, self._config.directory)
        if usage.free_bytes < self._free_bytes_wanted(usage, self._config.cleanup_oldest_percent):
            if not is_expired:
                logger.warning(
                    "the disk is nearly full and the oldest file is removed before its time: free "
                    "space or shorten retention_hours disk_used_percent=%.1f",
                    usage.used_percent,
                )
            return True
        wanted = self._free_bytes_wanted(usage, self._config.cleanup_expired_percent)
        return is_expired and usage.free_bytes < wanted

    def _free_bytes_wanted(self, usage: DiskUsage, used_percent: int) -> int:
        config = self._config
        share = usage.share_bytes(100 - used_percent, config.disk_counted_bytes_max)
        # Also on a small disk, removal begins before appends are refused.
        return max(share, 2 * config.disk_free_bytes_min)

    async def _remove(self, file: MappedFile) -> None:
        for listener in self.before_removal:
            await listener(file.begin, file.end)
        # The listeners' appends must be durable, and the flusher must have finished with the file.
        end_offset = self._log.end_offset
        await self._flusher.wait(end_offset)
        self._log.queue.drop_first(file)
        try:
            await run_in_thread(self._unlink, file)
        except BaseException:
            # It still exists: a gap between files would prevent the store from opening.
            self._log.queue.put_back(file)
            raise
        try:
            await run_in_thread(self._storage.sync_directory, os.path.dirname(file.path))
        except OSError as exc:
            # Only after this may the next file be removed: a start treats a file missing in the
            # middle as loss. A second sync might report success although this one failed.
            if exc.errno in NO_ROOM:
                self._log.queue.put_back(file)
            else:
                self._on_failure(f"syncing the log's directory failed: {exc}")
            raise
        file.let_go()
        logger.info("a CommitLog file was removed path=%s", file.path)

    def _unlink(self, file: MappedFile) -> None:
        """Remove a file that readers can no longer find; blocks."""
        # The last attempt may already have removed it.
        with suppress(FileNotFoundError):
            self._storage.remove_file(file.path)

    async def remove_derived(self) -> int:
        """Remove files that point only below the log's begin; return how many of ConsumeQueues."""
        removed = 0
        begin_offset = self._log.begin_offset
        async with self._files_lock:
            for listener in self.after_removal:
                paths = listener(begin_offset)
                if paths:
                    await run_in_thread(self._unlink_derived, paths)
        queues = list(self._queues.values())
        for at in range(0, len(queues), QUEUES_PER_STEP):
            # A checkpoint syncs files by name, and none may vanish meanwhile.
            async with self._files_lock:
                paths = []
                for queue in queues[at : at + QUEUES_PER_STEP]:
                    if queue.files_count > 1:
                        # While the file with the queue's begin is quarantined, the others stay.
                        with suppress(UnitsAsideError):
                            queue.advance_min(begin_offset)
                            paths += queue.take_files_below_min()
                if paths:
                    await run_in_thread(self._unlink_derived, paths)
                    removed += len(paths)
            if paths:
                await trio.sleep(self._config.cleanup_pause_ms / 1000)
        return removed

    def _unlink_derived(self, paths: list[str]) -> None:
        for path in paths:
            try:
                self._storage.remove_file(path)
            except OSError as exc:
                # The next start will find that nothing in it points into the log.
                logger.warning(
                    "a derived file could not be removed and takes space until the next start "
                    "path=%s error=%s",
                    path,
                    exc,
                )
