"""Sessions that outlive their connections, QoS 2 in both directions, wills."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from motelog.core.errors import StoreFullError
from motelog.core.net.reactor import CloseReason
from motelog.core.records.decode import decode
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.config import GatewayConfig
from motelog.gateway.deliver import elevator
from motelog.gateway.deliver.replay import QUEUE_NAME as RETAINED_QUEUE
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.disconnect import encode_disconnect
from motelog.gateway.mqtt.frames import split_one
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    Connect,
    Properties,
    PropertyId,
    Subscribe,
    SubscribeEntry,
    Unsubscribe,
    Will,
)
from motelog.gateway.mqtt.subscribe import encode_subscribe, encode_unsubscribe
from motelog.gateway.state.records import decode_record
from motelog.gateway.state.stored import StoredFilter, StoredSession
from motelog.gateway.subscribe import storing
from tests.support.gateway_stage import Stage
from tests.support.mqtt import body_of


class Message(NamedTuple):
    """What a PUBLISH to an MQTT 5 client says."""

    qos: int
    topic: str
    payload: bytes
    packet_id: int
    properties: bytes


def published(packet: bytes) -> Message:
    _, first_byte, topic, payload, packet_id, block = split_one(packet[0], body_of(packet), 5, 0)
    return Message(first_byte >> 1 & 3, topic.decode(), payload, packet_id, block or b"")


HOUR = Properties(session_expiry_interval_s=3600)


def connect(
    stage: Stage, number: int, client_id: str = "dev", *, version: int = 5, **how: Any
) -> bool:
    """Connect with a session of an hour; return session present."""
    how.setdefault("clean_start", False)
    how.setdefault("properties", HOUR if version == 5 else NO_PROPERTIES)
    packet = Connect(version=version, keep_alive_s=60, client_id=client_id, **how)
    stage.turn((number, encode_connect(packet)), opened=[number])
    connack = stage.output.sent[number].pop(0)
    assert connack[0] == 0x20
    assert connack[3] == 0
    return bool(connack[2])


def subscribe(stage: Stage, number: int, *filters: str, **how: Any) -> None:
    ask_to_subscribe(stage, number, *filters, **how)
    assert subacks(stage, number) == [7]


def ask_to_subscribe(
    stage: Stage,
    number: int,
    *filters: str,
    qos: int = 1,
    identifier: int = 0,
    packet_id: int = 7,
    **how: Any,
) -> None:
    entries = tuple(SubscribeEntry(topic_filter, qos, **how) for topic_filter in filters)
    told = Properties(subscription_identifiers=(identifier,)) if identifier else NO_PROPERTIES
    stage.turn((number, encode_subscribe(5, Subscribe(packet_id, entries, told))))


def subacks(stage: Stage, number: int) -> list[int]:
    """Take what SUBSCRIBE was answered, as packet identifiers."""
    stage.carry()
    sent = stage.output.sent[number]
    answers = [packet for packet in sent if packet[0] == 0x90]
    for packet in answers:
        sent.remove(packet)
    return [int.from_bytes(packet[2:4], "big") for packet in answers]


def publish(stage: Stage, *payloads: bytes, qos: int = 1, topic: str = "t/1") -> None:
    """Publish from another client, which is there for as long as that takes."""
    connect(stage, 9, "publisher", properties=NO_PROPERTIES)
    for number, payload in enumerate(payloads, 1):
        name = topic.encode()
        body = len(name).to_bytes(2, "big") + name
        if qos:
            body += number.to_bytes(2, "big")
        body += b"\0" + payload
        stage.turn((9, bytes((0x30 | qos << 1, len(body))) + body))
        if qos == 2:
            stage.turn((9, b"\x62\x02" + number.to_bytes(2, "big")))
    stage.turn((9, encode_disconnect(5)))
    stage.sent(9)


def lose(stage: Stage, number: int) -> None:
    stage.turn(closed=[(number, CloseReason.PEER)])


def ack(stage: Stage, number: int, first_byte: int, *packet_ids: int) -> None:
    for packet_id in packet_ids:
        stage.turn((number, bytes((first_byte, 2)) + packet_id.to_bytes(2, "big")))


def got(stage: Stage, number: int) -> list[tuple[int, int, bytes]]:
    """Return (first byte, packet identifier, payload) of each PUBLISH, or of another packet."""
    found = []
    for packet in stage.sent(number):
        if packet[0] >> 4 == 3:
            message = published(packet)
            found.append((packet[0], message.packet_id, message.payload))
        else:
            found.append((packet[0], int.from_bytes(packet[2:4], "big"), b""))
    return found


def settle(stage: Stage) -> None:
    while stage.delivery.deliver(stage.clock.now_ms()):
        pass


def restart(stage: Stage) -> Stage:
    """Return a gateway on the same log, after the other one was killed."""
    return Stage(log=stage.log)


# --- sessions --------------------------------------------------------------------------------


def test_session_gets_what_was_published_while_its_client_was_away() -> None:
    stage = Stage()
    assert not connect(stage, 1)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    publish(stage, b"a", b"b")
    assert connect(stage, 1)
    settle(stage)
    assert got(stage, 1) == [(0x32, 1, b"a"), (0x32, 2, b"b")]
    publish(stage, b"c")
    settle(stage)
    assert got(stage, 1) == [(0x32, 3, b"c")]


def test_session_survives_a_restart_of_the_gateway() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#", qos=2, identifier=5)
    lose(stage, 1)
    publish(stage, b"a")
    stage = restart(stage)
    assert connect(stage, 1)
    settle(stage)
    [packet] = stage.sent(1)
    message = published(packet)
    assert (message.qos, message.payload) == (1, b"a")
    assert message.properties == b"\x0b\x05"


def connect_with_filters(stage: Stage, number: int) -> None:
    """Connect a client, and subscribe to t/0, t/1, ... one by one."""
    connect(stage, number)
    for n in range(20):
        subscribe(stage, number, f"t/{n}", identifier=n + 1)


def kinds(stage: Stage, begin: int) -> list[str]:
    """Return the kinds of the records of sessions from ``begin`` on."""
    records = stage.log.records[MQTT_SESSION_TOPIC, 0][begin:]
    return [type(decode_record(decode(record)[0][-1])).__name__ for record in records]


def test_client_with_many_filters_stores_what_it_changes() -> None:
    stage = Stage()
    connect_with_filters(stage, 1)
    begin = len(stage.log.records[MQTT_SESSION_TOPIC, 0])
    subscribe(stage, 1, "u/1", "t/3", qos=0)
    stage.turn((1, encode_unsubscribe(5, Unsubscribe(8, ("t/4", "t/5")))))
    assert kinds(stage, begin) == ["FiltersRecord", "FiltersRecord"]
    subscribe(stage, 1, "$share/g/s")
    assert set(kinds(stage, begin)[2:]) == {"SessionRecord"}
    subscribe(stage, 1, "u/2")
    assert kinds(stage, begin)[-1] == "FiltersRecord"
    Stage(log=stage.log, name="another").tick()
    while stage.read_back(100):
        pass
    subscribe(stage, 1, "u/3")
    assert kinds(stage, begin)[-1] == "SessionRecord", "while another gateway lives"


def test_record_that_the_log_may_not_have_is_no_base_for_changes() -> None:
    stage = Stage()
    connect_with_filters(stage, 1)
    stage.log.settles_at_once = False
    ask_to_subscribe(stage, 1, "$share/g/s")
    for n in range(5):
        begin = len(stage.log.records[MQTT_SESSION_TOPIC, 0])
        ask_to_subscribe(stage, 1, f"u/{n}")
        assert kinds(stage, begin) == ["SessionRecord"], "the log may not have the last one"
        stage.log.settle(1)
    stage.log.settle()
    begin = len(stage.log.records[MQTT_SESSION_TOPIC, 0])
    ask_to_subscribe(stage, 1, "v")
    assert kinds(stage, begin) == ["FiltersRecord"]


def busy_session(stage: Stage) -> StoredSession:
    """Return what the log has of a session with many filters, after its gateway was killed."""
    publish(stage, b"old", topic="t/2")
    publish(stage, b"old", topic="t/1")
    stage.turn()
    connect(stage, 9, "retainer", properties=NO_PROPERTIES)
    stage.turn((9, b"\x31\x07\0\x03r/1\0r"), closed=[(9, CloseReason.PEER)])
    connect_with_filters(stage, 1)
    publish(stage, b"a", b"b", topic="t/1")
    publish(stage, b"c", topic="t/2", qos=2)
    settle(stage)
    ack(stage, 1, 0x40, 1)
    stage.tick()
    publish(stage, *(b"%d" % n for n in range(8)), topic="t/1")  # more than its window
    settle(stage)
    subscribe(stage, 1, "u/#", "t/1", qos=2)
    stage.turn((1, encode_unsubscribe(5, Unsubscribe(8, ("t/4", "t/5", "u/#")))))
    publish(stage, b"d", topic="u/2")
    subscribe(stage, 1, "u/2", "r/#")
    publish(stage, b"e", topic="u/2", qos=2)
    stage.tick()
    subscribe(stage, 1, "t/4")
    publish(stage, b"f", topic="t/4")
    settle(stage)
    stored = restart(stage).journal.load("dev")
    assert stored is not None
    return stored


def filters_of(session: StoredSession) -> dict[str, StoredFilter]:
    return {one.topic_filter: one for one in session.filters}


@pytest.mark.parametrize("window", [3, 100])
def test_changes_of_filters_are_worth_whole_records(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_changes = busy_session(Stage(GatewayConfig(inflight_max=window)))
    monkeypatch.setattr(storing, "WHOLE_FILTERS_MAX", 1000)
    whole = busy_session(Stage(GatewayConfig(inflight_max=window)))
    assert filters_of(by_changes) == filters_of(whole)
    if not whole.replays:
        by_changes.cursors.pop(RETAINED_QUEUE)  # which only replays use
    assert msgspec.structs.replace(by_changes, filters=whole.filters) == whole


@pytest.mark.parametrize("leaves", [False, True])
def test_filters_that_were_added_are_there_after_a_crash(leaves: bool) -> None:
    stage = Stage()
    connect_with_filters(stage, 1)
    publish(stage, b"before", topic="u/1")
    subscribe(stage, 1, "u/1")
    if leaves:
        lose(stage, 1)
    publish(stage, b"after", topic="u/1")
    stage = restart(stage)
    assert connect(stage, 1)
    settle(stage)
    assert [payload for _, _, payload in got(stage, 1)] == [b"after"]


def test_session_without_expiry_ends_with_its_connection() -> None:
    stage = Stage()
    connect(stage, 1, properties=NO_PROPERTIES)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    publish(stage, b"a")
    assert not connect(stage, 1)
    settle(stage)
    assert got(stage, 1) == []
    assert stage.metrics.subscriptions_now == 0


def test_clean_start_ends_the_session_before() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    publish(stage, b"a")
    assert not connect(stage, 1, clean_start=True)
    settle(stage)
    assert got(stage, 1) == []
    lose(stage, 1)
    assert not restart(stage).journal.load("dev").filters  # type: ignore[union-attr]


def test_session_of_mqtt_3_is_resumed() -> None:
    stage = Stage()
    connect(stage, 1, version=4)
    stage.turn((1, encode_subscribe(4, Subscribe(7, (SubscribeEntry("t/#", 1),)))))
    stage.sent(1)
    lose(stage, 1)
    publish(stage, b"a")
    assert connect(stage, 1, version=4)
    settle(stage)
    assert stage.sent(1) == [b"\x32\x08\x00\x03t/1\x00\x01a"]


def test_session_expires() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    stage.clock.advance(3_599_000)
    stage.tick()
    assert stage.metrics.sessions_expired == 0
    stage.journal.refresh(1000)
    stage.clock.advance(1_000)
    stage.tick()
    assert stage.metrics.sessions_expired == 1
    assert not connect(stage, 1)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_clock_that_is_set_forward_ends_no_session_early(is_restarted: bool) -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    publish(stage, b"waits")
    connect(stage, 2, "other")
    lose(stage, 2)
    stage.journal.refresh(1000)
    stage.clock.step_wall(5 * 3_600_000)
    stage.tick()
    if is_restarted:
        # The log's clock goes on from its notes.
        stage = Stage(log=stage.log, clock=stage.clock, steady=stage.steady)
    connect(stage, 3, "later")
    lose(stage, 3)
    stage.journal.refresh(1000)
    stage.clock.advance(3_599_000)
    stage.tick()
    assert stage.metrics.sessions_expired == 0
    assert connect(stage, 1)
    settle(stage)
    assert got(stage, 1) == [(0x32, 1, b"waits")]
    stage.journal.refresh(1000)
    stage.clock.advance(1_000)
    stage.tick()
    assert stage.metrics.sessions_expired == 2
    assert not connect(stage, 2, "other")
    assert not connect(stage, 3, "later")


def test_expired_session_is_not_resumed_though_no_tick_has_ended_it() -> None:
    stage = Stage()
    connect(stage, 1)
    lose(stage, 1)
    stage.clock.advance(3_600_000)
    assert not connect(stage, 1)


def test_disconnect_sets_the_expiry() -> None:
    stage = Stage()
    connect(stage, 1)
    told: dict[PropertyId, Any] = {PropertyId.SESSION_EXPIRY_INTERVAL: 0}
    stage.turn((1, encode_disconnect(5, 0, told)))
    assert not connect(stage, 1)


def test_taken_over_session_goes_on_with_the_new_connection() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    publish(stage, b"a")
    settle(stage)
    assert got(stage, 1) == [(0x32, 1, b"a")]
    assert connect(stage, 2)
    assert stage.sent(1) == [b"\xe0\x01\x8e"]
    settle(stage)
    assert got(stage, 2) == [(0x3A, 1, b"a")]  # again, with DUP and its identifier


def test_unacknowledged_messages_come_again_first_and_in_order() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    publish(stage, b"a", b"b", b"c")
    settle(stage)
    assert [payload for _, _, payload in got(stage, 1)] == [b"a", b"b", b"c"]
    ack(stage, 1, 0x40, 2)
    lose(stage, 1)
    publish(stage, b"d")
    stage = restart(stage)
    assert connect(stage, 1)
    publish(stage, b"e")
    settle(stage)
    assert got(stage, 1) == [
        (0x3A, 1, b"a"),
        (0x3A, 3, b"c"),
        (0x32, 4, b"d"),
        (0x32, 5, b"e"),
    ]


def test_session_that_was_connected_when_the_gateway_died_loses_nothing() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    publish(stage, b"a", b"b")
    settle(stage)
    ack(stage, 1, 0x40, 1)
    stage.tick()
    publish(stage, b"c")
    settle(stage)
    stage = restart(stage)
    assert connect(stage, 1)
    settle(stage)
    # "b" is in flight in the last tick, "c" came after it.
    assert got(stage, 1) == [(0x3A, 2, b"b"), (0x32, 3, b"c")]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_session_that_could_not_be_stored_as_its_client_left_loses_nothing(
    *, is_restarted: bool
) -> None:
    stage = Stage()
    for number in (1, 2):
        connect(stage, number, f"client{number}")
        subscribe(stage, number, "t/#")
    stage.tick()
    stage.log.error = StoreFullError("full")
    lose(stage, 1)
    stage.tick()
    stage.log.error = None
    publish(stage, b"a", b"b")
    settle(stage)  # to the other one: the live position moves
    for _ in range(3):
        stage.tick()
        stage.read_back(1000)
    if is_restarted:
        stage = restart(stage)
    assert connect(stage, 1, "client1")
    settle(stage)
    assert got(stage, 1) == [(0x32, 1, b"a"), (0x32, 2, b"b")]
    lose(stage, 1)
    stage.tick()
    assert connect(stage, 1, "client1")


def test_session_whose_record_was_refused_is_not_stored_as_away_when_it_is_back() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    stage.log.error = StoreFullError("full")
    lose(stage, 1)
    stage.log.error = None
    assert connect(stage, 1)
    for _ in range(2):
        stage.tick()
    session = stage.journal.load("dev")
    assert session is not None
    assert session.left_ms is None
    publish(stage, b"a")
    settle(stage)
    assert got(stage, 1) == [(0x32, 1, b"a")]


def test_queue_that_was_made_while_the_client_was_away_is_read_from_its_beginning() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "#")
    lose(stage, 1)
    publish(stage, b"a", topic="new/1")
    connect(stage, 1)
    settle(stage)
    assert got(stage, 1) == [(0x32, 1, b"a")]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_present", [False, True])
def test_message_in_the_default_topic_is_found_though_its_queues_become_more(
    is_restarted: bool, is_present: bool
) -> None:
    config = GatewayConfig(create_topics=False)
    names = [f"t/{number}" for number in range(16)]
    stage = Stage(config)
    connect(stage, 1)
    subscribe(stage, 1, *names)
    if not is_present:
        lose(stage, 1)
    for name in names:
        publish(stage, b"before", topic=name)
    stage.log.creating["MQTT_DEFAULT"] = 16
    stage.log.created("MQTT_DEFAULT")
    for name in names:
        publish(stage, b"after", topic=name)
    if is_present:
        settle(stage)
        lose(stage, 1)
    if is_restarted:
        stage = Stage(config, log=stage.log)
    connect(stage, 1)
    settle(stage)
    payloads = [payload for _, _, payload in got(stage, 1)]
    assert sorted(payloads) == [b"after"] * 16 + [b"before"] * 16


def test_unsubscribed_filter_stays_away() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#", "u/#")
    stage.turn((1, encode_unsubscribe(5, Unsubscribe(8, ("t/#",)))))
    lose(stage, 1)
    stage = restart(stage)
    connect(stage, 1)
    publish(stage, b"a")
    publish(stage, b"b", topic="u/1")
    settle(stage)
    assert [payload for _, _, payload in got(stage, 1)] == [b"b"]


def test_subscription_begins_with_what_is_published_after_it() -> None:
    """Whatever the cursors of the queue are: another's live position, or the session's own."""
    stage = Stage(GatewayConfig(inflight_max=1))
    connect(stage, 1)
    subscribe(stage, 1, "t/1")
    publish(stage, b"one", b"two")
    publish(stage, b"old", topic="t/1/x")
    settle(stage)
    subscribe(stage, 1, "t/1/x")  # the cursor stands before "two"
    publish(stage, b"new", topic="t/1/x")
    lose(stage, 1)
    stage = restart(stage)
    connect(stage, 1)
    payloads = []
    for _ in range(5):
        settle(stage)
        for _, packet_id, payload in got(stage, 1):
            payloads.append(payload)
            ack(stage, 1, 0x40, packet_id)
    assert payloads == [b"one", b"two", b"new"]


def test_subscription_in_the_turn_of_earlier_publishes_gets_none_of_them() -> None:
    stage = Stage()
    connect(stage, 2, "other")
    subscribe(stage, 2, "race")
    connect(stage, 1)
    before = b"\x32\x0f\x00\x04race\x00\x01\x00before"
    packet = encode_subscribe(5, Subscribe(7, (SubscribeEntry("race/#", 1),)))
    stage.turn((1, before), (1, packet))
    settle(stage)
    assert [packet[0] for packet in stage.sent(1)] == [0x40, 0x90]
    assert [payload for _, _, payload in got(stage, 2)] == [b"before"]


def test_suback_waits_for_the_log() -> None:
    stage = Stage()
    connect(stage, 1)
    stage.log.settles_at_once = False
    packet = encode_subscribe(5, Subscribe(7, (SubscribeEntry("t", 1),)))
    stage.turn((1, packet))
    assert stage.sent(1) == []
    stage.log.settle()
    assert [packet[0] for packet in stage.sent(1)] == [0x90]


def test_clients_of_one_turn_get_their_own_sessions() -> None:
    stage = Stage()
    for number, client_id in enumerate(("one", "two", "three"), 1):
        connect(stage, number, client_id)
        subscribe(stage, number, f"t/{client_id}")
    stage.turn(closed=[(number, CloseReason.PEER) for number in (1, 2, 3)])

    def packet(client_id: str, *, clean_start: bool = False) -> bytes:
        return encode_connect(Connect(5, clean_start, 60, client_id, properties=HOUR))

    stage.turn(
        (1, packet("one")),
        (2, packet("two", clean_start=True)),
        (3, b"\xc0\x00"),  # is no CONNECT, though one follows
        (3, packet("three")),
        (4, packet("new")),
        (5, packet("one")),  # takes over
        opened=[1, 2, 3, 4, 5],
    )
    present = {number: packets[0][2] for number, packets in stage.output.sent.items() if packets}
    assert present == {1: 1, 2: 0, 4: 0, 5: 1}
    assert stage.journal.named("", "", 9) == ["new", "one", "three", "two"]
    publish(stage, b"x", topic="t/one")
    settle(stage)
    assert [payload for first, _, payload in got(stage, 5) if first >> 4 == 3] == [b"x"]
    again = restart(stage)
    assert connect(again, 1, "new")
    [two] = [one for one in again.journal.list_sessions() if one.client_id == "two"]
    assert not two.filters


# --- QoS 0 and receivers that lag ------------------------------------------------------------


def test_qos_0_message_reaches_a_lagging_receiver_once() -> None:
    stage = Stage(GatewayConfig(inflight_max=1))
    connect(stage, 1)
    subscribe(stage, 1, "lg/one", qos=1)
    subscribe(stage, 1, "lg/zero", qos=0)
    connect(stage, 8, "pub", properties=NO_PROPERTIES)
    for topic, payload in (("lg/one", b"1"), ("lg/one", b"2"), ("lg/zero", b"z"), ("lg/one", b"3")):
        frame = _publish_frame(topic, payload, qos=0 if payload == b"z" else 1)
        stage.turn((8, frame))
    payloads = []
    for _ in range(6):
        settle(stage)
        for first_byte, packet_id, payload in got(stage, 1):
            payloads.append(payload)
            if first_byte & 6:
                ack(stage, 1, 0x40, packet_id)
    assert sorted(payloads) == [b"1", b"2", b"3", b"z"]


def _publish_frame(topic: str, payload: bytes, *, qos: int, packet_id: int = 1) -> bytes:
    name = topic.encode()
    body = len(name).to_bytes(2, "big") + name
    if qos:
        body += packet_id.to_bytes(2, "big")
    body += b"\0" + payload
    return bytes((0x30 | qos << 1, len(body))) + body


# --- QoS 2 from clients ----------------------------------------------------------------------


def exactly_once(payload: bytes, packet_id: int, *, dup: bool = False) -> bytes:
    frame = _publish_frame("t/1", payload, qos=2, packet_id=packet_id)
    return bytes((frame[0] | 8 * dup,)) + frame[1:]


@pytest.mark.parametrize("properties", [NO_PROPERTIES, HOUR])
def test_qos_2_message_is_stored_once_however_often_it_is_sent(properties: Properties) -> None:
    stage = Stage()
    connect(stage, 1, properties=properties)
    for _ in range(3):
        stage.turn((1, exactly_once(b"a", 5, dup=True)))
    stage.turn((1, exactly_once(b"a", 5)), (1, exactly_once(b"b", 6)))
    assert stage.sent(1) == [b"\x50\x02\x00\x05"] * 3 + [b"\x50\x02\x00\x06", b"\x50\x02\x00\x05"]
    assert len(stage.stored()) == 2
    ack(stage, 1, 0x62, 5)
    assert stage.sent(1) == [b"\x70\x02\x00\x05"]
    stage.turn((1, exactly_once(b"c", 5)))
    assert len(stage.stored()) == 3


def test_qos_2_message_is_stored_once_over_reconnects_and_restarts() -> None:
    stage = Stage()
    connect(stage, 1)
    stage.turn((1, exactly_once(b"a", 5)))
    lose(stage, 1)
    assert connect(stage, 1)
    stage.turn((1, exactly_once(b"a", 5, dup=True)))
    stage = restart(stage)
    assert connect(stage, 1)
    stage.turn((1, exactly_once(b"a", 5, dup=True)))
    assert stage.sent(1) == [b"\x50\x02\x00\x05"]
    assert len(stage.stored()) == 1
    ack(stage, 1, 0x62, 5)
    stage = restart(stage)
    connect(stage, 1)
    stage.turn((1, exactly_once(b"next", 5)))
    assert len(stage.stored()) == 2


def test_qos_2_message_that_created_its_topic_is_stored_once_over_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    connect(stage, 1)
    # While a topic is being created elsewhere, no queue has a name yet.
    monkeypatch.setattr(stage.log, "describe", lambda _: "t/not known yet")
    stage.turn((1, exactly_once(b"a", 5)))
    monkeypatch.undo()
    stage = restart(stage)
    assert connect(stage, 1)
    stage.turn((1, exactly_once(b"a", 5, dup=True)))
    assert stage.sent(1) == [b"\x50\x02\x00\x05"]
    assert len(stage.stored()) == 1


def test_mark_without_its_message_does_not_lose_it() -> None:
    """The gateway died between the two: nothing was answered, so the client sends it again."""
    stage = Stage()
    connect(stage, 1)
    stage.turn((1, exactly_once(b"other", 4)))
    append = stage.log.append

    def dies_after_the_mark(messages: list[Any]) -> Any:
        return append(messages[:1])

    stage.log.append = dies_after_the_mark  # type: ignore[method-assign]
    stage.turn((1, exactly_once(b"a", 5)))
    stage.log.append = append  # type: ignore[method-assign]
    assert len(stage.stored()) == 1
    stage = restart(stage)
    assert connect(stage, 1)
    stage.turn((1, exactly_once(b"a", 5, dup=True)), (1, exactly_once(b"other", 4, dup=True)))
    assert len(stage.stored()) == 2


def test_older_message_with_the_identifier_is_not_taken_for_a_lost_one() -> None:
    """Elsewhere than in this process, the place in a mark can be too low."""
    stage = Stage()
    connect(stage, 1)
    stage.turn((1, exactly_once(b"older", 5)))
    ack(stage, 1, 0x62, 5)
    stage.clock.advance(1)
    tail, append = stage.log.tail, stage.log.append
    stage.log.tail = lambda queue, then=None: None  # type: ignore[method-assign]
    stage.log.append = lambda messages: append(messages[:1])  # type: ignore[method-assign]
    stage.turn((1, exactly_once(b"lost", 5)))
    stage.log.tail, stage.log.append = tail, append  # type: ignore[method-assign]
    stage = restart(stage)
    connect(stage, 1)
    stage.turn((1, exactly_once(b"lost", 5, dup=True)))
    assert len(stage.stored()) == 2


def test_refused_qos_2_message_frees_its_identifier() -> None:
    stage = Stage()
    connect(stage, 1)
    stage.turn((1, _publish_frame("$x", b"a", qos=2, packet_id=5)))
    assert stage.sent(1) == [b"\x50\x03\x00\x05\x90"]
    stage.turn((1, exactly_once(b"b", 5)))
    assert len(stage.stored()) == 1


def test_session_that_goes_before_it_is_sent_a_message_again_leaves_nothing() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    publish(stage, b"0")
    lose(stage, 1)
    stage.log.cold = {0}
    connect(stage, 2)
    settle(stage)
    stage.log.paged_in()
    lose(stage, 2)
    settle(stage)
    assert not stage.delivery._catch_up._resending._reads._attempts
    connect(stage, 3)
    settle(stage)
    assert got(stage, 3) == [(0x3A, 1, b"0")]


def test_release_of_an_unknown_message_is_answered() -> None:
    stage = Stage()
    connect(stage, 1)
    ack(stage, 1, 0x62, 9)
    assert stage.sent(1) == [b"\x70\x03\x00\x09\x92"]


def test_receive_maximum_counts_messages_that_are_not_released() -> None:
    stage = Stage(GatewayConfig(receive_maximum=2))
    connect(stage, 1)
    stage.turn(*[(1, exactly_once(b"a", packet_id)) for packet_id in (1, 2, 3)])
    assert stage.sent(1)[-1] == b"\xe0\x01\x93"


# --- QoS 2 to clients ------------------------------------------------------------------------


def test_queue_that_was_left_and_is_wanted_again_is_read_once() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    publish(stage, b"0")
    assert [payload for _, _, payload in got(stage, 1)] == [b"0"]
    ack(stage, 1, 0x40, 1)
    connect(stage, 9, "publisher", properties=NO_PROPERTIES)
    # Nobody wants the queue between the end of the first connection and the second one.
    again = Connect(version=5, clean_start=False, keep_alive_s=60, client_id="dev", properties=HOUR)
    message = b"\x32\x09\x00\x03t/1\x00\x01\x001"
    stage.turn((9, message), (2, encode_connect(again)), opened=[2])
    settle(stage)
    assert [payload for _, _, payload in got(stage, 2)[1:]] == [b"1"]


@pytest.mark.parametrize("properties", [NO_PROPERTIES, HOUR])
def test_qos_2_exchange_towards_a_client(properties: Properties) -> None:
    stage = Stage()
    connect(stage, 1, properties=properties)
    subscribe(stage, 1, "t/#", qos=2)
    publish(stage, b"a", qos=2)
    settle(stage)
    assert got(stage, 1) == [(0x34, 1, b"a")]
    ack(stage, 1, 0x50, 1)
    ack(stage, 1, 0x50, 1)  # PUBREC may come twice
    assert got(stage, 1) == [(0x62, 1, b""), (0x62, 1, b"")]
    ack(stage, 1, 0x70, 1)
    publish(stage, b"b", qos=2)
    settle(stage)
    assert got(stage, 1) == [(0x34, 2, b"b")]


def test_after_pubrec_only_pubrel_is_sent_again() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#", qos=2)
    publish(stage, b"a", b"b", qos=2)
    settle(stage)
    ack(stage, 1, 0x50, 1)
    stage.sent(1)
    stage = restart(stage)  # no tick has told anything
    assert connect(stage, 1)
    settle(stage)
    assert got(stage, 1) == [(0x62, 1, b""), (0x3C, 2, b"b")]
    ack(stage, 1, 0x70, 1)
    ack(stage, 1, 0x50, 2)
    ack(stage, 1, 0x70, 2)
    stage.journal.commit()
    stage.sent(1)
    stage = restart(stage)
    connect(stage, 1)
    settle(stage)
    assert got(stage, 1) == []


def test_identifiers_do_not_begin_again_when_the_log_has_lost_its_end() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#", qos=2)
    durable = {key: list(records) for key, records in stage.log.records.items()}
    publish(stage, b"cut away", qos=2)
    settle(stage)
    [(_, held, _)] = got(stage, 1)
    ack(stage, 1, 0x50, held)  # the power is cut before PUBREL comes
    for key in stage.log.records:
        stage.log.resume(key, durable.get(key, []))
    stage = restart(stage)
    stage.skips = 40_000
    assert connect(stage, 1)
    publish(stage, b"a", b"b", qos=2)
    settle(stage)
    assert [packet_id for _, packet_id, _ in got(stage, 1)] == [40_001, 40_002]


def test_identifiers_begin_at_random_places() -> None:
    places: set[int] = set()
    for _ in range(5):
        stage = Stage()
        stage.skips = None
        connect(stage, 1)
        subscribe(stage, 1, "t/#", qos=2)
        publish(stage, b"a", qos=2)
        settle(stage)
        places.update(packet_id for _, packet_id, _ in got(stage, 1))
    assert len(places) > 1


@pytest.mark.parametrize("is_there", [True, False])
def test_identifier_of_a_message_that_is_given_up_is_not_used_before_it_is_released(
    is_there: bool,
) -> None:
    stage = Stage()
    connect(stage, 1, properties=Properties(session_expiry_interval_s=3600))
    subscribe(stage, 1, "t/#", qos=2)
    publish(stage, b"x" * 100, qos=2)
    settle(stage)
    [(_, held, _)] = got(stage, 1)
    lose(stage, 1)
    small = Properties(session_expiry_interval_s=3600, maximum_packet_bytes=60)
    [key] = [key for key in stage.log.records if key[0] == "t" and stage.log.records[key]]
    if not is_there:  # retention has deleted it
        stage.log.begin_offsets[key] = 1
    connect(stage, 1, properties=small if is_there else HOUR)
    settle(stage)
    assert got(stage, 1) == [(0x62, held, b"")]
    window = stage.connections[1].session.inflight  # type: ignore[union-attr] # it is connected
    assert window.get(held) is not None
    ack(stage, 1, 0x70, held)
    assert window.get(held) is None


def test_qos_2_message_is_marked_before_it_is_sent() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#", qos=2)
    connect(stage, 2, "pub", properties=NO_PROPERTIES)
    stage.log.settles_at_once = False
    stage.turn((2, exactly_once(b"a", 1)))
    settle(stage)
    assert stage.sent(1) == []
    stage.log.settle()
    settle(stage)
    stage.log.settle()
    assert got(stage, 1) == [(0x34, 1, b"a")]


def test_qos_2_message_whose_mark_is_refused_is_not_overtaken() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#", qos=2)
    connect(stage, 2, "pub", properties=NO_PROPERTIES)
    stage.log.settles_at_once = False
    stage.turn((2, exactly_once(b"a", 1)))
    settle(stage)
    stage.log.settle(1)  # the publish, and not the mark
    stage.log.settle(error=StoreFullError("full"))
    stage.log.settle()
    stage.log.settles_at_once = True
    stage.turn((2, exactly_once(b"b", 2)))
    settle(stage)
    assert [packet[0] for packet in stage.sent(1)] == [0xE0]
    connect(stage, 3)
    settle(stage)
    assert [payload for _, _, payload in got(stage, 3)] == [b"a", b"b"]


@pytest.mark.parametrize("ticks", [False, True])
def test_queue_that_was_left_and_is_wanted_again_is_not_read_again_after_a_crash(
    ticks: bool,
) -> None:
    stage = Stage()
    publish(stage, b"before")
    connect(stage, 1, "first", properties=NO_PROPERTIES)
    subscribe(stage, 1, "t/#")
    stage.tick()  # tells where the queue is
    lose(stage, 1)
    if ticks:
        stage.tick()
    stage.log.knows_tails = False
    connect(stage, 2)
    ask_to_subscribe(stage, 2, "t/#", qos=2)
    stage.log.tell_tails()
    assert subacks(stage, 2) == [7]
    publish(stage, b"a", qos=2)
    settle(stage)
    assert [payload for _, _, payload in got(stage, 2)] == [b"a"]
    ack(stage, 2, 0x50, 1)
    ack(stage, 2, 0x70, 1)
    stage.tick()
    stage.log.knows_tails = True
    stage = restart(stage)
    connect(stage, 2)
    settle(stage)
    assert [payload for _, _, payload in got(stage, 2)] == []


@pytest.mark.parametrize("topic_filter", ["t/#", "t/1", "$share/g/t/#"])
def test_suback_waits_until_it_is_known_where_the_queues_end(topic_filter: str) -> None:
    stage = Stage()
    publish(stage, b"before")
    stage.log.knows_tails = False
    connect(stage, 1)
    ask_to_subscribe(stage, 1, topic_filter)
    ask_to_subscribe(stage, 1, "other", packet_id=8)
    publish(stage, b"not acknowledged yet")
    assert subacks(stage, 1) == []
    stage.log.tell_tails()
    stage.carry()
    stage.log.tell_tails()  # of "other"
    assert subacks(stage, 1) == [7, 8]
    stage.log.knows_tails = True
    publish(stage, b"behind")
    stage = restart(stage)  # before a tick
    connect(stage, 1)
    settle(stage)
    assert [payload for _, _, payload in got(stage, 1)] == [b"behind"]


@pytest.mark.parametrize("topic_filter", ["t/#", "t/1", "$share/g/t/#"])
@pytest.mark.parametrize("leaves", [False, True])
def test_what_the_live_path_has_still_to_read_is_not_for_a_new_subscription(
    topic_filter: str, leaves: bool
) -> None:
    stage = Stage()
    connect(stage, 1, "watches")
    subscribe(stage, 1, "t/#")
    stage.log.cold = {0}
    publish(stage, b"before")
    settle(stage)
    connect(stage, 2)
    subscribe(stage, 2, topic_filter)
    settle(stage)
    publish(stage, b"behind")
    if leaves:
        lose(stage, 2)
        connect(stage, 2)
    stage.log.paged_in()
    settle(stage)
    assert [payload for _, _, payload in got(stage, 1)] == [b"before", b"behind"]
    assert [payload for _, _, payload in got(stage, 2)] == [b"behind"]
    stage.turn(closed=[(1, CloseReason.PEER), (2, CloseReason.PEER)])
    assert stage.metrics.receivers_lagging_now == 0
    assert not stage.delivery._catch_up.elevators


@pytest.mark.parametrize("topic_filter", ["t/#", "$share/g/t/#"])
@pytest.mark.parametrize("knows_tails", [True, False])
def test_session_goes_on_in_a_log_that_has_lost_its_end(
    topic_filter: str, knows_tails: bool
) -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, topic_filter)
    publish(stage, b"a", b"b", b"c")
    settle(stage)
    ack(stage, 1, 0x40, 1, 2, 3)
    lose(stage, 1)
    stage.tick()
    [key] = [key for key in stage.log.records if key[0] == "t" and stage.log.records[key]]
    stage.log.resume(key, stage.log.records[key][:1])
    stage = restart(stage)
    connect(stage, 2, "watches")
    subscribe(stage, 2, "t/#")
    stage.log.knows_tails = knows_tails
    connect(stage, 1)
    settle(stage)
    stage.log.tell_tails()
    settle(stage)
    publish(stage, b"new")
    settle(stage)
    assert [payload for _, _, payload in got(stage, 2)] == [b"new"]
    assert [payload for _, _, payload in got(stage, 1)] == [b"new"]


def test_suback_comes_without_the_ends_of_queues_whose_broker_is_away() -> None:
    stage = Stage()
    publish(stage, b"before")
    stage.log.knows_tails = False
    for number in 1, 2:
        connect(stage, number, f"c{number}")
        ask_to_subscribe(stage, number, "t/#")
        ask_to_subscribe(stage, number, "other", packet_id=8)
    lose(stage, 2)
    stage.clock.advance(3_999)
    stage.tick()
    assert subacks(stage, 1) == []
    stage.clock.advance(1)
    stage.tick()
    assert subacks(stage, 1) == [7]
    stage.log.tell_tails()
    assert subacks(stage, 1) == [8]
    publish(stage, b"a")
    settle(stage)
    assert [payload for _, _, payload in got(stage, 1)] == [b"a"]
    assert len(stage.sessions.named("", "", 9)) == 2


def test_client_that_refuses_a_qos_2_message_is_not_sent_it_again() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#", qos=2)
    publish(stage, b"a", qos=2)
    settle(stage)
    stage.turn((1, b"\x50\x03\x00\x01\x97"))
    lose(stage, 1)
    stage.sent(1)
    connect(stage, 1)
    settle(stage)
    assert got(stage, 1) == []


# --- wills -----------------------------------------------------------------------------------


def will(delay_s: int = 0, *, qos: int = 1) -> Will:
    told = Properties(will_delay_interval_s=delay_s, content_type="text/plain")
    return Will(topic="w/dev", payload=b"gone", qos=qos, retain=False, properties=told)


def wills(stage: Stage) -> int:
    return sum(message[4] == b"gone" or b"gone" in message for message in stage.stored())


def test_will_that_the_log_refuses_later_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    connect(stage, 1, will=will())
    stage.log.settles_at_once = False
    lose(stage, 1)
    assert stage.metrics.wills_published == 0
    stage.log.settle(error=StoreFullError("its broker is away"))
    assert stage.metrics.wills_published == 0
    assert "a will message is lost" in caplog.text
    assert "its broker is away" in caplog.text


@pytest.mark.parametrize("properties", [NO_PROPERTIES, HOUR])
def test_will_is_published_when_the_connection_is_lost(properties: Properties) -> None:
    stage = Stage()
    connect(stage, 2, "watcher")
    subscribe(stage, 2, "w/#")
    connect(stage, 1, will=will(), properties=properties)
    lose(stage, 1)
    settle(stage)
    [packet] = stage.sent(2)
    message = published(packet)
    assert (message.topic, message.payload, message.qos) == ("w/dev", b"gone", 1)
    assert b"text/plain" in message.properties
    assert stage.metrics.wills_published == 1


@pytest.mark.parametrize(("reason_code", "count"), [(0, 0), (4, 1)])
def test_disconnect_says_whether_the_will_is_published(reason_code: int, count: int) -> None:
    stage = Stage()
    connect(stage, 1, will=will())
    stage.turn((1, encode_disconnect(5, reason_code)))
    assert stage.metrics.wills_published == count


def test_disconnect_that_breaks_the_protocol_does_not_cancel_the_will() -> None:
    stage = Stage()
    connect(stage, 1, will=will(), properties=NO_PROPERTIES)
    told: dict[PropertyId, Any] = {PropertyId.SESSION_EXPIRY_INTERVAL: 9}
    stage.turn((1, encode_disconnect(5, 0, told)))
    assert stage.sent(1)[0][:3] == b"\xe0\x01\x82"
    assert stage.metrics.wills_published == 1


def test_delayed_will_is_published_when_its_time_has_come() -> None:
    stage = Stage()
    connect(stage, 1, will=will(30))
    lose(stage, 1)
    stage.journal.refresh(1000)
    stage.clock.advance(29_000)
    stage.tick()
    assert stage.metrics.wills_published == 0
    stage.clock.advance(1_000)
    stage.tick()
    stage.journal.refresh(1000)
    stage.tick()
    assert stage.metrics.wills_published == 1
    assert connect(stage, 1)


def test_delayed_will_survives_a_restart() -> None:
    stage = Stage()
    connect(stage, 1, will=will(30))
    stage.tick()
    stage = restart(stage)
    stage.clock.advance(30_000)
    stage.tick()
    assert stage.metrics.wills_published == 1


def test_will_that_was_due_before_a_resume_is_published() -> None:
    stage = Stage()
    connect(stage, 1, will=will())
    stage.tick()
    stage = restart(stage)  # killed: the connection was lost without a word
    assert connect(stage, 1)
    assert stage.metrics.wills_published == 1


def test_delayed_will_is_cancelled_by_a_resume() -> None:
    stage = Stage()
    connect(stage, 1, will=will(30))
    lose(stage, 1)
    assert connect(stage, 1)
    stage.clock.advance(60_000)
    stage.journal.refresh(1000)
    stage.tick()
    assert stage.metrics.wills_published == 0


def test_delayed_will_is_published_when_its_session_ends() -> None:
    stage = Stage()
    connect(stage, 1, will=will(30))
    lose(stage, 1)
    assert not connect(stage, 1, clean_start=True)
    assert stage.metrics.wills_published == 1
    connect(stage, 2, "short", will=will(30), properties=Properties(session_expiry_interval_s=5))
    lose(stage, 2)
    stage.journal.refresh(1000)
    stage.clock.advance(5_000)
    stage.tick()
    assert stage.metrics.wills_published == 2


def test_take_over_publishes_a_will_without_delay() -> None:
    stage = Stage()
    connect(stage, 1, will=will())
    connect(stage, 2, will=will())
    assert stage.metrics.wills_published == 1


def test_shutdown_publishes_wills() -> None:
    stage = Stage()
    connect(stage, 1, will=will(), properties=NO_PROPERTIES)
    stage.clients.shut_down("end")
    assert stage.metrics.wills_published == 1


# --- options of subscriptions ----------------------------------------------------------------


def test_all_identifiers_of_matching_filters_are_told() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/#", qos=0, identifier=3)
    subscribe(stage, 1, "t/+", identifier=200)
    subscribe(stage, 1, "t/1", qos=0)
    publish(stage, b"a")
    settle(stage)
    [packet] = stage.sent(1)
    message = published(packet)
    assert message.qos == 1
    assert sorted((b"\x0b\x03", b"\x0b\xc8\x01")) == sorted(
        (message.properties[:2], message.properties[2:])
        if message.properties[1] == 3
        else (message.properties[3:], message.properties[:3])
    )


def test_topic_aliases_are_set_where_the_client_takes_them() -> None:
    stage = Stage()
    told = Properties(topic_alias_maximum=1)
    connect(stage, 1, properties=told)
    subscribe(stage, 1, "#", qos=0)
    publish(stage, b"a", b"b")
    publish(stage, b"c", topic="u/1")
    settle(stage)
    packets = stage.sent(1)
    assert [published(packet).topic for packet in packets] == ["t/1", "", "u/1"]
    assert [published(packet).properties for packet in packets] == [b"\x23\0\x01"] * 2 + [b""]


def test_filter_added_in_the_middle_of_a_pass_is_read_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elevator, "SLICE_COUNT_BY_TAGS", 1)
    monkeypatch.setattr(elevator, "LOOKS_MAX", 1)
    stage = Stage(GatewayConfig(topic_queue_count=1))
    connect(stage, 1)
    subscribe(stage, 1, "t/a", "t/c")
    lose(stage, 1)
    publish(stage, b"1", b"2", b"3", topic="t/a")
    connect(stage, 1)
    subscribe(stage, 1, "t/b")  # it rides now, and the records that come are behind its car
    publish(stage, b"b", topic="t/b")
    settle(stage)
    assert [payload for _, _, payload in got(stage, 1)] == [b"1", b"2", b"3", b"b"]


def test_a_pass_looks_at_more_records_at_once_where_few_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elevator, "SLICE_COUNT_BY_TAGS", 2)
    monkeypatch.setattr(elevator, "LOOKS_MAX", 16)
    stage = Stage(GatewayConfig(topic_queue_count=1))
    connect(stage, 1)
    subscribe(stage, 1, "t/mine")
    lose(stage, 1)
    for _ in range(30):
        publish(stage, b"x", topic="t/other")
    publish(stage, b"1", topic="t/mine")
    looked: list[int] = []
    read = stage.log.read

    def counted(*args: Any, count_max: int, **kwargs: Any) -> Any:
        looked.append(count_max)
        return read(*args, count_max=count_max, **kwargs)

    monkeypatch.setattr(stage.log, "read", counted)
    connect(stage, 1)
    settle(stage)
    assert [payload for _, _, payload in got(stage, 1)] == [b"1"]
    assert looked == [2, 4, 8, 16, 16]


# --- topics with fewer queues ----------------------------------------------------------------


def publish_each(stage: Stage, *payloads: bytes) -> None:
    """Publish each message under a name of its own, so that all queues of "t" have some."""
    for payload in payloads:
        publish(stage, payload, topic=f"t/{payload.decode()}")


@pytest.mark.parametrize("read", [8, 2])
def test_session_gets_what_waits_in_queues_that_are_closed_meanwhile(read: int) -> None:
    stage = Stage(GatewayConfig(topic_queue_count=8))
    bodies = [b"%d" % number for number in range(20)]
    publish_each(stage, b"early")
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    publish_each(stage, *bodies[:10])
    stage.log.change_queues("t", read=read, write=2)
    publish_each(stage, *bodies[10:])
    stage = restart(stage)
    assert connect(stage, 1)
    settle(stage)
    found = got(stage, 1)
    assert sorted(payload for _, _, payload in found) == sorted(bodies)
    ack(stage, 1, 0x40, *(packet_id for _, packet_id, _ in found))
    lose(stage, 1)
    # It has got to the end of the queues that are closed, also of those that are opened again.
    stage = restart(stage)
    stage.log.change_queues("t", read=8, write=8)
    connect(stage, 1)
    settle(stage)
    assert got(stage, 1) == []
    publish_each(stage, *bodies)
    settle(stage)
    assert sorted(payload for _, _, payload in got(stage, 1)) == sorted(bodies)
    assert stage.metrics.cursors_dropped == 0


def test_what_waits_in_closed_queues_of_a_younger_topic_comes_when_they_are_opened() -> None:
    stage = Stage(GatewayConfig(topic_queue_count=8))
    bodies = [b"%d" % number for number in range(20)]
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    publish_each(stage, *bodies)
    stage.log.change_queues("t", read=2, write=2)
    stage = restart(stage)
    connect(stage, 1)
    settle(stage)
    found = got(stage, 1)
    assert 0 < len(found) < len(bodies)
    ack(stage, 1, 0x40, *(packet_id for _, packet_id, _ in found))
    lose(stage, 1)
    stage.log.change_queues("t", read=8, write=8)
    connect(stage, 1)
    settle(stage)
    found += got(stage, 1)
    assert sorted(payload for _, _, payload in found) == sorted(bodies)


@pytest.mark.parametrize("knows_tails", [True, False])
def test_session_gets_nothing_older_than_itself_from_queues_that_are_opened(
    *, knows_tails: bool
) -> None:
    stage = Stage(GatewayConfig(topic_queue_count=8))
    bodies = [b"%d" % number for number in range(20)]
    publish_each(stage, *(b"old" + body for body in bodies))
    stage.log.change_queues("t", read=2, write=2)
    for number in (1, 2, 3):
        pass_ms(stage, 60_000)
        connect(stage, number, f"dev{number}")
        subscribe(stage, number, "t/#")
        lose(stage, number)
    pass_ms(stage, 60_000)
    stage.log.change_queues("t", read=8, write=8)
    publish_each(stage, *bodies)
    stage = restart(stage)
    stage.log.knows_tails = knows_tails
    for number in (1, 2, 3):
        connect(stage, number, f"dev{number}")
    lose(stage, 2)  # before it is known where it begins
    connect(stage, 2, "dev2")
    while stage.log.is_asked:
        stage.log.tell_tails()
    settle(stage)
    for number in (1, 2, 3):
        found = got(stage, number)
        assert sorted(payload for _, _, payload in found) == sorted(bodies)


def pass_ms(stage: Stage, ms: int) -> None:
    stage.clock.advance(ms)
    stage.log.now_ms = stage.clock.now_ms()


def test_session_whose_client_stays_goes_on_in_queues_that_are_closed() -> None:
    stage = Stage(GatewayConfig(topic_queue_count=8))
    bodies = [b"%d" % number for number in range(20)]
    connect(stage, 1, properties=Properties(session_expiry_interval_s=3600, receive_maximum=1))
    subscribe(stage, 1, "t/#")
    publish_each(stage, *bodies)
    settle(stage)
    stage.log.change_queues("t", read=2, write=2)
    lose(stage, 1)
    stage = restart(stage)
    connect(stage, 1)
    settle(stage)
    assert {payload for _, _, payload in got(stage, 1)} == set(bodies)


def test_places_in_queues_that_are_gone_are_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(GatewayConfig(topic_queue_count=8))
    publish_each(stage, b"first")
    connect(stage, 1)
    subscribe(stage, 1, "t/#")
    lose(stage, 1)
    stage.log.delete_topic("t")
    stage = restart(stage)
    assert connect(stage, 1)
    assert stage.metrics.cursors_dropped == 8
    assert "continues without a queue that is gone" in caplog.text


# --- $SYS topics -----------------------------------------------------------------------------


def test_sys_topics_come_at_once_and_then_at_intervals() -> None:
    stage = Stage()
    connect(stage, 1, properties=NO_PROPERTIES)
    stage.turn((1, encode_subscribe(5, Subscribe(7, (SubscribeEntry("$SYS/broker/+", 1),)))))
    at_once = {published(p).topic: p for p in stage.sent(1) if p[0] >> 4 == 3}
    assert set(at_once) == {"$SYS/broker/version", "$SYS/broker/uptime"}
    assert {packet[0] for packet in at_once.values()} == {0x31}
    stage.clock.advance(9_000)
    stage.tick()
    assert stage.sent(1) == []
    stage.clock.advance(1_000)
    stage.tick()
    later = {published(p).topic: published(p).payload for p in stage.sent(1)}
    assert later["$SYS/broker/uptime"] == b"10 seconds"
    assert stage.stored() == []


@pytest.mark.parametrize("retain_handling", [1, 2])
def test_retain_handling_holds_for_sys_topics(retain_handling: int) -> None:
    stage = Stage()
    connect(stage, 1, properties=NO_PROPERTIES)
    for is_told in (retain_handling == 1, False):
        ask_to_subscribe(stage, 1, "$SYS/broker/uptime", retain_handling=retain_handling)
        assert any(packet[0] == 0x31 for packet in stage.sent(1)) == is_told


def test_sys_topics_are_not_for_wildcards_that_begin_a_filter() -> None:
    stage = Stage()
    connect(stage, 1, properties=NO_PROPERTIES)
    subscribe(stage, 1, "#", "+/broker/uptime")
    stage.clock.advance(10_000)
    stage.tick()
    assert stage.sent(1) == []


def test_subscription_to_sys_topics_outlives_its_connection() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "$SYS/broker/clients/#", identifier=4)
    lose(stage, 1)
    stage = restart(stage)
    connect(stage, 1)
    stage.clock.advance(10_000)
    stage.tick()
    [packet] = stage.sent(1)
    message = published(packet)
    assert (message.topic, message.payload) == ("$SYS/broker/clients/connected", b"1")
    assert (packet[0], message.properties) == (0x30, b"\x0b\x04")
