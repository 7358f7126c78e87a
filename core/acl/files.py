"""The files of access control: accounts of a server, credentials of a client.

Owns: reading both, in RocketMQ's shapes. Must not touch: what rights mean (accounts), when a file
is read again (gate). Spec: RocketMQ conf/plain_acl.yml, conf/tools.yml.

They are RocketMQ's own files, so that existing ones can still be used, also by RocketMQ's brokers
and tools beside ours. Every scalar is read as text: a secret of digits keeps its leading zeros.
A misspelt key or value is an error of the whole file; RocketMQ uses a default instead.

    plain_acl.yml   globalWhiteRemoteAddresses: [ADDRESS...]
                    accounts:
                      - accessKey, secretKey, whiteRemoteAddress, admin: true|false
                        defaultTopicPerm, defaultGroupPerm: DENY, PUB, SUB or PUB|SUB
                        topicPerms: [TOPIC=PERM...], groupPerms: [GROUP=PERM...]
    tools.yml       accessKey, secretKey, securityToken
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from motelog.core.acl.accounts import Account, Right, Rules
from motelog.core.acl.addresses import parse_addresses
from motelog.core.errors import ConfigError
from motelog.core.remoting.credentials import Credentials
from motelog.core.topic_names import RETRY_PREFIX

_RIGHTS: Final = {
    "DENY": Right.NONE,
    "PUB": Right.PUB,
    "SUB": Right.SUB,
    "PUB|SUB": Right.EITHER,
    "SUB|PUB": Right.EITHER,
}
# As in RocketMQ, which refuses shorter ones.
KEY_CHARACTERS_MIN: Final = 7
_Shape = TypeVar("_Shape", bound=msgspec.Struct)


class _AccountShape(msgspec.Struct, forbid_unknown_fields=True):
    accessKey: str
    secretKey: str
    whiteRemoteAddress: str = ""
    admin: bool = False
    defaultTopicPerm: str = "DENY"
    defaultGroupPerm: str = "DENY"
    topicPerms: list[str] = []
    groupPerms: list[str] = []


class _RulesShape(msgspec.Struct, forbid_unknown_fields=True):
    accounts: list[_AccountShape] = []
    globalWhiteRemoteAddresses: list[str] = []
    dataVersion: Any = None  # RocketMQ counts its changes of the file


class _CredentialsShape(msgspec.Struct, forbid_unknown_fields=True):
    accessKey: str
    secretKey: str
    securityToken: str | None = None


def read_rules(path: str | Path) -> Rules:
    """Return the content of plain_acl.yml; ConfigError, without any secret, if it is unusable."""
    return parse_rules(_read(path), name=str(path))


def parse_rules(text: bytes, *, name: str) -> Rules:
    """Do as ``read_rules`` with a file's content; ``name`` is its name in errors."""
    shape = _convert(text, _RulesShape, name)
    accounts: dict[str, Account] = {}
    try:
        for each in shape.accounts:
            if each.accessKey in accounts:
                raise ValueError(f"the account {each.accessKey!r} appears twice")
            if min(len(each.accessKey), len(each.secretKey)) < KEY_CHARACTERS_MIN:
                fault = f"accessKey and secretKey need at least {KEY_CHARACTERS_MIN} characters"
                raise ValueError(f"{fault}: {each.accessKey!r}")
            accounts[each.accessKey] = _account(each)
        white = parse_addresses(shape.globalWhiteRemoteAddresses)
    except ValueError as exc:
        raise ConfigError(f"{name}: {exc}") from exc
    return Rules(accounts, white)


def read_credentials(path: str | Path) -> Credentials:
    """Return the content of tools.yml; ConfigError, without any secret, if it cannot be used."""
    shape = _convert(_read(path), _CredentialsShape, str(path))
    try:
        return Credentials(shape.accessKey, shape.secretKey, shape.securityToken or None)
    except ValueError as exc:
        raise ConfigError(f"{path}: {exc}") from exc


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise ConfigError(f"{path}: cannot read: {exc.strerror or exc}") from exc


def _convert(text: bytes, kind: type[_Shape], name: str) -> _Shape:
    try:
        value = _load(text)
    except yaml.MarkedYAMLError as exc:
        line = f":{exc.problem_mark.line + 1}" if exc.problem_mark is not None else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {exc.problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise ConfigError(f"{name}: not valid YAML") from None
    try:
        return msgspec.convert(_without_empty(value), kind, strict=False)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"{name}: {exc}") from None


def _load(text: bytes) -> Any:
    """Return the content of YAML as texts, lists and tables: this loader makes nothing else."""
    loader = yaml.BaseLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _without_empty(value: Any) -> Any:
    """Leave out keys without a value: they are null in YAML, but empty texts here."""
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item != ""}
    return value


def _account(shape: _AccountShape) -> Account:
    topics: dict[str, Right] = {}
    groups: dict[str, Right] = {}
    for text in shape.topicPerms:
        name, right = _named_right(text)
        if name.startswith(RETRY_PREFIX):
            groups[name.removeprefix(RETRY_PREFIX)] = right
        else:
            topics[name] = right
    groups |= dict(map(_named_right, shape.groupPerms))
    return Account(
        shape.accessKey,
        shape.secretKey.encode(),
        shape.admin,
        topics,
        groups,
        _right(shape.defaultTopicPerm),
        _right(shape.defaultGroupPerm),
        parse_addresses([shape.whiteRemoteAddress]),
    )


def _named_right(text: str) -> tuple[str, Right]:
    name, sign, right = text.partition("=")
    if not sign or not name.strip():
        raise ValueError(f"{text!r} is not NAME=PERM")
    return name.strip(), _right(right)


def _right(text: str) -> Right:
    right = _RIGHTS.get(text.strip())
    if right is None:
        raise ValueError(f"{text!r} is not one of {', '.join(_RIGHTS)}")
    return right
