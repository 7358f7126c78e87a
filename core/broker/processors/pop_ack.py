"""Acknowledgements of popped messages, and changes of their invisible time.

Owns: request codes 200051, 200151 (acknowledge one, several) and 200053 (change the invisible
time). Must not touch: which messages are in work (core.broker.pop), pops (pop).
Spec: RocketMQ AckMessageProcessor, ChangeInvisibleTimeProcessor.

    receipt -> checkpoint       -> appended, answered 0
            -> none (any more)  -> 0 to an acknowledgement: acknowledged before, or delivered again
                                -> 208 to a change
            -> in order         -> the group moves past the acknowledged messages
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import msgspec

from motelog.core.broker.pop.checkpoints import Checkpoint
from motelog.core.broker.pop.service import PopService
from motelog.core.broker.processors.pop_held import HeldPops
from motelog.core.broker.processors.pop_request import PopRequests, invisible_field
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.tables.order_info import QueueKey
from motelog.core.errors import BrokerError, StoreError, StoreFencedError
from motelog.core.remoting.fields import Int32, Int64, int_field, text_field
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode, loads_as
from motelog.core.remoting.pop_fields import (
    NORMAL,
    ORDER_QUEUE,
    Receipt,
    decode_bits,
    decode_receipt,
    real_topic,
)
from motelog.core.remoting.server import Connection, Processor
from motelog.core.topic_names import shown

_ACKS_MAX = 10_000


class _BatchAckJson(msgspec.Struct):
    c: str
    t: str
    so: Int64
    q: Int32
    rq: Int32
    pt: Int64
    r: str = NORMAL
    it: Int64 = 0
    b: str | None = None


class _BatchJson(msgspec.Struct):
    acks: list[_BatchAckJson] | None = None


class PopAckProcessor:
    """Answers acknowledgements; state changes only within a turn."""

    def __init__(self, shared: Shared, pop: PopService, held: HeldPops) -> None:
        self._api = shared.api
        self._offsets = shared.tables.offsets
        self._clock = shared.clock
        self._pop = pop
        self._held = held
        self._requests = PopRequests(shared)

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.ACK_MESSAGE: self._ack,
            RequestCode.BATCH_ACK_MESSAGE: self._ack_several,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._change,
        }

    def _ack(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        queue, offset, receipt = self._message(request)
        if receipt.is_order:
            self._ack_in_order(queue, offset, receipt.pop_time_ms)
            return request.answer()
        checkpoint = self._checkpoint(queue, receipt)
        acked = [] if checkpoint is None else [(checkpoint, [offset])]
        self._pop.acknowledge(
            acked,
            then=lambda: connection.reply(request.answer()),
            refused=partial(_refuse, request, connection),
        )
        return None

    def _ack_several(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand | None:
        acks = loads_as(request.body, _BatchJson, "acknowledgements").acks or []
        if not acks:
            return request.answer(ResponseCode.NO_MESSAGE, "nothing is acknowledged")
        if len(acks) > _ACKS_MAX:
            text = f"{len(acks)} acknowledgements in one request, {_ACKS_MAX} are allowed"
            raise BrokerError(ResponseCode.INVALID_PARAMETER, text)
        by_checkpoint: dict[Checkpoint, set[int]] = defaultdict(set)
        for ack in acks:
            queue, bits = _place_of(ack)
            if ack.rq == ORDER_QUEUE:
                # At most as many messages as one pop may deliver: bits beyond have no message.
                for offset in self._pop.orders.open_in(queue, ack.pt):
                    if _has_bit(bits, offset - ack.so):
                        self._ack_in_order(queue, offset, ack.pt)
                continue
            checkpoint = self._pop.checkpoints.get((*queue, ack.so, ack.pt))
            if checkpoint is not None:
                by_checkpoint[checkpoint].update(
                    offset for offset in checkpoint.offsets if _has_bit(bits, offset - ack.so)
                )
        self._pop.acknowledge(
            [(checkpoint, sorted(offsets)) for checkpoint, offsets in by_checkpoint.items()],
            then=lambda: connection.reply(request.answer()),
            refused=partial(_refuse, request, connection),
        )
        return None

    def _change(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        queue, offset, receipt = self._message(request)
        invisible_ms = invisible_field(request.ext)
        now_ms = self._clock.now_ms()
        if receipt.is_order:
            visible_ms = now_ms + invisible_ms
            if not self._pop.orders.change(queue, offset, receipt.pop_time_ms, visible_ms):
                raise _no_message(queue, offset)
            self._pop.wake()
            span_ms = visible_ms - receipt.pop_time_ms
            return request.answer(ext=_times(receipt.pop_time_ms, span_ms, ORDER_QUEUE))
        checkpoint = self._checkpoint(queue, receipt)
        if checkpoint is None or offset not in checkpoint.open:
            raise _no_message(queue, offset)
        topic, group, queue_id = queue
        due_ms = now_ms + invisible_ms
        now_ms = self._pop.checkpoints.free_time(topic, group, [(queue_id, offset)], now_ms)
        instead = Checkpoint(
            queue,
            offset,
            (offset,),
            pop_time_ms=now_ms,
            invisible_ms=due_ms - now_ms,
            revive_queue=checkpoint.revive_queue,
            is_again=True,
        )
        ext = _times(now_ms, due_ms - now_ms, checkpoint.revive_queue)
        self._pop.acknowledge(
            [(checkpoint, [offset])],
            then=lambda: connection.reply(request.answer(ext=ext)),
            refused=partial(_refuse, request, connection),
            instead=instead,
        )
        return None

    def _message(self, request: RemotingCommand) -> tuple[QueueKey, int, Receipt]:
        """Return the queue and the offset of a message, and its receipt; or refuse the request."""
        ext = request.ext
        group = text_field(ext, "consumerGroup")
        topic, queue_id = self._requests.topic_queue(ext)
        offset = int_field(ext, "offset")
        try:
            receipt = decode_receipt(text_field(ext, "extraInfo"))
        except ValueError as exc:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"extraInfo: {exc}") from exc
        low = self._api.min_offset(topic, queue_id)
        if not low <= offset < self._api.max_offset(topic, queue_id):
            raise _no_message((topic, group, queue_id), offset)
        return (topic, group, queue_id), offset, receipt

    def _checkpoint(self, queue: QueueKey, receipt: Receipt) -> Checkpoint | None:
        key = (*queue, receipt.begin_offset, receipt.pop_time_ms)
        return self._pop.checkpoints.get(key)

    def _ack_in_order(self, queue: QueueKey, offset: int, pop_time_ms: int) -> None:
        topic, group, queue_id = queue
        known = self._offsets.query(group, topic, queue_id)
        if known is not None and offset < known:
            return
        try:
            next_offset = self._pop.orders.ack(queue, offset, pop_time_ms)
        except ValueError:
            text = f"the message at {offset} of {shown(topic)} was not delivered"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text) from None
        if next_offset is None:
            return
        self._offsets.commit(group, topic, queue_id, next_offset)
        if not self._pop.orders.is_blocked(queue, None, self._clock.now_ms()):
            self._held.queues_freed([queue])


def _place_of(ack: _BatchAckJson) -> tuple[QueueKey, int]:
    """Return the queue of an acknowledgement of several messages, and its bits."""
    try:
        topic = real_topic(ack.t, ack.c, ack.r)
        return (topic, ack.c, ack.q), decode_bits(ack.b or "")
    except (KeyError, ValueError) as exc:
        text = f"an acknowledgement cannot be read: {exc}"
        raise BrokerError(ResponseCode.INVALID_PARAMETER, text) from exc


def _has_bit(bits: int, index: int) -> bool:
    return index >= 0 and bool(bits >> index & 1)


def _times(pop_time_ms: int, invisible_ms: int, revive_queue: int) -> dict[str, str]:
    return {
        "popTime": str(pop_time_ms),
        "invisibleTime": str(invisible_ms),
        "reviveQid": str(revive_queue),
    }


def _no_message(queue: QueueKey, offset: int) -> BrokerError:
    topic, _, queue_id = queue
    text = f"there is no such message in work: {shown(topic)}, queue {queue_id}, offset {offset}"
    return BrokerError(ResponseCode.NO_MESSAGE, text)


def _refuse(request: RemotingCommand, connection: Connection, exc: StoreError) -> None:
    code = ResponseCode.SYSTEM_ERROR
    if isinstance(exc, StoreFencedError):
        code = ResponseCode.SERVICE_NOT_AVAILABLE
    connection.reply(request.answer(code, str(exc)))
