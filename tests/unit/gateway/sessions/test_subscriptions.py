"""Subscriptions: overlap, $-topics, replacement, and bounds against hostile depth."""

from __future__ import annotations

from motelog.gateway.mqtt.topics import FILTER_LEVELS_MAX, check_topic_filter, matches
from motelog.gateway.sessions.subscriptions import SOME_NO_LOCAL, SubscriptionTree


def tree_of(*subscriptions: tuple[str, str, int]) -> SubscriptionTree[str]:
    tree: SubscriptionTree[str] = SubscriptionTree()
    for topic_filter, subscriber, options in subscriptions:
        assert tree.add(topic_filter, subscriber, options)
    tree._check()
    return tree


def test_overlapping_subscriptions_deliver_once_at_the_highest_qos() -> None:
    tree = tree_of(("a/b", "s", 0), ("a/+", "s", 1), ("#", "s", 0), ("a/#", "t", 0))
    assert tree.match("a/b") == {"s": 1, "t": 0}
    assert tree.match("a") == {"s": 0, "t": 0}
    assert tree.match("b") == {"s": 0}


def test_no_local_holds_if_all_overlapping_subscriptions_have_it() -> None:
    tree = tree_of(("a", "s", 5), ("+", "s", 4))
    assert tree.match("a") == {"s": 5}
    tree.add("#", "s", 0)
    assert tree.match("a") == {"s": 1 | SOME_NO_LOCAL}
    assert tree.own("a", "s") == {"#": 0}
    assert tree.own("a", "t") == {}


def test_wildcards_do_not_match_dollar_topics() -> None:
    tree = tree_of(("#", "all", 0), ("+/x", "plus", 0), ("$SYS/#", "sys", 0), ("$SYS/+", "one", 0))
    assert tree.match("$SYS/x") == {"sys": 0, "one": 0}  # [MQTT-4.7.2-1]
    assert tree.match("a/$SYS") == {"all": 0}


def test_new_options_replace_the_old_ones() -> None:
    for topic_filter in ("a/b", "a/#", "a/+"):
        tree = tree_of((topic_filter, "s", 0), (topic_filter, "t", 0))
        assert not tree.add(topic_filter, "s", 1)
        tree._check()
        assert tree.match("a/b") == {"s": 1, "t": 0}
        assert len(tree) == 2


def test_nothing_is_left_of_what_was_removed() -> None:
    filters = ["a", "a/#", "#", "a/+/b", "+/+/#", "/"]
    tree = tree_of(*((topic_filter, name, 1) for topic_filter in filters for name in "st"))
    assert all(tree.remove(one, "s") for one in filters)
    tree._check()
    assert tree.match("a") == {"t": 1}
    assert all(tree.remove(one, "t") for one in filters)
    assert not tree.remove("unknown", "t")
    tree._check()
    assert len(tree) == 0
    assert tree.match("a") == {}


def test_deepest_filters_match() -> None:
    name = "/".join("a" * FILTER_LEVELS_MAX)
    for topic_filter in (name, name[:-1] + "#", "+" + name[1:], "+" + name[1:-1] + "#"):
        check_topic_filter(topic_filter)
        tree = tree_of((topic_filter, "s", 1))
        assert tree.match(name) == {"s": 1}
        deeper = tree.match(name + "/a")
        assert deeper == ({"s": 1} if matches(topic_filter, name + "/a") else {})
    shorter = tree_of((name[:-1] + "#", "s", 1))
    assert shorter.match(name[:-2]) == {"s": 1}


def test_a_name_of_levels_alone_is_matched() -> None:
    tree = tree_of(("#", "all", 0), ("+/#", "plus", 0), ("/#", "root", 0), ("a/+", "no", 0))
    assert tree.match("/" * 65535) == {"all": 0, "plus": 0, "root": 0}


def test_filters_of_more_shapes_than_are_looked_up_match_too() -> None:
    name = "/".join("abcdef")
    filters = [
        "/".join("+" if 1 << i & number else level for i, level in enumerate("abcdef")) + tail
        for number in range(1, 64)
        for tail in ("", "/#")
    ]
    tree = tree_of(*((topic_filter, topic_filter, 1) for topic_filter in filters))
    assert set(tree.match(name)) == set(filters)
    assert set(tree.match(name + "/g")) == {each for each in filters if each.endswith("#")}
    for topic_filter in filters[:-1]:
        assert tree.remove(topic_filter, topic_filter)
        tree._check()
    # The last one was of a rare shape; now its shape has room.
    assert not tree.add(filters[-1], filters[-1], 2)
    tree._check()
    assert tree.match(name) == {filters[-1]: 2}
    assert not tree._tries
