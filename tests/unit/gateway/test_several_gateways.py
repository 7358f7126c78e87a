"""Several gateways as one server: they meet through the log alone, and its order decides."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from motelog.core.errors import MotelogError, StoreError, StoreFullError
from motelog.core.net.reactor_types import CloseReason
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.reckoning import LOST_TICKS, STILL_MS_MAX
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.disconnect import encode_disconnect
from motelog.gateway.mqtt.frames import split_one
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    Connect,
    Properties,
    Subscribe,
    SubscribeEntry,
    Will,
)
from motelog.gateway.mqtt.subscribe import encode_subscribe
from motelog.gateway.state.claims import BEHIND_MS_MAX, TOPICS_MS_MAX, WAIT_MS_MAX
from tests.support.gateway_fleet import HOUR, Fleet
from tests.support.gateway_stage import Stage
from tests.support.mqtt import body_of

TAKEN_OVER = b"\xe0\x01\x8e"
GOODBYE = Will(topic="will/dev", payload=b"gone", qos=1, retain=False)
LATE_GOODBYE = Will(
    topic="will/dev",
    payload=b"gone",
    qos=1,
    retain=False,
    properties=Properties(will_delay_interval_s=5),
)


def subscribe(
    fleet: Fleet, name: str, number: int, topic_filter: str = "t/#", qos: int = 1
) -> None:
    ask_to_subscribe(fleet, name, number, topic_filter, qos)
    take_suback(fleet, name, number)


def ask_to_subscribe(
    fleet: Fleet, name: str, number: int, topic_filter: str = "t/#", qos: int = 1
) -> None:
    entries = (SubscribeEntry(topic_filter, qos),)
    fleet[name].turn((number, encode_subscribe(5, Subscribe(7, entries))))


def take_suback(fleet: Fleet, name: str, number: int) -> None:
    fleet[name].carry()
    [suback] = [p for p in fleet[name].output.sent[number] if p[0] == 0x90]
    fleet[name].output.sent[number].remove(suback)


def frame(topic: str, payload: bytes, qos: int = 1, packet_id: int = 1, dup: int = 0) -> bytes:
    name = topic.encode()
    body = len(name).to_bytes(2, "big") + name
    if qos:
        body += packet_id.to_bytes(2, "big")
    body += b"\0" + payload
    return bytes((0x30 | dup << 3 | qos << 1, len(body))) + body


def publish(fleet: Fleet, name: str, *payloads: bytes, qos: int = 1, topic: str = "t/1") -> None:
    """Publish by a client that is there for as long as that takes."""
    stage = fleet[name]
    fleet.connected(name, 15, f"publisher-{name}", properties=NO_PROPERTIES)
    for packet_id, payload in enumerate(payloads, 1):
        stage.turn((15, frame(topic, payload, qos, packet_id)))
        if qos == 2:
            stage.turn((15, b"\x62\x02" + packet_id.to_bytes(2, "big")))
    stage.turn((15, encode_disconnect(5)))
    stage.sent(15)
    fleet.settle()


def got(stage: Stage, number: int) -> list[tuple[int, int, bytes]]:
    """Return (first byte, packet identifier, payload) of each PUBLISH, or of another packet."""
    found = []
    for packet in stage.packets(number):
        if packet[0] >> 4 == 3:
            _, first_byte, _, payload, packet_id, _ = split_one(packet[0], body_of(packet), 5, 0)
            found.append((first_byte, packet_id, payload))
        else:
            found.append((packet[0], int.from_bytes(packet[2:4], "big"), b""))
    return found


def wills(fleet: Fleet) -> int:
    """Return how many wills have been published."""
    stage = next(iter(fleet.stages.values()))
    return sum(b"gone" in message for message in stage.stored())


def holders(fleet: Fleet, client_id: str = "dev") -> list[str]:
    """Return the gateways at which a client is connected."""
    return [name for name, stage in fleet.stages.items() if stage.sessions.live(client_id)]


def open_claims(fleet: Fleet) -> int:
    counts = {
        stage.view.execute("SELECT count(*) FROM claims").fetchone()[0]
        for stage in fleet.stages.values()
    }
    assert len(counts) == 1, "the views differ"
    return int(counts.pop())


def test_filters_of_a_session_that_was_claimed_are_stored_one_by_one() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    for n in range(20):
        subscribe(fleet, "a", 1, f"t/{n}")
        fleet.settle()
    queue = fleet["a"].log.records[MQTT_SESSION_TOPIC, 0]
    begin = len(queue)
    subscribe(fleet, "a", 1, "u/1")
    assert [b"filters" in record for record in queue[begin:]] == [True]
    fleet.kill("a")
    for _ in range(LOST_TICKS + 2):
        fleet.tick()
    publish(fleet, "b", b"x", topic="u/1")
    assert fleet.connected("b", 2)
    fleet.settle()
    assert [payload for _, _, payload in got(fleet["b"], 2)] == [b"x"]


# --- a client that connects to another gateway -----------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("lasts", [False, True])
def test_client_is_taken_over_by_another_gateway(version: int, lasts: bool) -> None:
    fleet = Fleet("a", "b")
    how: dict[str, Any] = {"version": version, "clean_start": not lasts}
    if not lasts:
        how["properties"] = NO_PROPERTIES
    assert not fleet.connected("a", 1, **how)
    for source, target, number in (("a", "b", 2), ("b", "a", 3)):
        assert fleet.connected(target, number, **how) is (lasts and version > 3)
        assert holders(fleet) == [target]
        old = fleet[source]
        assert old.sent(number - 1) == ([TAKEN_OVER] if version == 5 else [])
        assert old.output.closed == [number - 1]
        assert old.metrics.sessions_taken_over == 1
    assert open_claims(fleet) == 0


def test_sessions_whose_turn_has_come_are_found_with_one_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet("a", "b")
    for number in range(1, 11):
        fleet.connected("a", number, f"dev{number}")
        fleet.lose("a", number)
    fleet.settle()
    looks: list[str] = []
    execute = fleet["b"].view.execute

    def counted(statement: str, values: Sequence[Any] = ()) -> Any:
        if "FROM sessions WHERE client_id =" in statement:
            looks.append(statement)
        return execute(statement, values)

    monkeypatch.setattr(fleet["b"].view, "execute", counted)
    for number in range(1, 11):
        fleet.connect("b", number, f"dev{number}")
    while fleet["b"].read_back(50):
        pass
    assert [fleet["b"].sent(number)[0][2:4] for number in range(1, 11)] == [b"\x01\x00"] * 10
    assert looks == []  # for one session each


def test_sessions_that_end_with_their_connections_take_no_memory_at_other_gateways() -> None:
    fleet = Fleet("a", "b")

    def connect(numbers: range) -> int:
        """Connect clients at one gateway; return what the other keeps of that, in bytes."""
        for number in numbers:
            fleet.connect("a", number % 15, f"idle{number}", properties=NO_PROPERTIES)
            fleet.read_back(fleet["a"])
            assert fleet["a"].sent(number % 15)[0][0] == 0x20
            fleet.lose("a", number % 15)
        tracemalloc.start()
        fleet.read_back(fleet["b"])
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return kept

    connect(range(50))
    assert connect(range(50, 1050)) < 1000 * 30  # a client identifier alone takes more
    assert open_claims(fleet) == 0
    assert fleet["b"].view.execute("SELECT count(*) FROM sessions").fetchone() == (0,)


def test_session_and_what_is_in_flight_move_with_the_client() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    subscribe(fleet, "a", 1)
    publish(fleet, "b", b"one", b"two")
    assert got(fleet["a"], 1) == [(0x32, 1, b"one"), (0x32, 2, b"two")]
    fleet["a"].turn((1, b"\x40\x02\x00\x01"))
    assert fleet.connected("b", 2)
    publish(fleet, "a", b"three")
    assert got(fleet["b"], 2) == [(0x3A, 2, b"two"), (0x32, 3, b"three")]
    fleet["b"].turn((2, b"\x40\x02\x00\x02"), (2, b"\x40\x02\x00\x03"))
    assert fleet.connected("a", 3)
    fleet.settle()
    assert got(fleet["a"], 3) == []


def test_qos_2_message_to_the_client_keeps_its_exchange() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    subscribe(fleet, "a", 1, qos=2)
    publish(fleet, "b", b"one", b"two", b"three", qos=2)
    assert [packet_id for _, packet_id, _ in got(fleet["a"], 1)] == [1, 2, 3]
    fleet["a"].turn((1, b"\x50\x02\x00\x01"), (1, b"\x50\x02\x00\x02"))
    fleet["a"].turn((1, b"\x70\x02\x00\x01"))
    assert fleet.connected("b", 2)
    assert got(fleet["b"], 2) == [(0x62, 2, b""), (0x3C, 3, b"three")]


def test_qos_2_message_from_the_client_is_stored_once() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    fleet["a"].turn((1, frame("t/1", b"once", 2, 9)))
    assert got(fleet["a"], 1) == [(0x50, 9, b"")]
    assert fleet.connected("b", 2)
    fleet["b"].turn((2, frame("t/1", b"once", 2, 9, dup=1)))
    assert got(fleet["b"], 2) == [(0x50, 9, b"")]
    fleet["b"].turn((2, b"\x62\x02\x00\x09"))
    assert got(fleet["b"], 2) == [(0x70, 9, b"")]
    assert len(fleet["a"].stored()) == 1
    assert fleet.connected("a", 3)
    fleet["a"].turn((3, frame("t/1", b"another", 2, 9)))
    assert len(fleet["a"].stored()) == 2


def test_packets_behind_a_connect_that_waits_are_handled_after_it_in_order() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    connect = encode_connect(
        Connect(version=5, clean_start=False, keep_alive_s=60, client_id="dev", properties=HOUR)
    )
    entries = (SubscribeEntry("t/#", 1),)
    fleet["b"].turn(
        (2, connect),
        (2, b"\xc0\x00"),
        (2, encode_subscribe(5, Subscribe(7, entries))),
        (2, frame("t/1", b"mine", 1, 5)),
        opened=[2],
    )
    assert (fleet["b"].sent(2), fleet["b"].output.paused) == ([], {2})
    # What had been read with them comes in the next turn.
    fleet["b"].turn((2, frame("t/1", b"late", 0)))
    assert fleet["b"].sent(2) == []
    fleet.settle()
    kinds = [packet[0] for packet in fleet["b"].packets(2)]
    assert (kinds[0], fleet["b"].output.paused) == (0x20, set())
    assert sorted(kinds[1:]) == [0x30, 0x32, 0x40, 0x90, 0xD0]


def test_clients_of_several_turns_are_claimed_by_one_record() -> None:
    fleet = Fleet("a", "b")
    before = len(fleet.log.records[MQTT_SESSION_TOPIC, 0])
    frames = []
    for number in range(1, 6):
        packet = Connect(version=5, clean_start=True, keep_alive_s=60, client_id=f"c{number}")
        frames.append((number, encode_connect(packet)))
    fleet["a"].turn(*frames[:3], opened=range(1, 4))
    fleet["a"].turn(*frames[3:], opened=range(4, 6))
    assert fleet["a"].wants_to_meet
    fleet.settle()
    assert len(fleet.log.records[MQTT_SESSION_TOPIC, 0]) == before + 1
    assert fleet["a"].metrics.sessions_now == 5


def test_single_gateway_claims_nothing() -> None:
    fleet = Fleet("a")
    before = len(fleet.log.records[MQTT_SESSION_TOPIC, 0])
    fleet.connect("a", 1, properties=NO_PROPERTIES)
    assert [packet[0] for packet in fleet["a"].sent(1)] == [0x20]
    fleet.tick()
    assert len(fleet.log.records[MQTT_SESSION_TOPIC, 0]) == before


# --- races ------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("is_stored", [False, True])
def test_of_two_that_connect_at_the_same_moment_the_later_claim_stays(
    first: str, lasts: bool, is_stored: bool
) -> None:
    fleet = Fleet("a", "b")
    if is_stored:
        fleet.connected("a", 9)
        fleet.lose("a", 9)
        fleet.settle()
    second = "b" if first == "a" else "a"
    how: dict[str, Any] = {} if lasts else {"properties": NO_PROPERTIES, "clean_start": True}
    fleet.connect(first, 1, **how)
    fleet.connect(second, 2, **how)
    fleet.settle()
    assert holders(fleet) == [second]
    assert fleet[first].output.closed[-1] == 1
    assert open_claims(fleet) == 0
    expected = {lasts}
    assert {stage.journal.load("dev") is not None for stage in fleet.stages.values()} == expected


@pytest.mark.parametrize("order", ["aba", "abc", "abab", "cabca"])
def test_many_connects_at_the_same_moment_leave_one(order: str) -> None:
    fleet = Fleet("a", "b", "c")
    for number, name in enumerate(order, 1):
        fleet.connect(name, number)
    fleet.settle()
    assert holders(fleet) == [order[-1]]
    assert open_claims(fleet) == 0
    states = [stage.journal.load("dev") for stage in fleet.stages.values()]
    assert states[0] is not None
    assert states[0].left_ms is None


def test_gateway_that_does_not_know_of_the_other_yet_loses_its_client_to_the_claim() -> None:
    fleet = Fleet("a")
    other = fleet.start("b")
    fleet.connect("a", 1)  # at once, as a has not read that b has started
    assert [packet[0] for packet in fleet["a"].sent(1)] == [0x20]
    assert fleet.connected("b", 2)
    assert holders(fleet) == ["b"]
    fleet.stages = {"b": other, "a": fleet["a"]}
    fleet.connect("b", 3)
    # Both ways: a's record comes behind b's claim.
    fleet.settle()
    assert holders(fleet) == ["b"]


def test_record_without_a_claim_behind_a_claim_is_nothing() -> None:
    fleet = Fleet("a")
    other = fleet.start("b")
    fleet.connect("b", 2)
    fleet.connect("a", 1)  # it has not read that b has started
    fleet.read_back(other)
    assert holders(fleet) == ["a"]  # b waits until a has said that it knows of b
    fleet.settle()
    assert holders(fleet) == ["b"]
    assert open_claims(fleet) == 0
    subscribe(fleet, "b", 2)
    fleet.settle()
    for stage in fleet.stages.values():
        stored = stage.journal.load("dev")
        assert stored is not None
        assert (stored.left_ms, len(stored.filters)) == (None, 1)


def test_client_that_leaves_while_its_connect_waits_keeps_nobody_waiting() -> None:
    fleet = Fleet("a", "b")
    fleet.connect("a", 1)
    fleet.lose("a", 1)
    assert not fleet.connected("b", 2)
    assert open_claims(fleet) == 0
    metrics = fleet["a"].metrics
    assert (metrics.connections_opened, metrics.connections_closed) == (1, 1)


def test_second_connect_here_ends_the_first_that_waits() -> None:
    fleet = Fleet("a", "b")
    fleet.connect("a", 1)
    fleet.connect("a", 2)
    fleet.settle()
    assert fleet["a"].output.closed == [1]
    assert [packet[0] for packet in fleet["a"].sent(2)] == [0x20]
    assert open_claims(fleet) == 0


# --- gateways that end ------------------------------------------------------------------------


def test_gateway_that_stops_hands_its_sessions_over_at_once() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    subscribe(fleet, "a", 1)
    stage = fleet.kill("a")
    stage.clients._run.end_all(0x8B, "the end")
    stage.journal.stop()
    publish(fleet, "b", b"one")
    assert not fleet["b"].journal.others_live
    fleet.connect("b", 2)
    assert [packet[0] for packet in fleet["b"].sent(2)] == [0x20, 0x32]


def test_gateway_that_dies_is_lost_after_some_ticks_and_its_session_goes_on() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    subscribe(fleet, "a", 1)
    fleet.tick()
    fleet.kill("a")
    fleet.connect("b", 2)
    fleet.settle()
    assert fleet["b"].sent(2) == []
    for _ in range(LOST_TICKS):
        assert fleet["b"].journal.others_live
        fleet.tick()
    fleet.tick()
    assert not fleet["b"].journal.others_live
    [connack] = fleet["b"].packets(2)
    assert (connack[0], connack[2], connack[3]) == (0x20, 1, 0)
    publish(fleet, "b", b"one")
    assert got(fleet["b"], 2) == [(0x32, 1, b"one")]


def test_gateway_that_restarts_frees_its_sessions_at_once() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    fleet.kill("a")
    fleet.connect("b", 2)
    fleet.start("a")
    fleet.settle()
    [connack] = fleet["b"].packets(2)
    assert (connack[0], connack[2], connack[3]) == (0x20, 1, 0)
    assert fleet.connected("a", 3)


def test_gateway_that_stands_still_declares_nobody_lost() -> None:
    fleet = Fleet("a", "b")
    fleet.tick()
    for _ in range(3 * LOST_TICKS):  # a's ticks come while b reads nothing back
        fleet.clock.advance(1000)
        fleet["b"].tick()
    fleet.tick("a")
    for _ in range(2 * LOST_TICKS):
        fleet.tick()
    assert all(stage.journal.others_live for stage in fleet.stages.values())
    assert not any(stage.journal.is_over for stage in fleet.stages.values())


def test_gateway_that_was_taken_for_lost_drops_its_clients_and_begins_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1, will=GOODBYE)
    subscribe(fleet, "a", 1)
    still = fleet.kill("a")  # it hangs
    for _ in range(LOST_TICKS + 2):
        fleet.tick()
    assert fleet.connected("b", 2)
    assert wills(fleet) == 1
    fleet.stages["a"] = still
    still.journal.ticked_ms = fleet.clock.monotonic_ms()  # it was cut off: it did not stand still
    still.turn((1, frame("t/1", b"late")))
    fleet.settle()
    assert still.packets(1)[-1] == b"\xe0\x01\x89"
    assert holders(fleet) == ["b"]
    assert got(fleet["b"], 2) == [(0x32, 1, b"late")]
    assert wills(fleet) == 1
    assert "counts this one as lost" in caplog.text
    stored = fleet["b"].journal.load("dev")
    assert stored is not None
    assert stored.left_ms is None
    assert fleet.connected("a", 3)
    assert holders(fleet) == ["a"]


def test_a_tick_that_fails_late_is_made_good_at_once() -> None:
    fleet = Fleet("a", "b")
    log = fleet.log
    log.settles_at_once = False
    fleet.tick("a")
    records = log.records[MQTT_SESSION_TOPIC, 0]
    count = len(records)
    log.settle(error=StoreError("no answer"))
    assert len(records) == count + 1
    log.settle(error=StoreError("no answer"))
    assert len(records) == count + 1  # the next tick is the next attempt


def test_claims_wait_for_no_view_that_is_being_made_again() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    fleet.connect("b", 2)
    fleet["b"].read_back(100)  # it waits for a
    fleet["b"].view.rebuild("for the test")
    fleet.connect("b", 3, "other")
    fleet.settle()
    assert fleet["b"].sent(3)[0][3] == 0x88
    fleet.jump(WAIT_MS_MAX)
    fleet.tick()
    [connack] = [packet for packet in fleet["b"].sent(2) if packet[0] == 0x20]
    assert connack[3] == 0x88  # where its claim lies is not known any more
    assert fleet.connected("b", 4)
    assert holders(fleet) == ["b"]
    assert open_claims(fleet) == 0


def test_gateway_that_has_stood_still_takes_nothing_from_its_clients_any_more() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1, will=GOODBYE)
    fleet.tick()
    still = fleet.kill("a")  # it hangs, with a message in its socket
    for _ in range(LOST_TICKS + 2):
        fleet.tick()
    assert fleet.connected("b", 2)
    fleet["b"].turn((2, frame("t/1", b"once", 2, 9, dup=1)))
    fleet.stages["a"] = still
    still.turn((1, frame("t/1", b"once", 2, 9)))
    assert still.packets(1) == [b"\xe0\x01\x89"]
    fleet.settle()
    assert holders(fleet) == ["b"]
    assert sum(b"once" in message for message in still.stored()) == 1
    assert wills(fleet) == 1
    fleet.tick()
    fleet.tick()
    assert not any(stage.journal.is_over for stage in fleet.stages.values())
    assert fleet.connected("a", 3)


def test_gateway_that_has_stood_still_keeps_its_clients_if_nobody_says_that_it_is_lost() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    subscribe(fleet, "a", 1)
    fleet.tick()
    still = fleet["a"]
    run = still.journal.run
    fleet.clock.advance(STILL_MS_MAX + 1)  # for b too: the machine was busy
    assert still.journal.is_in_doubt()
    assert still.journal.run == 0  # what waits behind marks is given up
    assert still.tick() is False
    assert still.journal.is_in_doubt()
    records = len(fleet.log.records[MQTT_SESSION_TOPIC, 0])
    fleet.read_back(still)
    assert len(fleet.log.records[MQTT_SESSION_TOPIC, 0]) == records  # it asks once
    assert not still.journal.is_in_doubt()
    assert still.journal.run == run
    fleet.tick()
    fleet.tick()
    publish(fleet, "b", b"after")
    assert [payload for _, _, payload in got(still, 1)] == [b"after"]
    assert holders(fleet) == ["a"]


def test_turn_that_takes_a_while_may_end_when_the_gateway_has_not_asked_before_it() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    fleet.tick()
    late = fleet["a"]
    late_ms = 0
    while not late.journal.is_in_doubt():
        fleet.clock.advance(100)
        late_ms += 100
    assert late_ms > 2_000  # a second's tick may be late
    # A turn began 100 ms ago, and ends somewhat later.
    fleet.clock.advance(800)
    late.clients.check_life()
    assert holders(fleet) == ["a"]
    fleet.settle()
    assert not late.journal.is_in_doubt()


def test_gateway_that_is_lost_while_it_asks_drops_its_clients() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    fleet.tick()
    still = fleet.kill("a")
    for _ in range(LOST_TICKS + 2):
        fleet.tick()
    assert still.journal.is_in_doubt()
    assert fleet.connected("b", 2)
    fleet.stages["a"] = still
    assert still.packets(1) == []
    fleet.settle()
    assert still.packets(1) == [b"\xe0\x01\x89"]
    assert holders(fleet) == ["b"]
    assert not still.journal.is_in_doubt()


def test_gateway_asks_again_if_the_log_refuses_the_question() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    fleet.tick()
    still = fleet["a"]
    fleet.clock.advance(STILL_MS_MAX + 1)
    fleet.log.error = StoreFullError("full")
    assert still.journal.is_in_doubt()
    fleet.read_back(still)
    assert still.journal.is_in_doubt()
    fleet.log.error = None
    assert still.journal.is_in_doubt()
    fleet.read_back(still)
    assert not still.journal.is_in_doubt()
    assert holders(fleet) == ["a"]


def test_gateway_that_stands_still_again_and_again_keeps_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    still = fleet["a"]
    for _ in range(3):  # each time before it has read back that it began again
        fleet.clock.advance(STILL_MS_MAX + 1)
        still.clients.check_life()
    assert "gateway.name must differ" not in caplog.text
    fleet.tick()
    fleet.tick()
    assert fleet.connected("a", 2)
    assert holders(fleet) == ["a"]


def test_client_comes_back_when_the_topics_of_its_session_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    subscribe(fleet, "a", 1)
    publish(fleet, "a", b"one")
    fleet.tick()
    find, unknown = fleet.log.find_queue, {"t"}  # b has not found the topic yet
    monkeypatch.setattr(
        fleet.log, "find_queue", lambda name: None if unknown & {name[:1]} else find(name)
    )
    monkeypatch.setattr(fleet["b"].delivery._queues, "_numbers", {})
    fleet.connect("b", 2)
    fleet.tick()
    assert fleet["b"].packets(2) == []
    unknown.clear()
    fleet.tick()
    assert [packet[0] for packet in fleet["b"].packets(2)] == [0x20, 0x3A]


@pytest.mark.parametrize("comes_late", [False, True])
def test_client_waits_for_a_qos_2_message_that_may_be_on_its_way(
    comes_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    publish(fleet, "b", b"zero")
    monkeypatch.setattr(fleet.log, "append_ms_max", (LOST_TICKS + 3) * 1000)
    append, on_its_way = fleet.log.append, []

    def dies_after_the_mark(messages: list[Any]) -> Any:
        on_its_way.extend(messages[1:])
        return append(messages[:1])

    monkeypatch.setattr(fleet.log, "append", dies_after_the_mark)
    fleet["a"].turn((1, frame("t/1", b"one", 2, 5)))
    monkeypatch.setattr(fleet.log, "append", append)
    taken_ms = fleet.clock.now_ms()
    fleet.kill("a")
    fleet.connect("b", 2)
    for _ in range(LOST_TICKS + 1):
        fleet.tick()
    assert fleet["b"].packets(2) == []
    if comes_late:
        append(on_its_way)
    while not (packets := fleet["b"].packets(2)):
        fleet.tick()
    assert packets[0][0] == 0x20
    waited_ms = fleet.clock.now_ms() - taken_ms
    assert (waited_ms >= fleet.log.append_ms_max) is not comes_late
    fleet["b"].turn((2, frame("t/1", b"one", 2, 5, dup=1)))
    assert fleet["b"].sent(2) == [b"\x50\x02\x00\x05"]
    assert [record[13] for record in fleet["b"].stored()] == [b"zero", b"one"]


def test_topics_that_are_not_found_keep_a_client_waiting_for_seconds_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    monkeypatch.setattr(fleet["b"].delivery, "knows_queues", lambda _: False)
    fleet.connect("b", 2)
    for _ in range(TOPICS_MS_MAX // 1000 - 1):
        fleet.tick()
        assert fleet["b"].packets(2) == []
    fleet.tick()
    assert fleet["b"].packets(2)[0][0] == 0x20


def test_will_of_a_passing_session_is_published_by_the_gateway_that_was_taken_for_lost() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1, will=GOODBYE, properties=NO_PROPERTIES, clean_start=True)
    still = fleet.kill("a")
    for _ in range(LOST_TICKS + 2):
        fleet.tick()
    assert wills(fleet) == 0
    fleet.stages["a"] = still
    fleet.settle()
    assert wills(fleet) == 1


def test_two_gateways_of_one_name_do_not_end_each_other_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = Fleet("a")
    fleet.connected("a", 1)
    first = fleet["a"]
    second = Stage(log=fleet.log, name="a", clock=fleet.clock)
    fleet.stages["other"] = second
    for _ in range(3):
        fleet.tick()
    assert "gateway.name must differ" in caplog.text
    assert all(s.journal.others_live for s in (first, second))
    runs = [stage.journal._run for stage in (first, second)]
    for _ in range(3):
        fleet.tick()
    assert [stage.journal._run for stage in (first, second)] == runs
    assert fleet.connected("other", 2)
    assert fleet.connected("a", 3)


def test_answers_to_a_client_that_has_gone_are_not_sent_to_one_that_is_parked() -> None:
    fleet = Fleet("a", "b", config=GatewayConfig(receive_maximum=1))
    fleet.connected("a", 1)
    stage = fleet["a"]
    stage.turn((1, frame("t/1", b"one", 2, 1)))
    stage.sent(1)
    fleet.log.settles_at_once = False
    # PUBREL, and more than Receive Maximum behind it: the client is disconnected.
    stage.turn(
        (1, b"\x62\x02\x00\x01"), (1, frame("t/1", b"2", 2, 2)), (1, frame("t/1", b"3", 2, 3))
    )
    stage.sent(1)
    fleet.connect("a", 1, "other")
    fleet.log.settle()
    assert stage.sent(1) == []


def test_connect_that_waits_too_long_is_refused() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    still = fleet.kill("a")
    fleet.connect("b", 2)
    fleet.connect("b", 3, version=4)
    fleet.connect("b", 4, "other", version=4)
    fleet.settle()
    for _ in range(WAIT_MS_MAX // 1000):  # a is there, but does not read
        fleet.clock.advance(1000)
        still.tick()
        fleet["b"].tick()
        fleet.settle()
    assert fleet["b"].sent(2) == []  # taken over by the next
    assert fleet["b"].sent(3) == [b"\x20\x02\x00\x03"]
    assert [packet[0] for packet in fleet["b"].sent(4)] == [0x20]
    assert fleet["b"].output.closed == [2, 3]
    fleet.stages["a"] = still
    fleet.settle()
    assert open_claims(fleet) == 0


def test_connect_whose_claim_the_log_refuses_is_refused() -> None:
    fleet = Fleet("a", "b")
    fleet.log.error = StoreFullError("full")
    fleet.connect("a", 1, version=4)
    assert fleet["a"].sent(1) == [b"\x20\x02\x00\x03"]
    fleet.log.error = None
    fleet.tick()
    assert not fleet.connected("a", 2)
    assert open_claims(fleet) == 0


def test_session_whose_record_was_refused_does_not_keep_others_waiting() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    fleet.log.error = StoreFullError("full")
    fleet.lose("a", 1)
    fleet.log.error = None
    assert fleet.connected("b", 2)


# --- what is due ------------------------------------------------------------------------------


def test_will_is_published_once_when_its_client_moves_on() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1, will=GOODBYE)
    fleet.connected("b", 2, will=GOODBYE)
    assert wills(fleet) == 1
    fleet.lose("b", 2)
    fleet.settle()
    assert wills(fleet) == 2


def test_delayed_will_is_not_published_when_its_client_comes_back_elsewhere() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1, will=LATE_GOODBYE)
    fleet.lose("a", 1)
    fleet.tick()
    fleet.connected("b", 2)
    for _ in range(7):
        fleet.tick()
    assert wills(fleet) == 0


def test_delayed_will_and_expiry_are_done_by_one_of_the_gateways() -> None:
    fleet = Fleet("a", "b", "c")
    fleet.connected("b", 1, will=LATE_GOODBYE, properties=Properties(session_expiry_interval_s=8))
    fleet.lose("b", 1)
    for _ in range(7):
        fleet.tick()
    assert wills(fleet) == 1
    assert all(stage.journal.load("dev") is not None for stage in fleet.stages.values())
    for _ in range(4):
        fleet.tick()
    assert wills(fleet) == 1
    assert all(stage.journal.load("dev") is None for stage in fleet.stages.values())
    assert sum(stage.metrics.sessions_expired for stage in fleet.stages.values()) == 1
    assert open_claims(fleet) == 0


@pytest.mark.parametrize("is_claimed_first", [False, True])
def test_will_that_is_due_while_its_client_comes_back_is_published_once(
    is_claimed_first: bool,
) -> None:
    fleet = Fleet("a", "b")
    fleet.connected("b", 1, will=LATE_GOODBYE)
    fleet.lose("b", 1)
    fleet.settle()
    fleet.jump(5000)
    fleet.log.now_ms = fleet.clock.now_ms()
    if is_claimed_first:
        fleet["a"].tick()
        fleet.connect("b", 2)
    else:
        fleet.connect("b", 2)
        fleet["a"].tick()
    fleet.settle()
    assert [packet[0] for packet in fleet["b"].sent(2)] == [0x20]
    assert wills(fleet) == 1
    assert open_claims(fleet) == 0
    stored = fleet["a"].journal.load("dev")
    assert stored is not None
    assert stored.left_ms is None


def test_many_that_are_due_do_not_wait_for_ticks() -> None:
    fleet = Fleet("a", "b")
    for number in range(250):
        session = Connect(
            version=5,
            clean_start=True,
            keep_alive_s=60,
            client_id=f"d{number}",
            properties=Properties(session_expiry_interval_s=2),
        )
        fleet["b"].turn((1, encode_connect(session)), opened=[1])
        fleet.settle()
        fleet["b"].turn(closed=[(1, CloseReason.PEER)])
    for _ in range(4):
        fleet.tick()
    assert fleet["a"].journal.count() == 0


def test_will_of_a_client_whose_gateway_died_is_published_once() -> None:
    fleet = Fleet("a", "b", "c")
    fleet.connected("a", 1, will=GOODBYE)
    fleet.kill("a")
    for _ in range(LOST_TICKS + 3):
        fleet.tick()
    assert wills(fleet) == 1


def test_only_the_first_gateway_repeats_old_records_of_sessions_that_are_away() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("b", 1, "away")
    fleet.lose("b", 1)
    fleet.connected("b", 2, "here")
    fleet.settle()
    fleet.clock.advance(1000)
    now_ms = fleet.clock.now_ms()
    counts = [fleet[name].journal.rewrite_older(now_ms, 10) for name in "ab"]
    assert counts == [1, 1]
    fleet.settle()
    assert holders(fleet, "here") == ["b"]
    assert fleet.connected("a", 3, "here")


# --- the operator -----------------------------------------------------------------------------


def test_operator_ends_a_session_that_is_connected_to_another_gateway() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1, will=GOODBYE)
    done: list[MotelogError | None] = []
    assert fleet["b"].operator.end_session("dev", done.append)
    assert done == []
    fleet.settle()
    assert done == [None]
    assert fleet["a"].sent(1) == [TAKEN_OVER]
    assert wills(fleet) == 1
    assert [stage.journal.load("dev") for stage in fleet.stages.values()] == [None, None]
    assert open_claims(fleet) == 0
    assert not fleet["b"].operator.end_session("dev", done.append)


# --- retained messages ------------------------------------------------------------------------


def retain(fleet: Fleet, name: str, payload: bytes) -> None:
    fleet.connected(name, 15, "publisher", properties=NO_PROPERTIES, clean_start=True)
    fleet[name].turn((15, bytes((frame("t/1", payload)[0] | 1,)) + frame("t/1", payload)[1:]))
    assert fleet[name].packets(15)[-1][0] == 0x40
    fleet[name].turn((15, encode_disconnect(5)))


@pytest.mark.parametrize("qos", [1, 2])
def test_session_goes_on_at_a_gateway_whose_live_path_is_behind(qos: int) -> None:
    fleet = Fleet("a", "b")
    fleet.connected("b", 5, "watches", properties=NO_PROPERTIES)
    subscribe(fleet, "b", 5)
    fleet.connected("a", 1)
    subscribe(fleet, "a", 1, qos=qos)
    behind = fleet.stages.pop("b")
    publish(fleet, "a", b"x", qos=qos)
    [(_, packet_id, payload)] = got(fleet["a"], 1)
    assert payload == b"x"
    for first_byte in (b"\x40",) if qos == 1 else (b"\x50", b"\x70"):
        fleet["a"].turn((1, first_byte + b"\x02" + packet_id.to_bytes(2, "big")))
    fleet["a"].turn((1, encode_disconnect(5)))
    fleet.settle()
    fleet.stages["b"] = behind
    fleet.log.cold = {0}
    assert fleet.connected("b", 1)
    fleet.log.paged_in()
    publish(fleet, "a", b"y", qos=qos)
    assert [payload for _, _, payload in got(behind, 1)] == [b"y"]


@pytest.mark.parametrize("lasts", [False, True])
def test_subscription_gets_what_another_gateway_has_just_retained(lasts: bool) -> None:
    fleet = Fleet("a", "b")
    how: dict[str, Any] = {} if lasts else {"properties": NO_PROPERTIES}
    fleet.connected("a", 1, **how)
    retain(fleet, "b", b"old")
    retain(fleet, "b", b"new")
    subscribe(fleet, "a", 1)
    fleet.settle()
    assert got(fleet["a"], 1) == [(0x33, 1, b"new")]


def test_replay_waits_until_the_log_has_said_how_far_it_is_and_the_view_is_there() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    fleet.log.knows_tails = False
    ask_to_subscribe(fleet, "a", 1)
    fleet.log.tell_tails()  # of the queues that the filter needs
    take_suback(fleet, "a", 1)
    fleet.log.cold = {0}
    retain(fleet, "b", b"kept")
    fleet.settle()
    assert got(fleet["a"], 1) == []
    fleet.log.tell_tails()
    fleet["a"].delivery.deliver(fleet.clock.now_ms())
    assert got(fleet["a"], 1) == []
    fleet.log.paged_in()
    fleet.settle()
    assert [payload for _, _, payload in got(fleet["a"], 1)] == [b"kept"]


def test_replay_goes_on_at_another_gateway() -> None:
    fleet = Fleet("a", "b", config=GatewayConfig(inflight_max=1))
    fleet.connected("a", 1)
    for number in range(4):
        fleet.connected("b", 15, "publisher", properties=NO_PROPERTIES, clean_start=True)
        packet = frame(f"t/{number}", b"%d" % number)
        fleet["b"].turn((15, bytes((packet[0] | 1,)) + packet[1:]))
        fleet["b"].turn((15, encode_disconnect(5)))
    subscribe(fleet, "a", 1)
    fleet.settle()
    [(_, packet_id, _)] = got(fleet["a"], 1)
    fleet["a"].turn((1, b"\x40\x02" + packet_id.to_bytes(2, "big")))
    fleet.settle()
    assert fleet.connected("b", 2)
    payloads = []
    for _ in range(4):
        fleet.settle()
        for _, packet_id, payload in got(fleet["b"], 2):
            payloads.append(payload)
            fleet["b"].turn((2, b"\x40\x02" + packet_id.to_bytes(2, "big")))
    assert payloads == [b"1", b"2", b"3"]


def test_of_rivals_for_a_client_identifier_somebody_always_gets_in() -> None:
    fleet = Fleet("a", "b", connections_max=256)
    answered: set[tuple[str, int]] = set()
    for number in range(1, 101):
        # A rival comes between each append and what is read back of it.
        here, elsewhere = ("a", "b") if number % 2 else ("b", "a")
        fleet.connect(here, number)
        fleet[elsewhere].read_back(1000)
        for name in ("a", "b"):
            sent = fleet[name].output.sent
            answered |= {(name, one) for one, packets in sent.items() if packets}
    assert len(answered) >= 25
    for name in ("a", "b"):
        # One whose turn comes, and the newest behind it.
        assert len(fleet[name].clients._parking._by_number) <= 2
    fleet.settle()
    assert not fleet["a"].clients._parking._by_number
    assert not fleet["b"].clients._parking._by_number
    # The last of all has it.
    assert fleet["b"].output.sent[100][0][0] == 0x20
    assert fleet["b"].connections[100] is not None


def test_a_connect_that_waits_behind_another_may_go_and_be_overtaken() -> None:
    fleet = Fleet("a", "b", connections_max=256)
    fleet.connect("a", 1)
    fleet.connect("a", 2)
    fleet.connect("a", 3)  # 2 has waited for nothing
    assert fleet["a"].output.closed == [2]
    fleet.lose("a", 3)
    fleet.connect("a", 4)
    fleet.lose("a", 1)  # whose turn it was
    fleet.settle()
    assert [number for number, sent in fleet["a"].output.sent.items() if sent] == [4]
    assert fleet["a"].connections[4] is not None
    assert fleet.connected("b", 1)
    assert fleet["a"].connections[4] is None


def test_a_connect_does_not_wait_for_long_behind_one_whose_turn_does_not_come() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("a", 1)
    still = fleet.kill("a")
    fleet.connect("b", 2)
    fleet.connect("b", 3)
    fleet.clock.advance(BEHIND_MS_MAX - 1)
    fleet["b"].tick()
    assert fleet["b"].output.closed == []
    fleet.clock.advance(1)
    fleet["b"].tick()
    assert fleet["b"].output.closed == [2]
    fleet.stages["a"] = still
    fleet.settle()
    assert fleet["b"].sent(3)[0][0] == 0x20
