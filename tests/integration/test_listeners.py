"""Listeners: real clients over TLS, WebSocket, both, a balancer's header and a Unix socket."""

from __future__ import annotations

import queue
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.request import urlopen

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.support.access_files import write_passwords
from tests.support.certificates import CLIENT_NAME, certificates, make_certificates
from tests.support.cli import motelog, motelog_here
from tests.support.coded_peers import opening_request
from tests.support.listeners import ListenerServer
from tests.support.node import node_modules
from tests.support.openssl import check_versions_and_ciphers

DEADLINE_S = 20.0
CONNECT_TIMEOUT_S = 2
VERSIONS = (MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5)
CONNECT_3 = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01x"


def tables() -> str:
    files = certificates()
    tls = f'tls_certificate = "{files.server}"\ntls_key = "{files.server_key}"\n'
    listeners = {
        "tls": tls,
        "mutual": tls + f'tls_client_ca = "{files.ca}"\n',
        "ws": 'websocket = "/mqtt"\n',
        "wss": tls + 'websocket = "/mqtt"\n',
        "behind": "proxy_protocol = true\n" + tls + 'websocket = "/mqtt"\n',
        "few": "connections_max = 2\n",
    }
    return "".join(
        f'[[listener]]\nname = "{name}"\naddress = "127.0.0.1:0"\n{keys}'
        for name, keys in listeners.items()
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListenerServer]:
    folder = tmp_path_factory.mktemp("listeners")
    unix = f'[[listener]]\nname = "unix"\naddress = "unix:{folder}/mqtt.sock"\n'
    gateway = f"connect_timeout_s = {CONNECT_TIMEOUT_S}"
    with ListenerServer(folder, tables() + unix, gateway=gateway) as running:
        yield running


class Paho:
    """A paho client on its own thread; ``transport`` and TLS as its users set them."""

    def __init__(
        self,
        port: int,
        client_id: str,
        *,
        version: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv5,
        transport: Literal["tcp", "websockets"] = "tcp",
        is_tls: bool = False,
        has_certificate: bool = False,
        login: tuple[str, str] | None = None,
    ) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.connected = threading.Event()
        self.subscribed = threading.Event()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=version, transport=transport
        )
        if is_tls:
            files = certificates()
            pair = (files.client, files.client_key) if has_certificate else (None, None)
            self.client.tls_set(files.ca, *pair)
        if login is not None:
            self.client.username_pw_set(*login)
        self.reason = ""
        self.published: dict[int, str] = {}
        self.client.on_connect = self._on_connect
        self.client.on_publish = lambda _client, _data, number, reason, _properties: (
            self.published.update({number: str(reason)})
        )
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self.client.on_message = lambda _client, _data, message: self.messages.put(message)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert self.connected.wait(DEADLINE_S)

    def _on_connect(self, *arguments: Any) -> None:
        self.reason = str(arguments[3])
        self.connected.set()

    def publish(self, topic: str) -> str:
        """Publish; return the reason of the PUBACK."""
        number = self.client.publish(topic, b"x", qos=1).mid
        give_up_s = time.monotonic() + DEADLINE_S
        while number not in self.published and time.monotonic() < give_up_s:
            time.sleep(0.01)
        return self.published[number]

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_names_in_certificates_and_logins_are_users_with_rights(tmp_path: Path) -> None:
    write_passwords(tmp_path / "users", alice="a")
    (tmp_path / "acl.toml").write_text(
        '[[rule]]\nallow = ["publish", "subscribe"]\ntopics = ["plant/{user_name}/#"]\n'
    )
    access = (
        f'[access]\npassword_file = "{tmp_path}/users"\nacl_file = "{tmp_path}/acl.toml"\n'
        "certificate_users = true\n"
    )
    other = '[[listener]]\nname = "other"\naddress = "127.0.0.1:0"\nlogins = ["scram"]\n'
    with ListenerServer(tmp_path, access + tables() + other) as server:
        device = Paho(server.port("mutual"), "d", is_tls=True, has_certificate=True)
        person = Paho(
            server.port("wss"), "p", transport="websockets", is_tls=True, login=("alice", "a")
        )
        stranger = Paho(server.port("tls"), "s", is_tls=True, login=("alice", "wrong"))
        elsewhere = Paho(server.port("other"), "e", login=("alice", "a"))
        try:
            assert (device.reason, person.reason) == ("Success", "Success")
            assert stranger.reason == elsewhere.reason == "Bad user name or password"
            with urlopen(f"http://{server.ready['console']}/metrics", timeout=DEADLINE_S) as answer:
                shown = answer.read().decode()
            for name, count in (("mutual", 1), ("wss", 1), ("tls", 0), ("tcp", 0)):
                labels = f'listener="{name}",protocol="5.0"'
                assert f"motelog_gateway_clients{{{labels}}} {count:.1f}" in shown
            assert device.publish(f"plant/{CLIENT_NAME}/t") != "Not authorized"
            assert device.publish("plant/alice/t") == "Not authorized"
            assert person.publish("plant/alice/t") != "Not authorized"
            assert person.publish(f"plant/{CLIENT_NAME}/t") == "Not authorized"
        finally:
            for one in (device, person, stranger, elsewhere):
                one.stop()


@pytest.mark.parametrize("listener", ["tls", "mutual", "ws", "wss"])
@pytest.mark.parametrize("version", VERSIONS)
def test_paho_exchanges_messages(
    server: ListenerServer, listener: str, version: MQTTProtocolVersion
) -> None:
    client = Paho(
        server.port(listener),
        f"{listener}-{version}",
        version=version,
        transport="websockets" if "ws" in listener else "tcp",
        is_tls=listener != "ws",
        has_certificate=listener == "mutual",
    )
    try:
        topic = f"{listener}{version}/t"
        client.client.subscribe(f"{listener}{version}/#", 1)
        assert client.subscribed.wait(DEADLINE_S)
        payloads = [b"first", bytes(range(256)) * 800, b"last"]  # the second is 200 kB
        for payload in payloads:
            client.client.publish(topic, payload, 1)
        got = [client.messages.get(timeout=DEADLINE_S).payload for _ in payloads]
        assert got == payloads
    finally:
        client.stop()


@pytest.mark.mosquitto
@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto_pub is not installed")
@pytest.mark.parametrize("listener", ["tls", "mutual"])
def test_mosquitto_clients_exchange_over_tls(server: ListenerServer, listener: str) -> None:
    files = certificates()
    common = ["-h", "localhost", "-p", str(server.port(listener)), "--cafile", files.ca, "-q", "1"]
    if listener == "mutual":
        common += ["--cert", files.client, "--key", files.client_key]
    topic = f"mosquitto/{listener}"
    subprocess.run(
        ["mosquitto_pub", *common, "-t", topic, "-m", "over TLS", "-r"],
        check=True,
        timeout=DEADLINE_S,
    )
    got = subprocess.run(
        ["mosquitto_sub", *common, "-t", topic, "-C", "1", "-W", "10"],
        check=True,
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
    )
    assert got.stdout == "over TLS\n"


@pytest.mark.node
@pytest.mark.parametrize("listener", ["tls", "ws", "wss"])
def test_mqtt_js_exchanges_messages(server: ListenerServer, listener: str) -> None:
    modules = node_modules("mqtt@5")
    url = server.listeners[listener].replace("127.0.0.1", "localhost")
    script = f"""
        const mqtt = require("{modules}/mqtt");
        const ca = require("fs").readFileSync("{certificates().ca}");
        const client = mqtt.connect("{url}", {{ca, protocolVersion: 5, reconnectPeriod: 0}});
        client.on("error", e => {{ console.error(e); process.exit(1); }});
        client.on("connect", () => client.subscribe("js{listener}/#", {{qos: 1}}, () =>
            client.publish("js{listener}/t", "x".repeat(100000), {{qos: 1}})));
        client.on("message", (topic, payload) => {{
            console.log(topic, payload.length); client.end(); }});
    """
    done = subprocess.run(
        ["node", "-e", script], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.stdout == f"js{listener}/t 100000\n", done.stderr


@pytest.mark.parametrize("listener", ["tls", "mutual"])
def test_our_own_commands_connect_over_tls(server: ListenerServer, listener: str) -> None:
    files = certificates()
    options = ["--host", "localhost", "--port", str(server.port(listener)), "--cafile", files.ca]
    if listener == "mutual":
        options += ["--cert", files.client, "--key", files.client_key]
    done = motelog_here("pub", *options, "-t", f"own/{listener}", "-m", "hello", "-q", "1", "-r")
    assert done.returncode == 0, done.stderr
    got = motelog_here("sub", *options, "-t", f"own/{listener}", "-C", "1")
    assert got.stdout == "hello\n", got.stderr


def test_a_client_without_a_certificate_is_refused(server: ListenerServer) -> None:
    context = ssl.create_default_context(cafile=certificates().ca)
    sock = socket.create_connection(("127.0.0.1", server.port("mutual")), DEADLINE_S)
    with context.wrap_socket(sock, server_hostname="localhost") as tls:
        tls.sendall(CONNECT_3)
        # In TLS 1.3 the refusal comes behind the handshake.
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
            tls.recv(4)
    why = "the TLS handshake failed: peer did not return a certificate before CONNECT"
    wait_until(lambda: why in server.errors())


def test_our_commands_and_the_log_say_whose_fault_no_tls_is(
    server: ListenerServer, tmp_path: Path
) -> None:
    secure, plain = server.port("tls"), int(server.ready["gateway"].rpartition(":")[2])
    pub = ("pub", "-t", "a", "-m", "x", "--to")
    stranger = make_certificates(tmp_path)
    untrusting = motelog_here(*pub, f"localhost:{secure}", "--cafile", stranger.ca)
    assert untrusting.returncode == 5
    assert "its certificate is not accepted: " in untrusting.stderr
    assert "name the authority of the server's certificate with --cafile FILE" in untrusting.stderr
    # Others say so to the server.
    context = ssl.create_default_context(cafile=stranger.ca)
    sock = socket.create_connection(("127.0.0.1", secure), DEADLINE_S)
    with sock, pytest.raises(ssl.SSLCertVerificationError):
        context.wrap_socket(sock, server_hostname="localhost")
    why = "the client does not accept the server's certificate: tlsv1 alert unknown ca"
    wait_until(lambda: why in server.errors())
    not_secure = motelog_here(*pub, f"localhost:{secure}")
    assert (not_secure.returncode, "if the server requires TLS" in not_secure.stderr) == (4, True)
    wait_until(lambda: "the client does not speak TLS: wrong version number" in server.errors())
    needless = motelog_here(*pub, f"localhost:{plain}", "--cafile", certificates().ca)
    assert (needless.returncode, "it may have no TLS" in needless.stderr) == (5, True)
    assert "_ssl.c" not in untrusting.stderr + needless.stderr
    wait_until(lambda: "the client uses TLS, but this listener does not" in server.errors())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("listener", ["tls", "wss"])
def test_openssl_finds_tls_1_2_and_1_3_alone(server: ListenerServer, listener: str) -> None:
    check_versions_and_ciphers(server.port(listener))


def ended_after(sock: socket.socket) -> float:
    """Return how long it takes until the server ends a connection."""
    began_s = time.monotonic()
    sock.settimeout(DEADLINE_S)
    try:
        while sock.recv(4096):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - began_s


@pytest.mark.parametrize("listener", ["tls", "ws", "wss", "behind"])
def test_handshake_by_single_bytes_has_the_same_deadline(
    server: ListenerServer, listener: str
) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(400)
    starts = {
        "ws": b"GET /mqtt HTTP/1.1\r\nHost: " + b"x" * 400,
        "behind": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + hello,
    }
    with socket.create_connection(("127.0.0.1", server.port(listener))) as sock:
        began_s = time.monotonic()
        for byte in starts.get(listener, hello):
            try:
                sock.sendall(bytes((byte,)))
            except ConnectionError:
                break
            time.sleep(0.02)
        assert CONNECT_TIMEOUT_S - 1 < time.monotonic() - began_s < CONNECT_TIMEOUT_S + 4


@pytest.mark.parametrize("listener", ["ws", "wss"])
def test_silent_connections_end_in_time_and_keep_nobody_out(
    server: ListenerServer, listener: str
) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port(listener))) for _ in range(200)]
    try:
        client = Paho(server.port("tls"), f"beside-{listener}", is_tls=True)
        client.stop()
        assert max(map(ended_after, silent[:1] + silent[-1:])) < CONNECT_TIMEOUT_S + 4
    finally:
        for sock in silent:
            sock.close()


@pytest.mark.parametrize(
    ("listener", "sent"),
    [
        ("ws", b"GET /mqtt HTTP/1.1\r\nCookie: " + b"x" * 10_000),
        ("ws", b"\x10\x0d\x00\x04MQTT"),
        ("tls", CONNECT_3),
        ("wss", b"GET /mqtt HTTP/1.1\r\n\r\n"),
        ("behind", b"GET / HTTP/1.1\r\n\r\n"),
        ("behind", b"PROXY TCP4 " + b"1" * 200),
    ],
)
def test_what_is_no_handshake_ends_at_once(
    server: ListenerServer, listener: str, sent: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", server.port(listener))) as sock:
        sock.sendall(sent)
        if (listener, sent[:1]) == ("ws", b"\x10"):
            assert ended_after(sock) < CONNECT_TIMEOUT_S + 4  # it may still become a request
        else:
            assert ended_after(sock) < CONNECT_TIMEOUT_S - 1


def test_a_browser_page_from_elsewhere_does_not_reach_this_machine(server: ListenerServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port("ws")), DEADLINE_S) as sock:
        sock.sendall(opening_request("/mqtt", "Origin: https://elsewhere.example"))
        assert sock.recv(100).startswith(b"HTTP/1.1 403 ")


def test_further_connections_wait_until_there_is_room(server: ListenerServer) -> None:
    address = ("127.0.0.1", server.port("few"))
    first, second, third = (socket.create_connection(address, DEADLINE_S) for _ in range(3))
    with second, third:
        with first:
            for number, sock in enumerate((first, second)):
                sock.sendall(CONNECT_3[:-1] + b"%d" % number)
                assert sock.recv(4) == b"\x20\x02\x00\x00"
            third.sendall(CONNECT_3)
            third.settimeout(1.5)
            with pytest.raises(TimeoutError):
                third.recv(4)
        third.settimeout(DEADLINE_S)
        assert third.recv(4) == b"\x20\x02\x00\x00"


def test_unix_socket_takes_clients_of_the_same_user(server: ListenerServer) -> None:
    path = server.listeners["unix"].removeprefix("mqtt://unix:")
    assert Path(path).stat().st_mode & 0o777 == 0o660
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(CONNECT_3[:-1] + b"u")
        sock.settimeout(DEADLINE_S)
        assert sock.recv(4) == b"\x20\x02\x00\x00"


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.2)


@pytest.mark.parametrize("where", ["listener", "namesrv", "admin"])
@pytest.mark.parametrize("fault", ["mismatch", "missing", "no PEM"])
def test_certificate_that_cannot_be_used_is_a_fault_of_the_configuration(
    tmp_path: Path, where: str, fault: str
) -> None:
    files = certificates()
    no_pem = tmp_path / "no.pem"
    no_pem.write_text("none")
    key, text = {
        "mismatch": (files.client_key, "the key is another certificate's"),
        "missing": ("/no/such.key", "No such file or directory"),
        "no PEM": (str(no_pem), "one of them has no PEM of its kind"),
    }[fault]
    tls = f'tls_certificate = "{files.server}"\ntls_key = "{key}"\n'
    address = '"127.0.0.1:0"\n'
    others = (
        f"[namesrv]\nlisten = {address}[broker]\nlisten = {address}vip = false\n"
        f'[broker.store]\ndirectory = "{tmp_path / "store"}"\n'
        f"[gateway]\nlisten = {address}[admin]\nlisten = {address}"
    )
    config = tmp_path / "motelog.toml"
    config.write_text(
        {
            "listener": f'{others}[[listener]]\nname = "tls"\naddress = {address}{tls}',
            "namesrv": f'roles = ["namesrv"]\n[namesrv]\nlisten = {address}{tls}',
            "admin": f"{others}{tls}",
        }[where]
    )
    done = motelog("up", "--config", str(config))
    assert done.returncode == 78, done.stderr
    assert f"cannot use {files.server}, {key}: {text}\n" in done.stderr
    assert done.stderr.endswith("check the certificates with motelog doctor --config FILE\n")
    assert "Traceback" not in done.stderr


def test_certificate_is_read_again_and_nobody_is_dropped(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    table = (
        '[[listener]]\nname = "tls"\naddress = "127.0.0.1:0"\n'
        f'tls_certificate = "{files.server}"\ntls_key = "{files.server_key}"\n'
    )

    def shown() -> bytes:
        with socket.create_connection(("127.0.0.1", running.port("tls"))) as sock:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(sock) as tls:
                return tls.getpeercert(binary_form=True) or b""

    with ListenerServer(tmp_path, table) as running:
        context = ssl.create_default_context(cafile=files.ca)
        plain = socket.create_connection(("127.0.0.1", running.port("tls")))
        old = context.wrap_socket(plain, server_hostname="localhost")
        with old:
            old.sendall(CONNECT_3)
            assert old.recv(4) == b"\x20\x02\x00\x00"
            before = shown()
            Path(files.server).write_text("not a certificate")
            wait_until(lambda: "the previous one stays" in running.errors() or shown() != before)
            assert shown() == before
            make_certificates(tmp_path)
            wait_until(lambda: shown() != before)
            old.sendall(b"\xc0\x00")
            assert old.recv(2) == b"\xd0\x00"
        assert running.stop() == 0
