"""SUBSCRIBE and UNSUBSCRIBE: what is granted, what is refused with which code, per version."""

from __future__ import annotations

import pytest

from motelog.gateway.config import GatewayConfig
from motelog.gateway.mqtt.packet_types import Properties, Subscribe, SubscribeEntry, Unsubscribe
from motelog.gateway.mqtt.subscribe import (
    decode_suback,
    decode_unsuback,
    encode_subscribe,
    encode_unsubscribe,
)
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscribe_rules import (
    Granted,
    NotGranted,
    Subscribed,
    Unsubscribed,
    subscribe,
    unsubscribe,
)
from motelog.gateway.sessions.subscriptions import HAS_IDENTIFIER, NO_LOCAL, RETAIN_AS_PUBLISHED
from tests.support.mqtt import body_of

CONFIG = GatewayConfig(subscriptions_max=3, topic_bytes_max=300)
VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


def session_with(*filters: str) -> Session:
    session = Session("c")
    for topic_filter in filters:
        session.add_filter(topic_filter)
    return session


def asked(version: int, session: Session, *entries: SubscribeEntry) -> Subscribed:
    raw = encode_subscribe(version, Subscribe(7, entries))
    return subscribe(CONFIG, session, version, raw[0], body_of(raw))


def codes(version: int, subscribed: Subscribed) -> list[int]:
    suback = decode_suback(version, body_of(subscribed.suback))
    assert suback.packet_id == 7
    return list(suback.reason_codes)


@pytest.mark.parametrize("qos", [0, 1, 2])
@VERSIONS
def test_filter_is_granted_as_asked(version: int, qos: int) -> None:
    subscribed = asked(version, session_with(), SubscribeEntry("a/#", qos))
    assert subscribed.decisions == (
        Granted("a/#", options=qos, qos=qos, identifier=0, replays=True),
    )
    assert codes(version, subscribed) == [qos]


def test_no_local_is_granted_to_version_5() -> None:
    subscribed = asked(5, session_with(), SubscribeEntry("a", 1, no_local=True))
    assert subscribed.decisions == (
        Granted("a", options=1 | NO_LOCAL, qos=1, identifier=0, replays=True),
    )
    assert codes(5, subscribed) == [1]


def test_retain_as_published_is_granted_to_version_5() -> None:
    subscribed = asked(5, session_with(), SubscribeEntry("a", 2, retain_as_published=True))
    options = 2 | RETAIN_AS_PUBLISHED
    assert subscribed.decisions == (
        Granted("a", options=options, qos=2, identifier=0, replays=True),
    )


@pytest.mark.parametrize(
    ("topic_filter", "reason_code"),
    [
        ("$share/g/$SYS/a", 0x87),
        ("$own/#", 0x87),
        ("$SYS", 0x87),
        ("$", 0x87),
        ("a" * 301, 0x8F),
        ("ü" * 151, 0x8F),  # bytes count
        ("/" * 128, 0x8F),  # 129 levels
        ("/" * 127 + "/#", 0x8F),
    ],
)
@VERSIONS
def test_refused_filter_has_its_code(version: int, topic_filter: str, reason_code: int) -> None:
    entries = (SubscribeEntry("ok", 1), SubscribeEntry(topic_filter, 1), SubscribeEntry("b", 0))
    subscribed = asked(version, session_with(), *entries)
    assert codes(version, subscribed) == [1, reason_code if version == 5 else 0x80, 0]
    refused = subscribed.decisions[1]
    assert isinstance(refused, NotGranted)
    assert (refused.topic_filter, refused.reason_code) == (topic_filter, reason_code)
    assert [type(decision) for decision in subscribed.decisions] == [Granted, NotGranted, Granted]


def test_filter_of_many_levels_is_granted_and_removed() -> None:
    deepest = "/+" * 127
    assert codes(4, asked(4, session_with(), SubscribeEntry(deepest, 1))) == [1]
    too_deep = removed(5, session_with("a"), deepest + "/+", "a")
    assert decode_unsuback(5, body_of(too_deep.unsuback)).reason_codes == (0x11, 0)


@VERSIONS
def test_subscriptions_of_a_session_are_bounded(version: int) -> None:
    # Two are there, one is new, one is replaced, one is asked for twice; then it is full.
    entries = [SubscribeEntry(name, 1) for name in ("x", "one", "x", "y", "two", "z")]
    subscribed = asked(version, session_with("one", "two"), *entries)
    full = 0x97 if version == 5 else 0x80
    assert codes(version, subscribed) == [1, 1, 1, full, 1, full]


def test_refused_filter_takes_no_room() -> None:
    entries = [SubscribeEntry(name, 0) for name in ("$own/x", "a" * 301, "x")]
    subscribed = asked(5, session_with("one", "two"), *entries)
    assert codes(5, subscribed) == [0x87, 0x8F, 0]


def test_rules_do_not_change_the_session() -> None:
    session = session_with("one")
    asked(5, session, SubscribeEntry("x", 1))
    removed(5, session, "one")
    assert list(session.filters) == ["one"]


def test_subscription_identifier_is_for_all_filters_of_the_packet() -> None:
    properties = Properties(subscription_identifiers=(300,))
    entries = (SubscribeEntry("a", 0), SubscribeEntry("b", 1))
    raw = encode_subscribe(5, Subscribe(7, entries, properties))
    subscribed = subscribe(CONFIG, session_with(), 5, raw[0], body_of(raw))
    assert subscribed.decisions == (
        Granted("a", options=HAS_IDENTIFIER, qos=0, identifier=300, replays=True),
        Granted("b", options=1 | HAS_IDENTIFIER, qos=1, identifier=300, replays=True),
    )


def removed(version: int, session: Session, *filters: str) -> Unsubscribed:
    raw = encode_unsubscribe(version, Unsubscribe(7, filters))
    return unsubscribe(session, version, raw[0], body_of(raw))


@VERSIONS
def test_unsuback_says_what_was_there(version: int) -> None:
    decision = removed(version, session_with("a", "b", "c"), "b", "x", "b", "a")
    assert decision.removed == ("b", "a")
    unsuback = decode_unsuback(version, body_of(decision.unsuback))
    assert unsuback.packet_id == 7
    assert list(unsuback.reason_codes) == ([0, 0x11, 0x11, 0] if version == 5 else [])
