"""Publishes will messages for clients that have gone.

Owns: the append of a will. Must not touch: when a will is due (``connect``).
Spec: MQTT 5.0 sections 3.1.2.5 and 3.1.3.2.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from motelog.core.clock import Clock
from motelog.core.errors import MotelogError
from motelog.core.message import PROPERTIES_BYTES_MAX, encode_host
from motelog.gateway.access.access import Access
from motelog.gateway.access.rights import Who
from motelog.gateway.log.log_port import After, LogPort
from motelog.gateway.mapping.message_properties import publisher_properties
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.errors import TopicNameError
from motelog.gateway.publish.retaining import RETAIN_TEXT, Retaining
from motelog.gateway.publish.routes import QOS_TEXTS, Routes
from motelog.gateway.state.retained_unread import Written
from motelog.gateway.state.stored import StoredWill
from motelog.gateway.turn import Message

logger = logging.getLogger(__name__)

#: The origin of wills: the gateway publishes them, often long after the client has gone.
_HOST: Final = encode_host("127.0.0.1", 0)


class Wills:
    """Publishes the wills of one gateway's clients."""

    def __init__(
        self,
        log: LogPort,
        routes: Routes,
        retaining: Retaining,
        metrics: GatewayMetrics,
        *,
        after: After,
        clock: Clock,
        access: Access | None = None,
    ) -> None:
        self._access = access
        self._log_port = log
        self._routes = routes
        self._retaining = retaining
        self._metrics = metrics
        self._after = after
        self._clock = clock

    def publish(self, whose: Who, will: StoredWill) -> None:
        """Append a will. A will that the log refuses is lost, and a line is logged.

        So is a will that its client no longer has a right to publish. A Message Expiry Interval
        begins now, as for a publish. [MQTT-3.1.3-9]
        """
        client_id = whose.client_id
        acl = None if self._access is None else self._access.acl
        if acl is not None and not will.is_granted:
            may_retain = not will.retain or acl.may_retain(whose, will.topic)
            if acl.publish_qos(whose, will.topic) < will.qos or not may_retain:
                self._metrics.wills_not_allowed += 1
                self._lost(client_id, will, "the client has no right to publish it")
                return
        try:
            route = self._routes.resolve(
                will.topic.encode(), client_id=client_id, user_name=will.user_name
            )
        except TopicNameError as exc:
            self._lost(client_id, will, str(exc))
            return
        text = route.text + QOS_TEXTS[will.qos] + publisher_properties(client_id) + will.properties
        if will.retain:
            text += RETAIN_TEXT
        if len(text) > PROPERTIES_BYTES_MAX:
            self._lost(client_id, will, "its topic name and properties are too long")
            return
        message = (
            route.queue, will.payload, text, route.tags_code, self._clock.now_ms(), _HOST,
            0, 0, 0, 0,
        )  # fmt: skip
        written = self._retain(client_id, will, message) if will.retain else None
        append_apart = self._log_port.append_apart
        if written is None:
            ticket = self._log_port.append([message])
        elif append_apart is None:
            ticket = written.ticket = self._log_port.append([written.record, message])
        else:
            written.ticket = self._log_port.append([written.record])
            [ticket] = append_apart([message], {0: (written.ticket,)})
        self._after(ticket, partial(self._appended, client_id, will))

    def _appended(self, client_id: str, will: StoredWill, error: MotelogError | None) -> None:
        if error is not None:
            self._lost(client_id, will, str(error))
        else:
            self._metrics.wills_published += 1
            self._metrics.messages_appended += 1

    def _retain(self, client_id: str, will: StoredWill, message: Message) -> Written | None:
        name = will.topic.encode()
        if self._retaining.has_room(client_id, name, message):
            return self._retaining.write(name, message)
        self._metrics.retained_refused += 1
        logger.warning(
            "a will message is not retained: there are as many retained messages as"
            " gateway.retained_count_max, retained_client_count_max or retained_bytes_max allows"
            " client_id=%r topic=%r",
            client_id,
            will.topic,
        )
        return None

    @staticmethod
    def _lost(client_id: str, will: StoredWill, why: str) -> None:
        logger.error(
            "a will message is lost: its subscribers do not hear that the client has gone"
            " client_id=%r topic=%r why=%s",
            client_id,
            will.topic,
            why,
        )
