"""One network connection of a client: its output, and the terms of its CONNECT.

Owns: its number, its topic aliases, the CONNECT's terms for packets. Must not touch: sockets
(``output``). It exists from the accepted socket to its end; it has no session until CONNECT.
Invariants: nothing here grows with the number of messages; aliases are bounded by what the gateway
grants.
Spec: MQTT 5.0 sections 3.1 and 3.3.2.3.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from motelog.gateway.mqtt.errors import PacketTooLargeError, ProtocolViolationError, TopicAliasError
from motelog.gateway.sessions.output import Output

if TYPE_CHECKING:
    from motelog.gateway.sessions.session import Session

_NONE: Final[dict[bytes, int]] = {}
#: Topic names of one connection whose rights are cached.
PUBLISHABLE_MAX: Final = 1024
#: The largest MQTT packet (section 2.1.4).
PACKET_BYTES_LIMIT: Final = 268_435_460


class Connection:
    """Small when idle, since a process has a million: rarely used parts are created on demand.

    Its output identifies it by ``number``, which is unique among the gateway's open connections.
    ``version`` is 3, 4 or 5, and 0 until CONNECT. ``packet_bytes_max`` is the largest packet that
    the client accepts, ``topic_alias_max`` how many topic aliases the gateway may set.
    ``wants_reasons``: it has not turned Reason Strings off (Request Problem Information).
    """

    __slots__ = (
        "_aliases",
        "host",
        "number",
        "origin",
        "output",
        "packet_bytes_max",
        "publishable",
        "session",
        "topic_alias_max",
        "unacknowledged",
        "version",
        "wants_reasons",
    )

    def __init__(
        self,
        output: Output,
        number: int,
        *,
        version: int = 0,
        packet_bytes_max: int = PACKET_BYTES_LIMIT,
    ) -> None:
        self.output = output
        self.number = number
        self.version = version
        self.wants_reasons = True
        self.packet_bytes_max = packet_bytes_max
        #: Set only by ``Session.attach`` and ``Session.detach``.
        self.session: Session | None = None
        #: Parts of each record that it publishes: the end of the property text, and the peer's
        #: address. Empty until the first publish, since most clients of a fleet only listen.
        self.origin = b""
        self.host = b""
        #: Topic name -> twice the highest QoS that it may publish there; only names already used.
        self.publishable: dict[bytes, int] = _NONE
        #: Its QoS 1 publishes that wait for the log before they are acknowledged.
        self.unacknowledged = 0
        self._aliases: _Aliases | None = None
        self.topic_alias_max = 0

    def note_publishable(self, topic: bytes, qos_max: int) -> None:
        """Cache the highest QoS with which the client may publish to a topic name."""
        if self.publishable is _NONE or len(self.publishable) >= PUBLISHABLE_MAX:
            self.publishable = {}
        self.publishable[topic] = qos_max << 1

    def forget_publishable(self) -> None:
        """Drop the cached rights."""
        self.publishable = _NONE

    def alias_for(self, topic: bytes) -> tuple[int, bool]:
        """Return the alias for a topic name, and whether the client knows it.

        0 if all aliases are taken: the first names get them, since a device receives few names. A
        new one is valid only after ``note_alias``, when the packet that sets it has been sent.
        """
        aliases = {} if self._aliases is None else self._aliases.sent
        alias = aliases.get(topic)
        if alias is not None:
            return alias, True
        has_room = len(aliases) < self.topic_alias_max  # [MQTT-3.1.2-26]
        return (len(aliases) + 1 if has_room else 0), False

    def note_alias(self, topic: bytes) -> None:
        """Record that a packet with the topic name and its alias has been sent."""
        aliases = self._made_aliases().sent
        if topic not in aliases and len(aliases) < self.topic_alias_max:
            aliases[topic] = len(aliases) + 1

    def send(self, packet: bytes) -> None:
        """Send a required packet; PacketTooLargeError if it is too large for the client.

        [MQTT-3.1.2-24]. ``choose`` omits the Reason String if that makes it too large. PUBACK,
        PINGRESP and DISCONNECT need no check: they are not longer than the CONNACK that the client
        of version 5 has accepted. Messages for subscribers are checked in ``deliver``.
        """
        self.check_size(packet)
        self.output.send(self.number, packet)

    def choose(self, reasoned: bytes, plain: bytes) -> bytes:
        """Return the packet with a Reason String if the client wants one and it is not too large.

        [MQTT-3.1.2-29]
        """
        fits = len(reasoned) <= self.packet_bytes_max
        return reasoned if self.wants_reasons and fits else plain

    def check_size(self, packet: bytes) -> None:
        """Raise PacketTooLargeError if the packet is too large for the client."""
        if len(packet) > self.packet_bytes_max:
            raise PacketTooLargeError(len(packet), self.packet_bytes_max)

    def resolve_alias(self, topic: bytes, alias: int, alias_max: int) -> bytes:
        """Return the topic name of a PUBLISH with a topic alias; a name in the packet is stored.

        ``topic`` is empty if only the alias is given; ``alias_max`` is CONNACK's limit.
        Raises TopicAliasError or ProtocolViolationError.
        """
        if not 1 <= alias <= alias_max:  # [MQTT-3.3.2-8] [MQTT-3.3.2-9]
            raise TopicAliasError(f"topic alias {alias}, at most {alias_max}")
        if topic:
            self._made_aliases().received[alias] = topic
            return topic
        known = None if self._aliases is None else self._aliases.received.get(alias)
        if known is None:  # section 3.3.4
            raise ProtocolViolationError(f"topic alias {alias} has no topic name yet")
        return known

    def _made_aliases(self) -> _Aliases:
        if self._aliases is None:
            self._aliases = _Aliases()
        return self._aliases


class _Aliases:
    """The topic aliases of both directions."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received: dict[int, bytes] = {}
        self.sent: dict[bytes, int] = {}
