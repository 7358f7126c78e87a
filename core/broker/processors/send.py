"""Sends: the messages of a turn become one append, then one batch of answers.

Owns: request codes 10, 310 and 320, the checks of a message, what the broker adds to it, answers
that wait for the disk. Must not touch: how records are written (the store), how topics are created.
Spec: RocketMQ SendMessageProcessor.

    request -> checks, staged ... end_turn: append all -> answers | wait for the disk -> answers

Delayed and transactional messages are refused: to store them as ordinary ones would deliver them at
once. Under sync flush, answers leave in the order of the log, except those of messages that say
WAIT=false, which do not wait for the disk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import trio

from core.broker.api import AppendMessage, BrokerApi
from core.broker.topics import TopicTable
from core.clock import Clock
from core.errors import (
    BrokerError,
    RecordTooLargeError,
    StoreError,
    StoreFencedError,
    StoreFullError,
)
from core.message import (
    DELAY,
    NAME_END,
    PROPERTIES_BYTES_MAX,
    TAGS,
    UNIQ_KEY,
    VALUE_END,
    WAIT,
    encode_offset_id,
    tags_code,
)
from core.remoting import RemotingCommand, RequestCode, ResponseCode, decode_batch_items
from core.remoting_server import (
    Connection,
    Processor,
    RemotingServer,
    bool_field,
    int32_field,
    int_field,
    text_field,
)
from core.topic_config import (
    TOPICS_CLOSED_TO_SENDERS,
    TopicConfig,
    is_group_topic,
)

# What a client may set of sysFlag: compressed, multi-tags, compression type. The host bits are the
# record's own, the transaction bits would make the record invisible.
_SYS_FLAG_CLIENT: Final = 0x1 | 0x2 | 0x700
_SYS_FLAG_TRANSACTION: Final = 0xC
_MSG_REGION: Final = "MSG_REGION"
_TRACE_ON: Final = "TRACE_ON"
_CLUSTER: Final = "CLUSTER"
_TRAN_MSG: Final = "TRAN_MSG"


@dataclass(frozen=True, slots=True)
class _Names:
    """What the header fields are called: in full (10) or as letters (310, 320)."""

    group: str = "producerGroup"
    topic: str = "topic"
    default_topic: str = "defaultTopic"
    default_queue_count: str = "defaultTopicQueueNums"
    queue_id: str = "queueId"
    sys_flag: str = "sysFlag"
    born_timestamp: str = "bornTimestamp"
    flag: str = "flag"
    properties: str = "properties"
    reconsume_times: str = "reconsumeTimes"
    batch: str = "batch"


_FULL: Final = _Names()
_LETTERS: Final = _Names("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "m")


@dataclass(slots=True)
class _Staged:
    """One request whose messages wait for the append at the end of the turn."""

    request: RemotingCommand
    connection: Connection
    queue_id: int
    count: int
    unique_key: str | None
    waits_for_disk: bool


@dataclass(slots=True)
class _Answers:
    """The answers of one append, to be sent once ``end_offset`` is on disk."""

    end_offset: int
    items: list[tuple[Connection, RemotingCommand]]


class SendProcessor:
    """Takes sends; state changes only within a turn and in ``run``, between two awaits."""

    def __init__(
        self,
        api: BrokerApi,
        topics: TopicTable,
        *,
        clock: Clock,
        cluster: str,
        region: str,
        body_bytes_max: int,
        waiting_answers_max: int,
    ) -> None:
        self._api = api
        self._topics = topics
        self._clock = clock
        self._body_bytes_max = body_bytes_max
        self._waiting_answers_max = waiting_answers_max
        self._added = {_MSG_REGION: region, _TRACE_ON: "true", _CLUSTER: cluster}
        self._added_text = _join_properties(self._added)
        self._answer_ext = {_MSG_REGION: region, _TRACE_ON: "true"}
        self._next_queue = 0
        self._messages: list[AppendMessage] = []
        self._staged: list[_Staged] = []
        self._waiting: deque[_Answers] = deque()
        self._waiting_count = 0
        self._wanted = trio.Event()
        self.messages_count = 0

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.SEND_MESSAGE: self._send,
            RequestCode.SEND_MESSAGE_V2: self._send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self._send_batch,
        }

    async def run(
        self,
        server: RemotingServer,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send the answers that wait for the disk; started only under sync flush."""
        task_status.started()
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._waiting:
                try:
                    await self._api.wait_durable(self._waiting[0].end_offset)
                except StoreError as exc:
                    self._refuse_waiting(exc)
                else:
                    self._release_durable()
                server.flush()

    def end_turn(self) -> None:
        """Append everything the turn staged and answer it, or let the answers wait for the disk."""
        if not self._staged:
            return
        staged, self._staged = self._staged, []
        messages, self._messages = self._messages, []
        placed: list[tuple[int, int]] = []
        try:
            end_offset = self._api.append(messages, placed)
        except StoreError as exc:
            for item in staged:
                _reply(item, item.request.answer(_store_error_code(exc), str(exc)))
            return
        self.messages_count += len(messages)
        self._answer(staged, placed, end_offset)

    def _answer(
        self, staged: list[_Staged], placed: list[tuple[int, int]], end_offset: int
    ) -> None:
        waiting: list[tuple[Connection, RemotingCommand]] = []
        begin = 0
        for item in staged:
            end = begin + item.count
            if not item.request.is_oneway:
                answer = self._success(item, placed[begin:end])
                if item.waits_for_disk and self._api.flush_is_sync:
                    waiting.append((item.connection, answer))
                else:
                    item.connection.reply(answer)
            begin = end
        if waiting:
            self._waiting.append(_Answers(end_offset, waiting))
            self._waiting_count += len(waiting)
            self._wanted.set()

    def _success(self, item: _Staged, placed: list[tuple[int, int]]) -> RemotingCommand:
        host = self._api.store_host
        ext = {
            "msgId": ",".join([encode_offset_id(host, physical) for physical, _ in placed]),
            "queueId": str(item.queue_id),
            "queueOffset": str(placed[0][1]),
            **self._answer_ext,
        }
        if item.unique_key is not None:
            ext["transactionId"] = item.unique_key
        return item.request.answer(ext=ext)

    def _release_durable(self) -> None:
        durable_offset = self._api.durable_offset
        while self._waiting and self._waiting[0].end_offset <= durable_offset:
            answers = self._waiting.popleft()
            self._waiting_count -= len(answers.items)
            for connection, answer in answers.items:
                connection.reply(answer)

    def _refuse_waiting(self, exc: StoreError) -> None:
        # The records may or may not be on disk: the producer must not take them for stored.
        code = _store_error_code(exc)
        for answers in self._waiting:
            for connection, answer in answers.items:
                connection.reply(
                    RemotingCommand(
                        code,
                        answer.opaque,
                        answer.flag,
                        remark=str(exc),
                        serialize=answer.serialize,
                    )
                )
        self._waiting.clear()
        self._waiting_count = 0

    def _send(self, request: RemotingCommand, connection: Connection) -> None:
        # C++ clients mark a batch by "1", Java by "true".
        if bool_field(request.ext, _FULL.batch):
            self._stage_batch(request, connection, _FULL)
        else:
            self._stage(request, connection, _FULL)

    def _send_v2(self, request: RemotingCommand, connection: Connection) -> None:
        if bool_field(request.ext, _LETTERS.batch):
            self._stage_batch(request, connection, _LETTERS)
        else:
            self._stage(request, connection, _LETTERS)

    def _send_batch(self, request: RemotingCommand, connection: Connection) -> None:
        self._stage_batch(request, connection, _LETTERS)

    def _stage(self, request: RemotingCommand, connection: Connection, names: _Names) -> None:
        ext = request.ext
        config, queue_id = self._target(ext, names)
        if len(request.body) > self._body_bytes_max:
            text = f"the body has {len(request.body)} bytes, the limit is {self._body_bytes_max}"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
        properties, pairs = self._properties(ext.get(names.properties, ""))
        sys_flag = int32_field(ext, names.sys_flag)
        _refuse_unsupported(sys_flag, pairs)
        message = (
            self._api.queue_tail(config.topic_name, queue_id),
            request.body,
            properties,
            tags_code(pairs.get(TAGS)),
            int_field(ext, names.born_timestamp),
            connection.host,
            sys_flag & _SYS_FLAG_CLIENT,
            int32_field(ext, names.flag),
            int32_field(ext, names.reconsume_times, 0),
            0,
        )
        self._messages.append(message)
        self._staged.append(
            _Staged(
                request,
                connection,
                queue_id,
                1,
                pairs.get(UNIQ_KEY),
                pairs.get(WAIT) != "false",
            )
        )

    def _stage_batch(self, request: RemotingCommand, connection: Connection, names: _Names) -> None:
        ext = request.ext
        config, queue_id = self._target(ext, names)
        if is_group_topic(config.topic_name):
            text = "a batch cannot be sent to a retry or dead-letter topic"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
        if len(request.body) > self._body_bytes_max:
            text = f"the batch has {len(request.body)} bytes, the limit is {self._body_bytes_max}"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
        items = decode_batch_items(request.body)
        if not items:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, "the batch has no message")
        _, batch_pairs = self._properties(ext.get(names.properties, ""))
        sys_flag = int32_field(ext, names.sys_flag)
        _refuse_unsupported(sys_flag, batch_pairs)
        born_ms = int_field(ext, names.born_timestamp)
        tail = self._api.queue_tail(config.topic_name, queue_id)
        messages = []
        for flag, body, item_text in items:
            properties, pairs = self._properties(item_text.decode(errors="replace"))
            _refuse_unsupported(0, pairs)
            code = tags_code(pairs.get(TAGS))
            messages.append((tail, body, properties, code, born_ms, connection.host, 0, flag, 0, 0))
        self._messages += messages
        self._staged.append(
            _Staged(
                request,
                connection,
                queue_id,
                len(messages),
                batch_pairs.get(UNIQ_KEY),
                batch_pairs.get(WAIT) != "false",
            )
        )

    def _target(self, ext: dict[str, str], names: _Names) -> tuple[TopicConfig, int]:
        """Return topic and queue of a send after the checks that concern them."""
        if self._waiting_count >= self._waiting_answers_max:
            text = f"{self._waiting_count} sends wait for the disk already"
            raise BrokerError(ResponseCode.SYSTEM_BUSY, text)
        topic = text_field(ext, names.topic)
        text_field(ext, names.group)
        default_topic = text_field(ext, names.default_topic)
        queue_count = int_field(ext, names.default_queue_count)
        queue_id = int_field(ext, names.queue_id)
        if topic in TOPICS_CLOSED_TO_SENDERS:
            text = f"messages cannot be sent to the system topic {topic}"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        config = self._topics.get(topic)
        if config is None:
            now_ms = self._clock.now_ms()
            config = self._topics.create_for_message(topic, default_topic, queue_count, now_ms)
        if not config.is_writable:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"topic {topic} is not writable")
        if queue_id < 0:
            self._next_queue += 1
            queue_id = self._next_queue % config.write_queue_nums
        elif queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            text = f"queue id {queue_id} of topic {topic} is illegal, {config}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        return config, queue_id

    def _properties(self, text: str) -> tuple[bytes, dict[str, str]]:
        """Return the text to store, with what the broker adds, and the client's pairs."""
        pairs = {}
        for item in text.split(VALUE_END):
            name, found, value = item.partition(NAME_END)
            if found and value:
                pairs[name] = value
        # A message that was consumed before and is sent again has the broker's properties already.
        if _MSG_REGION in pairs or _TRACE_ON in pairs or _CLUSTER in pairs:
            text = _join_properties(pairs | self._added)
        elif text and not text.endswith(VALUE_END):
            text = text + VALUE_END + self._added_text
        else:
            text += self._added_text
        stored = text.encode()
        if len(stored) > PROPERTIES_BYTES_MAX:
            fault = f"the properties have {len(stored)} bytes, the limit is {PROPERTIES_BYTES_MAX}"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, fault)
        return stored, pairs


def _refuse_unsupported(sys_flag: int, pairs: dict[str, str]) -> None:
    if sys_flag & _SYS_FLAG_TRANSACTION or pairs.get(_TRAN_MSG) == "true":
        text = "this broker does not take transactional messages"
        raise BrokerError(ResponseCode.NO_PERMISSION, text)
    if pairs.get(DELAY, "0") != "0":
        text = "this broker does not take delayed messages"
        raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)


def _join_properties(pairs: dict[str, str]) -> str:
    return "".join([f"{name}{NAME_END}{value}{VALUE_END}" for name, value in pairs.items()])


def _reply(item: _Staged, answer: RemotingCommand) -> None:
    if not item.request.is_oneway:
        item.connection.reply(answer)


def _store_error_code(exc: StoreError) -> ResponseCode:
    if isinstance(exc, RecordTooLargeError):
        return ResponseCode.MESSAGE_ILLEGAL
    if isinstance(exc, StoreFencedError | StoreFullError):
        # Producers then try another broker.
        return ResponseCode.SERVICE_NOT_AVAILABLE
    return ResponseCode.SYSTEM_ERROR
