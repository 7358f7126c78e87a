"""Sends: the messages of a turn become one append, then one batch of answers.

Owns: request codes 10, 310 and 320, where a message is stored. Must not touch: what a send may ask
for (send_request), how records are written (the store), the answers' bytes and their wait for the
disk (send_answers). Spec: RocketMQ SendMessageProcessor.

    plain sends of a turn -> take, staged ------------.
    any other request     -> decoded, checks, staged ---> end_turn: append all -> answers

A message with a delay is stored where it waits (delays), and a transactional one where it waits for
its end (transactions). A message that a consumer sends to its own retry topic once too often goes
to the group's dead letters. Messages with WAIT=false are answered without waiting for the disk.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final

from motelog.core.broker.api import is_state_of_session
from motelog.core.broker.delay.delays import DELAY_PROPERTIES, find_waiting_place
from motelog.core.broker.light_queues import LightQueues
from motelog.core.broker.processors.send_answers import (
    Recallable,
    SendAnswers,
    StagedSend,
    make_rules,
)
from motelog.core.broker.processors.send_request import (
    FULL,
    LETTERS,
    ODD_NAMES,
    Names,
    Numbers,
    SendRequests,
    encode_properties,
    join_properties,
    read_numbers,
    refuse_delayed,
    refuse_transactional,
)
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.transactions.half_message import HALF, half_pairs, is_transactional
from motelog.core.broker.waiting.flow_control import FlowControl
from motelog.core.errors import BrokerError, StoreError
from motelog.core.limited_log import LimitedLog
from motelog.core.message import (
    ORIGIN_MESSAGE_ID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TAGS,
    TIMER_OUT_MS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    tags_code,
)
from motelog.core.records.append import AppendMessage
from motelog.core.records.dispatch import dispatched
from motelog.core.remoting.fields import bool_field
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_batch_items,
)
from motelog.core.remoting.recall_handle import RecallHandle
from motelog.core.remoting.sends import PlainSend, split_batch
from motelog.core.remoting.server import Connection, Processor
from motelog.core.topic_names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    TOPICS_CLOSED_TO_SENDERS,
    is_group_topic,
)

logger = logging.getLogger(__name__)

# The bits of sysFlag that a client may set: compressed, multi-tags, compression type. The host bits
# are the record's own; the transaction bits would make the record invisible.
_SYS_FLAG_CLIENT: Final = 0x1 | 0x2 | 0x700
_SYS_FLAG_TRANSACTION: Final = 0xC
_BATCH_DELAYED: Final = "the messages of a batch cannot be delayed"


@dataclass(slots=True)
class _Turn:
    """The messages that one turn appends, and the sends that it answers afterwards."""

    messages: list[AppendMessage] = field(default_factory=list)
    staged: list[StagedSend] = field(default_factory=list)
    #: (topic, group) of messages that consumers send back.
    sent_back: list[tuple[str, str]] = field(default_factory=list)
    #: (group, topic, message id) of messages that consumers gave up.
    dead: list[tuple[str, str, str]] = field(default_factory=list)
    #: The delays of the messages begin at this time; their records are dated with it.
    stamp_ms: int | None = None

    def note_dead(self, group: str, pairs: dict[str, str]) -> None:
        message_id = pairs.get(UNIQ_KEY) or pairs.get(ORIGIN_MESSAGE_ID, "")
        self.dead.append((group, pairs.get(RETRY_TOPIC, ""), message_id))

    def take_state(self) -> _Turn:
        """Remove the sends with state of sessions from the turn; return them."""
        messages, staged = self.messages, self.staged
        self.messages, self.staged = [], []
        state = _Turn(stamp_ms=self.stamp_ms)
        begin = 0
        for send in staged:
            of_send = messages[begin : begin + send[5]]
            begin += send[5]
            of_turn = state if all(map(is_state_of_session, of_send)) else self
            of_turn.messages += of_send
            of_turn.staged.append(send)
        return state


class SendProcessor:
    """Processes sends; state changes only within a turn and in ``run``, between two awaits."""

    def __init__(self, shared: Shared, flow: FlowControl) -> None:
        config = shared.config
        self._flow = flow
        self._api = shared.api
        self._disk = shared.store.disk_watch
        self._topics = shared.tables.topics
        self._stats = shared.stats
        self._clock = shared.clock
        self._body_bytes_max = config.store.message_bytes_max
        self._waiting_answers_max = config.waiting_answers_max
        self._requests = SendRequests(shared)
        self.rules = make_rules(
            shared.api.store_host, config.region, self._requests.added_text.encode(), ODD_NAMES
        )
        self.answers = SendAnswers(
            shared.api, clock=shared.clock, region=config.region, rules=self.rules
        )
        self._light_queues = LightQueues(shared.store)
        self._broker_name = config.name
        self.turn = _Turn()
        self._dead_log = LimitedLog(logger)
        self.messages_count = 0
        self.dead_letters_count = 0

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.SEND_MESSAGE: self._flow.guard(self._send),
            RequestCode.SEND_MESSAGE_V2: self._flow.guard(self._send_v2),
            RequestCode.SEND_BATCH_MESSAGE: self._flow.guard(self._send_batch),
        }

    def take(self, send: PlainSend, connection: Connection) -> bool:
        """Stage a plain send; False if it must be refused, or needs some work first.

        In that case its request is decoded and processed like any other, which finds out which.
        """
        (
            _, opaque, serialize, is_oneway, is_batch, topic, queue_id, sys_flag, born_ms, flag,
            times, key, waits, properties, code, body,
        ) = send  # fmt: skip
        config = self._topics.get(topic)
        if (
            config is None
            or not config.is_writable
            or (self._requests.is_closing and config.order)
            or (queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums)
            or topic in TOPICS_CLOSED_TO_SENDERS
            or len(body) > self._body_bytes_max
            or self.answers.waiting_count >= self._waiting_answers_max
        ):
            return False
        tail = self._api.queue_tail(topic, queue_id)
        host = connection.host
        turn = self.turn
        if is_batch:
            messages = split_batch(body, tail, born_ms, host, self.rules)
            if messages is None:
                return False
            turn.messages += messages
            count = len(messages)
        else:
            sys_flag &= _SYS_FLAG_CLIENT
            turn.messages.append(
                (tail, body, properties, code, born_ms, host, sys_flag, flag, times, 0)
            )
            count = 1
        turn.staged.append((connection, opaque, serialize, is_oneway, queue_id, count, key, waits))
        return True

    def end_turn(self) -> None:
        """Append the messages that the turn has staged, and answer their sends."""
        turn, self.turn = self.turn, _Turn()
        if self._disk.full_reason is not None:
            # The state of gateways' sessions is accepted even so; it must be in a batch of its own.
            state = turn.take_state()
            if state.staged:
                self._append(state)
        if turn.staged:
            self._append(turn)

    def _append(self, turn: _Turn) -> None:
        placed: list[tuple[int, int]] = []
        line = self._api.line
        try:
            end_offset = line.append(turn.messages, placed, turn.stamp_ms)
        except StoreError as exc:
            self._refuse(turn, exc)
            return
        except Exception:
            self._refuse(turn, StoreError("the append failed, see the broker's log"))
            raise
        if end_offset is None:
            line.wait(
                turn.messages,
                placed,
                turn.stamp_ms,
                behind_ms_max=self._flow.send_wait_ms_max,
                appended=partial(self._appended, turn, placed),
                refused=partial(self._refuse, turn),
            )
        else:
            self._appended(turn, placed, end_offset)

    def _appended(self, turn: _Turn, placed: list[tuple[int, int]], end_offset: int) -> None:
        self.messages_count += len(turn.messages)
        if turn.sent_back or turn.dead:
            self._note_sent_back(turn)
        self.answers.succeed(turn.staged, placed, end_offset)

    def _note_sent_back(self, turn: _Turn) -> None:
        for topic, group in turn.sent_back:
            self._stats.note_sent_back(topic, group)
        self.dead_letters_count += len(turn.dead)
        for letter in turn.dead:
            self._dead_log.warning(
                "a consumer group has given up a message and will not get it again; it is now in"
                " the group's %%DLQ%% topic: find out why it fails, then send it once more"
                " group=%s topic=%s message_id=%s",
                *map(ascii, letter),
            )

    def _refuse(self, turn: _Turn, exc: StoreError) -> None:
        for send in turn.staged:
            self.answers.refuse(send, exc)

    def _send(self, request: RemotingCommand, connection: Connection) -> None:
        # C++ clients mark a batch by "1", Java clients by "true".
        if bool_field(request.ext, FULL.batch):
            self._stage_batch(request, connection, FULL)
        else:
            self._stage(request, connection, FULL)

    def _send_v2(self, request: RemotingCommand, connection: Connection) -> None:
        if bool_field(request.ext, LETTERS.batch):
            self._stage_batch(request, connection, LETTERS)
        else:
            self._stage(request, connection, LETTERS)

    def _send_batch(self, request: RemotingCommand, connection: Connection) -> None:
        self._stage_batch(request, connection, LETTERS)

    def _stage(self, request: RemotingCommand, connection: Connection, names: Names) -> None:
        ext = request.ext
        numbers = read_numbers(ext, names)
        topic, queue_id = self._target(ext, names, numbers)
        if len(request.body) > self._body_bytes_max:
            text = f"the body has {len(request.body)} bytes, the limit is {self._body_bytes_max}"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
        properties, pairs = self._requests.properties(ext.get(names.properties, ""), is_named=True)
        self._light_queues.check(pairs, len(properties))
        _, _, sys_flag, born_ms, flag, reconsume_times = numbers
        if topic.startswith(RETRY_PREFIX) and self._requests.is_given_up(
            topic, request, names, reconsume_times
        ):
            group = topic.removeprefix(RETRY_PREFIX)
            dead = self._topics.create_dead_letter_topic(group, self._clock.now_ms())
            topic, queue_id = dead.topic_name, 0
            pairs = {name: value for name, value in pairs.items() if name not in DELAY_PROPERTIES}
            self.turn.note_dead(group, pairs)
            properties = encode_properties(join_properties(pairs | self._requests.added))
        tail, code = self._api.queue_tail(topic, queue_id), _tags_code(pairs.get(TAGS))
        told: bytes | Recallable = pairs[UNIQ_KEY].encode()
        is_delayed = not DELAY_PROPERTIES.isdisjoint(pairs)
        stamp_ms = self.turn.stamp_ms
        if TRAN_MSG in pairs and is_transactional(
            pairs, reconsume_times=reconsume_times, is_delayed=is_delayed
        ):
            group = ext[names.group]
            self._requests.check_transactional(pairs, group)
            half = half_pairs(
                pairs | self._requests.added, topic=topic, queue_id=queue_id, group=group
            )
            tail, properties = self._api.queue_tail(*HALF), encode_properties(join_properties(half))
        elif sys_flag & _SYS_FLAG_TRANSACTION:
            refuse_transactional(sys_flag, pairs)
        elif is_delayed:
            stamp_ms = self._now_ms()
            place = find_waiting_place(
                pairs | self._requests.added, topic, queue_id, self._api.due_times, stamp_ms
            )
            if place is not None:
                tail, code = self._api.queue_tail(place.topic, place.queue_id), place.due_ms
                properties = encode_properties(join_properties(place.pairs))
                told = _recallable(self._broker_name, place.pairs)
        message = (
            tail,
            request.body,
            properties,
            code,
            born_ms,
            connection.host,
            sys_flag & _SYS_FLAG_CLIENT,
            flag,
            reconsume_times,
            0,
        )
        self.turn.stamp_ms = stamp_ms
        self.turn.messages.append(dispatched(message))
        is_waiting = pairs.get(WAIT) != "false"
        self.turn.staged.append(_staged(request, connection, queue_id, 1, told, is_waiting))

    def stage_again(
        self,
        request: RemotingCommand,
        connection: Connection,
        queue: tuple[str, int],
        pairs: dict[str, str],
        message: tuple[bytes, int, bytes, int, int, int],
        sent_back: tuple[str, str],
    ) -> None:
        """Stage a message that was stored before: (body, born time and host, sysFlag, flag, times).

        It is answered with the turn's sends; under sync flush, when it is on disk. ``sent_back``:
        its original topic, and the group that has sent it back.
        """
        body, born_ms, born_host, sys_flag, flag, reconsume_times = message
        topic, queue_id = queue
        tail, code = self._api.queue_tail(topic, queue_id), _tags_code(pairs.get(TAGS))
        stamp_ms = self._now_ms()
        place = find_waiting_place(pairs, topic, queue_id, self._api.due_times, stamp_ms)
        if place is not None:
            tail, code, pairs = (
                self._api.queue_tail(place.topic, place.queue_id),
                place.due_ms,
                place.pairs,
            )
        properties = encode_properties(join_properties(pairs))
        self.turn.stamp_ms = stamp_ms
        self.turn.messages.append(
            (
                tail,
                body,
                properties,
                code,
                born_ms,
                born_host,
                sys_flag & _SYS_FLAG_CLIENT,
                flag,
                reconsume_times,
                0,
            )
        )
        self.turn.staged.append(_staged(request, connection, queue_id, 1, None, True))
        self.turn.sent_back.append(sent_back)
        if topic.startswith(DLQ_PREFIX):
            self.turn.note_dead(sent_back[1], pairs)

    def _stage_batch(self, request: RemotingCommand, connection: Connection, names: Names) -> None:
        ext = request.ext
        numbers = read_numbers(ext, names)
        topic, queue_id = self._target(ext, names, numbers)
        if is_group_topic(topic):
            text = "a batch cannot be sent to a retry or dead-letter topic"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
        if len(request.body) > self._body_bytes_max:
            text = f"the batch has {len(request.body)} bytes, the limit is {self._body_bytes_max}"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
        items = decode_batch_items(request.body)
        if not items:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, "the batch has no message")
        _, batch_pairs = self._requests.properties(ext.get(names.properties, ""))
        _, _, sys_flag, born_ms, _, _ = numbers
        refuse_transactional(sys_flag, batch_pairs)
        refuse_delayed(batch_pairs, _BATCH_DELAYED)
        tail = self._api.queue_tail(topic, queue_id)
        messages = []
        for flag, body, item_text in items:
            properties, code = self._item_properties(item_text)
            messages.append((tail, body, properties, code, born_ms, connection.host, 0, flag, 0, 0))
        self.turn.messages += messages
        is_waiting = batch_pairs.get(WAIT) != "false"
        unique_key = batch_pairs.get(UNIQ_KEY)
        told = None if unique_key is None else unique_key.encode()
        self.turn.staged.append(
            _staged(request, connection, queue_id, len(messages), told, is_waiting)
        )

    def _item_properties(self, item_text: bytes) -> tuple[bytes, int]:
        """Return the properties to store for one message of a batch, and its tag hash."""
        properties, pairs = self._requests.properties(item_text.decode(errors="replace"))
        refuse_transactional(0, pairs)
        refuse_delayed(pairs, _BATCH_DELAYED)
        return properties, _tags_code(pairs.get(TAGS))

    def _target(self, ext: dict[str, str], names: Names, numbers: Numbers) -> tuple[str, int]:
        """Return the topic and the queue of a send that has room to wait for the disk."""
        if self.answers.waiting_count >= self._waiting_answers_max:
            text = f"{self.answers.waiting_count} sends already wait for the disk"
            raise BrokerError(ResponseCode.SYSTEM_BUSY, text)
        return self._requests.target(ext, names, numbers)

    def _now_ms(self) -> int:
        """Return the time with which this turn's messages will be dated."""
        stamp_ms = self.turn.stamp_ms
        return self._api.now_ms() if stamp_ms is None else stamp_ms


def _recallable(broker_name: str, pairs: dict[str, str]) -> bytes | Recallable:
    """Return the part of a waiting message's answer that says how to recall it."""
    key, topic = pairs[UNIQ_KEY], pairs[REAL_TOPIC]
    if TIMER_OUT_MS not in pairs or is_group_topic(topic):
        return key.encode()
    handle = RecallHandle(topic, broker_name, int(pairs[TIMER_OUT_MS]), key).encode()
    return key.encode() if handle is None else Recallable(key.encode(), handle)


def _staged(
    request: RemotingCommand,
    connection: Connection,
    queue_id: int,
    count: int,
    told: bytes | Recallable | None,
    waits: bool,
) -> StagedSend:
    form = int(request.serialize)
    return connection, request.opaque, form, request.is_oneway, queue_id, count, told, waits


@lru_cache(maxsize=4096)
def _short_tags_code(tags: str) -> int:
    return tags_code(tags)


def _tags_code(tags: str | None) -> int:
    """Return the tag hash, cached if the tag is short: most messages repeat one."""
    if tags is None:
        return 0
    return _short_tags_code(tags) if len(tags) <= 64 else tags_code(tags)
