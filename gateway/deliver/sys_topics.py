"""``$SYS`` topics: figures about the gateway for clients that subscribe to them.

Owns: the names and values, when they are sent. Must not touch: the log: these messages are not in
it, because no client would read them later.
Spec: none; the names are mosquitto's, which dashboards know. [MQTT-4.7.2-1] keeps them away from
"#".

A new subscription is sent the values at once, as retained messages. Then they come every
``INTERVAL_MS``, at QoS 0.
"""

from __future__ import annotations

from typing import Final

from motelog import __version__
from motelog.core.clock import Clock
from motelog.core.message import MQTT_QOS, encode_properties
from motelog.gateway.deliver.outgoing import OutgoingMessage
from motelog.gateway.deliver.sender import Sender
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.topics import matches
from motelog.gateway.sessions.groups import Group
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import SubscriptionTree

SYS_PREFIX: Final = "$SYS/"
INTERVAL_MS: Final = 10_000

_PROPERTIES: Final = encode_properties({MQTT_QOS: "0"})


class SysTopics:
    """The ``$SYS`` topics of one gateway."""

    def __init__(
        self,
        subscriptions: SubscriptionTree[Session | Group],
        sender: Sender,
        metrics: GatewayMetrics,
        clock: Clock,
    ) -> None:
        self._subscriptions = subscriptions
        self._sender = sender
        self._metrics = metrics
        self._clock = clock
        self._version = f"motelog version {__version__}"
        self._began_ms = clock.monotonic_ms()
        self._next_ms = self._began_ms + INTERVAL_MS

    def values(self) -> dict[str, str]:
        """Return the current values by topic name."""
        metrics = self._metrics
        uptime_s = (self._clock.monotonic_ms() - self._began_ms) // 1000
        counts = {
            "clients/connected": metrics.sessions_now,
            "messages/received": metrics.publishes_received,
            "messages/sent": metrics.messages_delivered,
            "messages/stored": metrics.messages_appended,
            "publish/messages/dropped": metrics.messages_dropped_qos0,
            "retained messages/count": metrics.retained_messages_now,
            "subscriptions/count": metrics.subscriptions_now,
        }
        values = {"version": self._version, "uptime": f"{uptime_s} seconds"}
        values.update((name, str(count)) for name, count in counts.items())
        return {f"{SYS_PREFIX}broker/{name}": value for name, value in values.items()}

    def subscribed(self, session: Session, topic_filter: str) -> None:
        """Send the values whose names match a new subscription."""
        options = self._subscriptions.options(topic_filter, session)
        assert options is not None, "a session's filters are in the tree"
        for name, value in self.values().items():
            if matches(topic_filter, name):
                message = self._message(name, value)
                self._sender.send_one(session, options, message, 0, 0, replayed=topic_filter)

    def tick(self) -> None:
        """Send the values to all subscribers when they are due."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + INTERVAL_MS
        for name, value in self.values().items():
            receivers = self._subscriptions.match(name)
            if not receivers:
                continue
            message = self._message(name, value)
            for session, options in receivers.items():
                if isinstance(session, Session):  # no group's filter begins with "$"
                    self._sender.send_one(session, options, message, 0, 0)

    def _message(self, name: str, value: str) -> OutgoingMessage:
        topic, now_ms = name.encode(), self._clock.now_ms()
        record = (0, topic, b"", _PROPERTIES, value.encode(), 0, now_ms, 0)
        return OutgoingMessage(record, topic, now_ms)
