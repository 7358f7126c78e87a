"""What every LogPort of the gateway must do, checked on whichever it is.

Owns: ``check_log_port`` and LogStage, the surroundings that it asks for. Must not touch: how an
implementation does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest
import trio
import trio.testing

from motelog.core.errors import BrokerError, MotelogError
from motelog.core.message import encode_host
from motelog.core.records.decode import decode_messages
from motelog.gateway.log.log_port import (
    LogPort,
    LogRead,
    QueueHandle,
    Settled,
    Ticket,
    choose_queue,
)

HOST = encode_host("127.0.0.1", 1883)
QUEUE_COUNT = 4
BYTES_MAX = 1 << 20
#: More attempts than any port's patience takes.
ATTEMPTS_MAX = 20
#: For an answer of the log.
WITHIN_S = 20.0
#: Later than every record.
LATE_MS = 1 << 61


class LogStage(Protocol):
    """One log and its surroundings."""

    @property
    def log(self) -> LogPort: ...

    @property
    def settles_late(self) -> bool:
        """Whether tickets wait for ``settle``; if not, they wait at most for their topic."""
        ...

    @property
    def refuses_late(self) -> bool:
        """Whether a refusal is known only after ``append`` has returned."""
        ...

    @property
    def can_lose(self) -> bool:
        """Whether what was brought for a read can be gone before it is read."""
        ...

    async def settle(self) -> None:
        """Have all settled that is in the log."""
        ...

    async def taken(self) -> None:
        """Return when the log has what was appended, or has refused it."""
        ...

    def refuse_appends(self, *, refused: bool) -> None:
        """Have appends fail from now on, or succeed again."""
        ...

    async def created(self) -> None:
        """Return when the creations that are not held are over."""
        ...

    def hold_topics(self) -> None:
        """Have topics from now on be created later, if the log can be that slow."""
        ...

    async def finish_topic(self, topic: str, error: BrokerError | None) -> bool:
        """Have a held creation succeed or fail; False if it was done at once."""
        ...

    async def change_queues(self, topic: str, *, read: int, write: int) -> None:
        """Have a topic have so many queues; without one to write to it may not be written to."""
        ...

    async def grown(self) -> None:
        """Return when growth has been told."""
        ...

    def put_away(self) -> None:
        """Let reads find nothing of the log at hand."""
        ...

    async def bring(self, *, keeps: bool = True) -> None:
        """Bring what reads wait for; it is gone again at once unless the log ``keeps`` it."""
        ...

    async def expire(self, queue: QueueHandle) -> None:
        """Have retention delete what is old in ``queue``, and not all."""
        ...

    def hide_tails(self) -> None:
        """Have tails unknown from now on, if the log can be that slow."""
        ...

    async def tell_tails(self) -> None: ...


class _Listener:
    """What a log has told."""

    def __init__(self, log: LogPort) -> None:
        self.settled: list[tuple[Ticket, MotelogError | None]] = []
        self.grown: list[QueueHandle] = []
        self.created: list[str] = []
        self.refused: list[str] = []
        log.on_settled(self._on_settled)
        self._growth = log.follow(self._grew)
        log.on_topic_created(self.created.append)
        log.on_topic_refused(self.refused.append)

    def _on_settled(self, settled: Settled) -> None:
        assert settled, "nobody is told of nothing"
        assert all(ticket.is_settled and ticket.error is error for ticket, error in settled)
        self.settled += settled

    def _grew(self) -> None:
        assert self._growth.queues, "nobody is woken for nothing"
        self.grown += self._growth.take()


class _Appends:
    """Some batches, and what their tickets must come to."""

    def __init__(self, stage: LogStage, listener: _Listener) -> None:
        self._stage = stage
        self._listener = listener
        #: With whether each was settled when its append returned.
        self._tickets: list[tuple[Ticket, bool]] = []
        listener.settled.clear()

    def append(self, *bodies: tuple[QueueHandle, bytes]) -> None:
        batch = [message(queue, body) for queue, body in bodies]
        ticket = self._stage.log.append(batch)
        batch.clear()  # the caller's again
        self._tickets.append((ticket, ticket.is_settled))

    async def check(self, *, failed: Sequence[int] = (), waits: bool | None = None) -> None:
        """Check the settlement; ``failed`` are the batches that must come to an error.

        Unless ``waits`` says otherwise, tickets wait if they settle late.
        """
        at_once = [is_settled for _, is_settled in self._tickets]
        is_waiting = self._stage.settles_late if waits is None else waits
        assert at_once == [not is_waiting] * len(at_once)
        await self._stage.settle()
        tickets = [ticket for ticket, _ in self._tickets]
        told = [ticket for ticket, _ in self._listener.settled]
        if self._stage.log.append_apart is None:
            assert told == (tickets if is_waiting else [])  # in order, and each once
        else:
            assert len(told) == len(set(told)), "a ticket is told once"
            assert set(told) == {t for t, is_settled in self._tickets if not is_settled}
        assert all(ticket.is_settled for ticket in tickets)
        found = [number for number, ticket in enumerate(tickets) if ticket.error is not None]
        assert found == list(failed)


async def check_log_port(stage: LogStage) -> None:
    """Hold one implementation to what ``gateway.log.log_port`` says."""
    listener = _Listener(stage.log)
    async with trio.open_nursery() as nursery:
        await nursery.start(stage.log.run)
        await _check_topics_and_handles(stage, listener)
        await _check_order_and_growth(stage, listener)
        await _check_failure_of_one_batch(stage, listener)
        await _check_appends_apart(stage)
        await _check_reads(stage)
        await _check_tails(stage)
        await _check_closed_queues(stage, listener)
        await _check_created_while_messages_wait(stage, listener)
        await _check_not_at_hand(stage)
        await _check_retention(stage)
        await _check_end(stage, listener, nursery.cancel_scope)
    await stage.settle()
    assert listener.settled == []


def message(queue: QueueHandle, body: bytes) -> tuple[Any, ...]:
    return (queue, body, b"", 0, 1_000, HOST, 0, 0, 0, 0)


def _only(log: LogPort, topic: str) -> QueueHandle:
    """Return for reading the queue of a topic that has one."""
    [queue] = log.queues(topic)
    return queue


async def _found(
    stage: LogStage,
    queue: QueueHandle,
    queue_offset: int = 0,
    *,
    count_max: int = 1_000,
    bytes_max: int = BYTES_MAX,
) -> LogRead:
    """Read, as often as it takes until the records are at hand."""
    log = stage.log
    read = log.read(queue, queue_offset, count_max=count_max, bytes_max=bytes_max)
    attempts = 0
    while not isinstance(read, LogRead):
        attempts += 1
        assert attempts < ATTEMPTS_MAX
        assert log.when_at_hand(read, lambda: None)
        await stage.bring()
        read = log.read(queue, queue_offset, count_max=count_max, bytes_max=bytes_max, waited=read)
    return read


def _bodies(read: LogRead) -> list[bytes]:
    return [found.body for found in decode_messages(read.records)]


async def _all_bodies(stage: LogStage, queue: QueueHandle) -> list[bytes]:
    """Read a queue to its end, however much there is at hand at a time."""
    await stage.grown()
    read = await _found(stage, queue)
    bodies = _bodies(read)
    while read.is_more:
        read = await _found(stage, queue, read.next_offset)
        bodies += _bodies(read)
    return bodies


async def _tail(stage: LogStage, queue: QueueHandle) -> int:
    told: list[int] = []
    tail = stage.log.tail(queue, told.append)
    if tail is None:
        assert told == []
        await stage.tell_tails()
        [tail] = told
    return tail


async def _newest_tail(stage: LogStage, queue: QueueHandle) -> int:
    told: list[int] = []
    stage.log.newest_tail(queue, told.append)
    with trio.fail_after(WITHIN_S):
        while not told:
            await stage.tell_tails()
            await trio.sleep(0.01)
    [tail] = told
    return tail


async def _offset_at(stage: LogStage, queue: QueueHandle, time_ms: int) -> int:
    """Search by time, as long as it takes until the log has told."""
    told: list[int] = []
    found = stage.log.offset_at(queue, time_ms, told.append)
    if found is not None:
        assert told == []
        return found
    with trio.fail_after(WITHIN_S):
        while not told:
            await stage.bring()
            await stage.tell_tails()
            await trio.sleep(0.01)
    [found] = told
    return found


async def _check_topics_and_handles(stage: LogStage, listener: _Listener) -> None:
    log = stage.log
    assert not log.has_topic("many")
    assert log.queues("many") == []
    assert list(log.append_queues("many")) == []
    log.create_topic("many", QUEUE_COUNT)
    log.create_topic("many", QUEUE_COUNT + 1)  # it exists
    log.create_topic("one", 1)
    assert log.has_topic("many")
    await stage.created()
    assert {"many", "one"} <= set(log.topics())
    assert sorted(listener.created) == ["many", "one"]
    queues = log.queues("many")
    assert len(set(queues)) == QUEUE_COUNT
    assert log.queues("many") == queues
    assert len({log.describe(queue) for queue in queues}) == QUEUE_COUNT
    selectors = [f"device{number}" for number in range(40)]
    chosen = [log.queue_of("many", selector) for selector in selectors]
    assert chosen == [log.queue_of("many", selector) for selector in selectors]
    assert len(set(chosen)) == QUEUE_COUNT
    handles = log.append_queues("many")
    assert len(handles) == QUEUE_COUNT
    assert chosen == [handles[choose_queue(selector, QUEUE_COUNT)] for selector in selectors]


async def _check_order_and_growth(stage: LogStage, listener: _Listener) -> None:
    log = stage.log
    queue, other = log.queue_of("one", "x"), log.queue_of("many", "x")
    for followed in (*log.queues("one"), *log.queues("many")):
        assert await _tail(stage, followed) == 0
    appends = _Appends(stage, listener)
    appends.append((queue, b"0"), (other, b"a"), (queue, b"1"))
    for number in range(2, 6):
        appends.append((queue, b"%d" % number))
    await appends.check()
    await stage.grown()
    assert await _all_bodies(stage, _only(log, "one")) == [b"%d" % n for n in range(6)]
    assert _only(log, "one") in listener.grown
    grown = [queue for queue in log.queues("many") if queue in listener.grown]
    assert [await _all_bodies(stage, queue) for queue in grown] == [[b"a"]]
    assert set(listener.grown) == {_only(log, "one"), *grown}


async def _check_failure_of_one_batch(stage: LogStage, listener: _Listener) -> None:
    log = stage.log
    queue = log.queue_of("one", "x")
    # Nobody waits: a refusal is known at once, and told by the ticket alone.
    refused = _Appends(stage, listener)
    stage.refuse_appends(refused=True)
    refused.append((queue, b"never"))
    await stage.taken()
    stage.refuse_appends(refused=False)
    await refused.check(failed=[0], waits=stage.refuses_late)
    # Somebody waits: it has its turn.
    appends = _Appends(stage, listener)
    appends.append((queue, b"6"))
    await stage.taken()
    stage.refuse_appends(refused=True)
    appends.append((queue, b"never"))
    await stage.taken()
    stage.refuse_appends(refused=False)
    appends.append((queue, b"7"))
    await appends.check(failed=[1])
    assert await _all_bodies(stage, _only(log, "one")) == [b"%d" % n for n in range(8)]


async def _check_appends_apart(stage: LogStage) -> None:
    """Several brokers: each message has a ticket of its own, and may wait for others."""
    log = stage.log
    if log.append_apart is None:
        return
    other, queue = log.append_queues("many")[:2]
    held = log.find_queue(log.describe(other))
    assert held is not None
    before = await _all_bodies(stage, held)
    first = log.append([message(other, b"first")])
    batch = [message(other, b"after"), message(queue, b"beside"), message(other, b"behind")]
    tickets = log.append_apart(batch, {0: (first,)})
    assert len(tickets) == 3
    assert tickets[1] not in (tickets[0], tickets[2])
    await stage.settle()
    assert all(ticket.is_settled and ticket.error is None for ticket in (first, *tickets))
    assert await _all_bodies(stage, held) == [*before, b"first", b"after", b"behind"]
    stage.refuse_appends(refused=True)
    refused = log.append([message(queue, b"never")])
    tickets = log.append_apart(
        [message(other, b"never"), message(queue, b"never")], {0: (refused,)}
    )
    await stage.taken()
    stage.refuse_appends(refused=False)
    await stage.settle()
    assert all(ticket.error is not None for ticket in (refused, *tickets))


async def _check_reads(stage: LogStage) -> None:
    queue = _only(stage.log, "one")
    read = await _found(stage, queue, 3, count_max=2)
    assert (_bodies(read), read.begin_offset, read.next_offset) == ([b"3", b"4"], 3, 5)
    assert read.is_more
    rest = await _found(stage, queue, read.next_offset)
    assert (_bodies(rest), rest.next_offset, rest.is_more) == ([b"5", b"6", b"7"], 8, False)
    # The first record comes whatever its size.
    small = await _found(stage, queue, 0, bytes_max=1)
    assert (_bodies(small), small.next_offset, small.is_more) == ([b"0"], 1, True)
    nothing = await _found(stage, queue, 8)
    assert nothing == LogRead(b"", 8, 8, False)


async def _check_tails(stage: LogStage) -> None:
    assert await _tail(stage, _only(stage.log, "one")) == 8
    assert await _newest_tail(stage, _only(stage.log, "one")) == 8
    assert 0 < stage.log.least_tail(stage.log.queue_of("one", "d")) <= 8
    assert await _offset_at(stage, _only(stage.log, "one"), LATE_MS) == 8
    stage.hide_tails()
    assert await _newest_tail(stage, _only(stage.log, "one")) == 8
    assert await _tail(stage, _only(stage.log, "one")) == 8
    assert await _offset_at(stage, _only(stage.log, "one"), 0) == 0
    assert await _offset_at(stage, _only(stage.log, "one"), 1) == 0


async def _check_closed_queues(stage: LogStage, listener: _Listener) -> None:
    """A topic shrinks: first nothing more is written to some queues, then they are not read."""
    log = stage.log
    queues, names = log.queues("many"), [log.describe(queue) for queue in log.queues("many")]
    appends = _Appends(stage, listener)
    for number, handle in enumerate(log.append_queues("many")):
        appends.append((handle, b"waits %d" % number))
    await appends.check()
    await stage.grown()
    waiting = [(await _all_bodies(stage, queue))[-1] for queue in queues]
    for read, write in ((4, 2), (4, 0), (2, 2), (4, 4)):
        listener.created.clear()
        await stage.change_queues("many", read=read, write=write)
        assert "many" in listener.created
        assert log.queues("many") == queues[:read]
        assert len(log.append_queues("many")) == write
        assert log.has_topic("many") is (write > 0)
        assert len({log.queue_of("many", f"d{n}") for n in range(40 * (write > 0))}) == write
        # A queue that is closed to readers is there, and so is what waits in it.
        assert [log.find_queue(name) for name in names] == queues
        bodies = [(await _all_bodies(stage, queue))[-1] for queue in log.queues("many")]
        assert bodies == waiting[:read]
    # In queues that are open again, a session finds by time where it begins.
    for queue in queues:
        count = len(await _all_bodies(stage, queue))
        assert await _offset_at(stage, queue, 1) == 0
        assert await _offset_at(stage, queue, LATE_MS) == count
    assert log.find_queue("none/0") is None
    assert log.find_queue("many") is None


async def _check_created_while_messages_wait(stage: LogStage, listener: _Listener) -> None:
    log = stage.log
    listener.created.clear()
    listener.grown.clear()
    followed: list[int | None] = []
    log.on_topic_created(
        lambda topic: followed.extend(
            log.tail(queue, followed.append) for queue in log.queues(topic)
        )
    )
    stage.hold_topics()
    log.create_topic("slow", 1)
    assert log.has_topic("slow")
    queue = log.queue_of("slow", "x")
    assert queue == log.queue_of("slow", "x")
    appends = _Appends(stage, listener)
    appends.append((queue, b"waits"))
    appends.append((queue, b"too"), (log.queue_of("one", "x"), b"8"))
    is_slow = await stage.finish_topic("slow", None)
    assert listener.created == ["slow"]
    await appends.check(waits=is_slow or stage.settles_late)
    await stage.grown()
    assert followed in ([0], [None, 0])  # nothing is read yet, or the tail is not known
    assert _only(log, "slow") in listener.grown
    # The handle from before stays good.
    appends = _Appends(stage, listener)
    appends.append((log.queue_of("slow", "x"), b"known"))
    appends.append((queue, b"old handle"))
    await appends.check()
    assert log.append_queues("slow") == [log.queue_of("slow", "x")]
    bodies = [b"waits", b"too", b"known", b"old handle"]
    assert await _all_bodies(stage, _only(log, "slow")) == bodies
    if is_slow:
        await _check_refused_after_a_while(stage, listener)


async def _check_refused_after_a_while(stage: LogStage, listener: _Listener) -> None:
    log = stage.log
    log.create_topic("refused", 1)
    appends = _Appends(stage, listener)
    appends.append((log.queue_of("refused", "x"), b"never"))
    appends.append((log.queue_of("one", "x"), b"9"))
    await stage.finish_topic("refused", BrokerError(1, "no more topics"))
    await appends.check(failed=[0], waits=True)
    assert listener.refused == ["refused"]
    assert not log.has_topic("refused")
    with pytest.raises(BrokerError):  # it is remembered
        log.create_topic("refused", 1)


async def _check_not_at_hand(stage: LogStage) -> None:
    log = stage.log
    queue = _only(log, "one")
    expected = await _all_bodies(stage, queue)
    told: list[str] = []

    def tell(name: str) -> Callable[[], None]:
        return lambda: told.append(name)

    stage.put_away()
    waiting = log.read(queue, 0, count_max=1_000, bytes_max=BYTES_MAX)
    assert not isinstance(waiting, LogRead)
    assert log.when_at_hand(waiting, tell("first"))
    assert told == []
    await stage.bring()
    assert told == ["first"]
    read = log.read(queue, 0, count_max=1_000, bytes_max=BYTES_MAX, waited=waiting)
    assert isinstance(read, LogRead)
    assert _bodies(read) == expected
    # What cannot be kept at hand is read all the same, after some attempts.
    stage.put_away()
    attempts = 0
    again = log.read(queue, 0, count_max=1_000, bytes_max=BYTES_MAX)
    while not isinstance(again, LogRead):
        attempts += 1
        assert attempts < ATTEMPTS_MAX
        assert log.when_at_hand(again, tell("again"))
        await stage.bring(keeps=False)
        again = log.read(queue, 0, count_max=1_000, bytes_max=BYTES_MAX, waited=again)
    assert attempts > 1 if stage.can_lose else attempts == 1
    assert told == ["first", *["again"] * attempts]
    assert _bodies(again) == expected
    stage.put_away()
    assert await _offset_at(stage, queue, LATE_MS) == len(expected)


async def _check_retention(stage: LogStage) -> None:
    log = stage.log
    queue = _only(log, "one")
    await stage.bring()
    await stage.expire(queue)
    end = await _tail(stage, queue)
    read = await _found(stage, queue, 0, count_max=10)
    begin = read.begin_offset
    assert 0 < begin < end
    if not read.records:  # where to go on is said first
        assert read.next_offset == begin
        assert read.is_more
        read = await _found(stage, queue, begin, count_max=10)
    assert read.begin_offset == begin
    assert await _offset_at(stage, queue, 0) == await _offset_at(stage, queue, 1) == begin
    assert decode_messages(read.records)[0].queue_offset == begin


async def _check_end(stage: LogStage, listener: _Listener, scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    listener.settled.clear()
    stage.log.append([message(stage.log.queue_of("one", "x"), b"last")])
    stage.log.close()
    scope.cancel()
