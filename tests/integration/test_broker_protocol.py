"""The broker over real sockets: sends, pulls, holds, offsets, groups, with both header forms."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.message import string_hash
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import (
    FLAG_ONEWAY,
    Language,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Serialize,
    encode_batch_items,
    loads,
)
from motelog.core.store.config import StoreConfig
from motelog.core.store.disk.files import OsStorage
from tests.support.broker_stack import (
    TIMEOUT_S,
    Peer,
    Stack,
    connected,
    eventually,
    json_body,
    pull_ext,
    routed,
    send_ext,
    started_stack,
    store_config,
)

BOTH = pytest.mark.parametrize("serialize", list(Serialize))
FLUSH = pytest.mark.parametrize("flush", ["async", "sync"])


async def send(peer: Peer, topic: str, body: bytes = b"x", **fields: Any) -> RemotingCommand:
    answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(topic, **fields), body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


async def pull(peer: Peer, topic: str, queue_offset: int, **fields: Any) -> RemotingCommand:
    return await peer.ask(RequestCode.PULL_MESSAGE, pull_ext(topic, queue_offset, **fields))


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_messages(answer.body)]


@BOTH
@FLUSH
async def test_send_and_pull(tmp_path: Path, serialize: Serialize, flush: Any) -> None:
    properties = "UNIQ_KEY\x010A\x02WAIT\x01true\x02TAGS\x01blue"
    async with (
        started_stack(tmp_path, flush=flush) as stack,
        connected(stack.broker_address, serialize) as peer,
    ):
        answer = await send(peer, "T", b"hello", queue_id=2, properties=properties, j=3, h=7)
        assert answer.serialize is serialize
        assert answer.ext.pop("msgId") == "7F000001" + f"{stack.broker.address[1]:08X}" + "0" * 16
        assert answer.ext == {
            "queueId": "2",
            "queueOffset": "0",
            "transactionId": "0A",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        answer = await pull(peer, "T", 0, queue_id=2)
        assert answer.ext == {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "1",
            "minOffset": "0",
            "maxOffset": "1",
        }
        (message,) = decode_messages(answer.body)
        assert (message.topic, message.queue_id, message.body) == ("T", 2, b"hello")
        assert (message.reconsume_times, message.flag) == (3, 7)
        assert message.properties == {
            "UNIQ_KEY": "0A",
            "WAIT": "true",
            "TAGS": "blue",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }
        assert message.born_host[0] == "127.0.0.1"


async def test_sends_of_one_moment_are_answered_each_and_in_order(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        offsets: dict[int, int] = {}

        async def one(number: int) -> None:
            answer = await send(peer, "T", b"%d" % number)
            offsets[number] = int(answer.ext["queueOffset"])

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(one, number)
        stored: list[bytes] = []
        while len(stored) < 200:
            stored += bodies(await pull(peer, "T", len(stored)))
        assert sorted(offsets.values()) == list(range(200))
        assert all(stored[offset] == b"%d" % number for number, offset in offsets.items())


@BOTH
async def test_code_10_takes_full_names_and_batches_marked_by_one(
    tmp_path: Path, serialize: Serialize
) -> None:
    ext = {
        "producerGroup": "P",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 2,
        "queueId": 1,
        "sysFlag": 0,
        "bornTimestamp": 5,
        "flag": 0,
        "properties": "",
    }
    items = encode_batch_items([(0, b"one", b""), (0, b"two", b"TAGS\x01A")])
    async with (
        started_stack(tmp_path) as stack,
        connected(stack.broker_address, serialize) as peer,
    ):
        answer = await peer.ask(RequestCode.SEND_MESSAGE, ext, b"zero")
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("1", "0")
        answer = await peer.ask(RequestCode.SEND_MESSAGE, {**ext, "batch": "1"}, items)
        assert answer.ext["queueOffset"] == "1"
        answer = await pull(peer, "T", 0, queue_id=1)
        assert bodies(answer) == [b"zero", b"one", b"two"]
        assert stack.broker.api.topic_queue_count("T") == 2


@FLUSH
async def test_batch_is_placed_in_a_row_and_each_message_keeps_its_tag(
    tmp_path: Path, flush: Any
) -> None:
    items = [(i, b"m%d" % i, b"TAGS\x01%d\x02" % (i % 2)) for i in range(6)]
    async with (
        started_stack(tmp_path, flush=flush) as stack,
        connected(stack.broker_address) as peer,
    ):
        answer = await peer.ask(
            RequestCode.SEND_BATCH_MESSAGE,
            send_ext("T", m="true", properties="UNIQ_KEY\x01AB\x02"),
            encode_batch_items(items),
        )
        assert answer.ext["queueOffset"] == "0"
        assert answer.ext["transactionId"] == "AB"
        assert len(answer.ext["msgId"].split(",")) == 6
        answer = await pull(peer, "T", 0, subscription="1 || 7")
        messages = decode_messages(answer.body)
        assert [m.body for m in messages] == [b"m1", b"m3", b"m5"]
        assert [m.flag for m in messages] == [1, 3, 5]
        assert answer.ext["nextBeginOffset"] == "6"


async def test_queue_minus_one_spreads_over_the_queues(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        queues = [int((await send(peer, "T", queue_id=-1)).ext["queueId"]) for _ in range(8)]
        assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_oneway_send_is_stored_and_not_answered(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await peer.client.send_oneway(
            RemotingCommand(
                RequestCode.SEND_MESSAGE_V2,
                ext={k: str(v) for k, v in send_ext("T").items()},
                body=b"oneway",
            ),
            timeout_s=TIMEOUT_S,
        )
        # One connection's requests are handled in order, so this one comes after.
        await send(peer, "T", b"asked")
        assert bodies(await pull(peer, "T", 0)) == [b"oneway", b"asked"]
        assert peer.client.late_answers_count == 0


async def test_properties_of_a_consumed_message_are_not_doubled(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        text = "MSG_REGION\x01elsewhere\x02KEYS\x01k\x02CLUSTER\x01old\x02"
        answer = await send(peer, "T", properties=text)
        (message,) = decode_messages((await pull(peer, "T", 0)).body)
        assert message.properties == {
            # Its sender has not given it an id.
            "UNIQ_KEY": answer.ext["transactionId"],
            "MSG_REGION": "DefaultRegion",
            "KEYS": "k",
            "CLUSTER": "DefaultCluster",
            "TRACE_ON": "true",
        }
        assert len(answer.ext["transactionId"]) == 32
        assert message.stored_bytes < 91 + 1 + 1 + 90 + len("UNIQ_KEY..") + 32


@pytest.mark.parametrize(
    ("topic", "fields", "body", "code"),
    [
        ("a b", {}, b"", ResponseCode.INVALID_PARAMETER),
        ("x" * 128, {}, b"", ResponseCode.INVALID_PARAMETER),
        ("../../etc", {}, b"", ResponseCode.INVALID_PARAMETER),
        ("T", {"queue_id": 4}, b"", ResponseCode.INVALID_PARAMETER),
        ("T", {"c": "none"}, b"", ResponseCode.TOPIC_NOT_EXIST),
        ("SCHEDULE_TOPIC_XXXX", {}, b"", ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {}, b"", ResponseCode.NO_PERMISSION),
        ("T", {"properties": "k\x01" + "v" * 32767}, b"", ResponseCode.MESSAGE_ILLEGAL),
        ("T", {}, b"x" * 10_001, ResponseCode.MESSAGE_ILLEGAL),
        ("T", {"properties": "TIMER_DELAY_MS\x01soon\x02"}, b"", ResponseCode.MESSAGE_ILLEGAL),
        ("T", {"properties": "TIMER_DELAY_SEC\x013456001"}, b"", ResponseCode.MESSAGE_ILLEGAL),
        ("rmq_sys_motelog_timer", {}, b"", ResponseCode.NO_PERMISSION),
        (
            "T",
            {"properties": "TRAN_MSG\x01true\x02DELAY\x011\x02"},
            b"",
            ResponseCode.MESSAGE_ILLEGAL,
        ),
        ("T", {"f": 4}, b"", ResponseCode.NO_PERMISSION),
        ("T", {"f": "x"}, b"", ResponseCode.SYSTEM_ERROR),
        ("T", {"h": 2**31}, b"", ResponseCode.SYSTEM_ERROR),
        ("T", {"g": 2**63}, b"", ResponseCode.SYSTEM_ERROR),
        ("T", {"m": "true"}, b"not a batch", ResponseCode.SYSTEM_ERROR),
        ("T", {"m": "true"}, b"", ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_a_refused_send_says_why_and_stores_nothing(
    tmp_path: Path, topic: str, fields: dict[str, Any], body: bytes, code: ResponseCode
) -> None:
    store = StoreConfig(
        directory=str(tmp_path), commitlog_file_bytes=1 << 20, message_bytes_max=10_000
    )
    async with (
        started_stack(tmp_path, store=store) as stack,
        connected(stack.broker_address) as peer,
    ):
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext(topic, **fields), body)
        assert (answer.code, bool(answer.remark)) == (code, True), answer.remark
        # The next one is not harmed, and the first in the log.
        assert (await send(peer, "Good")).ext["msgId"].endswith("0" * 16)


@BOTH
async def test_a_delayed_message_comes_later_with_its_text_and_not_again(
    tmp_path: Path, serialize: Serialize
) -> None:
    store = store_config(tmp_path, delay_levels="1s 2s")
    async with (
        started_stack(tmp_path, store=store) as stack,
        connected(stack.broker_address, serialize) as peer,
    ):
        began = trio.current_time()
        level = "DELAY\x011\x02TAGS\x01blue\x02REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX"
        first = await send(peer, "T", b"level", properties=level)
        assert (first.ext["queueId"], first.ext["queueOffset"]) == ("0", "0")
        await send(peer, "T", b"at once", properties="DELAY\x010\x02TIMER_DELIVER_MS\x017")
        await send(peer, "T", b"timer", properties="TIMER_DELAY_MS\x01300\x02")
        assert bodies(await pull(peer, "T", 0)) == [b"at once"]
        answer = await pull(peer, "T", 1, sysFlag=6, suspendTimeoutMillis=9_000)
        assert bodies(answer) == [b"timer"]
        assert trio.current_time() - began >= 0.3
        filter_ = {"subscription": "blue", "sysFlag": 6, "suspendTimeoutMillis": 9_000}
        answer = await pull(peer, "T", 2, **filter_)
        (message,) = decode_messages(answer.body)
        assert trio.current_time() - began >= 1.0
        assert (message.body, message.tags, message.queue_id) == (b"level", "blue", 0)
        assert message.properties["REAL_TOPIC"] == "T"
        assert stack.broker.sample()["delayed_messages_delivered"] == 2
        item = encode_batch_items([(0, b"x", b"DELAY\x011\x02")])
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_ext("T", m="true"), item)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    async with started_stack(tmp_path, store=store) as stack:
        assert stack.broker.api.max_offset("T", 0) == 3
        saved = loads((tmp_path / "config/delayOffset.json").read_bytes())
        assert saved["offsetTable"] == {"1": 1, "2": 0}


@FLUSH
async def test_a_message_sent_back_comes_again_and_ends_among_the_dead_letters(
    tmp_path: Path, flush: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_config(tmp_path, flush=flush, delay_levels="1s")
    async with (
        started_stack(tmp_path, store=store) as stack,
        connected(stack.broker_address) as peer,
    ):
        text = "TAGS\x01blue\x02TIMER_DELAY_MS\x011\x02"
        await send(peer, "T", b"work", properties=text)
        topic, offset, first_offset = "T", 0, 0
        for times in (1, 2):
            answer = await pull(peer, topic, offset, sysFlag=6, suspendTimeoutMillis=9_000)
            (message,) = decode_messages(answer.body)
            first_offset = first_offset or message.physical_offset
            ext = {
                "group": "G",
                "offset": message.physical_offset,
                "delayLevel": 0,
                "originTopic": "T",
                "maxReconsumeTimes": 2,
            }
            answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            topic, offset = "%RETRY%G", times - 1
        answer = await pull(peer, topic, 1, sysFlag=6, suspendTimeoutMillis=9_000)
        (message,) = decode_messages(answer.body)
        assert (message.body, message.tags, message.reconsume_times) == (b"work", "blue", 2)
        assert message.properties["RETRY_TOPIC"] == "T"
        assert message.properties["ORIGIN_MESSAGE_ID"].endswith(f"{first_offset:016X}")
        ext["offset"] = message.physical_offset
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
        (dead,) = decode_messages((await pull(peer, "%DLQ%G", 0)).body)
        assert (dead.body, dead.reconsume_times) == (b"work", 3)
        assert stack.broker.sample()["dead_letters"] == 1
        (line,) = [text for text in caplog.messages if "given up" in text]
        message_id = dead.properties["UNIQ_KEY"]
        assert line.endswith(f"group='G' topic='T' message_id='{message_id}'")
        ext["offset"] = message.physical_offset + 1
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        assert (answer.code, bool(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)


async def test_a_message_retried_by_its_consumer_too_often_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    store = store_config(tmp_path, delay_levels="1h")
    text = "TAGS\x01blue\x02RETRY_TOPIC\x01T\x02DELAY\x011\x02"
    async with (
        started_stack(tmp_path, store=store) as stack,
        connected(stack.broker_address) as peer,
    ):
        api = stack.broker.api
        group = {"groupName": "G", "retryMaxTimes": 2}
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json_body(group))
        waiting = dead = 0
        # Times tried, and how often at most as the client says; else the group does.
        for times, times_max, is_dead in (
            (2, None, False), (3, None, True), (3, -1, True), (3, 3, False), (4, 3, True),
        ):  # fmt: skip
            said = {} if times_max is None else {"l": times_max}
            await send(peer, "%RETRY%G", b"work", properties=text, j=times, **said)
            dead, waiting = dead + is_dead, waiting + (not is_dead)
            assert api.max_offset("%DLQ%G", 0) == dead
            assert api.max_offset("SCHEDULE_TOPIC_XXXX", 0) == waiting
        assert stack.broker.sample()["dead_letters"] == dead == 3
        answer = await pull(peer, "%DLQ%G", 0)
        message = decode_messages(answer.body)[0]
        assert (message.body, message.tags, message.reconsume_times) == (b"work", "blue", 3)
        assert message.properties["RETRY_TOPIC"] == "T"
        assert "DELAY" not in message.properties
        answer = await peer.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        assert answer.body == b'{"offsetTable":{1:0}}'


@pytest.mark.parametrize("missing", list("abcdefgh"))
async def test_each_required_field_of_a_send_is_missed(tmp_path: Path, missing: str) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        ext = send_ext("T")
        del ext[missing]
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, ext, b"x")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"the field {missing} is missing"


@BOTH
async def test_pull_answers_by_where_the_offset_is(tmp_path: Path, serialize: Serialize) -> None:
    async with (
        started_stack(tmp_path) as stack,
        connected(stack.broker_address, serialize) as peer,
    ):
        for i in range(3):
            await send(peer, "T", b"%d" % i)

        async def outcome(offset: int, **fields: Any) -> tuple[int, str, str]:
            answer = await pull(peer, "T", offset, **fields)
            assert {"suggestWhichBrokerId", "minOffset", "maxOffset"} < answer.ext.keys()
            return answer.code, answer.ext["nextBeginOffset"], answer.remark or ""

        assert await outcome(1) == (0, "3", "FOUND")
        assert await outcome(0, maxMsgNums=2) == (0, "2", "FOUND")
        assert await outcome(3) == (19, "3", "OFFSET_OVERFLOW_ONE")
        assert await outcome(9) == (21, "3", "OFFSET_OVERFLOW_BADLY")
        assert await outcome(-1) == (21, "0", "OFFSET_TOO_SMALL")
        assert await outcome(0, subscription="other") == (20, "3", "NO_MATCHED_MESSAGE")
        # A queue that never had a message.
        assert (await outcome(0, queue_id=1))[:2] == (19, "0")
        assert (await outcome(5, queue_id=1))[:2] == (21, "0")


@BOTH
@pytest.mark.parametrize("may_read_slaves", [False, True])
async def test_a_reader_far_behind_is_sent_where_its_group_says(
    tmp_path: Path, serialize: Serialize, may_read_slaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 40 % of the memory is taken for the log's end.
    monkeypatch.setattr("motelog.core.store.message_store.memory_bytes", lambda: 50_000)
    async with (
        started_stack(tmp_path, slave_read_enable=may_read_slaves) as stack,
        connected(stack.broker_address, serialize) as peer,
    ):
        group = {"groupName": "consumers", "brokerId": 3, "whichBrokerWhenConsumeSlowly": 7}
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json_body(group))
        for _ in range(30):
            await send(peer, "T", bytes(900), properties="TAGS\x01a")
        suggested = []
        for offset, tags in ((0, "*"), (15, "*"), (0, "b"), (30, "*")):
            answer = await pull(peer, "T", offset, maxMsgNums=1, subscription=tags)
            suggested.append(answer.ext["suggestWhichBrokerId"])
        # Near the log's end: message 15, the last one that the filter has looked at, and the tail.
        assert suggested == (["7", "3", "3", "3"] if may_read_slaves else ["0"] * 4)


async def test_a_reader_of_what_is_on_the_disk_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        for number in range(200):
            await send(peer, "T", b"%d" % number)
    disk_goes_on = threading.Event()
    loaded: list[str] = []

    def load(_storage: OsStorage, path: str, _ranges: object) -> None:
        assert disk_goes_on.wait(TIMEOUT_S)
        loaded.append(path)

    monkeypatch.setattr(OsStorage, "is_cached", lambda _storage, path, _ranges: path in loaded)
    monkeypatch.setattr(OsStorage, "load", load)
    async with (
        started_stack(tmp_path) as stack,
        connected(stack.broker_address) as reader,
        connected(stack.broker_address) as peer,
        trio.open_nursery() as nursery,
    ):
        answers: list[RemotingCommand] = []

        async def read_old() -> None:
            answers.append(await pull(reader, "T", 10))

        nursery.start_soon(read_old)
        nursery.start_soon(read_old)
        async with connected(stack.broker_address) as gone:
            ext = {name: str(value) for name, value in pull_ext("T", 20).items()}
            request = RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext)
            await gone.client.send_oneway(request, timeout_s=TIMEOUT_S)
        for number in range(20):
            await send(peer, "T", b"new%d" % number)
            answer = await pull(peer, "T", 200 + number)
            assert bodies(answer) == [b"new%d" % number]
        assert not answers
        assert stack.broker.sample()["cold_reads"] == 0
        disk_goes_on.set()
        await eventually(lambda: len(answers) == 2)
        assert all(bodies(answer) == [b"%d" % n for n in range(10, 42)] for answer in answers)
        # Its units, then its records.
        assert len(set(loaded)) == 2


async def test_requests_for_what_is_on_the_disk_hold_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        sent = await send(peer, "T", b"old", properties="KEYS\x01k\x02")
        consumed = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, consumed)
    disk_goes_on = threading.Event()

    def load(*_: object) -> None:
        assert disk_goes_on.wait(TIMEOUT_S)

    monkeypatch.setattr(OsStorage, "is_cached", lambda *_: False)
    monkeypatch.setattr(OsStorage, "load", load)
    queue = {"topic": "T", "queueId": 0}
    by_key = {
        "topic": "T", "key": "k", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62,
    }  # fmt: skip
    by_id = {"offset": int(sent.ext["msgId"][-16:], 16)}
    requests: dict[RequestCode, dict[str, Any]] = {
        RequestCode.QUERY_MESSAGE: by_key,
        RequestCode.VIEW_MESSAGE_BY_ID: by_id,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: queue | {"timestamp": 2**62},
        RequestCode.GET_EARLIEST_MSG_STORETIME: queue,
        RequestCode.GET_BROKER_RUNTIME_INFO: {},
        RequestCode.GET_TOPIC_STATS_INFO: {"topic": "T"},
        RequestCode.GET_CONSUME_STATS: {"consumerGroup": "G"},
        RequestCode.QUERY_CONSUMER_OFFSET: queue | {"consumerGroup": "new"},
        RequestCode.CONSUMER_SEND_MSG_BACK: by_id | {"group": "G", "delayLevel": -1},
    }
    async with (
        started_stack(tmp_path) as stack,
        connected(stack.broker_address) as reader,
        connected(stack.broker_address) as peer,
        trio.open_nursery() as nursery,
    ):
        answers: dict[RequestCode, RemotingCommand] = {}

        async def ask(code: RequestCode) -> None:
            answers[code] = await reader.ask(code, requests[code])

        # A key that nobody has leads to no record, and there is nothing to wait for.
        nothing = await reader.ask(RequestCode.QUERY_MESSAGE, by_key | {"key": "none"})
        assert nothing.code == ResponseCode.QUERY_NOT_FOUND
        for code in requests:
            nursery.start_soon(ask, code)
        for number in range(5):
            await send(peer, "N", b"new%d" % number)
        assert not answers
        disk_goes_on.set()
        await eventually(lambda: len(answers) == len(requests))
        for code, answer in answers.items():
            assert answer.code == ResponseCode.SUCCESS, (code, answer.remark)
        assert bodies(answers[RequestCode.QUERY_MESSAGE]) == [b"old"]
        (found,) = decode_messages(answers[RequestCode.VIEW_MESSAGE_BY_ID].body)
        stored_ms = str(found.store_timestamp_ms)
        assert answers[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP].ext == {"offset": "1"}
        assert answers[RequestCode.GET_EARLIEST_MSG_STORETIME].ext == {"timestamp": stored_ms}
        shown = loads(answers[RequestCode.GET_BROKER_RUNTIME_INFO].body)
        assert shown["table"]["earliestMessageTimeStamp"] == stored_ms
        for code, name in (
            (RequestCode.GET_TOPIC_STATS_INFO, "lastUpdateTimestamp"),
            (RequestCode.GET_CONSUME_STATS, "lastTimestamp"),
        ):
            rows = loads(answers[code].body)["offsetTable"].values()
            assert max(row[name] for row in rows) == found.store_timestamp_ms
        assert answers[RequestCode.QUERY_CONSUMER_OFFSET].ext == {"offset": "0"}
        assert bodies(await pull(peer, "%DLQ%G", 0)) == [b"old"]


async def test_a_pull_that_asks_for_bytes_may_be_large(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path, pull_count_max=50) as stack,
        connected(stack.broker_address) as peer,
    ):
        for _ in range(60):
            await send(peer, "T", bytes(10_000))
        # As RocketMQ answers clients before 5.0, whatever they ask for: 32 messages, 256 KiB.
        assert len(bodies(await pull(peer, "T", 0, maxMsgNums=1000))) == 25
        assert len(bodies(await pull(peer, "T", 0, maxMsgNums=1000, maxMsgBytes=100_000))) == 9
        assert len(bodies(await pull(peer, "T", 0, maxMsgNums=40, maxMsgBytes=1 << 20))) == 40
        assert len(bodies(await pull(peer, "T", 0, maxMsgNums=1000, maxMsgBytes=1 << 30))) == 50
        assert len(bodies(await pull(peer, "T", 0, maxMsgNums=1000, maxMsgBytes=-1))) == 1
        for _ in range(40):
            await send(peer, "T", b"small", e=1)
        assert len(bodies(await pull(peer, "T", 0, queue_id=1, maxMsgNums=1000))) == 32


@pytest.mark.parametrize(
    ("topic", "fields", "code"),
    [
        ("unknown", {}, ResponseCode.TOPIC_NOT_EXIST),
        ("T", {"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ("T", {"queueId": -1}, ResponseCode.INVALID_PARAMETER),
        ("T", {"consumerGroup": "a b"}, ResponseCode.SYSTEM_ERROR),
        ("T", {"expressionType": "JS", "subscription": "a > 1"}, ResponseCode.SYSTEM_ERROR),
        ("T", {"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ("T", {"maxMsgNums": "many"}, ResponseCode.SYSTEM_ERROR),
        ("T", {"subscription": "t" * 70_000}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
async def test_a_refused_pull_says_why(
    tmp_path: Path, topic: str, fields: dict[str, Any], code: ResponseCode
) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await send(peer, "T")
        answer = await pull(peer, topic, 0, **fields)
        assert (answer.code, bool(answer.remark)) == (code, True), answer.remark


async def test_without_auto_creation_groups_and_topics_must_exist(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path, auto_create_topics=False, auto_create_groups=False) as stack,
        connected(stack.broker_address) as peer,
    ):
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        answer = await pull(peer, "T", 0)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class Holding:
    """A pull that the broker holds, and its answer once there is one."""

    def __init__(
        self, nursery: trio.Nursery, peer: Peer, topic: str, offset: int, **f: Any
    ) -> None:
        self.answer: RemotingCommand | None = None
        self._done = trio.Event()
        nursery.start_soon(self._ask, peer, topic, offset, f)

    async def _ask(self, peer: Peer, topic: str, offset: int, fields: dict[str, Any]) -> None:
        fields = {"sysFlag": 6, "suspendTimeoutMillis": 15_000, **fields}
        self.answer = await pull(peer, topic, offset, **fields)
        self._done.set()

    async def wait(self) -> RemotingCommand:
        with trio.fail_after(TIMEOUT_S):
            await self._done.wait()
        assert self.answer is not None
        return self.answer


async def until_held(stack: Stack, count: int) -> None:
    await eventually(lambda: len(stack.broker.parts.processors.pull.held) == count)


async def test_a_held_pull_is_woken_by_the_next_message_of_its_queue(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path) as stack,
        connected(stack.broker_address) as consumer,
        connected(stack.broker_address) as producer,
        trio.open_nursery() as nursery,
    ):
        await send(producer, "T", b"old")
        held = Holding(nursery, consumer, "T", 1)
        other = Holding(nursery, consumer, "T", 0, queueId=1)
        await until_held(stack, 2)
        await send(producer, "T", b"new")
        assert bodies(await held.wait()) == [b"new"]
        await until_held(stack, 1)
        # An append from this process wakes too.
        api = stack.broker.api
        host = api.store_host
        api.line.append([(api.queue_tail("T", 1), b"own", b"", 0, 0, host, 0, 0, 0, 0)])
        assert bodies(await other.wait()) == [b"own"]


async def test_a_held_pull_with_tags_sleeps_through_other_tags(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path) as stack,
        connected(stack.broker_address) as peer,
        trio.open_nursery() as nursery,
    ):
        await send(peer, "T", b"old")
        held = Holding(nursery, peer, "T", 1, subscription="wanted")
        await until_held(stack, 1)
        for i in range(3):
            await send(peer, "T", b"%d" % i, properties="TAGS\x01other\x02")
        await until_held(stack, 1)
        assert held.answer is None
        await send(peer, "T", b"yes", properties="TAGS\x01wanted\x02")
        answer = await held.wait()
        assert bodies(answer) == [b"yes"]
        assert answer.ext["nextBeginOffset"] == "5"


async def test_a_hold_ends_with_nothing_found_and_behind_refused_messages(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path) as stack,
        connected(stack.broker_address) as peer,
        trio.open_nursery() as nursery,
    ):
        await send(peer, "T")
        plain = Holding(nursery, peer, "T", 0, queueId=1, suspendTimeoutMillis=150)
        tagged = Holding(nursery, peer, "T", 1, subscription="x", suspendTimeoutMillis=600)
        await until_held(stack, 2)
        await send(peer, "T")
        answer = await plain.wait()
        assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "0")
        answer = await tagged.wait()
        assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "2")


async def test_a_closed_connection_takes_its_held_pulls_along(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await send(peer, "T")
        with trio.CancelScope() as scope:
            async with connected(stack.broker_address) as gone, trio.open_nursery() as nursery:
                Holding(nursery, gone, "T", 1)
                await until_held(stack, 1)
                scope.cancel()
        await until_held(stack, 0)


async def test_pulls_beyond_the_limit_are_answered_at_once(tmp_path: Path) -> None:
    async with (
        started_stack(tmp_path, held_pulls_per_connection_max=1) as stack,
        connected(stack.broker_address) as peer,
        trio.open_nursery() as nursery,
    ):
        await send(peer, "T")
        Holding(nursery, peer, "T", 1)
        await until_held(stack, 1)
        second = Holding(nursery, peer, "T", 1)
        assert (await second.wait()).code == ResponseCode.PULL_NOT_FOUND
        nursery.cancel_scope.cancel()


@BOTH
async def test_offsets_of_queues_and_groups(tmp_path: Path, serialize: Serialize) -> None:
    queue = {"topic": "T", "queueId": 0}
    mine = {"consumerGroup": "G", **queue}
    async with (
        started_stack(tmp_path) as stack,
        connected(stack.broker_address, serialize) as peer,
    ):
        for _ in range(4):
            await send(peer, "T")

        async def offset(code: RequestCode, ext: dict[str, Any]) -> str:
            answer = await peer.ask(code, ext)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            return answer.ext["offset"]

        assert await offset(RequestCode.GET_MAX_OFFSET, queue) == "4"
        assert await offset(RequestCode.GET_MIN_OFFSET, queue) == "0"
        by_time = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        assert await offset(by_time, {**queue, "timestamp": 0}) == "0"
        assert await offset(by_time, {**queue, "timestamp": 2**50}) == "4"
        # A new group on a young topic begins at 0, unless it asks not to.
        assert await offset(RequestCode.QUERY_CONSUMER_OFFSET, mine) == "0"
        answer = await peer.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, {**mine, "setZeroIfNotFound": "false"}
        )
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**mine, "commitOffset": 3})
        assert await offset(RequestCode.QUERY_CONSUMER_OFFSET, mine) == "3"
        # A pull may carry a commit.
        await pull(peer, "T", 4, consumerGroup="G", sysFlag=5, commitOffset=4)
        assert await offset(RequestCode.QUERY_CONSUMER_OFFSET, mine) == "4"
        answer = await peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
        (message,) = decode_messages((await pull(peer, "T", 0, maxMsgNums=1)).body)
        assert answer.ext["timestamp"] == str(message.store_timestamp_ms)
        answer = await peer.ask(
            RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": 1}
        )
        assert answer.ext["timestamp"] == "-1"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 9}, ResponseCode.SYSTEM_ERROR),
        ({"commitOffset": -1}, ResponseCode.SYSTEM_ERROR),
        ({"consumerGroup": "a/b"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_commit_for_what_does_not_exist_is_refused(
    tmp_path: Path, fields: dict[str, Any], code: ResponseCode
) -> None:
    ext = {"topic": "T", "queueId": 0, "consumerGroup": "G", "commitOffset": 1, **fields}
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await send(peer, "T")
        answer = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        assert answer.code == code


def heartbeat(
    client_id: str, *, version: int = 1, expression: str = "*", group: str = "G"
) -> bytes:
    subscription = {"topic": "T", "subString": expression, "subVersion": version}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    return json_body(
        {
            "clientID": client_id,
            "producerDataSet": [{"groupName": "P"}],
            "consumerDataSet": [consumer],
        }
    )


async def members(peer: Peer, group: str = "G") -> list[str] | None:
    answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return loads(answer.body)["consumerIdList"] if answer.code == 0 else None


@BOTH
async def test_heartbeat_makes_members_and_a_routed_retry_topic(
    tmp_path: Path, serialize: Serialize
) -> None:
    async with (
        started_stack(tmp_path) as stack,
        connected(stack.broker_address, serialize) as peer,
    ):
        assert await members(peer) is None
        answer = await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("c1"))
        assert answer.code == ResponseCode.SUCCESS
        assert await members(peer) == ["c1"]
        await routed(stack, "%RETRY%G")
        retry = stack.broker.tables.topics.get("%RETRY%G")
        assert retry is not None
        assert (retry.read_queue_nums, retry.perm) == (1, 6)
        leave = {"clientID": "c1", "consumerGroup": "G", "producerGroup": "P"}
        await peer.ask(RequestCode.UNREGISTER_CLIENT, leave)
        assert await members(peer) is None


async def test_members_hear_that_their_group_changed(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as first:
        await first.ask(RequestCode.HEART_BEAT, body=heartbeat("c1"))
        async with connected(stack.broker_address) as second:
            await second.ask(RequestCode.HEART_BEAT, body=heartbeat("c2"))
            assert await members(first) == ["c1", "c2"]
        # Its own arrival, the other's, and the other's end.
        await eventually(lambda: len(first.pushed) == 3)
        assert await members(first) == ["c1"]
        assert {(c.code, c.flag, c.ext["consumerGroup"]) for c in first.pushed} == {
            (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, FLAG_ONEWAY, "G")
        }


async def test_a_pull_without_expression_uses_the_heartbeats(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await send(peer, "T", b"a", properties="TAGS\x01A\x02")
        await send(peer, "T", b"b", properties="TAGS\x01B\x02")
        beat = heartbeat("c1", version=5, expression="B")
        await peer.ask(RequestCode.HEART_BEAT, body=beat)
        mine = {"consumerGroup": "G", "sysFlag": 0}
        assert bodies(await pull(peer, "T", 0, **mine, subVersion=5)) == [b"b"]
        answer = await pull(peer, "T", 0, **mine, subVersion=6)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await send(peer, "U")
        answer = await pull(peer, "U", 0, **mine)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_a_bad_heartbeat_leaves_nothing_behind(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        for body in (b"{", heartbeat("c" * 256), heartbeat("c", group="a b"), heartbeat("")):
            answer = await peer.ask(RequestCode.HEART_BEAT, body=body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
        assert stack.broker.tables.consumers.members_count == 0
        assert stack.broker.tables.producers.members_count == 0


async def test_orderly_consumers_lock_queues_that_exist(tmp_path: Path) -> None:
    def request(client_id: str) -> bytes:
        queues = [{"brokerName": "broker-a", "queueId": i, "topic": "T"} for i in (0, 99)]
        return json_body({"clientId": client_id, "consumerGroup": "G", "mqSet": queues})

    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await send(peer, "T")
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("c1"))
        answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=request("c1"))
        queue = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
        assert loads(answer.body) == {"lockOKMQSet": [queue]}
        answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=request("c2"))
        assert loads(answer.body) == {"lockOKMQSet": []}
        await peer.ask(RequestCode.UNLOCK_BATCH_MQ, body=request("c1"))
        answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=request("c2"))
        assert loads(answer.body) == {"lockOKMQSet": [queue]}


@BOTH
async def test_administration(tmp_path: Path, serialize: Serialize) -> None:
    topic = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": 3,
        "writeQueueNums": 3,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    async with (
        started_stack(tmp_path) as stack,
        connected(stack.broker_address, serialize) as peer,
    ):
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
        await routed(stack, "T")
        sent = await send(peer, "T", b"body", queue_id=2)
        answer = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        assert loads(answer.body)["topicConfigTable"]["T"]["readQueueNums"] == 3
        answer = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
        key = '{"brokerName":"broker-a","queueId":2,"topic":"T"}'
        assert loads(answer.body)["offsetTable"][key]["maxOffset"] == 1
        offset = int(sent.ext["msgId"][-16:], 16)
        answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
        assert bodies(answer) == [b"body"]
        for wrong in (offset + 1, -1, 2**60):
            answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": wrong})
            assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
        answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
        assert b"brokerName=broker-a\n" in answer.body
        # A broker without slaves is an asynchronous master, as Apache's is.
        assert b"brokerRole=ASYNC_MASTER\n" in answer.body
        answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert loads(answer.body)["table"]["msgPutTotalTodayNow"] == "1"
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**topic, "topic": "a/b"})
        assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_administration_of_groups(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await send(peer, "T")
        await peer.ask(
            RequestCode.HEART_BEAT, body=heartbeat("c1"), language=Language.CPP, version=64
        )
        commit = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        answer = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"})
        value = loads(answer.body)
        assert value["connectionSet"][0]["clientId"] == "c1"
        assert value["connectionSet"][0]["language"] == "CPP"
        assert value["subscriptionTable"]["T"]["subString"] == "*"
        answer = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "X"})
        assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
        answer = await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"})
        assert loads(answer.body)["connectionSet"][0]["clientId"] == "c1"
        answer = await peer.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"})
        table = loads(answer.body)["offsetTable"]
        key = '{"brokerName":"broker-a","queueId":0,"topic":"T"}'
        assert (table[key]["brokerOffset"], table[key]["consumerOffset"]) == (1, 1)
        assert any("%RETRY%G" in key for key in table)
        answer = await peer.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
        assert loads(answer.body) == {"groupList": ["G"]}
        answer = await peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert loads(answer.body)["offsetTable"] == {"T@G": {"0": 1}}
        assert loads(answer.body)["dataVersion"]["counter"] >= 0
        body = json_body({"groupName": "H", "consumeEnable": False})
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        answer = await pull(peer, "T", 0, consumerGroup="H")
        assert answer.code == ResponseCode.NO_PERMISSION
        answer = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert loads(answer.body)["subscriptionGroupTable"].keys() == {"G", "H"}
        clean = {"groupName": "G", "cleanOffset": "true"}
        await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, clean)
        assert stack.broker.tables.offsets.query("G", "T", 0) is None


async def test_statistics_by_topic_and_group(tmp_path: Path) -> None:
    async def stats(peer: Peer, name: str, key: str) -> RemotingCommand:
        wanted = {"statsName": name, "statsKey": key}
        return await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, wanted)

    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        # One of each: a second one may come behind the sample, and be seen ten seconds later.
        sent = await send(peer, "T")
        await pull(peer, "T", 0, consumerGroup="G", sysFlag=5, commitOffset=1)
        ext = {"offset": int(sent.ext["msgId"][-16:], 16), "group": "G", "delayLevel": 0}
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0
        for name, key in (
            ("TOPIC_PUT_NUMS", "T"),
            ("GROUP_GET_NUMS", "T@G"),
            ("SNDBCK_PUT_NUMS", "T@G"),
        ):
            seen = 0
            with trio.fail_after(TIMEOUT_S):
                while not seen:
                    await trio.sleep(0.05)
                    answer = await stats(peer, name, key)
                    if answer.code == ResponseCode.SUCCESS:
                        value = loads(answer.body)
                        assert value.keys() == {"statsMinute", "statsHour", "statsDay"}
                        seen = value["statsMinute"]["sum"]
            assert seen == 1
        answer = await stats(peer, "BROKER_PUT_NUMS", "DefaultCluster")
        assert answer.code == ResponseCode.SUCCESS
        answer = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
        assert loads(answer.body)["topicPutTps"] > 0
        answer = await peer.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"})
        assert loads(answer.body)["consumeTps"] > 0
        for name, key in (("TOPIC_PUT_NUMS", "X"), ("X", "T")):
            answer = await stats(peer, name, key)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == f"The stats <{name}> <{key}> not exist"


async def test_a_restart_keeps_messages_topics_groups_and_offsets(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await send(peer, "T", b"kept", d=2)
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("c1"))
        commit = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    names = {path.name for path in (tmp_path / "config").iterdir()}
    assert {"topics.json", "subscriptionGroup.json", "consumerOffset.json"} <= names
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        assert stack.broker.api.topics() == ["T"]
        assert stack.broker.api.topic_queue_count("T") == 2
        assert stack.broker.tables.groups.get("G") is not None
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, commit)
        assert answer.ext["offset"] == "1"
        assert bodies(await pull(peer, "T", 0)) == [b"kept"]
        assert (await send(peer, "T")).ext["queueOffset"] == "1"


async def test_the_api_keeps_system_topics_to_the_system(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        api = stack.broker.api
        created: list[str] = []
        api.on_topic_created(created.append)
        assert api.topic_queue_count("T") is None
        assert api.create_topic("T", 3) == 3
        assert api.create_topic("T", 5) == 3
        assert (created, api.topics()) == (["T"], ["T"])
        for name in ("TBW102", "SCHEDULE_TOPIC_XXXX", "%RETRY%G", "a/b", ""):
            assert api.topic_queue_count(name) is None
            with pytest.raises(Exception, match="topic"):
                api.create_topic(name, 1)
        await routed(stack, "T")


async def test_tags_are_matched_by_hash_as_clients_expect(tmp_path: Path) -> None:
    # "Aa" and "BB" have one hash; the client compares the text again.
    assert string_hash("Aa") == string_hash("BB")
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await send(peer, "T", b"1", properties="TAGS\x01Aa\x02")
        assert bodies(await pull(peer, "T", 0, subscription="BB")) == [b"1"]
