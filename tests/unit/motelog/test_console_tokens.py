"""Tokens of the admin listener, what their roles may do, and the audit log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from motelog.config import AdminConfig
from motelog.console import tokens
from motelog.console.audit import Audit, AuditFileError
from motelog.console.gate import Role
from motelog.console.health import Health
from motelog.console.pages import PAGES
from motelog.console.tokens import LOGIN_S, LOGINS_MAX, Tokens
from motelog.gateway.access.password_file import AccessFileError
from tests.conformance.peers import Gateway
from tests.support.cli import motelog_here
from tests.support.console import apis_of, console_of

CLIENT = "/api/v1/clients/client?client_id=dev"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


class Server:
    """A console with a gateway in memory."""

    def __init__(self, **config: Any) -> None:
        self.health = Health()
        self.health.checks["disk"] = lambda: "disk 91 % full"
        self.gateway = Gateway()
        console = console_of(AdminConfig(**config), apis_of(self.gateway), health=self.health)
        self._application = console.application()

    async def ask(self, method: str, path: str, token: str = "", **headers: str) -> httpx.Response:
        if token:
            headers["Authorization"] = f"Bearer {token}"
        transport = httpx.ASGITransport(self._application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers)


async def test_nothing_is_told_and_done_without_a_token(file: Path) -> None:
    tokens.create(str(file), "alice", Role.ADMIN, None)
    server = Server(tokens_file=str(file))
    peer = server.gateway.connect(5, "dev")
    paths = ("/status", "/metrics", "/api/v1/clients", CLIENT, "/api/v1/openapi.json")
    for path in paths:
        for token in ("", "motelog-wrong", " "):
            answer = await server.ask("GET", path, token)
            assert answer.status_code == 401, (path, token)
            assert "dev" not in answer.text
            assert answer.headers["www-authenticate"].startswith("Bearer")
    for path in ("/", *(one.path for one in PAGES)):
        answer = await server.ask("GET", path)
        assert (answer.status_code, answer.headers["location"], answer.text) == (303, "/login", "")
    answer = await server.ask("POST", "/do/kick_client")
    assert answer.status_code == 303
    for method in ("DELETE", "POST", "PUT", "PATCH"):
        answer = await server.ask(method, CLIENT, **{"X-Motelog": "1"})
        assert answer.status_code in (401, 405), method
    peer.assert_open()


async def test_health_is_told_to_all_and_its_reasons_to_those_who_may_look(file: Path) -> None:
    token = tokens.create(str(file), "probe", Role.VIEW, None)
    server = Server(tokens_file=str(file))
    assert (await server.ask("GET", "/health/live")).status_code == 200
    answer = await server.ask("GET", "/health/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "faults": {}})
    answer = await server.ask("GET", "/health/ready", token)
    assert answer.json()["faults"]["disk"] == "disk 91 % full"


async def test_each_role_may_do_what_those_below_it_may(file: Path) -> None:
    made = {role: tokens.create(str(file), role.name, role, None) for role in list(Role)[1:]}
    server = Server(tokens_file=str(file))
    for role, token in made.items():
        peer = server.gateway.connect(5, "dev")
        assert (await server.ask("GET", CLIENT, token)).status_code == 200
        answer = await server.ask("DELETE", CLIENT, token)
        assert answer.status_code == (403 if role is Role.VIEW else 200)
        assert peer.is_closed == (role is not Role.VIEW)
    answer = await server.ask("DELETE", CLIENT, made[Role.VIEW])
    assert answer.json() == {"error": "the token VIEW has the role view, this needs operate"}


async def test_a_token_that_is_deleted_or_over_counts_no_more(file: Path) -> None:
    now_s = 1_800_000_000.0
    text = tokens.create(str(file), "ci", Role.VIEW, now_s + 60)
    known = Tokens(str(file), now_s=lambda: now_s)
    cookie = known.log_in(text)
    assert cookie is not None
    assert known.find(text) == known.find_login(cookie)
    assert known.find(text) is not None
    now_s += 60
    assert (known.find(text), known.find_login(cookie), known.log_in(text)) == (None, None, None)
    now_s -= 60
    assert tokens.delete(str(file), "ci")
    assert (known.find(text), known.find_login(cookie)) == (None, None)
    assert not tokens.delete(str(file), "ci")


def test_a_login_ends_and_there_are_not_many(file: Path) -> None:
    now_s = 1_800_000_000.0
    text = tokens.create(str(file), "alice", Role.VIEW, None)
    known = Tokens(str(file), now_s=lambda: now_s)
    cookies = [known.log_in(text) or "" for _ in range(LOGINS_MAX + 1)]
    assert len(set(cookies)) == len(cookies)
    assert known.find_login(cookies[0]) is None, "the oldest has made room"
    assert known.find_login(cookies[1]) is not None
    known.log_out(cookies[1])
    assert known.find_login(cookies[1]) is None
    now_s += LOGIN_S
    assert known.find_login(cookies[-1]) is None
    assert known.find_login("") is None


def test_the_file_has_no_token_in_it_and_is_its_owners(file: Path) -> None:
    text = tokens.create(str(file), "alice", Role.OPERATE, None)
    assert text not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="the token 'alice' already exists"):
        tokens.create(str(file), "alice", Role.VIEW, None)
    with pytest.raises(ValueError, match="a token's name"):
        tokens.create(str(file), "a:b", Role.VIEW, None)


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "alice:root:sha256=" + "0" * 64 + ":never",
        "alice:view:sha256=" + "0" * 63 + ":never",
        "alice:view:sha256=" + "0" * 64 + ":2027-02-30T00:00:00Z",
    ],
)
def test_a_file_that_cannot_be_read_lets_nobody_in(file: Path, line: str) -> None:
    text = tokens.create(str(file), "bob", Role.VIEW, None)
    known = Tokens(str(file))
    good = file.read_text()
    file.write_text(good + line + "\n")
    assert known.find(text) is None
    assert known.fault is not None
    assert ":2: " in known.fault
    with pytest.raises(AccessFileError):
        Tokens(str(file))
    os.unlink(file)
    assert known.find(text) is None
    file.write_text(good)
    assert known.find(text) is not None
    assert known.fault is None


async def test_each_change_has_a_line_with_who_and_how_it_ended(file: Path, tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    token = tokens.create(str(file), "alice", Role.OPERATE, None)
    viewer = tokens.create(str(file), "bob", Role.VIEW, None)
    server = Server(tokens_file=str(file), audit_file=str(audit))
    assert audit.stat().st_mode & 0o777 == 0o600
    hostile = "dev%0a\"'</b>"
    server.gateway.connect(5, hostile)
    path = f"/api/v1/clients/client?{httpx.QueryParams({'client_id': hostile})}"
    await server.ask("GET", path, token)
    await server.ask("DELETE", path, token)
    await server.ask("DELETE", path, token)
    await server.ask("DELETE", path, viewer)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(one["who"], one["role"], one["outcome"]) for one in lines] == [
        ("alice", "operate", "done"),
        ("alice", "operate", "no client with this identifier is connected"),
        ("bob", "view", "the token bob has the role view, this needs operate"),
    ]
    assert lines[0]["action"] == "kick_client"
    assert lines[0]["what"] == {"client_id": hostile}
    assert token not in audit.read_text()


async def test_what_cannot_be_noted_is_not_done(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    server = Server(audit_file=str(folder / "audit"))
    peer = server.gateway.connect(5, "dev")
    (folder / "audit").unlink()
    folder.rmdir()
    answer = await server.ask("DELETE", CLIENT, **{"X-Motelog": "1"})
    assert answer.status_code == 503
    assert "the audit file cannot be written" in answer.json()["error"]
    peer.assert_open()
    with pytest.raises(AuditFileError):
        Audit(str(folder / "audit"))


def test_a_name_that_no_token_can_have_is_wrong_use_and_one_that_is_taken_refused(
    file: Path,
) -> None:
    create = ("token", "create", "--file", str(file))
    assert [motelog_here(*create, name).returncode for name in ("a b", "a", "a")] == [2, 0, 5]
