"""What leaves a machine has no secrets in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from motelog.cli.secrets import (
    is_secret_name,
    secrets_in_files,
    value_without,
    without_secrets,
)
from motelog.core.addresses import REMOVED

TOKEN = "motelog-" + "a1B2" * 11


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("login failed password=hunter2 user=x", "hunter2"),
        ('{"secretKey": "rocketmq", "topic": "t"}', "rocketmq"),
        ("MOTELOG_SECRET: hunter2", "hunter2"),
        ("Authorization: Bearer abc.def", "abc.def"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("mqtt://user:hunter2@host:1883/x", "hunter2"),
        ("mqtt://user:a@hunter2@host:1883/x", "hunter2"),
        ("a word eyJhbGciOi.eyJzdWIi.c2lnbmVk here", "eyJzdWIi"),
        (f"with {TOKEN} it works", TOKEN),
        ("x\n-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\ny", "MHcC"),
        ("cut -----BEGIN PRIVATE KEY-----\nMHcC", "MHcC"),
        ("user:$scrypt$ln=14,r=8$c2FsdA$aGFzaA", "aGFzaA"),
    ],
)
def test_what_looks_like_a_secret_goes(text: str, secret: str) -> None:
    clean = without_secrets(text)
    assert secret not in clean
    assert REMOVED in clean


@pytest.mark.parametrize(
    "text",
    [
        "client_id='dev42' reason_code=0x87 address=10.0.0.1:1883",
        "access.password_file = /etc/motelog/users",
        "-----BEGIN CERTIFICATE-----\nMIIB",
        "tls_key=/etc/motelog/key.pem keys=3",
        "http://127.0.0.1:8080/metrics",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert without_secrets(text) == text


def test_names_of_secrets_and_of_their_files() -> None:
    assert is_secret_name("admin.token")
    assert not is_secret_name("admin.tokens_file")
    assert value_without("x.password", "hunter2") == REMOVED
    assert value_without("x.password", "") == ""
    assert value_without("x.password_file", "/a") == "/a"


def test_what_the_files_hold_goes_wherever_it_stands(tmp_path: Path) -> None:
    users, acl = tmp_path / "users", tmp_path / "acl.yml"
    users.write_text("dev42:7f3a9cbe55\n")
    acl.write_text("accounts:\n  - accessKey: reader\n    secretKey: verysecret\n    admin: true\n")
    known = secrets_in_files([str(users), str(acl), str(tmp_path / "none")])
    text = without_secrets("hash 7f3a9cbe55 of dev42, reader and verysecret say true", known)
    assert text == f"hash {REMOVED} of dev42, {REMOVED} and {REMOVED} say true"
