"""Clients that wander between several gateways, which read back, die and start as it happens.

Two clients with sessions that stay subscribe and publish. Whatever the order of events, each QoS 2
message is in the log once and reaches each client once, none is lost, a session that was granted a
subscription is present for ever, and in the end each client is connected to one gateway.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.core.net.reactor_types import CloseReason
from tests.support.durable_client import Arrived, ClientSession
from tests.support.gateway_fleet import Fleet

NAMES = ("a", "b", "c")
CLIENTS = ("x", "y")
ROUNDS_MAX = 60


@dataclass
class Client:
    """One client, and where it is connected: (gateway, number)."""

    session: ClientSession
    got: Counter[bytes]
    at: tuple[str, int] | None = None
    is_granted: bool = False
    #: Payload -> whether the subscription was there before: then it must come.
    owed: dict[bytes, bool] = field(default_factory=dict)


class World:
    """The gateways and their clients."""

    def __init__(self) -> None:
        self.fleet = Fleet(*NAMES)
        self.numbers = Counter[str]()
        self.clients: dict[str, Client] = {}
        self.published: dict[bytes, int] = {}
        for name in CLIENTS:
            got = Counter[bytes]()

            def arrived(message: Arrived, got: Counter[bytes] = got) -> None:
                got[message.payload] += 1

            version = 5 if name == "x" else 4
            session = ClientSession(name, version=version, on_message=arrived)
            self.clients[name] = Client(session, got)

    # --- what happens --------------------------------------------------------------------

    def come(self, name: str, gateway: str) -> None:
        """Connect; what an earlier connection still gets is nobody's."""
        if gateway not in self.fleet.stages:
            return
        client = self.clients[name]
        self.numbers[gateway] += 1
        client.at = gateway, self.numbers[gateway]
        client.session.come()
        stage = self.fleet[gateway]
        stage.turn((client.at[1], client.session.take_out()), opened=[client.at[1]])

    def flow(self, name: str) -> bool:
        """Let a client send and receive what there is; return whether there was anything."""
        client = self.clients[name]
        if client.at is None:
            return False
        gateway, number = client.at
        stage = self.fleet.stages.get(gateway)
        if stage is None:
            client.at = None
            return True
        packets = stage.packets(number)
        session = client.session
        for packet in packets:
            session.handle(packet[0], packet[2:] if packet[1] < 0x80 else packet[3:])
            if packet[0] == 0x20:
                assert session.connack is not None
                if session.connack.reason_code:
                    client.at = None
                    return True
                assert session.connack.session_present or not client.is_granted
                if not client.is_granted:
                    session.subscribe(("t/#", 2))
            elif packet[0] == 0x90 and not client.is_granted:
                client.is_granted = True
        if number in stage.output.closed:
            client.at = None
            return True
        data = session.take_out() if session.connack is not None else b""
        frames = []
        while data:
            size = 2 + data[1]
            frames.append((number, data[:size]))
            data = data[size:]
        if frames:
            stage.turn(*frames)
        return bool(packets or frames)

    def lose(self, name: str) -> None:
        client = self.clients[name]
        if client.at is not None and client.at[0] in self.fleet.stages:
            gateway, number = client.at
            if number not in self.fleet[gateway].output.closed:
                self.fleet[gateway].turn(closed=[(number, CloseReason.PEER)])
        client.at = None

    def publish(self, name: str, qos: int) -> None:
        client = self.clients[name]
        if client.at is None or client.session.connack is None or len(client.session.sending) > 9:
            return
        payload = b"%d" % len(self.published)
        self.published[payload] = qos
        for other in self.clients.values():
            other.owed[payload] = other.is_granted
        client.session.publish("t/1", payload, qos)

    def read(self, gateway: str, limit: int) -> None:
        if gateway in self.fleet.stages:
            self.fleet[gateway].read_back(limit)

    def deliver(self, gateway: str) -> None:
        if gateway in self.fleet.stages:
            self.fleet[gateway].delivery.deliver(self.fleet.clock.now_ms())

    def tick(self) -> None:
        """Let a second pass, in which all gateways read back what there is."""
        self.fleet.tick()

    def kill(self, gateway: str) -> None:
        if gateway in self.fleet.stages and len(self.fleet.stages) > 1:
            self.fleet.kill(gateway)

    def start(self, gateway: str) -> None:
        if gateway not in self.fleet.stages:
            self.numbers[gateway] = 0
            for client in self.clients.values():
                if client.at is not None and client.at[0] == gateway:
                    client.at = None
            self.fleet.start(gateway)

    # --- the end -------------------------------------------------------------------------

    def end(self) -> None:
        """Bring all clients to some gateway and let everything arrive."""
        for _ in range(7):
            self.tick()
        for count in range(ROUNDS_MAX):
            self.fleet.settle()
            moved = False
            for number, (name, client) in enumerate(self.clients.items()):
                while self.flow(name):
                    moved = True
                if client.at is None:
                    names = list(self.fleet.stages)
                    self.come(name, names[(count + number) % len(names)])
                    moved = True
            if not moved:
                return
        raise AssertionError("it comes to no end")

    def check(self) -> None:
        stored = Counter[bytes]()
        stages = list(self.fleet.stages.values())
        for message in stages[0].stored():
            stored.update(part for part in message if isinstance(part, bytes))
        for payload, qos in self.published.items():
            assert stored[payload] >= 1
            assert qos == 1 or stored[payload] == 1, f"{payload!r} is stored more than once"
            for name, client in self.clients.items():
                count = client.got[payload]
                assert count or not client.owed[payload], f"{name} lacks {payload!r}"
                assert qos == 1 or count <= 1, f"{name} has {payload!r} {count} times"
        for name in CLIENTS:
            assert sum(stage.sessions.live(name) is not None for stage in stages) == 1
            states = [stage.journal.load(name) for stage in stages]
            assert all(state is not None and state.left_ms is None for state in states)
        for stage in stages:
            assert not stage.view.execute("SELECT * FROM claims").fetchall()


gateways = st.sampled_from(NAMES)
clients = st.sampled_from(CLIENTS)
steps = st.one_of(
    st.tuples(st.just("come"), clients, gateways),
    st.tuples(st.just("come"), clients, gateways),
    st.tuples(st.just("flow"), clients),
    st.tuples(st.just("flow"), clients),
    st.tuples(st.just("lose"), clients),
    st.tuples(st.just("publish"), clients, st.sampled_from((1, 2, 2))),
    st.tuples(st.just("read"), gateways, st.integers(1, 3)),
    st.tuples(st.just("read"), gateways, st.just(100)),
    st.tuples(st.just("deliver"), gateways),
    st.tuples(st.sampled_from(("tick", "settle"))),
    st.tuples(st.sampled_from(("kill", "start")), gateways),
)


@settings(max_examples=80, deadline=None)
@given(steps=st.lists(steps, min_size=10, max_size=60))
def test_clients_that_wander_lose_nothing_and_get_nothing_twice(
    steps: list[tuple[object, ...]],
) -> None:
    world = World()
    for step in steps:
        match step:
            case "come", str(name), str(gateway):
                world.come(name, gateway)
            case "flow", str(name):
                world.flow(name)
            case "lose", str(name):
                world.lose(name)
            case "publish", str(name), int(qos):
                world.publish(name, qos)
            case "read", str(gateway), int(limit):
                world.read(gateway, limit)
            case "deliver", str(gateway):
                world.deliver(gateway)
            case ("tick",):
                world.tick()
            case ("settle",):
                world.fleet.settle()
            case "kill", str(gateway):
                world.kill(gateway)
            case "start", str(gateway):
                world.start(gateway)
    world.end()
    world.check()
