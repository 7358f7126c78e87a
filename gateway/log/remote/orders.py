"""How publishers move to queues that are added to a topic, at all gateways at the same time.

Owns: Orders: what is written down for each topic, when that changes, the move. Must not touch:
routes, creation (``topics``); which publisher comes to which queue (``order``).

    a gateway sees new queues    it writes them down, to take part from LEAD_S later on
    all read it, each LOOK_S
    that time                    what is published from now on is held, at each gateway
    HOLD_S later, and when all that was appended before has been answered
                                 what was held goes to the queues of the new order

Invariants: the messages of a publisher in its new queue are younger than those in its old one, if
they came through one gateway; if they came through several, as long as the clocks of gateways and
brokers differ by less than HOLD_S, and each gateway has reached a name server during LEAD_S. The
first gateway that appends to a topic writes its order down: all its brokers have to be there then.
Queues that are closed to writers leave the order at once, without a move: publishers change queues
as they did before there was one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import trio

from motelog.core.message import MessageQueue
from motelog.gateway.log.remote.entries import Entries, Entry
from motelog.gateway.log.remote.order import KEY, Order
from motelog.gateway.log.remote.topic import Topic

logger = logging.getLogger(__name__)

#: How often gateways read the orders.
LOOK_S: Final = 5.0
#: How long before they take part new queues are written down.
LEAD_S: Final = 3 * LOOK_S
#: How long a move holds what is published to the topic, at least.
HOLD_S: Final = 2.0
PAUSE_S: Final = 0.05


class Orders:
    """The orders of one gateway's topics."""

    def __init__(
        self, entries: Entries, *, changed: Callable[[Topic], None], start: Callable[..., None]
    ) -> None:
        """``changed`` is called when places have to be found again, ``start`` begins a task."""
        self._entries = entries
        self._changed = changed
        self._start = start
        #: Topic -> its entry, and what that says.
        self._read: dict[str, tuple[Entry, Order | None]] = {}
        self._moving: set[Topic] = set()

    def of(self, topic: str) -> Order | None:
        """Return the order that is written down for a topic, None if there is none."""
        entry = self._entries.known.get(KEY + topic)
        if entry is None:
            return None
        known = self._read.get(topic)
        if known is None or known[0] != entry:
            known = self._read[topic] = entry, Order.parse(topic, entry.text)
        return known[1]

    def slots(self, topic: Topic) -> list[MessageQueue]:
        """Return the queue of each slot of a topic, without those that are closed to writers."""
        order = self.of(topic.name)
        if order is None:
            return list(topic.found)
        closed = _closed(topic, order)
        return [queue for queue in order.until(topic.moved_ms).slots() if queue not in closed]

    def wanted(self, topic: Topic) -> Order | None:
        """Return the order that should be written down for a topic; None if it is right."""
        order = self.of(topic.name)
        if order is None:
            return Order.of(topic.found) if topic.is_used and topic.found else None
        wanted = order.without(_closed(topic, order))
        if not wanted.groups:
            return None  # all are closed: the first to open again finds its publishers
        known = set(order.queues)
        added = [q for q in topic.found if q not in known and q.broker_name in topic.masters]
        if added:
            wanted = wanted.with_more(added, from_ms=now_ms() + int(LEAD_S * 1000))
        return wanted if wanted != order else None

    async def write(self, topic: Topic, order: Order) -> None:
        """Write an order down for all gateways."""
        await self._entries.write(KEY + topic.name, str(order))
        logger.info(
            "the order of a topic's queues is written down at the name servers topic=%s order=%s",
            topic.name,
            order,
        )

    def before(self, topic: Topic, queue: MessageQueue) -> tuple[int, list[MessageQueue]] | None:
        """Return which queues of a topic had a queue's publishers before, and when they moved.

        That time is 0 during the move. None if the queue was among the first.
        """
        order = self.of(topic.name)
        if order is None:
            return None
        until_ms = max(topic.moved_ms, topic.moving_ms)
        found = order.until(until_ms).before(queue)
        if found is None:
            return None
        from_ms, queues = found
        return (from_ms + int(HOLD_S * 1000) if from_ms <= topic.moved_ms else 0), queues

    def begin_move(self, topic: Topic) -> None:
        """Have publishers move to queues that are written down and do not take part yet."""
        if topic not in self._moving and self._next_ms(topic):
            self._moving.add(topic)
            self._start(self._move, topic)

    def _next_ms(self, topic: Topic) -> int:
        """Return when the next queues of a topic take part; 0 if all do."""
        order = self.of(topic.name)
        times = [group.from_ms for group in order.groups[1:]] if order is not None else []
        return min((at for at in times if at > topic.moved_ms), default=0)

    async def _move(self, topic: Topic) -> None:
        while from_ms := self._next_ms(topic):
            if from_ms > now_ms():
                # Another gateway may have written another time at the same moment.
                await trio.sleep(min(from_ms - now_ms(), LOOK_S * 1000) / 1000)
                continue
            topic.moving_ms = from_ms
            before, topic.places = topic.places, {}
            self._changed(topic)
            held_until_ms = from_ms + HOLD_S * 1000
            while now_ms() < held_until_ms or any(p.under_way for p in before.values()):  # noqa: ASYNC110  # a clock has no event
                await trio.sleep(PAUSE_S)
            topic.moved_ms, topic.moving_ms = from_ms, 0
            self._changed(topic)
        self._moving.discard(topic)


def now_ms() -> int:
    """Return the time of this machine's clock."""
    return time.time_ns() // 1_000_000


def _closed(topic: Topic, order: Order) -> set[MessageQueue]:
    """Return the queues of an order that are closed to writers, or are no longer there."""
    found = set(topic.found)
    return {q for q in order.queues if q.broker_name in topic.masters and q not in found}
