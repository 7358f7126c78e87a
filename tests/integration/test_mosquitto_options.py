"""``motelog pub`` and ``sub`` beside mosquitto_pub and mosquitto_sub, with the same arguments.

The command lines are those of mosquitto's man pages and their kind, against our server.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from motelog.testing import MotelogProcess
from tests.support.cli import motelog, started_motelog
from tests.support.ports import free_port

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SERVER_FILES = {"cafile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="mosquitto's clients are not installed"
)

# In mosquitto_pub(1), "Examples"; then what its options add.
PUBLISHED = [
    ["-t", "sensors/temperature", "-m", "32", "-q", "1"],
    ["-t", "sensors/temperature", "-m", "1266193804 32"],
    ["-r", "-t", "switches/kitchen_lights/status", "-m", "on"],
    ["-t", "my/topic", "-f", "{file}"],
    ["-t", "my/topic", "-s"],
    ["-t", "sensors/cc128", "-l"],
    ["-t", "my/topic", "-n"],
    ["-t", "my/topic", "-m", "x", "-V", "mqttv31", "-q", "2", "-i", "me", "-k", "10"],
    ["-t", "my/topic", "-m", "x", "-V", "311", "-c", "-i", "me", "-u", "user", "-P", "secret"],
    ["-t", "my/topic", "-m", "x", "-V", "5", "-D", "publish", "content-type", "text/plain",
     "-D", "publish", "user-property", "name", "value", "-D", "publish", "response-topic", "r"],
    ["-t", "my/topic", "-m", "x", "--will-topic", "gone", "--will-payload", "bye",
     "--will-qos", "1", "--will-retain"],
    ["-t", "my/topic", "-m", "x", "--repeat", "2", "--repeat-delay", "0.01"],
]  # fmt: skip
LINES = b"first \\0\nsecond\n\nlast"

RETAINED = {
    "man/plain": "hello",
    "man/json": '{"a": {"b": "ü"}}',
    "man/deep/er": "x y",
    "out/a": "o",
}
# In mosquitto_sub(1), "Examples"; then what its options add. Messages are retained, so that none
# can be missed.
SUBSCRIBED = [
    ["-t", "man/plain", "-q", "1", "-C", "1"],
    ["-t", "man/+/er", "-C", "1"],
    ["-v", "-t", "man/#", "-C", "3"],
    ["-F", "@Y-@m-@dT@H:@M:@S@z : %t : %x", "-t", "man/#", "-C", "3"],
    ["-F", "@s.@N : %r : %q : %m : %l", "-q", "2", "-t", "man/plain", "-C", "1"],
    ["-F", r"\e[92m%t \e[96m%p\e[0m", "-q", "2", "-t", "man/#", "-C", "3"],
    ["-t", "man/#", "-T", "man/json", "-C", "2"],
    ["-t", "man/plain", "-t", "out/a", "-N", "-F", "[%-9t|%3.2t|%05l|%X]", "-C", "2", "-V", "5"],
    ["-t", "man/json", "-F", "%j", "-q", "0", "-C", "1"],
    ["-t", "man/json", "-F", "%J", "-q", "0", "-C", "1", "--pretty"],
    ["-t", "out/a", "-E", "-i", "leaves", "-c"],
    ["-t", "man/#", "-R", "-W", "1"],
]
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z?[+]\d{4}|\d{10}\.\d{9}")


def run(program: list[str], arguments: list[str], port: int) -> subprocess.CompletedProcess[bytes]:
    command = [*program, "-h", "localhost", "-p", str(port), *arguments]
    return subprocess.run(command, input=LINES, capture_output=True, timeout=30, check=False)


def ours(command: str) -> list[str]:
    return [sys.executable, "-m", "motelog", command]


def test_published_messages_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"of a file\n\xff")
    with MotelogProcess() as stack:
        port = stack.mqtt[1]
        shown = "%t %x %r %C %P %R"
        options = ["-t", "#", "-F", shown, "--retain-as-published", "--to", stack.ready["mqtt"]]
        with started_motelog("sub", *options) as subscriber:
            assert subscriber.stderr is not None
            assert subscriber.stdout is not None
            assert subscriber.stderr.readline() == "subscribed to # with QoS 1\n"
            for number, line in enumerate(PUBLISHED):
                arguments = [word.format(file=tmp_path / "data") for word in line]
                outcomes = []
                for program in (["mosquitto_pub"], ours("pub")):
                    result = run(program, arguments, port)
                    mark = ["-t", "mark", "-m", str(number)]
                    run(["mosquitto_pub"], mark, port)
                    messages = list(
                        iter(subscriber.stdout.readline, f"mark {mark[3].encode().hex()} 0   \n")
                    )
                    outcomes.append((result.returncode, result.stdout, messages))
                assert outcomes[0] == outcomes[1], line
                assert outcomes[0][2], line
            subscriber.terminate()


def test_received_messages_are_printed_the_same() -> None:
    def outcome(program: list[str], line: list[str]) -> list[str]:
        result = run(program, line, port)
        text = TIME.sub("TIME", result.stdout.decode())
        # Which of several retained messages comes first is the server's business.
        return sorted(text.splitlines())

    with MotelogProcess() as stack, ThreadPoolExecutor(4) as pool:
        port = stack.mqtt[1]
        for topic, text in RETAINED.items():
            run(["mosquitto_pub"], ["-t", topic, "-m", text, "-r", "-q", "1"], port)
        # One after the other: they share client identifiers.
        theirs = list(pool.map(lambda line: outcome(["mosquitto_sub"], line), SUBSCRIBED))
        mine = pool.map(lambda line: outcome(ours("sub"), line), SUBSCRIBED)
        for line, expected, printed in zip(SUBSCRIBED, theirs, mine, strict=True):
            assert printed == expected, line
        # What -c has left behind are sessions.
        sessions = motelog("session", "list", "--admin", stack.ready["admin"], "--json").stdout
        assert '"leaves"' in sessions


def test_retained_messages_are_removed_as_mosquitto_does() -> None:
    with MotelogProcess() as stack:
        port = stack.mqtt[1]
        for topic in ("bbc/one", "bbc/two"):
            run(["mosquitto_pub"], ["-t", topic, "-m", "x", "-r", "-q", "1"], port)
        result = run(ours("sub"), ["-t", "bbc/#", "--remove-retained", "-C", "2"], port)
        assert result.stdout == b"x\nx\n"
        result = run(["mosquitto_sub"], ["-t", "bbc/#", "-W", "1"], port)
        assert result.stdout == b""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority (ca), a server's certificate for localhost and a client's."""
    if shutil.which("openssl") is None or MOSQUITTO is None:
        pytest.skip("openssl or mosquitto is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    for name, host in (("ca", "authority"), ("server", "localhost"), ("client", "device")):
        signed = (
            "" if name == "ca" else "-CA ca.crt -CAkey ca.key -addext basicConstraints=CA:FALSE"
        )
        line = f"{new} -keyout {name}.key -out {name}.crt -subj /CN={host} {signed}"
        line += f" -addext subjectAltName=DNS:{host}"
        subprocess.run(line.split(), cwd=folder, check=True, capture_output=True, timeout=30)
    return folder


@pytest.fixture(scope="module")
def tls_port(certificates: Path) -> Iterator[int]:
    """The port of a mosquitto that speaks TLS to clients with a certificate."""
    assert MOSQUITTO is not None, "certificates looks for it"
    port = free_port()
    lines = [
        f"user {getpass.getuser()}",
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        "require_certificate true",
        *(f"{key} {certificates / name}" for key, name in SERVER_FILES.items()),
    ]
    (certificates / "mosquitto.conf").write_text("\n".join(lines) + "\n")
    command = [MOSQUITTO, "-c", str(certificates / "mosquitto.conf")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield port
        server.terminate()


def test_tls_takes_the_same_options(certificates: Path, tls_port: int) -> None:
    client = ["--cert", str(certificates / "client.crt"), "--key", str(certificates / "client.key")]
    trusted = [*client, "--cafile", str(certificates / "ca.crt")]
    message = ["-t", "kept", "-m", "secret", "-r", "-q", "1"]
    for program in (["mosquitto_pub"], ours("pub")):
        result = run(program, [*trusted, "--tls-version", "tlsv1.2", *message], tls_port)
        assert result.returncode == 0, (program, result.stderr)
    for program in (["mosquitto_sub"], ours("sub")):
        assert run(program, [*trusted, "-t", "kept", "-C", "1"], tls_port).stdout == b"secret\n"

    url = f"mqtts://localhost:{tls_port}/kept"
    strange = motelog("pub", "-L", url, "-m", "x")
    assert strange.returncode == 5
    assert "its certificate is not accepted" in strange.stderr
    other_name = motelog("pub", "-h", "127.0.0.1", "-p", str(tls_port), *trusted, *message)
    assert (other_name.returncode, "IP address mismatch" in other_name.stderr) == (5, True)
    options = ["--insecure", *trusted, *message]
    assert motelog("pub", "-h", "127.0.0.1", "-p", str(tls_port), *options).returncode == 0
    unnamed = motelog("pub", "--cafile", str(certificates / "ca.crt"), "-L", url, "-m", "x")
    assert unnamed.returncode == 4, "the server ends the connection behind the handshake"


def test_where_it_connects_from_and_what_it_tells() -> None:
    with MotelogProcess() as stack:
        port = stack.mqtt[1]
        options = ["-A", "127.0.0.9", "-I", "mine-", "-t", "a", "-C", "1", "-W", "20", "-d"]
        with started_motelog("sub", *options, "--to", stack.ready["mqtt"]) as subscriber:
            assert subscriber.stderr is not None
            told: list[str] = []
            while "subscribed" not in "".join(told):
                told.append(subscriber.stderr.readline())
                assert told[-1], told
            name = f"mine-{subscriber.pid}"
            asked = ["session", "describe", name, "--admin", stack.ready["admin"], "--json"]
            session = motelog(*asked).stdout
            assert run(["mosquitto_pub"], ["-t", "a", "-m", "b", "-q", "1"], port).returncode == 0
            assert subscriber.communicate(timeout=20)[0] == "b\n"
    assert [line.split(",")[0] for line in told[:3]] == [
        "sends CONNECT", "received CONNACK", "sends SUBSCRIBE"
    ]  # fmt: skip
    assert json.loads(session)["peer"].startswith("127.0.0.9:")
