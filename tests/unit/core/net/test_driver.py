"""The task that drives a reactor, under trio."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from functools import partial
from typing import cast

import pytest
import trio
import trio.testing

from motelog.core.net.driver import SWEEP_INTERVAL_S, TURNS_MAX, drive
from motelog.core.net.reactor import Fault, Framing, Reactor, Turn
from motelog.core.spare_memory import NO_MEMORY
from tests.support.reactor_loop import listening

PING = b"\xc0\x00"


class Echo:
    """Answers each frame with itself; keeps what the turns said."""

    def __init__(self, *, first_frame_s: int = 0) -> None:
        self.reactor = Reactor(output_bytes_high=10_000)
        sock = listening()
        self.address = sock.getsockname()
        self.reactor.listen(sock, Framing.MQTT, frame_bytes_max=1000, first_frame_s=first_frame_s)
        self.now_s = 1000
        self.connections: list[int] = []
        self.faults: list[tuple[int, Fault]] = []
        self.fault_seen = trio.Event()
        self.empty_turns = 0

    def clock_s(self) -> int:
        return self.now_s

    def handle_turn(self, turn: Turn) -> None:
        self.empty_turns += not turn
        self.connections += [connection for connection, _, _ in turn.opened]
        self.faults += turn.faults
        if turn.faults:
            self.fault_seen.set()
        for i in range(0, 4 * turn.frames, 4):
            connection, _, begin, end = turn.index[i : i + 4]
            self.reactor.send(connection, bytes(turn.data[begin:end]))

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(*self.address)


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo(first_frame_s=10)
    yield made
    made.reactor.shut_down()


async def receive(stream: trio.SocketStream, size: int) -> bytes:
    received = b""
    with trio.fail_after(20):
        while len(received) < size:
            received += await stream.receive_some(size - len(received))
    return received


async def test_answers_leave_without_another_event(echo: Echo) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: drive(echo.reactor, echo.handle_turn, clock_s=echo.clock_s))
        async with await echo.connect() as one, await echo.connect() as two:
            for stream in (one, two, one):
                await stream.send_all(PING)
                assert await receive(stream, 2) == PING
        nursery.cancel_scope.cancel()
    assert echo.empty_turns == 0


async def test_after_turns_comes_once_for_all_turns_at_hand(echo: Echo) -> None:
    seen: list[str] = []

    def handle_turn(turn: Turn) -> None:
        seen.append("turn")
        echo.handle_turn(turn)
        if seen == ["turn"]:
            peer.send(PING)  # at hand when the answer to the first has been sent

    with socket.create_connection(echo.address) as peer:
        peer.send(PING)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: drive(
                    echo.reactor,
                    handle_turn,
                    clock_s=echo.clock_s,
                    after_turns=lambda: seen.append("after"),
                )
            )
            with trio.fail_after(20):
                while "after" not in seen:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert seen == ["turn", "turn", "after"]


async def test_other_tasks_run_while_a_peer_never_stops_sending(echo: Echo) -> None:
    # A turn for each answer: without a bound on turns in a row the driver would not let go.
    progress = trio.Event()
    turns = 0

    def handle_turn(turn: Turn) -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            progress.set()
        echo.handle_turn(turn)
        if turns < 100 * TURNS_MAX:
            peer.send(PING)

    with socket.create_connection(echo.address) as peer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: drive(echo.reactor, handle_turn, clock_s=echo.clock_s))
            with trio.fail_after(20):
                await progress.wait()
            turns_when_run, turns = turns, 100 * TURNS_MAX
            nursery.cancel_scope.cancel()
    assert turns_when_run <= 2 * TURNS_MAX


async def test_overdue_connections_are_found_without_any_traffic(
    echo: Echo, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: drive(echo.reactor, echo.handle_turn, clock_s=echo.clock_s))
        async with await echo.connect() as stream:
            await stream.send_all(PING)
            await receive(stream, 2)
            echo.reactor.set_limits(echo.connections[0], frame_bytes_max=1000, idle_s_max=10)
            echo.now_s += 11
            await echo.fault_seen.wait()
        nursery.cancel_scope.cancel()
    assert echo.faults == [(echo.connections[0], Fault.IDLE)]


class Nothing:
    more = False

    def __bool__(self) -> bool:
        return False


class LateReactor:
    """As after a stall: ``turns`` turns are at hand; more come only when it has been swept."""

    accept_errno = 0

    def __init__(self, turns: int, descriptor: int) -> None:
        self.turns = turns
        self.descriptor = descriptor
        self.unread_at_sweep: list[int] = []
        self.swept = trio.Event()

    def take_codec_error(self) -> None:
        return None

    def fileno(self) -> int:
        return self.descriptor

    def poll(self, now_s: int) -> object:
        if not self.turns:
            return Nothing()
        self.turns -= 1
        return object()

    def flush(self) -> None:
        pass

    def sweep(self, now_s: int) -> None:
        self.unread_at_sweep.append(self.turns)
        self.swept.set()


@pytest.mark.parametrize(("turns", "unread"), [(10 * TURNS_MAX, 0), (10**6, 10**6)])
async def test_overdue_connections_are_looked_for_when_what_has_come_is_read(
    turns: int, unread: int, autojump_clock: trio.testing.MockClock
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reactor = LateReactor(turns, ours.fileno())
        theirs.send(b"x")

        def handle_turn(turn: Turn) -> None:
            autojump_clock.jump(SWEEP_INTERVAL_S)  # each takes that long

        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: drive(cast("Reactor", reactor), handle_turn, clock_s=lambda: 1)
            )
            with trio.fail_after(10**9):
                await reactor.swept.wait()
            nursery.cancel_scope.cancel()
    # However much comes, it is looked at some time.
    assert (reactor.unread_at_sweep[0] > 0) is (unread > 0)


async def test_nothing_is_polled_while_turns_are_held(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reactor = LateReactor(1, ours.fileno())
        is_held = True
        turns: list[Turn] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: drive(
                    cast("Reactor", reactor),
                    turns.append,
                    clock_s=lambda: 1,
                    is_held=lambda: is_held,
                )
            )
            await trio.sleep(10 * SWEEP_INTERVAL_S)
            assert not turns
            assert not reactor.unread_at_sweep  # nor is anybody overdue
            is_held = False
            with trio.fail_after(10**9):
                await reactor.swept.wait()
            nursery.cancel_scope.cancel()
    assert len(turns) == 1


async def test_output_queued_by_another_task_leaves_with_flush(echo: Echo) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: drive(echo.reactor, echo.handle_turn, clock_s=echo.clock_s))
        async with await echo.connect() as stream:
            await stream.send_all(PING)
            await receive(stream, 2)
            echo.reactor.send(echo.connections[0], b"from elsewhere")
            echo.reactor.flush()
            assert await receive(stream, 14) == b"from elsewhere"
        nursery.cancel_scope.cancel()


async def test_what_no_event_announces_is_not_waited_for(
    echo: Echo, autojump_clock: trio.testing.MockClock
) -> None:
    # The last turn in a row fills a connection's output, which leaves at once when it is flushed:
    # that the connection has drained is known then, without an event that would wake the driver.
    drained = trio.Event()
    turns = 0

    def handle_turn(turn: Turn) -> None:
        nonlocal turns
        turns += 1
        if turn.drained:
            drained.set()
        elif turns < TURNS_MAX:
            peer.send(PING)
        elif turns == TURNS_MAX:
            echo.reactor.send(turn.index[0], bytes(10_001))

    with socket.create_connection(echo.address) as peer:
        async with trio.open_nursery() as nursery:
            peer.send(PING)
            while not select.select([echo.reactor], [], [], 0)[0]:
                await trio.lowlevel.checkpoint()
            started_at = trio.current_time()
            nursery.start_soon(lambda: drive(echo.reactor, handle_turn, clock_s=echo.clock_s))
            await drained.wait()
            nursery.cancel_scope.cancel()
    assert trio.current_time() == started_at


@pytest.mark.parametrize("error", NO_MEMORY)
async def test_a_turn_without_memory_is_no_end(
    caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    echo = Echo()
    has_failed = trio.Event()

    def fail_at_first(turn: Turn) -> None:
        if turn.frames and not has_failed.is_set():
            has_failed.set()
            raise error
        echo.handle_turn(turn)

    run = partial(drive, echo.reactor, fail_at_first, clock_s=echo.clock_s)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            stream = await trio.open_tcp_stream(*echo.address)
            await stream.send_all(PING)
            await has_failed.wait()
            await stream.send_all(PING)
            assert await stream.receive_some() == PING
            await stream.aclose()
            nursery.cancel_scope.cancel()
    echo.reactor.shut_down()
    assert "a turn of a reactor lacks memory" in caplog.text
