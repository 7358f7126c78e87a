"""PUBLISH and its acknowledgements: what is offered, how the rest is refused, per version."""

from __future__ import annotations

import pytest

from motelog.gateway.errors import GatewayError
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.publish_rules import check_publish, refuse_publish, unexpected
from tests.support.memory_output import MemoryOutput
from tests.support.reasons import without_reason


@pytest.mark.parametrize(
    ("first_byte", "qos"), [(0x30, 0), (0x32, 1), (0x3A, 1), (0x34, 2), (0x3C, 2)]
)
def test_every_qos_is_taken(first_byte: int, qos: int) -> None:
    assert check_publish(first_byte) == qos


@pytest.mark.parametrize(
    ("first_byte", "reason_code"),
    [(0x35, 0x9A), (0x31, 0x9A), (0x33, 0x9A)],
)
def test_what_connack_did_not_offer_ends_the_connection(first_byte: int, reason_code: int) -> None:
    with pytest.raises(GatewayError) as caught:
        check_publish(first_byte)
    assert caught.value.reason_code == reason_code


@pytest.mark.parametrize("kind", [PacketType.PUBACK, PacketType.PUBREC])
@pytest.mark.parametrize(("version", "is_answered"), [(3, False), (4, False), (5, True)])
def test_refused_publish_is_answered_as_its_version_can(
    kind: PacketType, version: int, is_answered: bool
) -> None:
    connection = Connection(MemoryOutput(), 1, version=version)
    answer = refuse_publish(connection, kind, 7, 0x97, "full")
    if not is_answered:
        assert answer is None
        return
    assert answer is not None
    plain = bytes((kind << 4, 3, 0, 7, 0x97))
    assert without_reason(answer) == (plain, "full")
    connection.wants_reasons = False
    assert refuse_publish(connection, kind, 7, 0x97, "full") == plain
    connection.wants_reasons = True
    connection.packet_bytes_max = len(answer) - 1
    assert refuse_publish(connection, kind, 7, 0x97, "full") == plain


@pytest.mark.parametrize("first_byte", [0x10, 0x50, 0x62, 0x70, 0x20, 0x90, 0xD0, 0xF0])
def test_packets_that_no_client_may_send_now_are_protocol_errors(first_byte: int) -> None:
    assert unexpected(first_byte).reason_code == 0x82
