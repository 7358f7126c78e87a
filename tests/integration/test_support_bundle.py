"""A bundle for whoever helps: what is in it, and what is not."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from motelog.testing import MotelogProcess
from tests.support.cli import motelog_here

PLANTED = {
    "hash": "9b1cPLANTEDhash77",
    "account": "PLANTEDaccount1",
    "environment": "PLANTEDvariable1",
    "log": "PLANTEDlogged1",
    "url": "PLANTEDurl1",
    "key": "PLANTEDkey0123456789abcdef",
}


def members(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for info in archive:
            file = archive.extractfile(info)
            assert file is not None
            found[info.name.partition("/")[2]] = file.read().decode()
    return found


def planted_config(folder: Path) -> Path:
    (folder / "users").write_text(f"dev42:{PLANTED['hash']}\n")
    (folder / "acl.yml").write_text(
        f"accounts:\n- accessKey: operator\n  secretKey: {PLANTED['account']}\n  admin: true\n"
    )
    (folder / "key.pem").write_text(
        f"-----BEGIN PRIVATE KEY-----\n{PLANTED['key']}\n-----END PRIVATE KEY-----\n"
    )
    (folder / "store").mkdir()
    path = folder / "motelog.toml"
    path.write_text(
        f"# {PLANTED['hash']}\n"
        f'[broker]\nacl_file = "{folder}/acl.yml"\n'
        f'[broker.store]\ndirectory = "{folder}/store"\n'
        f'[access]\npassword_file = "{folder}/users"\n'
        "[[listener]]\nname = 'tls'\naddress = '127.0.0.1:8883'\n"
        f'tls_certificate = "{folder}/key.pem"\ntls_key = "{folder}/key.pem"\n'
    )
    return path


def test_no_secret_is_in_it(motelog_stack: MotelogProcess, tmp_path: Path) -> None:
    config = planted_config(tmp_path)
    log = tmp_path / "server.log"
    log.write_text(
        "first line\n" * 6000
        + f"login password={PLANTED['log']} hash {PLANTED['hash']}\n"
        + f"hook https://me:{PLANTED['url']}@example.org says {PLANTED['account']}\n"
        + f"variable {PLANTED['environment']} {PLANTED['key']}\nlast line\n"
    )
    out = tmp_path / "bundle.tar.gz"
    result = motelog_here(
        *("support-bundle", "--config", str(config), "--log", str(log), "--out", str(out)),
        *("--admin", motelog_stack.ready["admin"]),
        environment={"MOTELOG_TEST_SECRET": PLANTED["environment"]},
    )
    assert result.returncode == 0, result.stderr
    assert out.stat().st_mode & 0o777 == 0o600
    found = members(out)
    for where, secret in PLANTED.items():
        assert [name for name, text in found.items() if secret in text] == [], where
    config_keys = {one["key"]: one for one in json.loads(found["config.json"])}
    assert config_keys["access.password_file"]["value"] == f"{tmp_path}/users"
    assert json.loads(found["versions.json"])["packages"]["trio"]
    assert json.loads(found["status.json"])["ready"]
    assert json.loads(found["config-running.json"])["keys"]
    assert "motelog_gateway_connections" in found["metrics.txt"]
    assert "MOTELOG_TEST_SECRET" in json.loads(found["machine.json"])["variables"]
    (tail,) = [text for name, text in found.items() if name.startswith("log-0")]
    assert tail.splitlines()[-1] == "last line"
    assert len(tail.splitlines()) == 5000
    # The store has no log yet: that is noted, as the bundle is for when something is wrong.
    assert "store.json" in json.loads(found["not-there.json"])
    again = motelog_here("support-bundle", "--out", str(out), "--admin", "127.0.0.1:1")
    assert (again.returncode, "cannot write" in again.stderr) == (1, True)


def test_without_a_server_there_is_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "bundle.tar.gz"
    result = motelog_here("support-bundle", "--out", str(out), "--admin", "127.0.0.1:1", "--json")
    told = json.loads(result.stdout)
    assert set(told["not_there"]) == {
        "status.json", "ready.json", "config-running.json", "metrics.txt",
    }  # fmt: skip
    assert {"versions.json", "machine.json", "doctor.txt"} <= members(out).keys()
