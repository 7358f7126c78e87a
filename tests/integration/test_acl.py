"""Access control at a broker and a name server of ours, by raw requests and by our clients."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.producer import Producer
from motelog.bridge.users import Rule, User, UserRules
from motelog.cli.status import Status
from motelog.core.broker.needs import NEEDS
from motelog.core.errors import BrokerError
from motelog.core.message import Message
from motelog.core.namesrv.needs import NEEDS as NAMESRV_NEEDS
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode, loads
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.log.log_port import Settled
from motelog.gateway.log.remote.remote_log import RemoteLog
from tests.support.broker_stack import (
    Peer,
    Stack,
    connected,
    eventually,
    json_body,
    pull_ext,
    routed,
    send_ext,
    started_stack,
)
from tests.support.cli import motelog
from tests.support.every_client import use_every_client

ADMIN = Credentials("administrator", "secret of administrator")
WRITER = Credentials("orders-writer", "secret of writer")
READER = Credentials("orders-reader", "secret of reader")
OTHER = Credentials("stock-reader", "secret of stock")

APP = Credentials("application", "secret of application")

RULES = """
accounts:
- accessKey: application
  secretKey: secret of application
  topicPerms: [jobs=PUB|SUB]
  groupPerms: [workers=SUB, simple=SUB, pullers=SUB]
- {accessKey: administrator, secretKey: secret of administrator, admin: true}
- {accessKey: orders-writer, secretKey: secret of writer, topicPerms: [orders=PUB]}
- accessKey: orders-reader
  secretKey: secret of reader
  topicPerms: [orders=SUB]
  groupPerms: [consumers=SUB]
- accessKey: stock-reader
  secretKey: secret of stock
  topicPerms: [stock=PUB|SUB]
  groupPerms: [stock-consumers=SUB]
"""
NO_PERMISSION = ResponseCode.NO_PERMISSION


@dataclass
class Guarded:
    """Both servers behind one file of accounts."""

    stack: Stack
    file: Path

    def change(self, *replaced: str) -> None:
        """Replace pairs of texts in the file of accounts."""
        text = self.file.read_text()
        for old, new in zip(replaced[::2], replaced[1::2], strict=True):
            assert old in text
            text = text.replace(old, new)
        self.file.write_text(text)


@asynccontextmanager
async def guarded(directory: Path, **broker: Any) -> AsyncIterator[Guarded]:
    file, own = directory / "plain_acl.yml", directory / "tools.yml"
    own.touch(0o600)
    file.write_text(RULES)
    own.write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    async with started_stack(
        directory / "store",
        namesrv_fields={
            "acl_file": str(file),
            "users_file": str(directory / "store" / "config" / "users.json"),
        },
        acl_file=str(file),
        credentials_file=str(own),
        **broker,
    ) as stack:
        yield Guarded(stack, file)


async def ask(
    peer: Peer,
    credentials: Credentials,
    code: int,
    ext: dict[str, Any] | None = None,
    body: bytes = b"",
) -> RemotingCommand:
    command = RemotingCommand(code, ext={n: str(v) for n, v in (ext or {}).items()}, body=body)
    credentials.sign(command)
    return await peer.client.request(command, timeout_s=10)


async def refusals(peer: Peer, codes: set[int], **ext: str) -> dict[int, int]:
    """Return the codes that are not answered by NO_PERMISSION."""
    found = {code: (await peer.ask(code, ext)).code for code in sorted(codes)}
    return {code: answer for code, answer in found.items() if answer != NO_PERMISSION}


async def test_nothing_is_answered_without_a_login(tmp_path: Path) -> None:
    async with guarded(tmp_path) as servers:
        stack = servers.stack
        for address, codes in (
            (stack.broker_address, set(NEEDS)),
            (stack.namesrv_address, set(NAMESRV_NEEDS)),
        ):
            async with connected(address) as peer:
                assert await refusals(peer, codes) == {}
                assert await refusals(peer, codes, AccessKey="") == {}
                named = {"AccessKey": ADMIN.access_key, "Signature": "AAAA"}
                assert await refusals(peer, codes, **named) == {}
                answer = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO, named)
                unknown = Credentials("nobody-knows", ADMIN.secret_key)
                wrong = await ask(peer, unknown, min(codes))
                if address == stack.namesrv_address:
                    # Who tries out keys is not told which of them exist.
                    assert answer.remark == wrong.remark


async def test_the_broker_registers_with_its_credentials(tmp_path: Path) -> None:
    async with guarded(tmp_path) as servers:
        assert servers.stack.broker.is_registered


async def test_a_broker_without_credentials_is_not_registered(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(RULES)
    async with started_stack(tmp_path / "store", namesrv_fields={"acl_file": str(file)}) as stack:
        assert not stack.broker.is_registered


async def test_rights_on_topics_and_groups(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path) as servers,
        connected(servers.stack.broker_address) as peer,
    ):
        create = {
            "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        }  # fmt: skip

        async def code(who: Credentials, code: int, ext: dict[str, Any], body: bytes = b"") -> int:
            return (await ask(peer, who, code, ext, body)).code

        make = RequestCode.UPDATE_AND_CREATE_TOPIC
        assert await code(WRITER, make, create) == NO_PERMISSION
        assert await code(ADMIN, make, create) == ResponseCode.SUCCESS
        send, pull = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
        one = send_ext("orders", properties="UNIQ_KEY\x010123456789ABCDEF\x02")
        assert await code(WRITER, send, one, b"body") == ResponseCode.SUCCESS
        assert await code(READER, send, one, b"body") == NO_PERMISSION
        assert await code(OTHER, send, one, b"body") == NO_PERMISSION
        assert await code(READER, pull, pull_ext("orders", 0)) == ResponseCode.SUCCESS
        assert await code(WRITER, pull, pull_ext("orders", 0)) == NO_PERMISSION
        other_group = pull_ext("orders", 0, consumerGroup="stock-consumers")
        assert await code(READER, pull, other_group) == NO_PERMISSION
        assert await code(OTHER, pull, other_group) == NO_PERMISSION
        # An answer that says no names what is missing, and neither key.
        answer = await ask(peer, READER, send, one, b"body")
        assert answer.remark == "the account orders-reader does not have PUB on the topic orders"


async def test_what_only_the_log_tells_is_judged_too(tmp_path: Path) -> None:
    """Requests that name a message by its place must not reach those of other topics."""
    async with (
        guarded(tmp_path) as servers,
        connected(servers.stack.broker_address) as peer,
    ):
        send = RequestCode.SEND_MESSAGE_V2
        one = send_ext("orders", properties="UNIQ_KEY\x010123456789ABCDEF\x02")
        sent = await ask(peer, WRITER, send, one, b"planted body")
        assert sent.code == ResponseCode.SUCCESS
        offset = int(sent.ext["msgId"].split(",")[0][16:], 16)

        view = RequestCode.VIEW_MESSAGE_BY_ID
        assert b"planted" in (await ask(peer, READER, view, {"offset": offset})).body
        for who in (OTHER, WRITER):
            refused = await ask(peer, who, view, {"offset": offset})
            assert refused.code == NO_PERMISSION
            assert refused.body == b""

        back = RequestCode.CONSUMER_SEND_MSG_BACK
        stolen = {"offset": offset, "group": "stock-consumers", "originTopic": "stock"}
        assert (await ask(peer, OTHER, back, stolen)).code == NO_PERMISSION
        own = {"offset": offset, "group": "consumers", "originTopic": "orders"}
        assert (await ask(peer, READER, back, own)).code == ResponseCode.SUCCESS

        half = send_ext(
            "orders",
            properties="UNIQ_KEY\x010123456789ABCDE0\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02",
            f=4,
        )
        prepared = await ask(peer, WRITER, send, half, b"half")
        assert prepared.code == ResponseCode.SUCCESS
        end = {
            "producerGroup": "P",
            "tranStateTableOffset": prepared.ext["queueOffset"],
            "commitLogOffset": int(prepared.ext["msgId"][16:], 16),
            "commitOrRollback": 8,
        }
        finish = RequestCode.END_TRANSACTION
        assert (await ask(peer, OTHER, finish, end)).code == NO_PERMISSION
        assert (await ask(peer, READER, finish, end)).code == NO_PERMISSION
        assert (await ask(peer, WRITER, finish, end)).code == ResponseCode.SUCCESS


async def test_a_client_s_name_is_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Producer groups need no right: the name of another's client must not be enough."""
    names: dict[str, Any] = {"clientID": "c", "producerDataSet": [{"groupName": "P"}]}
    goodbye = {"clientID": "c", "producerGroup": "P"}
    async with (
        guarded(tmp_path) as servers,
        connected(servers.stack.broker_address) as own,
        connected(servers.stack.broker_address) as other,
        connected(servers.stack.broker_address) as again,
    ):

        def owner() -> tuple[str, int] | None:
            found = servers.stack.broker.tables.producers.owner_of("c")
            return None if found is None else found.peer

        async def beat(peer: Peer, who: Credentials) -> None:
            answer = await ask(peer, who, RequestCode.HEART_BEAT, body=json_body(names))
            assert answer.code == ResponseCode.SUCCESS

        await beat(own, WRITER)
        first = owner()
        assert first is not None
        for who in (OTHER, READER, WRITER, ADMIN):
            await ask(other, who, RequestCode.UNREGISTER_CLIENT, goodbye)
        assert owner() == first
        for group in ("P", "Q"):
            names["producerDataSet"] = [{"groupName": group}]
            await beat(other, OTHER)
        assert owner() == first
        assert servers.stack.broker.tables.producers.get("Q") is None
        (line,) = {text for text in caplog.messages if "the id of another account's" in text}
        assert "client_id='c'" in line
        # The same account comes back by another connection before the first one has ended.
        names["producerDataSet"] = [{"groupName": "P"}]
        await beat(again, WRITER)
        assert owner() not in (None, first)
        await ask(own, WRITER, RequestCode.UNREGISTER_CLIENT, goodbye)
        assert owner() is not None
        await ask(again, WRITER, RequestCode.UNREGISTER_CLIENT, goodbye)
        assert owner() is None
        await beat(other, OTHER)
        assert owner() is not None


async def test_a_route_is_told_to_those_who_use_the_topic(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path) as servers,
        connected(servers.stack.namesrv_address) as peer,
    ):
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        for who, expected in (
            (WRITER, ResponseCode.TOPIC_NOT_EXIST),
            (READER, ResponseCode.TOPIC_NOT_EXIST),
            (OTHER, NO_PERMISSION),
        ):
            assert (await ask(peer, who, code, {"topic": "orders"})).code == expected
        assert (await ask(peer, OTHER, code, {"topic": "TBW102"})).code == ResponseCode.SUCCESS
        for who in (WRITER, READER):
            answer = await ask(peer, who, RequestCode.GET_BROKER_CLUSTER_INFO)
            assert answer.code == NO_PERMISSION
        register = {"brokerName": "evil", "brokerAddr": "1.2.3.4:5", "clusterName": "c",
                    "brokerId": 0}  # fmt: skip
        answer = await ask(peer, WRITER, RequestCode.REGISTER_BROKER, register)
        assert answer.code == NO_PERMISSION
        assert servers.stack.namesrv.routes.brokers().keys() == {"broker-a"}


async def test_a_change_of_the_file_counts_and_ends_what_it_concerns(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path) as servers,
        connected(servers.stack.broker_address) as kept,
        connected(servers.stack.broker_address) as lost,
    ):
        beat = json_body({"clientID": "c", "producerDataSet": [{"groupName": "P"}]})
        for peer, who in ((kept, WRITER), (lost, READER)):
            answer = await ask(peer, who, RequestCode.HEART_BEAT, body=beat)
            assert answer.code == ResponseCode.SUCCESS
        servers.change("orders=SUB", "orders=DENY")
        with trio.fail_after(5):
            await eventually(lambda: not lost.client.is_open)
        assert kept.client.is_open
        async with connected(servers.stack.broker_address) as again:
            answer = await ask(again, READER, RequestCode.PULL_MESSAGE, pull_ext("orders", 0))
            assert answer.code == NO_PERMISSION
        # A file that says nothing closes all doors; one that does opens them again.
        servers.change("accounts:", "acounts:")
        with trio.fail_after(5):
            await eventually(lambda: not kept.client.is_open)
        async with connected(servers.stack.broker_address) as again:
            answer = await ask(again, ADMIN, RequestCode.GET_BROKER_CONFIG)
            assert answer.code == NO_PERMISSION
            servers.change("acounts:", "accounts:")
            with trio.fail_after(5):
                while answer.code == NO_PERMISSION:
                    await trio.sleep(0.1)
                    answer = await ask(again, ADMIN, RequestCode.GET_BROKER_CONFIG)
            assert answer.code == ResponseCode.SUCCESS


USER = Credentials("alice", "planted secret")


async def tool(
    peer: Peer, code: int, ext: dict[str, Any] | None = None, body: object = None
) -> RemotingCommand:
    """Ask as an administrator's tool does."""
    return await ask(peer, ADMIN, code, ext, b"" if body is None else json_body(body))


def acl_of(resource: str, *actions: str, decision: str = "Allow") -> dict[str, Any]:
    entry = {"resource": resource, "actions": actions, "decision": decision}
    return {"policies": [{"entries": [entry]}]}


async def test_users_that_tools_make_count_at_both_servers_and_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    alice, subject = {"username": USER.access_key}, {"subject": f"User:{USER.access_key}"}
    send = send_ext("orders", properties="UNIQ_KEY\x010123456789ABCDEF\x02")
    async with (
        guarded(tmp_path) as servers,
        connected(servers.stack.broker_address) as peer,
        connected(servers.stack.namesrv_address) as namesrv,
    ):
        route = {"topic": "orders"}
        answer = await ask(namesrv, USER, RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
        assert answer.code == NO_PERMISSION
        new = {"password": USER.secret_key, "userType": "Normal"}
        answer = await tool(peer, RequestCode.AUTH_CREATE_USER, alice, new)
        assert answer.code == ResponseCode.SUCCESS
        # What was acknowledged is on the disk; who has no right is let in and may nothing.
        assert b"planted" in (tmp_path / "store" / "config" / "users.json").read_bytes()
        answer = await ask(peer, USER, RequestCode.SEND_MESSAGE_V2, send, b"body")
        assert answer.remark == "the account alice does not have PUB on the topic orders"
        rules = acl_of("Topic:orders", "Pub")
        answer = await tool(peer, RequestCode.AUTH_CREATE_ACL, subject, rules)
        assert answer.code == ResponseCode.SUCCESS
        # At the broker it counts at once, at the name server as soon as that has looked.
        answer = await ask(peer, USER, RequestCode.SEND_MESSAGE_V2, send, b"body")
        assert answer.code == ResponseCode.SUCCESS
        with trio.fail_after(10):
            while answer.code != ResponseCode.SUCCESS or not answer.body:
                await trio.sleep(0.1)
                answer = await ask(namesrv, USER, RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
        # Users change nothing about users, and a user that is an administrator does.
        other = {"username": "bob"}
        answer = await ask(peer, USER, RequestCode.AUTH_CREATE_USER, other, json_body(new))
        assert answer.code == NO_PERMISSION
        # Nobody but the file changes what the file has.
        for code in (RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_DELETE_USER):
            answer = await tool(peer, code, {"username": WRITER.access_key}, new)
            assert answer.code == NO_PERMISSION
            assert answer.remark == (
                "orders-writer is an account in the broker's acl_file: change it there"
            )
    async with (
        guarded(tmp_path) as servers,
        connected(servers.stack.broker_address) as peer,
        connected(servers.stack.broker_address) as used,
        connected(servers.stack.namesrv_address) as namesrv,
    ):
        answer = await tool(peer, RequestCode.AUTH_LIST_ACL)
        entry = {"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}
        policies = [{"policyType": "Custom", "entries": [entry]}]
        assert loads(answer.body) == [subject | {"policies": policies}]
        answer = await ask(used, USER, RequestCode.SEND_MESSAGE_V2, send, b"body")
        assert answer.code == ResponseCode.SUCCESS
        held = await ask(namesrv, USER, RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
        assert held.code == ResponseCode.SUCCESS
        answer = await tool(peer, RequestCode.AUTH_DELETE_USER, alice)
        assert answer.code == ResponseCode.SUCCESS
        with trio.fail_after(10):
            await eventually(lambda: not used.client.is_open)
            await eventually(lambda: not namesrv.client.is_open)
        assert (await tool(peer, RequestCode.AUTH_GET_USER, alice)).body == b""
        answer = await ask(peer, USER, RequestCode.SEND_MESSAGE_V2, send, b"body")
        assert answer.code == NO_PERMISSION
    assert caplog.text.count("an administrator has changed users or rules who='administrator'") == 3
    assert "action=create_user user='alice'" in caplog.text
    assert "planted" not in caplog.text


async def test_an_account_of_the_file_counts_before_a_user_of_that_name(tmp_path: Path) -> None:
    user, account = Credentials("alice-0", "secret one"), Credentials("alice-0", "secret two")
    kept = Credentials("root", "secret of root")
    async with (
        guarded(tmp_path) as servers,
        connected(servers.stack.broker_address) as peer,
    ):
        create, config = RequestCode.AUTH_CREATE_USER, RequestCode.GET_BROKER_CONFIG
        for who in (user, kept):
            new = {"password": who.secret_key, "userType": "Super"}
            answer = await tool(peer, create, {"username": who.access_key}, new)
            assert answer.code == ResponseCode.SUCCESS
            async with connected(servers.stack.broker_address) as own:
                assert (await ask(own, who, config)).code == ResponseCode.SUCCESS
        added = f"- {{accessKey: {account.access_key}, secretKey: {account.secret_key}}}"
        servers.change("accounts:", f"accounts:\n{added}")
        with trio.fail_after(10):
            while True:
                answer = await ask(peer, account, config)
                if answer.remark == "the account alice-0 does not have an administrator's account":
                    break
                await trio.sleep(0.1)
        assert (await ask(peer, user, config)).code == NO_PERMISSION
        answer = await tool(peer, RequestCode.AUTH_UPDATE_USER, {"username": "alice-0"}, {})
        assert "change it there" in (answer.remark or "")
        # Others are not disturbed by a change of the file.
        assert (await ask(peer, kept, config)).code == ResponseCode.SUCCESS


async def test_without_access_control_there_are_no_users(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path / "store") as stack,
        connected(stack.broker_address) as peer,
    ):
        for code in range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1):
            answer = await peer.ask(code, {"username": "a", "subject": "User:a"}, b"{}")
            assert answer.code == NO_PERMISSION
            assert "set acl_file" in (answer.remark or "")


async def test_users_and_rules_from_python(tmp_path: Path) -> None:
    orders = Rule("Topic:orders", ("Pub", "Sub"), source_ips=("127.0.0.1",))
    rest = Rule("Topic:*", ("All",), is_allowed=False, is_default=True)
    async with (
        guarded(tmp_path) as servers,
        Admin(namesrv=servers.stack.namesrv_address, credentials=ADMIN) as admin,
    ):
        namesrv = servers.stack.namesrv_address
        (broker,) = [one.name for one in await admin.brokers()]
        await admin.create_user("alice", "alice-secret")
        await admin.create_user("root-2", "root-2-secret", is_admin=True, brokers=[broker])
        alice = User(broker, "alice", "alice-secret", is_admin=False, is_enabled=True)
        root = User(broker, "root-2", "root-2-secret", is_admin=True, is_enabled=True)
        assert await admin.users() == [alice, root]
        assert (await admin.users("ali"), await admin.user("root-2")) == ([alice], [root])
        assert (await admin.user("bob"), await admin.rules_of("alice")) == ([], [])
        assert "alice-secret" not in repr(alice)
        with pytest.raises(BrokerError, match=r"existed .*from 127"):
            await admin.create_user("alice", "another-secret")
        with pytest.raises(BrokerError, match="7 characters"):
            await admin.create_user("bob", "short")
        with pytest.raises(BrokerError, match="not exist"):
            await admin.update_user("bob", is_enabled=False)

        await admin.put_rules("alice", [orders, rest])
        assert await admin.rules_of("alice") == [UserRules(broker, "alice", (orders, rest))]
        assert await admin.rules("ali", "orders") == [UserRules(broker, "alice", (orders,))]
        assert await admin.rules("bob") == []
        with pytest.raises(BrokerError, match="Cluster"):
            await admin.put_rules("alice", [Rule("Cluster:c")])
        async with Admin(
            namesrv=namesrv, credentials=Credentials("root-2", "root-2-secret")
        ) as other:
            with trio.fail_after(30):
                while True:  # the name server looks once a second
                    try:
                        await other.put_topic("orders", queues=1)
                        break
                    except BrokerError:
                        await trio.sleep(0.1)
        async with Producer(
            namesrv=namesrv, credentials=Credentials("alice", "alice-secret"), retries=0
        ) as producer:
            assert (await producer.send(Message("orders", b""))).queue_offset == 0

            await admin.delete_rules("alice", "Topic:orders")
            assert await admin.rules_of("alice") == [UserRules(broker, "alice", (rest,))]
            await admin.put_rules("alice", [Rule("Topic:orders", ("Sub",))])
            with pytest.raises(BrokerError, match="alice does not have PUB"):
                await producer.send(Message("orders", b""))
        await admin.delete_rules("alice")
        assert await admin.rules() == []
        await admin.update_user("alice", password="a-new-secret", is_enabled=False, is_admin=True)
        locked = User(broker, "alice", "a-new-secret", is_admin=True, is_enabled=False)
        assert await admin.user("alice") == [locked]
        await admin.delete_user("alice")
        await admin.delete_user("alice")
        assert await admin.users() == [root]


async def test_our_clients_sign_all_that_they_ask(tmp_path: Path) -> None:
    async with guarded(tmp_path) as servers:
        namesrv = servers.stack.namesrv_address
        who: dict[str, Any] = {"namesrv": namesrv, "credentials": APP}
        async with Admin(namesrv=namesrv, credentials=ADMIN) as admin:
            await admin.put_topic("jobs", queues=2)
            assert "jobs" in await admin.topics()
        await routed(servers.stack, "jobs")
        await use_every_client(who)


@pytest.mark.parametrize(
    "credentials",
    [None, Credentials("application", "planted-secret"), Credentials("nobody", "planted-secret")],
)
async def test_a_client_that_is_refused_says_why_and_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, credentials: Credentials | None
) -> None:
    async with guarded(tmp_path) as servers:
        who: dict[str, Any] = {
            "namesrv": servers.stack.namesrv_address,
            "credentials": credentials,
        }
        async with Producer(**who) as producer:
            with pytest.raises(BrokerError) as refused:
                await producer.send(Message("jobs", b"body"))
        assert refused.value.code == NO_PERMISSION
        expected = "accepts only signed requests" if credentials is None else "is not known here"
        assert expected in str(refused.value)
        assert "access control has refused a request" in caplog.text
        for text in (str(refused.value), repr(refused.value), caplog.text):
            assert "planted" not in text
            assert "secret of" not in text


async def test_a_gateway_elsewhere_signs_its_requests(tmp_path: Path) -> None:
    async with guarded(tmp_path) as servers, trio.open_nursery() as nursery:
        log = RemoteLog(servers.stack.namesrv_address, credentials=ADMIN)
        await nursery.start(log.run)
        created: list[str] = []
        log.on_topic_created(created.append)
        log.create_topic(MQTT_SESSION_TOPIC, 1)
        with trio.fail_after(10):
            await eventually(lambda: log.has_topic(MQTT_SESSION_TOPIC))
        settled: list[Settled] = []
        log.on_settled(settled.append)
        queue = log.queue_of(MQTT_SESSION_TOPIC, "")
        assert log.append([(queue, b"state", b"", 0, 0, bytes(8), 0, 0, 0, 0)])
        with trio.fail_after(10):
            await eventually(lambda: bool(settled))
        assert [error for _, error in settled[0]] == [None]
        log.close()
        nursery.cancel_scope.cancel()


async def test_the_commands_take_a_file(tmp_path: Path) -> None:
    """Credentials come from a file; neither option nor variable has the secret itself."""
    async with guarded(tmp_path) as servers:
        namesrv = ("--namesrv", servers.stack.namesrv_address)
        own = str(tmp_path / "tools.yml")
        call = partial(motelog, "produce", "jobs", "-m", "text", *namesrv, "--credentials", own)
        done = await trio.to_thread.run_sync(call)
        assert (done.returncode, done.stdout) == (0, "sent 1\n"), done.stderr
        consume = ("consume", "jobs", "--until-end", *namesrv)
        call = partial(motelog, *consume, environment={"MOTELOG_CREDENTIALS": own})
        done = await trio.to_thread.run_sync(call)
        assert done.returncode == 0, done.stderr
        assert "text" in done.stdout
        done = await trio.to_thread.run_sync(partial(motelog, *consume))
        assert done.returncode == Status.REFUSED
        assert "access key" in done.stderr


async def test_only_who_could_have_sent_a_message_is_asked_about_it(tmp_path: Path) -> None:
    """The question has the message, and any account may join any producer group."""
    async with (
        guarded(tmp_path, transaction_timeout_s=0.1, transaction_check_interval_s=0.1) as servers,
        connected(servers.stack.broker_address) as eavesdropper,
        connected(servers.stack.broker_address) as writer,
    ):
        beat = json_body({"clientID": "c", "producerDataSet": [{"groupName": "P"}]})
        joined = await ask(eavesdropper, OTHER, RequestCode.HEART_BEAT, body=beat)
        assert joined.code == ResponseCode.SUCCESS
        half = send_ext(
            "orders",
            properties="UNIQ_KEY\x010123456789ABCDE0\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02",
            f=4,
            g=round(time.time() * 1000),
        )
        prepared = await ask(writer, WRITER, RequestCode.SEND_MESSAGE_V2, half, b"planted body")
        assert prepared.code == ResponseCode.SUCCESS
        beat = json_body({"clientID": "d", "producerDataSet": [{"groupName": "P"}]})
        await ask(writer, WRITER, RequestCode.HEART_BEAT, body=beat)
        await eventually(lambda: len(writer.pushed) >= 2)
        assert eavesdropper.pushed == []
