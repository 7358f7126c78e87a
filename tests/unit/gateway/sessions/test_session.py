"""Session: topic filters, topic aliases and a window that is made when it is needed."""

from __future__ import annotations

import sys

import pytest

from motelog.gateway.errors import ProtocolViolationError, TopicAliasError
from motelog.gateway.sessions.session import Session


def make_session() -> Session:
    return Session("c", 7, 5, keep_alive_s=60, inflight_limit=2, topic_alias_maximum=3)


def test_filters_are_kept_in_order_and_once() -> None:
    session = make_session()
    assert list(session.filters) == []
    for topic_filter in ("b", "b", "a", "c", "a"):
        session.add_filter(topic_filter)
    assert list(session.filters) == ["b", "a", "c"]
    assert session.filters_count == 3


def test_filters_are_removed_one_by_one() -> None:
    session = make_session()
    assert not session.remove_filter("a")
    for topic_filter in ("a", "b", "c"):
        session.add_filter(topic_filter)
    assert session.remove_filter("b")
    assert not session.remove_filter("b")
    assert session.remove_filter("a")
    assert list(session.filters) == ["c"]
    assert session.filters_count == 1
    assert not session.remove_filter("a")
    assert session.remove_filter("c")
    assert session.filters_count == 0


def test_alias_stands_for_the_topic_last_given_with_it() -> None:
    session = make_session()
    assert session.resolve_alias(b"a/b", 3) == b"a/b"
    assert session.resolve_alias(b"", 3) == b"a/b"
    assert session.resolve_alias(b"c", 3) == b"c"
    assert session.resolve_alias(b"", 3) == b"c"


@pytest.mark.parametrize("alias", [0, 4, 65535])
def test_alias_beyond_what_was_granted_is_invalid(alias: int) -> None:
    with pytest.raises(TopicAliasError) as caught:
        make_session().resolve_alias(b"a", alias)
    assert caught.value.reason_code == 0x94


def test_unknown_alias_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolViolationError):
        make_session().resolve_alias(b"", 1)


def test_window_is_made_when_needed_and_stays() -> None:
    session = make_session()
    window = session.inflight
    assert window.limit == 2
    assert window.allocate(None) == 1
    assert session.inflight is window


def test_session_has_no_dict() -> None:
    session = make_session()
    assert not hasattr(session, "__dict__")
    assert sys.getsizeof(session) <= 160
