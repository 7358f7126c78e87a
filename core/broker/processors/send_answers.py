"""Answers to sends: their bytes, and which of them wait.

Owns: the header of a send's answer, the response code of an error. Must not touch: checks of a
message, the store, when an answer may be given (acknowledge).

A kernel makes the usual answers (core.remoting.sends), all of a turn at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

import msgspec

from motelog.core.broker.acknowledge import AnswerQueue
from motelog.core.broker.api import BrokerApi
from motelog.core.clock import Clock
from motelog.core.errors import (
    BusyError,
    FlushTimeoutError,
    NextFileError,
    NoSlaveError,
    RecordTooLargeError,
    SlaveTimeoutError,
    StoredError,
    StoreError,
    StoreFencedError,
    StoreFullError,
    TooFewSlavesError,
)
from motelog.core.remoting.codes import MAY_LAST, STORE_FULL
from motelog.core.remoting.frames import (
    FLAG_RESPONSE,
    VERSION_CURRENT,
    Language,
    RemotingCommand,
    ResponseCode,
    Serialize,
    decode,
    encode,
)
from motelog.core.remoting.sends import SendRules, answer_sends
from motelog.core.remoting.server import Connection

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_BINARY_BEGIN: Final = struct.Struct(">hBh")


class Recallable(NamedTuple):
    """The handle of a message that its producer may recall, in addition to its key."""

    key: bytes
    handle: str


#: A send whose messages are about to be appended: (connection, opaque, serialize type, is one-way,
#: queue id, count of messages, UNIQ_KEY or None or more, waits for the disk).
StagedSend: TypeAlias = (
    "tuple[Connection, int, int, bool, int, int, bytes | Recallable | None, bool]"
)
#: Sends of one append with the frames that answer them.
_Waiting: TypeAlias = "list[tuple[StagedSend, bytes]]"


class SendAnswers:
    """Answers sends; state changes only within a turn and when answers are released."""

    def __init__(self, api: BrokerApi, *, clock: Clock, region: str, rules: SendRules) -> None:
        self._host = api.store_host.hex().upper()
        self._ext = {"MSG_REGION": region, "TRACE_ON": "true"}
        self._rules = rules
        self.queue: AnswerQueue[_Waiting] = AnswerQueue(
            api.acknowledge, clock=clock, answer=self._release, refuse=self._refuse_waiting
        )
        #: The numbers of sends that wait for the disk or a slave, were refused, were answered as
        #: too slow to reach the disk, and as not copied to a slave.
        self.waiting_count = 0
        self.refused_count = 0
        self.timed_out_count = 0
        self.uncopied_count = 0

    def succeed(
        self, staged: list[StagedSend], placed: list[tuple[int, int]], end_offset: int
    ) -> None:
        """Answer sends of the append that ended at ``end_offset``, as soon as that is allowed.

        A send that does not wait for the disk is answered at once.
        """
        must_wait = not self.queue.may_answer(end_offset)
        waiting: _Waiting = []
        begin = 0
        frames = answer_sends(staged, placed, self._rules)
        for send, frame in zip(staged, frames, strict=True):
            connection, _, _, is_oneway, _, count, _, waits_for_disk = send
            if not is_oneway:
                if frame is None:
                    frame = self._encode(send, placed[begin : begin + count])
                if must_wait and waits_for_disk:
                    waiting.append((send, frame))
                else:
                    connection.send(frame)
            begin += count
        if waiting:
            self.queue.add(end_offset, waiting)
            self.waiting_count += len(waiting)

    def refuse(self, send: StagedSend, exc: StoreError) -> None:
        """Answer a producer whose message must not be considered stored."""
        connection, _, _, is_oneway, _, count, _, _ = send
        self.refused_count += count
        if not is_oneway:
            # RocketMQ has one code for all refusals of a store; this tells gateways the reason.
            ext = {_REASONS[type(exc)]: "true"} if type(exc) in _REASONS else None
            connection.reply(_request(send).answer(store_error_code(exc), str(exc), ext))

    def _encode(self, send: StagedSend, placed: list[tuple[int, int]]) -> bytes:
        """Return the frame with the places of the messages, for any key of the send."""
        _, _, _, _, queue_id, _, key, _ = send
        ext = {
            "msgId": ",".join([f"{self._host}{physical:016X}" for physical, _ in placed]),
            "queueId": str(queue_id),
            "queueOffset": str(placed[0][1]),
            **self._ext,
        }
        if isinstance(key, Recallable):
            key, ext["recallHandle"] = key
        if key is not None:
            ext["transactionId"] = key.decode()
        return encode(_request(send).answer(ext=ext))

    def _release(self, released: list[_Waiting]) -> None:
        for waiting in released:
            self.waiting_count -= len(waiting)
            for send, frame in waiting:
                send[0].send(frame)
        self.queue.send_queued()

    def _refuse_waiting(self, refused: list[_Waiting], exc: StoreError) -> None:
        for waiting in refused:
            self.waiting_count -= len(waiting)
            for send, frame in waiting:
                if isinstance(exc, StoredError):
                    self._tell_late(send, frame, exc)
                else:
                    self.refuse(send, exc)
        self.queue.send_queued()

    def _tell_late(self, send: StagedSend, frame: bytes, exc: StoreError) -> None:
        """Answer a send whose message is stored as in ``frame`` but is not where it should be."""
        if isinstance(exc, FlushTimeoutError):
            self.timed_out_count += send[5]
        else:
            self.uncopied_count += send[5]
        answer = decode(frame)
        answer.code, answer.remark = store_error_code(exc), str(exc)
        send[0].reply(answer)


def make_rules(store_host: bytes, region: str, added: bytes, odd_names: Iterable[str]) -> SendRules:
    """Return the rules for properties of and answers to plain sends."""
    shown = msgspec.json.encode(region).decode()
    told = {"MSG_REGION": region, "TRACE_ON": "true"}
    ext = [
        _I16.pack(len(name)) + name.encode() + _I32.pack(len(value.encode())) + value.encode()
        for name, value in told.items()
    ]
    return SendRules(
        added,
        [name.encode() for name in odd_names],
        f'{{"code":0,"extFields":{{"MSG_REGION":{shown},"TRACE_ON":"true","msgId":"'.encode(),
        (
            f',"flag":{FLAG_RESPONSE},"language":"{Language.PYTHON.name}",'
            f'"serializeTypeCurrentRPC":"JSON","version":{VERSION_CURRENT}}}'
        ).encode(),
        _BINARY_BEGIN.pack(ResponseCode.SUCCESS, Language.PYTHON, VERSION_CURRENT),
        b"".join(ext),
        store_host.hex().upper().encode(),
    )


def _request(send: StagedSend) -> RemotingCommand:
    """Return a request with the fields of a send that its answer needs."""
    _, opaque, serialize, *_ = send
    return RemotingCommand(0, opaque=opaque, serialize=Serialize(serialize))


_REASONS: Final = {StoreFullError: STORE_FULL, TooFewSlavesError: MAY_LAST}
#: After these producers try another broker.
_ELSEWHERE: Final = (StoreFencedError, StoreFullError, NextFileError, TooFewSlavesError)


def store_error_code(exc: StoreError) -> ResponseCode:
    """Return the response code for a message that was not appended, or not in time."""
    if isinstance(exc, RecordTooLargeError):
        return ResponseCode.MESSAGE_ILLEGAL
    if isinstance(exc, FlushTimeoutError):
        return ResponseCode.FLUSH_DISK_TIMEOUT
    if isinstance(exc, SlaveTimeoutError):
        return ResponseCode.FLUSH_SLAVE_TIMEOUT
    if isinstance(exc, NoSlaveError):
        return ResponseCode.SLAVE_NOT_AVAILABLE
    if isinstance(exc, BusyError):
        return ResponseCode.SYSTEM_BUSY
    if isinstance(exc, _ELSEWHERE):
        return ResponseCode.SERVICE_NOT_AVAILABLE
    return ResponseCode.SYSTEM_ERROR
