"""Transactional messages: half messages that are committed with a local transaction.

Owns: TransactionProducer, the answers to brokers that check a transaction. Must not touch: how a
message is sent (bridge.producer), connections and routes (bridge.client).
Spec: RocketMQ TransactionMQProducer, DefaultMQProducerImpl.sendMessageInTransaction.

    send_half -> local transaction -> commit | rollback
                        '-> neither: a broker asks any producer of the group, which calls ``check``

An UNKNOWN result is not sent: the broker asks again by itself.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self, Unpack

import trio

from motelog.bridge.client import check
from motelog.bridge.errors import ClientError, MessageRefusedError, raised_at
from motelog.bridge.producer import (
    Producer,
    ProducerOptions,
    QueueChoice,
    SendResult,
    SendStatus,
    check_arguments,
)
from motelog.bridge.trace.records import (
    DEFAULT_REGION,
    MessageType,
    TraceKind,
    TraceRecord,
    region_of,
)
from motelog.core.addresses import format_address
from motelog.core.errors import (
    BrokerError,
    MotelogError,
    RecordError,
    RemotingConnectionError,
    RemotingError,
)
from motelog.core.limited_log import LimitedLog
from motelog.core.message import PGROUP, TRAN_MSG, Message, decode_offset_id
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.remoting.frames import RemotingCommand, RequestCode

logger = logging.getLogger(__name__)

# Questions that may wait for ``check``; a broker repeats those beyond.
QUESTIONS_MAX: Final = 2000
CHECK_TASKS: Final = 4
_FIND_AGAIN_S: Final = 5.0
_PREPARED: Final = 0x4


class TransactionState(IntEnum):
    """The outcome of a local transaction; UNKNOWN: not decided yet, or not known now."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


#: Their names in traces (RocketMQ LocalTransactionState).
_STATE_NAMES: Final = {
    TransactionState.UNKNOWN: "UNKNOW",
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
}


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A message that a broker has stored and does not deliver before its commit."""

    topic: str
    sent: SendResult
    physical_offset: int
    tags: str | None = None
    keys: tuple[str, ...] = ()

    @property
    def is_safe(self) -> bool:
        """Whether it is stored as safely as its broker guarantees."""
        return self.sent.status is SendStatus.OK


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """How a transaction ended; after UNKNOWN the broker will ask."""

    state: TransactionState
    sent: SendResult


#: Returns the state of the local transaction of a message.
Check = Callable[[StoredMessage], Awaitable[TransactionState]]
#: Carries out the local transaction of a message.
Execute = Callable[[Message], Awaitable[TransactionState]]


def as_state(result: object) -> TransactionState:
    """Return the state that the user's function returned; TypeError if it is not a state."""
    try:
        return TransactionState(result)  # type: ignore[arg-type]  # anything else is refused
    except ValueError:
        if inspect.iscoroutine(result):
            result.close()  # it is not awaited, and Python would warn of that
        kind = type(result).__name__
        raise TypeError(f"the function returned {kind}, not a TransactionState") from None


class TransactionProducer(Producer):
    """A producer whose messages may be bound to a local transaction.

    ``check`` is called for half messages that were not ended, including those of other producers of
    the group and of an earlier process: it looks the transaction up where that is stored. It may be
    called twice for one message. An exception counts as UNKNOWN. Brokers know this producer once it
    has sent to them; it registers at once with the brokers of ``topics``. Otherwise it is a
    Producer.
    """

    def __init__(
        self,
        check: Check,
        *,
        topics: Iterable[str] = (),
        check_tasks: int = CHECK_TASKS,
        **options: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(**options)
        self._check = check
        self._check_tasks = check_tasks
        self._topics = tuple(topics)
        self._ask, self._asked = trio.open_memory_channel[RemotingCommand](QUESTIONS_MAX)
        self._faults = LimitedLog(logger)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        for topic in self._topics:
            self._client.start_soon(self._find_brokers, topic)
        for _ in range(self._check_tasks):
            self._client.start_soon(self._answer_questions)
        return self

    async def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Store a half message, await ``execute(message)``, then commit or roll back.

        Exceptions of ``execute`` are raised to the caller, and the broker will ask, since it may
        not be known whether the transaction took place. If the broker has stored the half message
        less safely than it should, ``execute`` is not called and the message is rolled back. If the
        end does not reach the broker, this is logged and the broker will ask. Errors of the half
        message are those of ``send``; BrokerError if the end is refused.
        """
        half = await self.send_half(message, queue=queue, hash_key=hash_key, timeout_s=timeout_s)
        state = TransactionState.ROLLBACK
        if half.is_safe:
            state = as_state(await execute(message))
        return await self.finish(half, state)

    async def send_half(
        self,
        message: Message,
        *,
        queue: QueueChoice = None,
        hash_key: str | None = None,
        timeout_s: float | None = None,
    ) -> HalfMessage:
        """Return once a broker has stored ``message``, which is delivered after ``commit``.

        Arguments and errors are those of ``send``; a delay is not possible.
        """
        check_arguments((message,), queue, hash_key)
        named = {TRAN_MSG: "true", PGROUP: self.group}
        message_id, command = await self._command(message, 0, named=named, flags=_PREPARED)
        sent = await self._send((message,), message_id, command, queue, hash_key, timeout_s)
        try:
            _, physical_offset = decode_offset_id(sent.offset_id)
        except ValueError as exc:
            raise MessageRefusedError(f"the broker's answer has no offset: {exc}") from exc
        return HalfMessage(message.topic, sent, physical_offset, message.tags, tuple(message.keys))

    async def commit(self, half: HalfMessage) -> None:
        """Return once the broker has stored the message for its consumers.

        Raises BrokerError if it refuses, for example because the transaction has ended, and
        RemotingError if no answer came: the broker will ask. Our broker accepts a second commit
        like the first; RocketMQ's stores the message twice.
        """
        await self._end(half, TransactionState.COMMIT)

    async def rollback(self, half: HalfMessage) -> None:
        """Return once the broker has dropped the message; errors are those of ``commit``."""
        await self._end(half, TransactionState.ROLLBACK)

    async def finish(self, half: HalfMessage, state: TransactionState) -> TransactionResult:
        """End a half message like its local transaction, as ``send_in_transaction`` does.

        BrokerError if the broker refuses; if the end does not reach it, this is logged and the
        broker will ask.
        """
        try:
            await self._end(half, state)
        except RemotingError as exc:
            self._warn_open(half.sent.message_id, exc)
        return TransactionResult(state, half.sent)

    async def _end(self, half: HalfMessage, state: TransactionState) -> None:
        route = await self._route(half.topic)
        broker_name = half.sent.queue.broker_name
        address = route.address(broker_name)
        if address is None:
            raise RemotingConnectionError(f"broker {broker_name!r} has no master")
        ext = {
            "topic": half.topic,
            "tranStateTableOffset": str(half.sent.queue_offset),
            "commitLogOffset": str(half.physical_offset),
            "msgId": half.sent.message_id,
            "transactionId": half.sent.message_id,
            "bname": broker_name,
        }
        self._trace_end(half.tags, half.keys, address, ext, state, region=None)
        await self._send_end(address, ext, state, is_asked=False)

    def _trace_end(
        self,
        tags: str | None,
        keys: tuple[str, ...],
        address: str,
        ext: Mapping[str, str],
        state: TransactionState,
        *,
        region: str | None,
    ) -> None:
        """Trace an end that is about to be sent; ``region`` is known from a broker's question."""
        if self._recorder is None:
            return
        ended = TraceRecord(
            kind=TraceKind.END_TRANSACTION,
            time_ms=time.time_ns() // 1_000_000,
            region=region or DEFAULT_REGION,
            group=self.group,
            topic=ext["topic"],
            message_id=ext["msgId"],
            tags=tags,
            keys=keys,
            store_host=address,
            message_type=MessageType.COMMIT,
            transaction_id=ext["transactionId"],
            transaction_state=_STATE_NAMES[state],
            is_asked=region is not None,
        )
        self._recorder.note((ended,))

    async def _send_end(
        self, address: str, ext: dict[str, str], state: TransactionState, *, is_asked: bool
    ) -> None:
        if state is TransactionState.UNKNOWN:
            return
        ended = {
            "producerGroup": self.group,
            "commitOrRollback": str(int(state)),
            "fromTransactionCheck": str(is_asked).lower(),
        }
        command = RemotingCommand(RequestCode.END_TRANSACTION, ext=ext | ended)
        check(await self._client.request(address, command, timeout_s=self._timeout_s))

    # -- questions of brokers --------------------------------------------------------------

    def _answer(self, command: RemotingCommand) -> RemotingCommand | None:
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return super()._answer(command)
        try:
            self._ask.send_nowait(command)
        except trio.WouldBlock:
            self._faults.warning(
                "there are too many questions about transactions; the broker asks"
                " again group=%s waiting=%d", self.group, QUESTIONS_MAX,
            )  # fmt: skip
        return None

    async def _answer_questions(self) -> None:
        while True:
            question = await self._asked.receive()
            try:
                (message,) = decode_messages(question.body)
            except (RecordError, ValueError) as exc:
                self._faults.warning("a broker's question cannot be read error=%s", exc)
                continue
            await self._answer_one(question, message)

    async def _answer_one(self, question: RemotingCommand, message: StoredMessage) -> None:
        try:
            state = as_state(await self._check(message))
        except Exception as exc:  # anything that the user's function raises
            self._faults.warning(
                "the check of a transaction failed; the broker asks again group=%s message_id=%s "
                "error=%r at=%s",
                self.group,
                message.message_id,
                exc,
                raised_at(exc),
            )
            return
        ext = {
            "topic": message.topic,
            "tranStateTableOffset": question.ext.get("tranStateTableOffset", ""),
            "commitLogOffset": question.ext.get("commitLogOffset", ""),
            "msgId": message.message_id,
            "transactionId": message.message_id,
            "bname": question.ext.get("bname", ""),
        }
        try:
            address = await self._asker(message, ext["bname"])
            region = region_of(message.properties)
            self._trace_end(message.tags, message.keys, address, ext, state, region=region)
            await self._send_end(address, ext, state, is_asked=True)
        except (RemotingError, BrokerError, ClientError) as exc:
            self._warn_open(message.message_id, exc)

    async def _asker(self, message: StoredMessage, broker_name: str) -> str:
        """Return the address of the broker that asks; brokers before 5.0 do not send their name.

        Then it is the address at which the message says it was stored.
        """
        if broker_name:
            route = await self._client.route(message.topic, for_sending=True)
            address = route.address(broker_name)
            if address is not None:
                return address
        return format_address(*message.store_host)

    def _warn_open(self, message_id: str, exc: MotelogError) -> None:
        self._faults.warning(
            "the end of a transaction did not reach its broker, which will ask group=%s"
            " message_id=%s error=%s",
            self.group,
            message_id,
            exc,
        )

    async def _find_brokers(self, topic: str) -> None:
        """Send heartbeats to the brokers of ``topic``, so that they can ask."""
        while True:
            try:
                await self._client.route(topic, for_sending=True)
            except MotelogError as exc:
                self._faults.warning(
                    "the brokers of a topic are not known yet and cannot ask about transactions;"
                    " this is retried topic=%s error=%s", topic, exc,
                )  # fmt: skip
                await trio.sleep(_FIND_AGAIN_S)
            else:
                return
