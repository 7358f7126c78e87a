"""A shared subscription is one group over all gateways of a log: they divide its queues."""

from __future__ import annotations

from itertools import chain

import pytest

from motelog.core.errors import StoreFullError
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.log.reckoning import LOST_TICKS
from motelog.gateway.mqtt.packet_types import NO_PROPERTIES, Subscribe, SubscribeEntry, Unsubscribe
from motelog.gateway.mqtt.subscribe import encode_subscribe, encode_unsubscribe
from motelog.gateway.sessions.groups import PARTS, part_name
from motelog.gateway.state.claims import WAIT_MS_MAX
from tests.support.gateway_fleet import Fleet
from tests.unit.gateway.test_several_gateways import (
    frame,
    got,
    holders,
    open_claims,
    subscribe,
)
from tests.unit.gateway.test_several_gateways import publish as publish_under

GROUP = "$share/g/t/#"
#: A topic name whose queue is of part 0: that of the gateway which has had a member for longest.
FIRST = "t/4"
#: One topic name for each part, in their order.
TOPICS = [f"t/{level}" for level in (4, 0, 7, 3, 6, 2, 5, 1)]


def member(fleet: Fleet, name: str, number: int, *, qos: int = 1, lasts: bool = False) -> None:
    """Connect a client to a gateway and make it a member of the group."""
    if lasts:
        fleet.connected(name, number, f"m{number}")
    else:
        fleet.connected(name, number, f"m{number}", properties=NO_PROPERTIES, clean_start=True)
    subscribe(fleet, name, number, GROUP, qos)
    fleet.settle()


def take(fleet: Fleet, name: str, number: int, *, acks: bool = True) -> list[bytes]:
    """Return the payloads that a client has got; acknowledge them, until no more come."""
    payloads: list[bytes] = []
    while packets := got(fleet[name], number):
        for first_byte, packet_id, payload in packets:
            identifier = packet_id.to_bytes(2, "big")
            kind = first_byte & 0xF6
            if kind in (0x32, 0x34):
                payloads.append(payload)
            if acks and kind in (0x32, 0x34, 0x62):
                answer = {0x32: b"\x40", 0x34: b"\x50", 0x62: b"\x70"}[kind]
                fleet[name].turn((number, answer + b"\x02" + identifier))
        fleet.settle()
    return payloads


def publish(fleet: Fleet, name: str, *payloads: bytes, qos: int = 1, topic: str = FIRST) -> None:
    publish_under(fleet, name, *payloads, qos=qos, topic=topic)


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def lost(fleet: Fleet) -> None:
    """Let so much time pass that a gateway which has been killed is lost."""
    for _ in range(LOST_TICKS + 2):
        fleet.tick()


def group_rows(fleet: Fleet) -> list[bool]:
    """Return for each gateway whether it knows all parts of the group; it knows all or none."""
    found = []
    for stage in fleet.stages.values():
        stored = [stage.journal.load(part_name(GROUP, n)) is not None for n in range(PARTS)]
        assert len(set(stored)) == 1
        found.append(stored[0])
    return found


# --- who gets what ----------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("lasts", [False, True])
def test_each_message_goes_to_one_member_of_all_gateways(qos: int, lasts: bool) -> None:
    fleet = Fleet("a", "b", "c")
    for number, name in enumerate("abca", 1):
        member(fleet, name, number, qos=qos, lasts=lasts)
    publish(fleet, "a", *bodies(4), qos=qos)
    publish(fleet, "b", *bodies(4, 4), qos=qos)
    fleet.tick()
    each = [take(fleet, name, number) for number, name in enumerate("abca", 1)]
    assert sorted(chain.from_iterable(each)) == bodies(8)
    assert [len(one) for one in each] == [4, 0, 0, 4]
    assert all(group_rows(fleet))


def test_two_groups_of_one_filter_are_held_by_different_gateways() -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1)
    fleet.connected("b", 2, "m2", properties=NO_PROPERTIES)
    subscribe(fleet, "b", 2, "$share/other/t/#")
    fleet.settle()
    publish(fleet, "a", *bodies(3))
    assert take(fleet, "a", 1) == take(fleet, "b", 2) == bodies(3)


def test_message_behind_the_suback_reaches_a_group_whose_turn_has_not_come() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("b", 2, "m2")
    publish(fleet, "a", b"before")
    subscribe(fleet, "b", 2, GROUP)
    stage = fleet["b"]
    stage.turn((2, frame(FIRST, b"behind")))
    assert got(stage, 2) == [(0x40, 1, b"")]
    fleet.settle()
    publish(fleet, "a", b"later")
    assert take(fleet, "b", 2) == [b"behind", b"later"]


def test_gateway_that_dies_before_its_turn_has_promised_what_is_behind_the_suback() -> None:
    fleet = Fleet("a", "b")
    publish(fleet, "a", b"before")
    fleet.connected("b", 2, "m2")
    subscribe(fleet, "b", 2, GROUP)
    fleet["b"].turn((2, frame(FIRST, b"behind")))
    fleet.kill("b")
    lost(fleet)
    fleet.connected("a", 2, "m2")
    fleet.settle()
    publish(fleet, "a", b"later")
    assert take(fleet, "a", 2) == [b"behind", b"later"]


def test_queue_that_is_younger_than_the_first_member_is_the_groups_from_its_begin_on() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("b", 2, "m2")
    subscribe(fleet, "b", 2, GROUP)
    fleet.lose("b", 2)  # before its turn
    publish(fleet, "a", b"in a new topic")
    fleet.connected("b", 3, "m3")
    subscribe(fleet, "b", 3, GROUP)
    fleet.settle()
    assert take(fleet, "b", 3) == [b"in a new topic"]


# --- parts ------------------------------------------------------------------------------------


def publish_everywhere(fleet: Fleet, name: str, text: bytes, *, qos: int = 1) -> None:
    """Publish one message for each part, with its number."""
    for number, topic in enumerate(TOPICS):
        publish(fleet, name, b"%b %d" % (text, number), qos=qos, topic=topic)


def numbered(text: bytes, *numbers: int) -> list[bytes]:
    return [b"%b %d" % (text, number) for number in numbers]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("lasts", [False, True])
def test_gateways_with_members_divide_the_queues(qos: int, lasts: bool) -> None:
    fleet = Fleet("a", "b", "c")
    member(fleet, "a", 1, qos=qos, lasts=lasts)
    publish_everywhere(fleet, "a", b"alone", qos=qos)
    assert take(fleet, "a", 1) == numbered(b"alone", *range(PARTS))
    member(fleet, "b", 2, qos=qos, lasts=lasts)
    publish_everywhere(fleet, "b", b"two", qos=qos)
    assert take(fleet, "a", 1) == numbered(b"two", 0, 2, 4, 6)
    assert take(fleet, "b", 2) == numbered(b"two", 1, 3, 5, 7)
    member(fleet, "c", 3, qos=qos, lasts=lasts)
    publish_everywhere(fleet, "c", b"three", qos=qos)
    assert take(fleet, "a", 1) == numbered(b"three", 0, 3, 6)
    assert take(fleet, "b", 2) == numbered(b"three", 1, 4, 7)
    assert take(fleet, "c", 3) == numbered(b"three", 2, 5)
    fleet.lose("a", 1)
    publish_everywhere(fleet, "c", b"left", qos=qos)
    assert take(fleet, "b", 2) == numbered(b"left", 0, 2, 4, 6)
    assert take(fleet, "c", 3) == numbered(b"left", 1, 3, 5, 7)


def test_gateway_that_started_after_the_group_gets_its_share() -> None:
    fleet = Fleet("a")
    member(fleet, "a", 1)
    fleet.start("b")
    fleet.settle()
    fleet.tick()
    member(fleet, "b", 2)
    publish_everywhere(fleet, "a", b"m")
    assert take(fleet, "b", 2) == numbered(b"m", 1, 3, 5, 7)
    assert take(fleet, "a", 1) == numbered(b"m", 0, 2, 4, 6)


@pytest.mark.parametrize("dies", [False, True])
def test_messages_in_flight_stay_when_their_part_goes_and_are_not_lost_with_their_gateway(
    dies: bool,
) -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1)
    publish_everywhere(fleet, "a", b"early")
    assert len(take(fleet, "a", 1, acks=False)) == PARTS
    member(fleet, "b", 2)
    publish_everywhere(fleet, "a", b"late")
    assert take(fleet, "b", 2) == numbered(b"late", 1, 3, 5, 7)
    if dies:
        fleet.kill("a")
        lost(fleet)
    else:
        assert take(fleet, "a", 1, acks=False) == numbered(b"late", 0, 2, 4, 6)
        fleet.lose("a", 1)
    fleet.settle()
    again = [*numbered(b"early", *range(PARTS)), *numbered(b"late", 0, 2, 4, 6)]
    assert sorted(take(fleet, "b", 2)) == again


def test_what_was_acknowledged_after_its_part_went_does_not_come_again() -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1)
    publish_everywhere(fleet, "a", b"early")
    packets = got(fleet["a"], 1)
    member(fleet, "b", 2)
    for _, packet_id, _ in packets[:6]:
        fleet["a"].turn((1, b"\x40\x02" + packet_id.to_bytes(2, "big")))
    fleet.tick()
    fleet.kill("a")
    lost(fleet)
    assert sorted(take(fleet, "b", 2)) == [payload for _, _, payload in packets[6:]]


def test_last_part_stays_until_another_one_can_tell_of_what_is_in_flight() -> None:
    fleet = Fleet(*"abcdefghi")
    for number, name in enumerate("abcdefgh", 1):
        member(fleet, name, number)
    publish_everywhere(fleet, "i", b"in flight")
    for number, name in enumerate("abcdefgh", 1):
        assert take(fleet, name, number, acks=False) == numbered(b"in flight", number - 1)
    fleet.lose("a", 1)
    fleet.settle()
    for _ in range(PARTS + 1):
        fleet.tick()
    assert take(fleet, "b", 2, acks=False) == numbered(b"in flight", 0)
    fleet.kill("d")
    lost(fleet)
    publish_everywhere(fleet, "i", b"later")
    found = [take(fleet, name, n) for n, name in enumerate("abcdefgh", 1) if name in "bcefgh"]
    assert all(found)
    again = numbered(b"in flight", 3)
    assert sorted(chain.from_iterable(found)) == [*again, *numbered(b"later", *range(PARTS))]


def test_part_whose_last_record_is_refused_is_left_with_the_next_tick() -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1)
    fleet.connected("b", 2, "m2", properties=NO_PROPERTIES)
    subscribe(fleet, "b", 2, GROUP)
    fleet.read_back(fleet["b"])
    fleet.log.error = StoreFullError("full")
    fleet.read_back(fleet["a"])
    fleet.log.error = None
    fleet.settle()
    publish_everywhere(fleet, "b", b"m")
    assert take(fleet, "b", 2) == []
    fleet.tick()
    assert take(fleet, "b", 2) == numbered(b"m", 1, 3, 5, 7)
    assert take(fleet, "a", 1) == numbered(b"m", 0, 2, 4, 6)


# --- gateways that join and leave ---------------------------------------------------------------


@pytest.mark.parametrize("how", ["unsubscribes", "leaves", "stops"])
@pytest.mark.parametrize("lasts", [False, True])
def test_group_goes_on_at_the_next_gateway_exactly(how: str, lasts: bool) -> None:
    fleet = Fleet("a", "b", "c")
    for number, name in enumerate("abc", 1):
        member(fleet, name, number, lasts=lasts)
    publish(fleet, "c", *bodies(4))
    assert take(fleet, "a", 1) == bodies(4)
    publish(fleet, "c", b"in flight")
    assert take(fleet, "a", 1, acks=False) == [b"in flight"]
    if how == "unsubscribes":
        fleet["a"].turn((1, encode_unsubscribe(5, Unsubscribe(8, (GROUP,)))))
    elif how == "leaves":
        fleet.lose("a", 1)
    else:
        stage = fleet.kill("a")
        stage.clients._run.end_all(0x8B, "the end")
        stage.journal.stop()
    fleet["b"].turn((2, frame(FIRST, b"between")))
    fleet.settle()
    assert take(fleet, "b", 2) == [b"in flight", b"between"]
    publish(fleet, "c", *bodies(3, 5))
    assert take(fleet, "b", 2) == bodies(3, 5)
    assert take(fleet, "c", 3) == []
    fleet.lose("b", 2)
    publish(fleet, "c", b"to the third")
    assert take(fleet, "c", 3) == [b"to the third"]


@pytest.mark.parametrize("lasts", [False, True])
def test_gateway_that_starts_finds_what_another_has_served_alone(lasts: bool) -> None:
    fleet = Fleet("a")
    member(fleet, "a", 1, lasts=lasts)
    publish(fleet, "a", *bodies(2))
    assert take(fleet, "a", 1, acks=False) == bodies(2)
    fleet.start("b")
    fleet.settle()
    member(fleet, "b", 2, lasts=lasts)
    publish(fleet, "b", *bodies(2, 2))
    assert take(fleet, "b", 2) == []
    assert take(fleet, "a", 1) == bodies(2, 2)
    fleet.lose("a", 1)
    publish(fleet, "b", *bodies(2, 4))
    assert take(fleet, "b", 2) == [*bodies(2), *bodies(2, 4)]


def test_what_was_acknowledged_after_another_gateway_started_does_not_come_again() -> None:
    fleet = Fleet("a")
    member(fleet, "a", 1)
    publish(fleet, "a", *bodies(3))
    packets = got(fleet["a"], 1)
    fleet.start("b")
    fleet.settle()
    for _, packet_id, _ in packets[:2]:
        fleet["a"].turn((1, b"\x40\x02" + packet_id.to_bytes(2, "big")))
    fleet.tick()
    fleet.kill("a")
    member(fleet, "b", 2)
    lost(fleet)
    assert take(fleet, "b", 2) == bodies(1, 2)


def test_gateway_that_starts_lets_nobody_in_before_it_knows_what_is_served() -> None:
    fleet = Fleet("a")
    member(fleet, "a", 1)
    b = fleet.start("b")
    fleet.connect("b", 2, "m2", properties=NO_PROPERTIES)
    fleet.read_back(b)
    assert b.sent(2) == []
    fleet.log.error = StoreFullError("full")
    fleet.read_back(fleet["a"])
    fleet.log.error = None
    fleet.settle()
    assert [packet[0] for packet in b.sent(2)] == [0x20]
    subscribe(fleet, "b", 2, GROUP)
    fleet.settle()
    b.turn((2, frame(FIRST, b"one")))
    fleet.settle()
    assert (take(fleet, "b", 2), take(fleet, "a", 1)) == ([], [b"one"])


def test_gateway_that_stands_by_and_leaves_keeps_nobody_waiting() -> None:
    fleet = Fleet("a", "b", "c")
    for number, name in enumerate("abc", 1):
        member(fleet, name, number)
    assert open_claims(fleet) == 3  # that there are members
    fleet.lose("b", 2)
    fleet.settle()
    assert open_claims(fleet) == 2
    fleet.lose("a", 1)
    publish(fleet, "b", b"one")
    assert take(fleet, "c", 3) == [b"one"]
    assert open_claims(fleet) == 1


# --- gateways that die --------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("lasts", [False, True])
def test_what_a_gateway_had_when_it_died_is_handed_out_by_another(
    restarts: bool, lasts: bool
) -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1, lasts=lasts)
    member(fleet, "b", 2, lasts=lasts)
    publish(fleet, "b", b"done")
    assert take(fleet, "a", 1) == [b"done"]
    publish(fleet, "b", b"in flight")
    fleet.tick()
    publish(fleet, "b", b"not told")
    fleet.kill("a")
    publish(fleet, "b", b"later")
    if restarts:
        fleet.start("a")
        fleet.settle()
    else:
        lost(fleet)
    assert take(fleet, "b", 2) == [b"in flight", b"not told", b"later"]


def test_qos_2_message_is_never_sent_to_a_second_member() -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1, qos=2, lasts=True)
    member(fleet, "b", 2, qos=2, lasts=True)
    publish(fleet, "b", *bodies(3), qos=2)
    assert take(fleet, "a", 1, acks=False) == bodies(3)
    fleet.kill("a")
    publish(fleet, "b", b"later", qos=2)
    lost(fleet)
    assert take(fleet, "b", 2) == [b"later"]
    fleet.connected("b", 1, "m1")
    assert sorted(take(fleet, "b", 1)) == bodies(3)


def test_gateway_that_was_taken_for_lost_stands_by_when_it_goes_on() -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1)
    member(fleet, "b", 2)
    still = fleet.kill("a")  # it hangs
    lost(fleet)
    publish(fleet, "b", b"one")
    fleet.stages["a"] = still
    fleet.settle()
    fleet["a"].sent(1)
    member(fleet, "a", 3)
    publish(fleet, "a", b"two")
    assert take(fleet, "b", 2) == [b"one", b"two"]
    assert take(fleet, "a", 3) == []
    fleet.lose("b", 2)
    publish(fleet, "a", b"three")
    assert take(fleet, "a", 3) == [b"three"]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_group_that_stands_by_is_found_again_when_the_view_is_made_anew(is_deleted: bool) -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1)
    member(fleet, "b", 2)
    if is_deleted:  # by retention, with the claims
        key = MQTT_SESSION_TOPIC, 0
        fleet.log.begin_offsets[key] = len(fleet.log.records[key])
    fleet["b"].view.rebuild("for the test")
    publish(fleet, "a", b"one")
    fleet.lose("a", 1)
    while fleet["b"].read_back(1):
        pass
    fleet.settle()
    for _ in range(WAIT_MS_MAX // 1000 + 1):
        fleet.tick()
    assert take(fleet, "b", 2) == [b"one"]


def test_group_whose_record_is_refused_is_tried_again() -> None:
    fleet = Fleet("a", "b")
    fleet.connected("b", 2, "m2", properties=NO_PROPERTIES)
    subscribe(fleet, "b", 2, GROUP)
    fleet.log.error = StoreFullError("full")
    fleet.settle()
    fleet.log.error = None
    fleet.tick()
    fleet.tick()
    publish(fleet, "a", b"one")
    assert take(fleet, "b", 2) == [b"one"]
    member(fleet, "a", 1)
    assert take(fleet, "a", 1) == []


# --- all members away ---------------------------------------------------------------------------


@pytest.mark.parametrize("back", ["a", "b"])
@pytest.mark.parametrize("dies", [False, True])
def test_group_keeps_its_place_while_all_members_are_away(back: str, dies: bool) -> None:
    fleet = Fleet("a", "b", "c")
    member(fleet, "a", 1, lasts=True)
    publish(fleet, "b", *bodies(2))
    assert take(fleet, "a", 1) == bodies(2)
    fleet.tick()
    fleet.lose("a", 1)
    publish(fleet, "b", *bodies(3, 2))
    if dies:
        fleet.kill("a")
        lost(fleet)
        fleet.start("a")
        fleet.settle()
    fleet.tick()
    fleet.connected(back, 1, "m1")
    fleet.settle()
    assert take(fleet, back, 1) == bodies(3, 2)
    assert all(group_rows(fleet))


def test_members_that_come_back_at_both_gateways_share_what_has_waited() -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1, lasts=True)
    member(fleet, "a", 2, lasts=True)
    fleet.lose("a", 1)
    fleet.lose("a", 2)
    publish(fleet, "b", *bodies(4))
    fleet.connect("a", 1, "m1")
    fleet.connect("b", 2, "m2")
    fleet.settle()
    for name, number in (("a", 1), ("b", 2)):
        connack = fleet[name].output.sent[number].pop(0)
        assert (connack[0], connack[3]) == (0x20, 0)
    fleet.tick()
    assert sorted(take(fleet, "a", 1) + take(fleet, "b", 2)) == bodies(4)


@pytest.mark.parametrize("dies", [False, True])
def test_group_ends_with_its_last_member(dies: bool) -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1)
    member(fleet, "b", 2)
    assert group_rows(fleet) == [True, True]
    for name, number in (("a", 1), ("b", 2)):
        fleet.lose(name, number)
        fleet.tick()
        assert group_rows(fleet) == [name == "a"] * 2
    member(fleet, "b", 3)
    if dies:
        fleet.kill("b")
        lost(fleet)
    else:
        fleet.lose("b", 3)
        fleet.tick()
        fleet.tick()
    assert not any(group_rows(fleet))
    assert open_claims(fleet) == 0


def test_group_of_a_gateway_that_has_died_ends_where_nobody_knew_it() -> None:
    fleet = Fleet("a", "b")
    member(fleet, "b", 1)
    fleet.tick()
    fleet.kill("b")
    lost(fleet)
    fleet.tick()
    assert group_rows(fleet) == [False]


def test_group_that_another_gateway_has_claimed_does_not_end() -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1)
    member(fleet, "b", 2)
    publish(fleet, "b", b"done")
    assert take(fleet, "a", 1) == [b"done"]
    fleet.lose("a", 1)
    for _ in range(2):
        fleet["a"].tick()
        fleet.read_back(fleet["a"])
    fleet["b"].read_back(1000)  # all that a has written at once
    fleet.settle()
    publish(fleet, "b", b"later")
    assert take(fleet, "b", 2) == [b"later"]


def test_group_waits_for_a_topic_that_another_gateway_has_just_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1)
    member(fleet, "b", 2)
    publish(fleet, "a", *bodies(2))
    for _ in range(15):  # b stands by for longer than any client does
        fleet.tick()
    assert take(fleet, "a", 1, acks=False) == bodies(2)
    find, unknown = fleet.log.find_queue, {"t"}
    monkeypatch.setattr(
        fleet.log, "find_queue", lambda name: None if unknown & {name[:1]} else find(name)
    )
    monkeypatch.setattr(fleet["b"].delivery._queues, "_numbers", {})
    fleet.lose("a", 1)
    fleet.settle()
    assert take(fleet, "b", 2) == []
    unknown.clear()
    fleet.tick()
    assert take(fleet, "b", 2) == bodies(2)


def test_client_that_moves_takes_its_group_along() -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1, lasts=True)
    publish(fleet, "b", *bodies(2))
    assert take(fleet, "a", 1, acks=False) == bodies(2)
    fleet.connected("b", 2, "m1")
    fleet.settle()
    assert holders(fleet, "m1") == ["b"]
    assert take(fleet, "b", 2) == bodies(2)
    publish(fleet, "a", b"later")
    assert take(fleet, "b", 2) == [b"later"]


def test_single_gateway_writes_nothing_for_its_groups() -> None:
    fleet = Fleet("a")
    before = len(fleet.log.records[MQTT_SESSION_TOPIC, 0])
    fleet.connect("a", 1, "m1", properties=NO_PROPERTIES, clean_start=True)
    fleet["a"].turn((1, encode_subscribe(5, Subscribe(7, (SubscribeEntry(GROUP, 1),)))))
    fleet["a"].turn((1, frame(FIRST, b"one")))
    assert any(b"one" in packet for packet in fleet["a"].packets(1))
    assert len(fleet.log.records[MQTT_SESSION_TOPIC, 0]) == before


@pytest.mark.parametrize("lasts", [True, False])
def test_a_gateway_whose_last_member_leaves_ends_no_group_that_another_has_joined(
    lasts: bool,
) -> None:
    """It has not read of that member when it takes the group for one without any."""
    fleet = Fleet("a", "b")
    member(fleet, "a", 1)
    fleet.connected("b", 9, "publisher", properties=NO_PROPERTIES, clean_start=True)
    publish(fleet, "b", *bodies(1))
    assert take(fleet, "a", 1, acks=False) == bodies(1)
    if lasts:
        fleet.connected("b", 2, "m2")
    else:
        fleet.connected("b", 2, "m2", properties=NO_PROPERTIES, clean_start=True)
    subscribe(fleet, "b", 2, GROUP, 1)
    fleet.lose("a", 1)
    while fleet["a"].tick():
        pass
    fleet.settle()
    fleet.tick()
    assert take(fleet, "b", 2) == bodies(1)
