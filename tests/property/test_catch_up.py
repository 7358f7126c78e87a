"""Sessions that lag, come and go: each gets what it wants, once and in the order of each queue."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from motelog.core.net.reactor import CloseReason
from motelog.gateway.config import GatewayConfig
from motelog.gateway.deliver import elevator
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.frames import split_one
from motelog.gateway.mqtt.packet_types import Connect, Subscribe, SubscribeEntry
from motelog.gateway.mqtt.subscribe import encode_subscribe
from motelog.gateway.mqtt.topics import matches
from tests.support.gateway_stage import Stage, publish
from tests.support.mqtt import body_of

PUBLISHER = 15
NAMES = ["t/a", "t/b", "t/a/x", "u/a", "t"]
FILTERS = ["t/a", "t/b/#", "t/a/x", "u/a", "t/#", "#", "+/a"]


class CatchUpMachine(RuleBasedStateMachine):
    """Clients with windows of three messages, which are often away."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(GatewayConfig(inflight_max=3, topic_queue_count=1))
        self.next_payload = 0
        # Client -> filters, payloads that it wants and has not got, packet identifiers in flight.
        self.filters: dict[int, set[str]] = defaultdict(set)
        self.wanted: dict[int, dict[bytes, str]] = defaultdict(dict)
        self.inflight: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.online: set[int] = set()
        self.known: set[int] = set()

    @initialize(
        cars=st.integers(1, 3),
        near=st.sampled_from([0, 2, 4096]),
        looks=st.sampled_from([2, 8]),
        offered=st.sampled_from([1, 65_536]),
    )
    def begin(self, cars: int, near: int, looks: int, offered: int) -> None:
        # Slices of one or two records, so that everything else happens in the middle of a pass.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(elevator, "CARS_MAX", cars)
        self.patch.setattr(elevator, "NEAR", near)
        self.patch.setattr(elevator, "SLICE_COUNT", 1)
        self.patch.setattr(elevator, "SLICE_COUNT_BY_TAGS", 2)
        self.patch.setattr(elevator, "LOOKS_MAX", looks)
        self.patch.setattr(elevator, "OFFERED_MAX", offered)
        packet = Connect(version=4, clean_start=True, keep_alive_s=60, client_id="publisher")
        self.stage.turn((PUBLISHER, encode_connect(packet)), opened=[PUBLISHER])

    def teardown(self) -> None:
        self.patch.undo()

    @rule(client=st.integers(1, 4))
    def come_or_go(self, client: int) -> None:
        if client in self.online:
            self.online.remove(client)
            self.take(client)
            self.stage.turn(closed=[(client, CloseReason.PEER)])
            return
        packet = Connect(version=4, clean_start=False, keep_alive_s=60, client_id=f"c{client}")
        self.stage.turn((client, encode_connect(packet)), opened=[client])
        connack = self.stage.output.sent[client].pop(0)
        assert connack[2] == (client in self.known)
        self.known.add(client)
        self.online.add(client)
        # What it has not acknowledged comes again.
        for payload in self.inflight.pop(client, {}).values():
            self.wanted[client].setdefault(payload, "")

    @precondition(lambda self: self.online)
    @rule(topic_filter=st.sampled_from(FILTERS), data=st.data())
    def subscribe(self, topic_filter: str, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.online)))
        packet = Subscribe(1, (SubscribeEntry(topic_filter, 1),))
        self.stage.turn((client, encode_subscribe(4, packet)))
        self.filters[client].add(topic_filter)
        self.take(client)

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=6))
    def publish(self, names: list[str]) -> None:
        frames = []
        for name in names:
            self.next_payload += 1
            payload = b"%d" % self.next_payload
            frames.append((PUBLISHER, publish(name, payload, 1)))
            for client, filters in self.filters.items():
                if any(matches(topic_filter, name) for topic_filter in filters):
                    self.wanted[client][payload] = name
        self.stage.turn(*frames)
        self.stage.sent(PUBLISHER)

    @rule()
    def deliver(self) -> None:
        self.stage.delivery.deliver(self.stage.clock.now_ms())

    @precondition(lambda self: any(self.inflight[client] for client in self.online))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        busy = sorted(client for client in self.online if self.inflight[client])
        client = data.draw(st.sampled_from(busy))
        packet_id = data.draw(st.sampled_from(sorted(self.inflight[client])))
        del self.inflight[client][packet_id]
        self.stage.turn((client, b"\x40\x02" + packet_id.to_bytes(2, "big")))

    def take(self, client: int) -> None:
        for packet in self.stage.sent(client):
            if packet[0] >> 4 != 3:
                continue
            frame = split_one(packet[0], body_of(packet), 4, 0)
            payload, packet_id = frame[3], frame[4]
            assert payload in self.wanted[client], (client, payload)
            del self.wanted[client][payload]
            assert packet_id not in self.inflight[client]
            self.inflight[client][packet_id] = payload

    @invariant()
    def nothing_comes_twice(self) -> None:
        for client in self.online:
            self.take(client)
        for one in self.stage.delivery._catch_up.elevators.values():
            one._check()

    def drain(self) -> None:
        for client in sorted(set(range(1, 5)) - self.online):
            self.come_or_go(client)
        for _ in range(400):
            while self.stage.delivery.deliver(self.stage.clock.now_ms()):
                pass
            busy = False
            for client in range(1, 5):
                self.take(client)
                for packet_id in list(self.inflight[client]):
                    busy = True
                    del self.inflight[client][packet_id]
                    self.stage.turn((client, b"\x40\x02" + packet_id.to_bytes(2, "big")))
            if not busy and not any(self.wanted.values()):
                return

    @rule()
    def everything_comes_in_the_end(self) -> None:
        self.drain()
        assert not any(self.wanted.values()), dict(self.wanted)
        assert not self.stage.delivery._catch_up.elevators


TestCatchUp = CatchUpMachine.TestCase
TestCatchUp.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
