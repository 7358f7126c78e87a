"""Fuzz a whole name server and broker: every request code, valid and odd, on state built up before.

Usage: python tests/fuzz/fuzz_servers.py [SECONDS] [SEED] [ROUND]. Prints the seed; exit status 1
and what went wrong, with the command that repeats its round. A round is a stack on an empty folder:
requests that build up state, requests of all codes with mutated fields and bodies, frames that are
none, then the same folder started again. What answers name (places, receipts, handles) goes into
later requests; what the broker asks of its clients gets odd answers, late ones or none.

A fault is: a request without an answer, a connection that a well-formed frame has ended, a line of
level ERROR or with a traceback, a fenced store, a broken invariant of a table, an end of a server,
a ping that is not answered.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import trio

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from motelog.core.errors import RemotingError
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.remoting.client import Later, RemotingClient, connect
from motelog.core.remoting.frames import (
    FLAG_ONEWAY,
    Language,
    RemotingCommand,
    RequestCode,
    Serialize,
    encode,
    encode_batch_items,
)
from motelog.core.remoting.pop_fields import Receipt, decode_begins
from motelog.core.remoting.recall_handle import RecallHandle
from motelog.core.state_file import StateFile
from tests.support.broker_stack import joined, store_config
from tests.support.fuzz_faults import Errors, FoundError

REQUESTS_PER_ROUND: Final = 400
AT_ONCE: Final = 16
ANSWER_WITHIN_S: Final = 20.0
HELD_WITHIN_S: Final = 0.5
ROUND_WITHIN_S: Final = 120.0

TOPICS: Final = ("T", "U", "V", "%RETRY%G", "%DLQ%G", "SCHEDULE_TOPIC_XXXX", "TBW102", "odd|topic")
GROUPS: Final = ("G", "H", "none-retries", "g" * 248)
# Numbers at which something changes: sizes of integers, limits, signs.
NUMBERS: Final = (
    *(-1, 0, 1, 2, 7, 17, 18, 4096, 4097, 65_535, 65_536),
    *(
        sign * (1 << bits) + plus
        for sign in (1, -1)
        for bits in (31, 32, 62, 63)
        for plus in (-1, 0)
    ),
    1 << 64,
    10**30,
)
WORDS: Final = (
    "",
    " ",
    "T",
    "*",
    "a || b",
    "true",
    "null",
    "SQL92",
    "TAG",
    "\x00",
    "\x01\x02",
    "é",
    "😀",
)
FLAGS: Final = ("true", "false", "1", "0", "")

Field = Callable[["Chance"], object]
Body = Callable[["Chance"], bytes]


class Chance(random.Random):
    """The round's choices, and what the round has learned from answers."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.physical_offsets = [0]
        self.message_ids = ["", "7F00000100002A9F0000000000000000"]
        # Half messages as they are named at their end: queue offset, physical offset, unique key.
        self.halves = [(0, 0, "AC11")]
        self.receipts = ["0 0 0 0 0 broker-a 0 0"]
        self.handles = [""]

    def learn(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        """Keep what names something that the broker has now."""
        ext = answer.ext
        # 32 digits: where the record is, to be asked for and sent back.
        first = ext.get("msgId", "").partition(",")[0]
        if len(first) == 32:
            self.message_ids.append(first)
            self.physical_offsets.append(int(first[16:], 16))
            named = (int(ext.get("queueOffset", 0)), int(first[16:], 16))
            self.halves.append((*named, ext.get("transactionId", "")))
        if "recallHandle" in ext:
            self.handles.append(ext["recallHandle"])
        if "startOffsetInfo" in ext:
            group_queue = int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"])
            for (kind, queue), begin in decode_begins(ext["startOffsetInfo"]).items():
                receipt_ = Receipt(begin, *group_queue, kind, "broker-a", queue, begin)
                self.receipts.append(receipt_.encode())

    def odd(self) -> str:
        """Return a value that no client sends."""
        match self.randrange(8):
            case 0 | 1 | 2:
                return str(self.choice(NUMBERS))
            case 3 | 4:
                return self.choice(WORDS)
            case 5:
                return "".join(map(chr, self.choices(range(1, 0x2FF), k=self.randrange(1, 40))))
            case 6:
                return self.choice("x%\x01é") * self.choice((127, 128, 255, 256, 32_767, 40_000))
            case _:
                return self.choice("x\x01") * (3_000_000 if self.random() < 0.05 else 70_000)

    def mutated(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.choice((1, 1, 2, 4))):
            at = self.randrange(len(changed) + 1)
            match self.randrange(4):
                case 0:
                    changed[at : at + 1] = self.randbytes(1)
                case 1:
                    del changed[at : at + self.randrange(1, 9)]
                case 2:
                    changed[at:at] = self.choice(
                        (b"{", b"]", b'"', b"null", b"-1", b"9" * 25, b"\xff", b"[" * 70, b"1e999")
                    )
                case _:
                    changed[at:at] = changed[at : at + self.randrange(1, 30)]
        return bytes(changed)


def one_of(*values: object) -> Field:
    return lambda chance: chance.choice(values)


def number(low: int, high: int) -> Field:
    return lambda chance: chance.randint(low, high)


def mostly(*usual: object, other: tuple[object, ...] = NUMBERS) -> Field:
    return lambda chance: chance.choice(usual if chance.random() < 0.9 else other)


def properties(chance: Chance) -> str:
    pairs = {
        "KEYS": "k1 k2",
        "TAGS": chance.choice(("a", "b", "")),
        "UNIQ_KEY": chance.choice(("AC11", "é" * 9, "x" * 300)),
        "DELAY": str(chance.choice((0, 1, 2, 99, -1))),
        "TIMER_DELAY_MS": str(chance.choice((0, 5, 300, 10**17))),
        "TIMER_DELAY_SEC": str(chance.choice((0, 1, 10**9))),
        "TIMER_DELIVER_MS": str(chance.choice((0, int(time.time() * 1000) + 200, 1 << 62))),
        "TIMER_OUT_MS": "1",
        "REAL_TOPIC": chance.choice(TOPICS),
        "REAL_QID": str(chance.choice(NUMBERS)),
        "RETRY_TOPIC": "T",
        "WAIT": chance.choice(FLAGS),
        "TRAN_MSG": chance.choice(("false", "true", "true")),
        "PGROUP": chance.choice(GROUPS),
        "CHECK_IMMUNITY_TIME_IN_SECONDS": str(chance.choice(NUMBERS)),
        "TRANSACTION_CHECK_TIMES": str(chance.choice(NUMBERS)),
        "TRAN_PREPARED_QUEUE_OFFSET": str(chance.choice(NUMBERS)),
        "REPLY_TO_CLIENT": client_id(chance),
        "CORRELATION_ID": chance.choice(WORDS),
        "MSG_TYPE": chance.choice(("reply", "odd")),
        "TTL": str(chance.choice(NUMBERS)),
        "INNER_MULTI_DISPATCH": chance.choice(("%LMQ%a", "%LMQ%a,%LMQ%b", ",,,", "T")),
        "INNER_MULTI_QUEUE_OFFSET": chance.choice(("0", "1,2", "x")),
        "POP_CK": chance.choice(chance.receipts),
        "CLUSTER": "c",
        "n": str(chance.choice(NUMBERS)),
    }
    names = chance.sample(sorted(pairs), chance.randrange(4))
    return "".join(f"{name}\x01{pairs[name]}\x02" for name in names)


def odd_json(chance: Chance, value: Any, share: float) -> Any:
    """Return ``value`` with some of its leaves and members replaced or gone."""
    if chance.random() < share:
        return chance.choice((None, [], {}, 1.5, True, chance.choice(NUMBERS), chance.odd()))
    if isinstance(value, dict):
        return {
            key: odd_json(chance, item, share)
            for key, item in value.items()
            if chance.random() > share / 2
        }
    if isinstance(value, list):
        return [odd_json(chance, item, share) for item in value]
    return value


def json_of(make: Callable[[Chance], Any]) -> Body:
    def body(chance: Chance) -> bytes:
        value = odd_json(chance, make(chance), chance.choice((0, 0, 0.05, 0.2)))
        return json.dumps(value, ensure_ascii=chance.random() < 0.5).encode(errors="replace")

    return body


def subscription(chance: Chance) -> dict[str, Any]:
    expression_type = chance.choice(("TAG", "SQL92", None, "odd"))
    return {
        "topic": topic(chance),
        "subString": chance.choice(("*", "a || b", "n > 5 AND a = 'b'", "n BETWEEN 1 AND", "")),
        "subVersion": mostly(0, 1)(chance),
        "expressionType": expression_type,
        "tagsSet": ["a"],
        "codeSet": [97],
    }


def heartbeat(chance: Chance) -> dict[str, Any]:
    return {
        "clientID": client_id(chance),
        "producerDataSet": [{"groupName": group(chance)} for _ in range(chance.randrange(3))],
        "consumerDataSet": [
            {
                "groupName": group(chance),
                "consumeType": mostly("CONSUME_PASSIVELY", 0, other=(9, "x"))(chance),
                "messageModel": chance.choice(("CLUSTERING", "BROADCASTING", 1)),
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [subscription(chance) for _ in range(chance.randrange(3))],
            }
            for _ in range(chance.randrange(3))
        ],
    }


def group_config(chance: Chance) -> dict[str, Any]:
    return {
        "groupName": group(chance),
        "consumeEnable": chance.random() < 0.9,
        "consumeFromMinEnable": chance.random() < 0.5,
        "consumeBroadcastEnable": chance.random() < 0.5,
        "retryQueueNums": mostly(0, 1, 2)(chance),
        "retryMaxTimes": mostly(0, 1, 16)(chance),
        "brokerId": mostly(0)(chance),
        "whichBrokerWhenConsumeSlowly": mostly(1)(chance),
        "notifyConsumerIdsChangedEnable": chance.random() < 0.8,
    }


def locks(chance: Chance) -> dict[str, Any]:
    queue = {"topic": topic(chance), "brokerName": "b", "queueId": chance.choice((0, 1, *NUMBERS))}
    return {"consumerGroup": group(chance), "clientId": client_id(chance), "mqSet": [queue]}


def topic_config(chance: Chance, name: object) -> dict[str, Any]:
    return {
        "topicName": name,
        "readQueueNums": mostly(4)(chance),
        "writeQueueNums": mostly(4)(chance),
        "perm": mostly(6)(chance),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": mostly(0)(chance),
        "attributes": {"+message.type": chance.choice(("NORMAL", "FIFO", "odd"))},
    }


def registration(chance: Chance) -> dict[str, Any]:
    names = {topic(chance) for _ in range(chance.randrange(4))}
    table = {name: topic_config(chance, name) for name in names}
    version = {"timestamp": 1, "counter": chance.choice(NUMBERS), "stateVersion": 0}
    wrapper = {"dataVersion": version, "topicConfigTable": table}
    return {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}


def registration_body(chance: Chance) -> bytes:
    if chance.random() < 0.6:
        return json_of(registration)(chance)
    parts = [b'{"counter":3}', b"", b"T 8 4 6 SINGLE_TAG", b"[]"]
    texts = [chance.mutated(part) if chance.random() < 0.2 else part for part in parts]
    count = chance.choice((1, 1, 0, 1 << 31))
    data = len(texts[0]).to_bytes(4, "big") + texts[0] + count.to_bytes(4, "big")
    for text in texts[2:]:
        data += len(text).to_bytes(4, "big") + text
    return zlib.compress(data)


def batch(chance: Chance) -> bytes:
    count = chance.randrange(5)
    return encode_batch_items(
        (0, chance.randbytes(chance.randrange(50)), properties(chance).encode()[:30_000])
        for _ in range(count)
    )


def payload(chance: Chance) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 10, 1000, 70_000)))


def nothing(chance: Chance) -> bytes:
    return b""


topic: Field = one_of(*TOPICS, "T", "T")
group: Field = one_of(*GROUPS, "G")
client_id: Field = one_of("c1", "c2", "c" * 255, "é" * 100)
queue_id: Field = mostly(0, 0, 1, 3, -1, other=(7, 4095))
offset: Field = one_of(0, 0, 1, 5, 100)
flag: Field = one_of(*FLAGS)
physical: Field = lambda chance: chance.choice(chance.physical_offsets)  # noqa: E731  # as the rest
now: Field = lambda chance: int(time.time() * 1000)  # noqa: E731  # as the rest

QUEUE: Final[dict[str, Field]] = {"topic": topic, "queueId": queue_id}
GROUP_QUEUE: Final = QUEUE | {"consumerGroup": group}
SEND: Final[dict[str, Field]] = {
    "producerGroup": group,
    "topic": topic,
    "defaultTopic": one_of("TBW102", "T"),
    "defaultTopicQueueNums": number(1, 8),
    "queueId": queue_id,
    "sysFlag": mostly(0, 0, 0, 1, other=(4, 8, 0xFF)),
    "bornTimestamp": now,
    "flag": one_of(0, 7),
    "properties": properties,
    "reconsumeTimes": one_of(0, 0, 3, 17),
    "maxReconsumeTimes": one_of(16, 0, -1),
    "batch": mostly("false", other=("true", "1")),
}
LETTERS: Final = dict(zip("abcdefghijlm", SEND.values(), strict=True))
PULL: Final = GROUP_QUEUE | {
    "queueOffset": offset,
    "maxMsgNums": one_of(1, 32, 1000),
    "maxMsgBytes": one_of(1, 100_000),
    "sysFlag": one_of(4, 4, 5, 6, 2, 0, 0xFF),
    "commitOffset": offset,
    "suspendTimeoutMillis": one_of(0, 20, 200),
    "subVersion": one_of(0, 1),
    "subscription": one_of("*", "a", "n > 5", "n BETWEEN 1 AND 9 OR a IS NULL", "((("),
    "expressionType": one_of("TAG", "TAG", "SQL92"),
}
TOPIC: Final[dict[str, Field]] = {
    "topic": one_of(*TOPICS, *(f"t{i}" for i in range(400))),
    "readQueueNums": number(1, 8),
    "writeQueueNums": number(1, 8),
    "perm": one_of(6, 6, 2, 4, 7, 0),
    "topicFilterType": one_of("SINGLE_TAG", "MULTI_TAG"),
    "topicSysFlag": number(0, 3),
    "order": flag,
    "attributes": one_of("", "+message.type=FIFO", "-message.type", "+odd=1", "+=,-", "x" * 400),
}
BROKER: Final[dict[str, Field]] = {
    "clusterName": one_of("c", "d"),
    "brokerName": one_of("broker-a", "b", "e"),
    "brokerAddr": one_of("127.0.0.1:1", "127.0.0.1:2", "x"),
    "brokerId": one_of(0, 0, 1, -1),
    "haServerAddr": one_of("", "127.0.0.1:3"),
    "compressed": one_of("false", "true"),
    "heartbeatTimeoutMillis": one_of(0, 1, 60_000),
}
KV: Final[dict[str, Field]] = {
    "namespace": one_of("ORDER_TOPIC_CONFIG", "n"),
    "key": one_of("T", "U", "k"),
    "value": one_of("broker-a:4", "", "x" * 1000),
}

# What each request is made of; codes that are not here are sent with no fields.
INVISIBLE: Final = mostly(0, 1, 1100, 60_000)
POP: Final = GROUP_QUEUE | {
    "maxMsgNums": mostly(1, 32, other=(0, 33, -1, 1 << 31)),
    "invisibleTime": INVISIBLE,
    "pollTime": mostly(0, 0, 100, 2_000),
    "bornTime": now,
    "initMode": one_of(0, 1, 2),
    "expType": one_of("TAG", "SQL92", "odd", ""),
    "exp": one_of("*", "A || B", "k > 1", "((("),
    "order": flag,
    "attemptId": one_of("a", "b", "x" * 300),
}


def receipt(chance: Chance) -> str:
    """Name a pop that has been or may have been, or something like it."""
    if chance.random() < 0.5:
        return chance.choice(chance.receipts)
    parts = [chance.choice((0, 1, *NUMBERS)) for _ in range(4)]
    parts[3] = chance.choice((0, 7, 8, 999, *NUMBERS))
    return " ".join(map(str, [*parts, chance.choice("0129x"), "broker-a", 0, 0]))


MESSAGE_IN_WORK: Final = GROUP_QUEUE | {
    "offset": offset,
    "extraInfo": lambda chance: chance.choice((receipt(chance), "", "0 " * 300, "x")),
    "invisibleTime": INVISIBLE,
}


def message_id(chance: Chance) -> str:
    return chance.choice(chance.message_ids)


def handle(chance: Chance) -> str:
    """Name a message that waits, one that might, or none."""
    now_ms = int(time.time() * 1000)
    due_ms = chance.choice((0, now_ms + 100, now_ms + 5_000, 1 << 62))
    made = RecallHandle(chance.choice(TOPICS), "broker-a", due_ms, chance.choice(("AC11", "x")))
    return chance.choice((chance.choice(chance.handles), made.encode() or "", "djE", "\x00"))


def half_end(part: int) -> Field:
    """Return one of the three names of a half message, which often belong together."""
    # The same choice for all parts of one request: the last half message, or any.
    return lambda chance: chance.choice((chance.halves[-1], chance.choice(chance.halves)))[part]


def topic_configs(chance: Chance) -> dict[str, Any]:
    return {"topicConfigList": [topic_config(chance, topic(chance)) for _ in range(3)]}


def group_configs(chance: Chance) -> dict[str, Any]:
    return {"groupConfigList": [group_config(chance) for _ in range(3)]}


def switches(chance: Chance) -> bytes:
    """Return settings; those that would refuse all that follows are named seldom."""
    names = ["recallMessageEnable", "storeReplyMessageEnable", "storePathRootDir", "odd", ""]
    if chance.random() < 0.05:
        names += ["autoCreateTopicEnable", "autoCreateSubscriptionGroup"]
    lines = [f"{chance.choice(names)}={chance.choice((*FLAGS, chance.odd()[:99]))}"]
    return "\n".join(lines * chance.randrange(3)).encode(errors="replace")


def batch_ack(chance: Chance) -> dict[str, Any]:
    return {
        "brokerName": "broker-a",
        "acks": [
            {
                "c": chance.choice(GROUPS),
                "t": chance.choice(TOPICS),
                "r": chance.choice("012x"),
                "so": chance.choice(NUMBERS),
                "q": 0,
                "rq": chance.choice((0, 999, *NUMBERS)),
                "pt": chance.choice(NUMBERS),
                "it": 1,
                "b": chance.choice(("", "AQ==", "/" * 4000, "!")),
            }
            for _ in range(chance.randint(0, 4))
        ],
    }


def assignment(chance: Chance) -> dict[str, Any]:
    return {
        "topic": chance.choice(TOPICS),
        "consumerGroup": chance.choice(GROUPS),
        "clientId": "c1",
        "strategyName": chance.choice(("AVG", "AVG_BY_CIRCLE", "odd")),
        "messageModel": chance.choice(("CLUSTERING", "BROADCASTING", "odd")),
        "mode": chance.choice(("POP", "PULL", "odd")),
        "popShareQueueNum": chance.choice((0, 1, -1, *NUMBERS)),
    }


BROKER_REQUESTS: Final[dict[int, tuple[dict[str, Field], Body]]] = {
    RequestCode.SEND_MESSAGE: (SEND, payload),
    RequestCode.SEND_MESSAGE_V2: (LETTERS, payload),
    RequestCode.SEND_BATCH_MESSAGE: (LETTERS, batch),
    RequestCode.PULL_MESSAGE: (PULL, nothing),
    RequestCode.LITE_PULL_MESSAGE: (PULL, nothing),
    RequestCode.POP_MESSAGE: (POP, nothing),
    RequestCode.PEEK_MESSAGE: (POP, nothing),
    RequestCode.NOTIFICATION: (POP, nothing),
    RequestCode.POLLING_INFO: (POP, nothing),
    RequestCode.ACK_MESSAGE: (MESSAGE_IN_WORK, nothing),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: (MESSAGE_IN_WORK, nothing),
    RequestCode.BATCH_ACK_MESSAGE: ({}, json_of(batch_ack)),
    RequestCode.QUERY_ASSIGNMENT: ({}, json_of(assignment)),
    RequestCode.SET_MESSAGE_REQUEST_MODE: ({}, json_of(assignment)),
    RequestCode.END_TRANSACTION: (
        {
            "producerGroup": group,
            "tranStateTableOffset": half_end(0),
            "commitLogOffset": half_end(1),
            "msgId": half_end(2),
            "transactionId": half_end(2),
            "commitOrRollback": one_of(8, 8, 12, 0, 9),
            "fromTransactionCheck": flag,
        },
        nothing,
    ),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: ({"topic": topic, "msgId": message_id}, nothing),
    RequestCode.RECALL_MESSAGE: (
        {"producerGroup": group, "topic": topic, "recallHandle": handle, "bname": one_of("b")},
        nothing,
    ),
    RequestCode.SEND_REPLY_MESSAGE: (SEND, payload),
    RequestCode.SEND_REPLY_MESSAGE_V2: (LETTERS, payload),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: ({}, json_of(topic_configs)),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ({}, json_of(group_configs)),
    RequestCode.DELETE_TOPIC_IN_BROKER: ({"topic": topic}, nothing),
    RequestCode.UPDATE_BROKER_CONFIG: ({}, switches),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (
        GROUP_QUEUE
        | {
            "group": group,
            "timestamp": mostly(0, -1, 1),
            "offset": mostly(-1, 0, 1),
            "isForce": flag,
            "isC": flag,
        },
        nothing,
    ),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (
        {"topic": topic, "group": group, "clientAddr": one_of("", "", "c1", "x")},
        nothing,
    ),
    RequestCode.QUERY_CONSUME_TIME_SPAN: ({"topic": topic, "group": group}, nothing),
    RequestCode.GET_CONSUMER_RUNNING_INFO: (
        {"consumerGroup": group, "clientId": client_id, "jstackEnable": flag},
        nothing,
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: (
        {"consumerGroup": group, "clientId": client_id, "msgId": message_id, "topic": topic},
        nothing,
    ),
    RequestCode.QUERY_CORRECTION_OFFSET: (
        {"topic": topic, "filterGroups": one_of("", "G", "G,H,,"), "compareGroup": group},
        nothing,
    ),
    RequestCode.CLONE_GROUP_OFFSET: (
        {"srcGroup": group, "destGroup": group, "topic": topic, "offline": flag},
        nothing,
    ),
    RequestCode.GET_BROKER_CONSUME_STATS: ({"isOrder": flag}, nothing),
    RequestCode.QUERY_CONSUME_QUEUE: (
        GROUP_QUEUE | {"index": mostly(0, 1), "count": mostly(1, 100)},
        nothing,
    ),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: ({"group": group}, nothing),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: ({"group": group, "topic": topic}, nothing),
    RequestCode.QUERY_MESSAGE: (
        {
            "topic": topic,
            "key": one_of("k1", "AC11", ""),
            "maxNum": one_of(1, 64),
            "beginTimestamp": one_of(0, 1),
            "endTimestamp": one_of(1 << 60, 0),
            "_UNIQUE_KEY_QUERY": flag,
        },
        nothing,
    ),
    RequestCode.QUERY_CONSUMER_OFFSET: (GROUP_QUEUE | {"setZeroIfNotFound": flag}, nothing),
    RequestCode.UPDATE_CONSUMER_OFFSET: (GROUP_QUEUE | {"commitOffset": offset}, nothing),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: (QUEUE | {"timestamp": now}, nothing),
    RequestCode.GET_MAX_OFFSET: (QUEUE, nothing),
    RequestCode.GET_MIN_OFFSET: (QUEUE, nothing),
    RequestCode.GET_EARLIEST_MSG_STORETIME: (QUEUE, nothing),
    RequestCode.UPDATE_AND_CREATE_TOPIC: (TOPIC, nothing),
    RequestCode.GET_TOPIC_CONFIG: ({"topic": topic}, nothing),
    RequestCode.VIEW_MESSAGE_BY_ID: ({"offset": physical}, nothing),
    RequestCode.HEART_BEAT: ({}, json_of(heartbeat)),
    RequestCode.UNREGISTER_CLIENT: (
        {"clientID": client_id, "producerGroup": group, "consumerGroup": group},
        nothing,
    ),
    RequestCode.CONSUMER_SEND_MSG_BACK: (
        {
            "group": group,
            "offset": physical,
            "delayLevel": one_of(0, 1, -1, 99),
            "maxReconsumeTimes": one_of(16, 0, -1),
            "originTopic": topic,
        },
        nothing,
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ({"consumerGroup": group}, nothing),
    RequestCode.LOCK_BATCH_MQ: ({}, json_of(locks)),
    RequestCode.UNLOCK_BATCH_MQ: ({}, json_of(locks)),
    RequestCode.CHECK_CLIENT_CONFIG: (
        {},
        json_of(lambda chance: {"subscriptionData": subscription(chance)}),
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ({}, json_of(group_config)),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ({"groupName": group, "cleanOffset": flag}, nothing),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: ({"group": group}, nothing),
    RequestCode.GET_TOPIC_STATS_INFO: ({"topic": topic}, nothing),
    RequestCode.GET_CONSUME_STATS: ({"consumerGroup": group, "topic": topic}, nothing),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: ({"consumerGroup": group}, nothing),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: ({"producerGroup": group}, nothing),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: ({"topic": topic}, nothing),
    RequestCode.VIEW_BROKER_STATS_DATA: (
        {"statsName": one_of("TOPIC_PUT_NUMS", "GROUP_GET_SIZE"), "statsKey": one_of("T", "T@G")},
        nothing,
    ),
}
NAMESRV_REQUESTS: Final[dict[int, tuple[dict[str, Field], Body]]] = {
    RequestCode.REGISTER_BROKER: (BROKER, registration_body),
    RequestCode.UNREGISTER_BROKER: (BROKER, nothing),
    RequestCode.BROKER_HEARTBEAT: (BROKER, nothing),
    RequestCode.QUERY_DATA_VERSION: (
        BROKER,
        json_of(lambda chance: {"counter": chance.choice(NUMBERS), "timestamp": 1}),
    ),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: ({"topic": topic}, nothing),
    RequestCode.GET_TOPICS_BY_CLUSTER: ({"cluster": one_of("c", "DefaultCluster")}, nothing),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: (
        {"topic": topic, "clusterName": one_of("c", "")},
        nothing,
    ),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: ({"brokerName": one_of("b", "broker-a")}, nothing),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: ({"brokerName": one_of("b", "broker-a")}, nothing),
    RequestCode.PUT_KV_CONFIG: (KV, nothing),
    RequestCode.GET_KV_CONFIG: (KV, nothing),
    RequestCode.DELETE_KV_CONFIG: (KV, nothing),
    RequestCode.GET_KVLIST_BY_NAMESPACE: (KV, nothing),
    RequestCode.GET_BROKER_MEMBER_GROUP: (BROKER, nothing),
    RequestCode.UPDATE_NAMESRV_CONFIG: ({}, switches),
}
ALL_CODES: Final[tuple[int, ...]] = tuple(sorted(RequestCode))
# Those whose fields are kept, and may come back in an answer.
KEEPING_OF_BROKER: Final[tuple[int, ...]] = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.SEND_MESSAGE_V2,
)
KEEPING_OF_NAMESRV: Final[tuple[int, ...]] = (
    RequestCode.REGISTER_BROKER,
    RequestCode.PUT_KV_CONFIG,
)
FREQUENT: Final = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.PULL_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.HEART_BEAT,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.END_TRANSACTION,
)


def is_held_for_long(request: RemotingCommand) -> bool:
    """Whether its answer may come too late for us, as it asks to wait for a message."""
    times = (request.ext.get(name, "") for name in ("pollTime", "suspendTimeoutMillis"))
    return any(text.isdecimal() and len(text) > len("9999") for text in times)


class Round:
    """One stack, its folder, and what is asked of it."""

    def __init__(self, chance: Chance, folder: Path, errors: Errors) -> None:
        self._chance = chance
        self._folder = folder
        self._errors = errors

    async def run(self) -> None:
        with trio.fail_after(ROUND_WITHIN_S):
            async with self._stack() as (namesrv, broker):
                await self._attack(namesrv, broker)
                self._check(namesrv, broker)
            # What was saved must be what a start takes.
            async with self._stack() as (namesrv, broker):
                await self._ping(namesrv, broker)
                self._check(namesrv, broker)

    @asynccontextmanager
    async def _stack(self) -> AsyncIterator[tuple[NameServer, Broker]]:
        async with trio.open_nursery() as nursery:
            kv_file = StateFile(str(self._folder / "namesrv" / "kvConfig.json"), holds="entries")
            limits: dict[str, Any] = {"brokers_max": 20, "topics_max": 1000, "kv_entries_max": 20}
            namesrv = NameServer(
                NamesrvConfig(listen="127.0.0.1:0", scan_interval_s=0.2, **limits), kv_file=kv_file
            )
            await nursery.start(namesrv.run)
            broker = Broker(
                BrokerConfig(
                    listen="127.0.0.1:0",
                    namesrv=(joined(namesrv.address),),
                    store=store_config(
                        self._folder,
                        flush=self._chance.choice(("async", "sync")),
                        delay_levels="1s 2s",
                    ),
                    register_interval_s=0.2,
                    save_interval_s=0.1,
                    delay_save_interval_s=0.1,
                    transaction_timeout_s=0.1,
                    transaction_check_interval_s=0.1,
                    transaction_check_max=3,
                    pop_in_work_per_queue_max=50,
                    pop_in_work_max=100,
                    topics_max=100,
                    groups_max=50,
                    clients_max=50,
                    offset_entries_max=50,
                    held_pulls_max=40,
                    held_pulls_per_connection_max=10,
                )
            )
            await nursery.start(broker.run)
            yield namesrv, broker
            nursery.cancel_scope.cancel()

    async def _attack(self, namesrv: NameServer, broker: Broker) -> None:
        async with (
            self._client(joined(namesrv.address)) as to_namesrv,
            self._client(joined(broker.address)) as to_broker,
        ):
            # Who says nothing for seconds is not waited for.
            await self._ask(to_namesrv, self._request(NAMESRV_REQUESTS, 0.0))
            for request in self._built_up():
                await self._ask(to_broker, request)
            for request in self._filled(BROKER_REQUESTS, KEEPING_OF_BROKER):
                await self._ask(to_broker, request)
            for request in self._filled(NAMESRV_REQUESTS, KEEPING_OF_NAMESRV):
                await self._ask(to_namesrv, request)
            for share in (0.0, 0.05, 0.3):
                for _ in range(REQUESTS_PER_ROUND // (3 * AT_ONCE)):
                    async with trio.open_nursery() as nursery:
                        for _ in range(AT_ONCE):
                            is_broker = self._chance.random() < 0.75
                            client = to_broker if is_broker else to_namesrv
                            requests = BROKER_REQUESTS if is_broker else NAMESRV_REQUESTS
                            nursery.start_soon(self._ask, client, self._request(requests, share))
                    self._errors.check()
                address = self._chance.choice((namesrv.address, broker.address))
                await self._send_garbage(joined(address))
                await self._ping(namesrv, broker)
        # Delays of the first level come due, silent connections are forgotten.
        await trio.sleep(self._chance.choice((0, 0.2, 1.2)))
        await self._ping(namesrv, broker)

    def _built_up(self) -> Iterator[RemotingCommand]:
        """Yield well-formed requests that give the others something to work on."""
        codes = (
            *[RequestCode.UPDATE_AND_CREATE_TOPIC] * 5,
            *[RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP] * 5,
            *[RequestCode.HEART_BEAT] * 5,
            *[RequestCode.SEND_MESSAGE_V2] * 25,
            *[RequestCode.SEND_BATCH_MESSAGE] * 5,
            *[RequestCode.CONSUMER_SEND_MSG_BACK] * 10,
            *[RequestCode.POP_MESSAGE] * 10,
            *[RequestCode.END_TRANSACTION] * 5,
        )
        for code in codes:
            fields, make_body = BROKER_REQUESTS[code]
            ext = {name: str(make(self._chance)) for name, make in fields.items()}
            yield RemotingCommand(code, ext=ext, body=make_body(self._chance))

    def _filled(
        self, requests: dict[int, tuple[dict[str, Field], Body]], codes: tuple[int, ...]
    ) -> Iterator[RemotingCommand]:
        """Yield requests that together want more kept in one field than an answer can hold."""
        code = self._chance.choice(codes)
        fields, make_body = requests[code]
        filled = self._chance.choice(list(fields))
        for number_ in range(8):
            ext = {name: str(make(self._chance)) for name, make in fields.items()}
            ext[filled] = "x" * 2_500_000 + str(number_)
            if code == RequestCode.UPDATE_AND_CREATE_TOPIC and filled != "topic":
                ext["topic"] = f"filled{number_}"
            yield RemotingCommand(code, ext=ext, body=make_body(self._chance))

    @asynccontextmanager
    async def _client(self, address: str) -> AsyncIterator[RemotingClient]:
        stream = await connect(address, timeout_s=ANSWER_WITHIN_S)
        async with trio.open_nursery() as nursery:
            client = RemotingClient(stream, peer=address, on_request=self._answer)
            await nursery.start(client.run)
            yield client
            nursery.cancel_scope.cancel()

    def _answer(self, command: RemotingCommand) -> RemotingCommand | Later | None:
        """Answer what the broker asks: with the body that it may expect, anything, or late."""
        chance = self._chance
        code = chance.choice((0, 0, 0, 1, 3, 999, 1 << 20))
        table = {"messageQueueTable": {'{"topic":"T","brokerName":"b","queueId":0}': 1}}
        body = chance.choice((b"", b"{}", json.dumps(table).encode(), chance.randbytes(30)))
        # What does not fit a frame, a client cannot send either.
        texts = [chance.odd()[:300_000] for _ in range(3)]
        ext = {texts[0][:300]: texts[1]} if chance.random() < 0.3 else {}
        odd = command.answer(code, chance.choice((None, "no", texts[2])), ext, body)

        async def later() -> RemotingCommand:
            await trio.sleep(12 if chance.random() < 0.05 else 0.05)
            return command.answer()

        return chance.choice((odd, odd, odd, None, later))

    def _request(
        self, requests: dict[int, tuple[dict[str, Field], Body]], share: float
    ) -> RemotingCommand:
        """Return a request of which each part is odd with a probability of ``share``."""
        chance = self._chance
        frequent = [code for code in FREQUENT if code in requests]
        known: list[int] = [*requests, *frequent * 4]
        code = chance.choice(known if chance.random() < 0.85 else ALL_CODES)
        fields, make_body = requests.get(code, ({}, nothing))
        ext = {}
        for name, make in fields.items():
            if chance.random() < share / 2:
                continue
            ext[name] = chance.odd() if chance.random() < share else str(make(chance))
        if chance.random() < share:
            ext[chance.odd()[:1000]] = chance.odd()
        body = make_body(chance)
        if chance.random() < share:
            body = chance.mutated(body)
        return RemotingCommand(
            code if chance.random() > share / 5 else chance.randrange(-(1 << 15), 1 << 15),
            ext=ext,
            body=body,
            flag=FLAG_ONEWAY if chance.random() < 0.05 else 0,
            version=chance.choice((409, 0, 1 << 14)),
            language=chance.choice(list(Language)),
            serialize=chance.choice(list(Serialize)),
        )

    async def _ask(self, client: RemotingClient, request: RemotingCommand) -> None:
        try:
            if request.is_oneway:
                await client.send_oneway(request, timeout_s=ANSWER_WITHIN_S)
                return
            if is_held_for_long(request):
                with trio.move_on_after(HELD_WITHIN_S):
                    await client.request(request, timeout_s=ANSWER_WITHIN_S)
                return
            answer = await client.request(request, timeout_s=ANSWER_WITHIN_S)
        except ValueError:
            return  # it does not fit a frame: a client cannot send it either
        except RemotingError as exc:
            shown = {key[:40]: value[:80] for key, value in request.ext.items()}
            text = f"request {request.code} ext={shown!r} body={request.body[:300]!r}"
            raise FoundError(f"{exc}\n{text}") from exc
        self._chance.learn(request, answer)

    async def _send_garbage(self, address: str) -> None:
        """Send frames that are none; the connection may end."""
        try:
            frame = encode(self._request(BROKER_REQUESTS, self._chance.choice((0.1, 0))))
        except ValueError:
            frame = b""  # it does not fit a frame
        data = self._chance.mutated(frame[:100_000])
        stream = await connect(address, timeout_s=ANSWER_WITHIN_S)
        async with stream:
            with trio.move_on_after(0.02), suppress(trio.BrokenResourceError):
                await stream.send_all(data)
                await stream.receive_some()

    async def _ping(self, namesrv: NameServer, broker: Broker) -> None:
        """Ask both on connections of their own, and for all that they keep."""
        keeps = {
            joined(broker.address): (
                (RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}),
                (RequestCode.GET_ALL_TOPIC_CONFIG, {}),
                (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
                (RequestCode.GET_ALL_CONSUMER_OFFSET, {}),
                (RequestCode.GET_ALL_DELAY_OFFSET, {}),
                (RequestCode.GET_BROKER_RUNTIME_INFO, {}),
            ),
            joined(namesrv.address): (
                (RequestCode.GET_BROKER_CLUSTER_INFO, {}),
                (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
            ),
        }
        for address, requests in keeps.items():
            async with self._client(address) as client:
                for code, ext in requests:
                    command = RemotingCommand(code, ext=dict(ext))
                    answer = await client.request(command, timeout_s=ANSWER_WITHIN_S)
                    if answer.code:
                        raise FoundError(f"{code!r} answers {answer.code} {answer.remark}")

    def _check(self, namesrv: NameServer, broker: Broker) -> None:
        self._errors.check()
        if broker.api.fence_reason is not None:
            raise FoundError(f"the store is fenced: {broker.api.fence_reason}")
        namesrv.routes._check()
        broker.tables.consumers._check()
        broker.tables.producers._check()
        broker.tables.offsets._check()
        broker.parts.processors.pull.held._check()
        broker.parts.processors.pop_service.checkpoints._check()


def main() -> int:
    arguments = sys.argv[1:]
    seconds = float(arguments[0]) if arguments else 15
    seed = int(arguments[1]) if len(arguments) > 1 else random.randrange(2**32)
    only = int(arguments[2]) if len(arguments) > 2 else None
    print(f"fuzz_servers seed={seed}", flush=True)  # noqa: T201
    errors = Errors()
    logging.getLogger().addHandler(errors)
    end = time.monotonic() + seconds
    number_ = 0 if only is None else only
    while True:
        errors.texts.clear()
        with tempfile.TemporaryDirectory(prefix="motelog-fuzz-") as folder:
            try:
                trio.run(Round(Chance(f"{seed}/{number_}"), Path(folder), errors).run)
            except BaseException as exc:
                if isinstance(exc, KeyboardInterrupt):
                    raise
                traceback.print_exception(exc)
                print("\n".join(errors.texts[:3]))  # noqa: T201
                print(f"again: python tests/fuzz/fuzz_servers.py 0 {seed} {number_}")  # noqa: T201
                return 1
        number_ += 1
        if only is not None or time.monotonic() >= end:
            break
    print(f"fuzz_servers rounds={number_ - (only or 0)}: no fault")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
