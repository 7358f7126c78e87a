"""Whether the disk has room for appends: looked at each second.

Owns: DiskWatch: the two limits, the reason to refuse. Must not touch: appends, calls that find no
room.
"""

from __future__ import annotations

import logging

import trio

from motelog.core.store.config import StoreConfig
from motelog.core.store.disk.files import DiskUsage, Storage

logger = logging.getLogger(__name__)


class DiskWatch:
    """``usage`` and ``full_reason`` are as of the last look."""

    def __init__(self, storage: Storage, config: StoreConfig) -> None:
        self._storage = storage
        self._config = config
        self.usage = DiskUsage(0.0, 0)
        #: Why appends are refused until there is space again; None while there is.
        self.full_reason: str | None = None

    async def run(self) -> None:
        """Look each interval, in a thread, until cancelled."""
        while True:
            await trio.sleep(self._config.disk_check_interval_ms / 1000)
            await trio.to_thread.run_sync(self.check)

    def check(self) -> None:
        """Refuse appends while the disk is nearly full; accept them again when it is not."""
        reason = self._reason_to_refuse()
        if reason is not None and self.full_reason is None:
            logger.warning(
                "appends are refused and reads go on, until there is space: free some reason=%s",
                reason,
            )
        elif reason is None and self.full_reason is not None:
            logger.warning("appends are accepted again")
        self.full_reason = reason

    def _reason_to_refuse(self) -> str | None:
        config = self._config
        try:
            usage = self._storage.disk_usage(config.directory)
        except OSError as exc:
            return f"how full the disk is cannot be told: {exc}"
        self.usage = usage
        if usage.used_percent > config.disk_used_percent_max:
            limit = config.disk_used_percent_max
            return f"the disk is {usage.used_percent:.1f} % full, the limit is {limit} %"
        if usage.free_bytes < config.disk_free_bytes_min:
            limit = config.disk_free_bytes_min
            return f"the disk has {usage.free_bytes} bytes free, the limit is {limit}"
        return None
