"""What pulls are answered, who waits and for how long, and who is read for when queues grow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.broker.waiting.long_poll import BUCKET_MS
from motelog.core.errors import StoreError
from motelog.core.message import tags_code
from motelog.core.reader_key import read_key
from motelog.core.records.decode import decode as decode_records
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.codes import LOG_FOLDER, LOG_KEY, LOG_UNITS
from motelog.core.remoting.frames import (
    FLAG_ONEWAY,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Serialize,
    encode,
)
from motelog.core.remoting.server import Connection, answer_with
from motelog.core.store import message_store
from tests.support.broker_stack import eventually, pull_ext
from tests.support.broker_stage import QUEUES, TOPICS, BrokerStage, Client, broker_stage
from tests.support.send_requests import turn
from tests.support.stores import message


def test_a_queue_that_grows_wakes_those_that_wait_for_it_alone(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        crowd, one, other = Client(), Client(), Client()
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                stage.pull(crowd, topic, queue_id)
        for client in (one, other):
            stage.pull(client, "B", 77)
        assert len(stage.held) > 10_000
        stage.api.reads.clear()
        # Nobody waits for D; 77 grows twice before anybody is woken.
        for topic, queue_id in (("B", 77), ("D", 0), ("B", 77), ("C", 5)):
            stage.store.append([message(stage.tail(topic, queue_id))])
        stage.pulls.wake_grown()
        assert sorted(stage.api.reads) == [("B", 77)] * 3 + [("C", 5)]
        assert [len(client.answers) for client in (crowd, one, other)] == [2, 1, 1]
        assert stage.pulls.woken_count == 4
        stage.pulls.wake_grown()
        assert len(stage.api.reads) == 4


def test_a_read_that_fails_answers_the_pull_and_no_more(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        client = Client()
        for queue_id in (0, 1):
            stage.pull(client, "A", queue_id)
        stage.api.fault = StoreError("the disk says no")
        stage.store.append([message(stage.tail("A", 0))])
        stage.pulls.wake_grown()
        (answer,) = client.answers
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the disk says no")
        assert len(stage.held) == 1


def test_held_pulls_that_want_no_answer_get_none(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        client = Client()
        for flag in (0, FLAG_ONEWAY):
            stage.pull(client, "A", 0, flag=flag)
        assert len(stage.held) == 2
        stage.store.append([message(stage.tail("A", 0))])
        stage.pulls.wake_grown()
        assert [answer.code for answer in client.answers] == [ResponseCode.SUCCESS]
        assert len(stage.held) == 0


async def paged_in(stage: BrokerStage) -> None:
    """Return when no thread pages in for anybody any more."""
    await eventually(lambda: stage.api.cold_reads.waiting_count == 0)


@asynccontextmanager
async def paging_in(stage: BrokerStage) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(stage.api.cold_reads.run, lambda: None)
        yield
        await paged_in(stage)
        nursery.cancel_scope.cancel()


async def test_a_pull_of_what_is_on_the_disk_commits_once_and_is_answered_once(
    tmp_path: Path,
) -> None:
    with broker_stage(tmp_path) as stage:
        client = Client()
        stage.store.append([message(stage.tail("A", 0))])
        # Once before the pull is decoded, then twice.
        stage.api.misses = 3
        flags = PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUBSCRIPTION
        stage.pull(client, "A", 0, sysFlag=flags, commitOffset=7)
        assert stage.tables.offsets.query("consumers", "A", 0) == 7
        # The group gets on while the pull waits for the disk.
        stage.tables.offsets.commit("consumers", "A", 0, 9)
        assert not client.answers
        async with paging_in(stage):
            pass
        assert [answer.code for answer in client.answers] == [ResponseCode.SUCCESS]
        assert stage.tables.offsets.query("consumers", "A", 0) == 9
        assert stage.stats.messages_out == 1
        assert stage.api.cold_reads.loaded_count == 2


async def test_a_held_pull_whose_messages_are_on_the_disk_is_answered_or_held_on(
    tmp_path: Path,
) -> None:
    with broker_stage(tmp_path) as stage:
        client = Client()
        stage.pull(client, "A", 0)
        stage.store.append([message(stage.tail("A", 0))])
        stage.api.misses = 1
        stage.pulls.wake_grown()
        assert (len(stage.held), client.answers) == (0, [])
        async with paging_in(stage):
            pass
        assert [answer.code for answer in client.answers] == [ResponseCode.SUCCESS]
        assert len(stage.held) == 0


async def test_a_pull_that_finds_nothing_once_it_is_in_memory_is_held(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        client = Client()
        stage.api.misses = 1
        stage.pull(client, "A", 0)
        async with paging_in(stage):
            pass
        assert (len(stage.held), client.answers) == (1, [])


async def test_a_pull_waits_for_units_that_are_made_again(tmp_path: Path) -> None:
    with broker_stage(tmp_path, commitlog_file_bytes=4096) as stage:
        for topic in "AB":
            stage.store.append([message(stage.tail(topic, 0), b"from %s" % topic.encode())] * 40)
    unit_file = tmp_path / "consumequeue" / "A" / "0" / ("0" * 20)
    unit_file.write_bytes(bytes(40) + unit_file.read_bytes()[40:])
    with broker_stage(tmp_path, commitlog_file_bytes=4096) as stage:
        waiting, other = Client(), Client()
        async with trio.open_nursery() as nursery:
            await nursery.start(stage.api.cold_reads.run, lambda: None)
            stage.pull(waiting, "A", 0)
            stage.pull(other, "B", 0)
            await wait_all_tasks_blocked()
            assert (len(waiting.answers), len(other.answers)) == (0, 1)
            assert await stage.store.quarantine.rebuild()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        (answer,) = waiting.answers
        assert (answer.code, answer.body.count(b"from A")) == (ResponseCode.SUCCESS, 32)


@pytest.mark.parametrize(
    ("topic", "offset", "code", "next_offset"),
    [
        ("A", 1, ResponseCode.SUCCESS, "3"),
        ("A", 3, ResponseCode.PULL_NOT_FOUND, "3"),
        ("A", 4, ResponseCode.PULL_OFFSET_MOVED, "3"),
        ("A", -1, ResponseCode.PULL_OFFSET_MOVED, "0"),
        ("B", 0, ResponseCode.PULL_NOT_FOUND, "0"),
        ("B", 5, ResponseCode.PULL_OFFSET_MOVED, "0"),
        ("none", 0, ResponseCode.TOPIC_NOT_EXIST, None),
    ],
)
def test_a_pull_that_does_not_wait_has_its_code(
    tmp_path: Path, topic: str, offset: int, code: ResponseCode, next_offset: str | None
) -> None:
    with broker_stage(tmp_path) as stage:
        stage.store.append([message(stage.tail("A", 0))] * 3)
        for request_code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            answer = stage.ask(request_code, pull_ext(topic, offset))
            assert (answer.code, answer.ext.get("nextBeginOffset")) == (code, next_offset)
        assert len(stage.held) == 0


def test_tags_that_match_nothing_say_where_to_go_on(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        stage.store.append([message(stage.tail("A", 0), tags_code=1)] * 3)
        answer = stage.ask(RequestCode.PULL_MESSAGE, pull_ext("A", 0, subscription="other"))
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.ext["nextBeginOffset"] == "3"


def test_pulls_are_held_up_to_their_limits_and_answered_at_once_beyond(tmp_path: Path) -> None:
    limits = {"held_pulls_max": 3, "held_pulls_per_connection_max": 2}
    with broker_stage(tmp_path, limits) as stage:
        first, second = Client(), Client()
        for client in (first, second):
            for queue_id in range(3):
                stage.pull(client, "A", queue_id)
        assert len(stage.held) == 3
        # One beyond its connection's share; two beyond what the broker holds.
        assert [len(client.answers) for client in (first, second)] == [1, 2]
        stage.pulls.connection_closed(cast("Connection", first))
        assert len(stage.held) == 1


@pytest.mark.parametrize(
    ("config", "asked_ms", "held_ms"),
    [
        ({}, 30_000, 30_000),
        ({"hold_ms_max": 10_000}, 30_000, 10_000),
        ({"long_poll": False, "short_poll_ms": 500}, 30_000, 500),
    ],
)
def test_a_pull_is_held_for_as_long_as_it_asks_and_may(
    tmp_path: Path, config: dict[str, Any], asked_ms: int, held_ms: int
) -> None:
    with broker_stage(tmp_path, config) as stage:
        client = Client()
        stage.pull(client, "A", 0, suspendTimeoutMillis=asked_ms)
        stage.held.end_due(stage.clock.monotonic_ms() + held_ms - 1)
        assert client.answers == []
        stage.held.end_due(stage.clock.monotonic_ms() + held_ms + BUCKET_MS)
        assert [answer.code for answer in client.answers] == [ResponseCode.PULL_NOT_FOUND]


@pytest.mark.parametrize(
    ("is_enabled", "memory_bytes", "broker_id"),
    [(False, 0, "0"), (True, 0, "7"), (True, 1 << 30, "3")],
)
def test_who_reads_far_behind_is_sent_to_the_groups_slave(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_enabled: bool,
    memory_bytes: int,
    broker_id: str,
) -> None:
    monkeypatch.setattr(message_store, "memory_bytes", lambda: memory_bytes)
    with broker_stage(tmp_path, {"slave_read_enable": is_enabled}) as stage:
        group = SubscriptionGroup(
            group_name="consumers", broker_id=3, which_broker_when_consume_slowly=7
        )
        stage.tables.groups.put(group)
        stage.store.append([message(stage.tail("A", 0))] * 3)
        answer = stage.ask(RequestCode.PULL_MESSAGE, pull_ext("A", 0, maxMsgNums=1))
        assert answer.ext["suggestWhichBrokerId"] == broker_id


AS_SLAVE: dict[str, Any] = {"id": 1, "namesrv": ("127.0.0.1:1",)}


@pytest.mark.parametrize("hold_ms", [0, 1_000])
@pytest.mark.parametrize(("queue_id", "queue_offset"), [(0, 4), (0, 100), (0, 1), (1, 5)])
def test_a_slave_leaves_a_reader_s_offset_as_it_is(
    tmp_path: Path, queue_id: int, queue_offset: int, hold_ms: int
) -> None:
    with broker_stage(tmp_path, AS_SLAVE | {"slave_read_enable": True}) as stage:
        tail = stage.tail("A", 0)
        stage.store.append([message(tail, b"%d" % n) for n in range(3)])
        assert stage.store.hide_below("A", 0, 2)
        client = Client()
        fields = {"queueOffset": queue_offset, "suspendTimeoutMillis": hold_ms}
        stage.pull(client, "A", queue_id, **fields)
        assert (len(client.answers), len(stage.held)) == ((0, 1) if hold_ms else (1, 0))
        stage.clock.advance(hold_ms + BUCKET_MS)
        stage.held.end_due(stage.clock.monotonic_ms())
        [answer] = client.answers
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.ext["nextBeginOffset"] == str(queue_offset)
        assert answer.ext["suggestWhichBrokerId"] == "0"


def test_a_slave_gives_a_waiting_reader_what_it_lacked(tmp_path: Path) -> None:
    with broker_stage(tmp_path, AS_SLAVE) as stage:
        client = Client()
        stage.pull(client, "A", 0, queueOffset=2)
        for number in range(4):
            assert client.answers == []
            stage.store.append([message(stage.tail("A", 0), b"%d" % number)])
            if number < 2:
                stage.pulls.wake_grown()
        stage.pulls.wake_grown()
        [answer] = client.answers
        assert [found.body for found in decode_messages(answer.body)] == [b"2", b"3"]


def ask_with_key(stage: BrokerStage, key: str | None, **fields: Any) -> RemotingCommand:
    """Return the answer to a pull of A/0 by a client that may have the key to the folder."""
    ext = pull_ext("A", 0, **fields) | ({} if key is None else {LOG_KEY: key})
    return stage.ask(RequestCode.PULL_MESSAGE, ext)


def test_who_has_the_key_to_the_folder_gets_units(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        for tag in (b"a", b"b", b"a"):
            properties, code = b"TAGS\x01%b\x02" % tag, tags_code(tag.decode())
            tail = stage.tail("A", 0)
            stage.store.append([message(tail, b"x" * 99, properties=properties, tags_code=code)])
        plain = ask_with_key(stage, None)
        assert plain.ext.keys().isdisjoint({LOG_FOLDER, LOG_UNITS})
        for wrong in ("", "wrong", "\N{EURO SIGN}", "x" * 32):
            told = ask_with_key(stage, wrong)
            assert (told.body, told.ext.pop(LOG_FOLDER)) == (plain.body, str(tmp_path))
            assert told.ext == plain.ext
        key = read_key(str(tmp_path))
        ((_, (calls, messages, sent_bytes)),) = stage.stats.gets()
        named = ask_with_key(stage, key)
        assert named.ext.pop(LOG_UNITS) == "0"
        assert (named.code, named.ext) == (plain.code, plain.ext)
        assert named.body == stage.store.reader.units("A", 0, 0, 3)
        # Counted as the records that they stand for.
        ((_, counted),) = stage.stats.gets()
        one_more = (calls + 1, messages + 3, sent_bytes + len(plain.body))
        assert tuple(counted) == one_more
        tagged = ask_with_key(stage, key, subscription="b")
        assert tagged.body == stage.store.reader.units("A", 0, 1, 1)
        # A SQL92 filter looks into records; they are sent then.
        sql = {"expressionType": "SQL92", "subscription": "TAGS = 'b'"}
        filtered = ask_with_key(stage, key, **sql)
        assert LOG_UNITS not in filtered.ext
        assert filtered.body == plain.body[len(plain.body) // 3 : len(plain.body) * 2 // 3]


def test_who_is_on_another_machine_is_not_told_the_folder(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        stage.store.append([message(stage.tail("A", 0))])
        for host in ("192.0.2.7", "2001:db8::7"):
            client = Client(peer=(host, 4711))
            answer = stage.ask(
                RequestCode.PULL_MESSAGE, pull_ext("A", 0) | {LOG_KEY: ""}, client=client
            )
            assert answer.code == ResponseCode.SUCCESS
            assert answer.ext.keys().isdisjoint({LOG_FOLDER, LOG_UNITS})


def test_a_refused_pull_tells_nothing_of_the_folder(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        stage.topic("A", 1, perm=2)
        for key in ("", read_key(str(tmp_path))):
            answer = ask_with_key(stage, key)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.ext.keys().isdisjoint({LOG_FOLDER, LOG_UNITS})


@pytest.mark.parametrize("store", [{}, {"write_buffer": True}])
def test_a_log_that_is_not_to_be_read_in_its_files_is_not(
    tmp_path: Path, store: dict[str, Any]
) -> None:
    with broker_stage(tmp_path, {"mapped_reads": bool(store)}, **store) as stage:
        assert read_key(str(tmp_path)) is None
        stage.store.append([message(stage.tail("A", 0))])
        for key in ("", "x" * 32):
            answer = ask_with_key(stage, key)
            assert answer.ext.keys().isdisjoint({LOG_FOLDER, LOG_UNITS})
            assert answer.code == ResponseCode.SUCCESS


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[BrokerStage]:
    """Forty messages in queue 0 of A, half of them with the tag "a", and one that is longer."""
    with broker_stage(tmp_path, {"hold_ms_max": 1000}) as stage:
        tail = stage.tail("A", 0)
        codes = [tags_code("a"), tags_code("b")] * 20
        stage.store.append([message(tail, b"body", tags_code=code) for code in codes])
        stage.store.append([message(tail, b"x" * 5000)])
        yield stage


@pytest.mark.parametrize("serialize", Serialize)
@pytest.mark.parametrize(
    ("fields", "code", "count"),
    [
        ({}, ResponseCode.SUCCESS, 32),
        ({"queueOffset": 30, "maxMsgNums": 5}, ResponseCode.SUCCESS, 5),
        ({"queueOffset": 30, "maxMsgNums": -1}, ResponseCode.SUCCESS, 1),
        ({"maxMsgNums": 50, "maxMsgBytes": 1 << 20}, ResponseCode.SUCCESS, 41),
        ({"maxMsgBytes": 500}, ResponseCode.SUCCESS, 5),
        # Longer than what is asked for; answered all the same.
        ({"queueOffset": 40, "maxMsgBytes": 100}, ResponseCode.SUCCESS, 1),
        ({"subscription": "a || c"}, ResponseCode.SUCCESS, 20),
        ({"subscription": "c", "expressionType": "TAG"}, ResponseCode.PULL_RETRY_IMMEDIATELY, 0),
        ({"sysFlag": 5, "commitOffset": 3}, ResponseCode.SUCCESS, 32),
        ({"sysFlag": 0, "subVersion": 1, "consumerGroup": "G"}, ResponseCode.SUCCESS, 32),
    ],
)
def test_a_plain_pull_is_answered_and_counted_as_one_that_is_decoded(
    filled: BrokerStage,
    serialize: Serialize,
    fields: dict[str, Any],
    code: ResponseCode,
    count: int,
) -> None:
    filled.beat("G")
    ext = {name: str(value) for name, value in pull_ext("A", 0, **fields).items()}
    request = RemotingCommand(RequestCode.PULL_MESSAGE, 5, ext=ext, serialize=serialize)
    plain, decoded = Client(), Client()
    (item,) = filled.processors.plain().split(*turn([encode(request)]), 1)
    before = counted(filled, ext)
    assert filled.pulls.take(item, cast("Connection", plain))
    between = counted(filled, ext)
    processor = filled.pulls.processors()[RequestCode.PULL_MESSAGE]
    answer_with(processor, request, cast("Connection", decoded))
    after = counted(filled, ext)
    (one,), (other,) = plain.answers, decoded.answers
    assert one == other
    assert (one.code, one.opaque, one.serialize) == (code, 5, serialize)
    assert len(decode_records(one.body)) == count
    assert [b - a for a, b in zip(before[:-1], between[:-1], strict=True)] == [
        b - a for a, b in zip(between[:-1], after[:-1], strict=True)
    ]
    assert between[-1] == after[-1]


def counted(stage: BrokerStage, ext: dict[str, str]) -> tuple[Any, ...]:
    """Return what a pull changes: counters, and last where its group is."""
    queue = ext["consumerGroup"], "A", 0
    stats, offsets = stage.store.stats, stage.tables.offsets
    return (
        stage.stats.messages_out,
        stats.gets_found,
        stats.gets_missed,
        stats.got_messages,
        stats.got_bytes,
        (offsets.query(*queue), offsets.pulled(*queue)),
    )


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        # There is nothing yet, and it does not wait.
        ({"queueOffset": 41}, ResponseCode.PULL_NOT_FOUND),
        ({"queueOffset": 50}, ResponseCode.PULL_OFFSET_MOVED),
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": QUEUES}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "a b"}, ResponseCode.SYSTEM_ERROR),
        ({"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        (
            {"sysFlag": 0, "consumerGroup": "G", "subVersion": 2},
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ),
        ({"subscription": "x" * 70_000}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
def test_what_a_plain_pull_is_refused_is_counted_once(
    filled: BrokerStage, fields: dict[str, Any], code: ResponseCode
) -> None:
    filled.beat("G")
    stats = filled.store.stats
    ext: dict[str, Any] = {"topic": "A", "queueOffset": 0} | fields
    topic, offset = ext.pop("topic"), ext.pop("queueOffset")
    missed = stats.gets_missed
    assert filled.ask(RequestCode.PULL_MESSAGE, pull_ext(topic, offset, **ext)).code == code
    is_read = code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
    assert (stats.gets_missed - missed, stats.gets_found) == (int(is_read), 0)


def test_a_plain_pull_hears_of_a_reset_once(filled: BrokerStage) -> None:
    filled.tables.offsets.reset("consumers", "A", 0, 7, is_running=True)
    answers = [filled.ask(RequestCode.PULL_MESSAGE, pull_ext("A", 0)) for _ in range(2)]
    assert [answer.code for answer in answers] == [
        ResponseCode.PULL_OFFSET_MOVED, ResponseCode.SUCCESS,
    ]  # fmt: skip
    assert answers[0].ext["nextBeginOffset"] == "7"


def test_a_store_that_fails_answers_a_plain_pull_with_its_words(filled: BrokerStage) -> None:
    filled.api.fault = StoreError("the disk says no")
    answer = filled.ask(RequestCode.PULL_MESSAGE, pull_ext("A", 0))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the disk says no")
    assert filled.stats.messages_out == 0


@pytest.mark.parametrize("fields", [{}, {"maxMsgBytes": 500, "expressionType": "TAG"}])
def test_a_plain_pull_that_finds_nothing_is_held_as_one_that_is_decoded(
    filled: BrokerStage, fields: dict[str, Any]
) -> None:
    fields = {"sysFlag": 7, "commitOffset": 3, "suspendTimeoutMillis": 500} | fields
    plain, decoded = Client(), Client()

    def pull(queue_offset: int) -> None:
        """Hold the same pull twice, once as a plain one and once as one that is decoded."""
        ext = pull_ext("A", queue_offset, subscription="a", **fields)
        texts = {name: str(value) for name, value in ext.items()}
        request = RemotingCommand(RequestCode.PULL_MESSAGE, 5, ext=texts)
        (item,) = filled.processors.plain().split(*turn([encode(request)]), 1)
        assert filled.pulls.take(item, cast("Connection", plain))
        processor = filled.pulls.processors()[request.code]
        answer_with(processor, request, cast("Connection", decoded))
        assert len(filled.held) == 2

    pull(41)
    assert filled.tables.offsets.query("consumers", "A", 0) == 3
    for tag in ("b", "a"):
        filled.store.append([message(filled.tail("A", 0), b"new", tags_code=tags_code(tag))])
        assert not plain.answers
        filled.pulls.wake_grown()
    pull(43)
    filled.clock.advance(500 + BUCKET_MS)
    filled.held.end_due(filled.clock.monotonic_ms())
    assert plain.answers == decoded.answers
    assert [(answer.code, answer.opaque) for answer in plain.answers] == [
        (ResponseCode.SUCCESS, 5), (ResponseCode.PULL_NOT_FOUND, 5),
    ]  # fmt: skip


async def test_a_plain_pull_of_a_slow_client_begins_anew_when_its_messages_are_in_memory(
    filled: BrokerStage,
) -> None:
    client = Client()
    fields: dict[str, Any] = {"maxMsgBytes": 600, "subVersion": 9, "expressionType": "TAG"}
    ext = pull_ext("A", 41, sysFlag=6, suspendTimeoutMillis=500, **fields)
    request = RemotingCommand(
        RequestCode.PULL_MESSAGE, 5, ext={name: str(value) for name, value in ext.items()}
    )
    filled.process(request, client)
    assert len(filled.held) == 1
    filled.store.append([message(filled.tail("A", 0))])
    filled.api.misses = 1
    filled.pulls.wake_grown()
    client.is_congested = True
    async with paging_in(filled):
        pass
    (deferred,) = client.deferred
    # What the client has asked for, all of it.
    known = {name: request.ext[name] for name in deferred.ext}
    assert (deferred.code, deferred.opaque, deferred.ext) == (request.code, 5, known)
    assert deferred.ext.keys() >= {*fields, "suspendTimeoutMillis"}
    client.is_congested = False
    filled.process(deferred, client)
    assert [answer.code for answer in client.answers] == [ResponseCode.SUCCESS]
