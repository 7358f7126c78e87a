"""Accounts: what RocketMQ 4.9.7's PlainAccessValidator says to the same file and requests."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any, cast

import pytest

from motelog.core.acl.accounts import Account, Kind, Need, Right, topic_need
from motelog.core.acl.gate import AclGate
from motelog.core.broker.needs import NEEDS
from motelog.core.errors import BrokerError
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import RemotingCommand, RequestCode
from motelog.core.remoting.server import Connection
from motelog.core.topic_names import MQTT_SESSION_TOPIC, SYSTEM_TOPICS

HOST = "10.9.9.9"
FOLDER = Path(__file__).parents[3] / "vectors" / "rocketmq" / "acl"
DECISIONS: list[tuple[str, str | None, str | None, str, str, str, bool]] = json.loads(
    (FOLDER / "decisions.json").read_bytes()
)


class Client:
    """What the gate sees of a connection."""

    def __init__(self, host: str = HOST) -> None:
        self.peer = (host, 4711)
        self.access_keys: frozenset[str] = frozenset()
        self.deferred: deque[RemotingCommand] = deque()


def request(kind: str, topic: str, group: str) -> RemotingCommand:
    match kind:
        case "send":
            return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext={"a": group, "b": topic})
        case "pull":
            ext = {"topic": topic, "consumerGroup": group}
            return RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext)
        case "query":
            return RemotingCommand(RequestCode.QUERY_MESSAGE, ext={"topic": topic, "key": "k"})
        case _:
            return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext={"topic": topic})


def is_let_in(gate: AclGate, command: RemotingCommand, client: Client) -> bool:
    asked: list[RemotingCommand] = []

    def process(command: RemotingCommand, _: Connection) -> None:
        asked.append(command)

    guarded = gate.guard({command.code: process})
    try:
        guarded[command.code](command, cast("Connection", client))
    except BrokerError:
        assert asked == []
    return asked == [command]


def test_every_decision_is_rocketmq_s() -> None:
    gate = AclGate(str(FOLDER / "plain_acl.yml"), NEEDS)
    assert len(DECISIONS) == 165
    different = []
    for host, key, secret, kind, topic, group, is_allowed in DECISIONS:
        command = request(kind, topic, group)
        if key is not None and secret is not None:
            Credentials(key, secret).sign(command)
        if is_let_in(gate, command, Client(host)) != is_allowed:
            different.append((host, key, kind, topic, group))
    assert different == []


@pytest.mark.parametrize("name", [*sorted(SYSTEM_TOPICS - {"TBW102"}), "rmq_sys_REVIVE_LOG_c"])
def test_no_default_reaches_a_topic_of_the_system(name: str) -> None:
    need = topic_need(name, Right.SUB)
    assert not Account("a", b"", default_topic=Right.EITHER).may(need, HOST)
    assert Account("a", b"", topics={name: Right.SUB}).may(need, HOST)
    assert Account("a", b"", is_admin=True).may(need, HOST)


def test_an_account_says_what_it_lacks_and_never_its_secret() -> None:
    account = Account("devices", b"planted-secret")
    assert "planted" not in repr(account)
    assert str(Need(Kind.TOPIC, "T", Right.EITHER)) == "PUB or SUB on the topic T"
    assert str(topic_need("%RETRY%g", Right.PUB)) == "SUB on the group g"


def session_reader(**fields: Any) -> Account:
    return Account("gateway", b"", topics={MQTT_SESSION_TOPIC: Right.EITHER}, **fields)


def test_an_administrator_that_names_topics_has_these_and_the_defaults() -> None:
    account = session_reader(is_admin=True)
    assert account.may(topic_need(MQTT_SESSION_TOPIC, Right.PUB), HOST)
    assert not account.may(topic_need("T", Right.PUB), HOST)
    other = session_reader(is_admin=True, default_topic=Right.PUB)
    assert other.may(topic_need("T", Right.PUB), HOST)
