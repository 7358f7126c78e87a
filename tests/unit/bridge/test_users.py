"""Users and rules as the wire has them: bodies that RocketMQ 5.3 reads and writes."""

from __future__ import annotations

from typing import Any

import pytest

from motelog.bridge.users import (
    Rule,
    User,
    UserRules,
    decode_rules,
    decode_users,
    rules_body,
    user_body,
)
from motelog.core.errors import RemotingDecodeError
from motelog.core.remoting.frames import loads


def test_only_what_is_said_of_a_user_goes_out() -> None:
    assert loads(user_body("u", None, None, None)) == {"username": "u"}
    assert loads(user_body("u", "p", False, True)) == {
        "username": "u", "password": "p", "userType": "Normal", "userStatus": "enable",
    }  # fmt: skip
    assert loads(user_body("u", None, True, False)) == {
        "username": "u", "userType": "Super", "userStatus": "disable",
    }  # fmt: skip


def test_rules_go_out_by_their_type() -> None:
    rules = [
        Rule("Topic:a", ("Pub",), source_ips=("10.0.0.0/8",)),
        Rule("*", is_allowed=False, is_default=True),
        Rule("Group:g"),
    ]
    custom, default = "Custom", "Default"
    assert loads(rules_body("u", rules)) == {
        "subject": "User:u",
        "policies": [
            {"policyType": custom, "entries": [
                {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow",
                 "sourceIps": ["10.0.0.0/8"]},
                {"resource": "Group:g", "actions": ["All"], "decision": "Allow"},
            ]},
            {"policyType": default, "entries": [
                {"resource": "*", "actions": ["All"], "decision": "Deny"},
            ]},
        ],
    }  # fmt: skip
    assert decode_rules("b", rules_body("u", rules)) == [
        UserRules("b", "u", (rules[0], rules[2], rules[1]))
    ]


def texts(text: str) -> Any:
    """Return a text where a tuple of texts is wanted."""
    return text


@pytest.mark.parametrize(
    "wrong", [texts("Topic:a"), Rule("Topic:a", texts("Pub")), Rule("a", (), True, texts("::1"))]
)
def test_what_is_no_rule_is_refused(wrong: Rule) -> None:
    with pytest.raises(TypeError, match="Rule"):
        rules_body("u", [wrong])


def test_an_answer_has_one_or_many_or_none() -> None:
    one = b'{"password":"p","userStatus":"disable","userType":"Super","username":"u"}'
    user = User("b", "u", "p", is_admin=True, is_enabled=False)
    assert decode_users("b", one) == [user]
    assert decode_users("b", b"[" + one + b"]") == [user]
    assert decode_users("b", b"") == decode_users("b", b"[]") == []
    assert decode_users("b", b'{"username":"v"}') == [
        User("b", "v", "", is_admin=False, is_enabled=True)
    ]
    assert decode_rules("b", b'[{"subject":"User:u"}]') == [UserRules("b", "u", ())]


@pytest.mark.parametrize("body", [b"{", b"7", b"{}", b'[{"username":7}]', b'{"username":null}'])
def test_an_answer_that_is_none_is_an_error(body: bytes) -> None:
    with pytest.raises(RemotingDecodeError, match="the answer's body"):
        decode_users("b", body)
