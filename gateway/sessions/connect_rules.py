"""Which clients may connect, and on which terms: CONNECT in, a decision with its CONNACK out.

Owns: refusals and their codes, the gateway's limits in CONNACK, which DISCONNECT is valid after it.
Must not touch: connections, sessions; ``clients`` applies the decisions.
Spec: MQTT 5.0 and 3.1.1 sections 3.1 and 3.2. Requests for an enhanced authentication that is not
offered are refused with the standard's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from motelog.gateway.access.login import UNCHECKED, Credentials, Identity
from motelog.gateway.config import GatewayConfig
from motelog.gateway.mapping.message_properties import publish_properties
from motelog.gateway.mapping.templates import client_topic
from motelog.gateway.mqtt.connect import claimed_version, decode_connect, encode_connack
from motelog.gateway.mqtt.errors import GatewayError, ProtocolViolationError
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    PROTOCOL_VERSIONS,
    Connect,
    Disconnect,
    PacketType,
    PropertyId,
    PropertyValue,
    ReasonCode,
    Will,
)
from motelog.gateway.mqtt.properties import reason_string
from motelog.gateway.mqtt.topics import SHARED_PREFIX
from motelog.gateway.sessions.connection import PACKET_BYTES_LIMIT
from motelog.gateway.state.stored import EXPIRY_NEVER, StoredWill

#: Terms that are cached.
TERMS_KEPT: Final = 256
#: The first bytes of a TLS handshake, 0x16 0x03, which in MQTT look like a CONNECT of three bytes.
TLS_HANDSHAKE: Final = 0x16
TLS_REST_BYTES: Final = 3


class Terms(NamedTuple):
    """The terms for all clients that ask for the same.

    ``expiry_s`` is how long the session outlives the connection, ``idle_s_max`` how many seconds
    the client may be silent before it counts as gone, 0 for no limit. ``overrides`` has the
    properties that differ from what the client asked for.
    """

    version: int
    clean_start: bool
    expiry_s: int
    keep_alive_s: int
    idle_s_max: int
    inflight_max: int
    packet_bytes_max: int
    topic_alias_max: int
    wants_reasons: bool
    overrides: dict[PropertyId, PropertyValue]


class Accepted(NamedTuple):
    """The terms of a connection; ``ConnectRules.connack`` encodes them for the client.

    The first fields are those of ``Terms``. ``connect`` is the client's CONNECT. ``identity`` is
    what the client claims to be, until ``as_user``; None if it claims nothing.
    """

    version: int
    clean_start: bool
    expiry_s: int
    keep_alive_s: int
    idle_s_max: int
    inflight_max: int
    packet_bytes_max: int
    topic_alias_max: int
    wants_reasons: bool
    overrides: dict[PropertyId, PropertyValue]
    client_id: str
    will: StoredWill | None
    identity: Identity | None
    connect: Connect

    @property
    def owner(self) -> str | None:
        """The owner of its session; see ``StoredSession``."""
        return None if self.identity is None else self.identity.owner

    @property
    def user_name(self) -> str | None:
        return None if self.identity is None else self.identity.user_name

    def as_user(self, identity: Identity) -> Accepted:
        """Return the terms for a client that has logged in, with the login's user name."""
        will = self.will and msgspec.structs.replace(
            self.will,
            user_name=identity.user_name,
            is_granted=bool(identity.rules),
            certificate_name=identity.certificate_name,
        )
        return self._replace(will=will, identity=identity)

    def may_have(self, owner: str | None) -> bool:
        """Whether the client may use an existing session with this ``owner``."""
        return None in (owner, self.owner) or owner == self.owner

    def shown(
        self, host: str, certificate_name: str | None, logins: Collection[str]
    ) -> Credentials:
        """Return the client's credentials, with what is known of its connection."""
        connect = self.connect
        return Credentials(
            self.client_id,
            connect.user_name,
            connect.password,
            certificate_name,
            host,
            connect.properties.authentication_method,
            connect.properties.authentication_data or b"",
            logins,
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a connection is refused; ``connack`` is empty if the standard has none for it."""

    reason_code: int
    why: str
    client_id: str
    connack: bytes


class ConnectRules:
    """Decides about the first packet of each connection, only from the configuration."""

    def __init__(self, config: GatewayConfig, *, methods: Container[str] = ()) -> None:
        """``methods`` are the enhanced authentications that are offered."""
        self._config = config
        self._methods = methods
        # Cached: a fleet asks for few different terms.
        self._terms = lru_cache(TERMS_KEPT)(self._find_terms)
        #: Our limits in the CONNACK for an MQTT 5 client (section 3.2.2.3).
        self._limits: dict[PropertyId, PropertyValue] = {
            PropertyId.RECEIVE_MAXIMUM: config.receive_maximum,
            PropertyId.MAXIMUM_PACKET_SIZE: config.packet_bytes_max,
            PropertyId.TOPIC_ALIAS_MAXIMUM: config.topic_alias_max,
        }
        #: (version, session present) -> the CONNACK of a client that gets what it asked for.
        self._connacks = {
            (version, present): self._encode(version, present, {})
            for version in PROTOCOL_VERSIONS
            for present in (False, True)
        }

    def decide(
        self, first_byte: int, body: bytes, *, new_client_id: Callable[[], str]
    ) -> Accepted | Refused:
        """Decide about the first packet of a connection.

        ``new_client_id`` creates the identifier of a client that leaves it to the server.
        """
        if first_byte == TLS_HANDSHAKE and len(body) == TLS_REST_BYTES:
            why = "the client uses TLS, but this listener does not"
            return refuse_unread(ReasonCode.MALFORMED_PACKET, why)
        if first_byte >> 4 != PacketType.CONNECT:  # [MQTT-3.1.0-1]
            return refuse_unread(ReasonCode.PROTOCOL_ERROR, "the first packet is not CONNECT")
        try:
            connect = decode_connect(first_byte, body)
        except GatewayError as exc:
            version = claimed_version(body)
            reason = reason_string(str(exc))
            connack = encode_connack(version, exc.reason_code, properties=reason)
            return Refused(exc.reason_code, str(exc), client_id="", connack=connack)
        return self._refusal(connect) or self._accept(connect, connect.client_id or new_client_id())

    def _refusal(self, connect: Connect) -> Refused | None:
        """Return the refusal of a CONNECT that asks for something not offered, else None."""
        method = connect.properties.authentication_method
        if method is not None and method not in self._methods:  # [MQTT-4.12.0-1]
            code = ReasonCode.BAD_AUTHENTICATION_METHOD
            why = "this authentication method is not offered"
        elif connect.will is not None and connect.will.topic.startswith("$"):
            code = ReasonCode.TOPIC_NAME_INVALID
            why = "will topics that begin with '$' are reserved for the server"
        elif connect.will is not None and len(connect.will.payload) > self._config.will_bytes_max:
            code = ReasonCode.QUOTA_EXCEEDED
            why = f"will payload longer than {self._config.will_bytes_max} bytes"
        elif len(connect.client_id.encode()) > self._config.client_id_bytes_max:
            code = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
            why = f"client identifier longer than {self._config.client_id_bytes_max} bytes"
        elif connect.client_id.startswith(SHARED_PREFIX):
            # The log stores groups of shared subscriptions under such names.
            code = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
            why = f"client identifiers that begin with {SHARED_PREFIX!r} are reserved"
        else:
            return None
        return _refusal_of(connect, code, why)

    def _accept(self, connect: Connect, client_id: str) -> Accepted | Refused:
        asked = connect.properties
        terms = self._terms(
            connect.version,
            connect.clean_start,
            connect.keep_alive_s,
            asked.session_expiry_interval_s,
            asked.receive_maximum,
            asked.maximum_packet_bytes,
            asked.topic_alias_maximum,
            asked.request_problem_information,
        )
        accepted = Accepted(
            *terms,
            client_id=client_id,
            will=None if connect.will is None else _stored_will(connect, connect.will),
            identity=Identity(connect.user_name, UNCHECKED) if connect.user_name else None,
            connect=connect,
        )
        if connect.version == 5:
            own = self._own_overrides(connect, client_id)
            if own:
                accepted = accepted._replace(overrides={**terms.overrides, **own})
            connack = self.connack(accepted, session_present=False)
            if len(connack) > accepted.packet_bytes_max:
                # No part of it may be omitted.
                bytes_max = accepted.packet_bytes_max
                why = f"CONNACK is larger than the {bytes_max} bytes that the client accepts"
                return _refusal_of(connect, ReasonCode.PACKET_TOO_LARGE, why)
        return accepted

    def _own_overrides(
        self, connect: Connect, client_id: str
    ) -> dict[PropertyId, PropertyValue] | None:
        """Return the properties that contain the client's identifier; None for nearly all."""
        asks = connect.properties.request_response_information and self._config.response_information
        if connect.client_id and not asks:
            return None
        own: dict[PropertyId, PropertyValue] = {}
        if not connect.client_id:
            own[PropertyId.ASSIGNED_CLIENT_IDENTIFIER] = client_id
        topic = client_topic(self._config.response_information, client_id) if asks else None
        if topic is not None:
            own[PropertyId.RESPONSE_INFORMATION] = topic
        return own

    def _find_terms(
        self,
        version: int,
        clean_start: bool,
        keep_alive_s: int,
        expiry_s: int | None,
        receive_maximum: int | None,
        packet_bytes_max: int | None,
        topic_alias_max: int | None,
        wants_reasons: int | None,
    ) -> Terms:
        """Return the terms for a client that asks for this; None: not in the CONNECT."""
        config = self._config
        overrides: dict[PropertyId, PropertyValue] = {}
        asked_s, asked_keep_alive_s = expiry_s or 0, keep_alive_s
        if version == 5:
            keep_alive_s = min(keep_alive_s or 65535, config.keep_alive_max_s)
            if keep_alive_s != asked_keep_alive_s:
                overrides[PropertyId.SERVER_KEEP_ALIVE] = keep_alive_s
            given_s = min(asked_s, config.session_expiry_max_s)
            if given_s != asked_s:
                overrides[PropertyId.SESSION_EXPIRY_INTERVAL] = given_s
        else:
            # MQTT 3 has no way to change it: its clients get the keep alive that they asked for.
            given_s = 0 if clean_start else min(EXPIRY_NEVER, config.session_expiry_max_s)
        return Terms(
            version=version,
            clean_start=clean_start,
            expiry_s=given_s,
            keep_alive_s=keep_alive_s,
            idle_s_max=keep_alive_s + (keep_alive_s + 1) // 2,  # [MQTT-3.1.2-22]
            inflight_max=min(receive_maximum or 65535, config.inflight_max),
            packet_bytes_max=packet_bytes_max or PACKET_BYTES_LIMIT,
            topic_alias_max=min(topic_alias_max or 0, config.topic_alias_max),
            wants_reasons=wants_reasons != 0,
            overrides=overrides,
        )

    def connack(self, accepted: Accepted, *, session_present: bool) -> bytes:
        """Return the CONNACK that accepts; for MQTT 5 with what differs from the request."""
        if not accepted.overrides:
            return self._connacks[accepted.version, session_present]
        return self._encode(accepted.version, session_present, accepted.overrides)

    def _encode(
        self, version: int, session_present: bool, overrides: dict[PropertyId, PropertyValue]
    ) -> bytes:
        return encode_connack(
            version, ReasonCode.SUCCESS, session_present, properties={**self._limits, **overrides}
        )


def _stored_will(connect: Connect, will: Will) -> StoredWill:
    """Return the will of a CONNECT as the session stores it."""
    text = publish_properties(will.properties) if will.properties is not NO_PROPERTIES else b""
    return StoredWill(
        topic=will.topic,
        payload=will.payload,
        qos=will.qos,
        retain=will.retain,
        delay_s=will.properties.will_delay_interval_s or 0,
        properties=text,
        user_name=connect.user_name or "",
    )


def check_disconnect(disconnect: Disconnect, *, asked_for_expiry: bool) -> None:
    """Raise ProtocolViolationError if the DISCONNECT of a client is not valid.

    ``asked_for_expiry``: its CONNECT had a Session Expiry Interval above 0.
    """
    if disconnect.properties.session_expiry_interval_s and not asked_for_expiry:
        # Section 3.14.2.2.2: it does not count as a DISCONNECT, so the will is not dropped.
        raise ProtocolViolationError("a session expiry interval in DISCONNECT, after 0 in CONNECT")


def refuse_unread(reason_code: int, why: str) -> Refused:
    """Refuse a connection from which no CONNECT could be read.

    It is closed without a CONNACK, because the version for an answer is unknown.
    """
    return Refused(reason_code, why, client_id="", connack=b"")


def refuse_for_now(accepted: Accepted, why: str) -> Refused:
    """Refuse a client that the gateway cannot serve at the moment."""
    return refuse(accepted, ReasonCode.SERVER_UNAVAILABLE, why)


def refuse(accepted: Accepted, code: int, why: str) -> Refused:
    """Refuse a client whose CONNECT is valid."""
    terms = accepted.version, accepted.packet_bytes_max, accepted.wants_reasons
    return Refused(code, why, accepted.client_id, _refusing_connack(*terms, code, why))


def _refusal_of(connect: Connect, reason_code: int, why: str) -> Refused:
    bytes_max = connect.properties.maximum_packet_bytes or PACKET_BYTES_LIMIT
    wants_reasons = connect.properties.request_problem_information != 0
    connack = _refusing_connack(connect.version, bytes_max, wants_reasons, reason_code, why)
    return Refused(reason_code, why, connect.client_id, connack)


def _refusing_connack(
    version: int, bytes_max: int, wants_reasons: bool, reason_code: int, why: str
) -> bytes:
    """Return the CONNACK that refuses, empty if too large for the client. [MQTT-3.1.2-24]"""
    if wants_reasons:
        connack = encode_connack(version, reason_code, properties=reason_string(why))
        if len(connack) <= bytes_max:
            return connack
    connack = encode_connack(version, reason_code)
    return connack if len(connack) <= bytes_max else b""
