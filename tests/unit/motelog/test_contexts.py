"""Contexts of the command line: how they are kept, and what goes where."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.support.certificates import certificates
from tests.support.cli import motelog, motelog_here


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without contexts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("MOTELOG_CONTEXT", "MOTELOG_TOKEN_FILE", "MOTELOG_CREDENTIALS", "MOTELOG_TLS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*arguments: str, status: int = 0) -> str:
    result = motelog_here(*arguments)
    assert result.returncode == status, result.stderr
    return result.stdout + result.stderr


def secret(home: Path, name: str, text: str) -> Path:
    file = home / name
    file.touch(mode=0o600)
    file.write_text(text)
    return file


@contextmanager
def admin_listener() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """An admin listener with TLS, and no clients; gives its address and requests: (path, login)."""
    requests: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append((self.path, self.headers["Authorization"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"clients": [], "after": null}')

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        files = certificates()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(files.server, files.server_key)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"https://localhost:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


def test_contexts_are_added_listed_used_and_removed(home: Path) -> None:
    assert run("context", "list") == "no contexts\n"
    run("context", "add", "a", "--admin", "http://127.0.0.1:1/", "--namesrv", "h:1;h:2")
    assert "already" in run("context", "add", "a", "--namesrv", "h:3", status=5)
    run("context", "add", "b", "--mqtt", "mqtts://h", "--use")
    first, second = [json.loads(line) for line in run("context", "list", "--json").splitlines()]
    assert (first["context"], first["admin"], first["is_used"]) == ("a", "127.0.0.1:1", False)
    assert (second["mqtt"], second["is_used"]) == ("mqtts://h", True)
    file = home / "motelog" / "contexts.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in file.parent.iterdir()] == [file.name], "nothing else is left"
    run("context", "use", "a")
    run("context", "remove", "b")
    assert "127.0.0.1:1" in run("status", status=4), "it is asked where the context says"
    assert "no context" in run("context", "use", "b", status=3)
    assert "no context" in run("--context", "b", "status", status=3)
    run("context", "use", "")
    assert "*" not in run("context", "list")
    file.write_text("{")
    assert str(file) in run("client", "list", status=78)


def test_changes_of_contexts_are_told_as_json(home: Path) -> None:
    made = json.loads(run("context", "add", "a", "--namesrv", "127.0.0.1:1", "--use", "--json"))
    assert (made["context"], made["is_used"], made["namesrv"]) == ("a", True, "127.0.0.1:1")
    assert json.loads(run("context", "use", "", "--json")) == {"context": "", "is_used": False}
    assert json.loads(run("context", "use", "a", "--json")) == {"context": "a", "is_used": True}
    gone = json.loads(run("context", "remove", "a", "--json"))
    assert gone == {"context": "a", "is_removed": True}
    assert not run("context", "list", "--json")


def test_credentials_that_everybody_may_read_are_warned_of(home: Path) -> None:
    file = secret(home, "tools.yml", "accessKey: operator-1\nsecretKey: secret-of-operator\n")
    ask = ("topic", "list", "--namesrv", "127.0.0.1:1", "--credentials", str(file))
    assert "may read" not in run(*ask, status=4)
    file.chmod(0o644)
    said = run(*ask, status=4)
    assert f"all users of this machine may read the secret key in {file}\n" in said
    assert f"chmod 600 {file}" in said
    assert "secret-of-operator" not in said


def test_a_name_server_that_speaks_http_is_one_error_alone(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    asking, _ = server.accept()
                    with asking:
                        asking.recv(4096)
                        asking.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        address = "{}:{}".format(*server.getsockname())
        done = motelog("topic", "list", "--namesrv", address)
        server.shutdown(socket.SHUT_RDWR)
    assert done.returncode == 4
    lines = done.stderr.splitlines()
    assert sum(line.startswith("motelog: ") for line in lines) == 1
    assert all(line.startswith(("motelog: ", "  ")) for line in lines), done.stderr
    assert "it speaks HTTP, not RocketMQ's protocol" in done.stderr


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ((), 2),
        (("--admin", "nowhere"), 2),
        (("--mqtt", "mqtt://alice:geheim@h"), 2),
        (("--mqtt", "http://h"), 2),
        (("--mqtt", "mqtt://h", "--password-file", "/dev/null"), 3),
        (("--admin", "h:1", "--token-file", "no-such-file"), 3),
    ],
)
def test_a_context_that_cannot_be_meant_is_refused(
    home: Path, options: tuple[str, ...], status: int
) -> None:
    run("context", "add", "a", *options, status=status)
    assert run("context", "list") == "no contexts\n"


def test_secrets_are_in_files_that_nobody_else_may_read(home: Path) -> None:
    token = secret(home, "token", "geheim\n")
    run("context", "add", "a", "--admin", "h:1", "--token-file", str(token), "--use")
    assert "geheim" not in (home / "motelog" / "contexts.json").read_text()
    assert "geheim" not in run("context", "list", "--json")
    token.chmod(0o640)
    assert "chmod 600" in run("client", "list", status=78)
    assert "chmod 600" in run(
        "context", "add", "b", "--admin", "h:1", "--token-file", str(token), status=78
    )


def test_a_context_opens_its_admin_listener_and_no_other(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = secret(home, "token", "geheim\n")
    with admin_listener() as (own, asked), admin_listener() as (other, asked_other):
        authority = certificates().ca
        options = ["--admin", own, "--ca-file", authority, "--token-file", str(token)]
        run("context", "add", "a", *options)
        assert run("--context", "a", "client", "list") == "no clients\n"
        monkeypatch.setenv("MOTELOG_CONTEXT", "a")
        assert run("client", "list") == "no clients\n"
        assert [login for _, login in asked] == ["Bearer geheim"] * 2
        run("client", "list", "--admin", other, status=4)  # its authority is not the context's
        monkeypatch.setenv("SSL_CERT_FILE", authority)
        run("client", "list", "--admin", other)
        assert [login for _, login in asked_other] == [None]


def test_publishing_means_the_server_of_the_context(home: Path) -> None:
    password = secret(home, "password", "geheim")
    run(
        "context", "add", "a", "--mqtt", "mqtt://127.0.0.1:1", "--namesrv", "127.0.0.1:2",
        "--user-name", "alice", "--password-file", str(password), "--use",
    )  # fmt: skip
    assert "127.0.0.1:1" in run("pub", "-t", "t", "-m", "x", status=4)
    assert "127.0.0.1:3" in run("pub", "-t", "t", "-m", "x", "--to", "127.0.0.1:3", status=4)
    password.chmod(0o644)
    assert "chmod 600" in run("pub", "-t", "t", "-m", "x", status=78)
    run("pub", "-t", "t", "-m", "x", "-p", "3", status=4)  # not opened for another server
    assert "127.0.0.1:2" in run("topic", "list", status=4)


def test_native_commands_and_doctor_have_the_tls_of_the_context(home: Path) -> None:
    properties = home / "tls.properties"
    properties.write_text(f"tls.client.trustCertPath={certificates().ca}\n")
    run(
        "context", "add", "a", "--namesrv", "127.0.0.1:2", "--tls-file", str(properties), "--use"
    )  # fmt: skip
    assert "127.0.0.1:2" in run("topic", "list", status=4)
    assert "127.0.0.1:2" in run("doctor", "--json", status=1)
    properties.write_text("tls.client.trustCertPath=/no/such/file\n")
    for command in (("topic", "list"), ("produce", "t", "-m", "x"), ("group", "list"), ("doctor",)):
        assert "/no/such/file" in run(*command, status=78)
    run("context", "use", "")
    assert "127.0.0.1:2" not in run("doctor", "--json")


def test_doctor_names_the_certificate_that_cannot_be_used(home: Path) -> None:
    files = certificates()
    config = home / "m.toml"

    def told(certificate: str, key: str) -> dict[str, str]:
        config.write_text(
            f'roles = ["console"]\n[admin]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n'
        )
        status = 0 if (certificate, key) == (files.server, files.server_key) else 1
        found = json.loads(run("doctor", "--config", str(config), "--json", status=status))
        return next(one for one in found["findings"] if one["name"] == "TLS of [admin]")

    assert "expires at" in told(files.server, files.server_key)["text"]  # in two days
    missing = told(files.server, "/no/such/key")
    assert "/no/such/key: No such file" in missing["text"]
    assert "cert dev-ca" in missing["remedy"]
    unfit = told(files.server, files.client_key)
    assert files.client_key in unfit["text"]
    assert files.client_key in unfit["remedy"]
    assert f"cannot read {home}: " in told(str(home), "")["text"]


def test_bench_sends_its_load_to_a_context_that_is_named(home: Path) -> None:
    run("context", "add", "plain", "--mqtt", "mqtt://127.0.0.1:1")
    run("context", "add", "secure", "--mqtt", "mqtts://127.0.0.1:1")
    assert "127.0.0.1:1" in run("--context", "plain", "bench", "pub", status=4)
    assert "without them" in run("--context", "secure", "bench", "pub", status=2)
    assert "127.0.0.1:3" in run(
        "--context", "secure", "bench", "pub", "--to", "127.0.0.1:3", status=4
    )


def test_a_token_file_that_cannot_be_read_is_told_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTELOG_TOKEN_FILE", f"{home}/no")
    told = run("status", status=78)
    assert told == f"motelog: cannot read the token in {home}/no: No such file or directory\n"
