"""``motelog user`` and ``motelog acl``: what they print, keep and answer."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from motelog.gateway.access.password_file import parse_hash, read_users
from motelog.gateway.access.scram import VERIFIER
from tests.support.cli import motelog, motelog_here, motelog_lines


def test_users_are_added_changed_listed_and_deleted(tmp_path: Path) -> None:
    file = str(tmp_path / "passwords")
    where = ["--file", file]
    (tmp_path / "secret").write_bytes(b"of bob\r\n")

    def add(user: str) -> int:
        more = ["--password-from", str(tmp_path / "secret")] if user == "bob" else []
        return motelog("user", "add", user, *where, *more, input="first\n").returncode

    with ThreadPoolExecutor(2) as both:  # neither loses what the other has written
        assert list(both.map(add, ("alice", "bob"))) == [0, 0]
    assert parse_hash(read_users(file)["alice"]).fits(b"first")
    assert parse_hash(read_users(file)["bob"]).fits(b"of bob")
    assert motelog_lines("user", "list", *where, "--json") == [{"user": "alice"}, {"user": "bob"}]
    done = motelog("user", "add", "alice", *where, input="x\n")
    assert (done.returncode, "already" in done.stderr) == (5, True)
    assert motelog("user", "add", "a:b", *where, input="x\n").returncode == 2
    assert motelog("user", "add", "carol", *where, input="\n").returncode == 2
    (tmp_path / "motelog.toml").write_text(
        f'roles = ["gateway"]\n[access]\npassword_file = "{file}"\n'
        '[gateway]\nnamesrv = ["127.0.0.1:1"]\n'
    )
    config = ["--config", str(tmp_path / "motelog.toml")]
    assert motelog("user", "passwd", "alice", *config, input="second\n").returncode == 0
    assert parse_hash(read_users(file)["alice"]).fits(b"second")
    assert motelog("user", "passwd", "bob", *where, "--scram", input="third\n").returncode == 0
    assert read_users(file)["bob"].startswith(VERIFIER)
    assert parse_hash(read_users(file)["bob"]).fits(b"third")
    assert motelog_lines("user", "delete", "alice", *where, "--json") == [{"deleted": "alice"}]
    assert motelog_here("user", "delete", "alice", *where).returncode == 3
    assert motelog_here("acl", "check", "alice", "t", *config).returncode == 78
    assert motelog_here("user", "list").returncode == 2


def test_acl_check_names_the_rule(tmp_path: Path) -> None:
    file = tmp_path / "acl.toml"
    file.write_text(
        '[[rule]]\nallow = ["publish", "retain"]\ntopics = ["{user_name}/{client_id}"]\n'
        "qos_max = 1\n"
        '[[rule]]\ndeny = ["publish"]\ntopics = ["bob/#"]\n'
    )
    command = ("acl", "check", "--file", str(file), "--client-id", "c", "--json")
    [told] = motelog_lines(*command, "alice", "alice/c")
    assert told["publish"] == {"allowed": True, "qos_max": 1, "rule": 1}
    assert told["retain"]["allowed"] is True
    assert told["subscribe"] == {"allowed": False, "qos_max": None, "rule": None}
    done = motelog_here(*command, "bob", "bob/c")
    assert (done.returncode, json.loads(done.stdout)["publish"]["rule"]) == (5, 2)
    assert motelog_here(*command, "bob", "a/#/b").returncode == 2
    file.write_text("[[rule]]\nallow = []\ntopics = []\n")
    done = motelog_here(*command, "bob", "x")
    assert (done.returncode, "rule 1" in done.stderr) == (78, True)
