"""Appends to a remote log: messages that wait for queues, and their tickets.

Owns: Appends: batches by queue, the limits of waiting messages, when a ticket settles. Must not
touch: routes, reads, requests (``sends``), what waits for which ticket (``parts``).
Invariants: a ticket settles when the brokers of its own messages have answered, whatever other
brokers do. If no answer comes, it settles with OutcomeUnknownError, and publishers decide whether
to send again.

    append -> a part per queue -> one SEND_BATCH per queue -> answer -> tickets
                    topic not known yet: waits      broker away: waits, at most ``wait_s``;
                                                    only its slaves known: refused at once

Appends of consecutive turns of a reactor share the sends, which begin when the reactor waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import trio

from motelog.bridge.client import Client
from motelog.core.addresses import format_address
from motelog.core.errors import (
    BrokerError,
    MotelogError,
)
from motelog.core.flag import Flag
from motelog.core.message import NAME_END, PROPERTIES_BYTES_MAX, VALUE_END, decode_host
from motelog.core.remoting.frames import (
    ResponseCode,
)
from motelog.core.topic_names import GATEWAY_TOPICS
from motelog.gateway.log.log_port import (
    SETTLED,
    Settled,
    Ticket,
    no_listener,
)
from motelog.gateway.log.remote.links import BrokerLinks
from motelog.gateway.log.remote.parts import Batch, Held, Part
from motelog.gateway.log.remote.queues import DelayedPlace, Place
from motelog.gateway.log.remote.sends import SEND_BYTES_MAX, Sends, away_error

#: Property with the publisher's HOST:PORT: the born host on the wire is the gateway's own. The name
#: is RocketMQ's, for messages that its proxy forwards.
BORN_HOST: Final = "__BORNHOST"
#: Room for the properties that a broker adds to a message.
PROPERTIES_ROOM_BYTES: Final = 512
_ITEM_BYTES: Final = 22  # of a batch item without body and properties

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
        self._links = links
        self._wait_s = wait_s
        self._sends = Sends(
            client, links, group=group, wait_s=wait_s, end=self._end, settle=self._settle
        )
        self.queue_part = self._sends.add
        self._waiting_bytes_max = waiting_bytes_max
        self._hold = hold
        self._settled_listener: Callable[[Settled], None] = no_listener
        self._held = Held()
        #: The number of unfinished parts, and their bytes by broker.
        self._under_way = 0
        self._waiting_bytes: Counter[str | None] = Counter()
        #: Tickets that have settled and that the listener has not heard of yet.
        self._over: list[tuple[Ticket, MotelogError | None]] = []
        self._progress = Flag()

    def on_settled(self, listener: Callable[[Settled], None]) -> None:
        """Call ``listener`` with the tickets that settle."""
        self._settled_listener = listener

    def fence(self, run: Callable[[], int]) -> None:
        """Refuse messages that wait for marks if ``run`` has changed; see ``LogPort.fence``."""
        self._sends.run = run

    def withdraw(self, publisher: bytes) -> None:
        """Send nothing more of what a publisher has appended; see ``LogPort.withdraw``."""
        if self._under_way:
            end = _born_host_property(publisher)
            self._sends.withdrawn.note(end, trio.current_time(), 2 * self._wait_s)

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
                    part.run = self._sends.run() if after else None
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
            if self._sends.gives_up(link, place.topic):
                return away_error(link)
        # Of several brokers each has a share of the memory, and so have topics that are not known:
        # what waits for a broker that is away leaves room for the others.
        count, waiting = self._links.count, self._waiting_bytes
        waiting_bytes = waiting[broker_name] if count > 1 else waiting.total()
        if waiting_bytes > self._waiting_bytes_max // (count + 1 if count > 1 else 1):
            text = f"{waiting_bytes} bytes already wait for {broker_name or 'new topics'}"
            return BrokerError(ResponseCode.SYSTEM_BUSY, text)
        return None

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

    async def drain(self) -> None:
        """Return when all tickets have settled."""
        while self._under_way:
            await self._progress.take()

    def refuse(self, parts: Iterable[Part], error: MotelogError) -> None:
        """End parts that no broker has stored or will store."""
        for part in parts:
            self._end(part, error)
        self._settle()

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


# Most messages of any moment come from few publishers.
@lru_cache(maxsize=65_536)
def _born_host_property(host: bytes) -> bytes:
    return f"{BORN_HOST}{NAME_END}{format_address(*decode_host(host))}{VALUE_END}".encode()
