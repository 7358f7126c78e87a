"""Topics of a remote log: which exist, where their queues are, and how new ones are created.

Owns: Topics: the list and the routes, creations under way, refusals. Must not touch: when name
servers are asked (``listing``), the brokers (``topic_maker``), the order of queues (``orders``);
messages, except to hold their parts until it is known where they go.
Invariants: a topic once known stays known, and so do its queues at brokers that no route names:
while a broker restarts, its routes are missing for a moment. A topic is reported once its queues
are known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final
from zlib import crc32

import trio

from motelog.bridge.client import Client
from motelog.bridge.errors import NoNameServerError, RouteError
from motelog.bridge.routes import TopicRoute
from motelog.core.errors import BrokerError, MotelogError, RemotingError
from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import ResponseCode
from motelog.core.topic_names import GATEWAY_TOPICS, SYSTEM_TOPICS, is_group_topic, is_topic_name
from motelog.gateway.log.log_port import Moved
from motelog.gateway.log.remote.entries import Entries
from motelog.gateway.log.remote.links import BrokerLinks
from motelog.gateway.log.remote.orders import HOLD_S, Orders, now_ms
from motelog.gateway.log.remote.parts import Part
from motelog.gateway.log.remote.queues import Place, RemoteQueue
from motelog.gateway.log.remote.topic import Topic
from motelog.gateway.log.remote.topic_maker import TopicMaker

logger = logging.getLogger(__name__)

#: Pause between two attempts to create a topic.
ASK_AGAIN_S: Final = 0.25
#: How long a broker's refusal is remembered, and how long a failure to ask any broker.
REFUSED_S: Final = 60.0
UNASKED_S: Final = 2.0
REFUSALS_MAX: Final = 10_000


class Topics:
    """The topics of one gateway's log."""

    def __init__(
        self,
        client: Client,
        links: BrokerLinks,
        maker: TopicMaker,
        entries: Entries,
        *,
        wait_s: float,
        release: Callable[[list[tuple[Place, Part]]], None],
        refuse: Callable[[list[Part], MotelogError], None],
    ) -> None:
        self._client = client
        self._links = links
        self._maker = maker
        self.orders = Orders(entries, changed=self._order_changed, start=client.start_soon)
        self._wait_s = wait_s
        self._release = release
        self._refuse = refuse
        self._topics: dict[str, Topic] = {}
        self._queues: dict[MessageQueue, RemoteQueue] = {}
        #: Topics that were requested before the first listing.
        self._wanted: list[Topic] = []
        self.is_running = False
        #: Name -> (topic, why it was refused, until when that is remembered).
        self._refusals: dict[str, tuple[Topic, BrokerError, float]] = {}
        #: The brokers that were known at the last listing.
        self.brokers: frozenset[str] = frozenset()
        self._created: list[Callable[[str], None]] = []
        self._refused: list[Callable[[str], None]] = []
        #: The new queues of the topic for which ``on_created`` listeners are being called.
        self.new_queues: frozenset[RemoteQueue] = frozenset()
        self.on_created = self._created.append
        self.on_refused = self._refused.append

    # --- what is known -------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Return whether a topic can be written to or is being created."""
        topic = self._topics.get(name)
        return topic is not None and (not topic.is_known or bool(topic.write_queues))

    def names(self) -> list[str]:
        """Return the users' topics."""
        return [topic.name for topic in self.known() if self.is_users(topic.name)]

    def get(self, name: str) -> Topic | None:
        """Return a topic that is known or being created."""
        return self._topics.get(name)

    def known(self) -> Iterator[Topic]:
        """Return the known topics, including the gateways' own and any that become known."""
        return (topic for topic in list(self._topics.values()) if topic.is_known)

    def is_users(self, name: str) -> bool:
        """Return whether a topic with this name is for users' messages."""
        return (
            is_topic_name(name)
            and name not in SYSTEM_TOPICS
            and name not in self._links.topic_names
            and not is_group_topic(name)
        )

    @property
    def missing(self) -> list[str]:
        """Return the names of gateways' own topics that are wanted and do not exist yet."""
        return [
            name
            for name in GATEWAY_TOPICS
            if name in self._refusals or (name in self._topics and not self._topics[name].is_known)
        ]

    def read_queues(self, name: str) -> Sequence[RemoteQueue]:
        """Return the queues of a topic for reading."""
        topic = self._topics.get(name)
        return topic.read_queues if topic is not None else ()

    def find(self, text: str) -> RemoteQueue | None:
        """Return the queue with this name in a known topic, open to readers or not."""
        topic = self._topics.get(text.partition("/")[0])
        if topic is None or not topic.is_known:
            return None
        for queue in topic.read_queues:
            if str(queue) == text:
                return queue
        broker_name, _, queue_id = text.removeprefix(f"{topic.name}/").rpartition("/")
        known = {queue.name.broker_name for queue in (*topic.read_queues, *topic.write_queues)}
        if broker_name not in known or not queue_id.isdecimal():
            return None
        return self._queue(MessageQueue(topic.name, broker_name, int(queue_id)))

    def place(self, name: str, selector: str) -> Place:
        """Return the place that a selector chooses in a topic that is known or being created."""
        topic = self._topics[name]
        number = crc32(selector.encode())
        return topic.place(number % len(topic.write_queues) if topic.is_open else number)

    def places(self, name: str) -> list[Place]:
        """Return a place for each slot of a topic that can be written to."""
        topic = self._topics.get(name)
        if topic is None or not topic.is_open:
            return []
        return [topic.place(number) for number in range(len(topic.write_queues))]

    def moved_from(self, queue: RemoteQueue) -> Moved | None:
        """Return where the publishers of a queue were before; see ``LogPort.moved_from``."""
        topic = self._topics.get(queue.name.topic)
        found = self.orders.before(topic, queue.name) if topic is not None else None
        return None if found is None else Moved(found[0], list(map(self._queue, found[1])))

    def hold(self, place: Place, part: Part) -> MotelogError | None:
        """Keep a part until its topic is known, or return why the topic was refused."""
        if place.topic not in self._topics:
            if place.topic not in self._refusals:
                return _gone(place.topic)
            try:
                self.create(place.topic, 0)
            except BrokerError as exc:
                return exc
        self._topics[place.topic].held.append((place, part))
        return None

    # --- creation ------------------------------------------------------------------------

    def create(self, name: str, queue_count: int) -> None:
        """Start creating a topic unless it is known; BrokerError if it is known to be refused."""
        topic = self._topics.get(name)
        if topic is not None:
            if topic.is_known and not topic.write_queues:
                text = f"topic {name} has no queue to write to"
                raise BrokerError(ResponseCode.NO_PERMISSION, text)
            return
        if name in self._refusals:
            topic, error, until = self._refusals[name]
            if trio.current_time() < until:
                raise error
            del self._refusals[name]  # its places remain valid
        else:
            topic = Topic(name, queue_count)
        self._topics[name] = topic
        if self.is_running:
            self._client.start_soon(self._create, topic)
        else:
            self._wanted.append(topic)

    def begin(self) -> None:
        """Create the topics that were requested before the first listing and are not in it."""
        self.is_running = True
        for topic in self._wanted:
            if not topic.is_known:
                self._client.start_soon(self._create, topic)
        self._wanted.clear()

    async def _create(self, topic: Topic) -> None:
        error, for_s = _gone(topic.name), UNASKED_S
        with trio.move_on_after(self._wait_s):
            while not topic.is_known:
                try:
                    route, was_there = await self._maker.find(topic.name, topic.queue_count)
                    self.adopt(route, new_at=self.brokers if was_there else route.addresses)
                    return
                except BrokerError as exc:
                    error, for_s = exc, REFUSED_S
                    break
                except (NoNameServerError, RouteError, RemotingError) as exc:
                    error = BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, str(exc))
                await trio.sleep(ASK_AGAIN_S)
        if not topic.is_known:
            self._note_refused(topic, error, for_s)
            if topic.name in GATEWAY_TOPICS:
                # No gateway can do without it, and this one may have started before its brokers.
                await trio.sleep(for_s)
                with suppress(BrokerError):  # an append has asked again, and its task repeats this
                    self.create(topic.name, topic.queue_count)

    def _note_refused(self, topic: Topic, error: BrokerError, for_s: float) -> None:
        logger.warning(
            "a topic could not be created, and is not tried again for a while topic=%s for_s=%g"
            " error=%s",
            topic.name,
            for_s,
            error,
        )
        if len(self._refusals) >= REFUSALS_MAX:
            self._refusals.clear()
        self._refusals[topic.name] = topic, error, trio.current_time() + for_s
        self._topics.pop(topic.name, None)
        for listener in self._refused:
            listener(topic.name)
        held, topic.held = topic.held, []
        self._refuse([part for _, part in held], error)

    # --- routes --------------------------------------------------------------------------

    def adopt(self, route: TopicRoute, *, new_at: Container[str]) -> None:
        """Adopt a route: report queues that were not known, release the parts that wait for them.

        Unknown queues at the brokers in ``new_at`` are new.
        """
        self._links.learn(route.addresses)
        if route.topic in GATEWAY_TOPICS:
            route = route.at(self._maker.home.broker or "")
        topic = self._topics.get(route.topic)
        if topic is None:
            refusal = self._refusals.pop(route.topic, None)
            topic = self._topics[route.topic] = refusal[0] if refusal else Topic(route.topic)
        was_known, known = topic.is_known, topic.read_queues
        topic.masters = {name for name in route.addresses if route.address(name) is not None}
        topic.read_queues = tuple(
            map(self._queue, _merge([q.name for q in known], route.read_queues, route.addresses))
        )
        topic.order = self.orders.of(topic.name)
        topic.found = _merge(topic.found, route.write_queues, topic.masters)
        if not was_known:
            topic.is_known = True
            topic.moved_ms = now_ms() - int(HOLD_S * 1000)
        added = frozenset(topic.read_queues).difference(known)
        self.new_queues = frozenset(q for q in added if q.name.broker_name in new_at)
        try:
            self.take_order(topic, is_changed=not was_known or known != topic.read_queues)
        finally:
            self.new_queues = frozenset()
        self.orders.begin_move(topic)
        self._release_held(topic)

    def take_order(self, topic: Topic, *, is_changed: bool = False) -> None:
        """Let places lead where the order says; report the topic if that has changed."""
        if not topic.is_open:
            slots = topic.write_queues  # the end of the move finds them
        elif topic.name in GATEWAY_TOPICS:
            slots = tuple(map(self._queue, topic.found))
        else:
            slots = tuple(map(self._queue, self.orders.slots(topic)))
        if slots != topic.write_queues:
            topic.write_queues = slots
            is_changed = True
        topic.lead()
        if is_changed:
            for listener in self._created:
                listener(topic.name)

    def _order_changed(self, topic: Topic) -> None:
        """Hold what is published to a topic, or release it at the end of a move."""
        self.take_order(topic, is_changed=True)
        self._release_held(topic)

    def _release_held(self, topic: Topic) -> None:
        if not topic.is_open:
            return
        held, topic.held = topic.held, []
        if topic.write_queues:
            self._release(held)
        else:
            text = f"topic {topic.name} has no queue to write to"
            self._refuse([part for _, part in held], BrokerError(ResponseCode.NO_PERMISSION, text))

    def _queue(self, name: MessageQueue) -> RemoteQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = RemoteQueue(name)
        return queue


def _merge(
    known: Iterable[MessageQueue], found: Iterable[MessageQueue], there: Container[str]
) -> tuple[MessageQueue, ...]:
    """Return the queues of a route, with the known ones of brokers that are not ``there``.

    Such a broker is away and keeps its queues: otherwise the messages of one device would change
    queues with each restart of a broker. A broker without a master is away for writers, even if its
    slave is in the route.
    """
    kept = [queue for queue in known if queue.broker_name not in there]
    return tuple(sorted({*kept, *found}, key=lambda queue: (queue.broker_name, queue.queue_id)))


def _gone(topic: str) -> BrokerError:
    return BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} does not exist")
