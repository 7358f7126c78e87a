"""Topics of a remote log: which exist, where their queues are, and how new ones are created.

Owns: Topics: the list and the routes, creations under way, refusals. Must not touch: the brokers
(``topic_maker``), the order of queues (``orders``); messages, except to hold their parts until it
is known where they go.
Invariants: a topic once known stays known, and so do its queues at brokers that no route names:
while a broker restarts, its routes are missing for a moment. A topic is reported once its queues
are known. A topic that is not in one listing and is in a later one is new: everything in it is
younger than the earlier listing, except at a broker that was in no listing before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from typing import Final
from zlib import crc32

import msgspec
import trio

from motelog.bridge.client import Client, check
from motelog.bridge.errors import NoNameServerError, RouteError
from motelog.bridge.routes import TopicRoute
from motelog.core.errors import (
    BrokerError,
    MotelogError,
    RemotingDecodeError,
    RemotingError,
)
from motelog.core.lasting import run_again
from motelog.core.limited_log import LimitedLog
from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    loads,
)
from motelog.core.topic_names import (
    GATEWAY_TOPICS,
    SYSTEM_TOPICS,
    is_group_topic,
    is_topic_name,
)
from motelog.gateway.log.log_port import Moved
from motelog.gateway.log.remote.entries import Entries
from motelog.gateway.log.remote.links import BrokerLinks
from motelog.gateway.log.remote.orders import HOLD_S, LOOK_S, Orders, now_ms
from motelog.gateway.log.remote.parts import Part
from motelog.gateway.log.remote.queues import Place, RemoteQueue
from motelog.gateway.log.remote.topic import Topic
from motelog.gateway.log.remote.topic_maker import TopicMaker

logger = logging.getLogger(__name__)

LIST_INTERVAL_S: Final = 1.0
#: Routes of known topics are checked again after this time; the client requests them as often.
ROUTES_INTERVAL_S: Final = 30.0
#: How long a broker's refusal is remembered, and how long a failure to ask any broker.
REFUSED_S: Final = 60.0
UNASKED_S: Final = 2.0
REFUSALS_MAX: Final = 10_000

_OUTAGES: Final = (NoNameServerError, BrokerError, RemotingError)


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
        self._entries = entries
        self._orders = Orders(entries, changed=self._order_changed, start=client.start_soon)
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
        #: All names in the last listing, and the brokers that were known then.
        self._listed: list[str] = []
        self._brokers: frozenset[str] = frozenset()
        self._created: list[Callable[[str], None]] = []
        self._refused: list[Callable[[str], None]] = []
        self._outages = LimitedLog(logger, lines_max=1, period_s=10)
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
        return [
            topic.name
            for topic in self._topics.values()
            if topic.is_known and self._is_users(topic.name)
        ]

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
        found = self._orders.before(topic, queue.name) if topic is not None else None
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

    async def _create(self, topic: Topic) -> None:
        error, for_s = _gone(topic.name), UNASKED_S
        with trio.move_on_after(self._wait_s):
            while not topic.is_known:
                try:
                    route, was_there = await self._maker.find(topic.name, topic.queue_count)
                    self._adopt(route, new_at=self._brokers if was_there else route.addresses)
                    return
                except BrokerError as exc:
                    error, for_s = exc, REFUSED_S
                    break
                except (NoNameServerError, RouteError, RemotingError) as exc:
                    error = BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, str(exc))
                await trio.sleep(LIST_INTERVAL_S / 4)
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

    # --- listing -------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Learn of topics until cancelled; started when those that exist are known."""
        while not (await self._read_entries() and await self._list(is_first=True)):  # noqa: ASYNC110  # a name server has no event
            await trio.sleep(LIST_INTERVAL_S)
        self.is_running = True
        for topic in self._wanted:
            if not topic.is_known:
                self._client.start_soon(self._create, topic)
        self._wanted.clear()
        task_status.started()
        await run_again(self._list_regularly)

    async def _list_regularly(self) -> None:
        routes_at = looked_at = trio.current_time()
        while True:
            await trio.sleep(LIST_INTERVAL_S)
            await self._list(is_first=False)
            if trio.current_time() - routes_at >= ROUTES_INTERVAL_S:
                routes_at = trio.current_time()
                await self._look_at_routes()
            if trio.current_time() - looked_at >= LOOK_S:
                looked_at = trio.current_time()
                await self._look_at_orders()

    async def _list(self, *, is_first: bool) -> bool:
        """Adopt topics that are not known yet; return whether a name server has answered."""
        try:
            listed = found = await _ask_list(self._client)
            if listed != self._listed:
                # A broker that comes registers its own name together with its topics.
                await self._links.find()
                found = await _ask_list(self._client)
            brokers = self._links.names
            for name in filter(self._is_users, found):
                topic = self._topics.get(name)
                if topic is None or (not topic.is_known and is_first):
                    await self._learn(name, is_new=not is_first)
            if self._brokers and not brokers <= self._brokers:
                await self._look_at_routes(newer_than=trio.current_time())
            self._listed, self._brokers = listed, brokers
        except _OUTAGES as exc:
            self._outages.warning(
                "no name server lists the topics; those that are known stay in use error=%s", exc
            )
            return False
        return True

    async def _learn(self, name: str, *, is_new: bool) -> None:
        try:
            route = await self._client.route(name, newer_than=trio.current_time())
        except RouteError:
            return  # its brokers have gone meanwhile
        self._adopt(route, new_at=self._brokers if is_new else ())

    async def _look_at_routes(self, *, newer_than: float | None = None) -> None:
        """Look for changes to the queues of known topics."""
        for topic in list(self._topics.values()):
            if topic.is_known:
                try:
                    route = await self._client.route(topic.name, newer_than=newer_than)
                    self._adopt(route, new_at=self._brokers)
                except (RouteError, *_OUTAGES):
                    continue  # the known queues stay in use

    async def _read_entries(self) -> bool:
        """Read what gateways have written down; return whether a name server has answered."""
        try:
            await self._entries.read()
        except NoNameServerError as exc:
            self._outages.warning("no name server has the orders of queues error=%s", exc)
            return False
        return True

    async def _look_at_orders(self) -> None:
        """Take over what other gateways have written down, and write down what has changed."""
        if not await self._read_entries():
            return
        self._maker.home.look()
        for topic in list(self._topics.values()):
            if topic.is_known and topic.name not in GATEWAY_TOPICS:
                is_other = topic.order != self._orders.of(topic.name)
                if is_other or self._orders.wanted(topic) is not None:
                    await self._learn(topic.name, is_new=True)  # the known route may be old
                    if (order := self._orders.wanted(topic)) is not None:
                        await self._orders.write(topic, order)
                self._take_order(topic)
                self._orders.begin_move(topic)

    def _is_users(self, name: str) -> bool:
        return (
            is_topic_name(name)
            and name not in SYSTEM_TOPICS
            and name not in self._links.topic_names
            and not is_group_topic(name)
        )

    # --- routes --------------------------------------------------------------------------

    def _adopt(self, route: TopicRoute, *, new_at: Container[str]) -> None:
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
        topic.order = self._orders.of(topic.name)
        topic.found = _merge(topic.found, route.write_queues, topic.masters)
        if not was_known:
            topic.is_known = True
            topic.moved_ms = now_ms() - int(HOLD_S * 1000)
        added = frozenset(topic.read_queues).difference(known)
        self.new_queues = frozenset(q for q in added if q.name.broker_name in new_at)
        try:
            self._take_order(topic, is_changed=not was_known or known != topic.read_queues)
        finally:
            self.new_queues = frozenset()
        self._orders.begin_move(topic)
        self._release_held(topic)

    def _take_order(self, topic: Topic, *, is_changed: bool = False) -> None:
        """Let places lead where the order says; report the topic if that has changed."""
        if not topic.is_open:
            slots = topic.write_queues  # the end of the move finds them
        elif topic.name in GATEWAY_TOPICS:
            slots = tuple(map(self._queue, topic.found))
        else:
            slots = tuple(map(self._queue, self._orders.slots(topic)))
        if slots != topic.write_queues:
            topic.write_queues = slots
            is_changed = True
        topic.lead()
        if is_changed:
            for listener in self._created:
                listener(topic.name)

    def _order_changed(self, topic: Topic) -> None:
        """Hold what is published to a topic, or release it at the end of a move."""
        self._take_order(topic, is_changed=True)
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


class _TopicList(msgspec.Struct):
    topicList: list[str] = []


async def _ask_list(client: Client) -> list[str]:
    request = RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    answer = check(await client.request_namesrv(request))
    try:
        return msgspec.convert(loads(answer.body), _TopicList).topicList
    except msgspec.ValidationError as exc:
        raise RemotingDecodeError(f"the name server's list of topics: {exc}") from exc


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
