"""Shared subscriptions: each message of a group to one of its members."""

from __future__ import annotations

from typing import Any

from motelog.gateway.config import GatewayConfig
from motelog.gateway.mqtt.disconnect import encode_disconnect
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    Properties,
    PropertyId,
    Subscribe,
    SubscribeEntry,
    Unsubscribe,
)
from motelog.gateway.mqtt.subscribe import encode_subscribe, encode_unsubscribe
from motelog.gateway.sessions.groups import part_name
from motelog.gateway.state.stored import StoredFilter, StoredSession
from motelog.gateway.state.view import ViewError
from tests.support.gateway_stage import Stage
from tests.unit.gateway.test_sessions import (
    Message,
    ack,
    connect,
    lose,
    publish,
    published,
    restart,
    settle,
    subscribe,
)

GROUP = "$share/g/t/#"


def messages(stage: Stage, number: int) -> list[Message]:
    return [published(packet) for packet in stage.packets(number) if packet[0] >> 4 == 3]


def payloads(stage: Stage, number: int) -> list[bytes]:
    return [message.payload for message in messages(stage, number)]


def member(stage: Stage, number: int, *, qos: int = 1, name: str = GROUP, **how: Any) -> None:
    """Connect a client without an expiry that is in a group."""
    how.setdefault("properties", NO_PROPERTIES)
    connect(stage, number, f"m{number}", **how)
    subscribe(stage, number, name, qos=qos)


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def send(stage: Stage, *what: bytes, qos: int = 1, topic: str = "t/1") -> None:
    publish(stage, *what, qos=qos, topic=topic)
    settle(stage)


def test_each_message_goes_to_one_member_in_turn() -> None:
    stage = Stage()
    for number in (1, 2, 3):
        member(stage, number)
    send(stage, *bodies(6))
    assert [payloads(stage, number) for number in (1, 2, 3)] == [
        [b"0", b"3"],
        [b"1", b"4"],
        [b"2", b"5"],
    ]


def test_one_slice_is_shared_in_turn_too() -> None:
    stage = Stage()
    for number in (1, 2, 3):
        member(stage, number)
    publish_frames(stage, bodies(7))
    got = [payloads(stage, number) for number in (1, 2, 3)]
    assert got == [[b"0", b"3", b"6"], [b"1", b"4"], [b"2", b"5"]]


def publish_frames(stage: Stage, what: list[bytes], qos: int = 1) -> None:
    """Publish in one turn."""
    connect(stage, 9, "publisher", properties=NO_PROPERTIES)
    frames = []
    for number, payload in enumerate(what, 1):
        body = b"\0\x03t/1" + (number.to_bytes(2, "big") if qos else b"") + b"\0" + payload
        frames.append((9, bytes((0x30 | qos << 1, len(body))) + body))
    stage.turn(*frames)
    stage.turn((9, encode_disconnect(5)))
    settle(stage)


def test_member_with_the_most_room_takes_the_next_message() -> None:
    stage = Stage()
    member(stage, 1)
    send(stage, *bodies(3))
    assert payloads(stage, 1) == bodies(3)
    member(stage, 2)
    send(stage, *bodies(4, 3))
    assert payloads(stage, 1) == [b"6"]  # three each, and then it is the first one's turn
    assert payloads(stage, 2) == [b"3", b"4", b"5"]


def test_group_lags_while_nobody_has_room() -> None:
    stage = Stage(GatewayConfig(inflight_max=2))
    member(stage, 1)
    member(stage, 2)
    publish_frames(stage, bodies(7))
    assert [len(payloads(stage, number)) for number in (1, 2)] == [2, 2]
    assert stage.metrics.receivers_lagging_now == 1
    ack(stage, 2, 0x40, 1)
    settle(stage)
    assert payloads(stage, 2) == [b"4"]
    ack(stage, 1, 0x40, 1, 2)
    settle(stage)
    assert payloads(stage, 1) == [b"5", b"6"]
    assert stage.metrics.receivers_lagging_now == 0
    send(stage, b"7")
    ack(stage, 1, 0x40, 3)
    settle(stage)
    assert payloads(stage, 1) == [b"7"]


def test_room_goes_to_the_next_group_that_still_waits() -> None:
    stage = Stage(GatewayConfig(inflight_max=1))
    connect(stage, 1, "m1", properties=NO_PROPERTIES)
    for letter in "abcd":
        subscribe(stage, 1, f"$share/g/{letter}/#", qos=1)
    for letter in "abcd":
        send(stage, letter.encode(), topic=f"{letter}/1")
    assert payloads(stage, 1) == [b"a"]
    member(stage, 2, name="$share/g/b/#")
    settle(stage)
    assert payloads(stage, 2) == [b"b"]
    for packet_id, payload in (1, b"c"), (2, b"d"):
        ack(stage, 1, 0x40, packet_id)
        settle(stage)
        assert payloads(stage, 1) == [payload]


def test_member_that_does_not_read_gets_nothing() -> None:
    stage = Stage()
    member(stage, 1)
    member(stage, 2)
    stage.output.fill(1)
    publish_frames(stage, bodies(4))
    assert payloads(stage, 1) == []
    assert payloads(stage, 2) == bodies(4)


def test_group_goes_on_when_an_output_has_drained() -> None:
    stage = Stage()
    member(stage, 1)
    stage.output.fill(1)
    publish_frames(stage, bodies(2))
    assert payloads(stage, 1) == []
    stage.output.read_on(1)
    stage.turn(drained=[1])
    settle(stage)
    assert payloads(stage, 1) == bodies(2)


def test_qos_0_messages_go_to_whoever_reads_and_are_dropped_if_nobody_does() -> None:
    stage = Stage(GatewayConfig(inflight_max=1))
    member(stage, 1)
    member(stage, 2)
    publish_frames(stage, bodies(2))
    for number in (1, 2):
        assert len(payloads(stage, number)) == 1  # the windows are full
    publish_frames(stage, bodies(4), qos=0)
    assert sorted(payloads(stage, 1) + payloads(stage, 2)) == bodies(4)
    stage.output.fill(1)
    publish_frames(stage, bodies(2), qos=0)
    assert payloads(stage, 2) == bodies(2)
    stage.output.fill(2)
    publish_frames(stage, bodies(2), qos=0)
    assert stage.metrics.messages_dropped_qos0 == 2


def test_qos_0_messages_do_not_use_up_the_room() -> None:
    stage = Stage(GatewayConfig(inflight_max=2))
    member(stage, 1)
    connect(stage, 9, "publisher", properties=NO_PROPERTIES)
    frame = b"\x30\x07\0\x03t/1\0z"
    stage.turn(*[(9, frame)] * 5, (9, b"\x32\x09\0\x03t/1\0\x01\0a"))
    assert payloads(stage, 1) == [b"z"] * 5 + [b"a"]


def test_unacknowledged_messages_of_a_lost_member_go_to_another_first() -> None:
    stage = Stage(GatewayConfig(inflight_max=2))
    member(stage, 1)
    publish_frames(stage, bodies(4))
    assert payloads(stage, 1) == bodies(2)
    ack(stage, 1, 0x40, 1)
    settle(stage)
    assert payloads(stage, 1) == [b"2"]
    connect(stage, 2, "m2", properties=NO_PROPERTIES)
    stage.output.fill(2)
    subscribe(stage, 2, GROUP)
    lose(stage, 1)
    stage.output.read_on(2)
    stage.turn(drained=[2])
    settle(stage)
    found = messages(stage, 2)
    assert [message.payload for message in found] == [b"1", b"2"]
    ack(stage, 2, 0x40, *[message.packet_id for message in found])
    settle(stage)
    assert payloads(stage, 2) == [b"3"]


def test_group_that_ends_before_it_reads_again_leaves_nothing() -> None:
    stage = Stage()
    member(stage, 1)
    send(stage, b"0")
    member(stage, 2)
    stage.log.cold = {0}
    lose(stage, 1)
    settle(stage)
    assert stage.log.paging_in
    assert payloads(stage, 2) == []
    stage.log.paged_in()
    lose(stage, 2)
    settle(stage)
    assert not stage.delivery.shares.lagging._reads._attempts


def test_what_was_given_back_goes_before_what_is_published_in_the_same_turn() -> None:
    stage = Stage(GatewayConfig(inflight_max=1))
    member(stage, 1)
    send(stage, b"a")
    member(stage, 2)
    send(stage, b"b")
    assert payloads(stage, 2) == [b"b"]
    lose(stage, 1)
    connect(stage, 9, "publisher", properties=NO_PROPERTIES)
    stage.turn((2, b"\x40\x02\0\x01"), (9, b"\x32\x09\0\x03t/1\0\x01\0c"))
    assert payloads(stage, 2) == [b"a"]
    ack(stage, 2, 0x40, 2)
    assert payloads(stage, 2) == [b"c"]


def test_messages_of_a_persistent_member_that_goes_away_go_to_another_at_once() -> None:
    stage = Stage()
    connect(stage, 1, "m1")
    subscribe(stage, 1, GROUP)
    send(stage, b"a")
    assert payloads(stage, 1) == [b"a"]
    member(stage, 2)
    lose(stage, 1)
    settle(stage)
    [packet] = [packet for packet in stage.packets(2) if packet[0] >> 4 == 3]
    assert packet[0] == 0x32  # for this client it is no duplicate
    assert published(packet).payload == b"a"
    assert connect(stage, 1, "m1")
    settle(stage)
    assert payloads(stage, 1) == []


def test_qos_2_message_stays_with_the_session_that_was_sent_it() -> None:
    """[MQTT-4.8.2-4]"""
    stage = Stage()
    connect(stage, 1, "m1")
    subscribe(stage, 1, GROUP, qos=2)
    send(stage, b"a", qos=2)
    assert payloads(stage, 1) == [b"a"]
    member(stage, 2, qos=2)
    lose(stage, 1)
    settle(stage)
    assert payloads(stage, 2) == []
    assert connect(stage, 1, "m1")
    settle(stage)
    [packet] = stage.packets(1)
    assert packet[0] == 0x3C
    assert published(packet).payload == b"a"


def test_qos_2_message_of_a_session_that_ends_is_not_sent_to_another() -> None:
    """[MQTT-4.8.2-5]"""
    stage = Stage()
    member(stage, 1, qos=2)
    send(stage, b"a", qos=2)
    member(stage, 2, qos=2)
    lose(stage, 1)
    settle(stage)
    assert payloads(stage, 2) == []


def test_refused_message_is_not_sent_to_another() -> None:
    """[MQTT-4.8.2-6]"""
    stage = Stage()
    member(stage, 1)
    send(stage, b"a")
    member(stage, 2)
    stage.turn((1, b"\x40\x03\0\x01\x97"))
    lose(stage, 1)
    settle(stage)
    assert payloads(stage, 2) == []


def test_unsubscribed_member_keeps_what_it_was_sent_until_its_connection_ends() -> None:
    stage = Stage()
    member(stage, 1)
    send(stage, b"a", b"b")
    member(stage, 2)
    stage.turn((1, encode_unsubscribe(5, Unsubscribe(8, (GROUP,)))))
    settle(stage)
    assert stage.packets(1)[-1][0] == 0xB0
    send(stage, b"c")
    assert payloads(stage, 2) == [b"c"]
    ack(stage, 1, 0x40, 1)
    lose(stage, 1)
    settle(stage)
    assert payloads(stage, 2) == [b"b"]


def test_message_too_large_for_one_member_goes_to_another() -> None:
    stage = Stage()
    for number in (1, 2):
        member(stage, number, properties=Properties(maximum_packet_bytes=64))
    member(stage, 3)
    large = b"x" * 80
    send(stage, large, large, b"small")
    assert payloads(stage, 3) == [large, large]
    assert payloads(stage, 1) + payloads(stage, 2) == [b"small"]
    lose(stage, 3)
    send(stage, large, b"more")
    assert stage.metrics.messages_dropped_too_large == 3  # with the two that the third one left


def test_options_and_identifier_are_those_of_the_member() -> None:
    stage = Stage()
    connect(stage, 1, "m1", properties=NO_PROPERTIES)
    subscribe(stage, 1, GROUP, identifier=7)
    subscribe(stage, 1, "t/1", qos=0, identifier=9)
    send(stage, b"a")
    found = {message.properties: message.qos for message in messages(stage, 1)}
    assert found == {b"\x0b\x07": 1, b"\x0b\x09": 0}
    subscribe(stage, 1, GROUP, qos=0)
    send(stage, b"b")
    assert {(m.qos, m.properties) for m in messages(stage, 1)} == {(0, b""), (0, b"\x0b\x09")}
    assert stage.metrics.subscriptions_now == 2


def test_mqtt_3_client_can_be_a_member() -> None:
    stage = Stage()
    connect(stage, 1, "old", version=4, clean_start=True)
    stage.turn((1, encode_subscribe(4, Subscribe(7, (SubscribeEntry(GROUP, 1),)))))
    assert stage.sent(1) == [b"\x90\x03\0\x07\x01"]
    member(stage, 2)
    send(stage, b"a", b"b")
    assert stage.sent(1) == [b"\x32\x08\0\x03t/1\0\x01a"]
    assert payloads(stage, 2) == [b"b"]


def test_group_of_a_queue_that_lags_begins_at_its_tail() -> None:
    stage = Stage()
    connect(stage, 2, "other", properties=NO_PROPERTIES)
    subscribe(stage, 2, "race")
    connect(stage, 1, "m1", properties=NO_PROPERTIES)
    before = b"\x32\x0f\0\x04race\0\x01\0before"
    packet = encode_subscribe(5, Subscribe(7, (SubscribeEntry("$share/g/race/#", 1),)))
    stage.turn((1, before), (1, packet))
    settle(stage)
    assert [packet[0] for packet in stage.packets(1)] == [0x40, 0x90]
    send(stage, b"after", topic="race")
    assert payloads(stage, 1) == [b"after"]


# --- groups that outlive connections ---------------------------------------------------------


def test_group_whose_members_are_all_away_goes_on_where_it_was() -> None:
    stage = Stage()
    connect(stage, 1, "m1")
    connect(stage, 2, "m2")
    for number in (1, 2):
        subscribe(stage, number, GROUP)
    send(stage, b"a", b"b", b"c")
    assert payloads(stage, 1) == [b"a", b"c"]
    assert payloads(stage, 2) == [b"b"]
    ack(stage, 1, 0x40, 1)
    lose(stage, 1)
    lose(stage, 2)
    send(stage, b"d", b"e")
    stage = restart(stage)
    assert connect(stage, 2, "m2")
    settle(stage)
    assert payloads(stage, 2) == [b"b", b"c", b"d", b"e"]
    assert connect(stage, 1, "m1")
    settle(stage)
    assert payloads(stage, 1) == []


def test_group_is_not_lost_when_the_gateway_dies() -> None:
    stage = Stage()
    member(stage, 2)
    connect(stage, 1, "m1")
    subscribe(stage, 1, GROUP)
    send(stage, *bodies(4))
    assert len(payloads(stage, 1)) == len(payloads(stage, 2)) == 2
    ack(stage, 1, 0x40, 1)
    stage.tick()
    send(stage, b"4")
    stage = restart(stage)
    assert connect(stage, 1, "m1")
    settle(stage)
    # What nobody has acknowledged by the last tick, and what came after it.
    assert len(payloads(stage, 1)) == 4


def test_what_was_acknowledged_after_the_group_was_stored_does_not_come_again() -> None:
    stage = Stage()
    member(stage, 2)
    send(stage, b"a", b"b")
    assert payloads(stage, 2) == [b"a", b"b"]
    # Its session outlives its connection, so that now the group is stored.
    connect(stage, 1, "m1")
    subscribe(stage, 1, GROUP)
    ack(stage, 2, 0x40, 1)
    stage.tick()
    stage = restart(stage)
    assert connect(stage, 1, "m1")
    settle(stage)
    assert payloads(stage, 1) == [b"b"]


def test_what_a_member_had_that_has_left_is_not_lost_when_the_gateway_dies() -> None:
    stage = Stage()
    member(stage, 2)
    connect(stage, 1, "m1")
    subscribe(stage, 1, GROUP)
    send(stage, b"a", b"b")
    [left] = payloads(stage, 2)
    stage.turn((2, encode_unsubscribe(5, Unsubscribe(8, (GROUP,)))))
    settle(stage)
    ack(stage, 1, 0x40, 1)
    stage.tick()
    stage = restart(stage)
    assert connect(stage, 1, "m1")
    settle(stage)
    assert payloads(stage, 1) == [left]


def test_group_is_kept_for_its_member_that_is_away_while_others_come_and_go() -> None:
    stage = Stage()
    connect(stage, 1, "m1")
    subscribe(stage, 1, GROUP)
    lose(stage, 1)
    member(stage, 2)
    send(stage, b"a", b"b")
    assert payloads(stage, 2) == [b"a", b"b"]
    ack(stage, 2, 0x40, 1)
    stage.tick()
    stage = restart(stage)
    assert connect(stage, 1, "m1")
    settle(stage)
    assert payloads(stage, 1) == [b"b"]


def test_view_that_cannot_be_used_ends_the_connection_and_not_the_gateway() -> None:
    stage = Stage()
    connect(stage, 1, "m1", properties=NO_PROPERTIES)

    def fail(client_id: str) -> StoredSession | None:
        raise ViewError("no room")

    stage.journal.load = fail  # type: ignore[method-assign]
    stage.turn((1, encode_subscribe(5, Subscribe(7, (SubscribeEntry(GROUP, 1),)))))
    assert stage.sent(1)[0][:1] == b"\xe0"
    stage.clients._shared.ended(StoredSession("m2", 60, filters=(StoredFilter(GROUP, 1),)))
    stage.clients._shared.tick()


def test_qos_2_message_of_a_group_is_sent_once_though_the_gateway_dies() -> None:
    stage = Stage()
    for number in (1, 2):
        connect(stage, number, f"m{number}")
        subscribe(stage, number, GROUP, qos=2)
    stage.tick()
    send(stage, b"a", b"b", qos=2)
    [first] = payloads(stage, 1)
    ack(stage, 2, 0x50, 1)
    ack(stage, 2, 0x70, 1)
    stage.journal.commit()
    stage = restart(stage)
    assert connect(stage, 2, "m2")
    settle(stage)
    assert payloads(stage, 2) == []
    assert connect(stage, 1, "m1")
    settle(stage)
    assert payloads(stage, 1) == [first]


def test_group_ends_with_the_session_of_its_last_member() -> None:
    stage = Stage()
    connect(stage, 1, "m1")
    subscribe(stage, 1, GROUP)
    lose(stage, 1)
    send(stage, b"a")
    stage.tick()
    assert stage.journal.load(part_name(GROUP, 0)) is not None
    told: dict[PropertyId, Any] = {PropertyId.SESSION_EXPIRY_INTERVAL: 0}
    connect(stage, 1, "m1")
    stage.turn((1, encode_disconnect(5, 0, told)))
    stage.tick()
    assert stage.journal.load(part_name(GROUP, 0)) is None
    member(stage, 2)
    settle(stage)
    assert payloads(stage, 2) == []


def test_group_ends_when_the_session_of_its_last_member_expires() -> None:
    stage = Stage()
    connect(stage, 1, "m1")
    subscribe(stage, 1, GROUP)
    lose(stage, 1)
    stage.journal.refresh(1000)
    stage.clock.advance(3_600_000)
    stage.tick()
    stage.tick()
    assert stage.journal.load("m1") is None
    assert stage.journal.load(part_name(GROUP, 0)) is None


def test_group_that_lost_its_members_in_a_crash_ends_after_the_start() -> None:
    stage = Stage()
    connect(stage, 1, "m1")
    subscribe(stage, 1, GROUP)
    stage.journal.end("m1")
    stage = restart(stage)
    assert stage.journal.load(part_name(GROUP, 0)) is not None
    stage.tick()
    assert stage.journal.load(part_name(GROUP, 0)) is None


def test_group_of_clients_without_expiry_writes_nothing() -> None:
    stage = Stage()
    member(stage, 1)
    send(stage, b"a")
    lose(stage, 1)
    stage.tick()
    assert stage.journal.load(part_name(GROUP, 0)) is None
    member(stage, 1)
    send(stage)
    assert payloads(stage, 1) == []


def test_groups_and_plain_subscriptions_are_independent() -> None:
    stage = Stage()
    connect(stage, 1, "m1", properties=NO_PROPERTIES)
    subscribe(stage, 1, GROUP, "$share/h/t/1", "t/#")
    send(stage, b"a")
    assert sorted(payloads(stage, 1)) == [b"a"] * 3


def test_group_gets_what_waits_in_queues_that_are_closed_meanwhile() -> None:
    stage = Stage(GatewayConfig(topic_queue_count=8))
    send(stage, b"early")
    connect(stage, 1, "m1")
    subscribe(stage, 1, GROUP)
    lose(stage, 1)
    for body in bodies(20):
        send(stage, body, topic=f"t/{body.decode()}")
    stage.log.change_queues("t", read=2, write=2)
    stage = restart(stage)
    connect(stage, 1, "m1")
    settle(stage)
    assert sorted(payloads(stage, 1)) == sorted(bodies(20))
    lose(stage, 1)
    stage.log.delete_topic("t")
    stage = restart(stage)
    connect(stage, 1, "m1")
    assert stage.metrics.cursors_dropped == 8


def test_group_does_not_turn_in_circles_for_a_message_that_the_log_has_lost() -> None:
    stage = Stage()
    connect(stage, 1, "m1")
    subscribe(stage, 1, GROUP)
    send(stage, b"lost")
    assert payloads(stage, 1) == [b"lost"]
    (records,) = (found for key, found in stage.log.records.items() if key[0] == "t" and found)
    records.clear()
    lose(stage, 1)
    stage = restart(stage)
    connect(stage, 1, "m1")
    settle(stage)
    assert payloads(stage, 1) == []
    send(stage, b"anew")  # it has the place of the lost one
    assert payloads(stage, 1) == [b"anew"]
