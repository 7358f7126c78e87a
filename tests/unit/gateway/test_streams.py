"""``$stream/{filter}``: the log is read for one filter from a place in the past, and on."""

from __future__ import annotations

import pytest

from motelog.gateway.deliver import elevator
from motelog.gateway.mqtt.packet_types import Properties, Subscribe, SubscribeEntry, Unsubscribe
from motelog.gateway.mqtt.subscribe import encode_subscribe, encode_unsubscribe
from motelog.gateway.sessions.stream import StreamStart, parse_start
from tests.support.gateway_stage import Stage
from tests.unit.gateway.test_sessions import (
    ack,
    connect,
    got,
    lose,
    publish,
    published,
    restart,
    settle,
    subscribe,
)


def stream(
    stage: Stage, number: int, topic_filter: str, *starts: str, qos: int = 1, version: int = 5
) -> None:
    told = Properties(user_properties=tuple(("stream-offset", start) for start in starts))
    entries = (SubscribeEntry(topic_filter, qos),)
    stage.turn((number, encode_subscribe(version, Subscribe(8, entries, told))))


def suback(stage: Stage, number: int) -> int | None:
    """Return the reason code of the SUBACK, if there was one."""
    stage.carry()
    found = [packet for packet in stage.output.sent[number] if packet[0] == 0x90]
    for packet in found:
        stage.output.sent[number].remove(packet)
    return found[0][-1] if found else None


def payloads(stage: Stage, number: int) -> list[bytes]:
    """Return what a client gets until there is no more, acknowledging it."""
    found = []
    settle(stage)
    while messages := got(stage, number):
        for first_byte, packet_id, payload in messages:
            if first_byte >> 4 == 3:
                found.append(payload)
                if first_byte & 2:
                    ack(stage, number, 0x40, packet_id)
        settle(stage)
    return found


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", StreamStart()),
        ("offset:0", StreamStart()),
        ("offset:12", StreamStart(queue_offset=12)),
        ("1769846400000", StreamStart(time_ms=1_769_846_400_000)),
        ("2026-01-31T08:00:00Z", StreamStart(time_ms=1_769_846_400_000)),
        ("2026-01-31T09:00:00+01:00", StreamStart(time_ms=1_769_846_400_000)),
        ("2026-01-31 08:00:00.5", StreamStart(time_ms=1_769_846_400_500)),
        ("1960-01-01", StreamStart()),
    ],
)
def test_start(text: str, start: StreamStart) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize(
    "text", ["", "latest", "offset:", "offset:-1", "-1", "1e3", "٣", "9" * 19, "2026-13-01"]
)
def test_text_that_is_no_start(text: str) -> None:
    with pytest.raises(ValueError, match="stream-offset must be 'earliest'"):
        parse_start(text)


@pytest.mark.parametrize(
    ("topic_filter", "starts"),
    [
        ("$stream/t/#", []),
        ("$stream/t/#", ["yesterday"]),
        ("$stream/t/#", ["earliest", "earliest"]),
        ("$stream/", ["earliest"]),
        ("$stream/$share/g/t", ["earliest"]),
        ("$stream/$share/g", ["earliest"]),
    ],
)
def test_stream_without_a_start_or_filter_is_refused(topic_filter: str, starts: list[str]) -> None:
    stage = Stage()
    connect(stage, 1)
    stream(stage, 1, topic_filter, *starts)
    assert suback(stage, 1) == 0x8F


def test_mqtt_3_has_no_property_for_the_start() -> None:
    stage = Stage()
    connect(stage, 1, version=4)
    stream(stage, 1, "$stream/t/#", version=4)
    assert suback(stage, 1) == 0x80


@pytest.mark.parametrize("version_of_log", ["warm", "slow"])
def test_stream_begins_with_the_first_message_and_goes_on_live(version_of_log: str) -> None:
    stage = Stage()
    publish(stage, b"a", b"b")
    connect(stage, 1)
    stage.log.knows_tails = version_of_log == "warm"
    stream(stage, 1, "$stream/t/#", "earliest", qos=2)
    if version_of_log == "slow":
        assert suback(stage, 1) is None
        stage.log.tell_tails()
    assert suback(stage, 1) == 2
    assert payloads(stage, 1) == [b"a", b"b"]
    publish(stage, b"c")
    assert payloads(stage, 1) == [b"c"]


def test_stream_begins_at_a_time() -> None:
    stage = Stage()
    publish(stage, b"old")
    stage.log.now_ms += 10_000
    publish(stage, b"a", b"b")
    connect(stage, 1)
    stream(stage, 1, "$stream/t/#", str(stage.log.now_ms))
    assert suback(stage, 1) == 1
    assert payloads(stage, 1) == [b"a", b"b"]


def test_stream_begins_at_an_offset_and_not_before_the_first_message() -> None:
    stage = Stage()
    publish(stage, b"a", b"b", b"c", b"d")
    [key] = [key for key, records in stage.log.records.items() if key[0] == "t" and records]
    stage.log.begin_offsets[key] = 1
    connect(stage, 1)
    stream(stage, 1, "$stream/t/#", "offset:2")
    suback(stage, 1)
    assert payloads(stage, 1) == [b"c", b"d"]
    stream(stage, 1, "$stream/t/#", "offset:0")
    suback(stage, 1)
    assert payloads(stage, 1) == [b"b", b"c", b"d"]
    assert stage.metrics.messages_lost_to_retention == 0


def test_stream_that_begins_in_the_future_gets_what_is_new() -> None:
    stage = Stage()
    publish(stage, b"a")
    connect(stage, 1)
    stream(stage, 1, "$stream/t/#", "offset:1000")
    suback(stage, 1)
    publish(stage, b"b")
    assert payloads(stage, 1) == [b"b"]


def test_other_filters_get_nothing_again() -> None:
    stage = Stage()
    connect(stage, 1)
    subscribe(stage, 1, "t/1", "+/2")
    for topic in ("t/1", "t/2", "t/3"):
        publish(stage, topic.encode(), topic=topic)
    assert payloads(stage, 1) == [b"t/1", b"t/2"]
    stream(stage, 1, "$stream/t/3", "earliest")
    suback(stage, 1)
    assert payloads(stage, 1) == [b"t/3"]
    # The session has this filter, and it is replayed alone.
    stream(stage, 1, "$stream/t/1", "earliest")
    suback(stage, 1)
    assert payloads(stage, 1) == [b"t/1"]
    publish(stage, b"live", topic="t/2")
    assert payloads(stage, 1) == [b"live"]


def test_stream_takes_nothing_from_a_session_that_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elevator, "SLICE_COUNT", 2)
    stage = Stage()
    connect(stage, 1, properties=Properties(session_expiry_interval_s=3600, receive_maximum=1))
    subscribe(stage, 1, "t/1")
    publish(stage, b"a", b"b", b"c")
    settle(stage)
    [(_, first, payload)] = got(stage, 1)
    assert payload == b"a"
    # It lags at b: a later start passes over nothing that the filter is owed.
    stream(stage, 1, "$stream/t/1", "offset:1000")
    suback(stage, 1)
    ack(stage, 1, 0x40, first)
    assert payloads(stage, 1) == [b"b", b"c"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_stream_of_a_stored_session_goes_on_after_a_restart(is_killed: bool) -> None:
    stage = Stage()
    publish(stage, b"a", b"b", b"c", b"d")
    connect(stage, 1, properties=Properties(session_expiry_interval_s=3600, receive_maximum=2))
    subscribe(stage, 1, "t/2")
    stream(stage, 1, "$stream/t/1", "offset:1")
    suback(stage, 1)
    settle(stage)
    assert [payload for _, _, payload in got(stage, 1)] == [b"b", b"c"]
    stage.tick()
    if not is_killed:
        lose(stage, 1)
    again = restart(stage)
    assert connect(again, 1)
    assert payloads(again, 1) == [b"b", b"c", b"d"]
    publish(again, b"e")
    assert payloads(again, 1) == [b"e"]


@pytest.mark.parametrize("topic_filter", ["$stream/t/#", "t/#"])
def test_unsubscribe_takes_both_names(topic_filter: str) -> None:
    stage = Stage()
    connect(stage, 1)
    stream(stage, 1, "$stream/t/#", "earliest")
    stage.sent(1)
    stage.turn((1, encode_unsubscribe(5, Unsubscribe(9, (topic_filter,)))))
    [unsuback] = stage.sent(1)
    assert unsuback[-1] == 0
    publish(stage, b"a")
    assert payloads(stage, 1) == []


def test_retained_messages_are_not_sent_to_a_stream_as_retained() -> None:
    stage = Stage()
    connect(stage, 2, "publisher 2")
    name = b"\0\x03t/1"
    stage.turn((2, bytes((0x31, len(name) + 2)) + name + b"\0r"))
    connect(stage, 1)
    stream(stage, 1, "$stream/t/#", "earliest", qos=0)
    suback(stage, 1)
    settle(stage)
    [message] = stage.sent(1)
    assert published(message).payload == b"r"
    assert not message[0] & 1


def test_later_changes_wait_for_the_start() -> None:
    stage = Stage()
    publish(stage, b"a")
    connect(stage, 1)
    stage.log.knows_tails = False
    stream(stage, 1, "$stream/t/#", "earliest")
    stage.turn((1, encode_unsubscribe(5, Unsubscribe(9, ("t/#",)))))
    stream(stage, 1, "$stream/u/#", "earliest")
    assert stage.sent(1) == []
    stage.log.tell_tails()
    stage.carry()
    stage.log.tell_tails()
    assert [packet[0] for packet in stage.sent(1)] == [0x90, 0xB0, 0x90]
    assert stage.metrics.subscriptions_now == 1
    # Not without end.
    stream(stage, 1, "$stream/t/#", "earliest")
    for _ in range(17):
        stage.turn((1, encode_unsubscribe(5, Unsubscribe(9, ("t/#",)))))
    [disconnect] = stage.sent(1)
    assert (disconnect[0], disconnect[2]) == (0xE0, 0x97)
    stage.log.tell_tails()
    assert stage.metrics.subscriptions_now == 0
    assert stage.delivery.positions() == {}


def test_packets_of_a_stream_whose_client_has_gone() -> None:
    stage = Stage()
    publish(stage, b"a")
    connect(stage, 1)
    stage.log.knows_tails = False
    stream(stage, 1, "$stream/t/#", "earliest")
    lose(stage, 1)
    stage.log.tell_tails()
    assert stage.metrics.subscriptions_now == 0
    assert stage.delivery.positions() == {}
