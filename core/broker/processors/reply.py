"""Replies to requests that were sent as messages: pushed to the client that waits for them.

Owns: request codes 324 and 325, the push of a reply (326). Must not touch: connected clients
(tables.consumer_groups), how a message is written. Spec: RocketMQ ReplyMessageProcessor.

    asker -- message with REPLY_TO_CLIENT, CORRELATION_ID --> broker --> consumer
    asker <------------- 326 --------------- broker <-- 325 -- consumer

The consumer gets the result of the push. With ``store_replies`` the reply is also stored in the
topic ``<cluster>_REPLY_TOPIC``, as by RocketMQ: only for the record, no client needs to consume it.
"""

from __future__ import annotations

import logging
from typing import Final

from motelog.core.addresses import format_address
from motelog.core.broker.processors.shared import Shared
from motelog.core.errors import BrokerError, RemotingError, StoreError
from motelog.core.limited_log import LimitedLog
from motelog.core.message import (
    PROPERTIES_BYTES_MAX,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    TAGS,
    decode_host,
    decode_properties,
    encode_offset_id,
    encode_properties,
    tags_code,
)
from motelog.core.records.dispatch import MULTI_OFFSET
from motelog.core.remoting.fields import int32_field, int_field, text_field
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.server import Connection, Processor
from motelog.core.topic_names import TOPICS_CLOSED_TO_SENDERS, shown

logger = logging.getLogger(__name__)

#: The replying client waits about as long for the answer to its send.
PUSH_TIMEOUT_S: Final = 3.0
#: The bits of sysFlag that say how a body is compressed.
_SYS_FLAG_CLIENT: Final = 0x1 | 0x700
#: The time of the push is added.
_PROPERTIES_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - 64
#: A field's name in 325 -> its name in 324 and 326.
_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
}


class ReplyProcessor:
    """Processes replies; state changes only within a turn and when a client has answered."""

    def __init__(self, shared: Shared) -> None:
        self._api = shared.api
        self._topics = shared.tables.topics
        self._producers = shared.tables.producers
        self._clock = shared.clock
        self._is_stored = shared.config.store_replies
        self._body_bytes_max = shared.config.store.message_bytes_max
        host, port = decode_host(shared.api.store_host)
        self._store_host = format_address(host, port)
        self._unstored = LimitedLog(logger)

    def store_replies(self, is_on: bool) -> None:
        self._is_stored = is_on

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self._reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._reply_v2,
        }

    def _reply_v2(self, request: RemotingCommand, connection: Connection) -> None:
        ext = {_NAMES[name]: value for name, value in request.ext.items() if name in _NAMES}
        self._push(request, ext, connection)

    def _reply(self, request: RemotingCommand, connection: Connection) -> None:
        names = _NAMES.values()
        ext = {name: value for name, value in request.ext.items() if name in names}
        self._push(request, ext, connection)

    def _push(self, request: RemotingCommand, ext: dict[str, str], connection: Connection) -> None:
        self._check(ext, request.body)
        pairs = decode_properties(ext.get("properties", "").encode())
        client_id = pairs.get(REPLY_TO_CLIENT)
        if client_id is None:
            text = f"the reply does not name its recipient: it has no property {REPLY_TO_CLIENT}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        asker = self._producers.owner_of(client_id)
        if asker is None:
            text = f"the client {shown(client_id)[1:-1]} that waits for the reply is not connected"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        now_ms = self._clock.now_ms()
        pairs[PUSH_REPLY_TIME] = str(now_ms)
        try:
            properties = encode_properties(pairs)
        except ValueError as exc:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, str(exc)) from exc
        host, port = connection.peer
        told = ext | {
            "properties": properties.decode(),
            "bornHost": format_address(host, port),
            "storeHost": self._store_host,
            "storeTimestamp": str(now_ms),
        }
        push = RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=told, body=request.body
        )

        def pushed(outcome: RemotingCommand | RemotingError) -> None:
            refusal = _refusal(outcome)
            message_id, queue_offset = "0", 0
            if self._is_stored:
                placed = self._store(ext, request.body, connection)
                if placed is not None:
                    message_id, queue_offset = placed
            if request.is_oneway:
                return
            answer = {
                "msgId": message_id,
                "queueId": str(max(0, int(ext["queueId"]))),
                "queueOffset": str(queue_offset),
            }
            if refusal is not None:
                text = f"the reply was not pushed to {shown(client_id)[1:-1]}: {refusal}"
                connection.reply(request.answer(ResponseCode.SYSTEM_ERROR, text, answer))
            else:
                connection.reply(request.answer(ext=answer))

        asker.ask(push, pushed, timeout_s=PUSH_TIMEOUT_S)

    def _check(self, ext: dict[str, str], body: bytes) -> None:
        """Refuse a reply that could not be stored, whether or not it will be."""
        topic = text_field(ext, "topic")
        config = self._topics.get(topic)
        if config is None:
            text = f"topic {shown(topic)[1:-1]} does not exist"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, text)
        if topic in TOPICS_CLOSED_TO_SENDERS or not config.is_writable:
            text = f"replies cannot be sent to the topic {topic}"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        queue_id = int32_field(ext, "queueId")
        if queue_id >= config.write_queue_nums:
            text = f"queue id {queue_id} of topic {topic} is illegal"
            raise BrokerError(ResponseCode.INVALID_PARAMETER, text)
        for name in ("sysFlag", "flag"):
            int32_field(ext, name, 0)
        int_field(ext, "bornTimestamp", 0)
        properties = ext.get("properties", "")
        if len(properties.encode()) > _PROPERTIES_BYTES_MAX or "\0" in properties:
            text = f"the properties hold a zero character, or over {_PROPERTIES_BYTES_MAX} bytes"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
        if len(body) > self._body_bytes_max:
            text = f"the body has {len(body)} bytes, the limit is {self._body_bytes_max}"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)

    def _store(
        self, ext: dict[str, str], body: bytes, connection: Connection
    ) -> tuple[str, int] | None:
        """Append the reply; return its id and offset, None if it waits for a file or is refused.

        The reply is already delivered by then, so a refusal is only logged.
        """
        pairs = decode_properties(ext.get("properties", "").encode())
        # Only the store sets the offsets of a message in light queues.
        pairs.pop(MULTI_OFFSET, None)
        properties = encode_properties(pairs)
        tail = self._api.queue_tail(ext["topic"], max(0, int(ext["queueId"])))
        message = (
            tail,
            body,
            properties,
            tags_code(pairs.get(TAGS)),
            int(ext.get("bornTimestamp", "0")),
            connection.host,
            int(ext.get("sysFlag", "0")) & _SYS_FLAG_CLIENT,
            int(ext.get("flag", "0")),
            0,
            0,
        )
        placed: list[tuple[int, int]] = []
        line = self._api.line
        try:
            if line.append([message], placed) is None:
                line.wait([message], appended=lambda _: None, refused=self._say_unstored)
                return None
        except StoreError as exc:
            self._say_unstored(exc)
            return None
        ((physical_offset, queue_offset),) = placed
        return encode_offset_id(self._api.store_host, physical_offset), queue_offset

    def _say_unstored(self, exc: StoreError) -> None:
        self._unstored.warning("a reply was delivered but is not in the log error=%s", exc)


def _refusal(outcome: RemotingCommand | RemotingError) -> str | None:
    """Return why a client has not received a push; None if it has."""
    if isinstance(outcome, RemotingError):
        return str(outcome)
    if outcome.code != ResponseCode.SUCCESS:
        return f"it answered {outcome.code}, {shown(outcome.remark or '')[1:-1]}"
    return None
