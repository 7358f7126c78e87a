"""What producers are answered: which send gets which code, what is stored of it, and the limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from motelog.core.broker.tables.queue_locks import LOCK_MS
from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.codes import STORE_FULL, Language, RequestCode, ResponseCode
from motelog.core.remoting.frames import FLAG_ONEWAY, RemotingCommand, Serialize, encode
from motelog.core.remoting.server import Connection, answer_with
from motelog.core.topic_names import GATEWAY_GROUP
from tests.support.broker_stack import send_ext
from tests.support.broker_stage import BrokerStage, Client, broker_stage
from tests.support.send_requests import turn
from tests.support.stores import read_queue

OK = ResponseCode.SUCCESS
REFUSED = ResponseCode.SYSTEM_ERROR
ILLEGAL = ResponseCode.MESSAGE_ILLEGAL
DENIED = ResponseCode.NO_PERMISSION
V2 = RequestCode.SEND_MESSAGE_V2
BODY_BYTES_MAX = 1024


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[BrokerStage]:
    """Topic T with two queues, R that may only be read."""
    with broker_stage(tmp_path, message_bytes_max=BODY_BYTES_MAX) as broker:
        broker.topic("T", 2)
        broker.topic("R", 2, perm=4)
        yield broker


def batch_item(body: bytes, properties: bytes = b"") -> bytes:
    size = 20 + len(body) + 2 + len(properties)
    head = b"".join(number.to_bytes(4, "big") for number in (size, 0, 0, 0, len(body)))
    return head + body + len(properties).to_bytes(2, "big") + properties


def prop(name: str, value: str) -> str:
    return f"{name}\x01{value}\x02"


def stored(stage: BrokerStage, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    return read_queue(stage.store, topic, queue_id)


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        (send_ext("T"), OK),
        (send_ext("T", queue_id=1), OK),
        (send_ext("T", queue_id=-1), OK),  # the broker chooses
        (send_ext("T", queue_id=2), ResponseCode.INVALID_PARAMETER),
        (send_ext("New"), OK),
        (send_ext("New", c="no template"), ResponseCode.TOPIC_NOT_EXIST),
        (send_ext("bad name"), ResponseCode.INVALID_PARAMETER),
        (send_ext("R"), DENIED),
        (send_ext("SCHEDULE_TOPIC_XXXX"), DENIED),
        (send_ext("MQTT_SESSION"), DENIED),
        (send_ext("MQTT_SESSION", a=GATEWAY_GROUP), OK),
        (send_ext("SCHEDULE_TOPIC_XXXX", a=GATEWAY_GROUP), DENIED),
        (send_ext("MQTT_RETAINED"), DENIED),
        (send_ext("rmq_sys_motelog_timer"), DENIED),
        (send_ext("%DLQ%G"), ResponseCode.TOPIC_NOT_EXIST),
        (send_ext("T", f=4), DENIED),  # transactional by sysFlag
        (send_ext("T", f=8, properties=prop("TRAN_MSG", "false")), DENIED),
        (send_ext("T", properties=prop("TRAN_MSG", "true")), OK),
        (send_ext("T", properties=prop("TRAN_MSG", "true") + prop("DELAY", "1")), ILLEGAL),
        (send_ext("T", properties="zero\0"), ILLEGAL),
        (send_ext("T", properties=prop("long", "x" * 40_000)), ILLEGAL),
        (send_ext("T", properties=prop("DELAY", "1")), OK),
        (send_ext("T", properties=prop("TIMER_DELAY_SEC", "soon")), ILLEGAL),
        (send_ext("T", properties=prop("TIMER_DELAY_SEC", str(1 << 30))), ILLEGAL),
        ({name: value for name, value in send_ext("T").items() if name != "b"}, REFUSED),
        ({name: value for name, value in send_ext("T").items() if name != "g"}, REFUSED),
        (send_ext("T", e="first"), REFUSED),
        (send_ext("T", f=1 << 31), REFUSED),
        (send_ext("T", g=1 << 63), REFUSED),
    ],
)
@pytest.mark.parametrize("key", ["", prop("UNIQ_KEY", "K")], ids=["decoded", "plain"])
def test_a_send_has_its_code(
    stage: BrokerStage, ext: dict[str, Any], key: str, code: ResponseCode
) -> None:
    ext = ext | {"i": key + ext["i"]}
    before = stage.store.end_offset
    assert stage.code(V2, ext, b"body") == code
    assert (stage.store.end_offset > before) == (code == OK)


@pytest.mark.parametrize(
    ("body", "ext", "code"),
    [
        (batch_item(b"1") + batch_item(b"2"), send_ext("T"), OK),
        (b"", send_ext("T"), ILLEGAL),
        (batch_item(b"1")[:-1], send_ext("T"), REFUSED),
        (b"\xff" * 30, send_ext("T"), REFUSED),
        (batch_item(b"1"), send_ext("%RETRY%G"), ILLEGAL),
        (batch_item(b"1", b"DELAY\x011\x02"), send_ext("T"), ILLEGAL),
        (batch_item(b"1", b"TRAN_MSG\x01true\x02"), send_ext("T"), DENIED),
        (batch_item(b"1"), send_ext("T", properties=prop("DELAY", "1")), ILLEGAL),
        (batch_item(b"1"), send_ext("T", f=8), DENIED),
        (batch_item(b"x" * BODY_BYTES_MAX), send_ext("T"), ILLEGAL),
    ],
)
def test_a_batch_is_stored_as_a_whole_or_not_at_all(
    stage: BrokerStage, body: bytes, ext: dict[str, Any], code: ResponseCode
) -> None:
    assert stage.code(RequestCode.SEND_BATCH_MESSAGE, ext, body) == code
    # The same batch as the other two requests write it.
    assert stage.code(V2, ext | {"m": "true"}, body) == code
    expected = [b"1", b"2"] * 2 if code == OK else []
    assert [found.body for found in stored(stage, "T")] == expected


@pytest.mark.parametrize(
    "properties",
    [
        prop("UNIQ_KEY", "K"),
        "UNIQ_KEY\x01K",
        prop("UNIQ_KEY", "K") + prop("TAGS", "tag") + prop("KEYS", "a b") + prop("name", "中"),
        prop("UNIQ_KEY", "K") + prop("WAIT", "false") + "odd" + prop("", "x"),
    ],
)
@pytest.mark.parametrize("serialize", Serialize)
def test_a_plain_send_is_stored_and_answered_as_one_that_is_decoded(
    stage: BrokerStage, properties: str, serialize: Serialize
) -> None:
    ext = {k: str(v) for k, v in send_ext("T", properties=properties, h=3, j=2, f=1).items()}
    request = RemotingCommand(V2, 5, ext=ext, body=b"body", serialize=serialize)
    taken, decoded = Client(), Client()
    (item,) = stage._plain.split(*turn([encode(request)]), 1)
    assert item is not None
    stage.process(request, taken)
    processor = stage.processors.send.processors()[V2]
    answer_with(processor, request, cast("Connection", decoded))
    stage.processors.send.end_turn()
    first, second = stored(stage, "T")
    same = {
        name: (getattr(first, name), getattr(second, name))
        for name in ("body", "properties", "tags", "flag", "sys_flag", "reconsume_times")
    }
    assert all(one == other for one, other in same.values()), same
    assert taken.answers[0].ext | {"msgId": "", "queueOffset": ""} == (
        decoded.answers[0].ext | {"msgId": "", "queueOffset": ""}
    )
    units = stage.store.reader.units("T", 0, 0, 2)
    assert units[12:20] == units[32:40]


def test_three_requests_send(stage: BrokerStage) -> None:
    assert stage.processors.send.processors().keys() == {
        RequestCode.SEND_MESSAGE, V2, RequestCode.SEND_BATCH_MESSAGE,
    }  # fmt: skip


def test_a_body_has_a_limit(stage: BrokerStage) -> None:
    assert stage.code(V2, send_ext("T"), b"x" * BODY_BYTES_MAX) == OK
    answer = stage.ask(V2, send_ext("T"), b"x" * (BODY_BYTES_MAX + 1))
    assert (answer.code, answer.remark) == (
        ILLEGAL, f"the body has {BODY_BYTES_MAX + 1} bytes, the limit is {BODY_BYTES_MAX}",
    )  # fmt: skip


def test_a_queue_that_is_not_there_is_named(stage: BrokerStage) -> None:
    said = stage.ask(V2, send_ext("T", queue_id=9)).remark
    assert said == "queue id 9 is illegal: topic T has 2 queues, from 0 on"


def test_the_long_names_of_the_fields_mean_the_same(stage: BrokerStage) -> None:
    ext = {
        "producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
        "queueId": 1, "sysFlag": 0, "bornTimestamp": 7, "flag": 5, "properties": "",
    }  # fmt: skip
    answer = stage.ask(RequestCode.SEND_MESSAGE, ext, b"long")
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (OK, "1", "0")
    (found,) = stored(stage, "T", 1)
    assert (found.body, found.flag, found.born_timestamp_ms) == (b"long", 5, 7)


def test_the_broker_adds_where_a_message_has_been(stage: BrokerStage) -> None:
    stage.code(V2, send_ext("T", properties=prop("MSG_REGION", "elsewhere") + prop("k", "v")))
    (found,) = stored(stage, "T")
    assert found.properties["MSG_REGION"] == stage.shared.config.region
    assert (found.properties["k"], found.properties["TRACE_ON"]) == ("v", "true")


def test_a_turns_sends_are_one_append(stage: BrokerStage) -> None:
    client = Client()
    processor = stage.processors.send.processors()[V2]
    texts = {name: str(value) for name, value in send_ext("T").items()}
    for opaque, flag in ((1, 0), (2, FLAG_ONEWAY), (3, 0)):
        request = RemotingCommand(V2, opaque, flag, ext=texts, body=b"body")
        answer_with(processor, request, cast("Connection", client))
    assert (client.answers, stage.store.stats.put_messages) == ([], 0)
    stage.processors.send.end_turn()
    assert [(a.opaque, a.ext["queueOffset"]) for a in client.answers] == [(1, "0"), (3, "2")]
    assert stage.processors.send.messages_count == 3


def test_a_fenced_store_refuses_and_the_producer_tries_elsewhere(stage: BrokerStage) -> None:
    stage.store._fence("the disk says no")
    answer = stage.ask(V2, send_ext("T"))
    assert (answer.code, answer.remark) == (
        ResponseCode.SERVICE_NOT_AVAILABLE, "the disk says no",
    )  # fmt: skip
    assert stage.processors.send.answers.refused_count == 1


def test_only_so_many_sends_wait_for_the_disk(tmp_path: Path) -> None:
    with broker_stage(tmp_path, {"waiting_answers_max": 2}, flush="sync") as stage:
        client = Client()
        texts = {name: str(value) for name, value in send_ext("A").items()}
        for opaque in range(3):
            stage.process(RemotingCommand(V2, opaque, ext=texts), client)
        assert [(a.opaque, a.code) for a in client.answers] == [(2, ResponseCode.SYSTEM_BUSY)]
        assert stage.processors.send.answers.waiting_count == 2
        # A send that does not wait for the disk is not counted, but the limit holds for it too.
        assert stage.code(V2, send_ext("A", properties=prop("WAIT", "false"))) == (
            ResponseCode.SYSTEM_BUSY
        )


def test_a_delayed_message_waits_elsewhere_and_is_answered_as_sent(stage: BrokerStage) -> None:
    answer = stage.ask(V2, send_ext("T", queue_id=1, properties=prop("DELAY", "3")))
    assert (answer.code, answer.ext["queueId"]) == (OK, "1")
    (waiting,) = stored(stage, "SCHEDULE_TOPIC_XXXX", 2)
    assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("T", "1")
    assert stored(stage, "T", 1) == []


@pytest.mark.parametrize(("times", "topic"), [(2, "%RETRY%G"), (3, "%DLQ%G")])
def test_a_consumer_that_sends_for_itself_gives_up_at_last(
    stage: BrokerStage, times: int, topic: str
) -> None:
    stage.tables.groups.put(SubscriptionGroup(group_name="G", retry_max_times=2))
    assert stage.code(V2, send_ext("%RETRY%G", j=times), b"again") == OK
    assert [found.body for found in stored(stage, topic)] == [b"again"]
    assert stage.processors.send.dead_letters_count == (topic == "%DLQ%G")


V4_9_7, V5_0_0, V5_3_3 = 407, 413, 479


@pytest.mark.parametrize("is_orderly", [False, True])
@pytest.mark.parametrize(
    ("language", "version", "times", "is_dead"),
    [
        # What they send of a message that they give up in order.
        (Language.JAVA, V4_9_7, 2, True),
        (Language.JAVA, V5_0_0, 2, False),
        (Language.JAVA, V5_3_3, 3, True),
        # Only Java's clients have versions of their servers.
        (Language.GO, V4_9_7, 2, False),
        (Language.JAVA, V4_9_7, 1, False),
        (Language.JAVA, V5_3_3, 2, False),
    ],
)
def test_a_message_given_up_in_order_is_a_dead_letter_at_the_client_s_count(
    stage: BrokerStage,
    language: Language,
    version: int,
    times: int,
    is_dead: bool,
    is_orderly: bool,
) -> None:
    stage.tables.groups.put(SubscriptionGroup(group_name="G", retry_max_times=9))
    if is_orderly:
        queue = {"topic": "T", "brokerName": "b", "queueId": 0}
        locked = {"consumerGroup": "G", "clientId": "c", "mqSet": [queue]}
        assert stage.code(RequestCode.LOCK_BATCH_MQ, body=locked) == OK
    ext = send_ext("%RETRY%G", j=times, l=2)
    assert stage.ask(V2, ext, b"again", language=language, version=version).code == OK
    assert len(stored(stage, "%DLQ%G")) == (is_dead or is_orderly)
    assert len(stored(stage, "%RETRY%G")) == (not is_dead and not is_orderly)
    # A group of which nobody holds a lock any more consumes as others do.
    stage.clock.advance(LOCK_MS)
    assert stage.code(V2, send_ext("%RETRY%G", j=2, l=2)) == OK
    assert len(stored(stage, "%RETRY%G")) == 1 + (not is_dead and not is_orderly)


def test_state_of_sessions_is_taken_while_the_disk_is_full(stage: BrokerStage) -> None:
    assert stage.code(V2, send_ext("MQTT_SESSION", a=GATEWAY_GROUP), b"before") == OK
    stage.store.disk_watch.full_reason = "disk 91 % full"
    client = Client()
    process = stage.processors.by_code()[V2]
    for opaque, ext in enumerate(
        (send_ext("T"), send_ext("MQTT_SESSION", a=GATEWAY_GROUP), send_ext("T", queue_id=1))
    ):
        request = RemotingCommand(V2, opaque=opaque, ext=ext, body=b"%d" % opaque)
        answer_with(process, request, cast("Connection", client))
    stage.processors.send.end_turn()
    codes = {answer.opaque: answer.code for answer in client.answers}
    unavailable = ResponseCode.SERVICE_NOT_AVAILABLE
    assert codes == {0: unavailable, 1: OK, 2: unavailable}
    assert all((STORE_FULL in a.ext) == (a.code != OK) for a in client.answers)
    assert [one.body for one in stored(stage, "MQTT_SESSION")] == [b"before", b"1"]
    assert stored(stage, "T") == []
