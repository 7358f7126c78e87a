"""The console's pages over a gateway in memory: what they show, their forms, logging in."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from motelog.config import AdminConfig, load_with_origins
from motelog.console import tokens
from motelog.console.gate import Role
from motelog.console.pages import FORM_BYTES_MAX
from motelog.running_config import RunningConfig
from tests.conformance.peers import Gateway
from tests.support.console import apis_of, console_of

HOSTILE: Final = "</td><script>alert(1)</script>\u202e\"'&{{7*7}}"


@asynccontextmanager
async def browser(
    gateway: Gateway, running_config: RunningConfig | None = None, **config: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client that keeps cookies and follows where it is led."""
    console = console_of(AdminConfig(**config), apis_of(gateway, running_config))
    transport = httpx.ASGITransport(console.application())
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", follow_redirects=True
    ) as client:
        yield client


class Tags(HTMLParser):
    """The tags of a page, and the forms on it: (action, fields)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.forms: dict[str, dict[str, str]] = {}
        self._form: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        found = dict(attrs)
        if tag == "form":
            self._form = self.forms[found.get("action") or ""] = {}
        elif tag == "input":
            self._form[found["name"] or ""] = found.get("value") or ""


async def test_hostile_names_are_text_wherever_they_are_shown() -> None:
    gateway = Gateway()
    peer = gateway.connect_persistent(5, HOSTILE)
    peer.subscribe(HOSTILE)
    peer.publish(HOSTILE, HOSTILE.encode(), 1, retain=True)
    name, topic = httpx.QueryParams({"client_id": HOSTILE}), httpx.QueryParams({"topic": HOSTILE})
    async with browser(gateway) as client:
        for path in (
            "/clients", f"/clients/client?{name}", "/sessions", f"/sessions/session?{name}",
            "/retained", f"/retained/message?{topic}",
        ):  # fmt: skip
            answer = await client.get(path)
            assert answer.status_code == 200, path
            assert "<script>alert" not in answer.text
            shown = re.sub(r' value="[^"]*"', "", answer.text)
            assert "\u202e" not in shown, "it would turn what is behind it round"
            assert "{{7*7}}" in shown
            assert "&lt;script&gt;alert(1)&lt;/script&gt;" in answer.text
        forms = Tags((await client.get(f"/clients/client?{name}")).text).forms
        assert forms["/do/kick_client"]["client_id"] == HOSTILE
        answer = await client.get("/sessions", params={"prefix": HOSTILE})
        assert Tags(answer.text).forms[""]["prefix"] == HOSTILE


async def test_a_change_is_made_by_a_form_with_the_key_of_its_page() -> None:
    gateway = Gateway()
    peer = gateway.connect_persistent(5, "dev")
    async with browser(gateway) as client:
        form = Tags((await client.get("/clients/client?client_id=dev")).text).forms
        fields = form["/do/kick_client"]
        for key in ("", "0" * 64, "é"):
            answer = await client.post("/do/kick_client", data=fields | {"form_key": key})
            assert answer.status_code == 403
        answer = await client.post("/do/kick_client", data={"client_id": "dev"})
        assert answer.status_code == 403
        answer = await client.post(
            "/do/kick_client", data=fields, headers={"Origin": "http://evil.example"}
        )
        assert answer.status_code == 403
        assert not peer.is_closed
        answer = await client.post("/do/kick_client", data=fields)
        assert answer.status_code == 200
        assert answer.url.path == "/clients"
        assert "The client is disconnected." in answer.text
        peer.assert_ended(0x98)
        assert (await client.post("/do/kick_client", data=fields)).status_code == 404
        assert (await client.post("/do/list_clients", data=fields)).status_code == 404
        assert (await client.get("/do/kick_client", params=fields)).status_code == 405


async def test_a_form_is_not_read_beyond_what_it_may_have() -> None:
    taken, statuses = 0, []

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1000
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    async def send(message: dict[str, Any]) -> None:
        statuses.append(message.get("status"))

    async with browser(Gateway()) as client:
        transport = client._transport
        assert isinstance(transport, httpx.ASGITransport)
        scope = {
            "type": "http", "method": "POST", "path": "/do/kick_client", "query_string": b"",
            "headers": [(b"host", b"localhost")], "scheme": "http", "client": ("::1", 1),
        }  # fmt: skip
        await transport.app(scope, receive, send)  # type: ignore[arg-type]  # a literal has no keys
    assert statuses[0] == 413
    assert taken <= FORM_BYTES_MAX + 1000


async def test_every_change_is_offered_by_a_page_and_can_be_made() -> None:
    gateway = Gateway()
    gateway.connect_persistent(5, "dev").publish("t", b"x", 1, retain=True)
    async with browser(gateway) as client:
        for path, action in (
            ("/retained/message?topic=t", "delete_retained"),
            ("/clients/client?client_id=dev", "kick_client"),
            ("/sessions/session?client_id=dev", "end_session"),
        ):
            fields = Tags((await client.get(path)).text).forms[f"/do/{action}"]
            assert (await client.post(f"/do/{action}", data=fields)).status_code == 200
            assert (await client.get(path)).status_code == 404


async def test_who_has_logged_in_sees_what_the_token_may(tmp_path: Path) -> None:
    file = str(tmp_path / "tokens")
    made = {role: tokens.create(file, role.name.lower(), role, None) for role in list(Role)[1:]}
    gateway = Gateway()
    gateway.connect(5, "dev")
    for role, token in made.items():
        async with browser(gateway, tokens_file=file) as client:
            answer = await client.get("/clients")
            assert answer.url.path == "/login"
            answer = await client.post("/login", data={"token": "motelog-wrong"})
            assert (answer.status_code, "is not valid" in answer.text) == (401, True)
            answer = await client.post("/login", data={"token": token})
            assert answer.url.path == "/"
            (set_cookie,) = answer.history[0].headers.get_list("set-cookie")
            assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(set_cookie.split("; "))
            assert token not in set_cookie
            answer = await client.get("/clients/client?client_id=dev")
            assert ("/do/kick_client" in Tags(answer.text).forms) == (role >= Role.OPERATE)
            fields = {
                "form_key": Tags(answer.text).forms["/logout"]["form_key"],
                "client_id": "nobody",
            }
            answer = await client.post("/do/kick_client", data=fields)
            assert answer.status_code == (404 if role >= Role.OPERATE else 403)
            # The cookie is sent by the browser on its own: what programs do needs more than it.
            answer = await client.delete("/api/v1/clients/client?client_id=dev")
            assert answer.status_code == 403
            answer = await client.post("/logout", data=fields)
            assert answer.url.path == "/login"
            assert (await client.get("/clients")).url.path == "/login"


async def test_a_form_of_another_login_is_refused(tmp_path: Path) -> None:
    file = str(tmp_path / "tokens")
    token = tokens.create(file, "alice", Role.OPERATE, None)
    gateway = Gateway()
    peer = gateway.connect(5, "dev")
    async with browser(gateway, tokens_file=file) as client:
        keys = []
        for _ in range(2):
            client.cookies.clear()
            answer = await client.post("/login", data={"token": token})
            keys.append(Tags(answer.text).forms["/logout"]["form_key"])
        fields = {"form_key": keys[0], "client_id": "dev"}
        assert (await client.post("/do/kick_client", data=fields)).status_code == 403
        peer.assert_open()


@pytest.mark.parametrize(
    ("payload", "form", "text"),
    [
        (b'{"a":[1]}', "JSON", "&#34;a&#34;: ["),
        (b'{"a":"\\u202e \\u00e4"}', "JSON", "&#34;\\u202e ä&#34;"),
        ("21.5 °C".encode(), "text", "21.5 °C"),
        (b"\x00\xffA", "hex", "000000  00 ff 41"),
        ("\u202eabc".encode(), "hex", "e2 80 ae 61"),
        (b"[" * 5000, "text", "[" * 100),
    ],
)
async def test_a_payload_is_shown_as_what_it_is(payload: bytes, form: str, text: str) -> None:
    gateway = Gateway()
    gateway.connect(5, "dev").publish("t", payload, 1, retain=True)
    async with browser(gateway) as client:
        answer = await client.get("/retained/message?topic=t")
    assert f"as {form}</h2>" in answer.text
    assert text in answer.text


async def test_configuration_is_shown_with_what_a_reload_would_change(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    text = 'roles = ["console"]\n[admin]\nhosts = ["<b>"]\n[log]\nlevel = "info"\n'
    path.write_text(text)
    running = RunningConfig(
        load_with_origins(path), lambda runtime: load_with_origins(path, runtime)
    )
    async with browser(Gateway(), running) as client:
        answer = await client.get("/config")
        assert answer.status_code == 200
        assert "[&#34;&lt;b&gt;&#34;]" in answer.text
        assert f"{path}:3" in answer.text
        assert "Nothing." in (await client.get("/config/changes")).text
        path.write_text(text.replace("info", "debug"))
        answer = await client.get("/config/changes")
        assert ">log.level<" in answer.text
        fields = Tags(answer.text).forms["/do/reload_config"]
        answer = await client.post("/do/reload_config", data=fields)
        assert "The configuration was reloaded." in answer.text
        path.write_text("[admin]\nlisten = 5\n")
        answer = await client.get("/config/changes")
        assert "The configuration has faults" in answer.text
        assert "/do/reload_config" not in answer.text


async def test_a_key_is_set_and_given_up(tmp_path: Path) -> None:
    path, audit = tmp_path / "m.toml", tmp_path / "audit"
    path.write_text(
        f'roles = ["console"]\n[admin]\nruntime_file = "{tmp_path}/keys"\n[log]\nlevel = "info"\n'
    )
    running = RunningConfig(
        load_with_origins(path), lambda runtime: load_with_origins(path, runtime)
    )
    async with browser(Gateway(), running, audit_file=str(audit)) as client:
        fields = Tags((await client.get("/config")).text).forms["/do/set_config_key"]

        async def put(key: str, value: str, **more: str) -> httpx.Response:
            data = fields | {"key": key, "value": value} | more
            return await client.post("/do/set_config_key", data=data)

        answer = await put("log.format", "json")
        assert "The key is set." in answer.text
        assert "applied" in answer.text
        for key, value, status, why in (
            ("log.formt", "json", 404, "there is no key log.formt; did you mean log.format?"),
            ("log.format", "<i>", 409, "nothing was changed: the configuration cannot be used"),
            ("log.level", "debug", 409, f"log.level is set by {path}:5: change it there"),
            ("admin.listen", "x", 409, "it controls who may reach this server"),
        ):
            answer = await put(key, value)
            assert (answer.status_code, why in answer.text) == (status, True), key
            assert "<i>" not in answer.text
            assert '<a href="/config">Back</a>' in answer.text
        assert (await put("log.format", "text", form_key="guessed")).status_code == 403
        shown = (await client.get("/config")).text
        assert "runtime store" in shown
        fields = Tags(shown).forms["/do/unset_config_key"]
        answer = await client.post("/do/unset_config_key", data=fields)
        assert "The key is unset." in answer.text
        assert "/do/unset_config_key" not in (await client.get("/config")).text
    noted = [json.loads(line) for line in audit.read_text().splitlines()]
    actions = [(one["action"], one["what"], one["outcome"]) for one in noted]
    what = {"key": "log.format", "value": "json"}
    assert ("set_config_key", what, "done") in actions
    assert ("unset_config_key", {"key": "log.format"}, "done") in actions


async def test_logins_in_urls_are_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, audit = tmp_path / "m.toml", tmp_path / "audit"
    text = 'roles = ["console"]\n[access]\nhttp_url = "http://user:hunter2@127.0.0.1/"\n'
    path.write_text(text)
    running = RunningConfig(
        load_with_origins(path), lambda runtime: load_with_origins(path, runtime)
    )
    caplog.set_level(logging.INFO)
    async with browser(Gateway(), running, audit_file=str(audit)) as client:
        answers = [await client.get(where) for where in ("/config", "/api/v1/config")]
        path.write_text(text.replace("hunter2", "hunter3"))
        changes = "/config/changes", "/api/v1/config/changes"
        answers += [await client.get(where) for where in changes]
        key = {"key": "access.http_url", "value": "http://user:hunter4@127.0.0.1/"}
        mine = {"X-Motelog": "1"}
        answers.append(await client.post("/api/v1/config/reload", headers=mine))
        answers.append(await client.post("/api/v1/config/key", params=key, headers=mine))
    for answer in answers[:5]:
        assert "http://[removed]@127.0.0.1/" in answer.text, answer.url
    assert "access.http_url can only be set in the file" in answers[5].text
    assert "http://[removed]@127.0.0.1/" in audit.read_text()
    told = [answer.text for answer in answers]
    assert "hunter" not in "".join([*told, audit.read_text(), *messages_of(caplog)])


def messages_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the server's lines; those of the test's own client name what it asks."""
    return [one.getMessage() for one in caplog.records if one.name.startswith("motelog")]


@pytest.mark.parametrize("role", [Role.VIEW, Role.OPERATE])
async def test_a_key_is_set_by_admins_alone(tmp_path: Path, role: Role) -> None:
    path, file = tmp_path / "m.toml", str(tmp_path / "tokens")
    path.write_text('roles = ["console"]\n')
    token = tokens.create(file, "bob", role, None)
    running = RunningConfig(
        load_with_origins(path), lambda runtime: load_with_origins(path, runtime)
    )
    async with browser(Gateway(), running, tokens_file=file) as client:
        await client.post("/login", data={"token": token})
        shown = (await client.get("/config")).text
        forms = Tags(shown).forms
        assert "/do/set_config_key" not in forms
        fields = {"form_key": forms["/logout"]["form_key"], "key": "log.format", "value": "json"}
        assert (await client.post("/do/set_config_key", data=fields)).status_code == 403


async def test_a_client_is_traced_and_its_names_are_text() -> None:
    gateway = Gateway()
    gateway.connect(5, HOSTILE)
    async with browser(gateway) as client:
        shown = await client.get("/clients/client", params={"client_id": HOSTILE})
        fields = Tags(shown.text).forms["/do/start_trace"]
        [topic] = [HOSTILE.encode()]
        body = len(topic).to_bytes(2, "big") + topic + b"\0not shown"
        answer = await client.post("/do/start_trace", data=fields)
        assert (answer.status_code, answer.url.path) == (200, "/clients/trace")
        [observer] = gateway.stage.output.observers.values()
        observer.received(bytes([0x30, len(body)]) + body)
        answer = await client.get(str(answer.url))
        assert "from the client: PUBLISH" in answer.text
        assert "&lt;script&gt;alert(1)" in answer.text
        assert "<script>alert" not in answer.text
        assert "\u202e" not in re.sub(r' value="[^"]*"', "", answer.text)
        assert "not shown" not in answer.text
        end = Tags(answer.text).forms["/do/end_trace"]
        assert (await client.post("/do/end_trace", data=end)).status_code == 200
        assert "It has ended: it was ended." in (await client.get(str(answer.url))).text
