"""Users and rules that tools have created: a table in memory, and its shapes in requests.

Owns: UserTable, which changes are refused, users.json. Must not touch: what a rule means
(policies), files, who may change users. Spec: RocketMQ 5.3 AuthenticationMetadataManagerImpl,
AuthorizationMetadataManagerImpl, UserInfo, AclInfo.

    users.json  {"users": {NAME: {"password", "userType": Super|Normal,
                                  "userStatus": enable|disable, "policies": [POLICY...]}}}
    POLICY      {"policyType": Custom|Default, "entries": [{"resource": "Topic:orders",
                 "actions": ["Pub"], "sourceIps": ["10.0.0.0/8"], "decision": Allow|Deny}]}

The table keeps the secret itself, because checking a signature needs it. A user has one rule for
each resource and policy type: a further one replaces it. Rules are deleted with their user.
Invariant: every rule in the table is valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from motelog.core.acl.files import KEY_CHARACTERS_MIN
from motelog.core.acl.policies import (
    NAME_CHARACTERS_MAX,
    Entry,
    User,
    in_order,
    parse_entry,
    parse_resource,
)
from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import ResponseCode
from motelog.core.state_file import StateFile
from motelog.core.topic_names import shown

USERS_MAX: Final = 10_000
#: A request may be compared with all of them.
ENTRIES_MAX: Final = 200

_TYPES: Final = {"super": "Super", "normal": "Normal"}
_STATUSES: Final = {"enable": "enable", "disable": "disable"}
_CUSTOM, _DEFAULT = "Custom", "Default"
_SUBJECT: Final = "User"


class UserInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """A user as tools send and receive it; a change leaves missing fields as they are."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class EntryInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """One rule."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """Rules of one type."""

    policy_type: str | None = None
    entries: list[EntryInfo] | None = None


class AclInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    """All rules of a user."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    password: str = field(repr=False)
    user_type: str = "Normal"
    user_status: str = "enable"
    entries: tuple[Entry, ...] = ()


class UserTable:
    """The users of one broker; a change is made as a whole, or refused with BrokerError."""

    def __init__(self) -> None:
        self._users: dict[str, _Kept] = {}
        self.version = 0
        self.is_dirty = False

    def create(self, name: str, info: UserInfo) -> None:
        """Add a user; by default a normal one that is enabled."""
        if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not name.isprintable() or name.isspace():
            raise _invalid(f"{shown(name)} is not a valid user name")
        if name in self._users:
            raise _refused("The user is existed")
        if len(self._users) >= USERS_MAX:
            raise _refused(f"the broker already keeps {USERS_MAX} users")
        self._put(name, _changed(_Kept(_password(info.password or "")), info))

    def update(self, name: str, info: UserInfo) -> None:
        """Change the given fields of a user."""
        self._put(name, _changed(self._user(name), info))

    def delete(self, name: str) -> bool:
        """Remove a user and its rules; return whether it existed."""
        found = self._users.pop(name, None) is not None
        if found:
            self._note()
        return found

    def put_acl(self, name: str, policies: Iterable[PolicyInfo] | None) -> None:
        """Add rules to a user, replacing those for the same resources."""
        user = self._user(name)
        added = _entries(policies or ())
        if not added:
            raise _refused("The policies is empty.")
        known = {(each.is_default, each.resource): each for each in user.entries}
        known |= {(each.is_default, each.resource): each for each in added}
        if len(known) > ENTRIES_MAX:
            raise _refused(f"a user has at most {ENTRIES_MAX} rules: use prefixes, as Topic:a-*")
        self._put(name, replace(user, entries=tuple(known.values())))

    def delete_acl(self, name: str, policy_type: str | None, resource: str | None) -> None:
        """Remove a user's rule for a resource; without a resource all of its rules."""
        user = self._user(name)
        if not user.entries:
            raise _refused("The acl is not exist.")
        rest: tuple[Entry, ...] = ()
        if resource:
            is_default = _is_default(policy_type)
            try:
                gone = parse_resource(resource)
            except ValueError as exc:
                raise _invalid(str(exc)) from None
            rest = tuple(
                each
                for each in user.entries
                if each.is_default != is_default or each.resource != gone
            )
        self._put(name, replace(user, entries=rest))

    def user(self, name: str) -> UserInfo | None:
        """Return a user with its secret, as RocketMQ does: copyUser needs it."""
        user = self._users.get(name)
        if user is None:
            return None
        return UserInfo(name, user.password, user.user_type, user.user_status)

    def users(self, part: str) -> list[UserInfo]:
        """Return the users whose names contain ``part``."""
        return [info for name in sorted(self._users) if part in name and (info := self.user(name))]

    def acl(self, name: str) -> AclInfo | None:
        """Return a user's rules, None if it has none; BrokerError if there is no such user."""
        entries = self._user(name).entries
        return AclInfo(_subject(name), _policies(entries)) if entries else None

    def acls(self, subject_part: str, resource_part: str) -> list[AclInfo]:
        """Return the rules of users whose subjects contain the one part, for resources that contain
        the other.
        """
        found = []
        for name, user in sorted(self._users.items()):
            entries = [each for each in user.entries if resource_part in str(each.resource)]
            if entries and subject_part in _subject(name):
                found.append(AclInfo(_subject(name), _policies(entries)))
        return found

    def principals(self) -> dict[str, User]:
        """Return the enabled users, as the gate needs them."""
        return {
            name: User(
                name, user.password.encode(), user.user_type == "Super", in_order(user.entries)
            )
            for name, user in self._users.items()
            if user.user_status == "enable"
        }

    def snapshot(self) -> dict[str, Any]:
        """Return the content of users.json; a copy, which a thread may encode."""
        return {
            "users": {
                name: {
                    "password": user.password,
                    "userType": user.user_type,
                    "userStatus": user.user_status,
                    "policies": _policies(user.entries),
                }
                for name, user in self._users.items()
            }
        }

    def load(self, content: Mapping[str, Any]) -> None:
        """Load users.json; msgspec.ValidationError or ValueError if it is invalid."""
        shapes = msgspec.convert(content.get("users", {}), dict[str, _SavedUser])
        users = {}
        for name, shape in shapes.items():
            try:
                info = UserInfo(None, None, shape.userType, shape.userStatus)
                user = _changed(_Kept(shape.password), info)
                users[name] = replace(user, entries=tuple(_entries(shape.policies)))
            except BrokerError as exc:
                raise ValueError(f"the user {shown(name)}: {exc}") from None
        self._users = users
        self.version += 1

    def _user(self, name: str) -> _Kept:
        user = self._users.get(name)
        if user is None:
            raise _refused("The user is not exist")
        return user

    def _put(self, name: str, user: _Kept) -> None:
        self._users[name] = user
        self._note()

    def _note(self) -> None:
        self.version += 1
        self.is_dirty = True


class _SavedUser(msgspec.Struct, forbid_unknown_fields=True):
    password: str
    userType: str
    userStatus: str
    policies: list[PolicyInfo] = []


def users_file(path: str) -> StateFile:
    """Return the file of the users that tools have created."""
    return StateFile(path, holds="users and rules that tools have created", keeps_previous=False)


def read_users(path: str) -> dict[str, User]:
    """Return the users of another process's table; empty without a file. Blocks.

    StoreDamagedError or OSError if there is a file that cannot be used.
    """
    table = UserTable()

    def take(content: dict[str, Any]) -> None:
        table.load(content)

    users_file(path).load(take)
    return table.principals()


def subject_user(subject: str) -> str:
    """Return the name in ``User:NAME``."""
    kind, sign, name = subject.partition(":")
    if not sign or kind.lower() != _SUBJECT.lower() or not name:
        raise _invalid(f"the subject {shown(subject)} is not User:NAME")
    return name


def _subject(name: str) -> str:
    return f"{_SUBJECT}:{name}"


def _changed(user: _Kept, info: UserInfo) -> _Kept:
    password, kind, status = user.password, user.user_type, user.user_status
    if info.password:
        password = _password(info.password)
    if info.user_type:
        kind = _one_of(_TYPES, info.user_type, "type of a user")
    if info.user_status:
        status = _one_of(_STATUSES, info.user_status, "status of a user")
    return replace(user, password=password, user_type=kind, user_status=status)


def _password(text: str) -> str:
    # The text stays out of the answer, and so out of logs.
    if len(text.strip()) < KEY_CHARACTERS_MIN:
        raise _invalid(f"the password needs at least {KEY_CHARACTERS_MIN} characters")
    return text


def _one_of(known: Mapping[str, str], text: str, what: str) -> str:
    found = known.get(text.lower())
    if found is None:
        raise _invalid(f"{shown(text)} is not a {what}: {' or '.join(known.values())}")
    return found


def _is_default(policy_type: str | None) -> bool:
    types = {"custom": _CUSTOM, "default": _DEFAULT}
    return _one_of(types, policy_type or _CUSTOM, "type of a policy") == _DEFAULT


def _entries(policies: Iterable[PolicyInfo]) -> list[Entry]:
    try:
        return [
            parse_entry(
                each.resource or "",
                each.actions or (),
                each.decision or "",
                each.source_ips or (),
                is_default=_is_default(policy.policy_type),
            )
            for policy in policies
            for each in policy.entries or ()
        ]
    except ValueError as exc:
        raise _invalid(str(exc)) from None


def _policies(entries: Iterable[Entry]) -> list[PolicyInfo]:
    by_type: dict[str, list[EntryInfo]] = {}
    for each in entries:
        info = EntryInfo(
            str(each.resource), list(each.actions), list(each.source_ips) or None, each.decision
        )
        by_type.setdefault(_DEFAULT if each.is_default else _CUSTOM, []).append(info)
    return [PolicyInfo(name, infos) for name, infos in by_type.items()]


def _invalid(text: str) -> BrokerError:
    return BrokerError(ResponseCode.INVALID_PARAMETER, text)


def _refused(text: str) -> BrokerError:
    return BrokerError(ResponseCode.NO_PERMISSION, text)
