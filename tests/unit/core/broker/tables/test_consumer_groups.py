"""Membership and subscriptions of groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.broker.tables.consumer_groups import GroupMembers, Member
from motelog.core.broker.tables.heartbeat import ConsumerData, Subscription
from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import Language


def member(client_id: str, owner: int = 1, now_ms: int = 0) -> Member[int]:
    return Member(client_id, owner, Language.JAVA, 409, now_ms)


def data(**versions: int) -> ConsumerData:
    subscriptions = {t: Subscription(t, f"tag{v}", v) for t, v in versions.items()}
    return ConsumerData(
        "G", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", subscriptions
    )


def make_members(members_max: int = 10) -> GroupMembers[int]:
    return GroupMembers(members_max=members_max)


def test_only_the_first_heartbeat_changes_a_group() -> None:
    groups = make_members()
    assert groups.beat("G", member("a"), data(T=1))
    assert not groups.beat("G", member("a", now_ms=5), data(T=1))
    assert groups.beat("G", member("b", owner=2), data(T=1))
    group = groups.get("G")
    assert group is not None
    assert list(group.members) == ["a", "b"]
    groups._check()


def test_a_client_is_found_by_its_id_on_its_newest_connection() -> None:
    groups = make_members()
    groups.beat("G", member("a", owner=1))
    groups.beat("H", member("a", owner=1))
    assert (groups.owner_of("a"), groups.owner_of("b")) == (1, None)
    groups.beat("G", member("a", owner=2))
    assert groups.owner_of("a") == 2
    groups.leave("G", "a", 2)
    assert groups.owner_of("a") == 1
    groups.close_owner(1)
    assert groups.owner_of("a") is None
    groups._check()


def brief(fingerprint: int) -> ConsumerData:
    return replace(data(), fingerprint=fingerprint, is_brief=True)


def test_a_brief_heartbeat_leaves_the_subscriptions_as_they_are() -> None:
    groups = make_members()
    whole = replace(data(T=1), fingerprint=7)
    assert not groups.is_told_otherwise("G", whole)
    assert groups.beat("G", member("a"), whole)
    assert not groups.is_told_otherwise("G", brief(7))
    assert not groups.beat("G", member("a", now_ms=5), brief(7))
    group = groups.get("G")
    assert group is not None
    assert list(group.subscriptions) == ["T"]
    assert group.members["a"].last_seen_ms == 5
    groups._check()


def test_who_is_brief_is_asked_for_all_where_the_group_has_other_subscriptions() -> None:
    groups = make_members()
    # A broker that has started again knows nobody, and learns nothing from a brief one.
    assert groups.is_told_otherwise("G", brief(7))
    assert groups.beat("G", member("a"), brief(7))
    assert groups.is_told_otherwise("G", brief(7))
    groups.beat("G", member("a"), replace(data(T=1), fingerprint=7))
    assert not groups.is_told_otherwise("G", brief(7))
    # Another member, with a fingerprint or without one, has told something else.
    for other in (replace(data(U=1), fingerprint=8), data(U=1)):
        groups.beat("G", member("b", owner=2), other)
        assert groups.is_told_otherwise("G", brief(7))
        groups.beat("G", member("a"), replace(data(T=1), fingerprint=7))
        assert groups.is_told_otherwise("G", replace(data(U=1), fingerprint=8))


def test_the_newer_subscription_counts_and_left_out_topics_go() -> None:
    groups = make_members()
    groups.beat("G", member("a"), data(T=2, U=1))
    assert not groups.beat("G", member("a"), data(T=1, U=1))
    group = groups.get("G")
    assert group is not None
    assert group.subscriptions["T"].sub_string == "tag2"
    groups.beat("G", member("a"), data(T=3, U=1))
    assert group.subscriptions["T"].sub_string == "tag3"
    assert groups.beat("G", member("a"), data(T=3))
    assert list(group.subscriptions) == ["T"]


def test_a_client_that_comes_back_on_another_connection_is_not_lost_with_the_first() -> None:
    groups = make_members()
    groups.beat("G", member("a", owner=1), data())
    assert groups.beat("G", member("a", owner=2), data())
    assert groups.close_owner(1) == []
    assert groups.get("G") is not None
    assert groups.close_owner(2) == ["G"]
    assert groups.get("G") is None
    groups._check()


def test_leaving_and_silence() -> None:
    groups = make_members()
    groups.beat("G", member("a", now_ms=0))
    groups.beat("G", member("b", owner=2, now_ms=500))
    assert not groups.leave("G", "x", 2)
    assert not groups.leave("H", "a", 1)
    # Nobody leaves for another.
    assert not groups.leave("G", "b", 1)
    assert groups.expire(1000, 600) == ["G"]
    assert groups.leave("G", "b", 2)
    assert groups.members_count == 0
    groups._check()


def test_the_number_of_members_is_bounded_but_known_ones_go_on() -> None:
    groups = make_members(members_max=1)
    groups.beat("G", member("a"))
    with pytest.raises(BrokerError):
        groups.beat("H", member("a"))
    groups.beat("G", member("a", owner=7))
    assert groups.get("H") is None
    groups._check()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["beat", "leave", "close", "expire"]),
        st.sampled_from("GH"),
        st.sampled_from("abc"),
        st.integers(1, 3),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_any_order_of_steps_keeps_the_index(steps: list[tuple[str, str, str, int]]) -> None:
    groups = make_members()
    for now_ms, (kind, name, client_id, owner) in enumerate(steps):
        match kind:
            case "beat":
                groups.beat(name, member(client_id, owner, now_ms), data(T=owner))
            case "leave":
                groups.leave(name, client_id, owner)
            case "close":
                groups.close_owner(owner)
            case _:
                groups.expire(now_ms, 5)
        groups._check()
