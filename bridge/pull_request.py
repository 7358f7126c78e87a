"""A pull on the wire: the fields of its request and answer.

Owns: PullResult, PullStatus, default sizes of a request. Must not touch: sockets, trio tasks.
Spec: RocketMQ PullMessageRequestHeader, PullAPIWrapper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from motelog.bridge.client import int_field, refusal
from motelog.bridge.routes import MASTER_ID
from motelog.bridge.selector import Selector
from motelog.core.message import MessageQueue
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.remoting.codes import LOG_KEY
from motelog.core.remoting.frames import PullSysFlag, RemotingCommand, RequestCode, ResponseCode

# Brokers may return less; RocketMQ stops at 32 messages or 256 KiB.
PULL_COUNT: Final = 512
PULL_BYTES_MAX: Final = 262_144


class PullStatus(IntEnum):
    """What a pull found; the next offset is valid in each case."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


@dataclass(frozen=True, slots=True)
class PullResult:
    """One answer of a broker; ``records`` are stored records back to back (core.records.layout).

    They may be a view of memory that is reused; the call that returned this says so. If they are
    read from the broker's files (bridge.mapped_log), there are only ``pieces``.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes | memoryview
    suggested_broker_id: int = MASTER_ID
    mapped: Iterator[bytes] | None = None

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yield the records in pieces, once; UnreadableLogError as in bridge.mapped_log."""
        return iter((self.records,)) if self.mapped is None else self.mapped

    def messages(self) -> list[StoredMessage]:
        """Decode ``records``; RecordError if they are damaged."""
        return decode_messages(self.records)


def pull_command(
    queue: MessageQueue,
    queue_offset: int,
    *,
    group: str,
    count_max: int,
    bytes_max: int,
    hold_s: float,
    selector: Selector,
    log_key: str | None = None,
) -> RemotingCommand:
    """Return the request for a pull; ``pull_result`` decodes its answer.

    With ``log_key`` the answer may have units instead of records (bridge.mapped_log).
    """
    sys_flag = PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if hold_s > 0 else 0)
    ext = queue_ext(queue) | {
        "consumerGroup": group,
        "queueOffset": str(queue_offset),
        "maxMsgNums": str(count_max),
        "maxMsgBytes": str(bytes_max),
        "sysFlag": str(int(sys_flag)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(int(hold_s * 1000)),
        "subscription": selector.expression,
        "subVersion": "0",
        "expressionType": selector.expression_type,
    }
    if log_key is not None:
        ext[LOG_KEY] = log_key
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext)


def pull_result(answer: RemotingCommand, body: bytes | memoryview) -> PullResult:
    """Decode an answer and its body; BrokerError if the broker refused."""
    try:
        status = PullStatus(answer.code)
    except ValueError:
        raise refusal(answer) from None
    return PullResult(
        status=status,
        next_offset=int_field(answer, "nextBeginOffset"),
        min_offset=int_field(answer, "minOffset"),
        max_offset=int_field(answer, "maxOffset"),
        records=body if status is PullStatus.FOUND else b"",
        suggested_broker_id=int_field(answer, "suggestWhichBrokerId"),
    )


def queue_ext(queue: MessageQueue) -> dict[str, str]:
    """Return the request fields that name a queue."""
    return {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}
