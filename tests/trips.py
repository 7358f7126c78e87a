"""The way of one message through the rooms: which functions a turn calls, in which files.

Owns: the trips that can be played, how a trip is counted, the tree that is printed. Must not touch:
how long a trip may be (``tests/repo/test_trips.py``).

    python -m tests.trips publish     prints the tree of one trip and its three figures
    python -m tests.trips             prints the figures of all trips

A trip is one turn of a reactor with one packet or request in it, played on a real broker and a
gateway without sockets, after the same turn has been played before. Counted are Python functions of
the product: *calls*; *files* that they are in; *returns*, how often control comes back to a file
that it has left. Kernels are not seen.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Final, cast

import trio

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from motelog.core.clock import ManualClock
from motelog.core.net.reactor import CloseReason
from motelog.core.remoting.frames import ResponseCode, Serialize, decode
from motelog.gateway.log.local_log import LocalLog
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect, Subscribe, SubscribeEntry
from motelog.gateway.mqtt.subscribe import encode_subscribe
from tests.support.broker_stack import store_config
from tests.support.fake_log import FakeLog
from tests.support.gateway_stage import Stage, publish
from tests.support.pull_requests import pull_fields, pull_frame
from tests.support.send_requests import KEY, fields, frame

ROOT: Final = Path(__file__).resolve().parents[1]
ROOMS: Final = ("bridge", "core", "gateway", "src")
PUBLISHER, RECEIVER, RETURNING = 1, 2, 3


@dataclass
class Trip:
    """What one turn did."""

    #: (depth, file, function) of each call, in order.
    calls: list[tuple[int, str, str]] = field(default_factory=list)
    #: The files that had control, in order.
    way: list[str] = field(default_factory=list)

    @property
    def figures(self) -> tuple[int, int, int]:
        """Calls, files, returns."""
        files = len({file for _, file, _ in self.calls})
        return len(self.calls), files, len(self.way) - files

    def tree(self) -> str:
        """Return a line for each call, indented by its depth."""
        return "\n".join(f"{'  ' * depth}{file}  {name}" for depth, file, name in self.calls)


def record(play: Callable[[], object]) -> Trip:
    """Return the trip that ``play`` takes."""
    trip = Trip()
    files: list[str] = []  # of the calls that have not returned

    def note(frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return"):
            return
        file = _name_of(frame.f_code.co_filename)
        if file is None:
            return
        if event == "call":
            trip.calls.append((len(files), file, frame.f_code.co_qualname))
            files.append(file)
        else:
            files.pop()
        if files and trip.way[-1:] != files[-1:]:
            trip.way.append(files[-1])

    sys.setprofile(note)
    try:
        play()
    finally:
        sys.setprofile(None)
    return trip


@cache
def _name_of(path: str) -> str | None:
    """Return the path of a file of the product from the checkout's root; None of any other."""
    real = Path(path).resolve()
    if not real.is_relative_to(ROOT):
        return None
    name = real.relative_to(ROOT)
    return str(name) if name.parts[0] in ROOMS else None


class Route:
    """A broker that runs, a gateway on its log, and the trips that can be played on them."""

    def __init__(self, broker: Broker, sock: socket.socket) -> None:
        """``sock`` is a native client's connection to the broker."""
        self._server = broker.parts.server
        self._held = broker.parts.processors.pull.held
        self._sock = sock
        log = LocalLog(broker.api)
        for topic in ("telemetry", "received", "sent", "pulled", "held"):
            broker.api.create_topic(topic, 1)
        self._stage = Stage(log=cast("FakeLog", log), clock=cast("ManualClock", broker.api.clock))
        for number in (PUBLISHER, RECEIVER):
            self._stage.connect(number)

    def publish(self) -> Trip:
        """Return the trip of a PUBLISH with QoS 1 that has no receiver."""
        return self._mqtt(lambda i: publish("telemetry/a", b"21.5", i))

    def deliver(self) -> Trip:
        """Return the trip of a PUBLISH with QoS 1 that has one receiver."""
        self._stage.turn((RECEIVER, _subscribe("received/+")))
        trip = self._mqtt(lambda i: publish("received/a", b"21.5", i))
        kinds = [packet[0] for packet in self._stage.sent(RECEIVER)]
        assert kinds == [0x90, 0x32, 0x32]
        return trip

    def connect(self) -> Trip:
        """Return the trip of a CONNECT whose session comes back."""
        packet = encode_connect(
            Connect(version=4, clean_start=False, keep_alive_s=60, client_id="returns")
        )
        for _ in range(3):
            turn = self._stage.made((RETURNING, packet), opened=[RETURNING])
            trip = record(partial(self._stage.listener.handle_turn, turn))
            answers = self._stage.sent(RETURNING)
            self._stage.turn(closed=[(RETURNING, CloseReason.PEER)])
        assert answers == [b"\x20\x02\x01\x00"]
        return trip

    def subscribe(self) -> Trip:
        """Return the trip of a SUBSCRIBE with one filter."""
        return self._mqtt(lambda i: _subscribe(f"telemetry/{i}"))

    def send(self) -> Trip:
        """Return the trip of a native send."""
        return self._native([_send("sent"), _send("sent")])

    def pull(self) -> Trip:
        """Return the trip of a native pull that finds a message."""
        return self._native([_send("pulled"), _pull("pulled", 0), _pull("pulled", 0)])

    def hold(self) -> Trip:
        """Return the trip of a native pull that finds nothing and is held."""
        trip = self._native([_pull("held", 0), _pull("held", 0)], answers=0)
        assert len(self._held) == 2
        return trip

    def _mqtt(self, packet: Callable[[int], bytes]) -> Trip:
        """Play turns with one packet of the publisher each, by its number; return one's trip."""
        for number in (1, 2):
            turn = self._stage.made((PUBLISHER, packet(number)))
            trip = record(partial(self._stage.listener.handle_turn, turn))
            assert self._stage.sent(PUBLISHER)
        return trip

    def _native(self, requests: list[bytes], *, answers: int = 1) -> Trip:
        """Play a turn for each request; return the last one's trip."""
        for request in requests:
            self._sock.sendall(request)
            trip = self._play_native()
            if answers:
                assert decode(self._sock.recv(65_536)).code == ResponseCode.SUCCESS
        return trip

    def _play_native(self) -> Trip:
        """Play turns until a request was in one; return its trip."""
        while True:
            turn = self._server.reactor.poll(0)
            is_request = turn.frames > 0
            trip = record(partial(self._server.handle_turn, turn))
            if is_request:
                self._server.reactor.flush()
                return trip


def _subscribe(topic_filter: str) -> bytes:
    return encode_subscribe(4, Subscribe(3, (SubscribeEntry(topic_filter, 1),)))


def _send(topic: str) -> bytes:
    properties = f"TAGS\x01a\x02UNIQ_KEY\x01{KEY}\x02"  # clients give each message a key
    return frame(fields(properties, b=topic, e="0"), b"body", Serialize.JSON)


def _pull(topic: str, queue_offset: int) -> bytes:
    changed = {"topic": topic, "queueId": "0", "queueOffset": str(queue_offset)}
    return pull_frame(pull_fields(**changed), Serialize.JSON)


TRIPS: Final = {
    trip.__name__: trip
    for trip in (
        Route.publish,
        Route.deliver,
        Route.connect,
        Route.subscribe,
        Route.send,
        Route.pull,
        Route.hold,
    )
}


def play(names: Iterable[str]) -> dict[str, Trip]:
    """Return the trips of these names, each played on servers of its own."""
    return {name: trio.run(_play, TRIPS[name]) for name in names}


async def _play(trip: Callable[[Route], Trip]) -> Trip:
    with tempfile.TemporaryDirectory() as directory:
        config = BrokerConfig(listen="127.0.0.1:0", store=store_config(Path(directory)))
        # Time stands still: a turn in which a millisecond ends would ask a clock once more.
        broker = Broker(config, clock=ManualClock())
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.run)
            with socket.create_connection(broker.address) as sock:
                sock.settimeout(10)
                played = trip(Route(broker, sock))
            nursery.cancel_scope.cancel()
    return played


def main() -> None:
    """Print the tree of one trip, or the figures of all."""
    parser = argparse.ArgumentParser(prog="python -m tests.trips", description=__doc__)
    parser.add_argument("name", nargs="?", choices=TRIPS, help="whose tree to print")
    name = parser.parse_args().name
    trips = play(TRIPS if name is None else [name])
    if name is not None:
        print(trips[name].tree())  # noqa: T201  # it is a program
    print("trip       calls  files  returns")  # noqa: T201  # it is a program
    for name, trip in trips.items():
        print("{:9} {:6} {:6} {:8}".format(name, *trip.figures))  # noqa: T201  # it is a program


if __name__ == "__main__":
    main()
