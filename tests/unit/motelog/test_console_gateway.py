"""The console's routes for what a gateway has, without a socket."""

from __future__ import annotations

from typing import Any

import httpx
import trio
import trio.testing
from starlette.applications import Starlette

from motelog.console.asking import GatewayHere
from motelog.console.gateway import GatewayRoutes
from motelog.core.errors import StoreFullError
from tests.conformance.peers import Gateway


async def ask(routes: GatewayRoutes, method: str, path: str) -> tuple[int, dict[str, Any]]:
    transport = httpx.ASGITransport(Starlette(routes=routes.routes()))
    async with httpx.AsyncClient(transport=transport, base_url="http://console") as client:
        answer = await client.request(method, path)
        return answer.status_code, answer.json()


def started(gateway: Gateway) -> GatewayRoutes:
    routes = GatewayRoutes()
    routes.gateway = GatewayHere(gateway.stage.operator)
    return routes


async def test_before_the_gateway_has_started_nothing_is_found() -> None:
    status, answer = await ask(GatewayRoutes(), "GET", "/retained")
    assert status == 503
    assert answer == {"error": "no gateway has started in this process"}


async def test_pages_follow_each_other() -> None:
    gateway = Gateway()
    for name in ("a/1", "a/2", "a/3", "b/1"):
        gateway.connect(5).publish(name, retain=True)
    routes = started(gateway)
    names: list[str] = []
    after: str | None = ""
    while after is not None:
        status, page = await ask(routes, "GET", f"/retained?filter=a/%2B&limit=2&after={after}")
        assert status == 200
        names += [message["topic"] for message in page["messages"]]
        after = page["after"]
    assert names == ["a/1", "a/2", "a/3"]
    assert (await ask(routes, "GET", "/retained?limit=many"))[0] == 400
    assert (await ask(routes, "GET", "/retained?filter=a/%23/b"))[0] == 400


async def test_message_is_read_and_deleted_when_the_log_has_that() -> None:
    gateway = Gateway()
    gateway.connect(5, "writer").publish("a b", b"\xff", 1, retain=True)
    routes = started(gateway)
    path = "/retained/message?topic=a%20b"
    status, message = await ask(routes, "GET", path)
    assert status == 200
    assert (message["client_id"], message["payload"], message["qos"]) == ("writer", "/w==", 1)
    log = gateway.stage.log
    log.settles_at_once = False
    async with trio.open_nursery() as nursery:
        answers: list[tuple[int, dict[str, Any]]] = []

        async def delete() -> None:
            answers.append(await ask(routes, "DELETE", path))

        nursery.start_soon(delete)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        log.settle()
    assert answers == [(200, {"deleted": True})]
    assert (await ask(routes, "GET", path))[0] == 404
    assert (await ask(routes, "DELETE", path))[0] == 404


async def test_message_that_the_log_does_not_let_go_stays() -> None:
    gateway = Gateway()
    gateway.connect(5).publish("a", retain=True)
    routes = started(gateway)
    gateway.stage.log.error = StoreFullError("full")
    assert await ask(routes, "DELETE", "/retained/message?topic=a") == (503, {"error": "full"})
    assert (await ask(routes, "GET", "/retained/message?topic=a"))[0] == 200


async def test_sessions_are_listed_described_and_ended() -> None:
    gateway = Gateway()
    routes = started(gateway)
    for name in ("b 1", "a", "b 2"):
        gateway.connect(5, name)
    status, page = await ask(routes, "GET", "/sessions?prefix=b%20&limit=1")
    assert status == 200
    assert [session["client_id"] for session in page["sessions"]] == ["b 1"]
    assert page["after"] == "b 1"
    status, one = await ask(routes, "GET", "/sessions/session?client_id=b%202")
    assert status == 200
    assert (one["client_id"], one["is_connected"], one["expiry_s"]) == ("b 2", True, 0)
    path = "/sessions/session?client_id=a"
    assert await ask(routes, "DELETE", path) == (200, {"ended": True})
    assert (await ask(routes, "GET", path))[0] == 404
    assert (await ask(routes, "DELETE", path))[0] == 404
    assert (await ask(routes, "GET", "/sessions?limit=-1"))[0] == 400
