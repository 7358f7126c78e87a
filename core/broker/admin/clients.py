"""Requests that a running client answers: its state, its progress, consuming one message now.

Owns: request codes 223, 307 and 309, and how they are passed to clients. Must not touch: what a
client answers. Spec: RocketMQ AdminBrokerProcessor.callConsumer, Broker2Client.getConsumeStatus.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from motelog.core.broker.processors.shared import Shared
from motelog.core.errors import (
    BrokerError,
    RemotingDecodeError,
    RemotingError,
    RemotingTimeoutError,
    StoreError,
)
from motelog.core.message import MessageQueue, decode_offset_id
from motelog.core.remoting.fields import text_field
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    dumps,
    loads,
)
from motelog.core.remoting.server import Connection, Processor
from motelog.core.topic_names import shown

#: Tools wait for 5 s and more; a consumer may take some seconds for a message.
ASK_TIMEOUT_S: Final = 10.0
STATUS_TIMEOUT_S: Final = 5.0


class ClientAdmin:
    """Passes requests to consumers, and their answers back."""

    def __init__(self, shared: Shared) -> None:
        self._reader = shared.store.reader
        self._consumers = shared.tables.consumers
        self._cold = shared.api.cold_reads
        self._broker_name = shared.config.name

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._cold.guard(self._consume),
        }

    def _running_info(self, request: RemotingCommand, connection: Connection) -> None:
        ask = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ext=request.ext)
        self._hand_on(ask, request, connection)

    def _consume(self, request: RemotingCommand, connection: Connection, may_wait: bool) -> None:
        try:
            _, offset = decode_offset_id(text_field(request.ext, "msgId"))
        except ValueError as exc:
            text = f"invalid message id: {exc}"
            raise BrokerError(ResponseCode.INVALID_PARAMETER, text) from exc
        try:
            record = self._reader.record_at(offset, may_wait=may_wait)
        except StoreError as exc:
            text = f"there is no message at {offset}: {exc}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text) from exc
        ask = RemotingCommand(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            ext=request.ext | {"brokerName": self._broker_name},
            body=record,
        )
        self._hand_on(ask, request, connection)

    def _hand_on(
        self, ask: RemotingCommand, request: RemotingCommand, connection: Connection
    ) -> None:
        """Pass the request to the consumer that it names, and return the answer."""
        name = text_field(request.ext, "consumerGroup")
        client_id = text_field(request.ext, "clientId")
        group = self._consumers.get(name)
        member = None if group is None else group.members.get(client_id)
        if member is None:
            text = f"The Consumer <{shown(name)[1:-1]}> <{shown(client_id)[1:-1]}> not online"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)

        def answered(outcome: RemotingCommand | RemotingError) -> None:
            if isinstance(outcome, RemotingCommand):
                answer = request.answer(outcome.code, outcome.remark, outcome.ext, outcome.body)
            else:
                is_late = isinstance(outcome, RemotingTimeoutError)
                code = ResponseCode.CONSUME_MSG_TIMEOUT if is_late else ResponseCode.SYSTEM_ERROR
                text = f"consumer <{shown(name)[1:-1]}> <{shown(client_id)[1:-1]}>: {outcome}"
                answer = request.answer(code, text)
            connection.reply(answer)

        member.owner.ask(ask, answered, timeout_s=ASK_TIMEOUT_S)

    def _status(self, request: RemotingCommand, connection: Connection) -> None:
        """Ask all members of a group, or one, how far they have consumed a topic."""
        name, topic = text_field(request.ext, "group"), text_field(request.ext, "topic")
        wanted = request.ext.get("clientAddr")
        group = self._consumers.get(name)
        members = {} if group is None else group.members
        chosen = [m for m in members.values() if not wanted or m.client_id == wanted]
        if not chosen:
            text = f"No Any Consumer online in the consumer group: [{shown(name)[1:-1]}]"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        found: dict[str, Any] = {}
        left = {member.client_id for member in chosen}

        def told(client_id: str, outcome: RemotingCommand | RemotingError) -> None:
            table = _queue_table(outcome)
            if table is not None:
                found[client_id] = table
            left.discard(client_id)
            if not left:
                # Members that do not answer are left out, as in RocketMQ.
                connection.reply(request.answer(body=dumps({"consumerTable": found})))

        for member in chosen:
            member.owner.ask(
                RemotingCommand(
                    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext={"topic": topic, "group": name}
                ),
                partial(told, member.client_id),
                timeout_s=STATUS_TIMEOUT_S,
            )


def _queue_table(
    outcome: RemotingCommand | RemotingError,
) -> dict[MessageQueue, int] | None:
    """Return the offsets by queue from a client's answer; None if it contains none."""
    if isinstance(outcome, RemotingError) or outcome.code != ResponseCode.SUCCESS:
        return None
    try:
        body = loads(outcome.body)
    except RemotingDecodeError:
        return None
    table = body.get("messageQueueTable") if isinstance(body, dict) else None
    try:
        return {
            _queue(key): msgspec.convert(offset, int) for key, offset in dict(table or {}).items()
        }
    except (msgspec.MsgspecError, TypeError, ValueError):
        return None


class _QueueJson(msgspec.Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: int


def _queue(key: str) -> MessageQueue:
    """Return the queue that is the key of an object; ``loads`` returns such a key as text."""
    queue = msgspec.json.decode(key, type=_QueueJson)
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)
