"""The console's first page and the JSON behind it, without a socket."""

from __future__ import annotations

import base64
import hashlib
import re

import httpx

from motelog.config import AdminConfig
from motelog.console.gateway import GatewayApi
from motelog.console.health import Health
from motelog.console.server import Console
from motelog.console.status import Status
from motelog.core.broker.shown.metrics import BROKER_METRICS, TOPIC_METRICS
from motelog.core.metrics import Reading, Registry
from motelog.gateway.metrics import GATEWAY_METRICS


async def get(path: str, health: Health, registry: Registry) -> httpx.Response:
    status = Status(health, registry, {"gateway": ("::1", 1883)}, data="/data")
    console = Console(AdminConfig(), health, registry, GatewayApi(), status)
    transport = httpx.ASGITransport(app=console.application())
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get(path)


async def test_the_page_runs_its_own_script_and_nothing_else() -> None:
    answer = await get("/", Health(), Registry())
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "://" not in answer.text, "nothing comes from elsewhere"
    assert not re.search(r" style=| on[a-z]+=", answer.text), "the policy forbids them"
    linked = set(re.findall(r'href="([a-z0-9/.]+)"', answer.text))
    api = {f"api/v1/{name}" for name in ("clients", "sessions", "retained", "openapi.json")}
    assert linked == {"status", "health/ready", "health/live", "metrics"} | api


async def test_status_says_what_is_wrong_and_what_is_counted() -> None:
    health, registry = Health(), Registry()
    health.is_ready = True
    health.checks["disk"] = lambda: "disk 91 % full"
    registry.add(
        "motelog_gateway",
        GATEWAY_METRICS,
        lambda: {
            "connections_opened": 5,
            "connections_closed": 2,
            "sessions_now": 4,
            "publishes_received": 17,
        },
    )
    registry.add(
        "motelog_broker",
        BROKER_METRICS,
        lambda: {
            "store_disk_total_bytes_now": 100,
            "store_disk_free_bytes_now": 9,
            "store_disk_reserve_bytes_now": 10,
            "store_retention_left_s_now": 7200.5,
        },
    )
    lag = [("group_lag_messages", 12, "near"), ("group_lag_seconds", 3_040, "near")]
    lag += [("group_lag_messages", 7, f"far{number}") for number in range(9)]
    registry.add_readings(
        "motelog_broker",
        lambda: [
            Reading(TOPIC_METRICS[family].labelled(group, "T"), value)
            for family, value, group in lag
        ],
    )
    answer = (await get("/status", health, registry)).json()
    assert answer["ready"] is False
    assert answer["faults"] == {"disk": "disk 91 % full"}
    assert answer["addresses"] == {"gateway": "[::1]:1883"}
    assert answer["data"] == "/data"
    assert answer["now"] == {"sessions": 4, "connections": 3}
    assert answer["totals"] == {"mqtt_in": 17}
    assert answer["disk"] == {
        "total_bytes": 100, "free_bytes": 9, "reserve_bytes": 10, "retention_left_s": 7200
    }  # fmt: skip
    assert answer["lag"][0] == {"group": "near", "topic": "T", "messages": 12, "seconds": 3.0}
    assert answer["lag"][1] == {"group": "far0", "topic": "T", "messages": 7}
    assert len(answer["lag"]) == 5, "the page is no list of all groups"


async def test_status_of_a_process_without_broker_and_gateway_has_no_numbers() -> None:
    answer = (await get("/status", Health(), Registry())).json()
    assert (answer["now"], answer["totals"], answer["disk"]) == ({}, {}, None)
    assert answer["lag"] == []
