"""Answers to sends: their bytes, and the wait for the disk under sync flush.

Owns: the header of a send's answer, the answers that wait. Must not touch: checks of a message,
the store beyond waiting for it.

Answers wait in the order of the log, and one wait releases all that the disk has caught up with.
The usual JSON answer is filled into a template: with a command and a dictionary built for each, a
small message cost half as much again in all (26 us, 17.5 with it, busy 2-core machine, 2026-11).
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import Final

import trio

from motelog.core.broker.api import BrokerApi
from motelog.core.errors import RecordTooLargeError, StoreError, StoreFencedError, StoreFullError
from motelog.core.remoting.frames import (
    FLAG_RESPONSE,
    VERSION_CURRENT,
    Language,
    RemotingCommand,
    ResponseCode,
    Serialize,
    encode,
)
from motelog.core.remoting.server import Connection, RemotingServer

_FRAME_HEAD: Final = struct.Struct(">II")


@dataclass(slots=True)
class StagedSend:
    """One send whose messages are about to be appended."""

    request: RemotingCommand
    connection: Connection
    queue_id: int
    count: int
    unique_key: str | None
    waits_for_disk: bool


class SendAnswers:
    """Answers what was appended; state changes only within a turn and in ``run``."""

    def __init__(self, api: BrokerApi, *, region: str) -> None:
        self._api = api
        self._host = api.store_host.hex().upper()
        self._ext = {"MSG_REGION": region, "TRACE_ON": "true"}
        self._is_plain_region = region.isascii() and region.isalnum()
        self._json_begin = (
            f'{{"code":0,"extFields":{{"MSG_REGION":"{region}","TRACE_ON":"true",'
            f'"msgId":"{self._host}'
        )
        self._json_end = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION_CURRENT}}}'
        self._waiting: deque[_Waiting] = deque()
        self._waiting_count = 0
        self.refused_count = 0
        self._wanted = trio.Event()

    @property
    def waiting_count(self) -> int:
        """How many sends wait for the disk."""
        return self._waiting_count

    def succeed(
        self, staged: list[StagedSend], placed: list[tuple[int, int]], end_offset: int
    ) -> None:
        """Answer sends that were appended, now or when the log is on disk up to ``end_offset``."""
        is_sync = self._api.flush_is_sync
        waiting: list[tuple[StagedSend, bytes]] = []
        begin = 0
        for send in staged:
            if not send.request.is_oneway:
                frame = self.encode(send, placed[begin : begin + send.count])
                if is_sync and send.waits_for_disk:
                    # The message is in the log; its bytes need not wait with the answer.
                    send.request.body = b""
                    waiting.append((send, frame))
                else:
                    send.connection.send(frame)
            begin += send.count
        if waiting:
            self._waiting.append(_Waiting(end_offset, waiting))
            self._waiting_count += len(waiting)
            self._wanted.set()

    def refuse(self, send: StagedSend, exc: StoreError) -> None:
        """Tell a producer that its message must not be taken for stored."""
        self.refused_count += send.count
        if not send.request.is_oneway:
            send.connection.reply(send.request.answer(_store_error_code(exc), str(exc)))

    async def run(
        self,
        server: RemotingServer,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send the answers that wait for the disk; needed under sync flush only."""
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

    def encode(self, send: StagedSend, placed: list[tuple[int, int]]) -> bytes:
        """Return the frame that says where the messages are."""
        request = send.request
        key = send.unique_key
        is_plain = key is None or (key.isascii() and key.isalnum())
        if (
            len(placed) == 1
            and request.serialize is Serialize.JSON
            and is_plain
            and self._is_plain_region
        ):
            ((physical_offset, queue_offset),) = placed
            key_field = "" if key is None else f',"transactionId":"{key}"'
            header = (
                f'{self._json_begin}{physical_offset:016X}","queueId":"{send.queue_id}",'
                f'"queueOffset":"{queue_offset}"{key_field}}},"flag":{FLAG_RESPONSE},'
                f'"language":"{_LANGUAGE}","opaque":{request.opaque}{self._json_end}'
            ).encode()
            return _FRAME_HEAD.pack(4 + len(header), len(header)) + header
        ext = {
            "msgId": ",".join([f"{self._host}{physical:016X}" for physical, _ in placed]),
            "queueId": str(send.queue_id),
            "queueOffset": str(placed[0][1]),
            **self._ext,
        }
        if key is not None:
            ext["transactionId"] = key
        return encode(request.answer(ext=ext))

    def _release_durable(self) -> None:
        durable_offset = self._api.durable_offset
        while self._waiting and self._waiting[0].end_offset <= durable_offset:
            waiting = self._waiting.popleft()
            self._waiting_count -= len(waiting.answers)
            for send, frame in waiting.answers:
                send.connection.send(frame)

    def _refuse_waiting(self, exc: StoreError) -> None:
        for waiting in self._waiting:
            for send, _ in waiting.answers:
                self.refuse(send, exc)
        self._waiting.clear()
        self._waiting_count = 0


@dataclass(slots=True)
class _Waiting:
    """The answers of one append, to be sent once ``end_offset`` is on disk."""

    end_offset: int
    answers: list[tuple[StagedSend, bytes]]


_LANGUAGE: Final = Language.PYTHON.name


def _store_error_code(exc: StoreError) -> ResponseCode:
    if isinstance(exc, RecordTooLargeError):
        return ResponseCode.MESSAGE_ILLEGAL
    if isinstance(exc, StoreFencedError | StoreFullError):
        # Producers then try another broker.
        return ResponseCode.SERVICE_NOT_AVAILABLE
    return ResponseCode.SYSTEM_ERROR
