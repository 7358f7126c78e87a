"""The console's routes for what a gateway has, without a socket."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import trio
import trio.testing

from motelog.console.apis import Apis
from motelog.core.errors import StoreFullError
from tests.conformance.peers import Gateway
from tests.support.console import apis_of, console_of


async def ask(apis: Apis, method: str, path: str) -> tuple[int, dict[str, Any]]:
    console = console_of(apis=apis)
    transport = httpx.ASGITransport(console.application())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.request(method, f"/api/v1{path}", headers={"X-Motelog": "test"})
        return answer.status_code, answer.json()


async def test_before_the_gateway_has_started_nothing_is_found() -> None:
    status, answer = await ask(apis_of(), "GET", "/retained")
    assert status == 503
    assert answer == {"error": "this process has no running gateway"}


async def test_pages_follow_each_other() -> None:
    gateway = Gateway()
    for name in ("a/1", "a/2", "a/3", "b/1"):
        gateway.connect(5).publish(name, retain=True)
    apis = apis_of(gateway)
    names: list[str] = []
    after: str | None = ""
    while after is not None:
        status, page = await ask(apis, "GET", f"/retained?filter=a/%2B&limit=2&after={after}")
        assert status == 200
        names += [message["topic"] for message in page["messages"]]
        after = page["after"]
    assert names == ["a/1", "a/2", "a/3"]
    assert (await ask(apis, "GET", "/retained?limit=many"))[0] == 400
    assert (await ask(apis, "GET", "/retained?filter=a/%23/b"))[0] == 400


async def test_message_is_read_and_deleted_when_the_log_has_that() -> None:
    gateway = Gateway()
    gateway.connect(5, "writer").publish("a b", b"\xff", 1, retain=True)
    apis = apis_of(gateway)
    path = "/retained/message?topic=a%20b"
    status, message = await ask(apis, "GET", path)
    assert status == 200
    assert (message["client_id"], message["payload"], message["qos"]) == ("writer", "/w==", 1)
    log = gateway.stage.log
    log.settles_at_once = False
    async with trio.open_nursery() as nursery:
        answers: list[tuple[int, dict[str, Any]]] = []

        async def delete() -> None:
            answers.append(await ask(apis, "DELETE", path))

        nursery.start_soon(delete)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        log.settle()
    assert answers == [(200, {"done": True})]
    assert (await ask(apis, "GET", path))[0] == 404
    assert (await ask(apis, "DELETE", path))[0] == 404


async def test_message_that_the_log_does_not_let_go_stays() -> None:
    gateway = Gateway()
    gateway.connect(5).publish("a", retain=True)
    apis = apis_of(gateway)
    gateway.stage.log.error = StoreFullError("full")
    assert await ask(apis, "DELETE", "/retained/message?topic=a") == (503, {"error": "full"})
    assert (await ask(apis, "GET", "/retained/message?topic=a"))[0] == 200


async def test_sessions_are_listed_described_and_ended() -> None:
    gateway = Gateway()
    apis = apis_of(gateway)
    for name in ("b 1", "a", "b 2"):
        gateway.connect(5, name)
    status, page = await ask(apis, "GET", "/sessions?prefix=b%20&limit=1")
    assert status == 200
    assert [session["client_id"] for session in page["sessions"]] == ["b 1"]
    assert page["after"] == "b 1"
    status, one = await ask(apis, "GET", "/sessions/session?client_id=b%202")
    assert status == 200
    assert (one["client_id"], one["is_connected"], one["expiry_s"]) == ("b 2", True, 0)
    path = "/sessions/session?client_id=a"
    assert await ask(apis, "DELETE", path) == (200, {"done": True})
    assert (await ask(apis, "GET", path))[0] == 404
    assert (await ask(apis, "DELETE", path))[0] == 404
    assert (await ask(apis, "GET", "/sessions?limit=-1"))[0] == 400


async def test_clients_are_listed_described_and_kicked() -> None:
    gateway = Gateway()
    apis = apis_of(gateway)
    for name in ("b 1", "a", "b 2"):
        gateway.connect(4, name, keep_alive_s=30)
    peer = gateway.connect_persistent(5, "b 3", receive_maximum=7)
    peer.subscribe("t/#")
    status, page = await ask(apis, "GET", "/clients?prefix=b%20&limit=2")
    assert (status, page["after"]) == (200, "b 2")
    assert [client["client_id"] for client in page["clients"]] == ["b 1", "b 2"]
    first = page["clients"][0]
    assert (first["protocol"], first["keep_alive_s"], first["listener"]) == ("3.1.1", 30, "tcp")
    status, one = await ask(apis, "GET", "/clients/client?client_id=b%203")
    assert (status, one["protocol"], one["inflight_max"], one["filters"]) == (200, "5.0", 7, 1)
    assert [found["filter"] for found in one["session"]["filters"]] == ["t/#"]
    path = "/clients/client?client_id=b%203"
    assert await ask(apis, "DELETE", path) == (200, {"done": True})
    peer.assert_ended(0x98)
    assert (await ask(apis, "GET", path))[0] == 404
    assert (await ask(apis, "DELETE", path))[0] == 404
    status, one = await ask(apis, "GET", "/sessions/session?client_id=b%203")
    assert (status, one["is_connected"]) == (200, False)


async def test_parameters_that_are_wrong_or_not_known_are_refused() -> None:
    apis = apis_of(Gateway())
    for path in ("/clients?limit=0", "/clients?limit=x", "/clients?prefx=a", "/clients/client"):
        status, answer = await ask(apis, "GET", path)
        assert (status, list(answer)) == (400, ["error"]), path


async def test_openapi_has_every_endpoint_with_its_parameters() -> None:
    apis = apis_of()
    status, document = await ask(apis, "GET", "/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    shown = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert shown == {(f"/api/v1{one.path}", one.method.lower()) for one in apis.endpoints()}
    listed = document["paths"]["/api/v1/clients"]["get"]
    assert [one["name"] for one in listed["parameters"]] == ["prefix", "after", "limit"]
    schemas = document["components"]["schemas"]
    assert schemas["ClientEntry"]["properties"]["keep_alive_s"] == {"type": "integer"}
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert references <= schemas.keys()


async def test_a_client_is_traced(autojump_clock: trio.testing.MockClock) -> None:
    gateway = Gateway()
    apis = apis_of(gateway)
    gateway.connect(5, "dev")
    assert (await ask(apis, "POST", "/clients/trace?client_id=other"))[0] == 404
    assert (await ask(apis, "POST", "/clients/trace?client_id=dev&seconds=601"))[0] == 400
    status, begun = await ask(apis, "POST", "/clients/trace?client_id=dev&packets=2")
    assert (status, begun["packets"], begun["over"]) == (200, [], None)
    assert (await ask(apis, "POST", "/clients/trace?client_id=dev"))[0] == 409
    path = f"/clients/trace?trace={begun['trace']}"
    assert (await ask(apis, "GET", path))[1]["packets"] == [], "a moment later"
    [observer] = gateway.stage.output.observers.values()
    observer.received(b"\xc0\0\xc0\0\xc0\0")
    status, read = await ask(apis, "GET", f"{path}&after=1")
    assert [(one["number"], one["type"]) for one in read["packets"]] == [(2, "PINGREQ")]
    assert read["over"] == "it has reached its number of packets"
    assert await ask(apis, "DELETE", path) == (200, {"done": True})
    assert (await ask(apis, "DELETE", "/clients/trace?trace=x"))[0] == 404


async def test_sessions_of_clients_that_are_away_are_purged() -> None:
    gateway = Gateway()
    apis = apis_of(gateway)
    for name in ("dev/1", "dev/2", "dev/3", "other"):
        peer = gateway.connect_persistent(5, name)
        if name != "dev/3":
            peer.drop()
    now_ms = gateway.stage.clock.now_ms()
    path = "/sessions/purge?pattern=dev/*"
    for pattern, ended in (("dev/*", ["dev/1", "dev/2"]), ("*/[2-9]", ["dev/2"]), ("dev", [])):
        answer = await ask(apis, "POST", f"/sessions/purge?pattern={pattern}&dry_run=true")
        assert answer == (200, {"ended": ended, "kept": [], "after": None})
    answer = await ask(apis, "POST", f"{path}&left_before_ms={now_ms}")
    assert answer[1]["ended"] == [], "they have just left"
    answer = await ask(apis, "POST", f"{path}&left_before_ms={now_ms + 1}")
    assert answer[1]["ended"] == ["dev/1", "dev/2"]
    listed = (await ask(apis, "GET", "/sessions"))[1]["sessions"]
    assert [one["client_id"] for one in listed] == ["dev/3", "other"]
    assert (await ask(apis, "POST", "/sessions/purge"))[0] == 400
    assert gateway.stage.operator.end_away_session("dev/3", lambda _: None) is False
