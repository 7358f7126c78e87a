"""The steps of QoS 2 exchanges before a log that takes its time."""

from __future__ import annotations

from motelog.gateway.mqtt.acks import encode_ack
from motelog.gateway.mqtt.packet_types import PacketType
from tests.conformance.peers import Gateway, Peer, publish_packet

PUBREC, PUBREL = PacketType.PUBREC, PacketType.PUBREL


def released(peer: Peer) -> list[int]:
    return [int.from_bytes(p.body[:2], "big") for p in peer.packets() if p.type == PUBREL]


def test_a_step_that_another_record_takes_along_waits_for_that_record() -> None:
    gateway = Gateway(receive_maximum=1)
    reader, faulty = (gateway.connect_persistent(5, name) for name in ("reader", "faulty"))
    reader.subscribe("t", qos=2)
    for payload in (b"0", b"1"):
        gateway.connect(5).publish("t", payload, 2)
    first, second = (message.packet_id for message in reader.messages())
    faulty.put("t", b"2", 2, packet_id=1)
    log = gateway.stage.log
    log.settles_at_once = False
    reader.answer(PUBREC, first)
    # A client that exceeds Receive Maximum in the same turn has its session stored, and the steps
    # that were taken before.
    gateway.stage.turn(
        (reader.number, encode_ack(PUBREC, 5, second, 0)),
        (faulty.number, publish_packet(5, "t", b"3", 2, packet_id=2)),
    )
    assert released(reader) == []
    log.settle()
    assert released(reader) == [first, second]
