"""``[[listener]]`` tables for broker, name server and console, with a real balancer before them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
import trio

from motelog import Message, SyncAdmin, SyncProducer, SyncPushConsumer
from motelog.cli.advertised import _greet
from motelog.core.errors import RemotingError
from motelog.core.remoting.tls import Tls
from tests.support.certificates import certificates, make_certificates, make_crl
from tests.support.cli import motelog_here
from tests.support.listeners import ListenerServer
from tests.support.ports import free_ports

DEADLINE_S = 20.0
TLS = Tls(ca=certificates().ca)
#: Whence HAProxy connects: by its address alone, a server would take clients to be there.
BALANCER = "127.0.0.9"

PROXY_V2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c"


def table(name: str, protocol: str, port: int = 0, *, tls: bool = True, more: str = "") -> str:
    files = certificates()
    keys = f'tls_certificate = "{files.server}"\ntls_key = "{files.server_key}"\n' if tls else ""
    return (
        f'[[listener]]\nname = "{name}"\nfor = "{protocol}"\naddress = "127.0.0.1:{port}"\n'
        f"{keys}{more}\n"
    )


def haproxy(folder: Path, routes: dict[int, int]) -> subprocess.Popen[bytes]:
    """Start a balancer that takes each port to another one with the PROXY protocol."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("haproxy is not installed")
    lines = [
        "defaults", "    mode tcp", "    timeout connect 5s", "    timeout client 1m",
        "    timeout server 1m",
    ]  # fmt: skip
    for outside, inside in routes.items():
        lines += [
            f"listen at{outside}", f"    bind 127.0.0.1:{outside}", f"    source {BALANCER}",
            f"    server one 127.0.0.1:{inside} send-proxy-v2",
        ]  # fmt: skip
    configuration = folder / "haproxy.cfg"
    configuration.write_text("\n".join(lines) + "\n")
    return subprocess.Popen([program, "-db", "-q", "-f", str(configuration)])


def test_native_clients_behind_a_balancer_are_known_by_their_own_address(tmp_path: Path) -> None:
    ports = free_ports(4)
    names, broker = (ports[0], ports[1]), (ports[2], ports[3])
    proxied = "proxy_protocol = true"
    balancer = haproxy(tmp_path, dict([names, broker]))
    tables = table("names", "namesrv", names[1], more=proxied)
    tables += table("broker", "broker", broker[1], more=proxied)
    try:
        with ListenerServer(
            tmp_path, tables, broker=f'advertise = "127.0.0.1:{broker[0]}"'
        ) as server:
            assert server.listeners["broker"] == f"tls://127.0.0.1:{broker[1]}"
            namesrv = f"127.0.0.1:{names[0]}"
            with SyncProducer(namesrv=namesrv, tls=TLS) as producer:
                producer.send(Message("orders", b"x"))
            with SyncAdmin(namesrv=namesrv, tls=TLS) as admin:
                bodies: list[bytes] = []
                members: list[str] = []
                with SyncPushConsumer(namesrv=namesrv, tls=TLS, group="readers") as consumer:
                    consumer.subscribe("orders")

                    def handle(message: object) -> None:
                        bodies.append(message.body)  # type: ignore[attr-defined]
                        assert message.born_host[0] == "127.0.0.1"  # type: ignore[attr-defined]
                        members.extend(one.address for one in admin.consumers("readers"))
                        consumer.stop()

                    consumer.run(handle)
            assert bodies == [b"x"]
            assert members
            assert {address.rpartition(":")[0] for address in members} == {"127.0.0.1"}
            # Without a header, as past the balancer, nobody is let in.
            with socket.create_connection(("127.0.0.1", broker[1]), DEADLINE_S) as direct:
                direct.sendall(bytes(16))
                assert direct.recv(1) == b""
            wanted = "it does not begin with a header of the PROXY protocol"
            assert wanted in server.errors()
    finally:
        balancer.terminate()
        balancer.wait(DEADLINE_S)


def test_broker_and_name_server_listen_for_plain_and_tls_clients_apart(tmp_path: Path) -> None:
    tables = table("names", "namesrv") + table("broker", "broker", more="connections_max = 1\n")
    with ListenerServer(tmp_path, tables) as server:
        for role, name in (("namesrv", "names"), ("broker", "broker")):
            plain, secure = server.ready[role], f"127.0.0.1:{server.port(name)}"
            trio.run(_greet, plain, None)
            trio.run(_greet, secure, TLS)
            with pytest.raises(RemotingError):
                trio.run(_greet, secure, None)
            with pytest.raises(RemotingError):
                trio.run(_greet, plain, TLS)
        done = motelog_here("doctor", "--json", "--config", str(tmp_path / "motelog.toml"))
        found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
        for name in ("names", "broker"):
            assert found[f"TLS of listener {name}"]["level"] != "fault"
            assert (
                found[f"listener {name}"]["text"]
                == "tls://127.0.0.1:0 is not an address that clients use"
            )


def test_console_on_a_second_listener_notes_the_address_that_a_balancer_tells(
    tmp_path: Path,
) -> None:
    token = motelog_here("token", "create", "ops", "--role", "admin", "--file", str(tmp_path / "t"))
    assert token.returncode == 0, token.stderr
    audit = tmp_path / "audit"
    tables = (
        f'tokens_file = "{tmp_path / "t"}"\naudit_file = "{audit}"\n'
        + table("apart", "admin", more="proxy_protocol = true")
        + table("second", "admin", tls=False)
    )
    secret = token.stdout.split()[-1]
    with ListenerServer(tmp_path, tables) as server:
        for address in (server.ready["console"], f"127.0.0.1:{server.port('second')}"):
            host, port = address.split(":")
            with socket.create_connection((host, int(port)), DEADLINE_S) as plain:
                assert b'"console"' in asked(plain, "GET", "/status", secret)
        context = ssl.create_default_context(cafile=certificates().ca)
        client = socket.create_connection(("127.0.0.1", server.port("apart")), DEADLINE_S)
        client.sendall(PROXY_V2 + bytes([192, 0, 2, 7, 127, 0, 0, 1]) + b"\xc0\x01\x1f\x90")
        with client, context.wrap_socket(client, server_hostname="localhost") as secure:
            answer = asked(secure, "DELETE", "/api/v1/retained/message?topic=a", secret)
            assert answer.startswith(b"HTTP/1.1 404")
        (line,) = map(json.loads, audit.read_text().splitlines())
        assert (line["who"], line["from"]) == ("ops", "192.0.2.7")
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", PROXY_V2 + bytes(12) + b"no TLS at all" * 9):
            with socket.create_connection(("127.0.0.1", server.port("apart")), DEADLINE_S) as one:
                one.sendall(garbage)
                while one.recv(4096):
                    pass
        assert "the client does not speak TLS" in server.errors()


@pytest.mark.parametrize("workers", [1, 2])
def test_certificates_are_read_on_command_and_each_file_is_told_of(
    tmp_path: Path, workers: int
) -> None:
    folder, audit = tmp_path / "c", tmp_path / "audit"
    folder.mkdir()
    files = make_certificates(folder)
    tls = f'tls_certificate = "{files.server}"\ntls_key = "{files.server_key}"\n'
    revoked = make_crl(folder)
    clients = f'tls_client_ca = "{files.ca}"\ntls_client_crl = "{revoked}"\n'
    tables = f'audit_file = "{audit}"\n'
    for protocol in ("mqtt", "broker", "namesrv", "admin"):
        tables += table(f"{protocol}-tls", protocol, tls=False, more=tls + clients)
    with ListenerServer(tmp_path, tables, gateway=f"workers = {workers}") as server:
        reload = ("cert", "reload", "--json", "--admin", server.ready["console"])
        paths = (files.server, files.server_key, files.ca, revoked)
        done = motelog_here(*reload)
        assert done.returncode == 0, done.stderr
        told = [json.loads(line) for line in done.stdout.splitlines()]
        assert {(one["listener"].removesuffix("-tls"), one["path"]) for one in told} == {
            (protocol, path)
            for protocol in ("mqtt", "broker", "namesrv", "admin")
            for path in paths
        }
        assert {one["fault"] for one in told} == {""}
        Path(revoked).write_text(Path(files.ca).read_text())
        done = motelog_here(*reload)
        assert done.returncode == 1
        told = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(told) == 16
        for one in told:
            wanted = f"cannot use {revoked}: " if one["path"] == revoked else "is not used"
            assert one["fault"].startswith(wanted)
        plain = motelog_here(*reload[:2], *reload[3:])
        assert plain.returncode == 1
        assert "lists of revoked certificates (X509 CRL) and nothing else" in plain.stdout
    actions = [json.loads(line)["action"] for line in audit.read_text().splitlines()]
    assert actions == ["reload_certificates"] * 3


def asked(sock: socket.socket, method: str, path: str, secret: str) -> bytes:
    """Ask for a page and return the whole answer."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    sock.sendall(f"{head}Authorization: Bearer {secret}\r\n\r\n".encode())
    answer = b""
    while part := sock.recv(65_536):
        answer += part
    return answer
