"""What needs a network: a gateway in a process of its own, with real sockets and a real clock."""

from __future__ import annotations

import time

import pytest

from motelog.testing import MotelogProcess
from tests.conformance.peers import PINGREQ, connect_packet
from tests.conformance.statements import proves
from tests.support.mqtt_wire import Wire, published


@proves(mqtt3="MQTT-7.1.1-1", mqtt5="MQTT-4.2.0-1")
def test_tcp_carries_the_bytes_in_both_directions(
    motelog_stack: MotelogProcess, version: int
) -> None:
    topic, payload = f"tcp/{version}", bytes(range(256)) * 1000
    with Wire(motelog_stack.mqtt) as wire:
        for byte in connect_packet(version, "byte-by-byte"):
            wire.send(bytes([byte]))
        assert wire.packet()[0] == 0x20
        wire.version = version
        assert wire.subscribe(topic, 1) == 1
        wire.publish(topic, payload, packet_id=1)
        packets = [wire.packet(), wire.packet()]
        ((first_byte, body),) = [packet for packet in packets if packet[0] != 0x40]
        name, _, rest = published(first_byte, body)
        assert (name, rest[-len(payload) :]) == (topic, payload)


@proves(mqtt3="MQTT-3.1.2-24", mqtt5="MQTT-3.1.2-22")
def test_a_silent_client_is_closed_after_its_keep_alive(
    motelog_stack: MotelogProcess, version: int
) -> None:
    with Wire(motelog_stack.mqtt) as silent, Wire(motelog_stack.mqtt) as pings:
        pings.connect(version=version, keep_alive_s=1)
        began_s = time.monotonic()
        connack = silent.connect(version=version, keep_alive_s=1)
        assert connack.properties.server_keep_alive_s is None
        silent.socket.settimeout(0.4)
        while True:
            pings.send(PINGREQ)
            assert pings.packet() == (0xD0, b"")
            try:
                packet = silent.packet()
            except TimeoutError:
                assert time.monotonic() - began_s < 10
            except ConnectionError:
                break
            else:
                assert (version, packet[0], packet[1][:1]) == (5, 0xE0, b"\x8d")
        assert time.monotonic() - began_s >= 1.5
        pings.send(PINGREQ)
        assert pings.packet() == (0xD0, b"")


@pytest.mark.parametrize("packet", ["c08000", "e0818000 00", "30 8580 00 0001 61 00 68"])
@proves(mqtt5="MQTT-1.5.5-1")
def test_a_remaining_length_with_more_bytes_than_it_needs_ends_the_connection(
    motelog_stack: MotelogProcess, version: int, packet: str
) -> None:
    with Wire(motelog_stack.mqtt) as wire:
        wire.connect(version=version)
        wire.send(bytes.fromhex(packet))
        first_byte, body = wire.packet()
        assert (first_byte, body[:1]) == (0xE0, b"\x81")
        assert wire.closed()
