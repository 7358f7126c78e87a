"""Sends failed messages back to the broker, which delivers them again later.

Owns: SendBack: request code 36, and sending to the group's retry topic if that fails.
Must not touch: which messages failed.
After ``retries_max`` retries, or the number in the group's settings if that is None, the broker
makes the message a dead letter (topic %DLQ%GROUP).
Spec: RocketMQ DefaultMQPushConsumerImpl.sendMessageBack, ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import logging
from typing import Final

from motelog.bridge.client import check
from motelog.bridge.producer import Producer
from motelog.bridge.queue_requests import QueueRequests
from motelog.core.errors import MotelogError
from motelog.core.message import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    Message,
    MessageQueue,
)
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.frames import RequestCode
from motelog.core.topic_names import RETRY_PREFIX

logger = logging.getLogger(__name__)

# As in Java's client: the first retry comes after level 3 (10 s), later ones after higher levels.
_FIRST_LEVEL: Final = 3
# The previous delay and limit no longer apply; the broker adds the rest itself.
_OVER: Final = frozenset(
    {
        MAX_RECONSUME_TIMES,
        REAL_TOPIC,
        REAL_QID,
        TIMER_DELAY_MS,
        TIMER_DELAY_SEC,
        TIMER_DELIVER_MS,
        TIMER_OUT_MS,
    }
)


class SendBack:
    """Sends messages of one group back."""

    def __init__(
        self, requests: QueueRequests, producer: Producer, *, group: str, retries_max: int | None
    ) -> None:
        self._requests = requests
        self._producer = producer
        self._group = group
        self._retries_max = retries_max

    async def give_back(self, queue: MessageQueue, message: StoredMessage, level: int = 0) -> bool:
        """Return whether a broker accepted the message; level 0: by its number of failures."""
        ext = {
            "group": self._group,
            "originTopic": message.topic,
            "offset": str(message.physical_offset),
            "delayLevel": str(level),
            "originMsgId": message.message_id,
            "unitMode": "false",
            "bname": queue.broker_name,
        }
        if self._retries_max is not None:
            ext["maxReconsumeTimes"] = str(self._retries_max)
        try:
            check(await self._requests.ask(queue, RequestCode.CONSUMER_SEND_MSG_BACK, ext))
            return True
        except MotelogError as exc:
            logger.info(
                "a broker did not accept a message back; it is sent to the retry topic queue=%s "
                "offset=%d error=%s",
                queue,
                message.queue_offset,
                exc,
            )
        return await self.send(queue, message)

    async def send(self, queue: MessageQueue, message: StoredMessage) -> bool:
        """Send the message to the group's retry topic at any broker; False if none accepts it."""
        times = message.reconsume_times
        pairs = {name: text for name, text in message.properties.items() if name not in _OVER}
        pairs.setdefault(ORIGIN_MESSAGE_ID, message.offset_id)
        pairs[RETRY_TOPIC] = message.topic
        pairs[RECONSUME_TIME] = str(times + 1)
        if self._retries_max is not None:
            pairs[MAX_RECONSUME_TIMES] = str(self._retries_max)
        pairs[DELAY] = str(_FIRST_LEVEL + times)
        copy = Message(
            RETRY_PREFIX + self._group, message.body, properties=pairs, flag=message.flag
        )
        try:
            await self._producer.send(copy)
        except MotelogError as exc:
            logger.warning(
                "no broker accepted a failed message; it is handled again here queue=%s offset=%d "
                "error=%s",
                queue,
                message.queue_offset,
                exc,
            )
            return False
        return True
