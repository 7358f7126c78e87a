"""Output: the reactor answers any calls as a model does, whatever the peer reads and when.

How much a socket takes depends on the machine. So messages are either far larger than that or
negligible, the peer reads everything or nothing, and the marks are in between. Then the frames,
drained connections and ends after each step are known.
"""

from __future__ import annotations

import contextlib
import select
import socket

from hypothesis import example, given, settings
from hypothesis import strategies as st

from motelog.core.net.reactor import CloseReason, Reactor
from tests.support.reactor_loop import (
    ReactorLoop,
    listening_unix,
    mqtt_frame,
    reactor_loop,
)

LARGE = bytes(1 << 21)  # a socket takes less than a quarter of it
SMALL = b"small"
# In large messages.
HIGH, MAX = 2.5, 5.5
PING = mqtt_frame(b"", 0xC0)

calls = st.sampled_from(
    (
        "send large",
        "send large",
        "send large in two",
        "fan out large",
        "send small",
        "fan out small",
        "send numbered",
        "pause",
        "resume",
        "close",
        "peer reads",
    )
)
after_calls = st.sampled_from(("look", "look", "flush", "nothing"))


def make_call(loop: ReactorLoop, connection: int, peer: socket.socket, call: str) -> object:
    """Do one thing; return what the reactor or the peer says about it."""
    reactor = loop.reactor
    match call:
        case "send large":
            reactor.send(connection, LARGE)
        case "send large in two":
            reactor.send(connection, LARGE[:1000], LARGE[1000:])
        case "send small":
            reactor.send(connection, SMALL)
        case "fan out large":
            return reactor.fan_out(LARGE, [connection])
        case "fan out small":
            return reactor.fan_out(SMALL, [connection])
        case "send numbered":
            return reactor.send_numbered(SMALL, 1, [(connection, 7)])
        case "pause":
            reactor.pause(connection)
        case "resume":
            reactor.resume(connection)
        case "close":
            reactor.close(connection)
        case "peer reads":
            return read_all(loop, peer)
    return None


def look(loop: ReactorLoop, peer: socket.socket) -> None:
    """Poll; whether what the peer sends becomes a frame says whether it is read from."""
    with contextlib.suppress(OSError):  # the reactor has ended it
        peer.send(PING)
    loop.settle()


def read_all(loop: ReactorLoop, peer: socket.socket) -> tuple[int, str]:
    """Read until nothing more comes; return how many large messages, and how it ended."""
    received = 0
    end = "open"
    loop.settle()
    while end == "open" and select.select([peer], [], [], 0)[0]:
        try:
            chunk = peer.recv(len(LARGE))
            end = "open" if chunk else "closed"
            received += len(chunk)
        except ConnectionResetError:
            end = "reset"
        loop.turn()
    return round(received / len(LARGE)), end


class Model:
    """What is known of the connection; output is counted in large messages."""

    def __init__(self) -> None:
        self.queued = 0
        self.frames = 0
        self.drained = 0
        self.ended: CloseReason | None = None
        self._end: CloseReason | None = None
        self._is_closed = False
        self._is_full = False
        self._is_paused = False
        self._pings = 0  # not read
        self._told_end = "open"  # how it ends for the peer, once it has read everything

    def call(self, call: str) -> object:
        match call:
            case "send large" | "send large in two":
                self._send(1)
            case "send small":
                self._send(0)
            case "fan out large":
                return self._fan_out(1)
            case "fan out small" | "send numbered":
                return self._fan_out(0)
            case "pause":
                self._is_paused = True
            case "resume":
                self._is_paused = False
            case "close":
                self._close()
            case "peer reads":
                return self._read_all()
        return None

    @property
    def known(self) -> tuple[int, int, int, CloseReason | None]:
        """What is queued, frames, how often it has drained, how it ended as a turn has told."""
        queued = 0 if self._is_closed else self.queued
        return queued, self.frames, self.drained, self.ended

    def look(self) -> None:
        self._pings += self._end is None
        self.poll()

    def poll(self) -> None:
        self.flush()
        self.ended = self._end
        if not (self._is_closed or self._end or self._is_full or self._is_paused):
            self.frames += self._pings
            self._pings = 0

    def flush(self) -> None:
        """Note that the connection is full, if it is; the socket takes next to nothing."""
        self._is_full |= self.queued > HIGH

    def _send(self, size: int) -> None:
        if self._end or self._is_closed:
            return
        if self._has_room() or self.queued + size <= MAX:
            self.queued += size
        else:
            self._end = CloseReason.OUTPUT_FULL
            self._told_end = "reset" if self._pings else "closed"
            self.queued = 0

    def _fan_out(self, size: int) -> list[int]:
        """Return 0 in place of the connection, if it is skipped."""
        if self._end or self._is_closed or not self._has_room():
            return [0]
        self.queued += size
        return []

    def _has_room(self) -> bool:
        self.flush()
        return self.queued <= HIGH

    def _close(self) -> None:
        if self._end and not self.ended:
            self._end = None  # which is not told any more
        self._is_closed = True
        if self._told_end == "open":
            self._told_end = "closed"

    def _read_all(self) -> tuple[int, str]:
        """Return how many large messages the peer gets, and how it ends."""
        self.poll()
        received, self.queued = self.queued, 0
        if self._is_full:
            self._is_full = False
            self.drained += not (self._is_closed or self._end)
        self.poll()
        end = self._told_end
        if end == "reset":  # that is said once
            self._told_end = "closed"
        return received, end


@settings(max_examples=100)
@given(calls=st.lists(st.tuples(calls, after_calls), max_size=20))
@example(calls=[("send large", "look")] * 3 + [("peer reads", "look")])
def test_any_output_calls_give_what_the_model_says(calls: list[tuple[str, str]]) -> None:
    reactor = Reactor(
        output_bytes_high=int(HIGH * len(LARGE)), output_bytes_max=int(MAX * len(LARGE))
    )
    model = Model()
    with reactor_loop(reactor, sock=listening_unix()) as loop:
        connection, peer = loop.open()
        for call, after in calls:
            said = make_call(loop, connection, peer, call)
            model_said = model.call(call)
            if after == "look":
                look(loop, peer)
                model.look()
            elif after == "flush":
                reactor.flush()
                model.flush()
            assert said == model_said
            known = (
                round(reactor.output_bytes(connection) / len(LARGE)),
                len(loop.frames[connection]),
                loop.drained.count(connection),
                dict(loop.closed).get(connection),
            )
            assert known == model.known
