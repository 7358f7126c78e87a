"""Users that tools have made: what is kept, what is refused, the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from motelog.core.acl.accounts import ADMINISTRATOR, Right, topic_need
from motelog.core.acl.users import (
    ENTRIES_MAX,
    AclInfo,
    EntryInfo,
    PolicyInfo,
    UserInfo,
    UserTable,
    read_users,
    subject_user,
    users_file,
)
from motelog.core.errors import BrokerError, StoreDamagedError
from motelog.core.remoting.codes import ResponseCode

HOST = "10.1.2.3"
SECRET = "planted-secret"


def table(*names: str) -> UserTable:
    users = UserTable()
    for name in names:
        users.create(name, UserInfo(password=SECRET))
    return users


def policy(*resources: str, decision: str = "Allow", kind: str | None = None) -> PolicyInfo:
    return PolicyInfo(kind, [EntryInfo(each, ["Pub"], None, decision) for each in resources])


def may_publish(users: UserTable, name: str, topic: str) -> bool:
    return users.principals()[name].may(topic_need(topic, Right.PUB), HOST)


def test_a_new_user_is_normal_and_enabled_and_may_nothing() -> None:
    users = table("alice")
    assert users.user("alice") == UserInfo("alice", SECRET, "Normal", "enable")
    assert not may_publish(users, "alice", "orders")
    assert users.acl("alice") is None
    assert users.user("bob") is None


def test_what_is_not_said_of_a_user_stays() -> None:
    users = table("alice")
    users.update("alice", UserInfo(user_type="super"))
    assert users.principals()["alice"].may(ADMINISTRATOR, HOST)
    users.update("alice", UserInfo(password="another-secret", user_status="disable"))
    assert users.user("alice") == UserInfo("alice", "another-secret", "Super", "disable")
    assert users.principals() == {}


def test_rules_for_the_same_resource_take_their_place_and_others_stay() -> None:
    users = table("alice")
    users.put_acl("alice", [policy("Topic:a", "Topic:b")])
    users.put_acl("alice", [policy("Topic:a", decision="Deny"), policy("Topic:a", kind="default")])
    entries = [
        EntryInfo("Topic:a", ["Pub"], None, "Deny"),
        EntryInfo("Topic:b", ["Pub"], None, "Allow"),
    ]
    default = [EntryInfo("Topic:a", ["Pub"], None, "Allow")]
    policies = [PolicyInfo("Custom", entries), PolicyInfo("Default", default)]
    assert users.acl("alice") == AclInfo("User:alice", policies)
    users.delete_acl("alice", None, "Topic:a")
    assert users.acls("", "") == [
        AclInfo("User:alice", [PolicyInfo("Custom", entries[1:]), PolicyInfo("Default", default)])
    ]
    users.delete_acl("alice", None, None)
    assert users.acl("alice") is None
    with pytest.raises(BrokerError, match="acl is not exist"):
        users.delete_acl("alice", None, None)


def test_rules_go_with_their_user() -> None:
    users = table("alice")
    users.put_acl("alice", [policy("Topic:a")])
    assert users.delete("alice")
    assert not users.delete("alice")
    users.create("alice", UserInfo(password=SECRET))
    assert not may_publish(users, "alice", "a")


def test_lists_are_filtered() -> None:
    users = table("alice", "bob")
    users.put_acl("alice", [policy("Topic:a", "Topic:b")])
    users.put_acl("bob", [policy("Topic:b")])
    assert [user.username for user in users.users("")] == ["alice", "bob"]
    assert [user.username for user in users.users("li")] == ["alice"]
    assert [acl.subject for acl in users.acls("bob", "")] == ["User:bob"]
    (acl,) = users.acls("", "Topic:a")
    assert acl == AclInfo("User:alice", [policy("Topic:a", kind="Custom")])


def test_what_is_refused_changes_nothing_and_shows_no_secret() -> None:
    users = table("alice")
    before = users.snapshot(), users.version
    invalid, refused = ResponseCode.INVALID_PARAMETER, ResponseCode.NO_PERMISSION
    calls: list[tuple[Callable[[], object], ResponseCode]] = [
        (lambda: users.create("alice", UserInfo(password=SECRET)), refused),
        (lambda: users.create("", UserInfo(password=SECRET)), invalid),
        (lambda: users.create("a\nb", UserInfo(password=SECRET)), invalid),
        (lambda: users.create("bob", UserInfo()), invalid),
        (lambda: users.create("bob", UserInfo(password="plant")), invalid),
        (lambda: users.create("bob", UserInfo(password=SECRET, user_type="root")), invalid),
        (lambda: users.update("bob", UserInfo(password=SECRET)), refused),
        (lambda: users.update("alice", UserInfo(user_status="off")), invalid),
        (lambda: users.put_acl("bob", [policy("Topic:a")]), refused),
        (lambda: users.put_acl("alice", []), refused),
        (lambda: users.put_acl("alice", [policy("Topic:a", "nothing")]), invalid),
        (lambda: users.put_acl("alice", [policy("Topic:a", kind="other")]), invalid),
        (lambda: users.acl("bob"), refused),
    ]
    for call, code in calls:
        with pytest.raises(BrokerError) as exc:
            call()
        assert exc.value.code == code
        assert "plant" not in str(exc.value)
    many = [f"Topic:t{i}" for i in range(ENTRIES_MAX + 1)]
    with pytest.raises(BrokerError, match="at most"):
        users.put_acl("alice", [policy(*many)])
    assert (users.snapshot(), users.version) == before
    assert SECRET not in repr(users._users)


def test_a_subject_is_a_user() -> None:
    assert subject_user("user:a:b") == "a:b"
    for text in ("alice", "Group:g", "User:", ""):
        with pytest.raises(BrokerError, match="User:NAME"):
            subject_user(text)


def test_the_file_has_all_of_it(tmp_path: Path) -> None:
    path = str(tmp_path / "users.json")
    assert read_users(path) == {}
    users = table("alice", "bob")
    users.put_acl("alice", [policy("Topic:a"), policy("Group:*", kind="Default")])
    users.update("bob", UserInfo(user_type="Super"))
    users_file(path).save(users.snapshot())
    assert read_users(path) == users.principals()
    assert (tmp_path / "users.json").stat().st_mode & 0o777 == 0o600
    # Nothing is left of who is gone.
    users.delete("alice")
    users_file(path).save(users.snapshot())
    assert [file.name for file in tmp_path.iterdir()] == ["users.json"]
    assert read_users(path).keys() == {"bob"}
    again = UserTable()
    again.load(users.snapshot() | {"users": msgspec.to_builtins(users.snapshot()["users"])})
    assert again.snapshot() == users.snapshot()


@pytest.mark.parametrize(
    "text",
    [
        '{"users": {"alice": {"password": "planted-secret", "userType": "Root"}}}',
        '{"users": {"a": {"password": "planted-secret", "userType": "Root", "userStatus": "x"}}}',
        '{"users": []}',
        "[1]",
        "{",
    ],
)
def test_a_file_that_cannot_be_meant_is_damaged(tmp_path: Path, text: str) -> None:
    file = tmp_path / "users.json"
    file.write_text(text)
    with pytest.raises(StoreDamagedError) as exc:
        read_users(str(file))
    assert "planted" not in str(exc.value)
