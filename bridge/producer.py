"""Sending messages: validation, queue choice, attempts within a deadline.

Owns: Producer, SendResult, the header and body of a send request. Must not touch: connections and
routes (bridge.client). Safe to share between the tasks of one trio run.
Spec: RocketMQ DefaultMQProducerImpl, SendMessageRequestHeaderV2, MessageBatch.
"""

from __future__ import annotations

import ipaddress
import itertools
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from functools import lru_cache
from typing import Final, Self, TypeAlias, TypedDict

import trio

from motelog.bridge.client import Client, NameServers, check, check_group, int_field, refusal
from motelog.bridge.errors import (
    ClientClosedError,
    MessageRefusedError,
    NoNameServerError,
    RouteError,
    SendFailedError,
)
from motelog.bridge.requests import Requests, reply_message
from motelog.bridge.routes import DEFAULT_TOPIC_QUEUE_COUNT, TopicRoute
from motelog.bridge.slow_brokers import SlowBrokers
from motelog.bridge.trace.recorder import TRACE_TOPIC, TraceRecorder
from motelog.bridge.trace.records import (
    MessageType,
    TraceKind,
    TraceRecord,
    is_traced,
    region_of,
)
from motelog.core.addresses import format_address
from motelog.core.errors import (
    BrokerError,
    RemotingConnectError,
    RemotingConnectionError,
    RemotingError,
    RemotingTimeoutError,
)
from motelog.core.message import (
    DELAY,
    KEYS,
    MAX_RECONSUME_TIMES,
    RECONSUME_TIME,
    SYS_FLAG_COMPRESSED,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    Message,
    MessageQueue,
    decode_properties,
    encode_properties,
    string_hash,
)
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    encode_batch_items,
)
from motelog.core.remoting.recall_handle import decode_handle
from motelog.core.remoting.tls import Tls
from motelog.core.topic_names import DEFAULT_TOPIC, RETRY_PREFIX, topic_name_fault
from motelog.core.unique_id import UniqueIds

SEND_TIMEOUT_S: Final = 3.0
REPLY_TIMEOUT_S: Final = 3.0
RETRIES: Final = 2
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
COMPRESS_ABOVE_BYTES: Final = 4096
# Pause before asking the same broker again; other brokers are asked at once.
RETRY_PAUSE_S: Final = 0.1
RETRY_PAUSE_S_MAX: Final = 0.8
# Compressing less than this takes a few milliseconds, which a thread would not make shorter.
_COMPRESS_IN_THREAD_BYTES: Final = 262_144
_ZLIB_LEVEL: Final = 5  # what Java clients use


# The broker is overloaded. Sending again would add to the load.
_BUSY_CODES: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
# Refusals that may be over when the same broker is asked a little later.
_PASSING_CODES: Final = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE})
# Refusals that another broker may not make.
_LOCAL_CODES: Final = frozenset(
    {ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST}
)

_recorders = itertools.count(1)

# Each of these properties delays a message.
_DELAYING: Final = frozenset({DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS})

_NONE: Final[Mapping[str, str]] = {}

compress_limiter = trio.CapacityLimiter(2)


class SendStatus(IntEnum):
    """How safely a message is stored; all except OK are warnings (RocketMQ SendStatus)."""

    OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message was stored.

    ``message_id`` is the unique id that the producer gave it, ``offset_id`` the broker's id; for a
    batch both are the messages' ids joined by commas, and ``queue_offset`` is the first message's.
    ``recall_handle`` is for ``recall``; brokers return it for delayed messages.
    """

    status: SendStatus
    message_id: str
    offset_id: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None


#: One of ``queues(topic)``, or a function that chooses one, like Java's MessageQueueSelector.
QueueChoice: TypeAlias = MessageQueue | Callable[[Sequence[MessageQueue]], MessageQueue] | None


class ProducerOptions(TypedDict, total=False):
    """The options of all kinds of producers; ``Producer`` explains them."""

    namesrv: NameServers
    credentials: Credentials | None
    tls: Tls | None
    group: str
    timeout_s: float
    retries: int
    retry_when_busy: bool
    retry_when_not_stored: bool
    avoid_slow_brokers: bool
    message_bytes_max: int
    compress_above_bytes: int
    trace: bool
    trace_topic: str


class Producer:
    """Sends messages to the brokers that are registered with the name servers.

    ``async with Producer(namesrv="127.0.0.1:9876", group="P") as producer:``; see ``NameServers``
    for the forms of ``namesrv``. One producer serves any number of topics and tasks. All requests
    are signed with ``credentials``; servers with access control refuse unsigned ones.

    A message that a broker refuses by flow control (SYSTEM_BUSY, FLOW_CONTROL) is sent again a
    little later, like any other failed message: ``retries`` times after the first attempt. Without
    ``retry_when_busy`` the first refusal raises BrokerError, so that the caller can slow down. If
    no broker accepts a connection, attempts continue until the timeout: nothing has been sent.
    With ``retry_when_not_stored``, after an answer other than OK (not on disk, or not at a slave in
    time) the message is also sent to another broker; it is then stored twice.
    With ``avoid_slow_brokers`` a broker that was slow or did not answer is avoided for a while: for
    3 s after an answer that took 0.55 s, a minute after one of 1 s or none, and so on.
    With ``trace``, a record of each message that a broker has answered is sent to ``trace_topic`` a
    little later, by a separate producer; ``Admin.trace`` and RocketMQ's tools read these records.
    """

    def __init__(
        self,
        *,
        namesrv: NameServers = "127.0.0.1:9876",
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        group: str = "motelog",
        timeout_s: float = SEND_TIMEOUT_S,
        retries: int = RETRIES,
        retry_when_busy: bool = True,
        retry_when_not_stored: bool = False,
        avoid_slow_brokers: bool = False,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        compress_above_bytes: int = COMPRESS_ABOVE_BYTES,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        self.group = check_group(group)
        self._timeout_s = timeout_s
        self._retries = retries
        self._passing_codes = _PASSING_CODES | (_BUSY_CODES if retry_when_busy else frozenset())
        self._retries_when_not_stored = retry_when_not_stored
        self._slow = SlowBrokers() if avoid_slow_brokers else None
        self._message_bytes_max = message_bytes_max
        self._compress_above_bytes = compress_above_bytes
        self._turns: dict[str, int] = {}
        self._ids: UniqueIds | None = None
        self._client = Client(
            namesrv=namesrv,
            groups=lambda: {"consumerDataSet": [], "producerDataSet": [{"groupName": group}]},
            unregister={"producerGroup": group},
            on_request=self._answer,
            credentials=credentials,
            tls=tls,
        )
        self._requests = Requests()
        traces_to = trace_topic if trace else None
        self._recorder = trace_recorder(self._client, group, "PRODUCE", traces_to)

    async def __aenter__(self) -> Self:
        await enter_traced(self._client, self._recorder)
        address = ipaddress.ip_address(self._client.address.partition("%")[0]).packed
        self._ids = UniqueIds(address=address, process_id=os.getpid())
        return self

    async def __aexit__(self, *_error: object) -> None:
        await leave_traced(self._client, self._recorder)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues; for a topic that does not exist yet, those it will have."""
        return (await self._route(topic)).write_queues

    async def send(
        self,
        message: Message,
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
        delay: float | timedelta = 0,
    ) -> SendResult:
        """Return once a broker has stored ``message``.

        Without ``queue`` or ``hash_key`` queues take turns, and a retry goes to another broker.
        With ``hash_key`` equal keys go to the same queue, as long as the number of queues does not
        change.
        ``queue`` is one of ``queues(topic)``, or a function that chooses one of them.
        Consumers and subscribers receive the message after ``delay`` (seconds or a timedelta) from
        our brokers and RocketMQ's since 5.0; older ones deliver it at once. Raises
        MessageRefusedError before anything is sent, BrokerError if the broker refuses the message,
        SendFailedError if no attempt was acknowledged within ``timeout_s``. After a SendFailedError
        the message may nevertheless be stored, under the same unique id.
        """
        check_arguments((message,), queue, hash_key)
        message_id, command = await self._command(message, delay)
        return await self._send((message,), message_id, command, queue, hash_key, timeout_s)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        delay: float | timedelta = 0,
    ) -> None:
        """Write ``message`` to the connection and return, without an acknowledgement.

        For data that may be lost: a broker that refuses the message or ends does not answer. Errors
        are those of ``send`` before anything is sent, and RemotingError.
        """
        check_arguments((message,), queue, hash_key)
        _, command = await self._command(message, delay)
        route = await self._route_by(trio.current_time() + self._timeout_s, message.topic)
        target = self._choose(route, queue, hash_key, self._to_avoid(route))
        command.ext |= {"e": str(target.queue_id), "n": target.broker_name}
        address = _address(route, target)
        await self._client.send_oneway(address, command, timeout_s=self._timeout_s)

    async def send_batches(
        self,
        messages: Iterable[Message],
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Send any number of messages in batches of allowed size; return the batches' results.

        Messages of one topic keep their order, also in the log if ``queue`` or ``hash_key``
        chooses the queue. Errors are those of ``send_batch``; batches before the one that failed
        are stored.
        """
        return [
            await self.send_batch(batch, queue=queue, hash_key=hash_key, timeout_s=timeout_s)
            for batch in split_batches(messages, bytes_max=self._message_bytes_max)
        ]

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Return once a broker has stored all of ``messages`` in one queue, in order.

        They must have the same topic and at most 4 MiB together. None may be delayed or go to a
        retry topic. A batch is stored completely or not at all. Errors are those of ``send``.
        """
        check_arguments(messages, queue, hash_key)
        if not messages:
            raise MessageRefusedError("a batch needs at least one message")
        topic = messages[0].topic
        _check_topic(topic)
        if topic.startswith(RETRY_PREFIX):
            raise MessageRefusedError("a batch cannot go to a retry topic")
        items = []
        message_ids = []
        for message in messages:
            if message.topic != topic:
                raise MessageRefusedError(
                    f"a batch must have one topic, not {topic!r} and {message.topic!r}"
                )
            if not _DELAYING.isdisjoint(message.properties):
                raise MessageRefusedError("a batch cannot be delayed")
            message_id, properties = self._properties(message)
            message_ids.append(message_id)
            items.append((message.flag, message.body, properties))
        body = encode_batch_items(items)
        self._check_size(len(body))
        # Apache's brokers add these to every message of the batch, and would give all of them the
        # same unique id.
        batch_properties = encode_properties({WAIT: "true"})
        ext = self._ext(topic, batch_properties, sys_flag=0, flag=0) | {"m": "true"}
        command = RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, ext=ext, body=body)
        message_id = ",".join(message_ids)
        return await self._send(messages, message_id, command, queue, hash_key, timeout_s)

    async def recall(self, handle: str | None, *, timeout_s: float | None = None) -> str:
        """Recall a delayed message by its ``SendResult.recall_handle``; return its unique id.

        After this returns, the message will not be delivered. BrokerError if its time has come, or
        if the broker does not support recall (RocketMQ's do since 5.3.1, if configured).
        MessageRefusedError if the handle is malformed, RemotingError if no answer came: the message
        may nevertheless be recalled.
        """
        if handle is None:
            raise MessageRefusedError(
                "there is no recall handle: brokers return one only for a delayed message, "
                "as after send(delay=...)"
            )
        try:
            meant = decode_handle(handle)
        except ValueError as exc:
            raise MessageRefusedError(str(exc)) from exc
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = trio.current_time() + timeout_s
        route = await self._route_by(deadline, meant.topic)
        address = route.address(meant.broker_name)
        if address is None:
            raise _no_master(meant.broker_name)
        ext = {
            "producerGroup": self.group,
            "topic": meant.topic,
            "recallHandle": handle,
            "bname": meant.broker_name,
        }
        command = RemotingCommand(RequestCode.RECALL_MESSAGE, ext=ext)
        left_s = max(0.0, deadline - trio.current_time())
        answer = await self._client.request(address, command, timeout_s=left_s)
        if self._recorder is not None and is_traced(answer.ext):
            recalled = TraceRecord(
                kind=TraceKind.RECALL,
                time_ms=time.time_ns() // 1_000_000,
                region=region_of(answer.ext),
                group=self.group,
                topic=meant.topic,
                message_id=meant.unique_key,
                is_ok=answer.code == ResponseCode.SUCCESS,
            )
            self._recorder.note((recalled,))
        return check(answer).ext.get("msgId", meant.unique_key)

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        hash_key: str | None = None,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> Message:
        """Send ``message`` and return the reply of a consumer that received it (``reply_to``).

        ReplyTimeoutError if no reply comes within ``timeout_s``: a consumer may nevertheless have
        handled the request. Other errors are those of ``send``, and RemotingError.
        """
        check_arguments((message,), queue, hash_key)
        deadline = trio.current_time() + timeout_s
        await self._route_by(deadline, message.topic)
        # A broker pushes the reply to a client that it knows from a heartbeat.
        with trio.move_on_at(deadline):
            await self._client.introduce()
        waiting = self._requests.begin(message, self._client.client_id, timeout_s=timeout_s)
        try:
            left_s = max(0.0, deadline - trio.current_time())
            await self.send(waiting.message, queue=queue, hash_key=hash_key, timeout_s=left_s)
            return await self._requests.wait(waiting, deadline=deadline, timeout_s=timeout_s)
        finally:
            self._requests.end(waiting)

    async def reply_to(
        self, request: StoredMessage, body: bytes, *, timeout_s: float | None = None
    ) -> None:
        """Reply to a consumed message whose sender waits in ``request``; return once delivered.

        BrokerError or SendFailedError if the sender is not (or no longer) connected,
        MessageRefusedError if it does not wait for a reply.
        """
        message = reply_message(request, body)
        message_id, properties = self._properties(message)
        self._check_size(len(body))
        packed, sys_flag = await self._compress(message.body)
        ext = self._ext(message.topic, properties, sys_flag=sys_flag, flag=0)
        command = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, ext=ext, body=packed)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = trio.current_time() + timeout_s
        route = await self._route_by(deadline, message.topic)
        # The broker that stored the request knows its sender; others may not.
        store = format_address(*request.store_host)
        same = [queue for queue in route.write_queues if route.address(queue.broker_name) == store]
        queue = same[0] if same else None
        left_s = max(0.0, deadline - trio.current_time())
        await self._send((message,), message_id, command, queue, None, left_s)

    def _answer(self, command: RemotingCommand) -> RemotingCommand | None:
        if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return self._requests.take(command)
        return None

    async def _send(
        self,
        messages: Sequence[Message],
        message_id: str,
        command: RemotingCommand,
        queue: QueueChoice,
        hash_key: str | None,
        timeout_s: float | None,
    ) -> SendResult:
        topic = messages[0].topic
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = trio.current_time() + timeout_s
        past = _Attempts()
        for attempt in itertools.count():
            if trio.current_time() >= deadline or past.failures > self._retries:
                break
            target: MessageQueue | None = None
            others: set[str] = set()
            is_away = False
            try:
                route = await self._route_to_try(topic, past.asked_at, deadline)
                target = self._choose(route, queue, hash_key, past.brokers | self._to_avoid(route))
                past.brokers.add(target.broker_name)
                if queue is None and hash_key is None:
                    others = {other.broker_name for other in route.write_queues} - past.brokers
                left = self._retries - past.failures
                result = await self._timed_attempt(
                    route, target, messages, message_id, command, deadline, left
                )
                if result.status is SendStatus.OK or not (self._retries_when_not_stored and others):
                    return result
                past.texts.append(f"broker {target.broker_name!r} said {result.status.name}")
                past.stored = result
            except trio.TooSlowError:
                past.texts.append(f"{self._name_servers()} did not return a route in time")
                break
            except BrokerError as exc:
                may_pass = exc.code in self._passing_codes
                if not may_pass and not (exc.code in _LOCAL_CODES and others):
                    if past.stored is not None:
                        break
                    raise
                past.note(target, exc)
            except RouteError as exc:
                # While a broker restarts, its topics are missing for a moment.
                if attempt == 0:
                    raise
                past.note(target, exc)
                is_away = True
            except (RemotingError, NoNameServerError) as exc:
                past.note(target, exc)
                is_away = isinstance(exc, RemotingConnectError) and not others
            # Nothing was sent to an unreachable broker: it may restart before the deadline.
            past.failures += not (is_away and self._retries)
            past.asked_at = trio.current_time()  # ask again: the route may be out of date
            if not others:
                pause_s = min(RETRY_PAUSE_S * 2**attempt, RETRY_PAUSE_S_MAX)
                await trio.sleep(min(pause_s, max(0.0, deadline - past.asked_at)))
        return past.outcome(messages, message_id, timeout_s)

    async def _route_to_try(
        self, topic: str, asked_at: float | None, deadline: float
    ) -> TopicRoute:
        """Return a route that is newer than ``asked_at``; trio.TooSlowError at ``deadline``."""
        # The route is nearly always cached, and looking is cheaper than a deadline.
        route = self._client.known_route(topic, for_sending=True, newer_than=asked_at)
        if route is None or not route.write_queues:
            with trio.fail_at(deadline):
                route = await self._route(topic, asked_at)
        return route

    async def _timed_attempt(
        self,
        route: TopicRoute,
        target: MessageQueue,
        messages: Sequence[Message],
        message_id: str,
        command: RemotingCommand,
        deadline: float,
        attempts_left: int,
    ) -> SendResult:
        """Do as ``_attempt``, and record how fast the broker answered."""
        began = trio.current_time()
        try:
            result = await self._attempt(
                route, target, messages, message_id, command, deadline, attempts_left
            )
        except RemotingError:
            if self._slow is not None:
                self._slow.note_failed(target.broker_name, trio.current_time())
            raise
        if self._slow is not None:
            now = trio.current_time()
            self._slow.note(target.broker_name, now - began, now)
        return result

    async def _attempt(
        self,
        route: TopicRoute,
        target: MessageQueue,
        messages: Sequence[Message],
        message_id: str,
        command: RemotingCommand,
        deadline: float,
        attempts_left: int,
    ) -> SendResult:
        address = _address(route, target)
        timeout_s = deadline - trio.current_time()
        if attempts_left and len(route.addresses) > 1:
            # One stuck broker must not use up the time in which another could answer.
            timeout_s /= attempts_left + 1
        command.ext |= {"e": str(target.queue_id), "n": target.broker_name}
        began_ms = time.time_ns() // 1_000_000
        answer = await self._client.request(address, command, timeout_s=timeout_s)
        try:
            status = SendStatus(answer.code)
        except ValueError:
            raise refusal(answer, target.topic) from None
        if self._recorder is not None:
            self._trace_sent(messages, message_id, command, address, answer, began_ms)
        return SendResult(
            status=status,
            message_id=message_id,
            offset_id=answer.ext.get("msgId", ""),
            queue=MessageQueue(target.topic, target.broker_name, int_field(answer, "queueId")),
            queue_offset=int_field(answer, "queueOffset"),
            recall_handle=answer.ext.get("recallHandle"),
        )

    def _trace_sent(
        self,
        messages: Sequence[Message],
        message_id: str,
        command: RemotingCommand,
        address: str,
        answer: RemotingCommand,
        began_ms: int,
    ) -> None:
        """Record a broker's answer for each message, so that each is found by its id."""
        recorder = self._recorder
        topic = messages[0].topic
        if recorder is None or topic.startswith(recorder.topic) or not is_traced(answer.ext):
            return
        kind = MessageType.NORMAL
        if TRAN_MSG in (properties := decode_properties(command.ext["i"].encode())):
            kind = MessageType.HALF
        elif not _DELAYING.isdisjoint(properties):
            kind = MessageType.DELAYED
        offset_ids = answer.ext.get("msgId", "").split(",")
        ended_ms = time.time_ns() // 1_000_000
        recorder.note(
            TraceRecord(
                kind=TraceKind.PUB,
                time_ms=began_ms,
                region=region_of(answer.ext),
                group=self.group,
                topic=topic,
                message_id=one_id,
                tags=message.tags,
                keys=tuple(message.keys),
                store_host=address,
                body_bytes=len(message.body),
                cost_ms=ended_ms - began_ms,
                message_type=kind,
                offset_id=offset_id,
                is_ok=answer.code == SendStatus.OK,
            )
            for message, one_id, offset_id in zip(
                messages, message_id.split(","), offset_ids, strict=False
            )
        )

    async def _route(self, topic: str, newer_than: float | None = None) -> TopicRoute:
        _check_topic(topic)
        route = await self._client.route(topic, for_sending=True, newer_than=newer_than)
        if not route.write_queues and newer_than is None:
            # The cached route may be from a time when writes were stopped.
            now = trio.current_time()
            route = await self._client.route(topic, for_sending=True, newer_than=now)
        if not route.write_queues:
            raise RouteError(
                f"topic {topic!r} has no writable queue: check its permission and that of its"
                " brokers, and that a broker is running",
                topic=topic,
            )
        return route

    async def _route_by(self, deadline: float, topic: str) -> TopicRoute:
        """Do as ``_route``; RemotingTimeoutError if there is no answer by ``deadline``."""
        try:
            with trio.fail_at(deadline):
                return await self._route(topic)
        except trio.TooSlowError as exc:
            text = f"{self._name_servers()} did not return a route of topic {topic!r} in time"
            raise RemotingTimeoutError(text) from exc

    def _name_servers(self) -> str:
        return f"the name servers ({', '.join(self._client.namesrv_addresses)})"

    def _choose(
        self,
        route: TopicRoute,
        queue: QueueChoice,
        hash_key: str | None,
        avoided: set[str],
    ) -> MessageQueue:
        """Return the queue of the next attempt: the caller's choice, or the next one in turn."""
        if callable(queue):
            queue = queue(route.write_queues)
            if not isinstance(queue, MessageQueue):
                raise TypeError(
                    f"the function returned {type(queue).__name__}, not one of the queues it was "
                    "given"
                )
        if queue is not None:
            if queue.topic != route.topic:
                raise MessageRefusedError(f"queue {queue} does not belong to topic {route.topic!r}")
            return queue
        queues = route.write_queues
        if hash_key is not None:
            return queues[abs(string_hash(hash_key)) % len(queues)]
        turn = self._turns.get(route.topic, -1)
        for _ in queues:
            turn = (turn + 1) % len(queues)
            if queues[turn].broker_name not in avoided:
                break
        else:
            turn = (turn + 1) % len(queues)  # every broker has failed once; take turns again
        self._turns[route.topic] = turn
        return queues[turn]

    def _to_avoid(self, route: TopicRoute) -> set[str]:
        """Return the brokers to avoid because they were slow."""
        if self._slow is None:
            return set()
        names = {queue.broker_name for queue in route.write_queues}
        return self._slow.to_avoid(names, trio.current_time())

    async def _command(
        self,
        message: Message,
        delay: float | timedelta,
        *,
        named: Mapping[str, str] = _NONE,
        flags: int = 0,
    ) -> tuple[str, RemotingCommand]:
        """Return the message's unique id and the request that sends it.

        ``named`` are additional properties, ``flags`` bits of its sysFlag.
        """
        _check_topic(message.topic)
        message_id, properties = self._properties(message, _delay_ms(delay), named)
        self._check_size(len(message.body))
        body, sys_flag = await self._compress(message.body)
        flags |= sys_flag
        ext = self._ext(message.topic, properties, sys_flag=flags, flag=message.flag)
        return message_id, RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext=ext, body=body)

    def _properties(
        self, message: Message, delay_ms: int = 0, named: Mapping[str, str] = _NONE
    ) -> tuple[str, bytes]:
        """Return the message's unique id and its property text, including ``named``."""
        if self._ids is None:
            raise ClientClosedError("not open: use the producer inside `async with`")
        properties = dict(message.properties)
        message_id = properties.get(UNIQ_KEY)
        if message_id is None:
            message_id = properties[UNIQ_KEY] = self._ids.next(time.time_ns() // 1_000_000)
        properties.setdefault(WAIT, "true")
        if message.tags is not None:
            properties[TAGS] = message.tags
        if delay_ms:
            if not _DELAYING.isdisjoint(properties):
                raise MessageRefusedError("the message already has a delay: give only one")
            properties[TIMER_DELAY_MS] = str(delay_ms)
        if TRAN_MSG in named and not _DELAYING.isdisjoint(properties):
            raise MessageRefusedError("a transactional message cannot be delayed")
        properties |= named
        if message.keys:
            if any(not key or " " in key for key in message.keys):
                raise MessageRefusedError("a key must not be empty or contain spaces")
            properties[KEYS] = " ".join(message.keys)
        try:
            return message_id, encode_properties(properties)
        except ValueError as exc:
            raise MessageRefusedError(str(exc)) from exc

    def _check_size(self, body_bytes: int) -> None:
        if body_bytes > self._message_bytes_max:
            raise MessageRefusedError(
                f"the body has {body_bytes} bytes; the limit is {self._message_bytes_max}"
            )

    async def _compress(self, body: bytes) -> tuple[bytes, int]:
        """Return the body as sent and its flag bit; consumers inflate it."""
        if len(body) <= self._compress_above_bytes:
            return body, 0
        if len(body) < _COMPRESS_IN_THREAD_BYTES:
            packed = zlib.compress(body, _ZLIB_LEVEL)
        else:
            packed = await trio.to_thread.run_sync(
                zlib.compress, body, _ZLIB_LEVEL, limiter=compress_limiter
            )
        return (packed, SYS_FLAG_COMPRESSED) if len(packed) < len(body) else (body, 0)

    def _ext(self, topic: str, properties: bytes, *, sys_flag: int, flag: int) -> dict[str, str]:
        """Return the header of SEND_MESSAGE_V2, whose fields are letters to save bytes."""
        ext = {
            "a": self.group,
            "b": topic,
            "c": DEFAULT_TOPIC,
            "d": str(DEFAULT_TOPIC_QUEUE_COUNT),
            "e": "0",  # queue id; set per attempt
            "f": str(sys_flag),
            "g": str(time.time_ns() // 1_000_000),
            "h": str(flag),
            "i": properties.decode(),
            "j": "0",  # reconsume times
            "k": "false",  # unit mode
            "m": "false",  # batch
        }
        if topic.startswith(RETRY_PREFIX):
            # For a message that a consumer sends back, the header has its number of refusals.
            pairs = decode_properties(properties)
            ext["j"] = pairs.pop(RECONSUME_TIME, "0")
            if MAX_RECONSUME_TIMES in pairs:
                ext["l"] = pairs.pop(MAX_RECONSUME_TIMES)
            ext["i"] = encode_properties(pairs).decode()
        return ext


@dataclass(slots=True)
class _Attempts:
    """The attempts of one send so far."""

    texts: list[str] = field(default_factory=list)
    brokers: set[str] = field(default_factory=set)
    #: The answer of a broker that has stored the message, but not as safely as wanted.
    stored: SendResult | None = None
    last: Exception | None = None
    #: Those that ``retries`` limits: an attempt that has sent nothing may not count.
    failures: int = 0
    asked_at: float | None = None

    def note(self, target: MessageQueue | None, exc: Exception) -> None:
        """Note that an attempt has failed."""
        self.texts.append(_describe(target, exc))
        self.last = exc

    def outcome(self, messages: Sequence[Message], message_id: str, timeout_s: float) -> SendResult:
        """Return where the message is stored; SendFailedError if no attempt was acknowledged."""
        if self.stored is not None:
            return self.stored
        first_id, count = message_id.partition(",")[0], len(messages)
        what = f"message {first_id}"
        if count > 1:
            what = f"a batch of {count} messages (the first is {first_id})"
        raise SendFailedError(
            f"{what} for topic {messages[0].topic!r} was not acknowledged within "
            f"{timeout_s:.3g} s and {len(self.texts)} attempts",
            attempts=tuple(self.texts) or ("there was no time for an attempt",),
        ) from self.last


def trace_recorder(
    client: Client, group: str, kind: str, topic: str | None
) -> TraceRecorder | None:
    """Return what a client of ``group`` traces with; None without a topic for traces.

    ``kind`` is PRODUCE or CONSUME, as in Java.
    """
    if topic is None:
        return None
    _check_topic(topic)
    sender = Producer(
        namesrv=client.namesrv_addresses,
        group=f"_INNER_TRACE_PRODUCER-{group}-{kind}-{next(_recorders)}",
        credentials=client.credentials,
        tls=client.tls,
    )
    return TraceRecorder(sender, topic=topic)


async def enter_traced(client: Client, recorder: TraceRecorder | None) -> None:
    """Enter a client and its recorder, which sends the remaining records after the client's end."""
    if recorder is None:
        await client.enter()
        return
    await recorder.__aenter__()
    try:
        await client.enter()
        client.start_soon(recorder.run)
    except BaseException:
        await recorder.__aexit__(None, None, None)
        raise


async def leave_traced(client: Client, recorder: TraceRecorder | None) -> None:
    """Leave what ``enter_traced`` entered."""
    try:
        await client.leave()
    finally:
        if recorder is not None:
            await recorder.__aexit__(None, None, None)


def check_arguments(messages: object, queue: QueueChoice, hash_key: str | None) -> None:
    """TypeError for an argument of a type that would be sent as something else, or fail later."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise TypeError("a batch must be a list of Message; send() takes one message")
    for message in messages:
        if not isinstance(message, Message):
            raise TypeError(f"send takes Message(topic, body), not {type(message).__name__}")
    if not (queue is None or isinstance(queue, MessageQueue) or callable(queue)):
        raise TypeError(
            f"queue must be one of queues(topic) or a function, not {type(queue).__name__}"
        )
    if hash_key is not None and not isinstance(hash_key, str):
        raise TypeError(f"hash_key must be a str, not {type(hash_key).__name__}")


def split_batches(messages: Iterable[Message], *, bytes_max: int) -> Iterator[list[Message]]:
    """Yield batches of one topic each and of allowed size; the order within a topic is kept.

    A message that is too large becomes a batch of its own, which the producer then refuses.
    """
    batches: dict[str, tuple[list[Message], int]] = {}
    for message in messages:
        batch, size = batches.get(message.topic, ([], 0))
        more = _batch_bytes(message)
        if batch and size + more > bytes_max:
            yield batch
            batch, size = [], 0
        batch.append(message)
        batches[message.topic] = batch, size + more
    yield from (batch for batch, _ in batches.values())


def _batch_bytes(message: Message) -> int:
    """Return an upper bound of a message's bytes in the body of a batch."""
    texts = (message.tags or "", *message.keys, *message.properties, *message.properties.values())
    # UTF-8 has at most 4 bytes per character; the rest are lengths, the unique key and separators.
    return len(message.body) + sum(4 * len(text) + 2 for text in texts) + 128


def _address(route: TopicRoute, target: MessageQueue) -> str:
    address = route.address(target.broker_name)
    if address is None:
        raise _no_master(target.broker_name)
    return address


def _no_master(broker_name: str) -> RemotingConnectionError:
    return RemotingConnectionError(
        f"no master of broker {broker_name!r} is registered: is it running?"
    )


def _delay_ms(delay: float | timedelta) -> int:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ValueError(f"delay must be seconds or a timedelta of 0 or more, not {delay!r}")
    return math.ceil(seconds * 1000)


def _check_topic(topic: str) -> None:
    fault = _topic_fault(topic)
    if fault is not None:
        raise MessageRefusedError(fault)


# Cached: a producer has few topics, and names one with each message.
_topic_fault: Final = lru_cache(maxsize=256)(topic_name_fault)


def _describe(target: MessageQueue | None, exc: Exception) -> str:
    place = f"broker {target.broker_name!r}" if target is not None else "name servers"
    kind = "timed out" if isinstance(exc, RemotingTimeoutError) else "failed"
    return f"{place} {kind}: {exc}"
