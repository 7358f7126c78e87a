"""What a page from elsewhere can have a browser send is refused, whoever else may ask."""

from __future__ import annotations

from typing import Final

import httpx
import pytest

from motelog.config import AdminConfig
from motelog.console.health import Health
from tests.support.console import console_of

CHANGE: Final = {"X-Motelog": "1"}


async def ask(
    method: str,
    path: str,
    headers: dict[str, str],
    config: AdminConfig | None = None,
    health: Health | None = None,
) -> httpx.Response:
    console = console_of(config, health=health)
    transport = httpx.ASGITransport(console.application())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        return await client.request(method, path, headers=headers)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("LocalHost", 200),
        ("[::1]:8080", 200),
        ("192.0.2.1", 200),
        ("Motelog.Example:8080", 200),  # listed below
        ("rebound.example", 421),
        ("localhost.rebound.example", 421),
        ("127.0.0.1.rebound.example:8080", 421),
        ("[::1].rebound.example", 421),
        ("", 421),
    ],
)
async def test_only_names_of_this_server_are_answered(host: str, status: int) -> None:
    config = AdminConfig(hosts=("motelog.example",))
    for path in ("/", "/status", "/metrics", "/api/v1/openapi.json"):
        answer = await ask("GET", path, {"Host": host}, config)
        assert answer.status_code == status, path


@pytest.mark.parametrize("host", ["pod-7.example", "", "127.0.0.1"])
async def test_a_probe_is_told_under_any_name_but_reasons_only_under_ours(host: str) -> None:
    """HAProxy's check sends no Host (HTTP/1.0), Kubernetes one of its own choice."""
    faults = {"disk": "full"}
    health = Health()
    health.checks["disk"] = lambda: faults["disk"]
    live = await ask("GET", "/health/live", {"Host": host})
    ready = await ask("GET", "/health/ready", {"Host": host}, health=health)
    assert live.status_code == 200
    assert ready.status_code == 503
    assert ready.json() == {"ready": False, "faults": faults if host == "127.0.0.1" else {}}
    assert (await ask("POST", "/health/ready", {"Host": "pod-7.example"})).status_code == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        (CHANGE, 503),  # no gateway has started: it came through
        ({"Authorization": "Bearer x"}, 503),
        (CHANGE | {"Origin": "http://127.0.0.1:8080"}, 503),
        (CHANGE | {"Origin": "http://evil.example"}, 403),
        (CHANGE | {"Origin": "http://127.0.0.1:9090"}, 403),
        (CHANGE | {"Origin": "null"}, 403),
        (CHANGE | {"Sec-Fetch-Site": "same-origin"}, 503),
        (CHANGE | {"Sec-Fetch-Site": "same-site"}, 403),
        (CHANGE | {"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
async def test_what_a_foreign_page_may_send_changes_nothing(
    headers: dict[str, str], status: int
) -> None:
    answer = await ask("DELETE", "/api/v1/clients/client?client_id=dev", headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers


async def test_no_answer_lets_a_browser_run_or_show_it_as_a_page_of_another() -> None:
    for path in ("/", "/status", "/metrics", "/api/v1/clients", "/nothing"):
        headers = (await ask("GET", path, {})).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] in ("no-store", "no-cache")
