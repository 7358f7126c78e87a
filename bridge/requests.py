"""Requests sent as messages, and their replies, which brokers push.

Owns: matching replies to requests, the properties of both. Must not touch: how a message is sent
(producer), connections.
Spec: RocketMQ RequestFutureHolder, MessageUtil, ClientRemotingProcessor.
"""

from __future__ import annotations

import uuid
import zlib
from typing import Final

import trio

from motelog.bridge.errors import MessageRefusedError, ReplyTimeoutError
from motelog.core.message import (
    CLUSTER,
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    REPLY_TTL_MS,
    SYS_FLAG_COMPRESSED,
    Message,
    decode_properties,
)
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.frames import RemotingCommand, ResponseCode

REPLY_TOPIC_END: Final = "_REPLY_TOPIC"
_REPLY: Final = "reply"
_BODY_BYTES_MAX: Final = 64 * 1024 * 1024


class Requests:
    """The requests of one client that wait for their replies."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}

    async def wait(self, waiting: _Waiting, *, deadline: float, timeout_s: float) -> Message:
        """Return the reply; ReplyTimeoutError if there is none after ``timeout_s``."""
        with trio.move_on_at(deadline):
            await waiting.done.wait()
        if waiting.reply is None:
            raise ReplyTimeoutError(
                f"no reply to request {waiting.correlation_id}, topic "
                f"{waiting.message.topic!r}, within {timeout_s:.3g} s: does a consumer of it call "
                "reply_to?"
            )
        return waiting.reply

    def begin(self, message: Message, client_id: str, *, timeout_s: float) -> _Waiting:
        """Register and return a request for ``message``, until ``end``."""
        correlation_id = str(uuid.uuid4())
        asked = {
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: client_id,
            REPLY_TTL_MS: str(round(timeout_s * 1000)),
        }
        properties = {**message.properties, **asked}
        sent = Message(
            message.topic, message.body, message.tags, message.keys, properties, message.flag
        )
        waiting = self._waiting[correlation_id] = _Waiting(correlation_id, sent)
        return waiting

    def end(self, waiting: _Waiting) -> None:
        self._waiting.pop(waiting.correlation_id, None)

    def take(self, command: RemotingCommand) -> RemotingCommand:
        """Accept and answer a pushed reply; one without a waiting request is dropped."""
        properties = decode_properties(command.ext.get("properties", "").encode())
        waiting = self._waiting.pop(properties.get(CORRELATION_ID, ""), None)
        if waiting is not None:
            try:
                waiting.reply = _reply(command, properties)
            except ValueError as exc:
                return command.answer(ResponseCode.SYSTEM_ERROR, f"the reply is damaged: {exc}")
            waiting.done.set()
        return command.answer()


class _Waiting:
    """One request: the message, and its reply once that has arrived."""

    def __init__(self, correlation_id: str, message: Message) -> None:
        self.correlation_id = correlation_id
        self.message = message
        self.reply: Message | None = None
        self.done = trio.Event()


def reply_message(request: StoredMessage, body: bytes) -> Message:
    """Return the reply to a consumed message; MessageRefusedError if it expects none."""
    properties = {MSG_TYPE: _REPLY}
    for name in (CORRELATION_ID, REPLY_TO_CLIENT, REPLY_TTL_MS):
        value = request.properties.get(name)
        if value is None and name != REPLY_TTL_MS:
            text = f"the message expects no reply: it has no property {name}"
            raise MessageRefusedError(text)
        if value is not None:
            properties[name] = value
    cluster = request.properties.get(CLUSTER)
    if cluster is None:
        raise MessageRefusedError(f"the message has no property {CLUSTER}, which names its cluster")
    return Message(cluster + REPLY_TOPIC_END, body, properties=properties)


def _reply(command: RemotingCommand, properties: dict[str, str]) -> Message:
    """Return a pushed reply as a message; ValueError if it is malformed."""
    flag = int(command.ext.get("flag", "0"))
    body = command.body
    if int(command.ext.get("sysFlag", "0")) & SYS_FLAG_COMPRESSED:
        inflate = zlib.decompressobj()
        try:
            body = inflate.decompress(body, _BODY_BYTES_MAX)
        except zlib.error as exc:
            raise ValueError(str(exc)) from exc
        if not inflate.eof:
            raise ValueError("its compressed body is cut off or too large")
    return Message(command.ext.get("topic", ""), body, properties=properties, flag=flag)
