"""Logins of several packets: clients prove who they are, before CONNACK and while connected.

Owns: the exchanges in progress. Must not touch: what a login leads to (``admission``), what the
messages of an exchange say (``access.scram_logins``).
Invariant: before CONNACK, a connection with an exchange is not in the table, like a parked one.
So only its next packet is accepted.
Spec: MQTT 5.0 section 4.12.

    CONNECT -> AUTH 0x18 (challenge) ... AUTH 0x18 (proof) -> logged in, CONNACK
    AUTH 0x19 (again) -> AUTH 0x18   ... AUTH 0x18 (proof) -> AUTH 0x00
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from motelog.gateway.access.access import Access
from motelog.gateway.access.login import Credentials, Denied, Identity
from motelog.gateway.access.scram import METHOD, Exchange, ScramError
from motelog.gateway.access.scram_logins import ScramLogins
from motelog.gateway.mqtt.auth import Auth, decode_auth, encode_auth
from motelog.gateway.mqtt.errors import GatewayError, NotAuthorizedError, ProtocolViolationError
from motelog.gateway.mqtt.packet_types import PacketType, PropertyId, PropertyValue, ReasonCode
from motelog.gateway.sessions.connect_rules import Accepted, Refused, refuse
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.publish_rules import unexpected
from motelog.gateway.sessions.session import Session


class _Proving(NamedTuple):
    """One exchange; ``accepted`` is None if the client is connected."""

    connection: Connection
    exchange: Exchange
    shown: Credentials
    accepted: Accepted | None


class Proved(NamedTuple):
    """The result of the exchange of a CONNECT; ``outcome`` is None if its client has left."""

    connection: Connection
    accepted: Accepted
    outcome: Identity | Denied | Refused | None


class Proofs:
    """The exchanges of one gateway, which use the one method that it offers."""

    def __init__(
        self,
        access: Access,
        scram: ScramLogins,
        connections: list[Connection | None],
    ) -> None:
        #: The name of the method, as clients send it.
        self.method = METHOD
        self._access = access
        self._scram = scram
        self._connections = connections
        self._proving: dict[int, _Proving] = {}

    def connection(self, number: int) -> Connection | None:
        """Return the connection if its exchange is in progress, else None."""
        proving = self._proving.get(number)
        return None if proving is None else proving.connection

    def forget(self, number: int) -> None:
        """Drop the exchange of a connection that has ended."""
        self._proving.pop(number, None)

    def begin(
        self, connection: Connection, shown: Credentials, accepted: Accepted
    ) -> Refused | None:
        """Answer a CONNECT with the challenge; return the refusal instead if it is refused."""
        connection.version = accepted.version
        refused = self._challenge(connection, shown, accepted)
        return None if refused is None else refuse(accepted, refused.reason_code, refused.why)

    def go_on(self, number: int, first_byte: int, body: bytes) -> Proved | None:
        """Handle the next packet of a connection that is not in the table.

        Return the result of its exchange, which ends with this packet; None if it has none.
        """
        proving = self._proving.pop(number, None)
        if proving is None or proving.accepted is None:
            return None
        connection, accepted = proving.connection, proving.accepted
        self._connections[number] = connection
        if first_byte >> 4 == PacketType.DISCONNECT:
            return Proved(connection, accepted, None)
        try:
            if first_byte >> 4 != PacketType.AUTH:
                raise unexpected(first_byte)
            auth = decode_auth(connection.version, first_byte, body)
            found = self._proved(proving, auth)
        except GatewayError as exc:
            return Proved(connection, accepted, refuse(accepted, exc.reason_code, str(exc)))
        if isinstance(found, Denied):
            return Proved(connection, accepted, found)
        identity, shown = found
        overrides: dict[PropertyId, PropertyValue] = {
            **accepted.overrides,
            PropertyId.AUTHENTICATION_METHOD: METHOD,  # [MQTT-4.12.0-5]
            PropertyId.AUTHENTICATION_DATA: shown,
        }
        return Proved(connection, accepted._replace(overrides=overrides), identity)

    def again(self, connection: Connection, session: Session, first_byte: int, body: bytes) -> None:
        """Begin or continue the re-authentication of a connected client. [MQTT-4.12.1-1]

        GatewayError if its connection has to end.
        """
        identity, number = session.identity, connection.number
        if identity is None or identity.authenticator != self._scram.name:
            raise unexpected(first_byte)  # [MQTT-4.12.0-7]
        auth = decode_auth(connection.version, first_byte, body)
        proving = self._proving.pop(number, None)
        if proving is not None:
            found = self._proved(proving, auth)
        elif auth.reason_code == ReasonCode.RE_AUTHENTICATE and auth.method == METHOD:
            host, _ = connection.output.peer(number)
            shown = Credentials(session.client_id, host=host, method=METHOD, data=auth.data)
            refused = self._challenge(connection, shown, None)
            if refused is None:
                return
            found = refused
        else:
            raise ProtocolViolationError("AUTH does not begin a re-authentication with the method")
        if isinstance(found, Denied) or found[0].user_name != identity.user_name:
            why = found.why if isinstance(found, Denied) else "the client belongs to another user"
            raise NotAuthorizedError(why)  # [MQTT-4.12.1-2]
        proved, shown_data = found
        # The connection is the same, and so is the client's certificate.
        session.identity = dataclasses.replace(proved, certificate_name=identity.certificate_name)
        connection.send(encode_auth(Auth(ReasonCode.SUCCESS, METHOD, shown_data)))

    def _challenge(
        self, connection: Connection, shown: Credentials, accepted: Accepted | None
    ) -> Denied | None:
        """Answer the first message of an exchange; return the reason if it is refused instead."""
        scram, logins = self._scram, self._access.logins
        try:
            exchange = scram.begin(shown.data)
        except ScramError as exc:
            denied = Denied(scram.name, "wrong", f"the login is refused: {exc}")
            logins.judge(shown, denied)
            return denied
        shown = dataclasses.replace(shown, user_name=exchange.user_name, password=None)
        refused = logins.refused_untried(shown, scram.name)
        if refused is not None:
            return refused
        number = connection.number
        if accepted is not None:
            self._connections[number] = None
            connection.output.set_variant(number, connection.version)
        self._proving[number] = _Proving(connection, exchange, shown, accepted)
        code = ReasonCode.CONTINUE_AUTHENTICATION  # [MQTT-4.12.0-2]
        connection.send(encode_auth(Auth(code, METHOD, exchange.challenge)))
        return None

    def _proved(self, proving: _Proving, auth: Auth) -> tuple[Identity, bytes] | Denied:
        """Return the proved identity, and the data that proves this server to the client."""
        if auth.reason_code != ReasonCode.CONTINUE_AUTHENTICATION or auth.method != METHOD:
            raise ProtocolViolationError("AUTH does not continue the exchange with its method")
        found = self._scram.finish(proving.exchange, auth.data)
        judged = found if isinstance(found, Denied) else found[0]
        self._access.logins.judge(proving.shown, judged)
        return found
