"""LogPort on brokers in other processes, ours or Apache RocketMQ's, found through name servers.

Owns: the parts in ``gateway.log.remote`` and their life. Must not touch: what the parts decide.
Invariants: handles for reading are RemoteQueue, handles for appends are Place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Self

import trio

from motelog.bridge.client import Client
from motelog.bridge.pull import HOLD_S
from motelog.core.acl.files import read_credentials
from motelog.core.errors import MotelogError
from motelog.core.message import TIMER_DELAY_MS, encode_properties
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.tls import Tls, read_tls
from motelog.core.topic_names import GATEWAY_GROUP
from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.log_port import (
    AppendApart,
    LogRead,
    Moved,
    QueueHandle,
    Settled,
    Ticket,
    Waiting,
    no_listener,
)
from motelog.gateway.log.reckoning import arrival_ms_max
from motelog.gateway.log.remote.appends import Appends
from motelog.gateway.log.remote.entries import Entries
from motelog.gateway.log.remote.links import BrokerLinks
from motelog.gateway.log.remote.listing import Listing
from motelog.gateway.log.remote.parts import Part
from motelog.gateway.log.remote.queues import DelayedPlace, Place, RemoteQueue
from motelog.gateway.log.remote.reads import Fetch, Reads
from motelog.gateway.log.remote.topic_maker import TopicMaker
from motelog.gateway.log.remote.topics import Topics

#: How long appends wait for a broker that is away or a topic that is being created.
WAIT_S: Final = 10.0
#: Maximum bytes that wait for brokers in all; further appends are refused.
WAITING_BYTES_MAX: Final = 67_108_864
#: How long a stop may take to bring the last appends to the brokers.
GRACE_S: Final = 2.0
#: Maximum bytes of records in memory, for all queues.
KEPT_BYTES_MAX: Final = 33_554_432


class RemoteLog:
    """The log of a RocketMQ cluster. ``namesrv`` is ``host:port;host:port``."""

    knows_tails = False

    def __init__(
        self,
        namesrv: str,
        *,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        group: str = GATEWAY_GROUP,
        wait_s: float = WAIT_S,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        hold_s: float = HOLD_S,
    ) -> None:
        self._client = _client(namesrv, group, credentials, tls)
        self.append_ms_max = arrival_ms_max(wait_s)
        self._links = BrokerLinks(self._client)
        self._appends = Appends(
            self._client,
            self._links,
            group=group,
            wait_s=wait_s,
            waiting_bytes_max=waiting_bytes_max,
            hold=lambda place, part: self._topics.hold(place, part),
        )
        entries = Entries(self._client)
        maker = TopicMaker(self._client, self._links, entries, group=group)
        self.home = maker.home
        self._topics = Topics(
            self._client,
            self._links,
            maker,
            entries,
            wait_s=wait_s,
            release=self._release,
            refuse=self._appends.refuse,
        )
        self._listing = Listing(self._client, self._links, entries, self._topics, maker.home)
        self._reads = Reads(
            self._client, self._links, group=group, hold_s=hold_s, kept_bytes_max=kept_bytes_max
        )
        self._closed = trio.Event()
        # The hot calls go straight to the parts.
        self.append: Callable[[list[Any]], Ticket] = self._appends.append
        self.append_apart: AppendApart = self._appends.append_apart
        self.withdraw: Callable[[bytes], None] = self._appends.withdraw
        self.refusal: Callable[[Any], MotelogError | None] = self._appends.refusal
        self.on_settled: Callable[[Callable[[Settled], None]], None] = self._appends.on_settled
        self.fence: Callable[[Callable[[], int]], None] = self._appends.fence
        self.has_topic = self._topics.has
        self.create_topic = self._topics.create
        self.topics = self._topics.names
        self.on_topic_created = self._topics.on_created
        self.on_topic_refused = self._topics.on_refused
        self.follow = self._reads.note_growth
        self.gather: Callable[[str, Callable[[], float]], None] = self._reads.gather

    @classmethod
    def of(cls, config: GatewayConfig) -> Self:
        """Return the log that a gateway's section names.

        ConfigError if one of its files cannot be used.
        """
        file, tls = config.credentials_file, config.tls_file
        return cls(
            ";".join(config.namesrv),
            credentials=read_credentials(file) if file else None,
            tls=read_tls(tls) if tls else None,
            wait_s=config.append_wait_s,
            waiting_bytes_max=config.append_wait_bytes_max,
        )

    def settle_soon(self) -> None:
        """Do nothing: appended messages are sent as soon as the reactor waits."""

    # --- topics and queues ---------------------------------------------------------------

    def queue_of(self, topic: str, selector: str) -> QueueHandle:
        return self._topics.place(topic, selector)

    def append_queues(self, topic: str) -> Sequence[QueueHandle]:
        return self._topics.places(topic)

    def queues(self, topic: str) -> Sequence[QueueHandle]:
        return list(self._topics.read_queues(topic))

    def describe(self, queue: QueueHandle) -> str:
        if isinstance(queue, DelayedPlace):
            queue = queue.place
        if isinstance(queue, Place) and queue.queue is not None:
            queue = queue.queue  # the same name for appends and for reading
        return str(queue)

    def find_queue(self, name: str) -> QueueHandle | None:
        return self._topics.find(name)

    def moved_from(self, queue: QueueHandle) -> Moved | None:
        assert isinstance(queue, RemoteQueue)
        return self._topics.moved_from(queue)

    def delayed(self, message: Any, delay_ms: int) -> Any:
        place, body, properties, *rest = message
        delay = encode_properties({TIMER_DELAY_MS: str(delay_ms)})
        return (DelayedPlace(place), body, properties + delay, *rest)

    # --- read ----------------------------------------------------------------------------

    def read(
        self,
        queue: QueueHandle,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        tag_codes: AbstractSet[int] | None = None,
        waited: Waiting | None = None,
    ) -> LogRead | Waiting:
        # A pull selects by tags, not by their hashes, and its records serve other readers too.
        assert isinstance(queue, RemoteQueue)
        assert waited is None or isinstance(waited, Fetch)
        return self._reads.read(queue, queue_offset, count_max, bytes_max, waited)

    def when_at_hand(self, waiting: Waiting, then: Callable[[], None]) -> bool:
        assert isinstance(waiting, Fetch)
        return self._reads.when_at_hand(waiting, then)

    def tail(self, queue: QueueHandle, then: Callable[[int], None] | None = None) -> int | None:
        if isinstance(queue, Place | DelayedPlace):
            return None  # a request for each append would cost too much
        assert isinstance(queue, RemoteQueue)
        if queue in self._topics.new_queues:
            self._reads.follow(queue, 0)
            return 0
        if then is not None:
            self._reads.ask_tail(queue, then)
        return None

    def least_tail(self, queue: QueueHandle) -> int:
        if isinstance(queue, DelayedPlace):
            return 0  # it is stored in another queue first
        assert isinstance(queue, Place)
        return 0 if queue.queue is None else queue.queue.least_tail

    def newest_tail(self, queue: QueueHandle, then: Callable[[int], None]) -> None:
        assert isinstance(queue, RemoteQueue)
        self._reads.ask_newest(queue, then)

    def offset_at(
        self, queue: QueueHandle, time_ms: int, then: Callable[[int], None]
    ) -> int | None:
        assert isinstance(queue, RemoteQueue)
        self._reads.ask_offset(queue, time_ms, then)
        return None

    # --- life ----------------------------------------------------------------------------

    @property
    def outage(self) -> str | None:
        """A text that says which brokers are away; None while all answer."""
        away = self._links.away()
        if not away:
            return None
        text = ", ".join(f"{link.name} for {link.away_s():.0f} s" for link in away)
        home = self.home.broker
        if home is not None and self._links.of(home) in away:
            text += f"; sessions and retained messages of all gateways are at {home}"
        return f"brokers are away: {text}"

    @property
    def start_waits_for(self) -> str:
        """A text that says what a starting gateway waits for while its log is not ready."""
        servers = ", ".join(self._client.namesrv_addresses)
        if not self._topics.is_running:
            return f"asking the name servers {servers}"
        if self.outage is None and not self._links.names:
            return f"waiting for a broker: the name servers {servers} know none"
        missing = ", ".join(sorted(self._topics.missing))
        if self.outage or missing:
            return self.outage or f"waiting for brokers to create the topics {missing}"
        return "reading sessions and retained messages"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started when a name server has listed the topics.

        After that it waits up to GRACE_S for ``close``, and appended messages are still sent.
        """
        stopped = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._keep_client, stopped)
            try:
                await self._listing.run(task_status=task_status)
            finally:
                if not self._topics.is_running:
                    self._closed.set()  # it has not served, so ``close`` is not called
                stopped.set()

    async def _keep_client(
        self, stopped: trio.Event, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Keep the connections, and the tasks that use them, until the last appends are sent."""
        with trio.CancelScope() as scope:
            await self._client.enter()
            scope.shield = True
            try:
                task_status.started()
                await stopped.wait()
                with trio.move_on_after(GRACE_S):
                    await self._closed.wait()
                    await self._appends.drain()
            finally:
                self._appends.on_settled(no_listener)
                await self._client.leave()

    def close(self) -> None:
        self._appends.on_settled(no_listener)
        self._closed.set()

    def _release(self, held: list[tuple[Place, Part]]) -> None:
        for place, part in held:
            assert place.queue is not None, "its topic is known"
            self._appends.queue_part(place.queue, part)


def _client(namesrv: str, group: str, credentials: Credentials | None, tls: Tls | None) -> Client:
    return Client(
        namesrv=namesrv,
        groups=lambda: _groups(group),
        unregister={"consumerGroup": group, "producerGroup": group},
        credentials=credentials,
        tls=tls,
    )


def _groups(group: str) -> dict[str, list[dict[str, Any]]]:
    """Return the members of the heartbeat: each gateway reads every message by itself."""
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_ACTIVELY",
        "groupName": group,
        "messageModel": "BROADCASTING",
        "subscriptionDataSet": [],
        "unitMode": False,
    }
    return {"consumerDataSet": [consumer], "producerDataSet": [{"groupName": group}]}
