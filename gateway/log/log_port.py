"""What the gateway needs of a log, wherever the log is kept.

Owns: the LogPort protocol and its values: tickets and the errors that only a log has, the result of
a read, what a read waits for.
Must not touch: a broker or a connection; implementations do (``local_log``: a broker in this
process; ``remote_log``: brokers elsewhere).

    append(batch) -> Ticket, settled already      -> nothing waits, the batch is answered at once
                  -> Ticket, not settled yet      -> on_settled: [(ticket, None or an error), ...]
    read(queue)   -> LogRead                      -> records, the next offset, what was lost
                  -> Waiting                      -> when_at_hand(waiting, then) -> read again

Invariants: no call blocks. A port without ``append_apart`` settles tickets in the order of their
appends, so that a ticket is settled when ``append`` returns only if no earlier ticket waits. A port
of several brokers settles a ticket when its own broker has answered. An error belongs to its batch:
the next one may succeed. A handle stays equal to itself as long as its port lives.
A port serves one gateway and calls its listeners in that gateway's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from zlib import crc32

import trio

from motelog.core.errors import MotelogError, StoredError, StoreFullError

#: A queue of the log; only its port knows its content.
QueueHandle: TypeAlias = Hashable


class OutcomeUnknownError(MotelogError):
    """A remote log has not answered an append: it may or may not have the messages."""


class StoredUnsafelyError(OutcomeUnknownError, StoredError):
    """A remote log has the messages, but not yet where it promises them to be."""


class Ticket:
    """One appended batch; if it settles with an ``error``, it must not be acknowledged."""

    __slots__ = ("error", "is_settled")

    def __init__(self, error: MotelogError | None = None, *, is_settled: bool = False) -> None:
        self.error = error
        self.is_settled = is_settled

    @property
    def may_be_missing(self) -> bool:
        """Whether the log may lack the batch: not if it is stored, but not safe yet."""
        return self.error is not None and not isinstance(self.error, StoredError)


#: The ticket of every batch that settled at once without an error: the hot path makes no object.
SETTLED: Final = Ticket(is_settled=True)
#: The ticket of a batch for which there is no memory.
LACKING: Final = Ticket(StoreFullError("no memory for an append"), is_settled=True)

#: Appends each message with a ticket of its own; see ``LogPort.append_apart``.
AppendApart: TypeAlias = Callable[[Sequence[Any], Mapping[int, Sequence[Ticket]]], Sequence[Ticket]]

#: Called with a ticket's error, None if there is none, once the ticket has settled.
Then: TypeAlias = Callable[[MotelogError | None], None]
#: ``after(ticket, then)`` calls ``then`` when the ticket has settled, possibly at once.
After: TypeAlias = Callable[[Ticket, Then], None]

#: The longest delay of a message, which is the default of RocketMQ's timers and of ours.
DELAY_MS_MAX: Final = 40 * 86_400_000

#: Tickets with the errors of their batches, in the order in which they settle.
Settled: TypeAlias = Sequence[tuple[Ticket, MotelogError | None]]


def no_listener(settled: Settled) -> None:
    """Do nothing: stands for the listener of a port that has none."""


class LogRead(NamedTuple):
    """The result of a read of one queue.

    ``records`` are contiguous, as the record kernels take them. The read began at ``begin_offset``;
    retention has deleted the records between the requested offset and this one. ``is_more``: the
    queue has records from ``next_offset`` on.
    """

    records: bytes
    begin_offset: int
    next_offset: int
    is_more: bool


class Moved(NamedTuple):
    """Publishers have moved to a queue: what they published until ``time_ms`` is in ``queues``.

    ``time_ms`` is 0 while they move: nothing is appended to the topic then.
    """

    time_ms: int
    queues: Sequence[QueueHandle]


class Growth(Protocol):
    """The queues that have grown since their reader last looked."""

    @property
    def queues(self) -> Collection[QueueHandle]:
        """The grown queues that have not been taken yet."""
        ...

    def take(self) -> Sequence[QueueHandle]:
        """Return the grown queues, each once, and forget them."""
        ...


class Waiting(Protocol):
    """A read whose records have to be fetched. The reader passes it to its next attempt.

    Its content belongs to the port: what is missing, how often the read was tried.
    """


def choose_queue(selector: str, queue_count: int) -> int:
    """Return the queue id that a selector chooses in a topic; every port uses this choice."""
    return crc32(selector.encode()) % queue_count


class LogPort(Protocol):
    """One log: append a batch, read a queue from an offset, learn which queues have grown."""

    @property
    def knows_tails(self) -> bool:
        """Whether ``tail`` always knows at once, so that nothing waits for the tails of queues."""
        ...

    # --- topics and queues ---------------------------------------------------------------

    def has_topic(self, topic: str) -> bool:
        """Return whether ``topic`` can be written to, or is being created."""
        ...

    def create_topic(self, topic: str, queue_count: int) -> None:
        """Create the topic unless it exists; BrokerError if it is known to be refused.

        It may take a while. ``queue_of`` works at once, and batches appended meanwhile wait inside
        the port. If the topic is refused in the end, their tickets settle with the error, the
        listener of ``on_topic_refused`` is called, and the refusal is remembered for a while.
        """
        ...

    def topics(self) -> Sequence[str]:
        """Return the users' topics known so far; ``on_topic_created`` reports later ones."""
        ...

    def queue_of(self, topic: str, selector: str) -> QueueHandle:
        """Return the handle for appends to the queue of ``topic`` that ``selector`` chooses.

        The topic exists or is being created.
        """
        ...

    def append_queues(self, topic: str) -> Sequence[QueueHandle]:
        """Return the handles that ``queue_of`` returns, in the order of ``choose_queue``'s ids.

        Empty while the topic is not known to exist or cannot be written to, and while publishers
        move to queues that were added. Several may lead to the same queue. When that or their
        number changes, the listener of ``on_topic_created`` is called.
        """
        ...

    def queues(self, topic: str) -> Sequence[QueueHandle]:
        """Return the topic's queues for reading; empty while the topic is not known to exist.

        There may be more of them than queues for appends: a topic shrinks by closing queues to
        writers first.
        """
        ...

    def describe(self, queue: QueueHandle) -> str:
        """Return the name of a queue for log lines."""
        ...

    def find_queue(self, name: str) -> QueueHandle | None:
        """Return the handle for reading of the queue with this name (see ``describe``), or None.

        This includes a queue of delayed messages, if it can be read, and a queue that is closed to
        readers, as long as its topic exists: the messages in it are read now, or when it is open
        again.
        """
        ...

    def moved_from(self, queue: QueueHandle) -> Moved | None:
        """Return from where publishers have moved to a queue for reading that was added to a topic.

        None if it has always been theirs, or they do not use it yet. The listener of
        ``on_topic_created`` is called when a move begins and when it is over.
        """
        ...

    def on_topic_created(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with each topic that gets queues, before their growth is noted.

        It is also called when the number of a topic's queues for appends or for reading changes.
        """
        ...

    def on_topic_refused(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with each topic whose creation was begun and has failed."""
        ...

    # --- append --------------------------------------------------------------------------

    def append(self, messages: list[Any]) -> Ticket:
        """Take a batch of ``core.records.append.AppendMessage`` whose first items are handles.

        Until the ticket has settled, the batch is taken and nothing is promised. If it settles with
        an error, none of the batch may be acknowledged, though some of it may be in the log. The
        listener is not called with a ticket that is settled on return. The caller may reuse the
        list on return. Messages of one queue keep their order; at a port with ``append_apart``
        there need be no order between queues.
        """
        ...

    @property
    def append_apart(self) -> AppendApart | None:
        """Append like ``append``, but return for each message the ticket of its own fate.

        Messages share a ticket if they share their fate. The second argument has tickets of earlier
        appends by the place of a message: it is sent when they have settled, and refused if one of
        them has an error. Later messages of the same publisher are not sent before it.

        None if a batch has one fate, as in a log of one broker in this process.
        """
        ...

    def withdraw(self, publisher: bytes) -> None:
        """Keep out of the log, as far as possible, what a publisher has appended until now.

        Its connection has been ended because a message was refused, so it sends all messages that
        were not acknowledged again: stored now, they would be before the refused one. Tickets of
        messages kept out settle with OutcomeUnknownError. ``publisher`` is the host in the
        messages; those of others that share a ticket with them are kept out too.
        """
        ...

    def refusal(self, queue: QueueHandle) -> MotelogError | None:
        """Return why an append to ``queue`` is refused at once, None if that is not known.

        For a message whose copy or mark must not be appended if the message is refused.
        """
        ...

    @property
    def append_ms_max(self) -> int:
        """How long after its append a message may still reach the log, whatever its gateway does.

        0 if it is in the log when ``append`` returns.
        """
        ...

    def delayed(self, message: Any, delay_ms: int) -> Any:
        """Return the message to append instead of ``message``, to be delivered after ``delay_ms``.

        The delay is at most DELAY_MS_MAX. It is measured by the log's clock: the gateway's may
        differ. The caller must append the result before it waits for anything. The record is as
        safe as any other once its ticket has settled. Its handle is only for ``append``,
        ``describe`` and ``least_tail``.
        """
        ...

    def on_settled(self, listener: Callable[[Settled], None]) -> None:
        """Call ``listener`` with the tickets that settle after their append returned."""
        ...

    def fence(self, run: Callable[[], int]) -> None:
        """Refuse messages that wait for marks if ``run`` has changed since their append.

        Then another gateway may have taken over the sessions to which the marks belong.
        """
        ...

    def settle_soon(self) -> None:
        """Start settling the tickets that wait, because no appends come for the moment.

        It is not called after each append: one sync or request serves all turns that a reactor has
        ready.
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
        """Return the available records from ``queue_offset`` on, or what the read waits for.

        With ``tag_codes``, the port may omit records whose tag hash is not among them, to save
        reading them. ``waited`` is what the last attempt of the same read returned. The read does
        not wait for ever, as long as the log itself is reachable: after enough attempts the port
        returns records or raises the error.
        """
        ...

    def when_at_hand(self, waiting: Waiting, then: Callable[[], None]) -> bool:
        """Fetch what a read waits for and call ``then`` later; False if too many reads wait."""
        ...

    def tail(self, queue: QueueHandle, then: Callable[[int], None] | None = None) -> int | None:
        """Return the queue offset that the next record of the queue will have.

        None if it is not known yet; then the port finds it out and calls ``then`` with it, if
        given. Growth from that offset on is noted afterwards; it need not be noted before that. For
        a handle for appends the port need not find it out: it may return None and never call
        ``then``.
        """
        ...

    def least_tail(self, queue: QueueHandle) -> int:
        """Return what ``tail`` of a handle for appends was at some time before, 0 if unknown.

        It may be beyond the tail only if the log has lost records since.
        """
        ...

    def newest_tail(self, queue: QueueHandle, then: Callable[[int], None]) -> None:
        """Call ``then``, perhaps at once, with the tail of a queue behind all that was appended.

        Reads may still end below it, where they are served from a copy or records are on their way.
        """
        ...

    def offset_at(
        self, queue: QueueHandle, time_ms: int, then: Callable[[int], None]
    ) -> int | None:
        """Return the offset of the first record that was stored at ``time_ms`` or later.

        The tail if all are older. So time 0 finds the queue's first record. None if the offset is
        not known yet; ``then`` is called with it later.
        """
        ...

    def follow(self, wake: Callable[[], None]) -> Growth:
        """Return a Growth that notes the queues that grow from now on, by any append.

        It notes the queues whose tail was requested, and possibly others. ``wake`` is called each
        time that its queues stop being empty, possibly within an append: it must not append.
        """
        ...

    def gather(self, topic: str, pause_s: Callable[[], float]) -> None:
        """Let messages of a topic gather for ``pause_s`` after each growth that was noted.

        This is for a reader that reads all of them at once, and no sooner. A port for which noting
        growth costs nothing may ignore it.
        """
        ...

    # --- life ----------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Settle tickets, or refuse those that wait too long, until cancelled.

        Started when the topics are known. Messages appended before ``close`` still reach the log,
        if that takes only seconds. Afterwards no listener is called with a ticket.
        """
        ...

    def close(self) -> None:
        """Stop calling listeners: the connections are about to end, and no more is appended."""
        ...
