"""Output: kernel and reference answer any calls alike, whatever the peer reads and when.

How much a socket takes depends on how a reactor hands it over. So messages are either far larger
than that or negligible, the peer reads everything or nothing, and the marks are in between. Then
both must report the same frames, drained connections and ends after each step.
"""

from __future__ import annotations

import contextlib
import select
import socket

from hypothesis import example, given, settings
from hypothesis import strategies as st

from motelog.core.net.reactor import Reactor
from tests.support.reactor_loop import (
    REACTOR_CLASSES,
    ReactorLoop,
    listening_unix,
    mqtt_frame,
    reactor_loop,
)

LARGE = bytes(1 << 21)  # a socket takes less than a quarter of it
SMALL = b"small"
OUTPUT_BYTES_HIGH = 5 * len(LARGE) // 2
OUTPUT_BYTES_MAX = 11 * len(LARGE) // 2
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


def run_calls(
    reactor_class: type[Reactor], calls: list[tuple[str, str]]
) -> list[tuple[object, ...]]:
    """Make the calls for one connection; return what was known after each of them."""
    reactor = reactor_class(output_bytes_high=OUTPUT_BYTES_HIGH, output_bytes_max=OUTPUT_BYTES_MAX)
    known: list[tuple[object, ...]] = []
    with reactor_loop(reactor, sock=listening_unix()) as loop:
        connection, peer = loop.open()
        for call, after in calls:
            said = make_call(loop, connection, peer, call)
            if after == "look":
                look(loop, peer)
            elif after == "flush":
                reactor.flush()
            queued = round(reactor.output_bytes(connection) / len(LARGE))
            frames = len(loop.frames[connection])
            known.append((call, said, queued, frames, tuple(loop.drained), tuple(loop.closed)))
    return known


@settings(max_examples=100)
@given(calls=st.lists(st.tuples(calls, after_calls), max_size=20))
@example(calls=[("send large", "look")] * 3 + [("peer reads", "look")])
def test_any_output_calls_give_the_same_from_kernel_and_reference(
    calls: list[tuple[str, str]],
) -> None:
    reference, kernel = (run_calls(reactor_class, calls) for reactor_class in REACTOR_CLASSES)
    assert kernel == reference
