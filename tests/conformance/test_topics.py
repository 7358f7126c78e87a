"""Topic names and topic filters: section 4.7."""

from __future__ import annotations

import pytest

from tests.conformance.peers import Gateway, publish_packet, subscribe_packet, unsubscribe_packet
from tests.conformance.statements import proves

MALFORMED, PROTOCOL_ERROR, TOPIC_FILTER_INVALID = 0x81, 0x82, 0x8F


@pytest.mark.parametrize("topic_filter", ["a/#/b", "a#", "#a", "##", "a/b#", "#/"])
@proves(mqtt3="MQTT-4.7.1-2", mqtt5="MQTT-4.7.1-1")
def test_the_multi_level_wildcard_is_the_last_level(
    gateway: Gateway, version: int, topic_filter: str
) -> None:
    peer = gateway.connect(version)
    peer.send(subscribe_packet(version, topic_filter))
    peer.assert_ended(TOPIC_FILTER_INVALID)


@pytest.mark.parametrize("topic_filter", ["a+", "+a", "a/b+/c", "++", "a/+b/#"])
@proves(mqtt3="MQTT-4.7.1-3", mqtt5="MQTT-4.7.1-2")
def test_the_single_level_wildcard_is_a_whole_level(
    gateway: Gateway, version: int, topic_filter: str
) -> None:
    peer = gateway.connect(version)
    peer.send(subscribe_packet(version, topic_filter))
    peer.assert_ended(TOPIC_FILTER_INVALID)


@pytest.mark.parametrize(
    ("topic_filter", "matched", "others"),
    [
        ("sport/#", ["sport", "sport/", "sport/tennis", "sport/a/b"], ["sports", "/sport"]),
        ("#", ["a", "/", "a/b", "/a"], []),
        ("sport/+", ["sport/", "sport/a"], ["sport", "sport/a/b"]),
        ("+", ["finance"], ["/finance", "a/"]),
        ("/+", ["/finance"], ["finance"]),
        ("+/+", ["/finance", "a/b", "/"], ["a", "a/b/c"]),
        ("+/tennis/#", ["a/tennis", "a/tennis/b"], ["tennis", "a/b/tennis"]),
        ("a/+/c", ["a/b/c", "a//c"], ["a/c", "a/b/b/c"]),
    ],
)
@proves(
    mqtt3="MQTT-4.7.1-1 MQTT-4.7.1-2 MQTT-4.7.1-3",
    mqtt5="MQTT-4.7.0-1 MQTT-4.7.1-1 MQTT-4.7.1-2",
)
def test_wildcards_match_levels(
    gateway: Gateway, version: int, topic_filter: str, matched: list[str], others: list[str]
) -> None:
    peer, publisher = gateway.connect(version), gateway.connect(version)
    peer.subscribe(topic_filter, qos=0)
    for topic in [*matched, *others]:
        publisher.publish(topic)
    assert sorted(message.topic for message in peer.messages()) == sorted(matched)


@pytest.mark.parametrize("topic", ["$SYS/a", "$own/a", "$/a", "$"])
@proves(mqtt3="MQTT-4.7.2-1", mqtt5="MQTT-4.7.2-1")
def test_leading_wildcards_do_not_match_names_that_begin_with_a_dollar(
    gateway: Gateway, version: int, topic: str
) -> None:
    peer = gateway.connect(version)
    for topic_filter in ("#", "+", "+/a", "+/#"):
        peer.subscribe(topic_filter)
    publisher = gateway.connect(version)
    publisher.publish(topic)
    assert peer.packets() == []


@proves(mqtt3="MQTT-4.7.3-1", mqtt5="MQTT-4.7.3-1")
def test_an_empty_filter_or_name_ends_the_connection(gateway: Gateway, version: int) -> None:
    for make in (publish_packet, subscribe_packet, unsubscribe_packet):
        peer = gateway.connect(version)
        peer.send(make(version, ""))
        assert peer.is_closed


@proves(mqtt3="MQTT-4.7.3-1", mqtt5="MQTT-4.7.3-1")
def test_names_of_one_character_are_legal(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.subscribe("a", "/", " ")
    for topic in ("a", "/", " "):
        peer.publish(topic)
    assert [message.topic for message in peer.messages()] == ["a", "/", " "]


@proves(mqtt3="MQTT-4.7.3-3", mqtt5="MQTT-4.7.3-3")
def test_the_longest_names_and_filters_are_answered(gateway: Gateway, version: int) -> None:
    # No longer one fits into its length field; the gateway's own limit is lower, and says so.
    longest = "x" * 65_535
    peer = gateway.connect(version)
    assert peer.subscribe(longest) == [0x8F if version == 5 else 0x80]
    peer.unsubscribe(longest)
    peer.assert_open()
    peer.publish(longest, qos=1)
    if version == 5:
        assert peer.packet().body[2:3] == b"\x90"
        peer.assert_open()
    else:
        assert peer.is_closed


@proves(mqtt3="MQTT-4.7.3-4", mqtt5="MQTT-4.7.3-4")
def test_names_are_compared_as_they_are(gateway: Gateway, version: int) -> None:
    # Composed and decomposed, upper and lower case, half and full width, empty levels, escapes.
    names = ["n/é", "n/e\u0301", "n/É", "n/a", "n/A", "n/\uff21", "n//a", "n/a/", "n/%61", "n/ a"]
    peers = {name: gateway.connect(version) for name in names}
    for name, peer in peers.items():
        peer.subscribe(name)
    publisher = gateway.connect(version)
    for name in names:
        publisher.publish(name)
    for name, peer in peers.items():
        assert [message.topic for message in peer.messages()] == [name]
