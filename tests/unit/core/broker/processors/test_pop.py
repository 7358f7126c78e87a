"""What pops, acknowledgements and changes of the invisible time are answered."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.broker.pop.checkpoints import Checkpoint
from motelog.core.broker.pop.records import encode_ack, encode_checkpoint
from motelog.core.broker.pop.state import REVIVE_GROUP
from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.message import decode_properties, encode_properties
from motelog.core.records.append import AppendMessage
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.frames import RemotingCommand
from motelog.core.remoting.pop_fields import decode_receipt
from motelog.core.store.message_store import MessageStore
from tests.support.broker_stack import pop_ext, send_ext
from tests.support.broker_stage import BrokerStage, Client, broker_stage
from tests.support.popping import Popped, ack_ext, receipt_of_change, with_receipts
from tests.support.popping import pop_messages as pop
from tests.support.stores import STORE_HOST, read_queue

OK = ResponseCode.SUCCESS
POP = RequestCode.POP_MESSAGE
ACK = RequestCode.ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
BATCH_ACK = RequestCode.BATCH_ACK_MESSAGE
NOTIFICATION = RequestCode.NOTIFICATION
PEEK = RequestCode.PEEK_MESSAGE
INVALID = ResponseCode.INVALID_PARAMETER
NOTHING = ResponseCode.POLLING_TIMEOUT
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[BrokerStage]:
    """Topic T of one queue, empty, and group G."""
    with broker_stage(tmp_path, {"offset_entries_max": 100}) as broker:
        broker.topic("T", 1)
        broker.tables.groups.put(SubscriptionGroup(group_name="G", retry_max_times=2))
        yield broker


def send(stage: BrokerStage, *bodies: bytes, topic: str = "T", **fields: Any) -> None:
    for body in bodies:
        answer = stage.ask(RequestCode.SEND_MESSAGE_V2, send_ext(topic, **fields), body)
        assert answer.code == OK, answer.remark


def bodies(found: list[Popped]) -> list[bytes]:
    return [message.body for message, _ in found]


def pass_time(stage: BrokerStage, ms: int) -> None:
    """Let time pass, and have come again what is due by then."""
    stage.clock.advance(ms)
    trio.run(stage.processors.pop_service.revive)
    stage.processors.pop.held.wake_grown()
    stage.processors.end_turn()


def test_a_popped_message_is_invisible_until_its_time_is_over(stage: BrokerStage) -> None:
    send(stage, b"1", b"2")
    assert bodies(pop(stage, invisibleTime=1000)) == [b"1", b"2"]
    pass_time(stage, 999)
    assert pop(stage) == []
    pass_time(stage, 1)
    again = pop(stage)
    assert bodies(again) == [b"1", b"2"]
    assert [message.reconsume_times for message, _ in again] == [1, 1]
    assert {message.topic for message, _ in again} == {"T"}
    assert {message.properties["RETRY_TOPIC"] for message, _ in again} == {"T"}


def test_on_a_full_disk_messages_wait_and_one_line_says_so(
    stage: BrokerStage, caplog: pytest.LogCaptureFixture
) -> None:
    send(stage, b"1")
    assert bodies(pop(stage, invisibleTime=1000)) == [b"1"]
    stage.store.disk_watch.full_reason = "the disk is full"
    for _ in range(3):
        pass_time(stage, 10_000)
    assert caplog.text.count("are delivered again later than usual") == 1
    stage.store.disk_watch.full_reason = None
    pass_time(stage, 10_000)
    assert bodies(pop(stage)) == [b"1"]


def test_what_is_acknowledged_does_not_come_again(stage: BrokerStage) -> None:
    send(stage, b"1", b"2", b"3")
    one, two, _ = pop(stage, invisibleTime=1000)
    assert stage.code(ACK, ack_ext(*one)) == OK
    assert stage.code(ACK, ack_ext(*two)) == OK
    pass_time(stage, 1000)
    (again,) = pop(stage, invisibleTime=1000)
    assert again[0].body == b"3"
    assert stage.code(ACK, ack_ext(*again)) == OK
    pass_time(stage, 1000)
    assert pop(stage) == []
    assert stage.processors.pop_service.checkpoints.open_count == 0


def test_the_time_of_a_message_can_be_changed(stage: BrokerStage) -> None:
    send(stage, b"1")
    ((message, receipt),) = pop(stage, invisibleTime=1000)
    stage.clock.advance(500)
    answer = stage.ask(CHANGE, ack_ext(message, receipt, invisibleTime=2000))
    assert answer.code == OK
    pass_time(stage, 1999)
    assert pop(stage) == []
    # The receipt that it had is void: an acknowledgement by it does nothing.
    assert stage.code(ACK, ack_ext(message, receipt)) == OK
    new = receipt_of_change(receipt, message, answer)
    assert stage.code(CHANGE, ack_ext(message, new, invisibleTime=0)) == OK
    pass_time(stage, 0)
    assert bodies(pop(stage)) == [b"1"]


def test_a_message_that_nobody_acknowledges_becomes_a_dead_letter(stage: BrokerStage) -> None:
    send(stage, b"poison")
    for times in range(3):
        ((message, _),) = pop(stage, invisibleTime=1000)
        assert message.reconsume_times == times
        pass_time(stage, 1000)
    assert pop(stage) == []
    (letter,) = read_queue(stage.store, "%DLQ%G", 0)
    assert (letter.body, letter.properties["RETRY_TOPIC"]) == (b"poison", "T")
    assert stage.processors.pop_service.dead_letters_count == 1


@pytest.mark.parametrize("is_v2", [False, True])
def test_what_comes_again_goes_with_its_topic(tmp_path: Path, is_v2: bool) -> None:
    with broker_stage(tmp_path, {"offset_entries_max": 100, "pop_retry_topic_v2": is_v2}) as stage:
        stage.topic("T", 1)
        stage.topic("U", 1)
        again = [f"%RETRY%G{'+' if is_v2 else '_'}{topic}" for topic in ("T", "U")]
        for topic in ("T", "U"):
            send(stage, b"1", topic=topic)
            assert bodies(pop(stage, topic=topic, invisibleTime=1000)) == [b"1"]
        pass_time(stage, 1000)
        assert all(stage.tables.topics.get(topic) for topic in again)
        # One comes again at the retry topic's end, and one is in work as the topic goes.
        assert bodies(pop(stage, topic="T", invisibleTime=1000)) == [b"1"]
        send(stage, b"2", topic="T")
        assert bodies(pop(stage, topic="T", invisibleTime=1000)) == [b"2"]
        assert stage.code(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}) == OK
        pass_time(stage, 1000)
        assert [stage.tables.topics.get(topic) is None for topic in again] == [True, False]
        assert stage.tables.offsets.query("G", again[0], 0) is None
        stage.topic("T", 1)
        assert pop(stage, topic="T") == []
        assert bodies(pop(stage, topic="U")) == [b"1"]


def test_several_are_acknowledged_in_one_request(stage: BrokerStage) -> None:
    send(stage, b"1", b"2", b"3")
    found = pop(stage, invisibleTime=1000)
    receipt = decode_receipt(found[0][1])
    batch = {
        "c": "G",
        "t": "T",
        "r": "0",
        "so": receipt.begin_offset,
        "q": 0,
        "rq": receipt.revive_queue,
        "pt": receipt.pop_time_ms,
        "it": receipt.invisible_ms,
        "b": base64.b64encode(b"\x05").decode(),
    }
    assert stage.code(BATCH_ACK, body={"brokerName": "broker-a", "acks": [batch]}) == OK
    pass_time(stage, 1000)
    assert bodies(pop(stage)) == [b"2"]


def test_a_pop_waits_and_one_message_wakes_one(stage: BrokerStage) -> None:
    clients = [Client(), Client()]
    for client in clients:
        ext = {name: str(value) for name, value in pop_ext("T", pollTime=15_000).items()}
        stage.process(RemotingCommand(POP, ext=ext), client)
    assert stage.ask(RequestCode.POLLING_INFO, pop_ext("T")).ext["pollingNum"] == "2"
    send(stage, b"1")
    stage.processors.pop.held.wake_grown()
    stage.processors.end_turn()
    assert [[a.code for a in client.answers] for client in clients] == [[OK], []]
    stage.clock.advance(15_100)
    stage.processors.pop.held.requests.end_due(stage.clock.monotonic_ms())
    assert [a.code for a in clients[1].answers] == [NOTHING]
    assert not stage.processors.pop.held.awaited


def test_a_retry_wakes_a_pop_that_waits(stage: BrokerStage) -> None:
    send(stage, b"1")
    pop(stage, invisibleTime=1000)
    client = Client()
    ext = {name: str(value) for name, value in pop_ext("T", pollTime=15_000).items()}
    stage.process(RemotingCommand(POP, ext=ext), client)
    pass_time(stage, 1000)
    assert bodies(with_receipts(client.answers[0])) == [b"1"]


def test_a_closed_connection_is_not_waited_for(stage: BrokerStage) -> None:
    client = Client()
    ext = {name: str(value) for name, value in pop_ext("T", pollTime=15_000).items()}
    stage.process(RemotingCommand(POP, ext=ext), client)
    stage.processors.pop.held.connection_closed(client)  # type: ignore[arg-type]  # a stand-in
    assert not stage.processors.pop.held.awaited
    send(stage, b"1")
    stage.processors.pop.held.wake_grown()
    assert bodies(pop(stage)) == [b"1"]


def test_filters_choose_what_is_popped(stage: BrokerStage) -> None:
    for tag in ("a", "b", "a"):
        send(stage, tag.encode(), properties=f"TAGS\x01{tag}\x02n\x01{len(tag)}\x02")
    assert bodies(pop(stage, exp="a", expType="TAG")) == [b"a", b"a"]
    found = pop(stage, group="G2", exp="TAGS = 'b' AND n = 1", expType="SQL92")
    assert bodies(found) == [b"b"]
    # Retries are filtered as well, and the group has gone on behind what it refused.
    assert pop(stage, exp="*") == []


def test_in_order_a_queue_is_blocked_until_all_is_acknowledged(stage: BrokerStage) -> None:
    send(stage, b"1", b"2", b"3")
    one, two = pop(stage, order="true", maxMsgNums=2, invisibleTime=1000)
    assert decode_receipt(one[1]).is_order
    assert pop(stage, order="true") == []
    assert stage.code(ACK, ack_ext(*one)) == OK
    assert pop(stage, order="true") == []
    pass_time(stage, 1000)
    # What was not acknowledged comes again, in its place.
    answer = stage.ask(POP, pop_ext("T", order="true", maxMsgNums=2, attemptId="x"))
    found = with_receipts(answer)
    assert bodies(found) == [b"2", b"3"]
    assert answer.ext["orderCountInfo"] == "0 qo0%1 1;0 0 0"
    # The same attempt gets the same: its answer may have been lost.
    assert bodies(pop(stage, order="true", maxMsgNums=2, attemptId="x")) == [b"2", b"3"]
    # The receipt of the pop before is void.
    assert stage.code(ACK, ack_ext(*two)) == OK
    assert stage.tables.offsets.query("G", "T", 0) == 1


def test_in_order_the_last_acknowledgement_wakes(stage: BrokerStage) -> None:
    send(stage, b"1", b"2")
    (one,) = pop(stage, order="true", maxMsgNums=1)
    client = Client()
    ext = pop_ext("T", order="true", maxMsgNums=1, pollTime=15_000)
    stage.process(RemotingCommand(POP, ext={k: str(v) for k, v in ext.items()}), client)
    assert client.answers == []
    assert stage.code(ACK, ack_ext(*one)) == OK
    stage.processors.pop.held.wake_grown()
    assert bodies(with_receipts(client.answers[0])) == [b"2"]


def test_in_order_a_message_can_be_put_off(stage: BrokerStage) -> None:
    send(stage, b"1")
    (one,) = pop(stage, order="true", invisibleTime=1000)
    assert stage.code(CHANGE, ack_ext(*one, invisibleTime=5000)) == OK
    pass_time(stage, 4999)
    assert pop(stage, order="true") == []
    pass_time(stage, 1)
    assert bodies(pop(stage, order="true")) == [b"1"]


def test_a_notice_says_whether_there_is_anything(stage: BrokerStage) -> None:
    assert stage.ask(NOTIFICATION, pop_ext("T")).ext["hasMsg"] == "false"
    client = Client()
    ext = {name: str(value) for name, value in pop_ext("T", pollTime=15_000).items()}
    stage.process(RemotingCommand(NOTIFICATION, ext=ext), client)
    assert client.answers == []
    send(stage, b"1")
    stage.processors.pop.held.wake_grown()
    assert client.answers[0].ext["hasMsg"] == "true"
    pop(stage)
    assert stage.ask(NOTIFICATION, pop_ext("T")).ext["hasMsg"] == "false"


def test_a_peek_takes_nothing(stage: BrokerStage) -> None:
    assert stage.code(PEEK, pop_ext("T")) == ResponseCode.PULL_NOT_FOUND
    send(stage, b"1")
    for _ in range(2):
        answer = stage.ask(PEEK, pop_ext("T"))
        assert [message.body for message in decode_messages(answer.body)] == [b"1"]
    assert bodies(pop(stage)) == [b"1"]


@pytest.mark.parametrize(("mode", "first"), [(0, b"1"), (1, b"1")])
def test_a_new_group_on_a_young_queue_begins_at_its_first_message(
    stage: BrokerStage, mode: int, first: bytes
) -> None:
    send(stage, b"1", b"2")
    assert bodies(pop(stage, initMode=mode, maxMsgNums=1)) == [first]


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        (pop_ext("T", maxMsgNums=33), INVALID),
        (pop_ext("T", maxMsgNums=0), NOTHING),
        (pop_ext("T", queueId=1), INVALID),
        (pop_ext("none"), ResponseCode.TOPIC_NOT_EXIST),
        (pop_ext(REVIVE), ResponseCode.NO_PERMISSION),
        (pop_ext("T", group="bad name"), ResponseCode.SYSTEM_ERROR),
        (pop_ext("T", invisibleTime=-1), INVALID),
        (pop_ext("T", invisibleTime=3 * 86_400_000 + 1), INVALID),
        (pop_ext("T", invisibleTime="x"), ResponseCode.SYSTEM_ERROR),
        (pop_ext("T", attemptId="x" * 256), INVALID),
        (pop_ext("T", exp="x" * 65_537), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        (pop_ext("A", group="g" * 248), INVALID),
        ({}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_bad_pop_has_its_code(
    stage: BrokerStage, ext: dict[str, Any], code: ResponseCode
) -> None:
    assert stage.code(POP, ext) == code


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, OK),
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 1}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 1}, ResponseCode.NO_MESSAGE),
        ({"offset": -1}, ResponseCode.NO_MESSAGE),
        ({"extraInfo": ""}, INVALID),
        ({"extraInfo": "0 " * 400}, INVALID),
        ({"extraInfo": "0 0 0 0 9 b 0 0"}, INVALID),
        ({"extraInfo": f"{'9' * 4000} 0 0 0 0 b 0 0"}, INVALID),
        ({"extraInfo": f"{1 << 64} 0 0 0 0 b 0 0"}, INVALID),
        # Of no pop at all: it is done with as far as we know.
        ({"extraInfo": "7 7 7 7 0 b 0 0"}, OK),
        ({"extraInfo": "0 0 0 999 0 b 0 0"}, OK),
    ],
)
def test_a_bad_acknowledgement_has_its_code_and_changes_nothing(
    stage: BrokerStage, change: dict[str, Any], code: ResponseCode
) -> None:
    send(stage, b"1")
    (found,) = pop(stage)
    before = stage.store.end_offset
    assert stage.code(ACK, ack_ext(*found) | change) == code
    assert (stage.store.end_offset > before) == (not change)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, ResponseCode.NO_MESSAGE),
        ({"acks": []}, ResponseCode.NO_MESSAGE),
        ({"acks": [{"c": "G"}]}, ResponseCode.SYSTEM_ERROR),
        (b"x", ResponseCode.SYSTEM_ERROR),
        (
            {"acks": [{"c": "G", "t": "T", "so": 0, "q": 0, "rq": 0, "pt": 0, "b": "!"}]},
            INVALID,
        ),
        (
            {"acks": [{"c": "G", "t": "T", "so": 0, "q": 0, "rq": 999, "pt": 0, "b": "/" * 9996}]},
            OK,
        ),
    ],
)
def test_a_bad_batch_of_acknowledgements_has_its_code(
    stage: BrokerStage, body: Any, code: ResponseCode
) -> None:
    assert stage.code(BATCH_ACK, body=body) == code


def test_a_group_gets_no_more_of_a_queue_than_it_may_have_in_work(tmp_path: Path) -> None:
    limits = {"pop_in_work_per_queue_max": 2, "pop_in_work_max": 3}
    with broker_stage(tmp_path, limits) as stage:
        stage.topic("T", 1)
        send(stage, b"1", b"2", b"3", b"4")
        first = pop(stage, maxMsgNums=2)
        assert len(first) == 2
        client = Client()
        ext = {name: str(value) for name, value in pop_ext("T", pollTime=15_000).items()}
        stage.process(RemotingCommand(POP, ext=ext), client)
        assert client.answers == []
        # An acknowledgement makes room, and wakes who waits.
        assert stage.code(ACK, ack_ext(*first[0])) == OK
        stage.processors.pop.held.wake_grown()
        stage.processors.end_turn()
        assert bodies(with_receipts(client.answers[0])) == [b"3", b"4"]
        assert stage.code(POP, pop_ext("T")) == ResponseCode.SYSTEM_BUSY


def test_after_a_restart_what_was_in_work_still_is(tmp_path: Path) -> None:
    """The process is gone before it saved anything; the log tells what was in work."""
    with broker_stage(tmp_path, {"offset_entries_max": 100}) as stage:
        stage.topic("T", 1)
        send(stage, b"1", b"2", b"3")
        one, *_ = pop(stage, invisibleTime=1000)
        assert stage.code(ACK, ack_ext(*one)) == OK
        now_ms = stage.clock.now_ms()
    with broker_stage(tmp_path, {"offset_entries_max": 100}) as stage:
        stage.topic("T", 1)
        stage.tables.groups.put(SubscriptionGroup(group_name="G"))
        stage.pop_state.load()
        assert stage.clock.now_ms() == now_ms
        send(stage, b"4")
        assert bodies(pop(stage)) == [b"4"]
        pass_time(stage, 1000)
        assert bodies(pop(stage)) == [b"2", b"3"]


async def make_durable(store: MessageStore) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.wait_durable(store.end_offset)
        nursery.cancel_scope.cancel()


def timer_record(
    stage: BrokerStage, record: AppendMessage, due_ms: int, *, topic: str = REVIVE
) -> AppendMessage:
    """Return a record of the revive topic as RocketMQ's timer keeps it until it is due."""
    tail = stage.tail("rmq_sys_wheel_timer", 0)
    properties = record[2]
    pairs = decode_properties(properties)
    pairs |= {"REAL_TOPIC": topic, "REAL_QID": "3", "TIMER_OUT_MS": str(due_ms)}
    return (tail, record[1], encode_properties(pairs), *record[3:])


def test_what_waits_in_rocketmq_s_timer_is_taken_over_once(tmp_path: Path) -> None:
    """RocketMQ has popped six messages; what is due before 5,000 was in its revive topic."""
    made = [
        Checkpoint(
            ("T", "G", 0), at, (at,), pop_time_ms=at, invisible_ms=10_000 - at, revive_queue=3
        )
        for at in range(6)
    ]
    with broker_stage(tmp_path, {"offset_entries_max": 100}) as stage:
        stage.topic("T", 1)
        send(stage, *(b"%d" % at for at in range(6)))
        revive = stage.tail(REVIVE, 3)
        checks = [encode_checkpoint(revive, one, "b", STORE_HOST, 0) for one in made]
        acks = [encode_ack(revive, one, [at], "b", STORE_HOST, 0) for at, one in enumerate(made)]
        # 0 and 1 are in the revive topic, and 1 is acknowledged in the timer; so is 3.
        stage.store.append(checks[:2])
        timed = [
            timer_record(stage, checks[0], 4_999),
            timer_record(stage, checks[1], 4_999),
            timer_record(stage, acks[1], 5_000),
            timer_record(stage, checks[2], 5_000),
            timer_record(stage, checks[3], 9_000),
            timer_record(stage, acks[3], 9_000),
            timer_record(stage, checks[4], 4_999),  # was revived, and its record is gone
            timer_record(stage, checks[5], 9_000, topic="T"),  # an application's own
        ]
        stage.store.append(timed)
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "timercheck").write_bytes((5_000).to_bytes(8, "big") + bytes(4088))
    saved: dict[str, Any] = {}
    for found, rest in ([b"0", b"2"], [b"4", b"5"]), ([], []):
        with broker_stage(tmp_path, {"offset_entries_max": 100}) as stage:
            stage.topic("T", 1)
            stage.tables.groups.put(SubscriptionGroup(group_name="G"))
            stage.tables.offsets.load(saved)
            stage.pop_state.load()
            # Behind the last that was popped, which is 3.
            assert stage.tables.offsets.query("G", "T", 0) == (4 if found else 6)
            service = stage.processors.pop_service
            # The second life knows what the first has given out.
            assert service.checkpoints.open_count == (len(found) or 4)
            service.checkpoints._check()
            service.keep()
            assert not service.checkpoints.has_adopted
            pass_time(stage, 10_000)
            again = [body for _ in range(2) for body in bodies(pop(stage))]
            assert sorted(again) == [*found, *rest]
            trio.run(make_durable, stage.store)
            service.keep()
            assert stage.pop_state.timer_taken is None
            saved = stage.tables.offsets.snapshot()
            assert saved["offsetTable"]["rmq_sys_wheel_timer@" + REVIVE_GROUP] == {0: 7}


def test_a_second_restart_does_not_set_a_group_back(tmp_path: Path) -> None:
    """What a start has learned from the log is not taken for news by the next one."""
    saved: dict[str, Any] = {}
    # Pops take turns in eight revive queues: each gets a mark, which is saved.
    for first, count in ((0, 8), (8, 2), (10, 1), (11, 1)):
        with broker_stage(tmp_path, {"offset_entries_max": 100}) as stage:
            stage.topic("T", 1)
            stage.tables.groups.put(SubscriptionGroup(group_name="G"))
            stage.tables.offsets.load(saved)
            stage.pop_state.load()
            for number in range(first, first + count):
                send(stage, b"%d" % number)
                (one,) = pop(stage)
                assert one[0].body == b"%d" % number
                # One stays in work, so that its checkpoint is read by each start.
                assert number == 9 or stage.code(ACK, ack_ext(*one)) == OK
            service = stage.processors.pop_service
            service.progress.commit(stage.store.end_offset)
            for queue, last in enumerate(service.checkpoints.done_with()):
                if last >= 0:
                    stage.tables.offsets.commit(REVIVE_GROUP, REVIVE, queue, last)
            if first != 8:  # killed before it saved
                saved = stage.tables.offsets.snapshot()


def test_a_pop_of_a_light_queue_tells_where_its_messages_are_in_their_own(tmp_path: Path) -> None:
    with broker_stage(tmp_path, lmq=True) as light:
        light.topic("T", 1)
        send(light, b"1", b"2")
        send(light, b"3", b"4", properties="INNER_MULTI_DISPATCH\x01%LMQ%a\x02")
        told = light.ask(POP, pop_ext("%LMQ%a", queueId=0)).ext
        assert (told["startOffsetInfo"], told["msgOffsetInfo"]) == ("0 0 0", "0 0 2,3")
