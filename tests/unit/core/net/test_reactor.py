"""What each call of the reactor does; every test runs on the kernel and on the reference."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import time
from array import array
from collections.abc import Iterator

import pytest

from motelog.core.net import _reactor, reactor
from motelog.core.net.reactor import CloseReason, Fault, Framing, Reactor
from tests.support.reactor_loop import (
    FRAME_BYTES_MAX,
    ReactorLoop,
    listening,
    listening_unix,
    mqtt_frame,
    reactor_loop,
    receive_exactly,
)
from tests.support.reactor_streams import run_streams

PING = b"\xc0\x00"
LENGTH_MAX = 0x7FFF_FFFF


@pytest.fixture
def loop() -> Iterator[ReactorLoop]:
    with reactor_loop(Reactor()) as made:
        yield made


def test_the_kernel_is_used_and_a_session_is_small() -> None:
    assert reactor.Reactor is _reactor.Reactor
    assert _reactor.CONNECTION_BYTES <= 96


@pytest.mark.parametrize(
    ("framing", "data", "size"),
    [
        (Framing.MQTT, b"", 0),
        (Framing.MQTT, b"\x30", 0),
        (Framing.MQTT, b"\x30\x00", 2),
        (Framing.MQTT, b"\x30\x7f", 129),
        (Framing.MQTT, b"\x30\x80", 0),
        (Framing.MQTT, b"\x30\x80\x01", 131),
        (Framing.MQTT, b"\x30\xff\xff\xff\x7f", 268_435_460),
        (Framing.MQTT, b"\x30\xff\xff\xff", 0),
        (Framing.MQTT, b"\x30\xff\xff\xff\xff", -1),
        (Framing.REMOTING, b"\x00\x00\x00", 0),
        (Framing.REMOTING, b"\x00\x00\x00\x03", -1),
        (Framing.REMOTING, b"\x00\x00\x00\x04", 8),
        (Framing.REMOTING, b"\xff\xff\xff\xff", 2**32 + 3),
    ],
)
def test_frame_size(framing: Framing, data: bytes, size: int) -> None:
    """A size of 0 is not known yet, and of -1 is malformed."""

    def fault(frame_bytes_max: int) -> Fault | None:
        [outcome] = run_streams(framing, [[data]], frame_bytes_max=frame_bytes_max)
        return outcome.fault

    if size > 0:
        assert fault(min(size, LENGTH_MAX) - 1) is Fault.FRAME_TOO_LARGE
    if size <= LENGTH_MAX:
        assert fault(max(size, 2)) is (Fault.MALFORMED_LENGTH if size < 0 else None)


def test_accepting_reports_listener_and_peer(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    assert loop.opened == [(connection, loop.listener, peer.getsockname())]
    assert loop.reactor.peer(connection) == peer.getsockname()
    assert loop.reactor.connections_count == 1
    with pytest.raises(ValueError, match="no connection 7"):
        loop.reactor.peer(7)


def test_frames_come_whole_with_the_variant_of_their_connection(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    peer.sendall(mqtt_frame(b"a" * 200) + PING)
    loop.until(lambda: len(loop.frames[connection]) == 2)
    loop.reactor.set_variant(connection, 0xFFFFFFFF)
    peer.sendall(PING)
    loop.until(lambda: len(loop.frames[connection]) == 3)
    assert loop.frames[connection] == [mqtt_frame(b"a" * 200), PING, PING]
    assert loop.variants[connection] == [0, 0, 0xFFFFFFFF]


def test_a_frame_that_arrives_byte_by_byte_is_reported_once(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    frame = mqtt_frame(b"hello" * 40)
    for byte in frame:
        assert not loop.frames[connection]
        peer.sendall(bytes([byte]))
        loop.turn()
    loop.until(lambda: loop.frames[connection])
    assert loop.frames[connection] == [frame]


def test_a_frame_larger_than_a_turn_arrives_whole() -> None:
    with reactor_loop(Reactor()) as loop:
        connection, peer = loop.open()
        loop.reactor.set_limits(connection, frame_bytes_max=4 << 20, idle_s_max=0)
        frame = mqtt_frame(bytes(range(256)) * 12_000)
        peer.setblocking(False)
        sent = 0
        while sent < len(frame):
            try:
                sent += peer.send(frame[sent : sent + 300_000])
            except BlockingIOError:
                loop.turn()
        peer.setblocking(True)
        peer.sendall(PING)
        loop.until(lambda: len(loop.frames[connection]) == 2)
        assert loop.frames[connection] == [frame, PING]


@pytest.mark.parametrize(
    ("framing", "hostile", "fault"),
    [
        (Framing.MQTT, b"\x30\xff\xff\xff\x7f", Fault.FRAME_TOO_LARGE),
        (Framing.MQTT, b"\x30\xff\xff\xff\xff", Fault.MALFORMED_LENGTH),
        (Framing.MQTT, b"\x30\x80\x80\x80\x80", Fault.MALFORMED_LENGTH),
        (Framing.REMOTING, b"\x00\x00\x00\x03", Fault.MALFORMED_LENGTH),
        (Framing.REMOTING, b"\x00\x00\x00\x00", Fault.MALFORMED_LENGTH),
        (Framing.REMOTING, b"\x80\x00\x00\x00", Fault.FRAME_TOO_LARGE),
        (Framing.REMOTING, b"\xff\xff\xff\xff", Fault.FRAME_TOO_LARGE),
    ],
)
def test_a_hostile_length_ends_reading_after_the_frames_before_it(
    framing: Framing, hostile: bytes, fault: Fault
) -> None:
    good = mqtt_frame(b"good") if framing is Framing.MQTT else b"\x00\x00\x00\x04good"
    reactor = Reactor()
    with reactor_loop(reactor, framing=framing) as loop:
        connection, peer = loop.open()
        peer.sendall(good + hostile + good)
        loop.until(lambda: loop.faults)
        assert loop.faults == [(connection, fault)]
        peer.sendall(good * 3)
        loop.settle()
        assert loop.frames[connection] == [good]
        assert not loop.closed
        reactor.send(connection, b"why")
        reactor.close(connection)
        loop.turn()
        assert receive_exactly(peer, 3) == b"why"
        assert peer.recv(1) == b""
        assert not loop.closed


def test_the_frame_limit_counts_the_header(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    loop.reactor.set_limits(connection, frame_bytes_max=100, idle_s_max=0)
    peer.sendall(mqtt_frame(b"x" * 98) + mqtt_frame(b"x" * 99))
    loop.until(lambda: loop.faults)
    assert loop.frames[connection] == [mqtt_frame(b"x" * 98)]
    assert loop.faults == [(connection, Fault.FRAME_TOO_LARGE)]


@pytest.mark.parametrize("more", [b"", PING + mqtt_frame(b"y" * 30_000)])
def test_what_follows_the_first_frame_is_judged_by_the_limits_set_for_it(
    loop: ReactorLoop, more: bytes
) -> None:
    sock = loop.own(listening())
    loop.reactor.listen(sock, Framing.MQTT, frame_bytes_max=100, first_frame_s=10)
    peer = loop.own(socket.create_connection(sock.getsockname()))
    large = mqtt_frame(b"x" * 20_000)
    peer.sendall(PING + large + more)
    loop.until(lambda: loop.opened and loop.frames[loop.opened[-1][0]])
    connection = loop.opened[-1][0]
    assert loop.frames[connection] == [PING]
    loop.reactor.set_limits(connection, frame_bytes_max=FRAME_BYTES_MAX, idle_s_max=0)
    loop.reactor.set_variant(connection, 5)
    loop.until(lambda: len(loop.frames[connection]) == 2 + 2 * bool(more))
    assert b"".join(loop.frames[connection]) == PING + large + more
    assert set(loop.variants[connection][1:]) == {5}
    assert not loop.faults


def test_what_follows_the_first_frame_is_refused_without_new_limits(loop: ReactorLoop) -> None:
    sock = loop.own(listening())
    loop.reactor.listen(sock, Framing.MQTT, frame_bytes_max=100, first_frame_s=10)
    peer = loop.own(socket.create_connection(sock.getsockname()))
    peer.sendall(PING + mqtt_frame(b"x" * 200) + PING)
    loop.until(lambda: loop.faults)
    connection = loop.opened[-1][0]
    assert loop.frames[connection] == [PING]
    assert loop.faults == [(connection, Fault.FRAME_TOO_LARGE)]


def test_a_connection_closed_at_its_first_frame_gets_nothing_more(loop: ReactorLoop) -> None:
    sock = loop.own(listening())
    loop.reactor.listen(sock, Framing.MQTT, frame_bytes_max=100, first_frame_s=10)
    peer = loop.own(socket.create_connection(sock.getsockname()))
    peer.sendall(PING + mqtt_frame(b"x" * 200))
    loop.until(lambda: loop.opened and loop.frames[loop.opened[-1][0]])
    connection = loop.opened[-1][0]
    loop.reactor.close(connection)
    loop.settle()
    assert loop.frames[connection] == [PING]
    assert not loop.faults
    assert peer.recv(1) == b""


def test_a_lowered_limit_applies_to_the_frame_in_progress(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    peer.sendall(mqtt_frame(b"x" * 20_000)[:10_000])
    loop.settle()
    loop.reactor.set_limits(connection, frame_bytes_max=5_000, idle_s_max=0)
    peer.sendall(b"x" * 100)
    loop.until(lambda: loop.faults)
    assert loop.faults == [(connection, Fault.FRAME_TOO_LARGE)]


# ---------------------------------------------------------------------- idle


def test_a_first_frame_is_waited_for_only_so_long() -> None:
    reactor = Reactor()
    with reactor_loop(reactor, first_frame_s=10) as loop:
        silent, _silent_peer = loop.open()
        slow, slow_peer = loop.open()
        quick, quick_peer = loop.open()
        loop.now_s += 5
        slow_peer.sendall(b"\x10\x50partly")
        quick_peer.sendall(PING)
        loop.until(lambda: loop.frames[quick])
        loop.now_s += 5
        reactor.sweep(loop.now_s)
        loop.settle()
        assert not loop.faults
        loop.now_s += 1
        reactor.sweep(loop.now_s)
        loop.until(lambda: loop.faults)
        assert loop.faults == [(silent, Fault.IDLE), (slow, Fault.IDLE)]
        loop.now_s += 10_000
        reactor.sweep(loop.now_s)
        loop.settle()
        assert len(loop.faults) == 2


def test_idle_time_counts_complete_frames_and_not_bytes(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    loop.reactor.set_limits(connection, frame_bytes_max=FRAME_BYTES_MAX, idle_s_max=3)
    for _ in range(3):
        peer.sendall(PING)
        loop.settle()
        loop.now_s += 3
        loop.reactor.sweep(loop.now_s)
    assert len(loop.frames[connection]) == 3
    assert not loop.faults
    peer.sendall(b"\x30\x7f")
    for _ in range(4):
        peer.sendall(b"x")
        loop.now_s += 1
        loop.reactor.sweep(loop.now_s)
        loop.settle()
    assert loop.faults == [(connection, Fault.IDLE)]


def test_a_peer_that_may_always_be_silent_is_looked_after_by_the_system(
    loop: ReactorLoop,
) -> None:
    connection, _peer = loop.open()
    accepted = socket.socket(fileno=_descriptor_of_peer(loop.reactor.peer(connection)))
    try:
        assert not accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        loop.reactor.set_limits(connection, frame_bytes_max=FRAME_BYTES_MAX, idle_s_max=3)
        assert not accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        loop.reactor.set_limits(connection, frame_bytes_max=FRAME_BYTES_MAX, idle_s_max=0)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    finally:
        accepted.detach()
    loop.now_s += 1_000_000
    loop.reactor.sweep(loop.now_s)
    loop.settle()
    assert not loop.faults


def _descriptor_of_peer(address: tuple[str, int]) -> int:
    """Return this process's descriptor of the connection to ``address``."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            sock = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
        with sock, contextlib.suppress(OSError):
            if sock.getpeername() == address:
                return descriptor
    raise AssertionError(f"no connection to {address}")


def test_paused_time_is_not_idle_time(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    loop.reactor.set_limits(connection, frame_bytes_max=FRAME_BYTES_MAX, idle_s_max=3)
    loop.reactor.pause(connection)
    peer.sendall(PING)
    loop.now_s += 100
    loop.reactor.sweep(loop.now_s)
    loop.settle()
    assert not loop.faults
    assert not loop.frames[connection]
    loop.reactor.resume(connection)
    loop.reactor.sweep(loop.now_s + 3)
    loop.until(lambda: loop.frames[connection])
    assert not loop.faults


# ---------------------------------------------------------------------- output


def test_output_of_all_kinds_keeps_its_order(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    large = bytes(range(256)) * 4
    expected = b""
    for i in range(40):
        loop.reactor.send(connection, b"s%d" % i)
        loop.reactor.send_many([(connection, large), (connection, b"m")])
        assert loop.reactor.fan_out(b"f" * (i * 20), [connection]) == []
        assert loop.reactor.send_numbered(b"@@@@", 2, [(connection, i)]) == []
        assert loop.reactor.send_numbered(large, 300, [(connection, 0x0102 + i)]) == []
        expected += b"s%d" % i + large + b"m" + b"f" * (i * 20)
        expected += b"@@" + i.to_bytes(2, "big")
        expected += large[:300] + (0x0102 + i).to_bytes(2, "big") + large[302:]
    assert loop.reactor.output_bytes(connection) == len(expected)
    loop.reactor.flush()
    assert loop.reactor.output_bytes(connection) == 0
    assert receive_exactly(peer, len(expected)) == expected


@pytest.mark.parametrize("size", [2, 4, 256, 257, 1000])
def test_each_receiver_gets_its_own_number(loop: ReactorLoop, size: int) -> None:
    peers = [loop.open() for _ in range(3)]
    data = b"." * size
    numbers = [1, 0x1234, 0xFFFF]
    for number_at in {0, size // 2 - 1, size - 2}:
        assert not loop.reactor.send_numbered(
            data, number_at, [(c, n) for (c, _), n in zip(peers, numbers, strict=True)]
        )
        loop.reactor.flush()
        for (_, peer), number in zip(peers, numbers, strict=True):
            wanted = data[:number_at] + number.to_bytes(2, "big") + data[number_at + 2 :]
            assert receive_exactly(peer, size) == wanted


def test_a_number_needs_room(loop: ReactorLoop) -> None:
    connection, _peer = loop.open()
    for number_at in (-1, 3, 4):
        with pytest.raises(ValueError, match="no room"):
            loop.reactor.send_numbered(b"1234", number_at, [(connection, 1)])
    with pytest.raises(OverflowError):
        loop.reactor.send_numbered(b"1234", 0, [(connection, 65_536)])
    assert loop.reactor.output_bytes(connection) == 0


def test_sending_to_what_is_not_open_is_skipped(loop: ReactorLoop) -> None:
    open_one, peer = loop.open()
    closed_one, _other = loop.open()
    loop.reactor.close(closed_one)
    ids = [closed_one, open_one, -1, 12_345]
    loop.reactor.send_many([(c, b"s") for c in ids])
    assert loop.reactor.fan_out(b"f", ids) == [closed_one, -1, 12_345]
    assert loop.reactor.fan_out(b"F" * 300, tuple(ids)) == [closed_one, -1, 12_345]
    assert loop.reactor.send_numbered(b"\0\0", 0, [(c, 7) for c in ids]) == [
        closed_one,
        -1,
        12_345,
    ]
    loop.turn()
    assert receive_exactly(peer, 304) == b"sf" + b"F" * 300 + b"\x00\x07"


def test_what_connections_take_is_counted_by_first_byte() -> None:
    counts = array("Q", bytes(8 * 257))
    with reactor_loop(Reactor(sent_counts=counts)) as loop:
        (one, _), (other, _) = loop.open(), loop.open()
        puback, publish = b"\x40\x02\x00\x01", mqtt_frame(b"x" * 300)
        loop.reactor.send(one, PING + publish + PING)
        loop.reactor.send(77, PING)
        loop.reactor.fan_out(publish, [one, other, 77])
        loop.reactor.send_numbered(puback, 2, [(one, 1), (one, 2), (other, 3), (77, 4)])
        loop.reactor.send(one, b"\xe0")  # cut off: no frame
    found = {first_byte: count for first_byte, count in enumerate(counts[:256]) if count}
    assert found == {PING[0]: 2, publish[0]: 3, puback[0]: 3}
    assert counts[256] == 2 * len(PING) + 3 * len(publish) + 3 * len(puback) + 1


def test_an_empty_message_sends_nothing(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    loop.reactor.send(connection, b"")
    loop.reactor.send(connection, b"x")
    loop.reactor.close(connection)
    loop.settle()
    assert peer.recv(10) == b"x"
    assert peer.recv(10) == b""


def test_a_slow_reader_is_not_read_until_it_has_drained() -> None:
    reactor = Reactor(output_bytes_high=10_000, output_bytes_max=100_000)
    with reactor_loop(reactor) as loop:
        connection, peer = loop.open()
        sent = 0
        while reactor.fan_out(b"x" * 5_000, [connection]) == []:
            sent += 5_000
            reactor.flush()
        assert 10_000 < reactor.output_bytes(connection) <= 20_000
        peer.sendall(PING)
        loop.settle()
        assert not loop.frames[connection]
        assert not loop.drained
        received = 0
        while received < sent:
            received += len(peer.recv(65_536))
            loop.turn()
        loop.until(lambda: loop.frames[connection])
        assert loop.drained == [connection]
        assert reactor.fan_out(b"x", [connection]) == []


def test_what_connections_hold_is_counted() -> None:
    reactor = Reactor(output_bytes_high=4_000_000, output_bytes_max=9_000_000)
    with reactor_loop(reactor, sock=listening_unix()) as loop:
        one, reader = loop.open()
        two, other = loop.open()
        assert reactor.held_bytes() == 0
        assert reactor.holding(1) == []
        # A message for both counts once for all, and for each of them.
        reactor.fan_out(bytes(3_000_000), [one, two])
        reactor.flush()
        assert 3_000_000 <= reactor.held_bytes() < 3_100_000
        for size, connection in reactor.holding(1_000_000):
            assert size == reactor.output_bytes(connection)
        assert sorted(connection for _, connection in reactor.holding(1_000_000)) == [one, two]
        # A copy is counted with the room that it takes; a frame that has not come whole too.
        reactor.send(one, b"x" * 100)
        assert reactor.held_bytes() >= 3_000_000 + 100
        reactor.abort(two)
        assert [connection for _, connection in reactor.holding(1)] == [one]
        receive_exactly_while(loop, reader, 3_000_100)
        assert reactor.held_bytes() == 0
        reader.sendall(b"\x30\xff\x7f" + bytes(10_000))
        loop.settle()
        [(size, connection)] = reactor.holding(1)
        assert (connection, size <= reactor.held_bytes()) == (one, True)
        assert size == 10_003
        other.close()


def test_output_that_grows_while_the_socket_is_full_holds_reading_back() -> None:
    reactor = Reactor(output_bytes_high=2_000_000, output_bytes_max=9_000_000)
    with reactor_loop(reactor, sock=listening_unix()) as loop:
        connection, peer = loop.open()
        reactor.send(connection, bytes(1_500_000))
        reactor.flush()
        assert 0 < reactor.output_bytes(connection) < 1_500_000  # the socket took what it could
        reactor.send(connection, bytes(1_500_000))
        loop.turn()
        peer.sendall(PING)
        loop.settle()
        assert not loop.frames[connection]
        receive_exactly_while(loop, peer, 3_000_000)
        loop.until(lambda: loop.frames[connection])
        assert loop.drained == [connection]


def test_output_above_its_mark_that_leaves_at_once_is_reported_as_drained() -> None:
    reactor = Reactor(output_bytes_high=1_000, output_bytes_max=9_000)
    with reactor_loop(reactor) as loop:
        connection, _ = loop.open()
        reactor.send(connection, bytes(1_000))
        loop.settle()
        assert not loop.drained
        reactor.send(connection, bytes(1_001))
        loop.settle()
        assert loop.drained == [connection]


def test_a_slow_reader_is_not_idle_while_it_takes_output() -> None:
    reactor = Reactor(output_bytes_high=10_000, output_bytes_max=10_000_000)
    with reactor_loop(reactor, sock=listening(buffer_bytes=65_536), buffer_bytes=4096) as loop:
        connection, peer = loop.open()
        reactor.set_limits(connection, frame_bytes_max=FRAME_BYTES_MAX, idle_s_max=3)
        reactor.send(connection, bytes(1_000_000))
        loop.settle()
        for _ in range(30):
            peer.sendall(PING)
            receive_exactly_while(loop, peer, 8_000)
            loop.now_s += 1
            reactor.sweep(loop.now_s)
            loop.settle()
        assert not loop.faults
        assert not loop.frames[connection]  # its pings wait: nothing is read from it
        for _ in range(6):  # it stops reading: pings alone do not keep it
            peer.sendall(PING)
            loop.now_s += 1
            reactor.sweep(loop.now_s)
            loop.settle()
        assert loop.faults == [(connection, Fault.IDLE)]


def test_a_closed_connection_that_still_takes_output_lingers_only_so_long() -> None:
    reactor = Reactor(output_bytes_high=10_000, output_bytes_max=10_000_000)
    with reactor_loop(reactor, sock=listening(buffer_bytes=65_536), buffer_bytes=4096) as loop:
        connection, peer = loop.open()
        reactor.send(connection, bytes(1_000_000))
        loop.settle()
        reactor.close(connection)
        for _ in range(2):
            receive_exactly_while(loop, peer, 8_000)
            loop.now_s += 1
            reactor.sweep(loop.now_s)
        with pytest.raises(ConnectionResetError):
            receive_exactly(peer, 1_000_000)


def receive_exactly_while(loop: ReactorLoop, peer: socket.socket, size: int) -> None:
    """Read ``size`` bytes while the reactor goes on sending them."""
    while size:
        received = len(peer.recv(min(size, 65_536)))
        assert received
        size -= received
        loop.turn()


def test_a_reader_that_stays_away_is_ended_when_its_output_is_full() -> None:
    reactor = Reactor(output_bytes_high=10_000, output_bytes_max=100_000)
    with reactor_loop(reactor) as loop:
        connection, peer = loop.open()
        for _ in range(10_000):
            reactor.send(connection, b"x" * 5_000)
            if not reactor.connections_count:
                break
        assert reactor.output_bytes(connection) == 0
        loop.until(lambda: loop.closed)
        assert loop.closed == [(connection, CloseReason.OUTPUT_FULL)]
        with pytest.raises(ConnectionResetError):
            receive_exactly(peer, 1 << 30)


def test_a_message_above_the_output_limit_goes_to_a_peer_that_reads() -> None:
    reactor = Reactor(output_bytes_high=1_000, output_bytes_max=2_000)
    with reactor_loop(reactor) as loop:
        connection, peer = loop.open()
        reactor.send(connection, b"a")
        reactor.send(connection, b"b" * 50_000)
        reactor.send(connection, b"c")
        reactor.send(connection, b"head", b"body" * 10_000)
        loop.turn()
        wanted = b"a" + b"b" * 50_000 + b"c" + b"head" + b"body" * 10_000
        assert receive_exactly(peer, len(wanted)) == wanted


# ---------------------------------------------------------------------- ends


def test_the_peer_closing_is_reported_after_its_frames(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    peer.sendall(PING + b"\x30\x05par")
    peer.close()
    loop.until(lambda: loop.closed)
    assert loop.frames[connection] == [PING]
    assert loop.closed == [(connection, CloseReason.PEER)]
    assert loop.reactor.connections_count == 0
    assert loop.reactor.peer(connection)[0] == "127.0.0.1"


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()


def test_a_reset_is_reported(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    reset(peer)
    loop.until(lambda: loop.closed)
    assert loop.closed == [(connection, CloseReason.RESET)]


def test_a_reset_is_noticed_while_paused(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    loop.reactor.pause(connection)
    reset(peer)
    loop.until(lambda: loop.closed)
    assert loop.closed == [(connection, CloseReason.RESET)]


def test_what_a_peer_sent_before_it_went_away_is_read_though_sending_fails(
    loop: ReactorLoop,
) -> None:
    connection, peer = loop.open()
    peer.sendall(PING * 3)
    reset(peer)
    loop.reactor.send(connection, b"x")
    loop.reactor.flush()
    assert loop.reactor.fan_out(b"x", [connection]) == [connection]
    loop.until(lambda: loop.closed)
    assert loop.frames[connection] == [PING] * 3
    assert loop.closed == [(connection, CloseReason.RESET)]


def test_close_sends_what_is_queued_and_is_not_reported(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    loop.reactor.send(connection, b"bye")
    loop.reactor.close(connection)
    loop.reactor.close(connection)
    assert loop.reactor.connections_count == 0
    loop.turn()
    assert receive_exactly(peer, 3) == b"bye"
    assert peer.recv(1) == b""
    peer.sendall(PING)
    loop.settle()
    peer.close()
    loop.settle()
    assert not loop.closed
    assert not loop.frames[connection]


def test_a_closed_connection_lingers_only_so_long(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    loop.reactor.close(connection)
    loop.settle()
    loop.now_s += 2
    loop.reactor.sweep(loop.now_s)
    loop.settle()
    assert peer.recv(1) == b""
    with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):
        peer.sendall(b"x" * (64 << 20))
    assert not loop.closed


def test_abort_resets_the_peer(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    loop.reactor.send(connection, b"never seen")
    loop.reactor.abort(connection)
    with pytest.raises(ConnectionResetError):
        peer.recv(1)
    loop.settle()
    assert not loop.closed
    assert loop.reactor.connections_count == 0


def test_an_id_rests_before_it_is_used_again() -> None:
    with reactor_loop(Reactor()) as loop:
        _connection, peer = loop.open()
        peer.close()
        loop.until(lambda: loop.closed)
        other, _other_peer = loop.open()  # the poll after the report may use it already
        aborted, _aborted_peer = loop.open()
        assert len({other, aborted}) == 2
        loop.begin()
        loop.reactor.abort(aborted)
        before = len(loop.opened)
        loop.turn()
        assert [item[0] for item in loop.opened[before:]] != [aborted]


def test_closing_what_was_noted_but_not_yet_reported_is_quiet() -> None:
    reactor = Reactor(output_bytes_high=1_000, output_bytes_max=2_000)
    with reactor_loop(reactor) as loop:
        first, _first_peer = loop.open()
        second, _second_peer = loop.open()
        for connection in (first, second):
            while reactor.connections_count == 2 - (connection == second):
                reactor.send(connection, b"x" * 100_000)
        reactor.close(first)
        reactor.abort(second)
        loop.settle()
        assert not loop.closed


# ---------------------------------------------------------------------- outgoing


def test_connecting_is_reported_and_sends_what_was_queued(loop: ReactorLoop) -> None:
    server = loop.own(listening())
    connection = loop.reactor.connect(
        server.getsockname(), Framing.REMOTING, frame_bytes_max=1000, source="127.0.0.9"
    )
    loop.reactor.send(connection, b"queued early")
    loop.until(lambda: loop.opened)
    assert loop.opened == [(connection, -1, server.getsockname())]
    accepted, address = server.accept()
    loop.own(accepted)
    assert address[0] == "127.0.0.9"
    assert receive_exactly(accepted, 12) == b"queued early"
    accepted.sendall(b"\x00\x00\x00\x05hello")
    loop.until(lambda: loop.frames[connection])
    assert loop.frames[connection] == [b"\x00\x00\x00\x05hello"]


def test_a_refused_connection_is_reported(loop: ReactorLoop) -> None:
    server = listening()
    address = server.getsockname()
    server.close()
    connection = loop.reactor.connect(address, Framing.MQTT, frame_bytes_max=1000)
    loop.until(lambda: loop.closed)
    assert loop.closed == [(connection, CloseReason.CONNECT_FAILED)]
    assert not loop.opened


def test_connecting_takes_numeric_addresses_only(loop: ReactorLoop) -> None:
    with pytest.raises(ValueError, match="'localhost' is not a numeric"):
        loop.reactor.connect(("localhost", 1883), Framing.MQTT, frame_bytes_max=1000)
    with pytest.raises(OSError, match="assign requested address"):
        loop.reactor.connect(
            ("127.0.0.1", 1883), Framing.MQTT, frame_bytes_max=1000, source="192.0.2.1"
        )
    assert loop.open()[0] == 0  # the refused calls kept no slot


def test_a_connection_closed_before_it_opened_is_not_reported(loop: ReactorLoop) -> None:
    server = loop.own(listening())
    for end in (loop.reactor.close, loop.reactor.abort):
        end(loop.reactor.connect(server.getsockname(), Framing.MQTT, frame_bytes_max=1000))
    loop.settle()
    assert not loop.opened
    assert not loop.closed


def test_a_connection_that_does_not_open_is_given_up() -> None:
    # A full backlog: Linux drops further SYNs, so that connect neither succeeds nor fails.
    with reactor_loop(Reactor()) as loop:
        server = loop.own(listening(backlog=0))
        for _ in range(4):
            filler = loop.own(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        connection = loop.reactor.connect(server.getsockname(), Framing.MQTT, frame_bytes_max=1000)
        loop.settle()
        loop.reactor.sweep(loop.now_s)
        loop.reactor.sweep(loop.now_s + 10)
        loop.settle()
        assert not loop.closed
        loop.reactor.sweep(loop.now_s + 11)
        loop.settle()
        assert loop.closed == [(connection, CloseReason.CONNECT_FAILED)]


# ---------------------------------------------------------------------- limits and life


def test_accepting_rests_while_all_slots_are_taken() -> None:
    with reactor_loop(Reactor(connections_max=2)) as loop:
        _first, first_peer = loop.open()
        loop.open()
        loop.begin()
        loop.settle()
        first_peer.close()
        loop.settle()
        assert len(loop.opened) == 2
        loop.reactor.abort(loop.reactor.connect(loop.address, Framing.MQTT, frame_bytes_max=1))
        with pytest.raises(OSError, match="slots"):
            loop.reactor.connect(loop.address, Framing.MQTT, frame_bytes_max=1)
        loop.settle()
        loop.now_s += 1
        loop.settle()
        assert len(loop.opened) == 3


def test_who_waits_for_a_slot_is_told_of() -> None:
    with reactor_loop(Reactor(connections_max=1)) as loop:
        _first, first_peer = loop.open()
        assert loop.reactor.accept_errno == 0  # all are taken, and nobody waits
        loop.begin()
        loop.settle()
        assert loop.reactor.accept_errno == errno.EUSERS
        first_peer.close()
        loop.settle()
        loop.now_s += 1
        loop.until(lambda: len(loop.opened) == 2)
        assert loop.reactor.accept_errno == 0


def test_the_buffers_of_a_turn_end_with_the_next_poll(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    peer.sendall(mqtt_frame(b"first"))
    loop.until(lambda: loop.frames[connection])
    peer.sendall(mqtt_frame(b"again"))
    turn = loop.turn()
    while not turn.frames:
        turn = loop.turn()
    held = turn.data[2:]
    peer.sendall(mqtt_frame(b"third"))
    loop.until(lambda: len(loop.frames[connection]) == 3)
    with pytest.raises(ValueError, match="released"):
        turn.data[0]
    assert bytes(held) == b"again"
    with pytest.raises(TypeError):
        held[0] = 1  # read-only


def test_a_full_turn_leaves_nobody_out() -> None:
    reactor = Reactor()
    with reactor_loop(reactor, sock=listening_unix()) as loop:
        peers = [loop.open() for _ in range(40)]
        frame = mqtt_frame(b"x" * 60_000)
        for _, peer in peers:
            peer.sendall(frame)
        turn = loop.turn()
        assert turn.more
        assert turn.frames < 40
        while turn.more:
            turn = loop.turn()
        assert all(len(loop.frames[c]) == 1 for c, _ in peers)


def test_a_flood_of_the_shortest_frames_is_cut_into_turns() -> None:
    reactor = Reactor()
    with reactor_loop(reactor, sock=listening_unix()) as loop:
        peers = [loop.open() for _ in range(4)]
        for _, peer in peers:
            peer.sendall(PING * 32_768)
        frames = [loop.turn().frames]
        while sum(frames) < 4 * 32_768:
            frames.append(loop.turn().frames)
        assert max(frames) < 16_384 + 34_816
        assert all(len(loop.frames[c]) == 32_768 for c, _ in peers)


def test_ipv6_and_unix_listeners_beside_ipv4(loop: ReactorLoop) -> None:
    six = listening("::1")
    unix = listening_unix()
    addresses = [six.getsockname()[:2], unix.getsockname()]
    for sock in (six, unix):
        loop.reactor.listen(sock, Framing.REMOTING, frame_bytes_max=100, first_frame_s=0)
    peer6 = loop.own(socket.create_connection(addresses[0]))
    loop.until(lambda: loop.opened)
    peer_unix = loop.own(socket.socket(socket.AF_UNIX))
    peer_unix.connect(addresses[1])
    loop.until(lambda: len(loop.opened) == 2)
    outgoing = loop.reactor.connect(addresses[0], Framing.MQTT, frame_bytes_max=100)
    loop.until(lambda: len(loop.opened) == 4)
    by_listener = {item[1]: item[2] for item in loop.opened if item[0] != outgoing}
    assert loop.opened[0][1:] == (1, peer6.getsockname()[:2])
    assert loop.opened[1][1:] == (2, ("", 0))
    assert by_listener[1][0] == "::1"
    assert loop.reactor.peer(outgoing) == addresses[0]
    peer_unix.sendall(b"\x00\x00\x00\x04unix")
    loop.until(lambda: loop.frames)
    assert next(iter(loop.frames.values())) == [b"\x00\x00\x00\x04unix"]


def test_several_reactors_share_a_process() -> None:
    with reactor_loop(Reactor()) as one, reactor_loop(Reactor()) as two:
        first, first_peer = one.open()
        second, second_peer = two.open()
        assert first == second == 0
        first_peer.sendall(mqtt_frame(b"one"))
        second_peer.sendall(mqtt_frame(b"two"))
        one.until(lambda: one.frames[first])
        two.until(lambda: two.frames[second])
        assert one.frames[first] == [mqtt_frame(b"one")]
        assert two.frames[second] == [mqtt_frame(b"two")]


def test_stop_listening_keeps_the_connections(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    loop.reactor.stop_listening(loop.listener)
    loop.reactor.stop_listening(loop.listener)
    loop.reactor.stop_listening(5)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(loop.address)
    peer.sendall(PING)
    loop.until(lambda: loop.frames[connection])


def test_shut_down_sends_and_closes_everything(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    loop.reactor.send(connection, b"last words")
    loop.reactor.shut_down()
    loop.reactor.shut_down()
    assert receive_exactly(peer, 10) == b"last words"
    assert peer.recv(1) == b""
    assert loop.reactor.fileno() == -1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(loop.address)
    loop.reactor.send(connection, b"ignored")
    for call in (loop.reactor.flush, lambda: loop.reactor.poll(1), lambda: loop.reactor.sweep(1)):
        with pytest.raises(ValueError, match="shut down"):
            call()


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="connections_max"):
        Reactor(connections_max=0)
    with pytest.raises(ValueError, match="output_bytes_high"):
        Reactor(output_bytes_high=2, output_bytes_max=1)
    with pytest.raises(ValueError, match="sent_counts"):
        Reactor(sent_counts=array("Q", [0] * 256))
    with reactor_loop(Reactor()) as loop, pytest.raises(ValueError, match="7"):
        loop.reactor.listen(loop.own(listening()), 7, frame_bytes_max=1, first_frame_s=1)  # type: ignore[arg-type]  # not a framing


def test_the_kernel_knows_for_how_long_a_peer_has_said_nothing(loop: ReactorLoop) -> None:
    connection, peer = loop.open()
    peer.sendall(PING)
    time.sleep(0.3)
    loop.turn()
    # What has just been read came 0.3 s ago; Linux counts in ticks of up to 10 ms.
    assert 280 <= loop.reactor.silent_ms(connection) < 5_000
    peer.sendall(PING)
    loop.turn()
    assert loop.reactor.silent_ms(connection) < 280
    assert loop.reactor.silent_ms(connection + 1) == 0
