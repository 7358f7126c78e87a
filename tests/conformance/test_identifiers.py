"""Subscription identifiers: MQTT 5.0 sections 3.3.4 and 3.8.2."""

from __future__ import annotations

from tests.conformance.peers import Gateway
from tests.conformance.statements import proves


@proves(mqtt5="MQTT-3.3.4-3 MQTT-3.3.4-4")
def test_one_copy_has_the_identifiers_of_all_that_match(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version)
    peer.subscribe("id/a", identifier=1)
    peer.subscribe("id/+", identifier=268_435_455)
    peer.subscribe("id/#")
    peer.subscribe("other", identifier=7)
    gateway.connect(version).publish("id/a", b"m", qos=1)
    (message,) = peer.messages()
    assert sorted(message.properties.subscription_identifiers) == [1, 268_435_455]


@proves(mqtt5="MQTT-3.3.4-3 MQTT-3.8.4-3")
def test_a_replaced_subscription_has_its_new_identifier(gateway: Gateway, version: int) -> None:
    peer, publisher = gateway.connect(version), gateway.connect(version)
    for identifier in (3, 4, None):
        peer.subscribe("id/a", identifier=identifier)
        publisher.publish("id/a", qos=1)
        expected = () if identifier is None else (identifier,)
        assert peer.message().properties.subscription_identifiers == expected


@proves(mqtt5="MQTT-3.3.4-3")
def test_others_do_not_get_a_clients_identifiers(gateway: Gateway, version: int) -> None:
    peers = [gateway.connect(version) for _ in range(3)]
    for peer, identifier in zip(peers, (1, 2, None), strict=True):
        peer.subscribe("id/a", identifier=identifier)
    gateway.connect(version).publish("id/a", qos=1)
    found = [peer.message().properties.subscription_identifiers for peer in peers]
    assert found == [(1,), (2,), ()]
