"""A shared subscription over two gateways under random joins, leaves, publishes and crashes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.reckoning import LOST_TICKS
from motelog.gateway.mqtt.packet_types import NO_PROPERTIES
from motelog.gateway.sessions.groups import PARTS
from tests.support.gateway_fleet import HOUR, Fleet
from tests.unit.gateway.test_several_gateways import frame, got, subscribe

GROUP = "$share/g/t/#"
PUBLISHER = 9
NAMES = st.sampled_from(["a", "b"])
#: A queue each, and so a part of the group.
TOPICS = ["t/1", "t/2", "t/4", "t/6"]
#: Clients with even numbers have sessions that outlive their connections.
NUMBERS = st.integers(1, 4)


class GroupOfGateways(RuleBasedStateMachine):
    """Members take messages at QoS 1; what is not settled is read back in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet("a", "b", config=GatewayConfig(inflight_max=3))
        self.count = 0
        self.at: dict[int, str] = {}
        self.members: set[int] = set()  # also those with a stored session that are away
        self.owed: set[int] = set()  # published while there was a group
        self.acked: set[int] = set()
        self.told: set[int] = set()  # acknowledged before the last tick
        #: Those that may be taken again: given back, or repeated after a crash.
        self.loose: set[int] = set()
        #: The topic of each message, and the newest one of each that a member has taken.
        self.topics: dict[int, str] = {}
        self.newest: dict[tuple[int, str], int] = {}
        self.held: dict[int, dict[int, int]] = {number: {} for number in range(1, 5)}
        for name in "ab":
            self.connect_publisher(name)

    def connect_publisher(self, name: str) -> None:
        self.fleet.connected(name, PUBLISHER, f"publisher-{name}", properties=NO_PROPERTIES)

    @rule(number=NUMBERS, name=NAMES)
    def join(self, number: int, name: str) -> None:
        self.fleet.settle()
        self.take_all()
        if number in self.at:
            return
        how = NO_PROPERTIES if number % 2 else HOUR
        self.fleet.connected(name, number, f"m{number}", properties=how)
        self.at[number] = name
        if number not in self.members:
            subscribe(self.fleet, name, number, GROUP)
            self.members.add(number)

    @rule(name=NAMES, topic=st.sampled_from(TOPICS), count=st.integers(1, 6))
    def publish(self, name: str, topic: str, count: int) -> None:
        for _ in range(count):
            self.count += 1
            self.topics[self.count] = topic
            if self.members:
                self.owed.add(self.count)
            body = b"%d" % self.count
            self.fleet[name].turn((PUBLISHER, frame(topic, body, 1, self.count)))

    @precondition(lambda self: self.at)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.at)))
        self.take(number)
        name = self.at[number]
        self.gone(number)
        self.fleet.lose(name, number)

    def gone(self, number: int) -> None:
        del self.at[number]
        if number % 2:
            self.members.discard(number)
        self.loose.update(self.held[number].values())
        self.held[number].clear()
        for topic in TOPICS:
            self.newest.pop((number, topic), None)
        if not self.members:
            self.owed.clear()

    @rule(name=NAMES, limit=st.integers(1, 5))
    def read_back(self, name: str, limit: int) -> None:
        self.fleet[name].read_back(limit)
        self.fleet[name].delivery.deliver(self.fleet.clock.now_ms())

    @rule()
    def tick(self) -> None:
        self.take_all()
        self.fleet.tick()
        self.told = set(self.acked)

    @rule(name=NAMES, restarts=st.booleans())
    def crash(self, name: str, restarts: bool) -> None:
        self.take_all()
        self.fleet.kill(name)
        for number in [number for number, at in self.at.items() if at == name]:
            self.gone(number)
        self.loose |= self.acked - self.told
        if not restarts:
            for _ in range(LOST_TICKS + 2):
                self.fleet.tick()
        self.fleet.start(name)
        self.fleet.settle()
        self.connect_publisher(name)

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        self.take_all()
        found = [(n, p) for n, held in self.held.items() for p in held]
        if found:
            for number, packet_id in data.draw(st.lists(st.sampled_from(found), unique=True)):
                self.acknowledge_one(number, packet_id)

    def acknowledge_one(self, number: int, packet_id: int) -> None:
        self.acked.add(self.held[number].pop(packet_id))
        packet = b"\x40\x02" + packet_id.to_bytes(2, "big")
        self.fleet[self.at[number]].turn((number, packet))

    def take_all(self) -> None:
        for number in self.at:
            self.take(number)

    def take(self, number: int) -> None:
        for first_byte, packet_id, payload in got(self.fleet[self.at[number]], number):
            if first_byte >> 4 != 3:
                continue
            value = int(payload)
            if value not in self.loose:
                assert value not in self.acked, "it has been done"
                assert not any(value in held.values() for held in self.held.values())
                place = number, self.topics[value]
                assert value > self.newest.get(place, 0), "it comes behind a newer one"
                self.newest[place] = value
            self.held[number][packet_id] = value

    def teardown(self) -> None:
        """Have everything acknowledged that the group has."""
        if not self.members:
            return
        owed = set(self.owed)
        for number in (1, 2, 3, 4):
            self.join(number, "ab"[number % 2])
        self.fleet.settle()
        if set(self.at.values()) == {"a", "b"}:
            assert self.parts_held() == {"a": PARTS // 2, "b": PARTS // 2}
        for _ in range(200):
            self.fleet.settle()
            self.take_all()
            found = [(n, p) for n, held in self.held.items() for p in held]
            if not found:
                break
            for number, packet_id in found:
                self.acknowledge_one(number, packet_id)
        assert owed <= self.acked

    def parts_held(self) -> dict[str, int]:
        shared = {name: stage.clients._shared for name, stage in self.fleet.stages.items()}
        parts = {name: one._groups[GROUP].parts for name, one in shared.items()}
        return {name: sum(part.is_held for part in of_group) for name, of_group in parts.items()}


GroupOfGateways.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestGroupOfGateways = GroupOfGateways.TestCase
