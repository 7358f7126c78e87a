"""Sends to the queues of a remote log: one at a time for each queue.

Owns: Sends: what goes into a send, what its answer means, what is sent again. Must not touch: how
messages become parts, which ticket a part settles (``appends``).
Invariants: a queue has one send under way at a time, since a broker may store two out of order;
parts that come meanwhile share the next one. Messages that may have reached a broker are never sent
a second time.
Spec: RocketMQ SendMessageRequestHeaderV2, MessageBatch.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

import trio

from motelog.bridge.client import Client
from motelog.bridge.routes import DEFAULT_TOPIC_QUEUE_COUNT
from motelog.core.errors import (
    BrokerError,
    MotelogError,
    RemotingConnectError,
    RemotingError,
    StoreFullError,
)
from motelog.core.limited_log import LimitedLog
from motelog.core.remoting.codes import MAY_LAST, STORE_FULL
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    encode_batch_items,
)
from motelog.core.spare_memory import NO_MEMORY
from motelog.core.topic_names import DEFAULT_TOPIC, GATEWAY_TOPICS
from motelog.gateway.log.log_port import OutcomeUnknownError, StoredUnsafelyError
from motelog.gateway.log.reckoning import ANSWER_S
from motelog.gateway.log.remote.links import BrokerLink, BrokerLinks
from motelog.gateway.log.remote.parts import Part, Withdrawn
from motelog.gateway.log.remote.queues import RemoteQueue

logger = logging.getLogger(__name__)

#: A send takes no further part beyond these; a single part may be larger.
SEND_BYTES_MAX: Final = 1_048_576
SEND_COUNT_MAX: Final = 4096
RETRY_PAUSE_S: Final = 0.1
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


class Sends:
    """The sends of one gateway to brokers in other processes."""

    def __init__(
        self,
        client: Client,
        links: BrokerLinks,
        *,
        group: str,
        wait_s: float,
        end: Callable[[Part, MotelogError | None], None],
        settle: Callable[[], None],
    ) -> None:
        """``end`` is called with each part of a send that is over, and then ``settle`` once."""
        self._client = client
        self._links = links
        self._group = group
        self._wait_s = wait_s
        self._end = end
        self._settle = settle
        #: The gateway's run: parts that have waited for marks of another one are refused.
        self.run: Callable[[], int] = _the_only_run
        self.withdrawn = Withdrawn()
        #: Queues with parts that no task sends yet, and whether a task is about to start.
        self._wanting: dict[RemoteQueue, None] = {}
        self._is_sending_soon = False
        self._refusals = LimitedLog(logger, lines_max=1, period_s=5)

    def gives_up(self, link: BrokerLink, topic: str) -> bool:
        """Return whether messages do not wait for a broker that is away.

        If the name servers know only its slaves, nothing waits but the state of gateways, without
        which their sessions would end.
        """
        if link.away_since is None or link.has_master or topic in GATEWAY_TOPICS:
            return link.away_s() > self._wait_s
        return True

    def add(self, queue: RemoteQueue, part: Part) -> None:
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

    async def _send_all(self, queue: RemoteQueue) -> None:
        """Send the parts waiting for ``queue`` until none is left."""
        link = self._links.of(queue.name.broker_name)
        while queue.parts:
            if link.away_since is not None and not self.gives_up(link, queue.name.topic):
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
        run, now = self.run(), trio.current_time()
        parts, body_bytes, count = list[Part](), 0, 0
        while waiting:
            part = waiting[0]
            error: MotelogError | None = None
            if part.run not in (None, run) or (part.run is not None and now > part.deadline):
                error = BrokerError(ResponseCode.SYSTEM_BUSY, "its marks may no longer count")
            elif self.withdrawn.ends and self.withdrawn.has(part):
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
            return away_error(link)
        command = _command(self._group, queue, parts)
        # The state of gateways does not wait for publishes, which may be slow at all other queues.
        window = nullcontext() if queue.name.topic in GATEWAY_TOPICS else link.window
        try:
            async with window:
                answer = await self._links.request(link, command, timeout_s=ANSWER_S)
        except RemotingConnectError:
            return away_error(link)  # nothing was sent
        except RemotingError as exc:
            return OutcomeUnknownError(f"the broker has not said that it has the message: {exc}")
        error = _error_of(answer)
        if error is None:
            place = answer.ext.get("queueOffset", "")
            queue.least_tail = int(place) if place.isdecimal() else 0
        return error

    def _sent(
        self,
        link: BrokerLink,
        queue: RemoteQueue,
        parts: list[Part],
        error: MotelogError | None,
        *,
        is_passing: bool,
    ) -> None:
        """End the parts of a send, or queue them again if they are to be sent once more."""
        again: list[Part] = []
        if is_passing or isinstance(error, RemotingConnectError):
            # Nothing was stored, and the broker may take it a little later.
            if not self.gives_up(link, queue.name.topic):
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


def away_error(link: BrokerLink) -> RemotingConnectError:
    """Return why a broker cannot be sent to now."""
    # Publishers see this text: the reason alone would look like their own fault.
    state = "is away" if link.has_master else "is away, and its slaves take no messages"
    return RemotingConnectError(f"broker {link.name!r} {state}: {link.reason}")


def _the_only_run() -> int:
    """Return a constant, until ``fence`` is called."""
    return 0
