"""The ACL file: what rules come to together, what is refused when it is read."""

from __future__ import annotations

import pytest

from motelog.gateway.access.acl import parse_acl
from motelog.gateway.access.password_file import AccessFileError
from motelog.gateway.access.rights import NONE, Who

ALICE = Who("alice", "dev1")
RULES = """
[[rule]]
allow = ["publish", "subscribe"]
topics = ["home/{user_name}/{client_id}/#", "all"]

[[rule]]
users = ["alice"]
allow = ["publish", "subscribe", "retain"]
topics = ["plant/#"]
qos_max = 1

[[rule]]
deny = ["subscribe", "publish"]
topics = ["plant/secret/#", "plant/of/{client_id}"]

[[rule]]
anonymous = true
allow = ["subscribe"]
topics = ["public/#", "$SYS/#"]
"""


@pytest.mark.parametrize(
    ("who", "topic", "qos"),
    [
        (ALICE, "home/alice/dev1/t", 2),
        (ALICE, "home/alice/dev2/t", NONE),
        (ALICE, "plant/x", 1),
        (ALICE, "plant/secret/x", NONE),
        (ALICE, "plant/secret", NONE),
        (ALICE, "plant/of/dev1", NONE),
        (ALICE, "plant/of/dev2", 1),
        (ALICE, "elsewhere", NONE),
        (Who("bob", "dev1"), "plant/x", NONE),
        (Who("bob", "dev1"), "all", 2),
        (Who("", "dev1"), "all", NONE),
        (Who("", "dev1"), "public/x", NONE),
    ],
)
def test_publish(who: Who, topic: str, qos: int) -> None:
    assert parse_acl(RULES, "acl").publish_qos(who, topic) == qos


@pytest.mark.parametrize(
    ("who", "topic_filter", "qos"),
    [
        (ALICE, "home/alice/dev1/#", 2),
        (ALICE, "home/alice/#", NONE),
        (ALICE, "home/+/dev1/#", NONE),
        (ALICE, "#", NONE),
        (ALICE, "plant/a/#", 1),
        (ALICE, "plant/#", NONE),  # a denied branch is in it
        (ALICE, "plant/+/x", NONE),
        (ALICE, "plant/+", NONE),
        (ALICE, "plant/of/dev2", 1),
        (ALICE, "$SYS/#", NONE),
        (Who("", "x"), "public/#", 2),
        (Who("", "x"), "$SYS/broker/#", 2),
        (Who("", "x"), "plant/a", NONE),
    ],
)
def test_subscribe(who: Who, topic_filter: str, qos: int) -> None:
    assert parse_acl(RULES, "acl").subscribe_qos(who, topic_filter) == qos


def test_retain_is_a_right_of_its_own() -> None:
    acl = parse_acl(RULES, "acl")
    assert acl.may_retain(ALICE, "plant/x")
    assert not acl.may_retain(ALICE, "all")


@pytest.mark.parametrize("value", ["+", "#", "a/b", "a+", "#a", "\x01", "a\x7f", ""])
def test_hostile_placeholder_opens_nothing(value: str) -> None:
    acl = parse_acl(
        '[[rule]]\nallow = ["publish", "subscribe"]\ntopics = ["d/{client_id}/#", "{client_id}"]',
        "acl",
    )
    who = Who("u", value)
    for topic in ("d/a/x", "d/+/x", "d/a/b/c", "d", "+", "#", "d/#", "d/+/#", "a/b", "d//x"):
        assert acl.subscribe_qos(who, topic) == NONE
        assert "+" in topic or "#" in topic or acl.publish_qos(who, topic) == NONE


def test_rule_for_the_name_of_a_certificate() -> None:
    acl = parse_acl('[[rule]]\nallow = ["publish"]\ntopics = ["d/{certificate_name}/#"]', "acl")
    for name, qos in (("press", 2), ("other", NONE), ("", NONE), ("+", NONE), ("press/x", NONE)):
        assert acl.publish_qos(Who("u", "c", certificate_name=name), "d/press/x") == qos


def test_hostile_placeholder_opens_no_server_topics() -> None:
    acl = parse_acl(
        '[[rule]]\nallow = ["subscribe"]\ntopics = ["{client_id}/#", "{user_name}{client_id}/x"]',
        "acl",
    )
    for who in (Who("u", "$SYS"), Who("$SYS", "s"), Who("u", "$share")):
        for topic in ("$SYS/#", "$SYS/a", "$SYSs/x", "$share/#"):
            assert acl.subscribe_qos(who, topic) == NONE


@pytest.mark.parametrize("value", ["a/b", "+", "#", ""])
def test_a_rule_that_denies_cannot_be_escaped_by_a_name(value: str) -> None:
    acl = parse_acl(
        '[[rule]]\nallow = ["publish", "subscribe"]\ntopics = ["#"]\n'
        '[[rule]]\ndeny = ["publish", "subscribe"]\ntopics = ["own/{client_id}/x"]',
        "acl",
    )
    who = Who("u", value)
    assert acl.publish_qos(who, "own/a/b/x") == acl.subscribe_qos(who, "own/a/b/x") == NONE
    assert acl.publish_qos(who, "elsewhere") == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[rule]]\ntopics = ['a']", "either allow or deny"),
        ("[[rule]]\nallow = ['publish']\ndeny = ['publish']\ntopics = ['a']", "either"),
        ("[[rule]]\nallow = ['publish']\ntopics = []", "topics is empty"),
        ("[[rule]]\nallow = ['write']\ntopics = ['a']", "write"),
        ("[[rule]]\nallow = ['publish']\ntopics = ['a#']", "'#' must be"),
        ("[[rule]]\nallow = ['publish']\ntopics = ['{name}']", "no {name}"),
        ("[[rule]]\nallow = ['publish']\ntopics = ['{client_id']", "brace"),
        ("[[rule]]\nallow = ['publish']\ntopics = ['$share/g/a']", "shared"),
        ("[[rule]]\nallow = ['publish']\ntopics = ['a']\nuser = ['x']", "user"),
        ("[[rule]]\nallow = ['publish']\ntopics = ['a']\nnumber = 3", "number"),
        ("[[rule]]\nallow = ['publish']\ntopics = ['a']\nqos_max = 3", "qos_max"),
        ("[[rules]]\nallow = ['publish']\ntopics = ['a']", "rules"),
        ("[[rule]\n", "acl"),
    ],
)
def test_faults_of_the_file_are_told(text: str, why: str) -> None:
    with pytest.raises(AccessFileError, match=why):
        parse_acl(text, "acl")


def test_faults_of_the_file_say_where_what_and_what_may_be() -> None:
    good = "# rules\n[[rule]]\nallow = ['publish']\ntopics = ['a']\n\n"
    told = {
        "[[rule]]\nallow = ['publish']\ntopic = ['a']": "acl:8: rule 2: there is no key 'topic'; a"
        " rule has topics, allow, deny, users, anonymous, qos_max",
        "[[rule]]\ntopics = ['a']\nallow = ['write']": "acl:8: rule 2: allow: Invalid enum value"
        " 'write'; the values are publish, subscribe, retain",
        "[[rule]]\nallow = ['publish']\ntopics = 'a'": "acl:8: rule 2: topics: Expected `array`,"
        " got `str`",
        "[[rule]]\ntopics = ['a']": "acl:6: rule 2: a rule must have either allow or deny",
        "[[rules]]\n": "acl: there is no key 'rules': the file has [[rule]] tables and"
        " nothing else",
    }
    for text, wanted in told.items():
        with pytest.raises(AccessFileError) as caught:
            parse_acl(good + text, "acl")
        assert str(caught.value) == wanted
    with pytest.raises(AccessFileError, match=r"^acl: rule 1: a rule must have either"):
        parse_acl('rule = [{ topics = ["a"] }]', "acl")


def test_an_empty_file_allows_nothing() -> None:
    assert parse_acl("", "acl").publish_qos(ALICE, "a") == NONE
