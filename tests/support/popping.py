"""Pops on a BrokerStage, and the receipts that clients make of their answers.

Owns: nothing; pure functions over a stage. Must not touch: time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.frames import RemotingCommand
from motelog.core.remoting.pop_fields import (
    NORMAL,
    Receipt,
    decode_begins,
    decode_receipt,
    real_topic,
)
from tests.support.broker_stack import pop_ext
from tests.support.broker_stage import BrokerStage

#: A message, and what names its delivery.
Popped = tuple[StoredMessage, str]


def pop_messages(stage: BrokerStage, topic: str = "T", **fields: Any) -> list[Popped]:
    """Return popped messages, each with its receipt."""
    answer = stage.ask(RequestCode.POP_MESSAGE, pop_ext(topic, **fields))
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return with_receipts(answer)


def with_receipts(answer: RemotingCommand) -> list[Popped]:
    """Return messages with the receipts that Java's client makes for them."""
    ext = answer.ext
    begins = decode_begins(ext["startOffsetInfo"])
    found = []
    for message in decode_messages(answer.body):
        receipt = message.properties.get("POP_CK")
        if receipt is None:
            receipt = Receipt(
                begins[NORMAL, message.queue_id],
                int(ext["popTime"]),
                int(ext["invisibleTime"]),
                int(ext["reviveQid"]),
                NORMAL,
                "broker-a",
                message.queue_id,
                message.queue_offset,
            ).encode()
        found.append((message, receipt))
    return found


def ack_ext(message: StoredMessage, receipt: str, **fields: Any) -> dict[str, Any]:
    """Return the header of an acknowledgement, or of a change with ``invisibleTime``."""
    return {
        "consumerGroup": "G",
        "topic": real_topic(message.topic, "G", decode_receipt(receipt).kind),
        "queueId": message.queue_id,
        "offset": message.queue_offset,
        "extraInfo": receipt,
    } | fields


def receipt_of_change(receipt: str, message: StoredMessage, answer: RemotingCommand) -> str:
    """Return the receipt that counts after a change."""
    ext = answer.ext
    return replace(
        decode_receipt(receipt),
        begin_offset=message.queue_offset,
        pop_time_ms=int(ext["popTime"]),
        invisible_ms=int(ext["invisibleTime"]),
        revive_queue=int(ext["reviveQid"]),
    ).encode()
