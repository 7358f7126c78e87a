"""The files of access control; a file that cannot be used says why, and no secret."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from motelog.config import config_of
from motelog.core.acl.accounts import Right
from motelog.core.acl.files import parse_rules, read_credentials, read_rules
from motelog.core.broker.config import BrokerConfig
from motelog.core.errors import ConfigError
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.remoting.credentials import Credentials
from motelog.gateway.config import GatewayConfig
from tests.support.repository import ROOT


def test_scalars_are_texts_as_they_are_written() -> None:
    text = b"""
accounts:
- accessKey: 00123456
  secretKey: 0123456789
  whiteRemoteAddress:
  admin: TRUE
  defaultTopicPerm: SUB | PUB
  topicPerms:
  groupPerms: [ "g = SUB" ]
dataVersion: [ { counter: 3 } ]
"""
    with pytest.raises(ConfigError, match="'SUB \\| PUB' is not one of"):
        parse_rules(text, name="f")
    (account,) = parse_rules(text.replace(b" | ", b"|"), name="f").accounts.values()
    assert (account.access_key, account.secret) == ("00123456", b"0123456789")
    assert account.is_admin
    assert account.default_topic == Right.EITHER
    assert account.groups == {"g": Right.SUB}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "Expected `object`"),
        ("accounts: [", "f:1: not valid YAML"),
        ("\t- planted-secret", "f:1: not valid YAML"),
        ("&a [*a]: b", "not valid YAML"),
        ("planted-secret", "Expected `object`, got `str`"),
        ("acounts: []", "unknown field `acounts`"),
        ("accounts: [{accessKey: devices}]", "missing required field `secretKey`"),
        ("accounts: [{accessKey: devices, secretKey: ''}]", "missing required field `secretKey`"),
        ("accounts: [{accessKey: devices, secretKey: [planted-secret]}]", "Expected `str`"),
        (
            "accounts: [{accessKey: devices, secretKey: planted-secret, admin: maybe}]",
            "Expected `bool`",
        ),
        (
            "accounts: [{accessKey: devices, secretKey: plant}]",
            "accessKey and secretKey need at least 7 characters: 'devices'",
        ),
        (
            "accounts: [{accessKey: devices, secretKey: planted-secret, topicPerms: [T:PUB]}]",
            "'T:PUB' is not NAME=PERM",
        ),
        (
            "accounts: [{accessKey: devices, secretKey: planted-secret, topicPerms: [T=ALL]}]",
            "'ALL' is not one of DENY",
        ),
        (
            "accounts:\n- {accessKey: devices, secretKey: planted-secret}\n"
            "- {accessKey: devices, secretKey: planted-secret}",
            "the account 'devices' appears twice",
        ),
        ("globalWhiteRemoteAddresses: [10.1]", "'10.1' does not appear to be"),
    ],
)
def test_what_cannot_be_used_is_refused_without_a_secret(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_rules(text.encode(), name="f")
    assert fault in str(refusal.value)
    assert str(refusal.value).startswith("f:")
    assert "planted" not in str(refusal.value)
    cause = refusal.value.__cause__
    assert cause is None or "planted" not in str(cause)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read: No such file"):
        read_rules(tmp_path / "none.yml")
    with pytest.raises(ConfigError, match="cannot read: Is a directory"):
        read_credentials(tmp_path)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="f: not valid YAML"):
        parse_rules(b"\xff\xfe\xff", name="f")


def test_credentials_are_read_as_rocketmq_s_tools_have_them(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: rocketmq2\nsecretKey: 012345678\n")
    assert read_credentials(file) == Credentials("rocketmq2", "012345678")
    file.write_text("accessKey: rocketmq2\nsecretKey: s\nsecurityToken: t\n")
    assert read_credentials(file) == Credentials("rocketmq2", "s", "t")
    for text in ("accessKey: planted\n", "accesKey: planted\nsecretKey: planted\n"):
        file.write_text(text)
        with pytest.raises(ConfigError) as refusal:
            read_credentials(file)
        assert "planted" not in str(refusal.value)


def test_the_documents_examples_can_be_used(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "native-access.md").read_text()
    accounts, credentials = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    with_accounts, with_tls = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    rules = parse_rules(accounts.encode(), name="native-access.md")
    file = tmp_path / "tools.yml"
    file.write_text(credentials)
    account = rules.accounts[read_credentials(file).access_key]
    assert account.is_admin
    kinds = {"broker": BrokerConfig, "namesrv": NamesrvConfig, "gateway": GatewayConfig}
    for settings, sections in (
        (with_accounts, {"broker", "namesrv", "gateway"}),
        (with_tls, {"broker", "namesrv"}),
    ):
        tables = tomllib.loads(settings)
        assert tables.keys() == sections
        for name, table in tables.items():
            assert table.keys() <= set(kinds[name].__struct_fields__)
    tables["broker"]["store"] = {"directory": "d"}
    assert config_of(tables, name="native-access.md").broker is not None
