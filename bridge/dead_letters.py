"""Resending dead letters from a group's %DLQ% topic to its consumers.

Owns: resend_dead_letters, where a group's dead letters are, which properties a message keeps.
Must not touch: how a message becomes a dead letter (the broker). Progress is the group's committed
offset in its %DLQ% topic.
"""

from __future__ import annotations

from typing import Final

import trio

from motelog.bridge.client import NameServers
from motelog.bridge.errors import ClientError, RouteError
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.core.message import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRAN_MSG,
    TRANSACTION_ID,
    Message,
    MessageQueue,
)
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.tls import Tls
from motelog.core.topic_names import DLQ_PREFIX, RETRY_PREFIX

_PRODUCER_GROUP: Final = "motelog-dead-letters"
_BATCH_COUNT: Final = 32
_LAST_COMMIT_S_MAX: Final = 3.0
# The topic of a group's first dead letter is registered a moment later.
_KNOWN_WITHIN_S: Final = 2.0
# Properties of past delays, retries and transactions.
_OVER: Final = frozenset(
    {DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TIMER_OUT_MS, REAL_TOPIC, REAL_QID}
    | {RECONSUME_TIME, MAX_RECONSUME_TIMES, TRAN_MSG, PGROUP, TRANSACTION_ID}
)


async def resend_dead_letters(
    namesrv: NameServers,
    credentials: Credentials | None,
    tls: Tls | None,
    group: str,
    *,
    to_all_groups: bool,
    count_max: int | None,
    per_second: float,
    request_timeout_s: float,
) -> int:
    """Do what Admin.resend_dead_letters says."""
    async with (
        Producer(
            namesrv=namesrv, credentials=credentials, tls=tls, group=_PRODUCER_GROUP
        ) as producer,
        PullConsumer(
            namesrv=namesrv,
            credentials=credentials,
            tls=tls,
            group=group,
            request_timeout_s=request_timeout_s,
        ) as consumer,
    ):
        count = 0
        began = trio.current_time()
        for queue in await dead_letter_queues(consumer, group):
            (begin,) = (await consumer.begin_offsets([queue])).values()
            # New dead letters are left for the next call.
            (end,) = (await consumer.end_offsets([queue])).values()
            at = done = max(await consumer.committed(queue) or 0, begin)
            try:
                while at < end:
                    found = await consumer.pull(queue, at, count_max=_BATCH_COUNT)
                    for message in found.messages():
                        if message.queue_offset >= end or count == count_max:
                            return count
                        await trio.sleep_until(began + count / per_second)
                        await producer.send(copy_of(message, group, to_all_groups=to_all_groups))
                        at = message.queue_offset + 1
                        count += 1
                    if found.next_offset <= at and not found.records:
                        break
                    at = max(at, found.next_offset)
                    await consumer.commit({queue: at})
                    done = at
            finally:
                if at > done:
                    await _commit_at_last(consumer, queue, at)
    return count


async def dead_letter_queues(
    consumer: PullConsumer, group: str, *, wait_s: float = _KNOWN_WITHIN_S
) -> tuple[MessageQueue, ...]:
    """Return the queues with a group's dead letters; RouteError if none can be read."""
    topic = DLQ_PREFIX + group
    try:
        queues = await consumer.queues(topic, wait_s=wait_s)
    except RouteError:
        queues = ()
    if not queues:
        raise RouteError(
            f"there are no readable dead letters of a group {group!r}: no message has exceeded its "
            f"retries, or topic {topic} must first be made readable, as with old brokers",
            topic=topic,
        )
    return queues


async def _commit_at_last(consumer: PullConsumer, queue: MessageQueue, at: int) -> None:
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _LAST_COMMIT_S_MAX):
        await consumer.commit({queue: at})


def copy_of(message: StoredMessage, group: str, *, to_all_groups: bool) -> Message:
    """Return the message to send for a dead letter; ClientError if its body is damaged."""
    if message.is_compressed:
        raise ClientError(
            f"dead letter {message.message_id} of group {group!r} cannot be inflated: it is at "
            f"offset {message.queue_offset} of {message.topic}"
        )
    pairs = {name: text for name, text in message.properties.items() if name not in _OVER}
    topic = pairs.get(RETRY_TOPIC, "")
    if to_all_groups and topic:
        pairs = {k: v for k, v in pairs.items() if k not in (RETRY_TOPIC, ORIGIN_MESSAGE_ID)}
    else:
        topic = RETRY_PREFIX + group
    return Message(topic, message.body, properties=pairs, flag=message.flag)
