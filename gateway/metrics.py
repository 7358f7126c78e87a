"""The gateway's counters: plain integers that the hot path increments and a scrape reads.

Owns: their names and meanings, how /metrics shows them.
Must not touch: the exposition format (``core.metrics``).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from motelog.core.metrics import (
    Histogram,
    Shown,
    counted,
    counter,
    gauge,
    histogram,
    table_of,
)
from motelog.gateway.mqtt.packet_types import PacketType

#: Gauges with the same value at all gateways of one log; the other gauges can be summed.
SHARED: Final = frozenset({"retained_messages_now", "retained_bytes_now"})
#: From tens of microseconds, for an append on this machine, to the wait for an unreachable broker.
ACKNOWLEDGE_US_BOUNDS: Final = (
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
)  # fmt: skip
#: The log keeps milliseconds.
DELIVER_MS_BOUNDS: Final = (
    0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000,
)  # fmt: skip

#: The name of the listener of ``gateway.listen``; the others have names of their own.
PLAIN: Final = "tcp"

_DROPPED: Final = "Messages that a client with a matching subscription did not get."
_ACCESS_REFUSED: Final = "Requests of clients that had no right to them."
_LOGINS: Final = {
    (authenticator, outcome): (
        f"logins_{authenticator}_{outcome}",
        counter("logins", "Logins.", authenticator=authenticator, outcome=outcome),
    )
    for authenticator in ("anonymous", "certificate", "http", "jwt", "password", "scram", "none")
    for outcome in ("accepted", "wrong", "refused", "backed_off", "busy")
}


@dataclass(slots=True)
class GatewayMetrics:
    """Counters since the start; the ``*_now`` fields are gauges."""

    connections_opened: int = counted(counter("connections_opened", "Connections accepted."))
    connections_closed: int = counted(counter("connections_closed", "Connections that have ended."))
    connections_refused: int = counted(
        counter("connections_refused", "Connections refused before or at CONNECT.")
    )
    connections_shed: int = counted(
        counter("connections_shed", "Connections ended because all together held too much memory.")
    )
    connections_held_bytes_now: int = counted(
        gauge("connections_held_bytes", "Bytes of waiting output and of incomplete packets.")
    )
    sessions_now: int = counted(gauge("sessions", "Sessions whose client is connected."))
    sessions_taken_over: int = counted(
        counter("sessions_taken_over", "Connections ended by a newer one of the same client.")
    )
    sessions_resumed: int = counted(
        counter("sessions_resumed", "Stored sessions whose client has come back.")
    )
    sessions_expired: int = counted(
        counter("sessions_expired", "Stored sessions whose expiry interval is over.")
    )
    wills_published: int = counted(counter("wills_published", "Wills that were published."))
    subscriptions_now: int = counted(gauge("subscriptions", "Subscriptions of connected clients."))
    packets_malformed: int = counted(
        counter("packets_malformed", "Packets that break the protocol; each ended its connection.")
    )
    received_bytes: int = counted(counter("received_bytes", "Bytes of whole packets received."))
    publishes_received: int = counted(
        counter("publishes_received", "Messages from clients that were handed to the log.")
    )
    publishes_refused: int = counted(
        counter("publishes_refused", "Publishes that were not stored; their clients were told.")
    )
    messages_appended: int = counted(
        counter("messages_appended", "Messages that the log has taken.")
    )
    messages_delivered: int = counted(
        counter("messages_delivered", "Messages sent to clients, counted for each client.")
    )
    messages_dropped_qos0: int = counted(counter("messages_dropped", _DROPPED, reason="slow"))
    messages_dropped_too_large: int = counted(
        counter("messages_dropped", _DROPPED, reason="too_large")
    )
    messages_dropped_quota: int = counted(counter("messages_dropped", _DROPPED, reason="quota"))
    messages_dropped_away: int = counted(counter("messages_dropped", _DROPPED, reason="away"))
    messages_expired: int = counted(counter("messages_dropped", _DROPPED, reason="expired"))
    messages_lost_to_retention: int = counted(
        counter("messages_dropped", _DROPPED, reason="retention")
    )
    messages_undeliverable: int = counted(
        counter("messages_dropped", _DROPPED, reason="not_for_mqtt")
    )
    properties_left_out: int = counted(
        counter(
            "properties_left_out",
            "MQTT 5 properties of native producers that no device may send: the messages went"
            " without them.",
        )
    )
    cursors_dropped: int = counted(
        counter(
            "cursors_dropped",
            "Places in queues that are gone, of sessions and shared subscriptions that came back.",
        )
    )
    receivers_lagging_now: int = counted(
        gauge("receivers_lagging", "Sessions and groups that read behind the live position.")
    )
    retained_messages_now: int = counted(gauge("retained_messages", "Retained messages."))
    retained_bytes_now: int = counted(
        gauge("retained_bytes", "Bytes of retained messages: topic names, payloads, properties.")
    )
    retained_refused: int = counted(
        counter("retained_refused", "Publishes that were not retained because of a limit.")
    )
    publishes_not_allowed: int = counted(
        counter("access_refused", _ACCESS_REFUSED, action="publish")
    )
    subscriptions_not_allowed: int = counted(
        counter("access_refused", _ACCESS_REFUSED, action="subscribe")
    )
    wills_not_allowed: int = counted(counter("access_refused", _ACCESS_REFUSED, action="will"))
    sessions_not_owned: int = counted(counter("access_refused", _ACCESS_REFUSED, action="session"))
    #: Logins by (authenticator, outcome).
    logins: dict[tuple[str, str], int] = field(default_factory=lambda: dict.fromkeys(_LOGINS, 0))
    #: Names of the listeners by number.
    listeners: tuple[str, ...] = (PLAIN,)
    #: Connected clients by listener number and protocol level.
    clients: list[list[int]] = field(init=False)
    #: Received packets by first byte, which holds type and QoS.
    received_packets: array[int] = field(default_factory=lambda: array("Q", bytes(8 * 256)))
    #: Sent packets by first byte, and as last item their bytes. The reactor counts here.
    sent_packets: array[int] = field(default_factory=lambda: array("Q", bytes(8 * 257)))
    acknowledge_us: Histogram = field(default_factory=lambda: Histogram(ACKNOWLEDGE_US_BOUNDS))
    deliver_ms: Histogram = field(default_factory=lambda: Histogram(DELIVER_MS_BOUNDS))

    def __post_init__(self) -> None:
        self.clients = [[0] * 6 for _ in self.listeners]

    def count_left_out(self, count: int) -> None:
        self.properties_left_out += count

    def count_login(self, authenticator: str, outcome: str) -> None:
        self.logins[authenticator, outcome] += 1

    def sample(self) -> dict[str, int]:
        """Return every counter by its name in GATEWAY_METRICS."""
        sample: dict[str, int] = {name: getattr(self, name) for name in _COUNTED}
        for key, (name, _) in _LOGINS.items():
            sample[name] = self.logins[key]
        for listener, by_level in zip(self.listeners, self.clients, strict=True):
            for level, protocol in _PROTOCOLS.items():
                sample[_clients_name(listener, protocol)] = by_level[level]
        for packets, shown in ((self.received_packets, _RECEIVED), (self.sent_packets, _SENT)):
            for name, (_, first_bytes) in shown.items():
                sample[name] = sum(packets[first_byte] for first_byte in first_bytes)
        sample["sent_bytes"] = self.sent_packets[-1]
        return sample

    def histograms(self) -> dict[str, list[float]]:
        """Return the distributions by their names in GATEWAY_METRICS."""
        return {
            "acknowledge_us": self.acknowledge_us.sample(),
            "deliver_ms": self.deliver_ms.sample(),
        }


_FROM_SERVERS: Final = frozenset(
    (PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP)
)
_FROM_CLIENTS: Final = frozenset(
    (PacketType.CONNECT, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.PINGREQ)
)
_CLIENTS: Final = (
    "Connected clients; tcp is the listener of gateway.listen, the others have the names of their"
    " tables."
)
_PROTOCOLS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}


def clients_table(listeners: Sequence[str]) -> dict[str, Shown]:
    """Return how /metrics shows the clients of these listeners."""
    return {
        _clients_name(listener, protocol): gauge(
            "clients", _CLIENTS, listener=listener, protocol=protocol
        )
        for listener in listeners
        for protocol in _PROTOCOLS.values()
    }


def _clients_name(listener: str, protocol: str) -> str:
    return f"clients_{listener}_{protocol}_now"


def _packets(
    family: str, text: str, without: frozenset[PacketType]
) -> dict[str, tuple[Shown, list[int]]]:
    """Return the packet counters by name: how each is shown, and which first bytes it sums."""
    shown: dict[str, tuple[Shown, list[int]]] = {}
    for kind in PacketType:
        if kind in without:
            continue
        qualities = (0, 1, 2) if kind is PacketType.PUBLISH else (None,)
        for qos in qualities:
            labels = {"type": kind.name.lower(), "qos": "" if qos is None else str(qos)}
            name = f"{family}_{labels['type']}{labels['qos']}"
            first_bytes = [
                kind << 4 | flags for flags in range(16) if qos is None or flags >> 1 & 3 == qos
            ]
            shown[name] = counter(family, text, **labels), first_bytes
    return shown


_COUNTED: Final = table_of(GatewayMetrics)
_RECEIVED: Final = _packets(
    "received_packets", "Packets from clients, if their length is valid.", _FROM_SERVERS
)
_SENT: Final = _packets(
    "sent_packets", "Packets to clients, as they are queued on their connections.", _FROM_CLIENTS
)

#: How /metrics shows what ``GatewayMetrics.sample`` returns, if there is only the plain listener.
GATEWAY_METRICS: Final[dict[str, Shown]] = {
    **_COUNTED,
    **clients_table((PLAIN,)),
    **dict(_LOGINS.values()),
    **{name: shown for name, (shown, _) in (_RECEIVED | _SENT).items()},
    "sent_bytes": counter("sent_bytes", "Bytes of packets queued on connections of clients."),
    "acknowledge_us": histogram(
        "publish_acknowledge_seconds",
        "Time from reading a PUBLISH to its PUBACK or PUBREC.",
        ACKNOWLEDGE_US_BOUNDS,
        unit=1e-6,
    ),
    "deliver_ms": histogram(
        "deliver_seconds",
        "Time from the append of a message to its delivery to connected clients.",
        DELIVER_MS_BOUNDS,
        unit=1e-3,
    ),
}
