"""What the doctor says of the files of logins, rights, tokens and accounts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from motelog.cli.named_files import file_findings
from motelog.config import load_config
from tests.support.cli import motelog_here

ACCESS = (
    ("access.password_file", "passwords", "alice:$none\n"),
    ("access.acl_file", "acl.toml", "[[rule]]\ntopic = 'a'\n"),
    ("access.jwt_keys_file", "keys.json", "{}"),
    ("admin.tokens_file", "tokens", "alice\n"),
    ("namesrv.acl_file", "plain_acl.yml", "accounts: 7\n"),
    ("broker.acl_file", "plain_acl.yml", "accounts: 7\n"),
    ("broker.credentials_file", "tools.yml", "accessKey: x\n"),
    ("gateway.credentials_file", "tools.yml", "accessKey: x\n"),
    ("gateway.tls_file", "tls.properties", "tls.client.keyPassword=x\n"),
)


def written(folder: Path, *keys: str) -> Path:
    """Write a configuration that names these files."""
    names = {key: name for key, name, _ in ACCESS}
    sections = {key.partition(".")[0] for key in keys} | {"broker"}
    text = ""
    for section in sorted(sections):
        text += f"[{section}]\n"
        for key in keys:
            if key.startswith(f"{section}."):
                text += f'{key.partition(".")[2]} = "{folder}/{names[key]}"\n'
        if section == "access":
            text += 'jwt_audience = "a"\n' if "access.jwt_keys_file" in keys else ""
    file = folder / "motelog.toml"
    file.write_text(f'{text}[broker.store]\ndirectory = "{folder}/store"\n')
    return file


@pytest.mark.parametrize(("key", "name", "wrong"), ACCESS)
def test_a_file_that_is_missing_or_wrong_is_a_fault(
    tmp_path: Path, key: str, name: str, wrong: str
) -> None:
    keys = {key, "access.password_file"} if key == "access.acl_file" else {key}
    config = load_config(written(tmp_path, *keys))
    (missing,) = (one for one in file_findings(config) if one.name == key)
    assert (missing.level, f"{tmp_path}/{name}" in missing.text) == ("fault", True)
    assert "No such file or directory" in missing.text
    (tmp_path / name).write_text(wrong)
    (found,) = (one for one in file_findings(config) if one.name == key)
    assert (found.level, f"{tmp_path}/{name}" in found.text) == ("fault", True)
    assert "No such file" not in found.text


@pytest.mark.parametrize(("key", "name", "wrong"), ACCESS)
def test_check_names_the_key_of_a_file_that_is_missing_or_wrong(
    tmp_path: Path, key: str, name: str, wrong: str
) -> None:
    keys = {key, "access.password_file"} if key == "access.acl_file" else {key}
    file = str(written(tmp_path, *keys))
    assert key in faults_of(file)
    assert motelog_here("config", "check", file, "--no-files").returncode == 0
    (tmp_path / name).write_text(wrong)
    assert f"{tmp_path}/{name}" in faults_of(file)[key]


def test_check_names_the_keys_of_certificates(tmp_path: Path) -> None:
    file = tmp_path / "motelog.toml"
    (tmp_path / "no-pem").write_text("x")
    file.write_text(
        f'[broker.store]\ndirectory = "{tmp_path}/store"\n'
        f'[admin]\ntls_certificate = "{tmp_path}/no-pem"\n'
        '[[listener]]\nname = "a"\naddress = "127.0.0.1:1"\n'
        '[[listener]]\nname = "b"\naddress = "127.0.0.1:2"\n'
        f'tls_certificate = "{tmp_path}/b.pem"\ntls_key = "{tmp_path}/b.key"\n'
        f'tls_client_ca = "{tmp_path}/ca.pem"\n'
    )
    assert faults_of(str(file)).keys() == {
        "admin.tls_certificate",
        *(f"listener[1].{name}" for name in ("tls_certificate", "tls_key", "tls_client_ca")),
    }
    told = motelog_here("config", "check", str(file))
    line = f"{file}:12: listener[1].tls_key: cannot read {tmp_path}/b.key: No such file"
    assert (told.returncode, line in told.stderr) == (78, True), told.stderr


def faults_of(file: str) -> dict[str, str]:
    """Return what ``config check`` says is wrong, by key."""
    told = motelog_here("config", "check", file, "--json")
    answer = json.loads(told.stdout)
    assert (told.returncode, answer["valid"]) == (78, False)
    return {fault["key"]: fault["message"] for fault in answer["faults"]}


def test_the_doctor_looks_at_files_and_disk_of_the_configuration(tmp_path: Path) -> None:
    secret, passwords = tmp_path / "secret", tmp_path / "passwords"
    secret.touch(mode=0o600)
    secret.write_text("p")
    add = ["user", "add", "alice", "--file", str(passwords), "--password-from", str(secret)]
    assert motelog_here(*add).returncode == 0
    file = written(tmp_path, "access.password_file", "admin.tokens_file")
    told = motelog_here("doctor", "--config", str(file)).stdout
    lines = {line[7:].split("  ")[0]: line.split()[0] for line in told.splitlines()}
    assert (lines["access.password_file"], lines["admin.tokens_file"]) == ("ok", "fault")
    assert f"free at {tmp_path}" in told
