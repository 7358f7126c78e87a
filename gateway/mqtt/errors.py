"""Errors of the MQTT side: one root, each leaf with the reason code for the peer.

Owns: the GatewayError tree. Must not touch: sockets, sessions; the codec raises, others answer.
Spec: MQTT 5.0 sections 2.4 and 4.13.
"""

from __future__ import annotations

from motelog.core.errors import MotelogError


class GatewayError(MotelogError):
    """A fault of one MQTT peer; ``reason_code`` is the byte that is sent to it."""

    reason_code: int = 0x80

    def __init__(self, message: str, *, reason_code: int | None = None) -> None:
        super().__init__(message)
        if reason_code is not None:
            self.reason_code = reason_code


class MalformedPacketError(GatewayError):
    """The peer's bytes cannot be parsed (MQTT 5.0 section 4.13)."""

    reason_code = 0x81

    def __init__(self, message: str, *, offset_bytes: int = 0) -> None:
        super().__init__(f"{message} (at byte {offset_bytes})")
        self.offset_bytes = offset_bytes


class ProtocolViolationError(GatewayError):
    """The packet parses but may not be sent here or now."""

    reason_code = 0x82


class UnsupportedProtocolVersionError(GatewayError):
    """CONNECT names a protocol or level that is not MQTT 3.1, 3.1.1 or 5.0."""

    reason_code = 0x84


class ClientIdentifierError(GatewayError):
    """The client identifier cannot be used."""

    reason_code = 0x85


class TopicFilterError(GatewayError):
    """A topic filter is malformed."""

    reason_code = 0x8F


class TopicNameError(GatewayError):
    """A topic name is malformed, or publishing to it is not allowed."""

    reason_code = 0x90


class PacketTooLargeError(GatewayError):
    """A packet for the client is larger than the client accepts."""

    reason_code = 0x95

    def __init__(self, packet_bytes: int, packet_bytes_max: int) -> None:
        super().__init__(
            f"a packet of {packet_bytes} bytes; the client accepts at most {packet_bytes_max}"
        )


class TopicAliasError(GatewayError):
    """A topic alias is 0 or above the maximum that the server granted."""

    reason_code = 0x94


class QuotaExceededError(GatewayError):
    """A limit of the operator, or of a record, does not allow it."""

    reason_code = 0x97


class NotAuthorizedError(GatewayError):
    """The operator's rules do not allow what the client asks for."""

    reason_code = 0x87
