"""A shared subscription is one group over all gateways of a log: one of them hands it out."""

from __future__ import annotations

from itertools import chain

import pytest

from motelog.core.errors import StoreFullError
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.claims import WAIT_MS_MAX
from motelog.gateway.mqtt.packet_types import NO_PROPERTIES, Subscribe, SubscribeEntry, Unsubscribe
from motelog.gateway.mqtt.subscribe import encode_subscribe, encode_unsubscribe
from motelog.gateway.state.journal import LOST_TICKS
from tests.support.gateway_fleet import Fleet
from tests.unit.gateway.test_several_gateways import (
    frame,
    got,
    holders,
    open_claims,
    publish,
    subscribe,
)

GROUP = "$share/g/t/#"


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


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def lost(fleet: Fleet) -> None:
    """Let so much time pass that a gateway which has been killed is lost."""
    for _ in range(LOST_TICKS + 2):
        fleet.tick()


def group_rows(fleet: Fleet) -> list[bool]:
    return [stage.journal.load(GROUP) is not None for stage in fleet.stages.values()]


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
    stage.turn((2, frame("t/1", b"behind")))
    assert got(stage, 2) == [(0x40, 1, b"")]
    fleet.settle()
    publish(fleet, "a", b"later")
    assert take(fleet, "b", 2) == [b"behind", b"later"]


def test_gateway_that_dies_before_its_turn_has_promised_what_is_behind_the_suback() -> None:
    fleet = Fleet("a", "b")
    publish(fleet, "a", b"before")
    fleet.connected("b", 2, "m2")
    subscribe(fleet, "b", 2, GROUP)
    fleet["b"].turn((2, frame("t/1", b"behind")))
    fleet.kill("b")
    lost(fleet)
    fleet.connected("a", 2, "m2")
    fleet.settle()
    publish(fleet, "a", b"later")
    assert take(fleet, "a", 2) == [b"behind", b"later"]


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
        stage.clients.disconnect_all(0x8B, "the end")
        stage.journal.stop()
    fleet["b"].turn((2, frame("t/1", b"between")))
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
    b.turn((2, frame("t/1", b"one")))
    fleet.settle()
    assert (take(fleet, "b", 2), take(fleet, "a", 1)) == ([], [b"one"])


def test_gateway_that_stands_by_and_leaves_keeps_nobody_waiting() -> None:
    fleet = Fleet("a", "b", "c")
    for number, name in enumerate("abc", 1):
        member(fleet, name, number)
    assert open_claims(fleet) == 2
    fleet.lose("b", 2)
    fleet.settle()
    assert open_claims(fleet) == 1
    fleet.lose("a", 1)
    publish(fleet, "b", b"one")
    assert take(fleet, "c", 3) == [b"one"]
    assert open_claims(fleet) == 0


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


def test_group_that_stands_by_is_found_again_when_the_view_is_made_anew() -> None:
    fleet = Fleet("a", "b")
    member(fleet, "a", 1)
    member(fleet, "b", 2)
    fleet["b"].view.rebuild("for the test")
    publish(fleet, "a", b"one")
    fleet.lose("a", 1)
    while fleet["b"].clients.read_back(1):
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
        fleet["a"].clients.tick()
        fleet.read_back(fleet["a"])
    fleet["b"].clients.read_back(1000)  # all that a has written at once
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
    fleet["a"].turn((1, frame("t/1", b"one")))
    assert any(b"one" in packet for packet in fleet["a"].packets(1))
    assert len(fleet.log.records[MQTT_SESSION_TOPIC, 0]) == before
