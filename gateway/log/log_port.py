"""What the gateway needs from a log, whoever keeps it.

Owns: the LogPort protocol and its values: tickets, what a read found, what a read waits for.
Must not touch: a broker or a connection; implementations do (``local_log``: a broker in this
process).

    append(batch) -> Ticket, settled already      -> nothing waits, the batch is answered at once
                  -> Ticket, taken and no more    -> on_settled: [(ticket, None or an error), ...]
    read(queue)   -> LogRead                      -> records, where to go on, what was lost
                  -> Waiting                      -> when_at_hand(waiting, then) -> read again

Invariants: no call blocks. Tickets settle in the order of their appends, as the answers to a
client leave in the order of its publishes [MQTT-4.6.0-2]; so a ticket is settled when ``append``
returns only if none before it waits. An error belongs to its batch: the next one may succeed.
A handle stays equal to itself as long as its port lives.
A port serves one gateway and calls its listeners in that gateway's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from zlib import crc32

from motelog.core.errors import MotelogError

#: A queue of the log; only its port knows what is inside.
QueueHandle: TypeAlias = Hashable


class Ticket:
    """One appended batch; ``error`` says why a settled one must not be acknowledged."""

    __slots__ = ("error", "is_settled")

    def __init__(self, error: MotelogError | None = None, *, is_settled: bool = False) -> None:
        self.error = error
        self.is_settled = is_settled


#: For every batch that was settled well at once: the hot path makes no object of its own.
SETTLED: Final = Ticket(is_settled=True)

#: Tickets with the errors of their batches, in the order of the appends.
Settled: TypeAlias = Sequence[tuple[Ticket, MotelogError | None]]


class LogRead(NamedTuple):
    """What a read found in one queue.

    ``records`` lie one behind the other as the record kernels take them. The read began at
    ``begin_offset``; retention has taken what lies between the offset asked for and that.
    ``is_more``: the queue has records from ``next_offset`` on.
    """

    records: bytes
    begin_offset: int
    next_offset: int
    is_more: bool


class Waiting(Protocol):
    """A read that found nothing at hand. The reader keeps it and hands it to its next attempt.

    What is inside is the port's: what is missing, how often it has been tried.
    """


def choose_queue(selector: str, queue_count: int) -> int:
    """Return which queue of a topic a selector means: the same one behind every port."""
    return crc32(selector.encode()) % queue_count


class LogPort(Protocol):
    """One log: append a batch, read a queue from an offset, hear of growth."""

    # --- topics and queues ---------------------------------------------------------------

    def has_topic(self, topic: str) -> bool:
        """Return whether ``topic`` can be written to, or is being created."""
        ...

    def create_topic(self, topic: str, queue_count: int) -> None:
        """Have the topic created unless it exists; BrokerError if it is known to be refused.

        It may take a while. ``queue_of`` works at once, and what is appended meanwhile waits inside
        the port under its ticket. If the topic is refused in the end, those tickets settle with the
        reason, ``on_topic_refused`` tells, and the refusal is remembered for a while.
        """
        ...

    def topics(self) -> Sequence[str]:
        """Return the names of the users' topics known so far; ``on_topic_created`` tells others."""
        ...

    def queue_of(self, topic: str, selector: str) -> QueueHandle:
        """Return what addresses appends to the queue of ``topic`` that ``selector`` chooses.

        The topic exists or is being created.
        """
        ...

    def queues(self, topic: str) -> Sequence[QueueHandle]:
        """Return the topic's queues for reading, none as long as it is not known to exist."""
        ...

    def describe(self, queue: QueueHandle) -> str:
        """Return the name of a queue for log lines."""
        ...

    def on_topic_created(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with each topic that gets queues, before growth of them is told."""
        ...

    def on_topic_refused(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with each topic whose creation was begun and has failed."""
        ...

    # --- append --------------------------------------------------------------------------

    def append(self, messages: list[Any]) -> Ticket:
        """Take a batch of ``core.records.append.AppendMessage`` whose first items are handles.

        Taken is all that is promised before the ticket has settled. When it settles with an error,
        none of the batch may be acknowledged, though some of it may be in the log. A ticket that is
        settled already is not told again. The list is the caller's again on return.
        """
        ...

    def on_settled(self, listener: Callable[[Settled], None]) -> None:
        """Call ``listener`` with the tickets that settle after their append returned."""
        ...

    def settle_soon(self) -> None:
        """Have settled what waits: nobody appends for the moment.

        Not with each append: one sync or request is to serve all turns that a reactor has at hand.
        """
        ...

    # --- read ----------------------------------------------------------------------------

    def read(
        self,
        queue: QueueHandle,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        waited: Waiting | None = None,
    ) -> LogRead | Waiting:
        """Return the records at hand from ``queue_offset`` on, or what the read waits for.

        ``waited`` is what the last attempt of the same read returned. The read does not wait for
        ever: once the port has tried enough it returns records or raises the reason.
        """
        ...

    def when_at_hand(self, waiting: Waiting, then: Callable[[], None]) -> bool:
        """Bring what a read waits for and call ``then`` later; False if too many wait by now."""
        ...

    def tail(self, queue: QueueHandle, then: Callable[[int], None]) -> int | None:
        """Return the queue offset that the next record of the queue will have.

        None if that is not known yet; ``then`` is called with it later. Growth from there on is
        told afterwards.
        """
        ...

    def on_growth(self, listener: Callable[[Sequence[QueueHandle]], None]) -> None:
        """Call ``listener`` with the queues that have more to read, whoever appended."""
        ...

    # --- life ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Do what takes time, until cancelled: settle tickets or refuse those that wait too long.

        Nobody is told of a ticket afterwards.
        """
        ...

    def close(self) -> None:
        """Tell nobody of a ticket any more: the connections are about to end."""
        ...
