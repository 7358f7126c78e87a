"""The retained messages that a gateway has appended and not read back yet, by topic name.

Owns: Written, UnreadRetained. Must not touch: the log, the view's rows (``retained_rows``).
Invariant: a message whose ticket has an error is ignored; if it is in the log after all, it is
found when it is read back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

from sortedcontainers import SortedDict

from motelog.gateway.log.log_port import Ticket
from motelog.gateway.state.retained_rows import Retained


class Written:
    """One message that has not been read back; ``message`` is None if it removes the last one.

    ``record`` goes into the batch of the publish; its appender sets ``ticket``. ``count``,
    ``size_bytes`` and ``by_client`` are what it adds to those of the store.
    """

    __slots__ = (
        "by_client",
        "count",
        "message",
        "name",
        "number",
        "record",
        "size_bytes",
        "ticket",
    )

    def __init__(
        self,
        name: str,
        number: int,
        record: tuple[Any, ...],
        message: Retained | None,
        replaced: Retained | None,
    ) -> None:
        self.name = name
        self.number = number
        self.record = record
        self.message = message
        self.ticket: Ticket | None = None
        self.count = (message is not None) - (replaced is not None)
        self.size_bytes = (message.size_bytes if message is not None else 0) - (
            replaced.size_bytes if replaced is not None else 0
        )
        self.by_client: Counter[str] = Counter()
        if message is not None:
            self.by_client[message.client_id] += 1
        if replaced is not None:
            self.by_client[replaced.client_id] -= 1

    @property
    def is_refused(self) -> bool:
        return self.ticket is not None and self.ticket.error is not None


class UnreadRetained:
    """What one gateway has written, with the counts by which it changes those of the view."""

    def __init__(self) -> None:
        #: By topic name; those that may still be refused, in order.
        self.written: SortedDict[str, deque[Written]] = SortedDict()
        self._unsettled: deque[Written] = deque()
        self._by_client: Counter[str] = Counter()
        self.count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self.written.values()))

    def __contains__(self, name: str) -> bool:
        return name in self.written

    def names(self, lowest: str, highest: str) -> Iterator[str]:
        """Iterate over the topic names in [lowest, highest], in order."""
        return iter(self.written.irange(lowest, highest))

    def count_of(self, client_id: str) -> int:
        """Return how many more messages of a client there are than in the view."""
        return self._by_client[client_id]

    def note(self, written: Written) -> None:
        """Keep a message until it has been read back."""
        self.written.setdefault(written.name, deque()).append(written)
        self._unsettled.append(written)
        self.count += written.count
        self.size_bytes += written.size_bytes
        self._count_clients(written, 1)

    def last(self, name: str) -> Written | None:
        """Return the last message of a topic name that was not refused."""
        all_written: Iterable[Written] = reversed(self.written.get(name, ()))
        return next((written for written in all_written if not written.is_refused), None)

    def forget(self, name: str, body: bytes) -> None:
        """Drop a message that was read back, and those before it."""
        for position, one in enumerate(self.written.get(name, ())):
            if one.record[1] == body and not one.is_refused:
                for _ in range(position + 1):
                    self._drop(self.written[name][0])
                break

    def drop_refused(self) -> Iterator[str]:
        """Drop the messages that the log refused; yield their topic names."""
        unsettled = self._unsettled
        while unsettled and unsettled[0].ticket is not None and unsettled[0].ticket.is_settled:
            written = unsettled.popleft()
            if written.is_refused and written in self.written.get(written.name, ()):
                self._drop(written)
                yield written.name

    def _drop(self, written: Written) -> None:
        all_written = self.written[written.name]
        all_written.remove(written)
        if not all_written:
            del self.written[written.name]
        self.count -= written.count
        self.size_bytes -= written.size_bytes
        self._count_clients(written, -1)

    def _count_clients(self, written: Written, sign: int) -> None:
        counts = self._by_client
        for client_id, change in written.by_client.items():
            counts[client_id] += sign * change
            if not counts[client_id]:
                del counts[client_id]
