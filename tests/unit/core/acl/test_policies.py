"""Rules of RocketMQ 5: which of a user's rules decides."""

from __future__ import annotations

import pytest

from motelog.core.acl.accounts import ADMINISTRATOR, Right, group_need, topic_need
from motelog.core.acl.policies import Entry, User, in_order, parse_entry, parse_resource

HOST = "10.1.2.3"


def rule(resource: str, actions: str = "All", decision: str = "Allow", ips: str = "") -> Entry:
    return parse_entry(resource, actions.split(","), decision, ips.split(",") if ips else ())


def user(*entries: Entry) -> User:
    return User("alice", b"planted-secret", entries=in_order(entries))


def may_publish(who: User, topic: str, host: str = HOST) -> bool:
    return who.may(topic_need(topic, Right.PUB), host)


def test_without_a_rule_that_matches_the_answer_is_no() -> None:
    assert not may_publish(user(), "orders")
    who = user(rule("Topic:orders", "Pub"))
    assert may_publish(who, "orders")
    assert not may_publish(who, "orders-2")
    assert not who.may(topic_need("orders", Right.SUB), HOST)
    assert not who.may(group_need("orders"), HOST)


def test_who_may_do_one_of_both_may_know_where_a_topic_is() -> None:
    where = topic_need("orders", Right.EITHER)
    assert user(rule("Topic:orders", "Pub")).may(where, HOST)
    assert user(rule("Topic:*", "Sub"), rule("Topic:orders", "Pub", "Deny")).may(where, HOST)
    assert not user(rule("Topic:orders", "All", "Deny")).may(where, HOST)


def test_a_name_decides_before_prefixes_and_these_before_all() -> None:
    who = user(
        rule("*"),
        rule("Topic:*", decision="Deny"),
        rule("Topic:a*"),
        rule("Topic:ab*", decision="Deny"),
        rule("Topic:abc"),
        rule("Group:g", "Sub", "Deny"),
    )
    assert {name: may_publish(who, name) for name in ("x", "a", "ab", "abc", "abcd")} == {
        "x": False,
        "a": True,
        "ab": False,
        "abc": True,
        "abcd": False,
    }
    assert who.may(group_need("h"), HOST)
    assert not who.may(group_need("g"), HOST)
    # A retry topic is its group's.
    assert not who.may(topic_need("%RETRY%g", Right.SUB), HOST)
    assert who.may(topic_need("%RETRY%h", Right.SUB), HOST)


def test_a_rule_of_another_action_is_passed_over() -> None:
    who = user(rule("Topic:orders", "Sub", "Deny"), rule("Topic:*", "Pub,Sub"))
    assert may_publish(who, "orders")
    assert not who.may(topic_need("orders", Right.SUB), HOST)


def test_default_rules_count_where_no_other_matches() -> None:
    default = parse_entry("Topic:orders", ["All"], "Deny", is_default=True)
    assert not may_publish(user(default), "orders")
    assert may_publish(user(default, rule("*")), "orders")


@pytest.mark.parametrize(
    ("ips", "host", "is_for"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("192.0.2.7,10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "::ffff:10.1.2.3", True),
        ("fe80::/10", "fe80::7%eth0", True),
        ("fe80::/10", "10.1.2.3", False),
        ("0.0.0.0/0", "no address", False),
    ],
)
def test_a_rule_holds_for_the_addresses_it_names(ips: str, host: str, is_for: bool) -> None:
    assert may_publish(user(rule("Topic:orders", ips=ips)), "orders", host) is is_for


@pytest.mark.parametrize("name", ["RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_REVIVE_LOG_c"])
def test_the_systems_topics_are_reached_by_name_alone(name: str) -> None:
    wide = user(rule("*"), rule("Topic:*"), rule(f"Topic:{name[:5]}*"))
    assert not may_publish(wide, name)
    assert may_publish(user(rule(f"Topic:{name}")), name)
    assert may_publish(user(rule("Topic:TBW*")), "TBW102")


def test_an_administrator_needs_no_rule_and_no_rule_makes_one() -> None:
    assert User("root", b"", is_admin=True).may(ADMINISTRATOR, HOST)
    assert User("root", b"", is_admin=True).may(topic_need("orders", Right.PUB), HOST)
    assert not user(rule("*")).may(ADMINISTRATOR, HOST)
    assert "planted" not in repr(user(rule("*")))


@pytest.mark.parametrize("text", ["*", "Topic:a", "Topic:a*", "Topic:*", "Group:g", "Group:*"])
def test_a_resource_is_told_as_it_is_written(text: str) -> None:
    assert str(parse_resource(text)) == text
    assert parse_resource(text.replace("Topic", "TOPIC")) == parse_resource(text)


@pytest.mark.parametrize(
    "text", ["", "orders", "Topic:", "Topic:a*b", "Topic:a**", "Cluster:*", "Topic:\n", "t:a"]
)
def test_other_resources_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="resource"):
        parse_resource(text)


@pytest.mark.parametrize(
    ("actions", "decision", "ips", "fault"),
    [
        ([], "Allow", [], "actions"),
        (["Pub", "Create"], "Allow", [], "a user of type Super"),
        (["Any"], "Allow", [], "actions"),
        (["Pub"], "", [], "neither Allow nor Deny"),
        (["Pub"], "Allow", ["10.0.0.0/40"], "source IP"),
        (["Pub"], "Allow", [""], "source IP"),
    ],
)
def test_other_rules_are_refused(
    actions: list[str], decision: str, ips: list[str], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_entry("Topic:a", actions, decision, ips)
