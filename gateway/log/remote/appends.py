"""Appends to a remote log: messages that wait for queues, one send per queue at a time, tickets.

Owns: Appends: batches by queue, the limits of waiting messages, which answer settles which ticket.
Must not touch: routes, reads, what waits for which ticket (``parts``).
Invariants: a ticket settles when the brokers of its own messages have answered, whatever other
brokers do. A queue has one send under way at a time, since a broker may store two out of order;
messages that come meanwhile share the next one. Messages that may have reached a broker are never
sent a second time: if no answer comes, the ticket settles with OutcomeUnknownError, and publishers
decide whether to send again.
Spec: RocketMQ SendMessageRequestHeaderV2, MessageBatch.

    append -> a part per queue -> one SEND_BATCH per queue -> answer -> tickets
                    topic not known yet: waits      broker away: waits, at most ``wait_s``;
                                                    only its slaves known: refused at once

Appends of consecutive turns of a reactor share the sends, which begin when the reactor waits.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, Final

import trio

from motelog.bridge.client import Client
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
from motelog.core.remoting.codes import MAY_LAST, STORE_FULL
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    encode_batch_items,
)
from motelog.core.spare_memory import NO_MEMORY
from motelog.core.topic_names import DEFAULT_TOPIC, GATEWAY_TOPICS
from motelog.gateway.log.log_port import (
    SETTLED,
    OutcomeUnknownError,
    Settled,
    StoredUnsafelyError,
    Ticket,
    no_listener,
)
from motelog.gateway.log.reckoning import ANSWER_S
from motelog.gateway.log.remote.links import BrokerLink, BrokerLinks
from motelog.gateway.log.remote.parts import Batch, Held, Part, Withdrawn
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
#: Answers of brokers that have stored the messages, and may yet have done so as safely as they are
#: set up to.
_STORED_CODES: Final = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT}
)
_NOT_ACKNOWLEDGED: Final = (
    "a broker has not acknowledged an append, and its publishers are refused"
    " queue=%s messages=%d error=%s"
)
_NOT_BEHIND: Final[Mapping[int, Sequence[Ticket]]] = {}


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
        self._settled_listener: Callable[[Settled], None] = no_listener
        self._run: Callable[[], int] = _the_only_run
        self._held = Held()
        #: The number of unfinished parts, and their bytes by broker.
        self._under_way = 0
        self._waiting_bytes: Counter[str | None] = Counter()
        #: Tickets that have settled and that the listener has not heard of yet.
        self._over: list[tuple[Ticket, MotelogError | None]] = []
        #: Queues with parts that no task sends yet, and whether a task is about to start.
        self._wanting: dict[RemoteQueue, None] = {}
        self._is_sending_soon = False
        self._withdrawn = Withdrawn()
        self._refusals = LimitedLog(logger, lines_max=1, period_s=5)
        self._progress = Flag()

    def on_settled(self, listener: Callable[[Settled], None]) -> None:
        """Call ``listener`` with the tickets that settle."""
        self._settled_listener = listener

    def fence(self, run: Callable[[], int]) -> None:
        """Refuse messages that wait for marks if ``run`` has changed; see ``LogPort.fence``."""
        self._run = run

    def withdraw(self, publisher: bytes) -> None:
        """Send nothing more of what a publisher has appended; see ``LogPort.withdraw``."""
        if self._under_way:
            end = _born_host_property(publisher)
            self._withdrawn.note(end, trio.current_time(), 2 * self._wait_s)

    def append(self, messages: Sequence[tuple[Any, ...]]) -> Ticket:
        """Take a batch with one fate; its handles are places."""
        parts = tuple(dict.fromkeys(self._parts(messages, _NOT_BEHIND)))
        if not parts:
            return SETTLED
        ticket = parts[0] if len(parts) == 1 else Batch(parts)
        self._begin(parts)
        return ticket

    def append_apart(
        self,
        messages: Sequence[tuple[Any, ...]],
        behind: Mapping[int, Sequence[Ticket]] = _NOT_BEHIND,
    ) -> Sequence[Ticket]:
        """Take messages; return the ticket of each. See ``LogPort.append_apart``."""
        parts = self._parts(messages, behind)
        self._begin(dict.fromkeys(parts))
        return parts

    def _parts(
        self, messages: Sequence[tuple[Any, ...]], behind: Mapping[int, Sequence[Ticket]]
    ) -> list[Part]:
        """Return the part of each message."""
        held = self._held
        may_wait = bool(behind or held.last)
        deadline = trio.current_time() + self._wait_s
        parts: list[Part] = []
        #: The part to which a message is added, by its place and what it waits for.
        growing: dict[Hashable, Part] = {}
        after: Sequence[Ticket] = ()
        ahead: Part | None = None
        for number, message in enumerate(messages):
            place, body, properties, _, born_ms, host, _, flag, _, _ = message
            text = properties + _born_host_property(host)
            if len(text) > PROPERTIES_BYTES_MAX - PROPERTIES_ROOM_BYTES:
                text = properties  # the publisher's own properties have priority
            item_bytes = len(body) + len(text) + _ITEM_BYTES
            key: Hashable = place
            if may_wait and place.topic not in GATEWAY_TOPICS:
                after, ahead = behind.get(number, ()), held.last.get(host)
                key = place, tuple(after), ahead
            part = growing.get(key)
            if part is None or part.body_bytes + item_bytes > SEND_BYTES_MAX:
                part = growing[key] = self._new_part(place, born_ms, deadline)
                if key is not place and part.error is None:
                    part.run = self._run() if after else None
                    held.hold(part, after, ahead)
            if part.waits_for:
                held.add(part, host)
            part.items.append((flag, body, text))
            part.body_bytes += item_bytes
            parts.append(part)
        return parts

    def _new_part(self, place: Place | DelayedPlace, born_ms: int, deadline: float) -> Part:
        if isinstance(place, DelayedPlace):  # each such message has its own
            part = Part(place.place, born_ms, deadline)
            part.is_delayed = part.is_alone = True
        else:
            part = Part(place, born_ms, deadline)
        part.error = self.refusal(part.place)
        return part

    def refusal(self, place: Place | DelayedPlace) -> MotelogError | None:
        """Return why messages for a place are refused at once, if they are."""
        place = place.place if isinstance(place, DelayedPlace) else place
        broker_name = place.queue.name.broker_name if place.queue is not None else None
        if broker_name is not None:
            link = self._links.of(broker_name)
            if self._gives_up(link, place.topic):
                return _away(link)
        # Of several brokers each has a share of the memory, and so have topics that are not known:
        # what waits for a broker that is away leaves room for the others.
        count, waiting = self._links.count, self._waiting_bytes
        waiting_bytes = waiting[broker_name] if count > 1 else waiting.total()
        if waiting_bytes > self._waiting_bytes_max // (count + 1 if count > 1 else 1):
            text = f"{waiting_bytes} bytes already wait for {broker_name or 'new topics'}"
            return BrokerError(ResponseCode.SYSTEM_BUSY, text)
        return None

    def _gives_up(self, link: BrokerLink, topic: str) -> bool:
        """Return whether messages do not wait for a broker that is away.

        If the name servers know only its slaves, nothing waits but the state of gateways, without
        which their sessions would end.
        """
        if link.away_since is None or link.has_master or topic in GATEWAY_TOPICS:
            return link.away_s() > self._wait_s
        return True

    def _begin(self, parts: Iterable[Part]) -> None:
        known = len(self._over)
        for part in parts:
            self._under_way += 1
            part.place.taken += 1
            part.place.under_way += 1
            self._waiting_bytes[part.broker_name] += part.body_bytes
            if not part.waits_for:
                self._go_on((part,))
        del self._over[known:]  # these settled within the append: the listener is not called

    def _go_on(self, parts: Iterable[Part]) -> None:
        """Queue parts that wait for no ticket, or refuse them because of one."""
        for part in parts:
            queue = part.place.queue
            if part.error is not None:
                self._end(part, part.error)
            elif queue is not None:
                self.queue_part(queue, part)
            elif (error := self._hold(part.place, part)) is not None:
                self._end(part, error)

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
        while self._under_way:
            await self._progress.take()

    def refuse(self, parts: Iterable[Part], error: MotelogError) -> None:
        """End parts that no broker has stored or will store."""
        for part in parts:
            self._end(part, error)
        self._settle()

    # --- send ----------------------------------------------------------------------------

    async def _send_all(self, queue: RemoteQueue) -> None:
        """Send the parts that wait for ``queue`` until there are none."""
        link = self._links.of(queue.name.broker_name)
        while queue.parts:
            if link.away_since is not None and not self._gives_up(link, queue.name.topic):
                is_state = queue.name.topic in GATEWAY_TOPICS
                with trio.move_on_at(queue.parts[0].deadline):
                    await (link.is_back if is_state else link.is_decided).wait()
            parts = self._take(queue.parts)
            self._settle()
            if not parts:
                continue
            try:
                error = await self._send(link, queue, parts)
            except NO_MEMORY:
                self._refusals.fault("a send to a broker lacks memory: free memory")
                error = OutcomeUnknownError("memory ran out after a send to a broker")
            is_busy = isinstance(error, BrokerError) and error.code in _PASSING_CODES
            self._sent(link, queue, parts, error, is_passing=is_busy)
            self._settle()
            if is_busy and queue.parts:
                await trio.sleep(RETRY_PAUSE_S)
        queue.is_sending = False

    def _take(self, waiting: deque[Part]) -> list[Part]:
        """Return the parts of the next send: the first one, and those after it that fit.

        Parts whose marks may no longer count are refused: another gateway may have the session.
        So are parts with messages that have been withdrawn.
        """
        run, now = self._run(), trio.current_time()
        parts, body_bytes, count = list[Part](), 0, 0
        while waiting:
            part = waiting[0]
            error: MotelogError | None = None
            if part.run not in (None, run) or (part.run is not None and now > part.deadline):
                error = BrokerError(ResponseCode.SYSTEM_BUSY, "its marks may no longer count")
            elif self._withdrawn.ends and self._withdrawn.has(part):
                error = OutcomeUnknownError("an earlier message of its publisher was refused")
            if error is not None:
                self._end(waiting.popleft(), error)
                continue
            body_bytes += part.body_bytes
            count += len(part.items)
            is_full = body_bytes > SEND_BYTES_MAX or count > SEND_COUNT_MAX
            if parts and (is_full or part.is_alone or parts[0].is_alone):
                break
            parts.append(waiting.popleft())
        return parts

    async def _send(
        self, link: BrokerLink, queue: RemoteQueue, parts: list[Part]
    ) -> MotelogError | None:
        """Return None when the broker has stored ``parts``, otherwise why it has not."""
        if link.away_since is not None:
            return _away(link)
        command = _command(self._group, queue, parts)
        # The state of gateways does not wait for publishes, which may be slow at all other queues.
        window = nullcontext() if queue.name.topic in GATEWAY_TOPICS else link.window
        try:
            async with window:
                answer = await self._links.request(link, command, timeout_s=ANSWER_S)
        except RemotingConnectError:
            return _away(link)  # nothing was sent
        except RemotingError as exc:
            return OutcomeUnknownError(f"the broker has not said that it has the message: {exc}")
        return _error_of(answer)

    def _sent(
        self,
        link: BrokerLink,
        queue: RemoteQueue,
        parts: list[Part],
        error: MotelogError | None,
        *,
        is_passing: bool,
    ) -> None:
        """End the parts of a send, and queue again those that are to be sent again."""
        again: list[Part] = []
        if is_passing or isinstance(error, RemotingConnectError):
            # Nothing was stored, and the broker may take it a little later.
            if not self._gives_up(link, queue.name.topic):
                now = trio.current_time()
                again = [part for part in parts if part.deadline > now]
                parts = [part for part in parts if part.deadline <= now]
        elif isinstance(error, BrokerError) and len(parts) > 1:
            # The broker has stored none of it. One append must not fail because of another's fault.
            again, parts = parts, []
            for part in again:
                part.is_alone = True
        queue.parts.extendleft(reversed(again))
        if error is not None and parts:
            count = sum(len(part.items) for part in parts)
            self._refusals.warning(_NOT_ACKNOWLEDGED, queue, count, error)
        for part in parts:
            self._end(part, error)

    # --- tickets -------------------------------------------------------------------------

    def _end(self, part: Part, error: MotelogError | None) -> None:
        self._under_way -= 1
        part.place.under_way -= 1
        self._waiting_bytes[part.broker_name] -= part.body_bytes
        part.items = []
        part.error = error
        part.is_settled = True
        ticket: Part | Batch = part
        if part.batch is not None:
            ticket = part.batch
            ticket.error = ticket.error or error
            ticket.parts_left -= 1
            ticket.is_settled = not ticket.parts_left
        if ticket.is_settled:
            self._over.append((ticket, ticket.error))
            if ticket.then is not None:
                self._go_on(self._held.settled(ticket))

    def _settle(self) -> None:
        """Call the listener with the tickets that have settled."""
        over, self._over = self._over, []
        if over:
            self._progress.set()
            self._settled_listener(over)


def _command(group: str, queue: RemoteQueue, parts: list[Part]) -> RemotingCommand:
    name = queue.name
    ext = {
        "a": group,
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


def _error_of(answer: RemotingCommand) -> MotelogError | None:
    # Without a slave a broker has the message alone, and goes on: its operator may forbid that
    # (slaves_min), which refuses messages. Java's producers count it as sent too.
    if answer.code in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE):
        return None
    if answer.code in _STORED_CODES:
        name = ResponseCode(answer.code).name
        return StoredUnsafelyError(f"the broker has the message, but not safely: {name}")
    if STORE_FULL in answer.ext:
        return StoreFullError(answer.remark or "the broker's disk is over its limit")
    code = ResponseCode.SYSTEM_ERROR if MAY_LAST in answer.ext else answer.code
    return BrokerError(code, answer.remark or f"response code {answer.code}")


def _away(link: BrokerLink) -> RemotingConnectError:
    # Publishers see this text: the reason alone would look like their own fault.
    state = "is away" if link.has_master else "is away, and its slaves take no messages"
    return RemotingConnectError(f"broker {link.name!r} {state}: {link.reason}")


# Most messages of any moment come from few publishers.
@lru_cache(maxsize=65_536)
def _born_host_property(host: bytes) -> bytes:
    return f"{BORN_HOST}{NAME_END}{format_address(*decode_host(host))}{VALUE_END}".encode()


def _the_only_run() -> int:
    """Return a constant, until ``fence`` is called."""
    return 0
