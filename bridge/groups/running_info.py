"""A consumer's answers to an operator: mqadmin consumerStatus and the like.

Owns: the bodies of the answers to 221 (offsets), 307 (running info) and 309 (a message consumed
directly), and the stack traces. Must not touch: sockets, trio.
Spec: RocketMQ ConsumerRunningInfo, ProcessQueueInfo, GetConsumerStatusBody,
ConsumeMessageDirectlyResult.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, Final

from motelog.core.message import MessageQueue
from motelog.core.remoting.codes import VERSION_CURRENT
from motelog.core.remoting.frames import dumps

# All fields of a ProcessQueueInfo; those that a consumer does not have are 0.
_QUEUE_INFO: Final = {
    "commitOffset": 0,
    "cachedMsgMinOffset": 0,
    "cachedMsgMaxOffset": 0,
    "cachedMsgCount": 0,
    "cachedMsgSizeInMiB": 0,
    "transactionMsgMinOffset": 0,
    "transactionMsgMaxOffset": 0,
    "transactionMsgCount": 0,
    "locked": False,
    "tryUnlockTimes": 0,
    "lastLockTimestamp": 0,
    "droped": False,
    "lastPullTimestamp": 0,
    "lastConsumeTimestamp": 0,
}


def running_info(
    *,
    namesrv: Iterable[str],
    is_push: bool,
    is_orderly: bool,
    workers: int,
    started_ms: int,
    subscriptions: list[dict[str, Any]],
    queues: Mapping[MessageQueue, Mapping[str, Any]],
    statuses: Mapping[str, Mapping[str, Any]],
    with_stacks: bool,
) -> bytes:
    """Return the body of an answer to GET_CONSUMER_RUNNING_INFO."""
    info = {
        "properties": {
            "PROP_CLIENT_VERSION": f"motelog, speaks {VERSION_CURRENT}",
            "PROP_CONSUMEORDERLY": str(is_orderly).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY" if is_push else "CONSUME_ACTIVELY",
            "PROP_NAMESERVER_ADDR": ";".join(namesrv),
            "PROP_THREADPOOL_CORE_SIZE": str(workers),
        },
        "subscriptionSet": subscriptions,
        "mqTable": {queue: {**_QUEUE_INFO, **found} for queue, found in queues.items()},
        "mqPopTable": {},
        "statusTable": statuses,
        "userConsumerInfo": {},
    }
    if with_stacks:
        info["jstack"] = _stacks()
    return dumps(info)


def consumer_status(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the body of an answer to GET_CONSUMER_STATUS_FROM_CLIENT."""
    return dumps({"consumerTable": {}, "messageQueueTable": offsets})


def directly_result(*, is_orderly: bool, failure: Exception | None, took_s: float) -> bytes:
    """Return the body of an answer to CONSUME_MESSAGE_DIRECTLY."""
    return dumps(
        {
            "autoCommit": True,
            "consumeResult": "CR_SUCCESS" if failure is None else "CR_THROW_EXCEPTION",
            "order": is_orderly,
            "remark": None if failure is None else repr(failure),
            "spentTimeMills": int(took_s * 1000),
        }
    )


def _stacks() -> str:
    """Return the stack trace of each thread, like Java's jstack."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
