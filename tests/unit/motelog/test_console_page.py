"""The console's first page and the JSON behind it, without a socket."""

from __future__ import annotations

import re

import httpx

from motelog.console.health import Health
from motelog.console.pages import PAGES
from motelog.console.status import Status
from motelog.core.broker.shown.metrics import BROKER_METRICS, TOPIC_METRICS
from motelog.core.metrics import Reading, Registry
from motelog.gateway.metrics import GATEWAY_METRICS, GatewayMetrics
from tests.support.console import console_of


async def get(path: str, health: Health, registry: Registry) -> httpx.Response:
    roles = {"gateway": "[::1]:1883"}
    console = console_of(health=health, registry=registry, roles=roles, data="/data")
    transport = httpx.ASGITransport(app=console.application())
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get(path)


async def test_pages_run_their_own_script_and_load_nothing_from_elsewhere() -> None:
    answer = await get("/", Health(), Registry())
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "://" not in answer.text, "nothing comes from elsewhere"
    assert not re.search(r" style=| on[a-z]+=|<style|<script>", answer.text), "it is forbidden"
    linked = set(re.findall(r'(?:href|src)="(/[a-z0-9/.-]*)"', answer.text))
    paths = {one.path for one in PAGES if one.name}
    programs = {"/status", "/health/ready", "/health/live", "/metrics", "/api/v1/openapi.json"}
    assert linked == paths | programs | {"/", "/static/console.css", "/static/console.js"}
    for name in linked - paths:
        answer = await get(name, Health(), Registry())
        assert answer.status_code == (503 if name == "/health/ready" else 200), name
        assert "://" not in answer.text or name in ("/metrics", "/api/v1/openapi.json")


async def test_the_first_page_says_what_is_wrong_without_a_script() -> None:
    health = Health()
    health.is_ready = True
    health.checks["disk"] = lambda: "disk 91 % <full>"
    text = (await get("/", health, Registry())).text
    assert "<b>disk</b>: disk 91 % &lt;full&gt;" in text
    assert "not ready</span>" in text
    health.checks.clear()
    text = (await get("/", health, Registry())).text
    assert ">ready</span>" in text
    assert "What is wrong" not in text


def test_a_rate_is_of_the_last_seconds_and_a_line_of_the_last_minutes() -> None:
    health, registry, total = Health(), Registry(), 0
    registry.add("motelog_gateway", GATEWAY_METRICS, lambda: {"publishes_received": total})
    status = Status(health, registry, {}, data=None)
    assert status.rates() == {"mqtt_in": (None, "", 0.0)}
    for second in range(0, 20, 2):
        status.take_totals(second)
        total += 100 if second < 10 else 10
    rate = status.rates()["mqtt_in"]
    assert (rate.now, rate.span_s) == (5.0, 18)
    points = [tuple(map(float, point.split(","))) for point in rate.points.split(" ")]
    assert [y for _, y in points] == [1.0] * 5 + [26.2] * 4
    assert points[-1][0] == 100.0
    total = 0  # as when a gateway process has begun anew
    status.take_totals(20)
    assert status.rates()["mqtt_in"].points.endswith(",29.0")


def test_latencies_are_of_the_last_seconds_and_a_line_of_the_last_minutes() -> None:
    health, registry = Health(), Registry()
    metrics = GatewayMetrics()
    registry.add("motelog_gateway", GATEWAY_METRICS, dict, metrics.histograms)
    status = Status(health, registry, {}, data=None)
    assert status.latencies() == {}
    status.take_totals(0)
    assert status.latencies()["acknowledge"] == (None, None, "", 0.0)
    for second in range(2, 22, 2):
        metrics.acknowledge_us.observe(900_000 if second < 10 else 180, 99)
        metrics.acknowledge_us.observe(900_000 if second < 10 else 4_000, 1 if second < 18 else 5)
        status.take_totals(second)
    found = status.latencies()
    assert found["deliver"][:2] == (None, None)
    assert found["acknowledge"][:2] == (0.0002, 0.005)
    assert found["acknowledge"].span_s == 20
    heights = [float(point.split(",")[1]) for point in found["acknowledge"].points.split(" ")]
    assert heights[:4] == [1.0] * 4, "the highest"
    assert heights[4] == 29.0
    assert heights[-1] == 28.9


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
    assert (answer["copies"], answer["warnings"]) == (None, {})


async def test_status_says_how_far_the_copies_are_and_what_is_wrong_with_them() -> None:
    health, registry = Health(), Registry()
    health.is_ready = True
    health.warnings["copies"] = lambda: "no slave <is> connected"
    sample = {"slaves_now": 0, "slaves_near_now": 0, "slaves_needed_now": 1}
    registry.add("motelog_broker", BROKER_METRICS, lambda: sample)
    answer = (await get("/status", health, registry)).json()
    assert (answer["ready"], answer["faults"]) == (True, {})
    assert answer["warnings"] == {"copies": "no slave <is> connected"}
    assert answer["copies"] == {"role": "master", "slaves": 0, "behind_bytes": None}
    text = (await get("/", health, registry)).text
    assert "<b>copies</b>: no slave &lt;is&gt; connected" in text
    assert ">ready</span>" in text
    sample |= {"slaves_now": 2}
    sample |= {"nearest_slave_behind_bytes_now": 7, "slowest_slave_behind_bytes_now": 90}
    answer = (await get("/status", health, registry)).json()
    assert answer["copies"] == {"role": "master", "slaves": 2, "behind_bytes": 7}
    sample.clear()
    sample |= {"copying_now": 0, "copying_behind_bytes_now": 12, "copying_silence_s_now": 1}
    answer = (await get("/status", health, registry)).json()
    assert answer["copies"] == {"role": "slave", "slaves": None, "behind_bytes": 12}
