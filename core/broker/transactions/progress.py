"""A broker's progress with half messages, kept over restarts as RocketMQ keeps it.

Owns: reading the ledger from log and saved offsets at the start, saving its progress.
Must not touch: what ends a half message, which producers are asked.

    consumerOffset.json   RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS      queue 0: begin
                          RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS   queue 0: op_begin

Invariant: progress is only saved when all records that it depends on are on the disk.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from motelog.core.broker.tables.consumer_offsets import ConsumerOffsets
from motelog.core.broker.transactions.half_message import HALF_QUEUE, decode_ops
from motelog.core.broker.transactions.ledger import Ledger
from motelog.core.store.message_store import MessageStore
from motelog.core.topic_names import HALF_TOPIC, OP_HALF_TOPIC, TRANS_GROUP

_OPS_PER_READ: Final = 1024
_BYTES_PER_READ: Final = 1 << 20


async def load_ledger(ledger: Ledger, store: MessageStore, offsets: ConsumerOffsets) -> None:
    """Fill an empty ledger: begin at the saved progress, and note the ops after it."""
    op_offset = _saved(store, offsets, OP_HALF_TOPIC)
    opened_at = store.reader.max_offset(HALF_TOPIC, HALF_QUEUE)
    ledger.start(_saved(store, offsets, HALF_TOPIC), op_offset, opened_at)
    op_end = store.reader.max_offset(OP_HALF_TOPIC, HALF_QUEUE)
    while op_offset < op_end:
        read = partial(store.reader.read, OP_HALF_TOPIC, HALF_QUEUE, op_offset)
        result = await store.reader.when_in_memory(
            partial(read, count_max=_OPS_PER_READ, bytes_max=_BYTES_PER_READ)
        )
        for offset, ended in decode_ops(result.records):
            ledger.note_op(offset, ended)
        op_offset = max(result.next_offset, op_offset + 1)
        await trio.lowlevel.checkpoint()


async def save_progress(ledger: Ledger, store: MessageStore, offsets: ConsumerOffsets) -> None:
    """Put the progress into the saved offsets once its records are on the disk.

    StoreFencedError if they never will be, BrokerError if the table has no room.
    """
    begin, op_begin = ledger.progress
    if (begin, op_begin) == (_known(offsets, HALF_TOPIC), _known(offsets, OP_HALF_TOPIC)):
        return
    await store.wait_durable(store.end_offset)
    offsets.commit(TRANS_GROUP, HALF_TOPIC, HALF_QUEUE, begin)
    offsets.commit(TRANS_GROUP, OP_HALF_TOPIC, HALF_QUEUE, op_begin)


def _known(offsets: ConsumerOffsets, topic: str) -> int:
    return offsets.query(TRANS_GROUP, topic, HALF_QUEUE) or 0


def _saved(store: MessageStore, offsets: ConsumerOffsets, topic: str) -> int:
    low = store.reader.min_offset(topic, HALF_QUEUE)
    return min(max(_known(offsets, topic), low), store.reader.max_offset(topic, HALF_QUEUE))
