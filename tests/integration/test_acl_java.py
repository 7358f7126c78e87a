"""Access control with RocketMQ's own code: its client and mqadmin at ours, ours at its broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.core.errors import BrokerError
from motelog.core.message import Message
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import ResponseCode
from tests.support.broker_stack import routed, started_stack
from tests.support.java import VERSION_4, VERSION_5, ApacheServer, JavaDriver, run_tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

ADMIN = Credentials("administrator", "secret of administrator")
APP = Credentials("application", "0123456789")
READER = Credentials("reader-only", "secret of reader")
COUNT = 5

RULES = """
accounts:
- accessKey: administrator
  secretKey: secret of administrator
  admin: true
- accessKey: application
  secretKey: "0123456789"
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - orders=PUB|SUB
  groupPerms:
  - workers=SUB
- accessKey: reader-only
  secretKey: secret of reader
  topicPerms:
  - orders=SUB
  - prices=PUB
  groupPerms:
  - readers=SUB
"""


def tools_file(home: Path, credentials: Credentials) -> Path:
    """Write credentials where RocketMQ's tools look for them."""
    file = home / "conf" / "tools.yml"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = f"accessKey: {credentials.access_key}\nsecretKey: '{credentials.secret_key}'\n"
    file.write_text(text)
    return file


@pytest.fixture
def driver() -> Iterator[JavaDriver]:
    driver = JavaDriver()
    yield driver
    driver.close()


@pytest.mark.parametrize(
    "version", [VERSION_5, pytest.param(VERSION_4, marks=pytest.mark.java_all)]
)
async def test_java_clients_and_tools_with_a_login(
    tmp_path: Path, driver: JavaDriver, version: str
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(RULES)
    own = tools_file(tmp_path / "home", ADMIN)
    async with started_stack(
        tmp_path / "store",
        namesrv_fields={"acl_file": str(file)},
        acl_file=str(file),
        credentials_file=str(own),
    ) as stack:
        namesrv = stack.namesrv_address

        async def ask(order: str, topic: str, group: str, who: Credentials | None) -> Any:
            key, secret = ("-", "-") if who is None else (who.access_key, who.secret_key)
            return await driver.run(version, order, namesrv, topic, group, str(COUNT), key, secret)

        where = ("-n", namesrv, "-b", stack.broker_address)
        create = ("updateTopic", *where, "-t", "orders", "-r", "1", "-w", "1")
        refused = await run_tool(version, tmp_path / "nobody", *create)
        assert "signed requests only" in refused
        assert "create topic to" in await run_tool(version, tmp_path / "home", *create)
        await routed(stack, "orders")

        bodies = [f"Grüße {i}" for i in range(COUNT)]
        sent = await ask("aclsend", "orders", "P", APP)
        assert sent == [["sent", "SEND_OK", body] for body in bodies]
        took = await ask("aclconsume", "orders", "workers", APP)
        assert sorted(took) == [["took", body] for body in bodies]

        # Who may read knows where the topic is, and is refused by the broker.
        ((_, code, text),) = await ask("aclsend", "orders", "P", READER)
        assert int(code) == ResponseCode.NO_PERMISSION
        assert "reader-only does not have PUB on the topic orders" in text
        ((_, code, text),) = await ask("aclpull", "orders", "workers", READER)
        assert int(code) == ResponseCode.NO_PERMISSION
        assert "does not have SUB on the group workers" in text
        assert await ask("aclpull", "orders", "readers", READER) == [["pulled", "FOUND"]]
        # Others are not told where it is.
        for stranger in (None, Credentials("application", "wrong secret")):
            ((kind, _, text),) = await ask("aclsend", "orders", "P", stranger)
            assert (kind, text) == ("refused", "no route")


@pytest.mark.java_all
async def test_our_client_at_apache_s_broker_with_acl(tmp_path: Path) -> None:
    # Each 4.9 broker with aclEnable reads this from its home.
    home = tmp_path / "store-home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(RULES)
    settings = {"aclEnable": "true"}
    async with ApacheServer(VERSION_4, tmp_path / "store", settings=settings) as apache:
        namesrv = apache.namesrv_address
        async with Admin(namesrv=namesrv, credentials=ADMIN) as admin:
            await admin.put_topic("orders", queues=1)
        async with Admin(namesrv=namesrv, credentials=APP) as admin:
            with pytest.raises(BrokerError, match="admin permission"):
                await admin.put_topic("other", queues=1)
        async with Producer(namesrv=namesrv, credentials=APP) as producer:
            with trio.fail_after(30):
                await producer.queues("orders")
            for i in range(COUNT):
                await producer.send(Message("orders", f"Grüße {i}".encode(), keys=(f"k{i}",)))
            await producer.send_batch([Message("orders", b"batch"), Message("orders", b"batch")])
        async with PullConsumer(namesrv=namesrv, credentials=APP, group="workers") as consumer:
            consumer.assign(await consumer.queues("orders", wait_s=20))
            bodies: list[bytes] = []
            with trio.fail_after(30):
                while len(bodies) < COUNT + 2:
                    bodies += [message.body for message in await consumer.poll(timeout_s=5)]
            await consumer.commit()
            (found,) = await consumer.query_by_key("orders", "k0")
            assert found.body == "Grüße 0".encode()
        for who, text in (
            (None, "No accessKey is configured"),
            (Credentials("application", "wrong secret"), "Check signature failed"),
            (READER, "No default permission for topic:orders"),
        ):
            async with Producer(namesrv=namesrv, credentials=who) as producer:
                with pytest.raises(BrokerError, match=text):
                    await producer.send(Message("orders", b"refused"))
