"""Retained messages with real clients, over restarts and kill -9 of the server."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from motelog.testing import MotelogProcess
from tests.integration.test_mqtt_clients import DEADLINE_S, VERSIONS, PahoClient
from tests.support.cli import motelog_here, motelog_lines

V5 = MQTTProtocolVersion.MQTTv5


def retain(client: PahoClient, topic: str, payload: bytes, qos: int = 1) -> None:
    client.client.publish(topic, payload, qos, retain=True).wait_for_publish(DEADLINE_S)


def read(client: PahoClient, count: int) -> list[tuple[str, bytes, int, bool]]:
    """Return so many messages; there must be no more of them."""
    found = [client.messages.get(timeout=DEADLINE_S) for _ in range(count)]
    assert client.messages.empty()
    return sorted((m.topic, bytes(m.payload), m.qos, m.retain) for m in found)


@VERSIONS
def test_paho_gets_retained_messages(
    motelog_stack: MotelogProcess, version: MQTTProtocolVersion
) -> None:
    base = f"kept{version}"
    writer = PahoClient(motelog_stack.mqtt, version, f"{base}-w")
    reader = PahoClient(motelog_stack.mqtt, version, f"{base}-r")
    try:
        for qos in (0, 1, 2):
            retain(writer, f"{base}/{qos}", b"old")
            retain(writer, f"{base}/{qos}", b"%d" % qos, qos)
        retain(writer, f"{base}/gone", b"x")
        retain(writer, f"{base}/gone", b"")
        reader.subscribe(f"{base}/#", 2)
        assert read(reader, 3) == [(f"{base}/{q}", b"%d" % q, q, True) for q in (0, 1, 2)]
        retain(writer, f"{base}/1", b"live")
        assert read(reader, 1) == [(f"{base}/1", b"live", 1, False)]
    finally:
        reader.stop()
        writer.stop()


def test_expiry_counts_down(motelog_stack: MotelogProcess) -> None:
    client = PahoClient(motelog_stack.mqtt, V5, "kept-expiry")
    try:
        for topic, expiry_s in (("kept-expiry/long", 100), ("kept-expiry/short", 1)):
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho
            properties.MessageExpiryInterval = expiry_s
            client.client.publish(topic, b"x", 1, retain=True, properties=properties)
        time.sleep(2.1)
        client.subscribe("kept-expiry/#", 1)
        message = client.messages.get(timeout=DEADLINE_S)
        assert message.topic == "kept-expiry/long"
        assert 90 < message.properties.MessageExpiryInterval < 99  # type: ignore[union-attr]
        assert client.messages.empty()
    finally:
        client.stop()


def test_retain_handling(motelog_stack: MotelogProcess) -> None:
    client = PahoClient(motelog_stack.mqtt, V5, "kept-handling")
    try:
        retain(client, "kept-handling/a", b"x")
        counts = []
        for handling in (2, 1, 0):
            options = SubscribeOptions(qos=1, retainHandling=handling)
            client.client.subscribe("kept-handling/a", options=options)
            time.sleep(0.5)
            counts.append(client.messages.qsize())
        assert counts == [0, 0, 1]
    finally:
        client.stop()


@pytest.mark.mosquitto
@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto_pub is not installed")
def test_mosquitto_sub_reads_retained_messages_alone(motelog_stack: MotelogProcess) -> None:
    host, port = motelog_stack.mqtt
    at = ["-h", host, "-p", str(port)]
    topic = "kept-mosquitto/a"
    subprocess.run(["mosquitto_pub", *at, "-t", topic, "-m", "on", "-r", "-q", "1"], check=True)
    read_one = ["-t", "kept-mosquitto/#", "-C", "1", "-W", "10", "-F", "%t %p %r"]
    for version in ("mqttv31", "mqttv311", "mqttv5"):
        found = subprocess.run(
            ["mosquitto_sub", *at, "-V", version, *read_one, "--retained-only"],
            check=True,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert found.stdout == f"{topic} on 1\n"
    # -R: no retained messages
    reader = subprocess.run(
        ["mosquitto_sub", *at, "-t", "kept-mosquitto/#", "-R", "-C", "1", "-W", "2"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert reader.stdout == ""


@pytest.mark.parametrize("end", ["stop", "kill", "kill, without the view"])
def test_retained_messages_survive_the_server(tmp_path: Path, end: str) -> None:
    count = 1000
    with MotelogProcess(data=tmp_path) as motelog:
        writer = PahoClient(motelog.mqtt, V5, "kept-w")
        for number in range(count):
            last = writer.client.publish(f"kept/{number}", b"%d" % number, 1, retain=True)
        last.wait_for_publish(DEADLINE_S)
        for number in range(0, count, 10):
            last = writer.client.publish(f"kept/{number}", b"", 1, retain=True)
        last.wait_for_publish(DEADLINE_S)
        if end == "stop":
            writer.stop()
        else:
            motelog.kill()
            writer.client.loop_stop()
    if end.endswith("view"):
        files = list(tmp_path.rglob("view.db*"))
        assert files
        for file in files:
            file.unlink()
    with MotelogProcess(data=tmp_path) as motelog:
        reader = PahoClient(motelog.mqtt, V5, "kept-r")
        reader.subscribe("kept/+", 1)
        expected = sorted(b"%d" % number for number in range(count) if number % 10)
        assert sorted(payload for _, payload, _, _ in read(reader, len(expected))) == expected
        reader.stop()


# --- motelog retained ------------------------------------------------------------------------


def test_operator_lists_reads_and_deletes(motelog_stack: MotelogProcess) -> None:
    host, port = motelog_stack.admin
    at = ["--admin", f"{host}:{port}"]
    client = PahoClient(motelog_stack.mqtt, V5, "kept-operator")
    try:
        for number in range(1200):  # several pages
            client.client.publish(f"operated/{number:04}", b"%d" % number, 1, retain=True)
        retain(client, "operated/x y/\u00e9", b"caf\xc3\xa9")
        listed = motelog_lines(
            "retained", "list", "-t", "operated/+", "--count", "2000", *at, "--json"
        )
        assert [line["topic"] for line in listed] == [f"operated/{n:04}" for n in range(1200)]
        assert listed[7]["payload_bytes"] == 1
        assert (listed[7]["qos"], listed[7]["client_id"]) == (1, "kept-operator")
        few = motelog_here("retained", "list", "-t", "operated/#", "--count", "3", *at)
        assert few.stdout.splitlines()[1].startswith("operated/0000")
        assert len(few.stdout.splitlines()) == 4
        assert few.stderr == "there may be more: raise --count to list them\n"
        assert motelog_here("retained", "list", "-t", "operated/x y/#", *at).stderr == ""
        name = "operated/x y/\u00e9"
        assert motelog_here("retained", "get", name, *at).stdout == "caf\u00e9\n"
        retain(client, "operated/bytes", b"\x00\xff\x1f")
        get = [sys.executable, "-m", "motelog", "retained", "get", "operated/bytes", *at]
        assert subprocess.run(get, capture_output=True, check=True).stdout == b"\x00\xff\x1f\n"
        assert motelog_here("retained", "delete", name, *at).stdout == f"deleted {name}\n"
        client.subscribe("operated/x y/#", 1)
        for command in ("get", "delete"):
            gone = motelog_here("retained", command, name, *at)
            assert gone.returncode == 3
            assert "no retained message" in gone.stderr
        retain(client, "operated/x y/z", b"live")
        assert [m[1] for m in read(client, 1)] == [b"live"]
        wrong = motelog_here("retained", "list", "-t", "a/#/b", *at)
        assert wrong.returncode == 2
        assert "'#' must be" in wrong.stderr
    finally:
        client.stop()
