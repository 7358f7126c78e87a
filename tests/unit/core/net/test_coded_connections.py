"""Connections with a codec: one that is over, and one that fails. On the kernel and the reference.

What codecs do while all is well is in the reactor's check as an output, and in test_codecs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from motelog.core.net.codec import Codec, Decoded, Stream
from motelog.core.net.reactor import CloseReason, Fault, Reactor
from tests.support.reactor_loop import mqtt_frame, reactor_loop, receive_exactly

PING = b"\xc0\x00"


class Xor:
    """Turns every bit round, until it reads a byte of ``over_at`` or of ``raise_at``."""

    peer = None
    identity = None
    fault = ""

    def __init__(self, *, over_at: bytes = b"", raise_at: bytes = b"", sends: bool = True) -> None:
        self._over_at = over_at
        self._raise_at = raise_at
        self._sends = sends
        self.calls = 0

    def receive(self, data: bytes) -> Decoded:
        self.calls += 1
        if data[:1] == self._raise_at:
            raise LookupError("a fault of this codec")
        if data[:1] == self._over_at:
            return Decoded(data[1:], b"", Stream.PLAIN)
        return Decoded(turned(data))

    def send(self, data: bytes) -> bytes:
        self.calls += 1
        if not self._sends:
            raise LookupError("a fault of this codec")
        return turned(data)

    def close(self) -> bytes:
        return b""


def turned(data: bytes) -> bytes:
    return bytes(byte ^ 255 for byte in data)


def test_what_follows_a_codec_that_is_over_goes_past_it() -> None:
    made: list[Xor] = []

    def make() -> Codec:
        made.append(Xor(over_at=b"!"))
        return made[-1]

    with reactor_loop(Reactor(), codec=make) as loop:
        coded, coded_peer = loop.open()
        plain, plain_peer = loop.open()
        large = mqtt_frame(bytes(9000))
        coded_peer.sendall(turned(PING))
        plain_peer.sendall(b"!" + PING + large[:10])
        loop.until(lambda: loop.frames[coded] and loop.frames[plain])
        calls = made[1].calls
        plain_peer.sendall(large[10:] + PING)
        loop.until(lambda: len(loop.frames[plain]) == 3)
        assert loop.frames[plain] == [PING, large, PING]
        for connection in (coded, plain):
            loop.reactor.send(connection, large)
        loop.turn()
        assert receive_exactly(plain_peer, len(large)) == large
        assert receive_exactly(coded_peer, len(large)) == turned(large)
        assert made[1].calls == calls
        assert loop.reactor.identity(plain) is None
        plain_peer.close()
        loop.until(lambda: loop.closed)
        assert loop.closed == [(plain, CloseReason.PEER)]


class Strict(Xor):
    """Takes nothing but what it can turn into a PINGREQ."""

    def receive(self, data: bytes) -> Decoded:
        if turned(data) == PING:
            return Decoded(PING)
        self.fault = "no PINGREQ"
        return Decoded(b"", b"", Stream.FAULTY)


def test_what_is_wrong_is_told_until_the_end() -> None:
    with reactor_loop(Reactor(), codec=Strict) as loop:
        well, well_peer = loop.open()
        faulty, faulty_peer = loop.open()
        assert loop.reactor.codec_fault(faulty) == ""  # nothing has come
        well_peer.sendall(turned(PING))
        faulty_peer.sendall(b"?")
        loop.until(lambda: loop.frames[well] and loop.faults)
        assert loop.faults == [(faulty, Fault.TRANSPORT)]
        assert loop.reactor.codec_fault(faulty) == "no PINGREQ"
        assert loop.reactor.codec_fault(well) == ""
        loop.reactor.close(faulty)
        assert loop.reactor.codec_fault(faulty) == ""
    with reactor_loop(Reactor()) as loop:
        plain, _ = loop.open()
        assert loop.reactor.codec_fault(plain) == ""


def cannot_be_made() -> Codec:
    raise LookupError("a fault of this codec")


@pytest.mark.parametrize(
    ("make", "first"),
    [
        (cannot_be_made, turned(PING)),
        (lambda: Xor(raise_at=b"?"), b"?"),
        (lambda: Xor(sends=False), turned(PING)),
    ],
    ids=["made", "receive", "send"],
)
def test_codec_that_fails_ends_its_connection_alone(
    make: Callable[[], Codec], first: bytes
) -> None:
    makers = iter([Xor, make])

    def make_next() -> Codec:
        return next(makers)()

    with reactor_loop(Reactor(), codec=make_next) as loop:
        well, well_peer = loop.open()
        well_peer.sendall(turned(PING))
        loop.until(lambda: loop.frames[well])
        faulty, faulty_peer = loop.open()
        faulty_peer.sendall(first)
        loop.until(lambda: loop.closed or faulty in loop.frames)
        loop.reactor.send(faulty, PING)  # what fails at this is ended too, and not only silent
        faulty_peer.sendall(turned(PING) * 10)
        loop.until(lambda: loop.closed)
        assert loop.closed == [(faulty, CloseReason.RESET)]
        assert isinstance(loop.reactor.take_codec_error(), LookupError)
        assert loop.reactor.take_codec_error() is None
        loop.reactor.send(well, PING)
        loop.turn()
        assert receive_exactly(well_peer, 2) == turned(PING)
        assert loop.reactor.connections_count == 1


class Swollen:
    """Gives much for whatever it receives, as no stream of bytes of that size could hold."""

    peer = None
    identity = None
    fault = ""

    def __init__(self, given: bytes) -> None:
        self._given = given

    def receive(self, data: bytes) -> Decoded:
        return Decoded(self._given)

    def send(self, data: bytes) -> bytes:
        return data

    def close(self) -> bytes:
        return b""


def test_codec_may_give_more_frames_than_one_receive_could_hold() -> None:
    with reactor_loop(Reactor(), codec=lambda: Swollen(PING * 60_000)) as loop:
        connection, peer = loop.open()
        peer.sendall(b"x")
        loop.until(lambda: loop.frames[connection])
        assert loop.frames[connection] == [PING] * 60_000


def test_so_many_frames_may_wait_for_the_limit_behind_the_first() -> None:
    large = mqtt_frame(bytes(500))
    given = PING + large + PING * 60_000
    with reactor_loop(Reactor(), frame_bytes_max=100, codec=lambda: Swollen(given)) as loop:
        connection, peer = loop.open()
        peer.sendall(b"x")
        loop.until(lambda: loop.frames[connection])
        loop.reactor.set_limits(connection, frame_bytes_max=1000, idle_s_max=0)
        loop.until(lambda: len(loop.frames[connection]) > 1)
        assert loop.frames[connection] == [PING, large, *[PING] * 60_000]
