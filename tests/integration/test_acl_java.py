"""Access control with RocketMQ's own code: its client and mqadmin at ours, ours at its broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.users import Rule, User, UserRules
from motelog.core.errors import BrokerError
from motelog.core.message import Message
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode, loads
from tests.support.broker_stack import connected, routed, started_stack
from tests.support.java import DRIVER, VERSION_4, VERSION_5, ApacheServer, JavaDriver, run_tool

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


@pytest.mark.parametrize(
    "version", [VERSION_5, pytest.param(VERSION_4, marks=pytest.mark.java_all)]
)
async def test_java_clients_and_tools_with_a_login(tmp_path: Path, version: str) -> None:
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
            return await DRIVER.run(version, order, namesrv, topic, group, str(COUNT), key, secret)

        where = ("-n", namesrv, "-b", stack.broker_address)
        create = ("updateTopic", *where, "-t", "orders", "-r", "1", "-w", "1")
        refused = await run_tool(version, tmp_path / "nobody", *create)
        assert "accepts only signed requests" in refused
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


#: Commands as words, and patterns of lines that they print; also of RocketMQ 5.3.3's own broker,
#: but for what that takes: short passwords, rules about clusters or of users that there are not.
USER_COMMANDS = (
    ("createUser -b {broker} -u alice -p alice-secret", "create user to {broker} success"),
    ("createUser -c DefaultCluster -u root -p root-secret -t Super", "create user to .* success"),
    ("createUser -b {broker} -u alice -p other-secret", "CODE: 16 +DESC: The user is existed"),
    ("createUser -b {broker} -u application -p other-secret", "CODE: 16 .* change it there"),
    ("createUser -b {broker} -u bob -p short", "CODE: 29 .* at least 7 characters"),
    (
        "getUser -b {broker} -u alice",
        "#UserName +#Password",
        "^alice +alice-secret +Normal +enable",
    ),
    ("listUser -b {broker}", "^alice +alice-secret +Normal", "^root +root-secret +Super +enable"),
    ("listUser -b {broker} -f oo", "^root "),
    (
        "createAcl -b {broker} -s User:alice -r Topic:orders,Group:* -a Pub,Sub -i 127.0.0.0/8"
        " -d Allow",
        "create acl to {broker} success",
    ),
    ("createAcl -b {broker} -s User:bob -r Topic:a -a Pub -d Allow", "CODE: 16 .*not exist"),
    ("createAcl -b {broker} -s User:alice -r Cluster:* -a Pub -d Allow", "CODE: 29 .*Topic:NAME"),
    (
        "getAcl -b {broker} -s User:alice",
        "#Subject +#PolicyType +#Resource",
        r"^User:alice +Custom +Topic:orders +\[Pub, Sub\] +\[127.0.0.0/8\] +Allow",
        r"^User:alice +Custom +Group:\* ",
    ),
    ("listAcl -b {broker}", "^User:alice +Custom +Topic:orders"),
    ("listAcl -b {broker} -s alice -r Group", r"^User:alice +Custom +Group:\* "),
)
COPY_COMMANDS = (
    ("copyUser -f {broker} -t {other}", "copy user of alice from {broker} to {other} success"),
    ("copyAcl -f {broker} -t {other}", "copy acl of User:alice from {broker} to {other} success"),
    ("listUser -b {other}", "^alice +alice-secret +Normal +enable", "^root +root-secret +Super"),
    ("getAcl -b {other} -s User:alice", "^User:alice +Custom +Topic:orders"),
    ("copyUser -f {broker} -t {other} -u alice", "copy user of alice"),
)
CHANGE_COMMANDS = (
    (
        "updateAcl -b {broker} -s User:alice -r Topic:orders -a Pub -d Deny",
        "update acl to {broker}",
    ),
    ("getAcl -b {broker} -s User:alice", r"Topic:orders +\[Pub\] +null +Deny"),
)
LAST_COMMANDS = (
    ("updateUser -b {broker} -u alice -s disable", "update user to {broker} success"),
    ("getUser -b {broker} -u alice", "^alice +alice-secret +Normal +disable"),
    ("deleteAcl -b {broker} -s User:alice -r Group:*", "delete acl to {broker} success"),
    ("deleteAcl -b {broker} -s User:alice", "delete acl to {broker} success"),
    ("deleteUser -b {broker} -u alice", "delete user to {broker} success"),
)


@pytest.mark.java_all
async def test_users_and_rules_by_mqadmin(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(RULES)
    own = tools_file(tmp_path / "home", ADMIN)
    (tmp_path / "home" / "conf" / "logback_tools.xml").write_text("<configuration/>")
    fields: dict[str, Any] = {"acl_file": str(file), "credentials_file": str(own)}
    users_file = tmp_path / "store" / "config" / "users.json"
    driver = JavaDriver(options=(f"-Drocketmq.home.dir={tmp_path / 'home'}",))
    try:
        async with (
            started_stack(
                tmp_path / "store",
                namesrv_fields={"acl_file": str(file), "users_file": str(users_file)},
                **fields,
            ) as stack,
            started_stack(tmp_path / "other", **fields) as other,
        ):
            namesrv = stack.namesrv_address
            names = {"broker": stack.broker_address, "other": other.broker_address}
            async with Admin(namesrv=namesrv, credentials=ADMIN) as admin:
                await admin.put_topic("orders", queues=1)
            await routed(stack, "orders")

            async def check(commands: tuple[tuple[str, ...], ...]) -> None:
                faults = []
                for command, *patterns in commands:
                    words = command.format(**names).split(" ")
                    text = "\n".join(await driver.lines(VERSION_5, "mqadmin", namesrv, *words))
                    faults += [
                        f"{' '.join(words)}: no {pattern!r} in\n{text[:1500]}"
                        for pattern in patterns
                        if re.search(pattern.format(**names), text, re.MULTILINE) is None
                    ]
                assert not faults, "\n\n".join(faults)

            async def send() -> list[list[str]]:
                order = ("aclsend", namesrv, "orders", "P", "1", "alice", "alice-secret")
                return await driver.run(VERSION_5, *order)

            await check(USER_COMMANDS)
            # The name server looks once a second.
            with trio.fail_after(30):
                while (sent := await send())[0][0] != "sent":  # noqa: ASYNC110  # no event
                    await trio.sleep(0.2)
            assert sent[0][1] == "SEND_OK"
            await check(COPY_COMMANDS)
            await check(CHANGE_COMMANDS)
            ((kind, code, text),) = await send()
            assert (kind, int(code)) == ("refused", ResponseCode.NO_PERMISSION)
            assert "alice does not have PUB on the topic orders" in text
            await check(LAST_COMMANDS)
            assert [each["username"] for each in await _listed(names["broker"])] == ["root"]
    finally:
        driver.close()


async def _listed(broker: str) -> list[dict[str, str]]:
    async with connected(broker) as peer:
        command = RemotingCommand(RequestCode.AUTH_LIST_USER)
        ADMIN.sign(command)
        listed: list[dict[str, str]] = loads(
            (await peer.client.request(command, timeout_s=10)).body
        )
        return listed


@pytest.mark.java_all
async def test_our_client_makes_users_and_rules_at_apache_s_broker(tmp_path: Path) -> None:
    root = Credentials("rocketmq", "12345678")
    auth = "org.apache.rocketmq.auth"
    settings = {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{auth}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": (
            f"{auth}.authentication.provider.LocalAuthenticationMetadataProvider"
        ),
        "initAuthenticationUser": '{"username":"rocketmq","password":"12345678"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"rocketmq","secretKey":"12345678"}',
        "authorizationEnabled": "true",
        "authorizationProvider": f"{auth}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": (
            f"{auth}.authorization.provider.LocalAuthorizationMetadataProvider"
        ),
    }
    orders = Rule("Topic:orders", ("Pub",), source_ips=("10.0.0.0/8",))
    rest = Rule("Topic:*", ("Sub",), is_allowed=False, is_default=True)
    async with (
        ApacheServer(VERSION_5, tmp_path / "store", settings=settings) as apache,
        Admin(namesrv=apache.namesrv_address, credentials=root) as admin,
    ):
        (broker,) = [one.name for one in await admin.brokers()]
        await admin.create_user("alice", "alice-secret")
        alice = User(broker, "alice", "alice-secret", is_admin=False, is_enabled=True)
        assert (await admin.user("alice"), await admin.user("bob")) == ([alice], [])
        assert [one.name for one in await admin.users()] == ["alice", "rocketmq"]
        await admin.update_user("alice", password="another-secret", is_enabled=False)
        locked = User(broker, "alice", "another-secret", is_admin=False, is_enabled=False)
        assert await admin.users("ali") == [locked]
        assert await admin.rules_of("alice") == []
        with pytest.raises(BrokerError, match="not exist"):
            await admin.rules_of("bob")
        await admin.put_rules("alice", [orders, rest])
        assert await admin.rules_of("alice") == [UserRules(broker, "alice", (orders, rest))]
        other = Rule("Topic:orders", ("Sub",))
        await admin.put_rules("alice", [other])
        assert await admin.rules("ali", "orders") == [UserRules(broker, "alice", (other,))]
        await admin.delete_rules("alice", "Topic:orders")
        assert await admin.rules() == [UserRules(broker, "alice", (rest,))]
        await admin.delete_rules("alice")
        assert await admin.rules_of("alice") == []
        await admin.delete_user("alice")
        await admin.delete_user("alice")
        assert await admin.users("ali") == []


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
