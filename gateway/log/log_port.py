"""What the gateway needs of a log, wherever the log is kept.

Owns: the LogPort protocol and its values: tickets, what a read found, what a read waits for.
Must not touch: a broker or a connection; implementations do (``local_log``: a broker in this
process; ``remote_log``: brokers elsewhere).

    append(batch) -> Ticket, settled already      -> nothing waits, the batch is answered at once
                  -> Ticket, not settled yet      -> on_settled: [(ticket, None or an error), ...]
    read(queue)   -> LogRead                      -> records, where to go on, what was lost
                  -> Waiting                      -> when_at_hand(waiting, then) -> read again

Invariants: no call blocks. Tickets settle in the order of their appends, because the answers to a
client leave in the order of its publishes [MQTT-4.6.0-2]. So a ticket is settled when ``append``
returns only if no earlier ticket waits. An error belongs to its batch: the next one may succeed.
A handle stays equal to itself as long as its port lives.
A port serves one gateway and calls its listeners in that gateway's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from zlib import crc32

import trio

from motelog.core.errors import MotelogError

#: A queue of the log; only its port knows what is inside.
QueueHandle: TypeAlias = Hashable


class Ticket:
    """One appended batch; if it settles with an ``error``, it must not be acknowledged."""

    __slots__ = ("error", "is_settled")

    def __init__(self, error: MotelogError | None = None, *, is_settled: bool = False) -> None:
        self.error = error
        self.is_settled = is_settled


#: The ticket of every batch that settled well at once, so that the hot path makes no object.
SETTLED: Final = Ticket(is_settled=True)

#: Called with a ticket's error, None if there is none, once the ticket has settled.
Then: TypeAlias = Callable[[MotelogError | None], None]
#: ``after(ticket, then)`` has ``then`` called, maybe at once.
After: TypeAlias = Callable[[Ticket, Then], None]

#: The longest that a message can be delayed, as RocketMQ's timers have it by default and ours.
DELAY_MS_MAX: Final = 40 * 86_400_000

#: Tickets with the errors of their batches, in the order of the appends.
Settled: TypeAlias = Sequence[tuple[Ticket, MotelogError | None]]


class LogRead(NamedTuple):
    """What a read found in one queue.

    ``records`` lie one behind the other, as the record kernels take them. The read began at
    ``begin_offset``; retention has deleted the records between the offset asked for and this one.
    ``is_more``: the queue has records from ``next_offset`` on.
    """

    records: bytes
    begin_offset: int
    next_offset: int
    is_more: bool


class Growth(Protocol):
    """Which queues have had more to read since their reader last looked."""

    @property
    def queues(self) -> Collection[QueueHandle]:
        """They, while nobody has taken them."""
        ...

    def take(self) -> Sequence[QueueHandle]:
        """Return them, each once, and forget them."""
        ...


class Waiting(Protocol):
    """A read that found nothing at hand. The reader keeps it and passes it to the next attempt.

    Its content is the port's: what is missing, how often the read was tried.
    """


def choose_queue(selector: str, queue_count: int) -> int:
    """Return the queue id that a selector chooses in a topic, the same behind every port."""
    return crc32(selector.encode()) % queue_count


class LogPort(Protocol):
    """One log: append a batch, read a queue from an offset, hear of growth."""

    @property
    def knows_tails(self) -> bool:
        """Whether ``tail`` always knows at once, so that nothing waits for the ends of queues."""
        ...

    # --- topics and queues ---------------------------------------------------------------

    def has_topic(self, topic: str) -> bool:
        """Return whether ``topic`` can be written to, or is being created."""
        ...

    def create_topic(self, topic: str, queue_count: int) -> None:
        """Create the topic unless it exists; BrokerError if it is known to be refused.

        It may take a while. ``queue_of`` works at once, and batches appended meanwhile wait inside
        the port. If the topic is refused in the end, their tickets settle with the reason, the
        listener of ``on_topic_refused`` is called, and the refusal is remembered for a while.
        """
        ...

    def topics(self) -> Sequence[str]:
        """Return the users' topics known so far; ``on_topic_created`` tells of later ones."""
        ...

    def queue_of(self, topic: str, selector: str) -> QueueHandle:
        """Return the handle for appends to the queue of ``topic`` that ``selector`` chooses.

        The topic exists or is being created.
        """
        ...

    def append_queues(self, topic: str) -> Sequence[QueueHandle]:
        """Return the handles that ``queue_of`` returns, in the order of ``choose_queue``'s ids.

        None while the topic is not known to exist or cannot be written to. When that or their
        number changes, the listener of ``on_topic_created`` is called.
        """
        ...

    def queues(self, topic: str) -> Sequence[QueueHandle]:
        """Return the topic's queues for reading, none while the topic is not known to exist.

        They may be more than those to write to: a topic shrinks by closing queues to writers first.
        """
        ...

    def describe(self, queue: QueueHandle) -> str:
        """Return the name of a queue for log lines."""
        ...

    def find_queue(self, name: str) -> QueueHandle | None:
        """Return for reading the queue that ``describe`` gives this name, None if there is none.

        Also one where delayed messages wait, if they can be read there, and one that is closed to
        readers, as long as its topic is there: what waits in it is read now, or when it is open
        again.
        """
        ...

    def on_topic_created(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with each topic that gets queues, before their growth is noted.

        Also when it gets another number of them, to write to or to read.
        """
        ...

    def on_topic_refused(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with each topic whose creation was begun and has failed."""
        ...

    # --- append --------------------------------------------------------------------------

    def append(self, messages: list[Any]) -> Ticket:
        """Take a batch of ``core.records.append.AppendMessage`` whose first items are handles.

        Until the ticket has settled, the batch is taken and no more is promised. When it settles
        with an error, none of the batch may be acknowledged, though some of it may be in the log. A
        ticket settled on return is not told again. The list is the caller's again on return.
        Messages of one queue keep their order. Messages of a gateway's own topics are in the log
        before those that follow them in the batch; between other queues there need be no order.
        """
        ...

    @property
    def append_ms_max(self) -> int:
        """How long a batch may still reach the log after the process that appended it has ended.

        0 if it is there when ``append`` returns.
        """
        ...

    def delayed(self, message: Any, delay_ms: int) -> Any:
        """Return what to append in place of ``message``, so that it comes after ``delay_ms``.

        The delay is DELAY_MS_MAX at most. The log's clock counts it: the gateway's may show another
        time. To be appended before the caller waits for anything. The record is as safe as any
        other once its ticket has settled. Its handle is for ``append``, ``describe`` and ``tail``
        alone.
        """
        ...

    def on_settled(self, listener: Callable[[Settled], None]) -> None:
        """Call ``listener`` with the tickets that settle after their append returned."""
        ...

    def fence(self, run: Callable[[], int]) -> None:
        """Have what waits behind marks given up when ``run`` is not what it was at the append.

        Then somebody else may have gone on with the sessions that the marks are of.
        """
        ...

    def settle_soon(self) -> None:
        """Begin to settle the tickets that wait, as no appends come for the moment.

        Not called after each append: one sync or request serves all turns that a reactor has at
        hand.
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
        tag_codes: AbstractSet[int] | None = None,
        waited: Waiting | None = None,
    ) -> LogRead | Waiting:
        """Return the records at hand from ``queue_offset`` on, or what the read waits for.

        With ``tag_codes``, records whose tag hash is not among them may be left out, or not: it
        saves reading them. ``waited`` is what the last attempt of the same read returned. The read
        does not wait for ever, as long as the log itself is there: once the port has tried enough
        it returns records or raises the reason.
        """
        ...

    def when_at_hand(self, waiting: Waiting, then: Callable[[], None]) -> bool:
        """Bring what a read waits for and call ``then`` later; False if too many wait already."""
        ...

    def tail(self, queue: QueueHandle, then: Callable[[int], None] | None = None) -> int | None:
        """Return the queue offset that the next record of the queue will have.

        None if it is not known yet; then the port finds it out and calls ``then`` with it, if there
        is one. Growth from that offset on is noted afterwards, and before that need not be. Of a
        handle for appends a port need not find it out: it returns None and does not call ``then``.
        """
        ...

    def offset_at(
        self, queue: QueueHandle, time_ms: int, then: Callable[[int], None]
    ) -> int | None:
        """Return the offset of the first record that was stored at ``time_ms`` or later.

        The tail if all are older. So time 0 finds the first record that there is. None if it is not
        known yet; ``then`` is called with it later.
        """
        ...

    def follow(self, wake: Callable[[], None]) -> Growth:
        """Return what notes the queues that have more to read from now on, whoever appended.

        Those whose tail was asked for; others may be among them. ``wake`` is called when there are
        some where there were none, maybe within an append: it must not append.
        """
        ...

    def gather(self, topic: str, pause_s: Callable[[], float]) -> None:
        """Let what comes to a topic gather for ``pause_s`` after each growth that was noted.

        For a reader who takes all that there is at once, and no sooner. A port for which telling
        costs nothing need not.
        """
        ...

    # --- life ----------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Settle tickets, or refuse those that wait too long, until cancelled.

        Started when the topics are known. What was appended before ``close`` is still brought to
        the log, if that takes no more than seconds. Afterwards no listener is told of a ticket.
        """
        ...

    def close(self) -> None:
        """Stop telling of tickets: the connections are about to end, and no more is appended."""
        ...
