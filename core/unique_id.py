"""Unique message ids in the form of Java clients, so that tools find our messages the same way.

Owns: UniqueIds. Must not touch: sockets, the clock (the time is an argument).
Spec: RocketMQ MessageClientIDSetter. 32 or 56 upper-case hexadecimal digits.

    0  4|16  address     +0  u16  process id     +2  u32  maker (random; Java: class loader hash)
    +6  u32  milliseconds since the month began  +10  u16  counter
"""

from __future__ import annotations

import secrets
from datetime import datetime


class UniqueIds:
    """Makes ids that are unique within a month. One per client, for one thread."""

    def __init__(self, *, address: bytes, process_id: int) -> None:
        maker = secrets.token_bytes(4)
        prefix = address + (process_id & 0xFFFF).to_bytes(2, "big") + maker
        self._prefix = prefix.hex().upper()
        self._counter = 0
        self._month_begin_ms = 0
        self._month_end_ms = 0

    def next(self, now_ms: int) -> str:
        """Return a new id; at most 65,536 are different within one millisecond."""
        if not self._month_begin_ms <= now_ms < self._month_end_ms:
            self._begin_month(now_ms)
        self._counter = (self._counter + 1) & 0xFFFF
        since = (now_ms - self._month_begin_ms) & 0xFFFFFFFF
        return f"{self._prefix}{since:08X}{self._counter:04X}"

    def _begin_month(self, now_ms: int) -> None:
        # Local time, as Java's Calendar: tools read the send time back from the id with it.
        now = datetime.fromtimestamp(now_ms / 1000)
        begin = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
        self._month_begin_ms = int(begin.timestamp() * 1000)
        self._month_end_ms = int(begin.replace(year=year, month=month).timestamp() * 1000)
