"""Sessions that outlive connections: sections 3.1.2, 4.1 and 4.4."""

from __future__ import annotations

from dataclasses import replace

from motelog.gateway.mqtt.packet_types import PacketType
from tests.conformance.peers import Gateway, Peer
from tests.conformance.statements import proves


@proves(
    mqtt3="MQTT-3.1.2-4 MQTT-3.1.4-3 MQTT-3.2.2-2 MQTT-4.1.0-1",
    mqtt5="MQTT-3.1.2-5 MQTT-3.1.4-4 MQTT-3.2.2-3 MQTT-4.1.0-1",
)
def test_a_session_goes_on_with_the_next_connection(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "stays")
    assert not peer.connack.session_present
    peer.subscribe("session/#", "other")
    for end in (Peer.disconnect, Peer.drop):
        end(peer)
        gateway.pass_s(60)
        peer = gateway.connect_persistent(version, "stays")
        assert peer.connack.session_present
        gateway.connect(version).publish("session/a", b"live", qos=1)
        message = peer.message()
        assert (message.payload, message.qos) == (b"live", 1)
        peer.answer(PacketType.PUBACK, message.packet_id)


@proves(mqtt3="MQTT-3.1.2-5 MQTT-4.5.0-1", mqtt5="MQTT-3.1.2-23 MQTT-4.5.0-1")
def test_messages_are_kept_while_a_client_is_away(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "away")
    peer.subscribe("away/#", qos=1)
    publisher = gateway.connect(version)
    publisher.publish("away/a", b"1", qos=1)
    peer.answer(PacketType.PUBACK, peer.message().packet_id)
    peer.drop()
    for payload in (b"2", b"3", b"4"):
        publisher.publish("away/a", payload, qos=1)
        publisher.publish("elsewhere", payload, qos=1)
    peer = gateway.connect_persistent(version, "away")
    publisher.publish("away/a", b"5", qos=1)
    assert peer.payloads() == [b"2", b"3", b"4", b"5"]


@proves(
    mqtt3="MQTT-3.1.2-6 MQTT-3.2.2-1 MQTT-3.1.4-3",
    mqtt5="MQTT-3.1.2-4 MQTT-3.2.2-2 MQTT-3.1.4-4",
)
def test_a_clean_start_discards_the_session(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "clean")
    peer.subscribe("clean/#")
    peer.drop()
    publisher = gateway.connect(version)
    publisher.publish("clean/a", b"while away", qos=1)
    peer = gateway.connect(version, "clean")
    assert not peer.connack.session_present
    publisher.publish("clean/a", b"now", qos=1)
    assert peer.packets() == []
    peer.drop()
    assert not gateway.connect_persistent(version, "clean").connack.session_present


@proves(mqtt3="MQTT-3.1.2-6 MQTT-4.1.0-2", mqtt5="MQTT-4.1.0-2")
def test_a_clean_session_ends_with_its_connection(gateway: Gateway, version: int) -> None:
    peer = gateway.connect(version, "short")
    peer.subscribe("short/#")
    gateway.pass_s(100_000)
    publisher = gateway.connect(version)
    publisher.publish("short/a")
    assert len(peer.messages()) == 1
    peer.drop()
    peer = gateway.connect(version, "short")
    assert not peer.connack.session_present
    publisher.publish("short/a")
    assert peer.packets() == []


@proves(mqtt3="MQTT-3.2.2-3 MQTT-3.1.2-4", mqtt5="MQTT-3.1.2-6 MQTT-3.2.2-3")
def test_without_a_session_a_new_one_begins(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "first")
    assert not peer.connack.session_present
    peer.assert_open()


@proves(mqtt3="MQTT-3.1.3-2", mqtt5="MQTT-3.1.3-2")
def test_a_session_is_found_by_its_client_identifier_alone(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "mine", user_name="one")
    peer.subscribe("mine")
    peer.drop()
    for other in ("Mine", "mine2", "m"):
        assert not gateway.connect_persistent(version, other).connack.session_present
    assert gateway.connect_persistent(version, "mine", user_name="two").connack.session_present


@proves(mqtt5="MQTT-4.1.0-2 MQTT-3.1.2-23 MQTT-3.2.2-3")
def test_a_session_ends_when_its_expiry_has_passed(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "expires", session_expiry_interval_s=10)
    peer.drop()
    gateway.pass_s(9)
    peer = gateway.connect_persistent(version, "expires", session_expiry_interval_s=10)
    assert peer.connack.session_present
    gateway.pass_s(30)
    peer.drop()
    gateway.pass_s(12)
    peer = gateway.connect_persistent(version, "expires", session_expiry_interval_s=10)
    assert not peer.connack.session_present


@proves(mqtt5="MQTT-3.1.2-23")
def test_a_session_with_the_largest_expiry_does_not_end(version: int) -> None:
    gateway = Gateway(session_expiry_max_s=0xFFFFFFFF)
    peer = gateway.connect_persistent(version, "for-ever", session_expiry_interval_s=0xFFFFFFFF)
    peer.drop()
    gateway.pass_s(5_000_000_000)
    assert gateway.connect_persistent(version, "for-ever").connack.session_present


@proves(mqtt5="MQTT-4.1.0-2")
def test_disconnect_may_change_the_expiry(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "changed", session_expiry_interval_s=3600)
    peer.disconnect(session_expiry_interval_s=5)
    gateway.pass_s(3)
    assert gateway.connect_persistent(version, "changed").connack.session_present
    peer = gateway.connect_persistent(version, "changed")
    peer.disconnect(session_expiry_interval_s=0)
    assert not gateway.connect_persistent(version, "changed").connack.session_present


@proves(
    mqtt3="MQTT-4.4.0-1 MQTT-3.3.1-1 MQTT-2.3.1-4 MQTT-3.3.1-3 MQTT-4.3.2-1",
    mqtt5="MQTT-4.4.0-1 MQTT-3.3.1-1 MQTT-3.3.1-3 MQTT-4.3.2-3",
)
def test_what_was_not_acknowledged_comes_again_and_nothing_else(
    gateway: Gateway, version: int
) -> None:
    peer = gateway.connect_persistent(version, "again")
    peer.subscribe("again/+")
    publisher = gateway.connect(version)
    for n in range(5):
        publisher.publish(f"again/{n % 2}", b"%d" % n, qos=1)
    publisher.publish("again/0", b"zero", qos=0)
    sent = {message.payload: message.packet_id for message in peer.messages() if message.qos}
    for payload in (b"1", b"3"):
        peer.answer(PacketType.PUBACK, sent[payload])
    gateway.pass_s(100)
    assert peer.packets() == []
    peer.drop()
    peer = gateway.connect_persistent(version, "again")
    again = peer.messages()
    assert {message.payload: message.packet_id for message in again} == {
        payload: sent[payload] for payload in (b"0", b"2", b"4")
    }
    assert [message.payload for message in again] == [b"0", b"2", b"4"]
    assert all(message.dup for message in again)
    for message in again:
        peer.answer(PacketType.PUBACK, message.packet_id)
    peer.drop()
    assert gateway.connect_persistent(version, "again").packets() == []


@proves(mqtt5="MQTT-4.4.0-1 MQTT-3.3.4-3 MQTT-3.3.2-17")
def test_a_repetition_says_what_the_first_time_said(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "same")
    peer.subscribe("same/+", qos=2, identifier=7)
    publisher = gateway.connect(version)
    for qos in (1, 2):
        publisher.publish("same/a", qos=qos, user_properties=(("a", "b"),), content_type="text")
    first = peer.messages()
    assert [message.properties.subscription_identifiers for message in first] == [(7,), (7,)]
    peer.drop()
    again = gateway.connect_persistent(version, "same").messages()
    assert again == [replace(message, dup=True) for message in first]


@proves(mqtt5="MQTT-4.4.0-2")
def test_what_was_refused_does_not_come_again(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "refuses")
    peer.subscribe("refused")
    gateway.connect(version).publish("refused", qos=1)
    peer.answer(PacketType.PUBACK, peer.message().packet_id, 0x87)
    peer.drop()
    peer = gateway.connect_persistent(version, "refuses")
    assert peer.connack.session_present
    assert peer.packets() == []


@proves(mqtt3="MQTT-3.2.0-1", mqtt5="MQTT-3.2.0-1")
def test_connack_comes_before_the_messages_that_waited(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "waits")
    peer.subscribe("waits")
    peer.drop()
    gateway.connect(version).publish("waits", qos=1)
    # ``connect`` reads the first packet as a CONNACK.
    assert len(gateway.connect_persistent(version, "waits").messages()) == 1


@proves(mqtt3="MQTT-3.1.4-2", mqtt5="MQTT-3.1.4-3")
def test_a_session_is_taken_over_from_a_connection_that_is_there(
    gateway: Gateway, version: int
) -> None:
    old = gateway.connect_persistent(version, "moves")
    old.subscribe("moves")
    new = gateway.connect_persistent(version, "moves")
    old.assert_ended(0x8E)
    assert new.connack.session_present
    gateway.connect(version).publish("moves", b"here", qos=1)
    assert new.payloads() == [b"here"]
    assert old.packets() == []


@proves(mqtt3="MQTT-3.10.4-3", mqtt5="MQTT-3.10.4-3")
def test_what_was_sent_before_unsubscribe_comes_again(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "leaves")
    peer.subscribe("leaves")
    publisher = gateway.connect(version)
    publisher.publish("leaves", b"begun", qos=1)
    begun = peer.message()
    peer.unsubscribe("leaves")
    publisher.publish("leaves", b"late", qos=1)
    peer.drop()
    (again,) = gateway.connect_persistent(version, "leaves").messages()
    assert (again.payload, again.packet_id, again.dup) == (b"begun", begun.packet_id, True)


@proves(mqtt5="MQTT-3.3.2-5 MQTT-3.3.2-6")
def test_messages_expire_while_a_client_is_away(gateway: Gateway, version: int) -> None:
    peer = gateway.connect_persistent(version, "late")
    peer.subscribe("late")
    peer.drop()
    publisher = gateway.connect(version)
    for payload, expiry_s in ((b"short", 10), (b"long", 100)):
        publisher.publish("late", payload, qos=1, message_expiry_interval_s=expiry_s)
    gateway.pass_s(20)
    (message,) = gateway.connect_persistent(version, "late").messages()
    assert (message.payload, message.properties.message_expiry_interval_s) == (b"long", 80)
