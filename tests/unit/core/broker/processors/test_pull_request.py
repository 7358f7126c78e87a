"""What a pull may ask for: refusals, limits of an answer, and which messages it wants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from motelog.core.broker.processors.pull_request import Pull, PullRequests
from motelog.core.broker.tables.consumer_groups import Member
from motelog.core.broker.tables.heartbeat import (
    EXPRESSION_CHARACTERS_MAX,
    ConsumerData,
    Subscription,
    decode_tag_expression,
)
from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.errors import BrokerError
from motelog.core.remoting.frames import (
    Language,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    encode,
)
from motelog.core.remoting.pulls import split_pulls
from motelog.core.remoting.server import Connection
from motelog.core.remoting.topic_config import TopicConfig
from tests.support.broker_stack import pull_ext
from tests.support.broker_stage import BrokerStage, broker_stage
from tests.support.send_requests import turn

CONNECTION = cast("Connection", object())


class Stage:
    """Topic T with two queues, W that may only be written to; group G has one member."""

    def __init__(self, broker: BrokerStage) -> None:
        topics = broker.tables.topics
        topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=4), 0)
        broker.topic("W", 2, perm=2)
        self.groups = broker.tables.groups
        self.consumers = broker.tables.consumers
        self.requests = PullRequests(broker.shared)

    def beat(self, subscription: Subscription, message_model: str = "CLUSTERING") -> None:
        member = Member("client", CONNECTION, Language.JAVA, 0, 0)
        consumer = ConsumerData(
            "G", "CONSUME_PASSIVELY", message_model, "", {subscription.topic: subscription}
        )
        self.consumers.beat("G", member, consumer)

    def accept(self, topic: str = "T", *, without: str = "", **fields: Any) -> Pull:
        ext = pull_ext(topic, 7, **{"consumerGroup": "G"} | fields)
        texts = {name: str(value) for name, value in ext.items() if name != without}
        request = RemotingCommand(RequestCode.PULL_MESSAGE, ext=texts)
        items: list[Any] = [None]
        split_pulls(*turn([encode(request)]), items)
        plain = None if items[0] is None else self.requests.accept_plain(items[0])
        try:
            pull = self.requests.accept(request, CONNECTION)
        except BrokerError:
            assert plain is None, "what is refused is taken without being decoded"
            raise
        if plain is not None:
            assert plain == (pull.group, pull.count_max, pull.bytes_max, pull.tag_codes)
            assert pull.sql_filter is None
        return pull

    def refusal(self, topic: str = "T", **fields: Any) -> ResponseCode:
        with pytest.raises(BrokerError) as caught:
            self.accept(topic, **fields)
        return ResponseCode(caught.value.code)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with broker_stage(tmp_path) as broker:
        yield Stage(broker)


def test_a_pull_says_what_it_wants(stage: Stage) -> None:
    flags = PullSysFlag.SUBSCRIPTION | PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUSPEND
    pull = stage.accept(
        queue_id=1, sysFlag=int(flags), commitOffset=5, suspendTimeoutMillis=9, subscription="a||b"
    )
    assert (pull.topic, pull.queue_id, pull.first_offset, pull.queue_offset) == ("T", 1, 7, 7)
    assert (pull.commit_offset, pull.hold_ms) == (5, 9)
    assert (pull.tag_codes, pull.sql_filter) == (decode_tag_expression("a||b"), None)


def test_without_its_flags_a_pull_neither_commits_nor_waits(stage: Stage) -> None:
    pull = stage.accept(commitOffset=5, suspendTimeoutMillis=9)
    assert (pull.commit_offset, pull.hold_ms, pull.tag_codes) == (None, 0, None)


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        ({"maxMsgNums": 50}, (32, 262_144)),
        ({"maxMsgNums": 5}, (5, 262_144)),
        ({"maxMsgNums": 50, "maxMsgBytes": 7}, (50, 7)),
        ({"maxMsgNums": 5000, "maxMsgBytes": 1 << 30}, (100, 1 << 20)),
        ({"maxMsgNums": -1, "maxMsgBytes": -1}, (1, 1)),
    ],
)
def test_an_answer_has_limits(
    stage: Stage, fields: dict[str, Any], limits: tuple[int, int]
) -> None:
    pull = stage.accept(**fields)
    assert (pull.count_max, pull.bytes_max) == limits


@pytest.mark.parametrize(
    ("topic", "fields", "code"),
    [
        ("no such topic", {}, ResponseCode.TOPIC_NOT_EXIST),
        ("W", {}, ResponseCode.NO_PERMISSION),
        ("T", {"queue_id": 2}, ResponseCode.INVALID_PARAMETER),
        ("T", {"queue_id": -1}, ResponseCode.INVALID_PARAMETER),
        ("T", {"without": "queueOffset"}, ResponseCode.SYSTEM_ERROR),
        ("T", {"maxMsgNums": 1 << 31}, ResponseCode.SYSTEM_ERROR),
        (
            "T",
            {"subscription": "x" * (EXPRESSION_CHARACTERS_MAX + 1)},
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ),
        ("T", {"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
    ],
)
def test_what_a_pull_may_not_ask_for_is_refused(
    stage: Stage, topic: str, fields: dict[str, Any], code: ResponseCode
) -> None:
    assert stage.refusal(topic, **fields) == code


def test_a_group_that_may_not_consume_is_refused(stage: Stage) -> None:
    stage.groups.put(SubscriptionGroup(group_name="G", consume_enable=False))
    assert stage.refusal() == ResponseCode.NO_PERMISSION


def test_a_pull_without_its_own_text_wants_what_the_heartbeat_said(stage: Stage) -> None:
    stage.beat(Subscription("T", "a", sub_version=3))
    assert stage.accept(sysFlag=0, subVersion=3).tag_codes == decode_tag_expression("a")
    assert stage.refusal(sysFlag=0, subVersion=4) == ResponseCode.SUBSCRIPTION_NOT_LATEST
    stage.beat(Subscription("T", "n > 1", sub_version=4, expression_type="SQL92"))
    pull = stage.accept(sysFlag=0, subVersion=4)
    assert pull.tag_codes is None
    assert pull.sql_filter is not None


def test_a_group_is_asked_whether_it_may_broadcast(stage: Stage) -> None:
    stage.groups.put(SubscriptionGroup(group_name="G", consume_broadcast_enable=False))
    stage.beat(Subscription("T"), "BROADCASTING")
    assert stage.refusal(sysFlag=0) == ResponseCode.NO_PERMISSION
