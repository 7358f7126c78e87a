"""Appends to a remote log: messages that wait for queues, one send per queue at a time, tickets.

Owns: RemoteTicket, Part, Appends: batches by queue, the limits of waiting messages, which answer
settles which ticket. Must not touch: routes, reads.
Invariants: tickets settle in the order of their appends. A queue has one send under way at a time,
since a broker may store two out of order; messages that come meanwhile share the next one. Messages
that may have reached a broker are never sent a second time: if no answer comes, the ticket settles
with OutcomeUnknownError, and publishers decide whether to send again. Of one append, messages for a
gateway's own topic are stored before the messages after them are sent: QoS 2 marks are stored
before the messages that they mark.
Spec: RocketMQ SendMessageRequestHeaderV2, MessageBatch.

    append -> a part per queue -> one SEND_BATCH per queue -> answer -> tickets
                    topic not known yet: waits      broker away: waits, at most ``wait_s``

Appends of consecutive turns of a reactor share the sends, which begin when the reactor waits.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import trio

from motelog.bridge.client import REQUEST_TIMEOUT_S, Client
from motelog.bridge.routes import DEFAULT_TOPIC_QUEUE_COUNT
from motelog.core.addresses import format_address
from motelog.core.errors import (
    BrokerError,
    MotelogError,
    RemotingConnectError,
    RemotingError,
    StoreFullError,
)
from motelog.core.flag import Flag
from motelog.core.limited_log import LimitedLog
from motelog.core.message import NAME_END, PROPERTIES_BYTES_MAX, VALUE_END, decode_host
from motelog.core.remoting.codes import STORE_FULL
from motelog.core.remoting.frames import (
    BatchItem,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    encode_batch_items,
)
from motelog.core.topic_names import DEFAULT_TOPIC, GATEWAY_TOPICS
from motelog.gateway.errors import OutcomeUnknownError
from motelog.gateway.log.log_port import Settled, Ticket
from motelog.gateway.log.remote.links import BrokerLinks
from motelog.gateway.log.remote.queues import DelayedPlace, Place, RemoteQueue

logger = logging.getLogger(__name__)

#: Property with the publisher's HOST:PORT: the born host on the wire is the gateway's own. The name
#: is RocketMQ's, for messages that its proxy forwards.
BORN_HOST: Final = "__BORNHOST"
#: Room for the properties that a broker adds to a message.
PROPERTIES_ROOM_BYTES: Final = 512
#: A send takes no further part beyond these; a single part may be larger.
SEND_BYTES_MAX: Final = 1_048_576
SEND_COUNT_MAX: Final = 4096
RETRY_PAUSE_S: Final = 0.1
_ITEM_BYTES: Final = 22  # of a batch item without body and properties

#: Refusals by a broker that has not stored the messages and may accept them a little later.
_PASSING_CODES: Final = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.SERVICE_NOT_AVAILABLE}
)


class RemoteTicket(Ticket):
    """A ticket that settles when ``parts_left`` is 0 and all earlier ones have settled."""

    __slots__ = ("parts_left",)

    def __init__(self) -> None:
        super().__init__()
        self.parts_left = 0


class Part:
    """The messages of one append that go to one queue."""

    __slots__ = (
        "after",
        "body_bytes",
        "born_ms",
        "deadline",
        "error",
        "is_alone",
        "is_delayed",
        "is_over",
        "items",
        "over",
        "run",
        "ticket",
    )

    def __init__(self, ticket: RemoteTicket, born_ms: int, deadline: float) -> None:
        self.ticket = ticket
        self.born_ms = born_ms
        self.deadline = deadline
        self.items: list[BatchItem] = []
        self.body_bytes = 0
        #: Whether it must not share a send: a shared one was refused, and any part may be at fault.
        self.is_alone = False
        #: Whether it is one delayed message, which must not be in a batch.
        self.is_delayed = False
        #: The part of the same append that must be stored before this one, and the gateway's run
        #: in which it is valid.
        self.after: Part | None = None
        self.run = 0
        self.is_over = False
        self.error: MotelogError | None = None
        self.over: trio.Event | None = None

    async def wait_over(self) -> None:
        """Return when it has been stored, or has failed."""
        if not self.is_over:
            if self.over is None:
                self.over = trio.Event()
            await self.over.wait()


class Appends:
    """The appends of one gateway to brokers in other processes."""

    def __init__(
        self,
        client: Client,
        links: BrokerLinks,
        *,
        group: str,
        wait_s: float,
        waiting_bytes_max: int,
        hold: Callable[[Place, Part], MotelogError | None],
    ) -> None:
        self._client = client
        self._links = links
        self._group = group
        self._wait_s = wait_s
        self._waiting_bytes_max = waiting_bytes_max
        self._hold = hold
        self._tell_settled: Callable[[Settled], None] = _tell_nobody
        self._run: Callable[[], int] = _the_only_run
        self._unsettled: deque[RemoteTicket] = deque()
        self._waiting_bytes = 0
        #: Queues with parts that no task sends yet, and whether a task is about to start.
        self._wanting: dict[RemoteQueue, None] = {}
        self._is_sending_soon = False
        self._refusals = LimitedLog(logger, lines_max=1, period_s=5)
        self._progress = Flag()

    def on_settled(self, listener: Callable[[Settled], None]) -> None:
        """Call ``listener`` with the tickets that settle."""
        self._tell_settled = listener

    def fence(self, run: Callable[[], int]) -> None:
        """Refuse messages that wait for marks if ``run`` has changed; see ``LogPort.fence``."""
        self._run = run

    def close(self) -> None:
        """Stop calling the listener."""
        self._tell_settled = _tell_nobody

    def append(self, messages: Sequence[tuple[Any, ...]]) -> Ticket:
        """Take a batch; its handles are places."""
        if self._waiting_bytes > self._waiting_bytes_max:
            text = f"{self._waiting_bytes} bytes wait for brokers already"
            return self._refuse_at_once(BrokerError(ResponseCode.SYSTEM_BUSY, text))
        ticket = RemoteTicket()
        self._unsettled.append(ticket)
        deadline = trio.current_time() + self._wait_s
        parts: list[tuple[Place, Part]] = []
        growing: dict[Place | DelayedPlace, Part] = {}
        for place, body, properties, _, born_ms, host, _, flag, _, _ in messages:
            text = properties + _born_host_property(host)
            if len(text) > PROPERTIES_BYTES_MAX - PROPERTIES_ROOM_BYTES:
                text = properties  # the publisher's own properties have priority
            item_bytes = len(body) + len(text) + _ITEM_BYTES
            part = growing.get(place)
            if part is None or part.body_bytes + item_bytes > SEND_BYTES_MAX:
                part = growing[place] = Part(ticket, born_ms, deadline)
                if isinstance(place, DelayedPlace):  # each such message has its own
                    part.is_delayed = part.is_alone = True
                    place = place.place
                parts.append((place, part))
            part.items.append((flag, body, text))
            part.body_bytes += item_bytes
        ticket.parts_left = len(parts)
        state: Part | None = None
        for place, part in parts:
            self._waiting_bytes += part.body_bytes
            if place.topic in GATEWAY_TOPICS:
                state = part
            elif state is not None:
                part.after, part.run = state, self._run()
            queue = place.queue
            if queue is not None:
                self.queue_part(queue, part)
            elif (error := self._hold(place, part)) is not None:
                self._end(part, error)
        if not ticket.parts_left and self._unsettled[0] is ticket:
            self._unsettled.popleft()
            ticket.is_settled = True
        return ticket

    def queue_part(self, queue: RemoteQueue, part: Part) -> None:
        """Queue a part; it is sent to ``queue`` when the caller next lets other tasks run."""
        queue.parts.append(part)
        if not queue.is_sending:
            self._wanting[queue] = None
            if not self._is_sending_soon:
                self._is_sending_soon = True
                self._client.start_soon(self._send_wanting)

    async def _send_wanting(self) -> None:
        """Start a send for each queue that has parts and no send under way."""
        self._is_sending_soon = False
        for queue in list(self._wanting):
            self._client.start_soon(self._send_all, queue)
            queue.is_sending = True
            del self._wanting[queue]

    async def drain(self) -> None:
        """Return when all tickets have settled."""
        while self._unsettled:
            await self._progress.take()

    def refuse(self, parts: Iterable[Part], error: MotelogError) -> None:
        """End parts that no broker has stored or will store."""
        for part in parts:
            self._end(part, error)
        self._settle()

    def _refuse_at_once(self, error: MotelogError) -> Ticket:
        if not self._unsettled:
            return Ticket(error, is_settled=True)
        ticket = RemoteTicket()
        ticket.error = error
        self._unsettled.append(ticket)
        return ticket

    # --- send ----------------------------------------------------------------------------

    async def _send_all(self, queue: RemoteQueue) -> None:
        """Send the parts that wait for ``queue`` until there are none."""
        while queue.parts:
            after = queue.parts[0].after
            if after is not None:
                await after.wait_over()
                error = after.error
                if error is None and queue.parts[0].run != self._run():
                    error = BrokerError(ResponseCode.SYSTEM_BUSY, "its marks do not count any more")
                if error is not None:
                    self.refuse([queue.parts.popleft()], error)
                    continue
            parts = _take(queue.parts, self._run())
            try:
                error = await self._send(queue, parts)
            except MemoryError:
                self._refusals.fault("a send to a broker lacks memory: free memory")
                error = OutcomeUnknownError("no memory for what a broker has been sent")
            if isinstance(error, BrokerError) and len(parts) > 1:
                # The broker has stored none of it. One append must not fail for another's fault.
                for part in parts:
                    part.is_alone = True
                queue.parts.extendleft(reversed(parts))
                continue
            if error is not None:
                self._refusals.warning(
                    "a broker has not acknowledged an append, whose publishers are refused"
                    " queue=%s messages=%d error=%s",
                    queue,
                    sum(len(part.items) for part in parts),
                    error,
                )
            for part in parts:
                self._end(part, error)
            self._settle()
        queue.is_sending = False

    async def _send(self, queue: RemoteQueue, parts: list[Part]) -> MotelogError | None:
        """Return None when the broker has stored ``parts``, otherwise why they are refused."""
        link = self._links.of(queue.name.broker_name)
        deadline = parts[0].deadline
        command = self._command(queue, parts)
        while True:
            # If a broker has been away for long, new appends do not wait for it.
            if link.away_since is not None and link.away_s() <= self._wait_s:
                with trio.move_on_at(deadline):
                    await link.is_back.wait()
            if link.away_since is not None:
                # Publishers see this text: the reason alone would look like their own fault.
                return RemotingConnectError(f"broker {link.name!r} is away: {link.reason}")
            try:
                async with link.window:
                    answer = await self._links.request(link, command, timeout_s=REQUEST_TIMEOUT_S)
            except RemotingConnectError:
                continue  # nothing was sent: it is away now
            except RemotingError as exc:
                return OutcomeUnknownError(
                    f"the broker has not said that it has the message: {exc}"
                )
            if answer.code == ResponseCode.SUCCESS:
                return None
            if STORE_FULL in answer.ext:
                return StoreFullError(answer.remark or "the broker's disk is over its limit")
            error = BrokerError(answer.code, answer.remark or f"response code {answer.code}")
            if answer.code not in _PASSING_CODES or trio.current_time() >= deadline:
                return error
            await trio.sleep(RETRY_PAUSE_S)

    def _command(self, queue: RemoteQueue, parts: list[Part]) -> RemotingCommand:
        name = queue.name
        ext = {
            "a": self._group,
            "b": name.topic,
            "c": DEFAULT_TOPIC,
            "d": str(DEFAULT_TOPIC_QUEUE_COUNT),
            "e": str(name.queue_id),
            "f": "0",
            "g": str(parts[0].born_ms or time.time_ns() // 1_000_000),
            "h": "0",
            "i": "",
            "j": "0",
            "k": "false",
            "m": "true",
            "n": name.broker_name,
        }
        if parts[0].is_delayed:
            [(flag, body, properties)] = parts[0].items
            ext |= {"f": "0", "h": str(flag), "i": properties.decode(), "m": "false"}
            return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext=ext, body=body)
        body = encode_batch_items(item for part in parts for item in part.items)
        return RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, ext=ext, body=body)

    # --- tickets -------------------------------------------------------------------------

    def _end(self, part: Part, error: MotelogError | None) -> None:
        part.is_over = True
        part.error = error
        if part.over is not None:
            part.over.set()
        ticket = part.ticket
        ticket.parts_left -= 1
        ticket.error = ticket.error or error
        self._waiting_bytes -= part.body_bytes

    def _settle(self) -> None:
        unsettled = self._unsettled
        settled: list[tuple[Ticket, MotelogError | None]] = []
        while unsettled and not unsettled[0].parts_left:
            ticket = unsettled.popleft()
            ticket.is_settled = True
            settled.append((ticket, ticket.error))
        if settled:
            self._progress.set()
            self._tell_settled(settled)


def _take(waiting: deque[Part], run: int) -> list[Part]:
    """Return the parts of the next send: the first one, and those after it that fit."""
    parts = [waiting.popleft()]
    body_bytes, count = parts[0].body_bytes, len(parts[0].items)
    while waiting and not parts[0].is_alone and _may_share(waiting[0], run):
        body_bytes += waiting[0].body_bytes
        count += len(waiting[0].items)
        if body_bytes > SEND_BYTES_MAX or count > SEND_COUNT_MAX:
            break
        parts.append(waiting.popleft())
    return parts


def _may_share(part: Part, run: int) -> bool:
    after = part.after
    if after is None:
        return not part.is_alone
    return not part.is_alone and after.is_over and after.error is None and part.run == run


# Most messages of any moment come from few publishers.
@lru_cache(maxsize=65_536)
def _born_host_property(host: bytes) -> bytes:
    return f"{BORN_HOST}{NAME_END}{format_address(*decode_host(host))}{VALUE_END}".encode()


def _the_only_run() -> int:
    """Return a constant, until ``fence`` is called."""
    return 0


def _tell_nobody(settled: Settled) -> None:
    """Do nothing, until there is a listener."""
