"""Topic aliases towards clients: MQTT 5.0 section 3.3.2.3.4."""

from __future__ import annotations

from tests.conformance.peers import Gateway, Message
from tests.conformance.statements import proves


def names(messages: list[Message], maximum: int) -> list[str]:
    """Return the topic names, where aliases stand for some."""
    known: dict[int, str] = {}
    found = []
    for message in messages:
        alias = message.properties.topic_alias
        if alias is not None:
            assert 1 <= alias <= maximum
            if message.topic:
                known[alias] = message.topic
        found.append(message.topic or known[alias or 0])
    return found


@proves(mqtt5="MQTT-3.1.2-27")
def test_a_client_without_a_maximum_gets_no_aliases(gateway: Gateway, version: int) -> None:
    peers = [gateway.connect(version), gateway.connect(version, topic_alias_maximum=0)]
    publisher = gateway.connect(version)
    for peer in peers:
        peer.subscribe("alias/+", qos=0)
    for n in range(20):
        publisher.publish(f"alias/{n % 2}", topic_alias=1 + n % 2)
    for peer in peers:
        messages = peer.messages()
        assert [message.topic for message in messages] == [f"alias/{n % 2}" for n in range(20)]
        assert {message.properties.topic_alias for message in messages} == {None}


@proves(mqtt5="MQTT-3.1.2-26 MQTT-3.3.2-11 MQTT-3.3.2-8")
def test_no_alias_is_0_or_above_the_clients_maximum(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version, topic_alias_maximum=3), gateway.connect(version)
    peer.subscribe("alias/#", qos=0)
    topics = [f"alias/{n % 5}" for n in range(40)]
    for topic in topics:
        publisher.publish(topic)
    assert names(peer.messages(), 3) == topics


@proves(mqtt5="MQTT-3.3.2-11")
def test_a_client_that_allows_aliases_gets_some(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version, topic_alias_maximum=3), gateway.connect(version)
    peer.subscribe("alias/a", qos=0)
    for _ in range(10):
        publisher.publish("alias/a")
    assert "" in [message.topic for message in peer.messages()]


@proves(mqtt5="MQTT-3.3.2-7")
def test_aliases_towards_a_client_end_with_its_connection(gateway: Gateway, version: int) -> None:
    publisher = gateway.connect(version)
    for _ in range(3):
        peer = gateway.connect(version, "aliases", topic_alias_maximum=5)
        peer.subscribe("alias/a", qos=0)
        for _ in range(3):
            publisher.publish("alias/a")
        assert names(peer.messages(), 5) == ["alias/a"] * 3
        peer.drop()
