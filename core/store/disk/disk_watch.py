"""Whether the disk has room for appends: checked each second.

Owns: DiskWatch: the limit, the reason to refuse, how much was refused. Must not touch: appends,
calls that fail for lack of space.

    limit:  free < the larger of  disk_free_bytes_min
                                  (100 - disk_used_percent_max) % of the disk, counted as having at
                                  most disk_counted_bytes_max
"""

from __future__ import annotations

import logging

import trio

from motelog.core.store.config import StoreConfig
from motelog.core.store.disk.files import DiskUsage, Storage
from motelog.core.threads import run_in_thread

logger = logging.getLogger(__name__)

#: A call that found no room is a reason to refuse during so many checks, unless another follows.
NO_ROOM_LOOKS = 10


class DiskWatch:
    """``usage``, ``reserve_bytes`` and ``full_reason`` are as of the last check."""

    def __init__(self, storage: Storage, config: StoreConfig) -> None:
        self._storage = storage
        self._config = config
        self.usage = DiskUsage(0, 0)
        #: Appends are accepted if this much is free.
        self.reserve_bytes = 0
        #: Why appends are refused; None while the disk has space.
        self.full_reason: str | None = None
        #: Messages refused since the start, for any lack of room.
        self.refused_count = 0
        self._refused_before = 0
        self._no_room_reason: str | None = None
        self._no_room_looks = 0

    def configure(self, config: StoreConfig) -> None:
        """Use other limits from the next check on."""
        self._config = config

    @property
    def fault(self) -> str | None:
        """Why messages are refused and what to do, for operators; None if they are not."""
        reason = self.full_reason or self._no_room_reason
        if reason is None:
            return None
        return (
            f"{reason}: messages are refused until there is room; free space on the disk of "
            f"{self._config.directory}, or lower broker.store.retention_hours"
        )

    def refuse(self, count: int, no_room_reason: str | None = None) -> None:
        """Note refused messages; ``no_room_reason`` is the reason of a call that found no room."""
        self.refused_count += count
        if no_room_reason is not None:
            self._no_room_reason, self._no_room_looks = no_room_reason, NO_ROOM_LOOKS

    async def run(self) -> None:
        """Check each interval, in a thread, until cancelled."""
        while True:
            await trio.sleep(self._config.disk_check_interval_ms / 1000)
            await run_in_thread(self.check)

    def check(self) -> None:
        """Refuse appends while the disk is nearly full; accept them again when it is not."""
        reason = self._reason_to_refuse()
        if reason is not None and self.full_reason is None:
            self._refused_before = self.refused_count
            logger.warning(
                "appends are refused until the disk has space, reads continue; free some space "
                "directory=%s reason=%s",
                self._config.directory, reason,
            )  # fmt: skip
        elif reason is None and self.full_reason is not None:
            refused_count = self.refused_count - self._refused_before
            logger.warning("appends are accepted again messages_refused=%d", refused_count)
        self.full_reason = reason
        if self._no_room_looks:
            self._no_room_looks -= 1
        else:
            self._no_room_reason = None

    def _reason_to_refuse(self) -> str | None:
        config = self._config
        try:
            usage = self._storage.disk_usage(config.directory)
        except OSError as exc:
            return f"the disk usage cannot be determined: {exc}"
        share = usage.share_bytes(100 - config.disk_used_percent_max, config.disk_counted_bytes_max)
        self.usage, self.reserve_bytes = usage, max(share, config.disk_free_bytes_min)
        if usage.free_bytes >= self.reserve_bytes:
            return None
        limit = 100 * max(0.0, 1 - self.reserve_bytes / max(usage.total_bytes, 1))
        return (
            f"disk {usage.used_percent:.1f} % full, limit {limit:.4g} %; "
            f"{_size(usage.free_bytes)} free, {_size(self.reserve_bytes)} needed"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
