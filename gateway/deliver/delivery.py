"""From the log to subscribers: the live path and the receivers that lag behind it.

Owns: the live path. Its parts own the rest: who receives a topic name (``plans``), which queues are
read (``watched``), receivers with a cursor (``catch_up``).
Must not touch: CONNECT and SUBSCRIBE (``clients``), appends (``routes``, ``reactor_listener``).
Invariants: nothing is delivered that was not read from the log. A queue is read once for all its
receivers. A receiver with a cursor for a queue gets nothing of that queue from the live path, so
that it receives in the queue's order. The inflight windows and the outputs' marks bound memory.
Spec: MQTT 5.0 sections 3.3, 4.3, 4.6, 4.9.

                      live                                  lagging
    grown queue -> read -> plan of the topic name -> fan out
                     window or socket full -> cursor at this record -> PUBACK or drained socket
                              ^-- still full <- read on, match, send -> at the tail: live
    The log first brings records that are not at hand any more; other queues go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from motelog.core.message import SYS_FLAG_COMPRESSED
from motelog.core.records.decode import decode_brief, inflate
from motelog.gateway.deliver.catch_up import CatchUp
from motelog.gateway.deliver.plans import (
    AT_MOST_ONCE,
    INFLATED_BYTES_MAX,
    TOPIC_PROPERTY,
    V5_PROPERTIES,
    BriefRecord,
    OutgoingMessage,
    Plan,
    Plans,
    encode,
    native_topic_name,
)
from motelog.gateway.deliver.watched import WatchedQueue, WatchedQueues, count_lost
from motelog.gateway.log.log_port import LogPort, LogRead, QueueHandle
from motelog.gateway.mapping.message_properties import delivery_properties
from motelog.gateway.mapping.topic_mapping import TopicMapping
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.output import Output
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import SubscriptionTree

#: Most records of one queue, and their bytes, that one turn of the live path takes.
LIVE_COUNT_MAX: Final = 2048
LIVE_BYTES_MAX: Final = 1_048_576


class Delivery:
    """Delivers one gateway's share of the log. State changes only between awaits of its callers."""

    def __init__(
        self,
        log: LogPort,
        mapping: TopicMapping,
        subscriptions: SubscriptionTree[Session],
        metrics: GatewayMetrics,
        *,
        wake: Callable[[], None],
    ) -> None:
        self._log_port = log
        self._metrics = metrics
        self._wake = wake
        self._queues = WatchedQueues(log, mapping, may_go_on=self._go_on)
        self._plans = Plans(subscriptions, metrics)
        self._catch_up = CatchUp(log, self._plans, metrics, wake=wake)
        self._grown: dict[WatchedQueue, None] = {}
        # The parts hold the state that subscriptions and acknowledgements change.
        self.subscribe = self._queues.subscribe
        self.unsubscribe = self._queues.unsubscribe
        self.replan = self._plans.replan
        self.acknowledged = self._catch_up.acknowledged
        self.forget = self._catch_up.forget
        log.on_growth(self._on_growth)

    def _on_growth(self, handles: Sequence[QueueHandle]) -> None:
        queues = self._queues.by_handle
        if queues:
            for handle in handles:
                queue = queues.get(handle)
                if queue is not None:
                    self._grown[queue] = None
            if self._grown:
                self._wake()

    def deliver(self, now_ms: int) -> bool:
        """Deliver one slice to live and to lagging receivers; return whether more is at hand."""
        if self._grown:
            grown, self._grown = self._grown, {}
            for queue in grown:
                if self._deliver_queue(queue, now_ms):
                    self._grown[queue] = None
        catch_up = self._catch_up
        if catch_up.returning:
            catch_up.serve(now_ms)
        is_more = bool(self._grown or catch_up.returning)
        if is_more:
            self._wake()  # the caller may not call again
        return is_more

    def _deliver_queue(self, queue: WatchedQueue, now_ms: int) -> bool:
        if queue.is_waiting:
            return False
        read = self._log_port.read(
            queue.handle,
            queue.next_offset,
            count_max=LIVE_COUNT_MAX,
            bytes_max=LIVE_BYTES_MAX,
            waited=queue.waited,
        )
        if not isinstance(read, LogRead):
            queue.waited = read
            queue.is_waiting = self._log_port.when_at_hand(read, partial(self._go_on, queue))
            return not queue.is_waiting
        queue.waited = None
        if read.begin_offset > queue.next_offset:
            count_lost(self._metrics, queue, queue.next_offset, read.begin_offset)
        plans = self._plans.by_name
        for record in decode_brief(read.records, TOPIC_PROPERTY):
            name = record[1] or native_topic_name(record)
            try:
                plan = plans[name]
            except KeyError:
                plan = self._plans.make(name)
            if plan is not None:
                self._send_live(plan, name, record, queue, now_ms)
        queue.next_offset = read.next_offset
        return read.is_more

    def _go_on(self, queue: WatchedQueue) -> None:
        """Go on with a queue that has waited for the log."""
        queue.is_waiting = False
        self._grown[queue] = None
        self._wake()

    def _send_live(
        self, plan: Plan, name: bytes, record: BriefRecord, queue: WatchedQueue, now_ms: int
    ) -> None:
        queue_offset, _, _, properties, body, sys_flag, store_ms, _ = record
        block: bytes | None = None
        if sys_flag & SYS_FLAG_COMPRESSED:
            inflated = inflate(body, INFLATED_BYTES_MAX)
            if inflated is None:
                self._metrics.messages_undeliverable += 1
                return
            body = inflated
        # find, because "in" raises and catches an exception inside whenever it looks for bytes.
        if properties.find(V5_PROPERTIES) >= 0:
            block = delivery_properties(properties, store_ms=store_ms, now_ms=now_ms)
            if block is None:
                self._metrics.messages_expired += 1
                return
        is_at_most_once = properties.find(AT_MOST_ONCE) >= 0
        for output, version, numbers in plan.direct:
            packet, _ = encode(name, body, 0x30, version, block)
            self._fan_out(output, packet, numbers)
        for output, version, sessions, numbers in plan.windowed:
            if is_at_most_once:
                packet, _ = encode(name, body, 0x30, version, block)
                live = [n for s, n in zip(sessions, numbers, strict=True) if not s.lagging]
                self._fan_out(output, packet, live)
                continue
            packet, number_at = encode(name, body, 0x32, version, block)
            self._send_windowed(output, packet, number_at, sessions, numbers, queue, queue_offset)
        if plan.particular:
            message = OutgoingMessage(record, name, body, now_ms)
            for session in plan.particular:
                if session.lagging and queue in session.lagging:
                    continue
                if not self._catch_up.send_one(session, plan.matches[session], message):
                    self._catch_up.lag(session, queue, queue_offset)

    def _fan_out(self, output: Output, packet: bytes, connections: list[int]) -> None:
        dropped = len(output.fan_out(packet, connections))
        self._metrics.messages_dropped_qos0 += dropped
        self._metrics.messages_delivered += len(connections) - dropped

    def _send_windowed(
        self,
        output: Output,
        packet: bytes,
        number_at: int,
        sessions: list[Session],
        numbers: list[int],
        queue: WatchedQueue,
        queue_offset: int,
    ) -> None:
        receivers = []
        for session, number in zip(sessions, numbers, strict=True):
            if session.lagging and queue in session.lagging:
                continue
            packet_id = session.inflight.allocate(None)
            if packet_id:
                receivers.append((number, packet_id))
            else:
                self._catch_up.lag(session, queue, queue_offset)
        skipped = output.send_numbered(packet, number_at, receivers)
        self._metrics.messages_delivered += len(receivers) - len(skipped)
        if skipped:
            packet_ids = dict(receivers)
            by_number = dict(zip(numbers, sessions, strict=True))
            for number in skipped:
                by_number[number].inflight.ack(packet_ids[number])
                self._catch_up.lag(by_number[number], queue, queue_offset)
