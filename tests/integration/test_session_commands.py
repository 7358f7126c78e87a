"""``motelog session`` against a running server."""

from __future__ import annotations

from paho.mqtt.enums import MQTTProtocolVersion

from motelog.testing import MotelogProcess
from tests.integration.test_mqtt_clients import PahoClient
from tests.support.cli import motelog_here, motelog_lines


def test_operator_lists_describes_and_ends(motelog_stack: MotelogProcess) -> None:
    host, port = motelog_stack.admin
    at = ["--admin", f"{host}:{port}"]
    address, version = motelog_stack.mqtt, MQTTProtocolVersion.MQTTv5
    clients = [PahoClient(address, version, f"operated/{number:03}") for number in range(120)]
    try:
        clients[7].subscribe("operated/+", 1)
        listed = motelog_lines("session", "list", "--prefix", "operated/", *at, "--json")
        assert [line["client_id"] for line in listed] == [f"operated/{n:03}" for n in range(120)]
        assert listed[7]["filters"] == 1
        few = motelog_here("session", "list", "--prefix", "operated/", "--count", "3", *at).stdout
        assert len(few.splitlines()) == 4
        described = motelog_here("session", "describe", "operated/007", *at).stdout
        assert "operated/+" in described
        assert "yes, since 20" in described
        [one] = motelog_lines("session", "describe", "operated/007", *at, "--json")
        assert one["filters"][0]["qos"] == 1
        ended = motelog_here("session", "end", "operated/007", *at)
        assert ended.stdout == "ended operated/007\n"
        purge = ("session", "purge", "operated/*", *at)
        assert "0 sessions would be" in motelog_here(*purge, "--dry-run").stdout, (
            "all are connected"
        )
        gone = motelog_here("session", "describe", "no-such-client", *at)
        assert gone.returncode == 3
        assert "no session" in gone.stderr
    finally:
        for client in clients:
            client.stop()
