"""One request to each broker acknowledges what was popped of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from motelog.bridge.errors import ClientError
from motelog.bridge.popped import PoppedMessage, ack_many_commands
from motelog.core.remoting.pop_fields import NORMAL, RETRY_V1, Receipt, decode_bits

HOST = ("127.0.0.1", 1)


def popped(offset: int, receipt: str | None = None, **fields: Any) -> PoppedMessage:
    values = {"broker_name": "a", "queue_id": 0, "kind": NORMAL, "begin_offset": 10, **fields}
    named = Receipt(
        pop_time_ms=5, invisible_ms=6, revive_queue=7, queue_offset=offset, **values
    ).encode()
    return PoppedMessage(
        "T", values["queue_id"], offset, 0, b"", {}, 0, 0, 0, HOST, 0, HOST, 0, 0, 0,
        receipt=named if receipt is None else receipt,
    )  # fmt: skip


def told(messages: list[PoppedMessage]) -> dict[str, list[tuple[str, int, int, int]]]:
    """Return by broker: kind, queue, first offset of the pop, bits of what is acknowledged."""
    bodies = [json.loads(command.body) for _, command in ack_many_commands(messages, "G")]
    return {
        body["brokerName"]: [
            (one["r"], one["q"], one["so"], decode_bits(one["b"])) for one in body["acks"]
        ]
        for body in bodies
    }


def test_messages_of_a_pop_are_bits_of_one_entry() -> None:
    # Clients of 4.9 write receipts that end with the queue.
    short = popped(13).receipt.rpartition(" ")[0]
    messages = [
        popped(10),
        popped(12),
        popped(13, short),
        popped(12, queue_id=1),
        popped(12, begin_offset=11),
        popped(12, kind=RETRY_V1),
        popped(10, broker_name="b"),
    ]
    assert told(messages) == {
        "a": [
            (NORMAL, 0, 10, 0b1101),
            (NORMAL, 1, 10, 0b100),
            (NORMAL, 0, 11, 0b10),
            (RETRY_V1, 0, 10, 0b100),
        ],
        "b": [(NORMAL, 0, 10, 0b1)],
    }


@pytest.mark.parametrize("receipt", ["", "nothing", "1 2 3 4 9 a 0 5"])
def test_what_is_no_receipt_is_said(receipt: str) -> None:
    with pytest.raises(ClientError, match="the receipt of"):
        ack_many_commands([popped(10), popped(11, receipt)], "G")
