"""The console with a broker behind it, and in a browser."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from motelog.bridge.admin import Admin
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.config import AdminConfig
from motelog.console import mqtt_tree, tokens
from motelog.console.gate import Role
from motelog.console.pages import PAGES
from motelog.console.queues import PAYLOAD_BYTES_MAX, Brokers
from motelog.core.message import MQTT_TOPIC, Message
from motelog.testing import MotelogProcess
from tests.conformance.peers import Gateway
from tests.integration.test_mqtt_clients import PahoClient
from tests.support import browser
from tests.support.broker_stack import started_stack
from tests.support.certificates import certificates, make_certificates
from tests.support.console import apis_of, console_of
from tests.support.openssl import check_versions_and_ciphers
from tests.unit.motelog.test_console_pages import Tags

needs_browser = pytest.mark.skipif(browser.found() is None, reason="there is no chromium")


@asynccontextmanager
async def asking(namesrv: str, gateway: Gateway | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client of a console that asks the brokers of a name server."""
    apis = apis_of(gateway)
    apis.queues.brokers = Brokers(tuple(namesrv.split(";")))
    transport = httpx.ASGITransport(console_of(apis=apis).application())
    async with httpx.AsyncClient(
        transport=transport,
        base_url="http://localhost/api/v1",
        headers={"X-Motelog": "test"},
        follow_redirects=True,
    ) as client:
        yield client


async def test_topics_groups_and_messages_are_those_of_the_brokers(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, asking(stack.namesrv_address) as client:
        namesrv = stack.namesrv_address
        async with Admin(namesrv=namesrv) as admin, Producer(namesrv=namesrv) as producer:
            await admin.put_topic("T", queues=1)
            bodies = [b"%d" % number for number in range(8)] + [b"x" * (PAYLOAD_BYTES_MAX + 1)]
            sent = [await producer.send(Message("T", body, keys=("k",))) for body in bodies]
            await admin.put_group("G")
            async with PullConsumer(namesrv=namesrv, group="G") as consumer:
                await consumer.commit({sent[0].queue: 3})
        topics = (await client.get("/topics")).json()["topics"]
        assert [(one["topic"], one["kind"], one["messages"]) for one in topics] == [
            ("T", "topic", len(bodies))
        ]
        names = [one["topic"] for one in (await client.get("/topics?kind=system")).json()["topics"]]
        assert {"TBW102", "broker-a", "DefaultCluster"} <= set(names)
        page = (await client.get("/topics?kind=all&limit=2")).json()
        rest = (await client.get(f"/topics?kind=all&after={page['after']}")).json()
        all_names = [one["topic"] for one in page["topics"] + rest["topics"]]
        assert all_names == sorted([*names, "T"])
        topic = (await client.get("/topics/topic?topic=T")).json()
        assert (topic["queues"][0]["end_offset"], topic["groups"]) == (len(bodies), ["G"])

        group = (await client.get("/groups/group?group=G")).json()
        assert (group["messages_waiting"], group["queues"][0]["committed_offset"]) == (6, 3)
        for to, again, passed_over in (("first", 3, 0), ("last", 0, 6)):
            preview = (await client.get(f"/groups/reset?group=G&topic=T&to={to}")).json()
            assert (preview["again"], preview["passed_over"]) == (again, passed_over)
        assert (await client.get("/groups/group?group=G")).json() == group | {
            "behind_ms": pytest.approx(group["behind_ms"], abs=60_000),
            "queues": [group["queues"][0] | {"behind_ms": pytest.approx(0, abs=60_000)}],
        }
        done = (await client.post("/groups/reset?group=G&topic=T&to=first")).json()
        assert [(one["before"], one["after"]) for one in done["queues"]] == [(3, 0)]
        assert (await client.get("/groups/group?group=G")).json()["messages_waiting"] == 9

        newest = (await client.get("/messages?topic=T&limit=2")).json()["messages"]
        assert [one["queue_offset"] for one in newest] == [8, 7]
        assert newest[0]["payload_bytes"] == PAYLOAD_BYTES_MAX + 1
        assert len(newest[0]["payload"]) == (PAYLOAD_BYTES_MAX + 2) // 3 * 4
        first = newest[1]
        for query in (
            {"id": first["offset_id"]},
            {"topic": "T", "key": first["message_id"]},
            {"topic": "T", "queue_id": "0", "offset": "7", "limit": "1"},
        ):
            (found,) = (await client.get("/messages", params=query)).json()["messages"]
            assert found["payload"] == first["payload"], query
        for query, count in (
            ({"topic": "T", "key": "k"}, 9),
            ({"topic": "T", "at": "2020-01-01"}, 9),
            ({"topic": "T", "at": "2100-01-01T00:00:00Z"}, 0),
        ):
            found = (await client.get("/messages", params=query)).json()["messages"]
            assert len(found) == count, query
        for path, status in (
            ("/topics/topic?topic=none", 404),
            ("/groups/group?group=none", 404),
            ("/messages?topic=none", 404),
            ("/messages?topic=T&at=yesterday", 400),
            ("/messages?id=nonsense", 400),
            (f"/messages?id={first['offset_id'][:-4]}0001", 404),
            ("/groups/reset?group=none&topic=T&to=first", 404),
            ("/groups/reset?group=G&topic=T&to=soon", 400),
        ):
            answer = await client.get(path)
            assert (answer.status_code, list(answer.json())) == (status, ["error"]), path

        # The pages over the same.
        for path in (
            "/topics", "/topics/topic?topic=T", "/groups", "/groups/group?group=G",
            "/groups/reset?group=G&topic=T&to=last", "/messages?topic=T",
            "/messages?topic=&key=&at=&queue_id=&offset=&id=", "/dead-letters",
        ):  # fmt: skip
            answer = await client.get(f"http://localhost{path}")
            assert answer.status_code == 200, path
            assert "<form" in answer.text or path.startswith("/topics/"), path
        answer = await client.get("http://localhost/groups/reset?group=G&topic=T&to=last")
        fields = Tags(answer.text).forms["/do/reset_group"]
        answer = await client.post("http://localhost/do/reset_group", data=fields)
        assert "The group&#39;s offsets are reset." in answer.text
        assert "&#34;passed_over&#34;: 9" in answer.text


async def test_the_tree_of_mqtt_topics_has_rates_and_retained_values(tmp_path: Path) -> None:
    gateway = Gateway()
    peer = gateway.connect(5)
    for topic in ("site/1/t", "site", "site/3/kept", "site/"):
        peer.publish(topic, "18 °C".encode() * 100, retain=True)
    async with (
        started_stack(tmp_path) as stack,
        asking(stack.namesrv_address, gateway) as client,
        Admin(namesrv=stack.namesrv_address) as admin,
        Producer(namesrv=stack.namesrv_address) as producer,
    ):
        await admin.put_topic("site", queues=2)
        for topic in ("site/1/t", "site/1/t", "site/1", "site/2/t", "other", ""):
            properties = {MQTT_TOPIC: topic} if topic else {}
            await producer.send(Message("site", b"x", properties=properties))
        tree = (await client.get("/mqtt-topics?below=site&minutes=1")).json()
        assert not tree["is_cut"]
        assert [
            (one["level"], one["topic"], one["own"], one["messages"], one["has_below"])
            for one in tree["entries"]
        ] == [
            ("", "site/", 0, 0, False),
            ("1", "site/1", 1, 3, True),
            ("2", "site/2", 0, 1, True),
            ("3", "site/3", 0, 0, True),
        ]
        assert tree["entries"][1]["per_second"] == pytest.approx(3 / 60, abs=0.001)
        [leaf] = (await client.get("/mqtt-topics?below=site/1")).json()["entries"]
        assert (leaf["level"], leaf["has_below"]) == ("t", False)
        assert leaf["retained"]["payload_bytes"] == 600
        roots = (await client.get("/mqtt-topics")).json()["entries"]
        assert [one["level"] for one in roots] == ["other", "site"]
        assert (await client.get("/mqtt-topics?below=a%2B")).json()["entries"] == []
        page = await client.get("http://localhost/mqtt-topics?below=site/1")
        assert "18 °C18 °C" in page.text
        assert 'href="/mqtt-topics?below=site&amp;minutes=10"' in page.text


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an answer read no more than 40 messages."""
    monkeypatch.setattr(mqtt_tree, "MESSAGES_MAX", 40)
    monkeypatch.setattr(mqtt_tree, "QUEUE_MESSAGES_MAX", 30)


async def send_some(namesrv: str, counts: dict[str, int]) -> None:
    """Send messages below each name to the queue topic that has it, which gets one queue."""
    async with Admin(namesrv=namesrv) as admin, Producer(namesrv=namesrv) as producer:
        for name, count in counts.items():
            await admin.put_topic(name, queues=1)
            for _ in range(count):
                await producer.send(Message(name, b"x", properties={MQTT_TOPIC: f"{name}/t"}))


async def test_a_name_s_own_queue_topic_is_read_first_and_others_by_equal_shares(
    tmp_path: Path, small_sample: None
) -> None:
    async with started_stack(tmp_path) as stack, asking(stack.namesrv_address) as client:
        await send_some(stack.namesrv_address, {"aaa": 60, "bbb": 35, "few": 4, "zzz": 3})
        below = (await client.get("/mqtt-topics?below=zzz")).json()
        assert [(one["topic"], one["messages"]) for one in below["entries"]] == [("zzz/t", 3)]
        top = (await client.get("/mqtt-topics")).json()
        assert {one["level"]: one["messages"] for one in top["entries"]} == {
            "aaa": 17, "bbb": 16, "few": 4, "zzz": 3,
        }  # fmt: skip
        assert top["is_cut"]
        assert (top["topics"], top["topics_read"], top["messages_read"]) == (4, 4, 40)
        page = (await client.get("http://localhost/mqtt-topics?below=none")).text
        assert "None in the messages that were read." in page
        assert "40 messages of 4 of 4 queue topics were read" in page


async def test_queue_topics_that_were_not_looked_at_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_tree, "TOPICS_MAX", 2)
    monkeypatch.setattr(mqtt_tree, "QUEUES_MAX", 1)
    async with started_stack(tmp_path) as stack, asking(stack.namesrv_address) as client:
        await send_some(stack.namesrv_address, {"a": 1, "b": 1, "c": 1})
        top = (await client.get("/mqtt-topics")).json()
        assert [one["level"] for one in top["entries"]] == ["b"]  # the one that got a message last
        assert (top["topics"], top["topics_read"], top["is_cut"]) == (3, 2, True)
        [leaf] = (await client.get("/mqtt-topics?below=c")).json()["entries"]
        assert leaf["topic"] == "c/t"


async def test_tabs_share_an_answer_which_is_no_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    topics = Admin.topics

    async def counted(admin: Admin) -> list[str]:
        nonlocal asked
        asked += 1
        return await topics(admin)

    monkeypatch.setattr(Admin, "topics", counted)
    async with started_stack(tmp_path) as stack, asking(stack.namesrv_address) as client:
        await send_some(stack.namesrv_address, {"a": 2})
        answers = []

        async def look(query: str) -> None:
            answers.append((await client.get(f"/mqtt-topics{query}")).json())

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(look, "")
        assert asked == 1
        assert answers[0]["messages_read"] == 2
        assert answers == answers[:1] * 5
        assert stack.broker.parts.stats.messages_out == 0
        monkeypatch.setattr(mqtt_tree, "KEPT_S", -1)
        await look("?below=a")
        await look("?below=a")
        assert asked == 3


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_message_is_followed_from_its_publisher_to_each_that_it_is_for(
    workers: int,
) -> None:
    with (
        MotelogProcess(options=["--workers", str(workers)]) as server,
        closing_all(server, "reader", "member", "away", "writer") as (reader, member, away, writer),
    ):
        reader.subscribe("site/+/t", 1)
        member.subscribe("$share/g/site/#", 1)
        away.subscribe("site/1/#", 1)
        away.stop()
        writer.client.publish("site/1/t", b"21.5", 2).wait_for_publish(10)
        for one in (reader, member):
            assert one.messages.get(timeout=10).payload == b"21.5"
            # Behind its PUBACK.
            one.client.publish("other", b"", 1).wait_for_publish(10)
        namesrv = "{}:{}".format(*server.namesrv)
        async with (
            httpx.AsyncClient(base_url="http://{}:{}".format(*server.admin)) as client,
            PullConsumer(namesrv=namesrv, group="reports") as consumer,
        ):
            consumer.assign(await consumer.queues("site"))
            assert len(await consumer.poll(timeout_s=10)) == 1
            await consumer.commit()
            [told] = (await client.get("/api/v1/messages?topic=site")).json()["messages"]
            query = {"id": told["offset_id"]}

            async def path(**more: str) -> dict[str, Any]:
                answer = await client.get("/api/v1/messages/path", params=query | more)
                assert answer.status_code == 200, answer.text
                return dict(answer.json())

            found = await path()
            assert (found["publisher"], found["mqtt_name"]) == ("writer", "site/1/t")
            assert found["message"]["broker"] == "broker-a"
            assert found["groups"] == [
                {"group": "reports", "committed_offset": 1, "place": "passed"}
            ]
            assert {
                (one["client_id"], one["share"], tuple(one["filters"]), one["qos"], one["place"])
                for one in found["receivers"]
            } == {
                ("reader", None, ("site/+/t",), 1, "passed"),
                ("", "$share/g/site/#", ("site/#",), 1, "passed"),
            }
            assert (found["more_receivers"], found["more_groups"]) == (0, 0)
            [one] = (await path(client_id="away"))["receivers"]
            assert (one["is_connected"], one["place"]) == (False, "waits")
            for more, status in (({"client_id": "none"}, 404), ({"id": "none"}, 400)):
                answer = await client.get("/api/v1/messages/path", params=query | more)
                assert (answer.status_code, list(answer.json())) == (status, ["error"])

            page = (await client.get("/messages/path", params=query)).text
            assert "MQTT client <a" in page
            assert ">consumed" in page
            assert "$share/g/site/#" in page
            page = (await client.get("/messages/path", params=query | {"client_id": "away"})).text
            assert "waiting until the client reconnects" in page
            listed = (await client.get("/messages?topic=site")).text
            assert f'href="/messages/path?id={told["offset_id"]}"' in listed


@contextmanager
def closing_all(server: MotelogProcess, *names: str) -> Iterator[list[PahoClient]]:
    """Give clients whose sessions stay for an hour."""
    expiry = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho's
    expiry.SessionExpiryInterval = 3600
    clients: list[PahoClient] = []
    try:
        for name in names:
            one = PahoClient(
                server.mqtt, MQTTProtocolVersion.MQTTv5, name, clean_start=False, properties=expiry
            )
            clients.append(one)
        yield clients
    finally:
        for one in clients:
            one.stop()


async def test_nodes_say_how_they_are(tmp_path: Path) -> None:
    gateway = Gateway()
    async with (
        started_stack(tmp_path) as stack,
        asking(f"{stack.namesrv_address};127.0.0.1:1", gateway) as client,
    ):
        told = (await client.get("/nodes")).json()
        silent, namesrv = sorted(told["namesrvs"], key=lambda one: one["fault"] is None)
        assert (namesrv["address"], namesrv["brokers"]) == (stack.namesrv_address, 1)
        assert (silent["address"], silent["brokers"]) == ("127.0.0.1:1", 0)
        [broker] = told["brokers"]
        assert (broker["name"], broker["id"], broker["fault"]) == ("broker-a", 0, None)
        assert broker["started_ms"] > 1_600_000_000_000
        assert 0 < broker["disk_used_percent"] <= 100
        [one] = told["gateways"]
        assert (one["is_here"], told["gateways_fault"]) == (True, None)
        page = await client.get("http://localhost/nodes")
        assert "broker-a" in page.text
        assert "answers here" in page.text


async def test_dead_letters_are_listed_and_sent_again(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, asking(stack.namesrv_address) as client:
        namesrv = stack.namesrv_address
        async with Admin(namesrv=namesrv) as admin, Producer(namesrv=namesrv) as producer:
            for topic in ("T", "%RETRY%G", "%DLQ%G"):
                await admin.put_topic(topic, queues=1)
            await admin.put_group("G")
            for number in range(3):
                letter = Message("%DLQ%G", b"%d" % number, properties={"RETRY_TOPIC": "T"})
                await producer.send(letter)
        (listed,) = (await client.get("/dead-letters")).json()["groups"]
        assert (listed["group"], listed["messages"], listed["waiting"]) == ("G", 3, 3)
        answer = await client.post("/dead-letters/resend?group=G&count=2&per_second=1000")
        assert answer.json() == {"group": "G", "sent": 2}
        (listed,) = (await client.get("/dead-letters?prefix=G")).json()["groups"]
        assert (listed["messages"], listed["waiting"]) == (3, 1)
        fields = Tags((await client.get("http://localhost/dead-letters")).text).forms
        answer = await client.post(
            "http://localhost/do/resend_dead_letters", data=fields["/do/resend_dead_letters"]
        )
        assert "&#34;sent&#34;: 1" in answer.text
        assert (await client.get("/dead-letters?prefix=H")).json()["groups"] == []
        sent = (await client.get("/messages", params={"topic": "%RETRY%G"})).json()["messages"]
        assert sorted(one["payload"] for one in sent) == ["MA==", "MQ==", "Mg=="]


async def test_without_a_name_server_it_is_said(tmp_path: Path) -> None:
    async with asking("127.0.0.1:1") as client:
        answer = await client.get("/topics")
        assert answer.status_code == 503
        assert "127.0.0.1:1" in answer.json()["error"]


async def test_over_tls_a_renewed_certificate_is_shown_and_heads_are_bounded(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    made = make_certificates(tmp_path)
    file = str(tmp_path / "tokens")
    token = tokens.create(file, "alice", Role.VIEW, None)
    config = AdminConfig(
        listen="127.0.0.1:0",
        tokens_file=file,
        tls_certificate=made.server,
        tls_key=made.server_key,
    )
    console = console_of(config)
    await nursery.start(console.run)
    address = f"https://localhost:{console.address[1]}/status"

    async def ask(ca: ssl.SSLContext, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(verify=ca, timeout=30) as client:
            return await client.get(address, headers=headers)

    before = ssl.create_default_context(cafile=made.ca)
    assert (await ask(before)).status_code == 401
    assert (await ask(before, Authorization=f"Bearer {token}")).status_code == 200
    assert (await ask(before, Large="x" * 100_000)).status_code == 431
    make_certificates(tmp_path)  # by another authority
    after = ssl.create_default_context(cafile=made.ca)
    with trio.fail_after(60):
        while True:  # it looks once a second
            try:
                answer = await ask(after, Authorization=f"Bearer {token}")
                break
            except httpx.ConnectError:
                await trio.sleep(0.1)
    assert answer.status_code == 200
    with pytest.raises(httpx.ConnectError):
        await ask(before)
    nursery.cancel_scope.cancel()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_openssl_finds_tls_1_2_and_1_3_alone(nursery: trio.Nursery) -> None:
    files = certificates()
    config = AdminConfig(
        listen="127.0.0.1:0", tls_certificate=files.server, tls_key=files.server_key
    )
    console = console_of(config)
    await nursery.start(console.run)
    await trio.to_thread.run_sync(check_versions_and_ciphers, console.address[1])
    nursery.cancel_scope.cancel()


@needs_browser
async def test_a_page_whose_login_has_ended_asks_for_one(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    file = str(tmp_path / "tokens")
    token = tokens.create(file, "alice", Role.VIEW, None)
    console = console_of(AdminConfig(listen="127.0.0.1:0", tokens_file=file))
    await nursery.start(console.run)

    def look() -> None:
        with browser.opened(tmp_path / "browser") as page:
            page.open(f"http://127.0.0.1:{console.address[1]}/")
            page.value(f"document.querySelector('[name=token]').value = '{token}'")
            page.leads_on(lambda: page.value("document.querySelector('main form').submit()"))
            assert "alice, view" in page.value("document.body.textContent")
            page.leads_on(lambda: tokens.delete(file, "alice"))
            assert page.value("location.pathname") == "/login"

    await trio.to_thread.run_sync(look)
    nursery.cancel_scope.cancel()


@needs_browser
def test_pages_in_a_browser(motelog_stack: MotelogProcess, tmp_path: Path) -> None:
    base = "http://{}:{}".format(*motelog_stack.admin)
    hostile = "<img src=x onerror=document.title=1>"
    clients = [
        PahoClient(motelog_stack.mqtt, MQTTProtocolVersion.MQTTv5, name)
        for name in ("shown", hostile)
    ]
    try:
        with browser.opened(tmp_path) as page:
            for width, scheme in ((1200, "light"), (360, "dark")):
                page.shows(width, 900, scheme)
                for path in ("/", *(one.path for one in PAGES if one.name)):
                    page.open(base + path)
                    marked = page.value("document.querySelectorAll('nav [aria-current]').length")
                    assert marked == 1, path
                    wide = page.value("document.documentElement.scrollWidth - innerWidth")
                    assert wide <= 0, f"{path} is wider than {width}"
                    back = page.value("getComputedStyle(document.body).backgroundColor")
                    dark = sum(map(int, back[4:-1].split(","))) < 200
                    assert dark == (scheme == "dark")
            assert page.faults == []
            assert all(one.startswith((base, "data:")) for one in page.requests)

            # What is new comes by itself; a name is no element.
            page.open(base + "/clients")
            assert page.value("document.querySelectorAll('#live img').length") == 0
            clients.append(PahoClient(motelog_stack.mqtt, MQTTProtocolVersion.MQTTv5, "later"))
            page.wait(lambda: "later" in page.value("document.getElementById('live').innerText"))
            assert page.value("document.title") == "Clients - Motelog"

            # By keyboard: what is open or has the focus is not taken away.
            page.open(base + "/clients/client?client_id=later")
            page.value("document.querySelector('details summary').focus()")
            page.press("Enter", 13)
            page.wait(lambda: page.value("document.querySelector('details').open"))
            page.press("Tab", 9)
            assert page.value("document.activeElement.innerText") == "Disconnect"
            page.leads_on(lambda: page.press("Enter", 13))
            assert "The client is disconnected." in page.value("document.body.innerText")
            assert page.faults == []

            # What is no longer there is not shown on.
            page.open(base + "/clients/client?client_id=shown")
            clients.pop(0).stop()
            page.wait(
                lambda: "no client" in page.value("document.getElementById('live').innerText")
            )

            # A word that has room is in one line.
            page.shows(1200, 900, "light")
            page.open(base + "/config")
            lines = page.value(
                "[...document.querySelectorAll('td')].filter(td => td.innerText == 'default')"
                ".map(td => { const text = document.createRange(); text.selectNodeContents(td);"
                " return text.getClientRects().length; })"
            )
            assert set(lines) == {1}

            assert ">later</a>" in page.without_scripts(base + "/clients")
    finally:
        for client in clients:
            client.stop()
