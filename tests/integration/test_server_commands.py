"""What an operator asks a running server: how it is, what it does, who is connected."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paho.mqtt.enums import MQTTProtocolVersion

from motelog.cli.server_status import span
from motelog.cli.top import rates
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect, ReasonCode
from motelog.testing import MotelogProcess
from tests.integration.test_mqtt_clients import PahoClient
from tests.support.cli import motelog_here


def lines(*arguments: str) -> list[dict[str, Any]]:
    result = motelog_here(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_status_and_top(motelog_stack: MotelogProcess) -> None:
    at = ["--admin", motelog_stack.ready["admin"]]
    (told,) = lines("status", *at)
    assert told["ready"]
    shown = motelog_here("status", *at).stdout
    assert shown.splitlines()[1] == "ready"
    assert motelog_stack.ready["mqtt"] in shown
    two = lines("top", "--interval", "0.1", "--count", "2", *at)
    assert len(two) == 2
    assert {"connections", "mqtt_in", "queue_out", "lag"} <= two[0].keys()
    shown = motelog_here("top", "--interval", "0.1", "--count", "1", *at).stdout
    _, head, line = shown.splitlines()
    assert head.split()[:3] == ["time", "open", "clients"]
    assert line.split()[1].isdigit()
    gone = motelog_here("status", "--admin", "127.0.0.1:1")
    assert (gone.returncode, "is it running" in gone.stderr) == (4, True)


def test_rates_are_differences_and_survive_a_restart() -> None:
    def answer(time_ms: int, mqtt_in: int) -> dict[str, Any]:
        lag = [{"group": "g", "topic": "t", "messages": 7}]
        return {"time_ms": time_ms, "now": {}, "totals": {"mqtt_in": mqtt_in}, "lag": lag}

    assert rates(answer(1000, 10), answer(3000, 30))["mqtt_in"] == 10.0
    assert rates(answer(1000, 100), answer(2000, 5))["mqtt_in"] == 0
    assert rates(answer(1000, 100), answer(2000, 105))["lag"] == 7
    assert [span(seconds) for seconds in (1, 119, 121, 7199, 7200, 172_800)] == [
        "1 s", "119 s", "2 min", "120 min", "2 h", "2 d",
    ]  # fmt: skip


def test_clients_are_listed_and_described(motelog_stack: MotelogProcess) -> None:
    at = ["--admin", motelog_stack.ready["admin"]]
    clients = [
        PahoClient(motelog_stack.mqtt, MQTTProtocolVersion.MQTTv5, f"kicked/{number}")
        for number in range(3)
    ]
    try:
        clients[1].subscribe("kicked/+", 1)
        listed = lines("client", "list", "--prefix", "kicked/", *at)
        assert [one["client_id"] for one in listed] == ["kicked/0", "kicked/1", "kicked/2"]
        shown = motelog_here("client", "list", "--prefix", "kicked/", "--count", "2", *at).stdout
        assert len(shown.splitlines()) == 3
        assert "kicked/+" in motelog_here("client", "describe", "kicked/1", *at).stdout
        assert lines("client", "describe", "kicked/1", *at)[0]["protocol"] == "5.0"
    finally:
        for client in clients:
            client.stop()


def test_a_trace_shows_what_a_client_sends_and_gets(motelog_stack: MotelogProcess) -> None:
    at = ["--admin", motelog_stack.ready["admin"]]
    with (
        socket.create_connection(motelog_stack.mqtt, timeout=20) as connection,
        ThreadPoolExecutor(1) as threads,
    ):
        connection.sendall(encode_connect(Connect(5, True, 60, "traced-client")))
        assert connection.recv(1024)[0] == 0x20
        tracing = threads.submit(lines, "client", "trace", "traced-client", "--packets", "4", *at)
        while not tracing.done():  # one PINGREQ may come before the trace has begun
            connection.sendall(b"\xc0\0")
            assert connection.recv(1024)[:2] == b"\xd0\0"
        found = [(one["direction"], one["type"]) for one in tracing.result()]
    assert sorted(found) == [("in", "PINGREQ")] * 2 + [("out", "PINGRESP")] * 2
    result = motelog_here("client", "trace", "traced/nobody", *at)
    assert (result.returncode, "no client" in result.stderr) == (3, True)


def test_a_client_that_is_kicked_is_told_why(motelog_stack: MotelogProcess) -> None:
    at = ["--admin", motelog_stack.ready["admin"]]
    with socket.create_connection(motelog_stack.mqtt, timeout=20) as connection:
        connection.sendall(encode_connect(Connect(5, True, 60, "kicked-client")))
        assert connection.recv(1024)[0] == 0x20
        assert motelog_here("client", "kick", "kicked-client", *at).stdout == (
            "kicked kicked-client\n"
        )
        assert connection.recv(1024)[2] == ReasonCode.ADMINISTRATIVE_ACTION
    for command in ("describe", "kick"):
        result = motelog_here("client", command, "kicked/nobody", *at)
        assert (result.returncode, "no client" in result.stderr) == (3, True)
