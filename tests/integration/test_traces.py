"""Traces with software that is not ours: RocketMQ's decoder and tools read what our clients write,
at our broker and at Apache's, and we read what its clients write.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.push.consumer import PushConsumer
from motelog.bridge.trace.recorder import TRACE_TOPIC
from motelog.bridge.trace.records import TraceKind
from motelog.bridge.transactions import TransactionProducer, TransactionState
from motelog.core.message import Message
from motelog.core.records.decode import StoredMessage
from tests.support.broker_stack import routed, started_stack
from tests.support.java import DRIVER, OURS, VERSION_4, VERSION_5, VERSIONS, cluster

pytestmark = pytest.mark.java

DEADLINE_S = 60


async def never_asked(message: StoredMessage) -> TransactionState:
    raise AssertionError("nothing is left open")


@pytest.mark.parametrize(
    ("server", "version"),
    [
        (OURS, VERSION_5),
        (OURS, VERSION_4),
        pytest.param(VERSION_5, VERSION_5, marks=pytest.mark.java_all),
        pytest.param(VERSION_4, VERSION_4, marks=pytest.mark.java_all),
    ],
)
async def test_traces_of_our_clients_are_read_by_rocketmq(
    tmp_path: Path, server: str, version: str
) -> None:
    refused: list[str] = []

    async def handle(message: StoredMessage) -> None:
        if message.keys == ("k1",) and not refused:
            refused.append(message.message_id)
            raise ValueError("the first time")
        seen.append(message.message_id)
        if len(set(seen)) == 4 + batch_count:
            consumer.stop()

    async def commit(message: Message) -> TransactionState:
        return TransactionState.COMMIT

    seen: list[str] = []
    # Apache's broker gives all messages of a batch one id.
    batch_count = 2 if server == OURS else 0
    async with cluster(server, tmp_path) as namesrv:
        with trio.fail_after(DEADLINE_S):
            async with Producer(
                namesrv=namesrv, group="P", trace=True, timeout_s=DEADLINE_S
            ) as producer:
                sent = [
                    await producer.send(Message("T", b"x", "Tag", (f"k{i}",))) for i in range(3)
                ]
                ids = [one.message_id for one in sent]
                if batch_count:
                    batch = await producer.send_batch([Message("T", b"b")] * batch_count)
                    ids += batch.message_id.split(",")
            async with TransactionProducer(
                never_asked, namesrv=namesrv, group="Q", trace=True
            ) as buyer:
                half = await buyer.send_in_transaction(Message("T", b"half", keys=("h",)), commit)
            async with PushConsumer(
                namesrv=namesrv, group="C", trace=True, is_orderly=True, suspend_s=0.1
            ) as consumer:
                consumer.subscribe("T")
                await consumer.run(handle)
            async with PullConsumer(namesrv=namesrv, group="L", trace=True) as puller:
                puller.assign(await puller.queues("T"))
                pulled = 0
                while pulled < len(ids) + 1:
                    pulled += len(await puller.poll(timeout_s=DEADLINE_S))
        ids.append(half.sent.message_id)
        assert sorted(seen) == sorted(ids)
        # Sends, an end of a transaction; before and after each message, one of which came twice,
        # and each of which was pulled as well.
        count = len(ids) + 1 + 2 * (len(ids) + 1) + 2 * len(ids)
        lines = await DRIVER.run(version, "traces", namesrv, TRACE_TOPIC, "readers", str(count))
        records = [line[1:] for line in lines if line[0] == "record"]
        kinds = Counter((kind, message_id) for kind, _, message_id, *_ in records)
        for message_id in ids:
            times = 3 if message_id in refused else 2
            assert kinds["Pub", message_id] == 1
            assert kinds["SubBefore", message_id] == kinds["SubAfter", message_id] == times
        found = {
            (kind, message_id): rest
            for kind, _, message_id, *rest in records
            if message_id not in refused
        }
        state = ["null", "false", "0", "0"]
        assert found["Pub", ids[0]] == [
            "T", "Tag", "k0", "Normal_Msg", "true", sent[0].offset_id, *state,
        ]  # fmt: skip
        for message_id in ids[3:-1]:
            assert found["Pub", message_id][:4] == ["T", "null", "null", "Normal_Msg"]
        assert found["Pub", ids[-1]][2:4] == ["h", "Trans_Msg_Half"]
        ended = found["EndTransaction", ids[-1]]
        assert ended[:4] == ["T", "null", "h", "Trans_msg_Commit"]
        assert ended[6:8] == ["COMMIT_MESSAGE", "false"]
        assert {group for kind, group, *_ in records if kind == "Pub"} == {"P", "Q"}
        assert {group for kind, group, *_ in records if kind.startswith("Sub")} == {"C", "L"}
        (failed,) = [r for r in records if r[0] == "SubAfter" and r[-6] == "false"]
        assert (failed[2], failed[-1]) == (refused[0], "2")
        # The tool that operators use, and ours.
        words = ["queryMsgTraceById", "-i", refused[0]]
        text = "\n".join(await DRIVER.lines(version, "mqadmin", namesrv, *words))
        shown = [line.split() for line in text.splitlines() if line.startswith(("Pub", "Sub"))]
        assert [(kind, group) for kind, group, *_ in shown] == [
            ("Pub", "P"), ("Sub", "C"), ("Sub", "C"), ("Sub", "L"),
        ], text  # fmt: skip
        assert shown[0][-1] == "success"
        assert sorted(line[-1] for line in shown[1:]) == ["failed", "success", "success"]
        async with Admin(namesrv=namesrv) as admin:
            told = await admin.trace(refused[0])
            assert [one.kind for one in told] == [
                TraceKind.PUB,
                *(TraceKind.SUB_BEFORE, TraceKind.SUB_AFTER) * 3,
            ]
            assert [one.is_ok for one in told if one.kind is TraceKind.SUB_AFTER] == [
                *(False, True, True)
            ]
            assert [one.message_id for one in await admin.trace("k1")] == [refused[0]] * 7
            assert await admin.trace("nobody") == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_traces_of_java_clients_are_read_by_us(tmp_path: Path, version: str) -> None:
    async with started_stack(tmp_path) as stack, Admin(namesrv=stack.namesrv_address) as admin:
        # Java's clients may lose the traces that are to create their topic, with any broker.
        namesrv = stack.namesrv_address
        stack.broker.api.create_topic(TRACE_TOPIC, 1)
        await routed(stack, TRACE_TOPIC)
        lines = await DRIVER.run(version, "trace", namesrv, "T", "C", "3")
        ids = [message_id for kind, message_id in lines if kind == "sent"]
        assert len(ids) == 3
        for number, message_id in enumerate(ids):
            with trio.fail_after(DEADLINE_S):
                # They are sent up to 5 s later.
                while len(told := await admin.trace(message_id)) < 3:  # noqa: ASYNC110  # no event
                    await trio.sleep(0.1)
            sent, before, after = told
            assert (sent.kind, sent.group, sent.topic) == (TraceKind.PUB, "C-sender", "T")
            assert (sent.tags, sent.keys, sent.is_ok) == ("Tag", (f"key{number}",), True)
            assert sent.client_host.count(":") == 1
            assert (before.kind, before.group) == (TraceKind.SUB_BEFORE, "C")
            assert (after.kind, after.group, after.is_ok) == (TraceKind.SUB_AFTER, "C", True)
            assert before.request_id == after.request_id
            assert {one.message_id for one in told} == {message_id}
