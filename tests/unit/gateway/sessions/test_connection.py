"""Connection: topic aliases, and no session until CONNECT."""

from __future__ import annotations

import pytest

from motelog.gateway.mqtt.errors import ProtocolViolationError, TopicAliasError
from motelog.gateway.sessions.connection import PACKET_BYTES_LIMIT, Connection
from tests.support.memory_output import MemoryOutput

ALIAS_MAX = 3


def make_connection() -> Connection:
    return Connection(MemoryOutput(), 7)


def test_connection_begins_without_a_session() -> None:
    connection = make_connection()
    assert connection.session is None
    assert connection.version == 0
    assert connection.packet_bytes_max == PACKET_BYTES_LIMIT


def test_alias_stands_for_the_topic_last_given_with_it() -> None:
    connection = make_connection()
    assert connection.resolve_alias(b"a/b", 3, ALIAS_MAX) == b"a/b"
    assert connection.resolve_alias(b"", 3, ALIAS_MAX) == b"a/b"
    assert connection.resolve_alias(b"c", 3, ALIAS_MAX) == b"c"
    assert connection.resolve_alias(b"", 3, ALIAS_MAX) == b"c"


@pytest.mark.parametrize("alias", [0, 4, 65535])
def test_alias_beyond_what_was_granted_is_invalid(alias: int) -> None:
    with pytest.raises(TopicAliasError) as caught:
        make_connection().resolve_alias(b"a", alias, ALIAS_MAX)
    assert caught.value.reason_code == 0x94


def test_unknown_alias_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolViolationError):
        make_connection().resolve_alias(b"", 1, ALIAS_MAX)
