"""The admin API's path of one message: its publisher, its place, and who has received it.

Owns: combining what brokers and gateway know of one message. Must not touch: the wire, cursors (it
uses ``queues`` and ``asking``).
Invariant: an answer lists a bounded number of groups and receivers, and counts the others.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from motelog.bridge.admin import Admin
from motelog.bridge.pull import PullConsumer
from motelog.console.api import Endpoint
from motelog.console.asking import RefusedError
from motelog.console.gateway import NO_SESSION, GatewayApi
from motelog.console.queue_answers import Message
from motelog.console.queues import QueueApi, shown, view
from motelog.core.addresses import format_address
from motelog.core.message import MQTT_CLIENT_ID, MessageQueue
from motelog.core.records.decode import StoredMessage
from motelog.gateway.operator.answers import MessageReceiver

#: Consumer groups in one answer: each takes a request.
GROUPS_MAX: Final = 20


class MessagePathQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(min_length=1, description="The message's offset id.")]
    client_id: Annotated[
        str,
        msgspec.Meta(description="Only this session, connected or not; empty: all connected ones."),
    ] = ""


class GroupAtMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group's progress in the message's queue; "passed": it has consumed the message."""

    group: str
    committed_offset: int
    place: Literal["passed", "waits"]


class MessagePath(msgspec.Struct, frozen=True, kw_only=True):
    """A message from its publisher to its receivers.

    ``publisher`` is the MQTT client that published it, null for a native producer. ``groups`` are
    consumer groups that have committed an offset in its topic, ``more_groups`` counts the others.
    ``receivers`` are MQTT clients and shared subscriptions; null if this server has no gateway.
    """

    message: Message
    publisher: str | None
    mqtt_name: str
    groups: list[GroupAtMessage]
    more_groups: int
    receivers: list[MessageReceiver] | None
    more_receivers: int


class MessagePathApi:
    """Asks brokers for the message and its groups, and this server's gateway for the rest."""

    def __init__(self, gateway: GatewayApi, queues: QueueApi) -> None:
        self._gateway = gateway
        self._queues = queues

    def endpoints(self) -> list[Endpoint]:
        path = "/messages/path"
        text = "The path of a message: its publisher, its place, and who has received it"
        return [Endpoint(path, text, MessagePathQuery, MessagePath, self.message_path)]

    async def message_path(self, query: MessagePathQuery) -> MessagePath:
        async with self._queues.consumer() as consumer:
            message = await view(consumer, query.id)
            queue = await _queue_of(consumer, message)
        async with self._queues.admin() as admin:
            names = await admin.groups_of(message.topic)
            groups = [await _group(admin, name, queue, message) for name in names[:GROUPS_MAX]]
        name = message.mqtt_topic
        receivers, more = None, 0
        gateway = self._gateway.gateway
        if gateway is not None:
            topic, offset = message.topic, message.queue_offset
            called = _called(queue)
            found = await gateway.list_receivers(name, topic, called, offset, query.client_id)
            if found is None:
                raise RefusedError(NO_SESSION, 404)
            receivers, more = found.receivers, found.more
        return MessagePath(
            message=shown(message, queue.broker_name),
            publisher=message.properties.get(MQTT_CLIENT_ID),
            mqtt_name=name,
            groups=[one for one in groups if one is not None],
            more_groups=max(len(names) - GROUPS_MAX, 0),
            receivers=receivers,
            more_receivers=more,
        )


async def _queue_of(consumer: PullConsumer, message: StoredMessage) -> MessageQueue:
    """Return the queue of a message: on the broker with its address, or else the only broker."""
    address = format_address(*message.store_host)
    queues = [
        queue
        for queue in await consumer.queues(message.topic, wait_s=0)
        if queue.queue_id == message.queue_id
    ]
    for queue in queues:
        if len(queues) == 1 or await consumer.broker_address(queue) == address:
            return queue
    raise RefusedError(f"no broker of this topic has the address {address}", 404)


def _called(queue: MessageQueue) -> list[str]:
    """Return a gateway's names for a queue: of a broker in its process, and of one elsewhere."""
    topic, broker, queue_id = queue.topic, queue.broker_name, queue.queue_id
    return [f"{topic}/{queue_id}", f"{topic}/{broker}/{queue_id}"]


async def _group(
    admin: Admin, group: str, queue: MessageQueue, message: StoredMessage
) -> GroupAtMessage | None:
    """Return a group's progress; None if it has committed no offset in the queue."""
    for one in await admin.progress(group, queue.topic):
        if one.queue == queue and one.committed_offset >= 0:
            is_past = message.queue_offset < one.committed_offset
            place: Literal["passed", "waits"] = "passed" if is_past else "waits"
            return GroupAtMessage(group=group, committed_offset=one.committed_offset, place=place)
    return None
