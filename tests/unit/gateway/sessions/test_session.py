"""Session: topic filters, a window that is made when it is needed, a life without a connection."""

from __future__ import annotations

import sys

import pytest

from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.session import Session
from tests.support.memory_output import MemoryOutput


def attached(*, inflight_max: int) -> tuple[Session, Connection]:
    session, connection = Session("c"), Connection(MemoryOutput(), 7, version=5)
    session.attach(connection, inflight_max=inflight_max)
    return session, connection


def test_filters_are_kept_in_order_and_once() -> None:
    session = Session("c")
    assert list(session.filters) == []
    for topic_filter in ("b", "b", "a", "c", "a"):
        session.add_filter(topic_filter)
    assert list(session.filters) == ["b", "a", "c"]
    assert session.subscriptions_count == 3


def test_filters_are_removed_one_by_one() -> None:
    session = Session("c")
    assert not session.remove_filter("a")
    for topic_filter in ("a", "b", "c"):
        session.add_filter(topic_filter)
    assert session.remove_filter("b")
    assert not session.remove_filter("b")
    assert session.remove_filter("a")
    assert list(session.filters) == ["c"]
    assert session.subscriptions_count == 1
    assert not session.remove_filter("a")
    assert session.remove_filter("c")
    assert session.subscriptions_count == 0


def test_session_outlives_its_connections() -> None:
    session, one = attached(inflight_max=3)
    session.add_filter("a/#")
    assert session.inflight.allocate(4) == 1
    assert session.inflight.allocate(8) == 2
    session.detach()
    assert session.connection is None
    assert one.session is None
    assert (list(session.filters), list(session.inflight)) == (["a/#"], [(1, 4), (2, 8)])
    two = Connection(MemoryOutput(), 9)
    session.attach(two, inflight_max=2)
    assert session.connection is two
    # The new connection's client takes fewer at once.
    assert session.inflight.allocate(12) == 0
    session.acknowledge([1])
    assert session.inflight.allocate(12) == 3


def test_detaching_twice_changes_nothing() -> None:
    session, connection = attached(inflight_max=1)
    session.detach()
    session.detach()
    assert (session.connection, connection.session) == (None, None)


def test_window_is_made_when_needed_and_stays() -> None:
    session, _ = attached(inflight_max=2)
    window = session.inflight
    assert window.limit == 2
    assert window.allocate(5) == 1
    assert session.inflight is window


@pytest.mark.parametrize(
    ("is_lagging", "packet_id", "goes_on"),
    [(True, 1, True), (True, 2, False), (False, 1, False), (False, 9, False)],
)
def test_acknowledgement_of_a_receiver_that_lags_lets_it_go_on(
    is_lagging: bool, packet_id: int, goes_on: bool
) -> None:
    session, _ = attached(inflight_max=2)
    assert not session.acknowledge([packet_id])  # there is no window yet
    assert session.inflight.allocate(5) == 1
    session.lagging = {"queue": 7} if is_lagging else None
    assert session.acknowledge([packet_id]) is goes_on
    assert len(session.inflight) == (packet_id != 1)


def test_idle_client_is_small() -> None:
    session, connection = attached(inflight_max=2)
    for part in (session, connection):
        assert not hasattr(part, "__dict__")
    assert sys.getsizeof(session) + sys.getsizeof(connection) <= 232
