"""A Locust user that is an MQTT client: connects, publishes, subscribes, measures.

Owns: MqttLoadUser and the client behind it. Must not touch: scenarios (what users do).
Requests are reported as ``connect``, ``disconnect:REASON`` (a failure), ``publish:QOS:TEMPLATE``
(until acknowledged), ``subscribe:QOS:TEMPLATE`` and ``deliver:TEMPLATE`` (from publish to arrival,
on one machine's clock), never per topic. A user that loses its connection reconnects and continues.
Importing locust patches the standard library for gevent, so only locust itself may import this
module.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import gevent.monkey
import paho.mqtt.client as paho
from gevent.event import Event
from locust.contrib.mqtt import MqttClient, MqttUser
from locust.env import Environment
from locust.exception import StopUser
from paho.mqtt.client import DisconnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from motelog.core.addresses import parse_address
from motelog.loadtest.topic_names import TopicNames

DEFAULT_ADDRESS: Final = "127.0.0.1:1883"
CONNECT_TIMEOUT_S: Final = 30.0
ACKNOWLEDGE_TIMEOUT_S: Final = 30.0
PACKETS_PER_TURN: Final = 100
#: Reason for a connection that ended without a DISCONNECT, as always in MQTT 3.1.1.
CONNECTION_LOST: Final = "connection lost"
KEEP_ALIVE_TIMEOUT: Final = ReasonCode(PacketTypes.DISCONNECT, "Keep alive timeout")
_TIMESTAMP_BYTES: Final = 8
_poll: Final = gevent.monkey.get_original("select", "poll")


class MqttLoadClient(MqttClient):
    """Locust's paho client, reporting under topic templates and with connect times.

    It has its own callbacks: locust's use the first version of paho's API, whose signatures differ
    for MQTT 3.1.1 and 5. A callback that fails ends paho's loop, and with it the user.
    """

    def __init__(self, *, environment: Environment, **options: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, environment=environment, **options)
        self.names = TopicNames(())
        self.connected = Event()
        self._connect_begun_at = time.time()
        self._filters: list[tuple[str, int]] = []
        self.on_connect = self._report_connect
        self.on_connect_fail = self._report_no_connection
        self.on_disconnect = self._report_disconnect
        self.on_subscribe = self._report_subscribe
        self.on_publish = self._report_publish
        self.on_message = self._report_delivery

    def subscribe_always(self, topic_filter: str, qos: int) -> None:
        """Subscribe now and after each reconnect, since sessions end with their connection."""
        self._filters.append((topic_filter, qos))
        self.subscribe(topic_filter, qos)

    def reconnect(self) -> MQTTErrorCode:
        self._connect_begun_at = time.time()
        return super().reconnect()

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Read up to PACKETS_PER_TURN waiting packets before other users run.

        paho reads one packet per turn of its loop. In a process with hundreds of users a subscriber
        would fall behind by seconds, and its delivery times would be those of the load generator.
        """
        for _ in range(PACKETS_PER_TURN):
            code = super().loop_read(max_packets)
            if code != MQTTErrorCode.MQTT_ERR_SUCCESS or not self._is_readable():
                break
        return code

    def _is_readable(self) -> bool:
        sock = self.socket()
        if sock is None:
            return False
        poll = _poll()  # the unpatched one: it must not give up the turn
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))

    def fire(self, name: str, *, began_at: float, size: int, error: Exception | None) -> None:
        """Report one request that ended now."""
        self.environment.events.request.fire(  # type: ignore[no-untyped-call]  # locust's
            request_type="MQTT",
            name=name,
            response_time=(time.time() - began_at) * 1000,
            response_length=size,
            exception=error,
            context={"client_id": self.client_id},
        )

    def _generate_event_name(self, event_type: str, qos: int, topic: str) -> str:
        return f"{event_type}:{qos}:{self.names.name(topic)}"

    def _report_connect(
        self, client: Any, userdata: Any, flags: Any, reason: ReasonCode, properties: Any
    ) -> None:
        error = ConnectionError(str(reason)) if reason.is_failure else None
        self.fire("connect", began_at=self._connect_begun_at, size=0, error=error)
        if error is None:
            self.connected.set()
            for topic_filter, qos in self._filters:
                self.subscribe(topic_filter, qos)

    def _report_disconnect(
        self,
        client: Any,
        userdata: Any,
        flags: DisconnectFlags,
        reason: ReasonCode,
        properties: Any,
    ) -> None:
        """Report, by its reason, the end of a connection that we did not close."""
        was_connected = self.connected.is_set()
        self.connected.clear()
        is_told = flags.is_disconnect_packet_from_server
        if was_connected and (is_told or reason.is_failure):
            name = str(reason) if is_told or reason == KEEP_ALIVE_TIMEOUT else CONNECTION_LOST
            self.fire(
                f"disconnect:{name}", began_at=time.time(), size=0, error=ConnectionError(name)
            )
        lost, self._subscribe_requests = self._subscribe_requests, {}
        for qos, topic, began_at in lost.values():
            name = self._generate_event_name("subscribe", qos, topic)
            self.fire(name, began_at=began_at, size=0, error=ConnectionError("no SUBACK came"))

    def _report_no_connection(self, client: Any, userdata: Any) -> None:
        """Report a failed connection attempt; paho tries again by itself."""
        error = ConnectionError("the broker cannot be reached")
        self.fire("connect", began_at=self._connect_begun_at, size=0, error=error)

    def _report_subscribe(
        self, client: Any, userdata: Any, mid: int, reasons: list[ReasonCode], properties: Any
    ) -> None:
        qos, topic, began_at = self._subscribe_requests.pop(mid)
        refusals = ", ".join(str(reason) for reason in reasons if reason.is_failure)
        name = self._generate_event_name("subscribe", qos, topic)
        error = PermissionError(refusals) if refusals else None
        self.fire(name, began_at=began_at, size=0, error=error)

    def _report_publish(
        self, client: Any, userdata: Any, mid: int, reason: ReasonCode, properties: Any
    ) -> None:
        request = self._publish_requests.pop(mid, None)
        if (
            request is not None
        ):  # else it was sent while the connection was lost, and already counted as a failure
            name = self._generate_event_name("publish", request.qos, request.topic)
            error = PermissionError(str(reason)) if reason.is_failure else None
            self.fire(name, began_at=request.start_time, size=request.payload_size, error=error)

    def _report_delivery(self, client: Any, userdata: Any, message: paho.MQTTMessage) -> None:
        if len(message.payload) >= _TIMESTAMP_BYTES:
            began_at = int.from_bytes(message.payload[:_TIMESTAMP_BYTES], "big") / 1e9
            name = f"deliver:{self.names.name(message.topic)}"
            self.fire(name, began_at=began_at, size=len(message.payload), error=None)


class MqttLoadUser(MqttUser):
    """One simulated MQTT client; subclass it, name the topics, write tasks.

    Locust's ``--host`` is the broker's HOST:PORT. ``topic_templates`` are the names under which
    requests are reported.
    """

    abstract = True
    client_cls = MqttLoadClient
    # paho's own loop uses select(), which stops working near 340 connections without any error.
    use_loop_selectors = True
    protocol = MQTTProtocolVersion.MQTTv5
    topic_templates: ClassVar[Sequence[str]] = ()
    client: MqttLoadClient

    def __init__(self, environment: Environment) -> None:
        address = (environment.host or DEFAULT_ADDRESS).removeprefix("mqtt://")
        self.host, self.port = parse_address(address, port_min=1)
        super().__init__(environment)
        self.client.names = TopicNames(self.topic_templates)

    def on_start(self) -> None:
        """Wait for the connection; without one the client ends here, counted as a failure."""
        if not self.client.connected.wait(CONNECT_TIMEOUT_S):
            error = TimeoutError(f"no CONNACK within {CONNECT_TIMEOUT_S:g} s")
            self.client.fire("connect", began_at=time.time(), size=0, error=error)
            raise StopUser

    def on_stop(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()

    def publish(self, topic: str, body: bytes, *, qos: int = 1) -> None:
        """Publish a timestamp and ``body``; with QoS above 0 return when it is acknowledged.

        Without a connection this waits until paho has reconnected.
        """
        name = self.client._generate_event_name("publish", qos, topic)
        began_at = time.time()
        if not self.client.connected.wait(ACKNOWLEDGE_TIMEOUT_S):
            error = TimeoutError(f"no connection within {ACKNOWLEDGE_TIMEOUT_S:g} s")
            self.client.fire(name, began_at=began_at, size=0, error=error)
            return
        began_at = time.time()
        payload = time.time_ns().to_bytes(_TIMESTAMP_BYTES, "big") + body
        sent = self.client.publish(topic, payload, qos)
        if qos == 0 or sent.rc != paho.MQTT_ERR_SUCCESS:
            return  # a refusal is reported by locust's client
        sent.wait_for_publish(ACKNOWLEDGE_TIMEOUT_S)
        if not sent.is_published():
            error = TimeoutError(f"not acknowledged within {ACKNOWLEDGE_TIMEOUT_S:g} s")
            self.client.fire(name, began_at=began_at, size=len(payload), error=error)
