"""PUBLISH and its acknowledgements: how they are refused, per version."""

from __future__ import annotations

import pytest

from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.publish_rules import refuse_publish, unexpected
from tests.support.memory_output import MemoryOutput
from tests.support.reasons import without_reason


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
