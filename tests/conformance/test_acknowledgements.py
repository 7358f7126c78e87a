"""Each cell of the tables of section 4.3: what an acknowledgement leads to, by what is due."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from motelog.gateway.mqtt.acks import decode_ack
from motelog.gateway.mqtt.packet_types import PacketType
from tests.conformance.peers import Gateway, Peer

PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC
PUBREL, PUBCOMP = PacketType.PUBREL, PacketType.PUBCOMP
FAILED, NOT_FOUND, PROTOCOL_ERROR = 0x80, 0x92, 0x82

NOTHING = "nothing"
#: To the client: sent at QoS 1; sent at QoS 2; that and PUBREC has come.
SENT_1, SENT_2, RELEASED = "sent at QoS 1", "sent at QoS 2", "released"
#: From the client, at QoS 2: PUBREC has been sent.
RECEIVED = "received"

ENDS = "the connection ends"


@dataclass(frozen=True)
class Cell:
    """A packet from the client, what its identifier stands for, and what follows.

    That is an answer with its reason code, or the end of the connection, or neither; and whether
    the identifier stands for nothing afterwards.
    """

    packet: PacketType
    reason_code: int
    state: str
    answer: tuple[PacketType, int] | str | None
    is_over: bool = True


# From the receiver of a message: PUBACK, PUBREC, PUBCOMP. From its sender: PUBREL.
CELLS = [
    Cell(PUBACK, 0, NOTHING, None),
    Cell(PUBACK, FAILED, NOTHING, None),
    Cell(PUBACK, 0, SENT_1, None),
    Cell(PUBACK, FAILED, SENT_1, None),
    Cell(PUBACK, 0, SENT_2, ENDS, is_over=False),
    Cell(PUBACK, FAILED, SENT_2, ENDS, is_over=False),
    Cell(PUBACK, 0, RELEASED, ENDS, is_over=False),
    Cell(PUBACK, FAILED, RELEASED, ENDS, is_over=False),
    Cell(PUBACK, 0, RECEIVED, None, is_over=False),
    Cell(PUBACK, FAILED, RECEIVED, None, is_over=False),
    Cell(PUBREC, 0, NOTHING, (PUBREL, NOT_FOUND)),
    Cell(PUBREC, FAILED, NOTHING, None),
    Cell(PUBREC, 0, SENT_1, ENDS, is_over=False),
    Cell(PUBREC, FAILED, SENT_1, ENDS, is_over=False),
    Cell(PUBREC, 0, SENT_2, (PUBREL, 0), is_over=False),
    Cell(PUBREC, FAILED, SENT_2, None),
    Cell(PUBREC, 0, RELEASED, (PUBREL, 0), is_over=False),
    Cell(PUBREC, FAILED, RELEASED, ENDS, is_over=False),
    Cell(PUBREC, 0, RECEIVED, (PUBREL, NOT_FOUND), is_over=False),
    Cell(PUBREC, FAILED, RECEIVED, None, is_over=False),
    Cell(PUBCOMP, 0, NOTHING, None),
    Cell(PUBCOMP, NOT_FOUND, NOTHING, None),
    Cell(PUBCOMP, 0, SENT_1, ENDS, is_over=False),
    Cell(PUBCOMP, NOT_FOUND, SENT_1, ENDS, is_over=False),
    Cell(PUBCOMP, 0, SENT_2, ENDS, is_over=False),
    Cell(PUBCOMP, NOT_FOUND, SENT_2, ENDS, is_over=False),
    Cell(PUBCOMP, 0, RELEASED, None),
    Cell(PUBCOMP, NOT_FOUND, RELEASED, None),
    Cell(PUBCOMP, 0, RECEIVED, None, is_over=False),
    Cell(PUBCOMP, NOT_FOUND, RECEIVED, None, is_over=False),
    Cell(PUBREL, 0, NOTHING, (PUBCOMP, NOT_FOUND)),
    Cell(PUBREL, NOT_FOUND, NOTHING, (PUBCOMP, NOT_FOUND)),
    Cell(PUBREL, 0, SENT_1, (PUBCOMP, NOT_FOUND), is_over=False),
    Cell(PUBREL, NOT_FOUND, SENT_1, (PUBCOMP, NOT_FOUND), is_over=False),
    Cell(PUBREL, 0, SENT_2, (PUBCOMP, NOT_FOUND), is_over=False),
    Cell(PUBREL, NOT_FOUND, SENT_2, (PUBCOMP, NOT_FOUND), is_over=False),
    Cell(PUBREL, 0, RELEASED, (PUBCOMP, NOT_FOUND), is_over=False),
    Cell(PUBREL, NOT_FOUND, RELEASED, (PUBCOMP, NOT_FOUND), is_over=False),
    Cell(PUBREL, 0, RECEIVED, (PUBCOMP, 0)),
    Cell(PUBREL, NOT_FOUND, RECEIVED, (PUBCOMP, 0)),
]


def prepare(gateway: Gateway, peer: Peer, state: str) -> int:
    """Bring a packet identifier of a client into a state; return the identifier."""
    if state == NOTHING:
        return 99
    if state == RECEIVED:
        packet_id = peer.put("up", b"x", 2, packet_id=77)
        assert peer.read_ack(PUBREC).packet_id == packet_id
        return packet_id
    peer.subscribe("down", qos=2)
    gateway.connect(5).publish("down", b"m", qos=1 if state == SENT_1 else 2)
    packet_id = peer.message().packet_id
    if state == RELEASED:
        peer.answer(PUBREC, packet_id)
        assert peer.read_ack(PUBREL).packet_id == packet_id
    return packet_id


def assert_kept(peer: Peer, packet_id: int, *, is_released: bool) -> None:
    """Check that a client which comes back is sent what was in flight."""
    if is_released:
        assert peer.read_ack(PUBREL).packet_id == packet_id
    else:
        message = peer.message()
        assert (message.packet_id, message.dup) == (packet_id, True)


def assert_received(peer: Peer, packet_id: int) -> None:
    """Check that a message at QoS 2 under this identifier is none that is new."""
    before = len(peer.gateway.stage.stored())
    peer.put("up", b"x", 2, packet_id=packet_id, dup=True)
    assert peer.read_ack(PUBREC).packet_id == packet_id
    assert len(peer.gateway.stage.stored()) == before


@pytest.mark.parametrize("is_persistent", [True, False])
@pytest.mark.parametrize(
    ("version", "cell"),
    [
        pytest.param(
            version, cell, id=f"{version} {cell.packet.name} {cell.reason_code} {cell.state}"
        )
        for cell in CELLS
        for version in ((5,) if cell.reason_code else (4, 5))  # MQTT 3.1.1 has no reason codes
    ],
)
def test_an_acknowledgement_for_what_its_identifier_stands_for(
    gateway: Gateway, cell: Cell, version: int, is_persistent: bool
) -> None:
    if is_persistent:
        peer = gateway.connect_persistent(version, "peer")
    else:
        peer = gateway.connect(version, "peer")
    packet_id = prepare(gateway, peer, cell.state)
    peer.answer(cell.packet, packet_id, cell.reason_code)
    if cell.answer == ENDS:
        peer.assert_ended(PROTOCOL_ERROR)
    elif cell.answer is None:
        peer.assert_open()
    else:
        packet = peer.packet()
        ack = decode_ack(version, packet.first_byte, packet.body)
        code = cell.answer[1] if version == 5 else 0
        assert (packet.type, ack.packet_id, ack.reason_code) == (cell.answer[0], packet_id, code)
        peer.assert_open()
    if cell.state == RECEIVED and not cell.is_over:
        assert_received(peer, packet_id)
    if not is_persistent:
        return
    peer.drop()
    peer = gateway.connect_persistent(version, "peer")
    if cell.state == RECEIVED and not cell.is_over:
        assert_received(peer, packet_id)
    elif not cell.is_over:
        is_taken = cell.packet == PUBREC and cell.answer != ENDS
        is_released = cell.state == RELEASED or (cell.state == SENT_2 and is_taken)
        assert_kept(peer, packet_id, is_released=is_released)
    peer.assert_open()
