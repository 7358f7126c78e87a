"""What consumers that send a message back are answered: codes, its new place, and the last time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.remoting.codes import RequestCode, ResponseCode
from tests.support.broker_stack import send_ext
from tests.support.broker_stage import BrokerStage, broker_stage
from tests.support.stores import read_bodies, read_queue

OK = ResponseCode.SUCCESS
REFUSED = ResponseCode.SYSTEM_ERROR
BACK = RequestCode.CONSUMER_SEND_MSG_BACK
LEVELS = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[BrokerStage]:
    """One message of topic T, at 0, and group G."""
    with broker_stage(tmp_path) as broker:
        broker.topic("T", 1)
        broker.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"failed")
        broker.tables.groups.put(SubscriptionGroup(group_name="G", retry_max_times=2))
        yield broker


def back(**fields: Any) -> dict[str, Any]:
    return {"group": "G", "offset": 0} | fields


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        (back(), OK),
        (back(delayLevel=5), OK),
        (back(delayLevel=-1), OK),
        (back(group="new"), OK),
        (back(group="bad name"), REFUSED),
        (back(offset=4), REFUSED),
        (back(offset=1 << 40), REFUSED),
        (back(offset=-1), REFUSED),
        (back(delayLevel="x"), REFUSED),
        (back(maxReconsumeTimes="x"), REFUSED),
        ({"group": "G"}, REFUSED),
        ({"offset": 0}, REFUSED),
    ],
)
def test_a_message_sent_back_has_its_code(
    stage: BrokerStage, ext: dict[str, Any], code: ResponseCode
) -> None:
    before = stage.store.end_offset
    assert stage.code(BACK, ext) == code
    assert (stage.store.end_offset > before) == (code == OK)


@pytest.mark.parametrize(
    ("fields", "queue"),
    [
        ({}, (LEVELS, 2)),  # level 3 at the first time
        ({"delayLevel": 5}, (LEVELS, 4)),
        ({"delayLevel": -1}, ("%DLQ%G", 0)),
        ({"maxReconsumeTimes": 0}, ("%DLQ%G", 0)),
        ({"maxReconsumeTimes": -1}, (LEVELS, 2)),  # as the group says
    ],
)
def test_it_waits_or_becomes_a_dead_letter(
    stage: BrokerStage, fields: dict[str, Any], queue: tuple[str, int]
) -> None:
    assert stage.code(BACK, back(**fields)) == OK
    assert read_bodies(stage.store) == {("T", 0): [b"failed"], queue: [b"failed"]}
    (found,) = read_queue(stage.store, *queue)
    assert (found.properties["RETRY_TOPIC"], found.reconsume_times) == ("T", 1)
    assert stage.processors.send.dead_letters_count == (queue[0] == "%DLQ%G")


def test_a_group_without_retry_queues_gets_nothing_back(stage: BrokerStage) -> None:
    stage.tables.groups.put(SubscriptionGroup(group_name="G", retry_queue_nums=0))
    end_offset = stage.store.end_offset
    assert stage.code(BACK, back()) == OK
    assert stage.store.end_offset == end_offset


def test_what_waits_cannot_be_sent_back(stage: BrokerStage) -> None:
    end_offset = stage.store.end_offset
    stage.ask(BACK, back())
    assert stage.code(BACK, back(offset=end_offset)) == ResponseCode.NO_PERMISSION


def test_a_retry_topic_that_is_closed_takes_nothing(stage: BrokerStage) -> None:
    stage.topic("%RETRY%G", 1, perm=4)
    assert stage.code(BACK, back()) == ResponseCode.NO_PERMISSION


def test_what_was_sent_back_is_counted(stage: BrokerStage) -> None:
    stage.ask(BACK, back())
    stage.stats.tick()
    found = stage.stats.find("SNDBCK_PUT_NUMS", "T@G")
    assert found is not None
    assert found.minute.sum == 1
