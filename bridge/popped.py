"""POP on the wire: the requests of a popping consumer, and their decoded answers.

Owns: PoppedMessage, which messages one acknowledgement names. Must not touch: sockets, trio tasks.
Spec: RocketMQ MQClientAPIImpl.processPopResponse, ExtraInfoUtil, BatchAckMessageRequestBody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from motelog.bridge.client import int_field, refusal
from motelog.bridge.errors import ClientError
from motelog.bridge.selector import Selector
from motelog.core.errors import RemotingDecodeError
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Serialize,
    dumps,
)
from motelog.core.remoting.pop_fields import (
    NORMAL,
    Receipt,
    decode_begins,
    decode_deliveries,
    decode_receipt,
    encode_bits,
    real_topic,
)

POP_CK: Final = "POP_CK"
#: The most messages that brokers return for one pop.
POP_COUNT_MAX: Final = 32
#: The number of parts of a receipt that ends with the message's queue offset.
_SPACES_WITH_OFFSET: Final = 7
_NOTHING: Final = frozenset(
    {
        ResponseCode.POLLING_TIMEOUT,
        ResponseCode.POLLING_FULL,
        ResponseCode.PULL_NOT_FOUND,
    }
)


class PoppedMessage(StoredMessage):
    """A message that this group has in work until it is acknowledged or its invisible time ends.

    ``receipt`` identifies this delivery. ``queue_id`` and ``queue_offset`` say where the message is
    stored, which changes when it is delivered again.
    """

    __slots__ = ("_receipt",)
    FIELDS = (*StoredMessage.FIELDS, "receipt")

    _receipt: str

    def __init__(self, *fields: Any, receipt: str, **named: Any) -> None:
        super().__init__(*fields, **named)
        object.__setattr__(self, "_receipt", receipt)

    @property
    def receipt(self) -> str:
        return self._receipt

    @property
    def delivery_attempt(self) -> int:
        """How often it was delivered, including this time."""
        return self.reconsume_times + 1

    @property
    def invisible_until_ms(self) -> int:
        """When it will be delivered again unless acknowledged, by the broker's clock."""
        receipt = decode_receipt(self.receipt)
        return receipt.pop_time_ms + receipt.invisible_ms


def pop_command(
    topic: str,
    group: str,
    selector: Selector,
    *,
    count_max: int,
    invisible_ms: int,
    wait_ms: int,
    now_ms: int,
    attempt: str | None,
) -> RemotingCommand:
    """Return the request for a pop of all queues; with ``attempt`` an ordered one."""
    ext = _place(topic, group, wait_ms, now_ms, attempt) | {
        "maxMsgNums": str(count_max),
        "invisibleTime": str(invisible_ms),
        # From the first message on, like a new group of PullConsumer.
        "initMode": "0",
        "expType": selector.expression_type,
        "exp": selector.expression,
    }
    return _command(RequestCode.POP_MESSAGE, ext)


def notification_command(
    topic: str, group: str, *, wait_ms: int, now_ms: int, is_order: bool
) -> RemotingCommand:
    """Return the request that is answered when there are messages to pop."""
    ext = _place(topic, group, wait_ms, now_ms, "" if is_order else None)
    return _command(RequestCode.NOTIFICATION, ext)


def _place(
    topic: str, group: str, wait_ms: int, now_ms: int, attempt: str | None
) -> dict[str, str]:
    ext = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "-1",
        "pollTime": str(wait_ms),
        "bornTime": str(now_ms),
        "order": "false" if attempt is None else "true",
    }
    return ext | {"attemptId": attempt} if attempt else ext


def popped(answer: RemotingCommand, topic: str, broker_name: str) -> list[PoppedMessage]:
    """Return the messages of an answer; BrokerError if the broker refused."""
    if answer.code in _NOTHING:
        return []
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, topic)
    ext = answer.ext
    try:
        begins = decode_begins(ext.get("startOffsetInfo", ""))
        deliveries = decode_deliveries(ext.get("orderCountInfo", ""))
    except ValueError as exc:
        raise RemotingDecodeError(f"the answer to a pop cannot be read: {exc}") from exc
    found = []
    for message in decode_messages(answer.body):
        receipt = message.properties.pop(POP_CK, None)
        queue_id, offset = message.queue_id, message.queue_offset
        if receipt is None:
            begin = begins.get((NORMAL, queue_id))
            if begin is None:
                raise RemotingDecodeError(f"the answer to a pop lacks queue {queue_id}")
            receipt = Receipt(
                begin,
                int_field(answer, "popTime"),
                int_field(answer, "invisibleTime"),
                int_field(answer, "reviveQid"),
                NORMAL,
                broker_name,
                queue_id,
                offset,
            ).encode()
        times = deliveries.get((NORMAL, queue_id, offset), message.reconsume_times)
        fields = message.as_dict() | {"topic": topic, "reconsume_times": times}
        found.append(PoppedMessage(**fields, receipt=receipt))
    return found


def read_receipt(message: PoppedMessage) -> Receipt:
    """Return a message's parsed receipt; ClientError if it is not from a pop."""
    try:
        return decode_receipt(message.receipt)
    except ValueError as exc:
        raise ClientError(f"the receipt of {message.message_id} is malformed: {exc}") from exc


def ack_command(message: PoppedMessage, group: str) -> RemotingCommand:
    """Return the request that acknowledges one message."""
    return _command(RequestCode.ACK_MESSAGE, _message_ext(message, group))


def change_command(message: PoppedMessage, group: str, invisible_ms: int) -> RemotingCommand:
    """Return the request that changes when a message is delivered again."""
    ext = _message_ext(message, group) | {"invisibleTime": str(invisible_ms)}
    return _command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)


def changed(message: PoppedMessage, answer: RemotingCommand) -> PoppedMessage:
    """Return the message with its new receipt."""
    receipt = read_receipt(message)
    # An ordered message keeps its checkpoint; others get a new one.
    begin = receipt.begin_offset if receipt.is_order else message.queue_offset
    now = replace(
        receipt,
        begin_offset=begin,
        pop_time_ms=int_field(answer, "popTime"),
        invisible_ms=int_field(answer, "invisibleTime"),
        revive_queue=int_field(answer, "reviveQid"),
    )
    return message.replace(receipt=now.encode())


def ack_many_commands(
    messages: Iterable[PoppedMessage], group: str
) -> list[tuple[PoppedMessage, RemotingCommand]]:
    """Return (one message, request to acknowledge all of them) for each broker."""
    pops: dict[str, Receipt] = {}
    firsts: dict[str, PoppedMessage] = {}
    offsets: dict[tuple[str, Receipt], list[int]] = defaultdict(list)
    for message in messages:
        pop = _pop_of(message, pops)
        firsts.setdefault(pop.broker_name, message)
        offsets[message.topic, pop].append(message.queue_offset - pop.begin_offset)
    return [(first, _ack_command(name, group, offsets)) for name, first in firsts.items()]


def _pop_of(message: PoppedMessage, known: dict[str, Receipt]) -> Receipt:
    """Return the receipt without the message's offset, the part that a pop's messages share."""
    text = message.receipt
    shared = text.rpartition(" ")[0] if text.count(" ") == _SPACES_WITH_OFFSET else text
    pop = known.get(shared)
    if pop is None:
        pop = known[shared] = replace(read_receipt(message), queue_offset=None)
    return pop


def _ack_command(
    broker_name: str, group: str, offsets: Mapping[tuple[str, Receipt], list[int]]
) -> RemotingCommand:
    acks = [
        {
            "c": group,
            "t": topic,
            "r": pop.kind,
            "so": pop.begin_offset,
            "q": pop.queue_id,
            "rq": pop.revive_queue,
            "pt": pop.pop_time_ms,
            "it": pop.invisible_ms,
            "b": encode_bits(indexes),
        }
        for (topic, pop), indexes in offsets.items()
        if pop.broker_name == broker_name
    ]
    body = dumps({"brokerName": broker_name, "acks": acks})
    return RemotingCommand(RequestCode.BATCH_ACK_MESSAGE, body=body, serialize=Serialize.JSON)


def _message_ext(message: PoppedMessage, group: str) -> dict[str, str]:
    receipt = read_receipt(message)
    return {
        "consumerGroup": group,
        "topic": real_topic(message.topic, group, receipt.kind),
        "queueId": str(message.queue_id),
        "offset": str(message.queue_offset),
        "extraInfo": message.receipt,
    }


def _command(code: RequestCode, ext: dict[str, str]) -> RemotingCommand:
    # These codes do not fit into the binary header.
    return RemotingCommand(code, ext=ext, serialize=Serialize.JSON)
