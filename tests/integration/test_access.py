"""Logins and rights as real clients meet them: paho, mosquitto's, and ``motelog``'s own."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from motelog.core.addresses import format_address
from motelog.testing import MotelogProcess
from tests.support.cli import motelog
from tests.support.node import node_modules

DEADLINE_S = 20
#: What a change of a file may take.
RELOAD_S = 5.0
SECRETS = {"alice": "pl4nted-alice", "bob": "pl4nted-bob", "carol": "pl4nted-carol"}
#: Of a user who proves that he has it.
DAVES = "pl4nted-dave"
ACL = """
[[rule]]
allow = ["publish", "subscribe"]
topics = ["{user_name}/#"]
"""
VERSIONS = pytest.mark.parametrize(
    "version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5]
)


class Stack:
    """A server with three users, and the files that say so."""

    def __init__(self, folder: Path) -> None:
        self.passwords = str(folder / "passwords")
        self.acl = folder / "acl.toml"
        self.acl.write_text(ACL)
        for user, secret in SECRETS.items():
            self.user("add", user, secret)
        self.user("add", "dave", DAVES, "--scram")
        self.process = MotelogProcess()

    def user(self, command: str, user: str, secret: str, *options: str) -> None:
        where = ("--file", self.passwords, *options)
        done = motelog("user", command, user, *where, input=secret + "\n")
        assert done.returncode == 0, done.stderr
        assert secret not in done.stdout + done.stderr


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(tmp_path_factory.mktemp("access"))
    told = {
        "MOTELOG__ACCESS__PASSWORD_FILE": made.passwords,
        "MOTELOG__ACCESS__ACL_FILE": str(made.acl),
    }
    os.environ.update(told)
    try:
        with made.process:
            for name in told:
                del os.environ[name]
            yield made
    finally:
        for name in told:
            os.environ.pop(name, None)


class Client:
    """A paho client; ``code`` is that of its CONNACK, ``ended`` is set when the server ends it."""

    def __init__(
        self,
        stack: Stack,
        version: MQTTProtocolVersion,
        user: str | None,
        password: str | None,
        client_id: str,
    ) -> None:
        self.code: str | None = None
        self.messages: list[str] = []
        self.suback: list[int] = []
        self.ended = threading.Event()
        self._answered = threading.Event()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version,
            reconnect_on_failure=False,
        )  # fmt: skip
        if user is not None:
            self.client.username_pw_set(user, password)
        self.client.on_connect = self._connected
        self.client.on_subscribe = self._subscribed
        self.client.on_message = lambda _c, _u, message: self.messages.append(message.topic)
        self.client.on_disconnect = lambda *_: self.ended.set()
        self.client.connect(*stack.process.mqtt)
        self.client.loop_start()
        assert self._answered.wait(DEADLINE_S)

    def _connected(self, _c: object, _u: object, _f: object, code: object, _p: object) -> None:
        self.code = str(code)
        self._answered.set()

    def _subscribed(
        self, _c: object, _u: object, _m: object, codes: Any, _p: object = None
    ) -> None:
        self.suback = [getattr(code, "value", -1) for code in codes]
        self._answered.set()

    def subscribe(self, *filters: str) -> list[int]:
        self._answered.clear()
        self.client.subscribe([(topic_filter, 1) for topic_filter in filters])
        assert self._answered.wait(DEADLINE_S)
        return self.suback

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@VERSIONS
@pytest.mark.parametrize(
    ("user", "password", "codes"),
    [
        ("alice", SECRETS["alice"], ("Success", "Success")),
        ("alice", "wrong", ("Bad user name or password", "Bad user name or password")),
        ("mallory", "wrong", ("Bad user name or password", "Bad user name or password")),
        (None, None, ("Not authorized", "Not authorized")),
    ],
)
def test_paho_logs_in(
    stack: Stack,
    version: MQTTProtocolVersion,
    user: str | None,
    password: str | None,
    codes: tuple[str, str],
) -> None:
    client = Client(stack, version, user, password, "login")
    assert client.code == codes[version is MQTTProtocolVersion.MQTTv5]
    client.stop()


@VERSIONS
def test_paho_has_its_rights_and_no_others(stack: Stack, version: MQTTProtocolVersion) -> None:
    client = Client(stack, version, "alice", SECRETS["alice"], f"rights-{int(version)}")
    refused = 0x87 if version is MQTTProtocolVersion.MQTTv5 else 0x80
    assert client.subscribe("alice/#", "#", "bob/x") == [1, refused, refused]
    topics = ["bob/x", "alice/x"] if version is MQTTProtocolVersion.MQTTv5 else ["alice/x"]
    for topic in topics:
        client.client.publish(topic, "x", 1).wait_for_publish(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while not client.messages and time.monotonic() < deadline:
        time.sleep(0.01)
    assert client.messages == ["alice/x"]
    client.stop()


@pytest.mark.mosquitto
@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto_pub is missing")
def test_mosquitto_logs_in(stack: Stack) -> None:
    host, port = stack.process.mqtt
    for version, refusal in (("mqttv311", {4, 5}), ("mqttv5", {134, 135})):
        command = ["mosquitto_pub", "-h", host, "-p", str(port), "-V", version, "-t", "bob/x"]
        command += ["-m", "x", "-q", "1"]
        for login, is_right in (
            (["-u", "bob", "-P", SECRETS["bob"]], True),
            (["-u", "bob", "-P", "wrong"], False),
            ([], False),
        ):
            done = subprocess.run([*command, *login], capture_output=True, text=True, timeout=30)
            assert (done.returncode == 0) == is_right, done.stderr
            assert is_right or done.returncode in refusal, (done.returncode, done.stderr)


def test_our_own_commands_log_in(stack: Stack) -> None:
    to = format_address(*stack.process.mqtt)
    command = ["pub", "-t", "bob/x", "-m", "x", "--to", to, "-u", "bob", "-P"]
    assert motelog(*command, SECRETS["bob"]).returncode == 0
    done = motelog(*command, "wrong")
    assert done.returncode != 0
    assert "wrong" not in done.stderr.replace("the user name or password is wrong", "")


def test_a_change_takes_effect_and_ends_nobody_else(stack: Stack) -> None:
    v5 = MQTTProtocolVersion.MQTTv5
    alice = Client(stack, v5, "alice", SECRETS["alice"], "stays")
    carol = Client(stack, v5, "carol", SECRETS["carol"], "goes")
    stack.user("passwd", "carol", "pl4nted-new")
    assert carol.ended.wait(RELOAD_S)
    carol.stop()
    assert Client(stack, v5, "carol", SECRETS["carol"], "goes").code != "Success"
    again = Client(stack, v5, "carol", "pl4nted-new", "goes")
    assert again.code == "Success"
    assert again.subscribe("carol/#") == [1]
    stack.acl.write_text(ACL + '[[rule]]\ndeny = ["subscribe"]\ntopics = ["carol/x"]\n')
    assert again.ended.wait(RELOAD_S)
    again.stop()
    assert not alice.ended.is_set()
    stack.acl.write_text(ACL)
    alice.stop()


def test_secrets_are_nowhere(stack: Stack) -> None:
    Client(stack, MQTTProtocolVersion.MQTTv5, "alice", "pl4nted-wrong", "secrets").stop()
    host, port = stack.process.admin
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=DEADLINE_S) as answer:
        metrics = answer.read().decode()
    assert 'motelog_gateway_logins_total{authenticator="password",outcome="accepted"}' in metrics
    for path in ("/status", "/api/v1/sessions", "/api/v1/clients", "/health/ready"):
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=DEADLINE_S) as answer:
            metrics += answer.read().decode()
    texts = [metrics, stack.process.output(), Path(stack.passwords).read_text()]
    assert "the gateway refuses a connection" in texts[1]
    assert not [text for text in texts if "pl4nted" in text]


SCRAM_IN_JS = r"""
const [modules, port, password] = process.argv.slice(1);
const crypto = require("crypto"), mqtt = require(`${modules}/mqtt`);
const hmac = (key, text) => crypto.createHmac("sha256", key).update(text).digest();
const bare = "n=dave,r=" + crypto.randomBytes(18).toString("base64");
let signature;
const client = mqtt.connect({
    host: "127.0.0.1", port, protocolVersion: 5, reconnectPeriod: 0,
    properties: {
        authenticationMethod: "SCRAM-SHA-256", authenticationData: Buffer.from("n,," + bare)}});
client.handleAuth = (packet, done) => {
    const first = packet.properties.authenticationData.toString();
    const [, nonce, salt, rounds] = first.match(/^r=(.*),s=(.*),i=(\d+)$/);
    const key = crypto.pbkdf2Sync(password, Buffer.from(salt, "base64"), +rounds, 32, "sha256");
    const clientKey = hmac(key, "Client Key"), last = "c=biws,r=" + nonce;
    const mask = hmac(
        crypto.createHash("sha256").update(clientKey).digest(), [bare, first, last].join());
    signature = "v=" + hmac(hmac(key, "Server Key"), [bare, first, last].join()).toString("base64");
    const proof = clientKey.map((byte, i) => byte ^ mask[i]).toString("base64");
    done(null, {cmd: "auth", reasonCode: 24, properties: {
        authenticationMethod: "SCRAM-SHA-256",
        authenticationData: Buffer.from(`${last},p=${proof}`)}});
};
client.on("error", error => { console.log("refused", error.code); client.end(true); });
client.on("connect", connack => {
    console.log("proved", connack.properties.authenticationData.toString() === signature);
    client.subscribe("dave/#", {qos: 1}, () => client.publish("dave/t", "x", {qos: 1}));
});
client.on("message", topic => { console.log(topic); client.end(); });
"""


@pytest.mark.node
@pytest.mark.parametrize(
    ("password", "said"),
    [(DAVES, "proved true\ndave/t\n"), ("wrong", "refused 134\n")],
    ids=["right", "wrong"],
)
def test_mqtt_js_proves_its_password_and_has_the_server_prove_it(
    stack: Stack, password: str, said: str
) -> None:
    arguments = [str(node_modules("mqtt@5")), str(stack.process.mqtt[1]), password]
    done = subprocess.run(
        ["node", "-e", SCRAM_IN_JS, *arguments],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.stdout == said, done.stderr
