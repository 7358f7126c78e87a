"""Half messages: how a transactional send becomes one, and the records that follow it.

Owns: the properties of a half message, the records made of it, when a producer is to be asked.
Must not touch: the store, clocks, connections; pure functions and values.
Spec: RocketMQ TransactionalMessageBridge, TransactionalMessageServiceImpl, EndTransactionProcessor.

    send, TRAN_MSG=true -> RMQ_SYS_TRANS_HALF_TOPIC, queue 0: REAL_TOPIC, REAL_QID, PGROUP
    commit              -> the real topic, sysFlag 0x8, prepared offset: the half's place
    check               -> the half topic again, TRANSACTION_CHECK_TIMES + 1
    given up            -> TRANS_CHECK_MAX_TIME_TOPIC
    end of any kind     -> RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0, tag d: the half's queue offset

A half message that is appended again is a copy. Copies have the unique id and the born time of
their original. All copies but the newest are over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from motelog.core.errors import BrokerError, RecordError
from motelog.core.message import (
    CHECK_IMMUNITY_S,
    NAME_END,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TRAN_MSG,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    UNIQ_KEY,
    VALUE_END,
    decode_properties,
    encode_properties,
    tags_code,
)
from motelog.core.records.append import AppendMessage, QueueTail, encode_batch
from motelog.core.records.decode import decode
from motelog.core.records.dispatch import dispatched
from motelog.core.records.layout import COMMIT, TRANSACTION_MASK
from motelog.core.remoting.codes import ResponseCode
from motelog.core.store.due_time import number
from motelog.core.topic_names import HALF_TOPIC

HALF_QUEUE: Final = 0
HALF: Final = (HALF_TOPIC, HALF_QUEUE)
_OP_TAG: Final = "d"
_OP_PROPERTIES: Final = (
    f"WAIT{NAME_END}true{VALUE_END}{TAGS}{NAME_END}{_OP_TAG}{VALUE_END}".encode()
)
_OFFSETS_PER_OP_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A record of the half topic; ``pairs`` are its properties, ``text`` the same as stored."""

    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    text: bytes
    body: bytes
    pairs: Mapping[str, str]

    @property
    def group(self) -> str:
        return self.pairs.get(PGROUP, "")

    @property
    def unique_key(self) -> str:
        return self.pairs.get(UNIQ_KEY, "")

    @property
    def real_topic(self) -> str:
        return self.pairs.get(REAL_TOPIC, "")

    @property
    def real_queue_id(self) -> int | None:
        return number(self.pairs.get(REAL_QID, ""))

    @property
    def check_times(self) -> int:
        """The number of questions to its producers so far."""
        return number(self.pairs.get(TRANSACTION_CHECK_TIMES, "")) or 0

    @property
    def is_copy(self) -> bool:
        """Whether it was appended by the broker, and not by a send."""
        return TRANSACTION_CHECK_TIMES in self.pairs or TRAN_PREPARED_QUEUE_OFFSET in self.pairs

    @property
    def first_offset(self) -> int:
        """The queue offset of its original."""
        first = number(self.pairs.get(TRAN_PREPARED_QUEUE_OFFSET, ""))
        return self.queue_offset if first is None else first

    def is_same(self, other: HalfMessage) -> bool:
        """Whether both are copies of one half message, or one is a copy of the other."""
        return self.unique_key == other.unique_key and self.born_ms == other.born_ms


class Verdict(Enum):
    """The next step of an open half message."""

    WAIT = auto()
    KEEP = auto()
    ASK = auto()
    GIVE_UP = auto()


def half_pairs(
    pairs: Mapping[str, str], *, topic: str, queue_id: int, group: str
) -> dict[str, str]:
    """Return the properties of a transactional send's half message."""
    half = {PGROUP: group, **pairs}
    if half.get(UNIQ_KEY):
        half[TRANSACTION_ID] = half[UNIQ_KEY]
    for name in (TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET):
        half.pop(name, None)  # The sender's own value must not decide how often it is asked.
    return half | {REAL_TOPIC: topic, REAL_QID: str(queue_id)}


def is_transactional(pairs: Mapping[str, str], *, reconsume_times: int, is_delayed: bool) -> bool:
    """Return whether a send is the first half of a transaction.

    Clients before 4.6.1 leave TRAN_MSG in a message that they send back to be consumed again.
    """
    return pairs.get(TRAN_MSG, "").lower() == "true" and not (reconsume_times > 0 and is_delayed)


def decode_half(record: bytes) -> HalfMessage:
    """Return a record of the half topic; RecordError for any other, or a damaged one."""
    found = list(decode_halves(record))
    if len(found) != 1:
        raise RecordError("not a half message", offset_bytes=0)
    return found[0]


def decode_halves(records: bytes) -> Iterator[HalfMessage]:
    """Yield the records of the half topic among concatenated records."""
    for fields in decode(records, verify=True):
        if fields[0] == HALF_TOPIC.encode() and fields[1] == HALF_QUEUE:
            yield half_of(fields)


def half_of(fields: tuple[Any, ...]) -> HalfMessage:
    """Return a record's fields as a half message, whatever topic it is in."""
    (
        _, _, queue_offset, physical, flag, sys_flag, born_ms, born_host, store_ms, store_host,
        times, _, text, body,
    ) = fields  # fmt: skip
    return HalfMessage(
        queue_offset, physical, flag, sys_flag, born_ms, born_host, store_ms, store_host, times,
        text, body, decode_properties(text),
    )  # fmt: skip


def check_end(half: HalfMessage, *, group: str, queue_offset: int, physical_offset: int) -> None:
    """Refuse to end a half message by a request that does not name it; BrokerError."""
    fault = None
    if half.group != group:
        fault = "The producer group wrong"
    elif half.queue_offset != queue_offset:
        fault = "The transaction state table offset wrong"
    elif half.physical_offset != physical_offset:
        fault = "The commit log offset wrong"
    if fault is not None:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, fault)


def immunity_ms(half: HalfMessage, timeout_ms: int) -> int:
    """Return the age in ms from which on its producers are asked."""
    seconds = number(half.pairs.get(CHECK_IMMUNITY_S, "")) or 0
    return max(seconds * 1000, timeout_ms)


def is_too_late(half: HalfMessage, now_ms: int, timeout_ms: int) -> bool:
    """Return whether its producer may now only answer questions: its own time is over."""
    return CHECK_IMMUNITY_S in half.pairs and now_ms - half.born_ms > immunity_ms(half, timeout_ms)


def judge(
    half: HalfMessage,
    now_ms: int,
    *,
    timeout_ms: int,
    check_max: int,
    age_ms_max: int,
    begin_offset: int,
) -> Verdict:
    """Return the next step of an open half message at ``now_ms``.

    The age of a message that a producer sent is counted from its store time, because the sender's
    clock may be ahead. A copy's age is counted from its born time, and the broker's clock may be
    days ahead of that: a message is old only if its original has left the log as well, whose queue
    begins at ``begin_offset``.
    """
    age_ms = now_ms - (half.born_ms if half.is_copy else half.store_ms)
    is_old = now_ms - half.born_ms > age_ms_max and half.first_offset < begin_offset
    if half.check_times >= check_max or is_old:
        return Verdict.GIVE_UP
    if 0 <= age_ms < immunity_ms(half, timeout_ms):
        # A message that waits for long must not hold up those after it.
        return Verdict.KEEP if CHECK_IMMUNITY_S in half.pairs else Verdict.WAIT
    return Verdict.ASK


def real_message(half: HalfMessage, tail: QueueTail) -> AppendMessage:
    """Return the message for consumers: its properties still say that it was a half message."""
    sys_flag = half.sys_flag & ~TRANSACTION_MASK | COMMIT
    return dispatched(_message(half, tail, half.text, sys_flag, half.physical_offset))


def given_up_message(half: HalfMessage, tail: QueueTail) -> AppendMessage:
    """Return the record for the topic of half messages that have been given up."""
    return _message(half, tail, half.text, half.sys_flag, 0)


def copy_of(half: HalfMessage, tail: QueueTail, *, times: int | None = None) -> AppendMessage:
    """Return a copy that was asked about ``times`` times; ValueError without room for that."""
    pairs = dict(half.pairs)
    if half.queue_offset >= 0:
        pairs.setdefault(TRAN_PREPARED_QUEUE_OFFSET, str(half.queue_offset))
    if times is not None:
        pairs[TRANSACTION_CHECK_TIMES] = str(times)
    return _message(half, tail, encode_properties(pairs), half.sys_flag, 0)


def op_message(half: HalfMessage, tail: QueueTail, *, now_ms: int, host: bytes) -> AppendMessage:
    """Return the record that says that a half message is over."""
    body = str(half.queue_offset).encode()
    return (tail, body, _OP_PROPERTIES, tags_code(_OP_TAG), now_ms, host, 0, 0, 0, 0)


def decode_ops(records: bytes) -> Iterator[tuple[int, list[int]]]:
    """Yield the queue offset of each op record, and those of the half messages that it ends.

    RocketMQ before 5.0 writes one offset, later releases several with a comma after each.
    """
    for fields in decode(records, verify=True):
        ended = []
        if decode_properties(fields[12]).get(TAGS) == _OP_TAG:
            texts = fields[13].decode(errors="replace").split(",", _OFFSETS_PER_OP_MAX)
            ended = [offset for offset in map(number, texts) if offset is not None]
        yield fields[2], ended


def question(half: HalfMessage, place: tuple[int, int], store_host: bytes) -> bytes:
    """Return the record to show to a producer, for its newest copy at (physical, queue offset).

    ``store_host`` is the broker's current address: clients may send the answer there.
    """
    physical_offset, queue_offset = place
    tail = QueueTail(half.real_topic.encode(), half.real_queue_id or 0, queue_offset)
    message = _message(half, tail, half.text, half.sys_flag, 0)
    # Room for the record and for the blank record at the end of a log file.
    target = bytearray(512 + len(half.text) + len(half.body))
    _, end = encode_batch(
        target, 0, len(target), physical_offset, [message], 0, half.store_ms, store_host, [],
        None,
    )  # fmt: skip
    return bytes(target[:end])


def _message(
    half: HalfMessage, tail: QueueTail, text: bytes, sys_flag: int, prepared: int
) -> AppendMessage:
    code = tags_code(half.pairs.get(TAGS))
    return (
        tail, half.body, text, code, half.born_ms, half.born_host, sys_flag, half.flag,
        half.reconsume_times, prepared,
    )  # fmt: skip
