"""A shared subscription under random joins, leaves, acknowledgements, publishes and crashes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from motelog.core.net.reactor import CloseReason
from motelog.gateway.config import GatewayConfig
from motelog.gateway.mqtt.packet_types import NO_PROPERTIES, Unsubscribe
from motelog.gateway.mqtt.subscribe import encode_unsubscribe
from tests.support.gateway_stage import Stage, publish
from tests.unit.gateway.test_sessions import HOUR, connect, published, subscribe

GROUP = "$share/g/t/#"
PUBLISHER = 9
CONFIG = GatewayConfig(inflight_max=3)
#: Clients with even numbers have sessions that outlive their connections.
NUMBERS = st.integers(1, 4)


class SharedSubscription(RuleBasedStateMachine):
    """Members take messages at QoS 1; the model knows who has which of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(CONFIG)
        self.count = 0
        self.connected: set[int] = set()
        self.members: set[int] = set()  # also those with a stored session that are away
        self.owed: set[int] = set()  # published while there was a group
        self.acked: set[int] = set()
        self.told: set[int] = set()  # acknowledged before the last tick
        #: Those that may be taken again: given back, or repeated after a crash.
        self.loose: set[int] = set()
        self.held: dict[int, dict[int, int]] = {number: {} for number in range(1, 5)}
        self.newest: dict[tuple[int, str], int] = {}
        self.filled: set[int] = set()
        self.connect_publisher()

    def connect_publisher(self) -> None:
        connect(self.stage, PUBLISHER, "publisher", properties=NO_PROPERTIES)

    # --- what clients do -----------------------------------------------------------------

    @rule(number=NUMBERS)
    def join(self, number: int) -> None:
        if number not in self.connected:
            properties = NO_PROPERTIES if number % 2 else HOUR
            connect(self.stage, number, f"m{number}", properties=properties)
            self.connected.add(number)
        if number not in self.members:
            # A SUBACK may not be the only packet of its turn.
            self.take(number)
            subscribe(self.stage, number, GROUP)
            self.members.add(number)

    @rule(topic=st.sampled_from(["t/1", "t/2"]), count=st.integers(1, 6))
    def publish(self, topic: str, count: int) -> None:
        frames = []
        for _ in range(count):
            self.count += 1
            body = b"%d" % self.count
            frames.append((PUBLISHER, publish(topic, body, self.count, version=5)))
            if self.members:
                self.owed.add(self.count)
        self.stage.turn(*frames)

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        self.take_all()
        found = [(n, p) for n, held in self.held.items() for p in held]
        if not found:
            return
        for number, packet_id in data.draw(st.lists(st.sampled_from(found), unique=True)):
            self.acknowledge_one(number, packet_id)

    def acknowledge_one(self, number: int, packet_id: int) -> None:
        self.acked.add(self.held[number].pop(packet_id))
        self.stage.turn((number, b"\x40\x02" + packet_id.to_bytes(2, "big")))

    @precondition(lambda self: self.connected & self.members)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.connected & self.members)))
        self.take(number)
        self.stage.turn((number, encode_unsubscribe(5, Unsubscribe(8, (GROUP,)))))
        self.members.discard(number)
        # It keeps them, and the group may hand them out again if it does not acknowledge them.
        self.loose.update(self.held[number].values())
        self.end_group_without_members()

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.connected)))
        self.take(number)
        self.filled.discard(number)
        self.stage.turn(closed=[(number, CloseReason.PEER)])
        self.gone(number)
        self.end_group_without_members()

    def gone(self, number: int) -> None:
        self.connected.discard(number)
        if number % 2:
            self.members.discard(number)
        self.loose.update(self.held[number].values())
        self.held[number].clear()
        for topic in ("t/1", "t/2"):
            self.newest.pop((number, topic), None)

    def end_group_without_members(self) -> None:
        if not self.members:
            self.owed.clear()

    @precondition(lambda self: self.connected - self.filled)
    @rule(data=st.data())
    def stop_reading(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.connected - self.filled)))
        self.stage.output.fill(number)
        self.filled.add(number)

    @rule()
    def read_on(self) -> None:
        filled, self.filled = self.filled, set()
        for number in filled:
            self.stage.output.read_on(number)
        self.stage.turn(drained=sorted(filled))

    # --- what becomes of the gateway -----------------------------------------------------

    @rule()
    def tick(self) -> None:
        self.take_all()
        self.stage.tick()
        self.stage.journal.refresh(1000)
        self.told = set(self.acked)

    @rule()
    def crash(self) -> None:
        self.take_all()
        self.stage = Stage(CONFIG, log=self.stage.log)
        self.filled.clear()
        for number in list(self.connected):
            self.gone(number)
        self.loose |= self.acked - self.told
        self.end_group_without_members()
        self.connect_publisher()

    # --- what members receive ------------------------------------------------------------

    def take_all(self) -> None:
        while self.stage.delivery.deliver(self.stage.clock.now_ms()):
            pass
        for number in self.connected:
            self.take(number)

    def take(self, number: int) -> None:
        for packet in self.stage.packets(number):
            if packet[0] >> 4 != 3:
                continue
            message = published(packet)
            value = int(message.payload)
            held = self.held[number]
            if value not in self.loose:
                assert value in self.owed, "it was published before there was a group"
                assert value not in self.acked
                assert not any(value in held.values() for held in self.held.values())
                place = number, message.topic
                assert value > self.newest.get(place, 0), "members receive in the queue's order"
                self.newest[place] = value
            assert message.packet_id not in held
            held[message.packet_id] = value
            assert len(held) <= CONFIG.inflight_max

    @invariant()
    def groups_are_well(self) -> None:
        self.take_all()
        for group in self.stage.clients._shared._groups.values():
            group._check()

    def teardown(self) -> None:
        """Have everything acknowledged that the group has."""
        if not self.members:
            return
        self.read_on()
        owed = set(self.owed)
        for number in (1, 2, 3, 4):
            self.join(number)
        for _ in range(1000):
            self.take_all()
            found = [(n, p) for n, held in self.held.items() for p in held]
            if not found:
                break
            for number, packet_id in found:
                self.acknowledge_one(number, packet_id)
        assert owed <= self.acked


SharedSubscription.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestSharedSubscription = SharedSubscription.TestCase
