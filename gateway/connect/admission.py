"""From CONNECT to CONNACK: logins, claims among gateways, the session that a client gets.

Owns: the steps by which a CONNECT is admitted, and their order. Must not touch: what a client may
ask for (``sessions.connect_rules``), who it is (``access``), what a session has (``life``).
Invariant: a session belongs to its owner. Before the sender of a CONNECT is known, nothing is
ended, taken over, claimed or published for it, and nothing at all if the session belongs to another
user.
Spec: MQTT 5.0 and 3.1.1 sections 3.1, 3.2 and 4.1.

    CONNECT -> decided -> login -> room? -> claim, while others live -> session -> CONNACK
                  |         |       |         |                           |
                  '---------'-------'---------'---------- refused --------'

A CONNECT waits while a thread checks its password, and while its client identifier is claimed from
other gateways. Meanwhile it is parked, and the packets after it are kept.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from motelog.core.errors import MotelogError
from motelog.core.net.endings import Endings
from motelog.gateway.access.access import Access
from motelog.gateway.access.acl import Acl
from motelog.gateway.access.login import Denied, Identity
from motelog.gateway.access.rights import Who
from motelog.gateway.config import GatewayConfig
from motelog.gateway.connect.parking import KEPT_BYTES_MAX, Parked
from motelog.gateway.connect.parts import ConnectionParts, SessionParts
from motelog.gateway.connect.proofs import Proved
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.sessions.connect_rules import (
    Accepted,
    ConnectRules,
    Refused,
    refuse,
    refuse_for_now,
)
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.session import Session
from motelog.gateway.state.claims import ClaimKind
from motelog.gateway.state.view import ViewError
from motelog.gateway.turn import Turn

FULL: Final = "as many clients are connected as connections_max allows"
NOT_OWNED: Final = "the session belongs to another user"


class Admission:
    """Admits the clients of one gateway."""

    def __init__(
        self,
        config: GatewayConfig,
        turn: Turn,
        sessions: SessionParts,
        parts: ConnectionParts,
        *,
        connections_max: int,
        access: Access | None,
    ) -> None:
        """``access`` is None if clients do not log in."""
        self._turn = turn
        self._table = sessions.table
        self._shared = sessions.shared
        self._delivery = sessions.delivery
        self._journal = sessions.journal
        self._claims = sessions.claims
        self._storing = sessions.storing
        self._metrics = sessions.metrics
        self._parking = parts.parking
        self._proofs = parts.proofs
        self._connections = parts.connections
        self._life = parts.life
        self._run = parts.run
        self._expiry = parts.expiry
        self._connections_max = connections_max
        self._access = access
        #: When logins and client certificates expire.
        self.endings = Endings()
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Apply the limits of ``config`` to CONNECTs from now on."""
        self._config = config
        methods = () if self._proofs is None else (self._proofs.method,)
        self._rules = ConnectRules(config, methods=methods)

    # --- what a CONNECT asks for ---------------------------------------------------------

    def expect(self, bodies: Iterable[tuple[int, bytes]]) -> None:
        """Decide about the CONNECTs of a turn, and find their stored sessions with one query.

        ``bodies`` are (number, body). A decision takes effect when its packet is handled.
        """
        if self._journal.others_live:
            return  # each waits for a claim
        decided, table = self._turn.decided, self._turn.connections
        for number, body in bodies:
            connection = table[number]
            if connection is not None and connection.session is None and number not in decided:
                decided[number] = self._rules.decide(
                    PacketType.CONNECT << 4, body, new_client_id=_new_client_id
                )
        accepted = [one.client_id for one in decided.values() if isinstance(one, Accepted)]
        self._journal.fetch(accepted)

    def connect(self, connection: Connection, first_byte: int, body: bytes) -> None:
        """Handle the first packet of a connection: a CONNECT, or a packet that is refused."""
        decision = None
        if first_byte >> 4 == PacketType.CONNECT:
            decision = self._turn.decided.pop(connection.number, None)
        if decision is None:
            decision = self._rules.decide(first_byte, body, new_client_id=_new_client_id)
        if isinstance(decision, Refused):
            self._connections.refuse(connection, decision)
        elif self._access is None:
            self._admit(connection, decision)
        else:
            self._log_in(connection, decision, self._access)

    # --- logins --------------------------------------------------------------------------

    def _log_in(self, connection: Connection, accepted: Accepted, access: Access) -> None:
        """Log the client in; continue with its CONNECT when it is known who sent it."""
        parked: Parked | None = None

        def known(found: Identity | Denied) -> None:
            assert parked is not None, "it was not known at once"
            self._run.check()
            if self._parking.get(connection.number) is parked:  # its client is still there
                self._parking.take_out(parked)
                self._logged_in(connection, accepted, found)
                claimed = self._parking.get(connection.number)
                if claimed is None:
                    self._parking.go_on(parked)
                else:
                    claimed.kept, claimed.kept_bytes = parked.kept, parked.kept_bytes

        host, _ = connection.output.peer(connection.number)
        certificate = connection.output.identity(connection.number)
        shown = accepted.shown(
            host,
            certificate.name if certificate else None,
            access.logins_of[connection.output.listener(connection.number)],
        )
        if self._proofs is not None and shown.method is not None:
            refused = self._proofs.begin(connection, shown, accepted)
            if refused is not None:
                self._connections.refuse(connection, refused)
            return
        found = access.logins.log_in(shown, known)
        if found is None:
            parked = self._parking.park(connection, accepted, self._config.connect_bytes_max)
        else:
            self._logged_in(connection, accepted, found)

    def proved(self, proved: Proved) -> None:
        """Continue with a CONNECT whose client has proved who it is, or has failed to."""
        connection, accepted, outcome = proved
        if outcome is None:
            self._connections.leave(connection)
        elif isinstance(outcome, Refused):
            self._connections.refuse(connection, outcome)
        else:
            self._logged_in(connection, accepted, outcome)

    def _logged_in(
        self, connection: Connection, accepted: Accepted, found: Identity | Denied
    ) -> None:
        if isinstance(found, Denied):
            refused = refuse(accepted, found.reason_code, found.why)
            self._connections.refuse(connection, refused)
            return
        certificate = connection.output.identity(connection.number)
        if certificate is not None:
            found = dataclasses.replace(found, certificate_name=certificate.name or "")
        accepted = accepted.as_user(found)
        acl = None if self._access is None else self._access.acl
        if acl is not None and not _may_have_its_will(acl, accepted, found):
            self._metrics.wills_not_allowed += 1
            why = "the client has no right to publish its will"
            refused = refuse(accepted, ReasonCode.NOT_AUTHORIZED, why)
            self._connections.refuse(connection, refused)
            return
        self._admit(connection, accepted)

    # --- turns among gateways ------------------------------------------------------------

    def _admit(self, connection: Connection, accepted: Accepted) -> None:
        """Continue with a CONNECT after its login, if there is one; it may have to wait."""
        refusal = self._journal.refusal
        unstored = None if refusal is None else refusal()
        if not self._has_room(accepted.client_id):
            self._connections.refuse(connection, refuse_for_now(accepted, FULL))
        elif unstored is not None and self._needs_records(accepted):
            why = f"sessions cannot be stored at the moment: {unstored}"
            self._connections.refuse(connection, refuse_for_now(accepted, why))
        elif unstored is not None or not self._journal.others_live:  # then there are no claims
            if accepted.client_id in self._claims:
                self._claims.overtake(accepted.client_id)
            self._accept(connection, accepted, 0)
        elif self._expiry.is_anothers(accepted):
            self._connections.refuse(connection, self._not_owned(accepted))
        else:
            self._claim(self._parking.park(connection, accepted, KEPT_BYTES_MAX))

    def _needs_records(self, accepted: Accepted) -> bool:
        """Whether a client's session, or the end of its stored one, has to be in the log."""
        stored = None
        with suppress(ViewError):
            stored = self._journal.load(accepted.client_id)
        now_ms = self._journal.clock.now_ms()
        is_kept = stored is not None and not self._expiry.has_expired(stored, now_ms)
        return accepted.expiry_s > 0 or is_kept

    def _has_room(self, client_id: str) -> bool:
        """Return whether the client may connect: there is room, or it takes over a connection."""
        known = self._table.by_client_id
        return client_id in known or len(known) < self._connections_max

    def _claim(self, parked: Parked) -> None:
        """Make a CONNECT wait until this gateway has its client identifier."""
        accepted = parked.accepted
        parked.kept_bytes_max = KEPT_BYTES_MAX
        _set_terms(parked.connection, accepted, self._config.packet_bytes_max)
        parked.claim = self._claims.want(
            accepted.client_id,
            ClaimKind.LASTING if accepted.expiry_s else ClaimKind.PASSING,
            go_on=partial(self._go_on_in_turn, parked),
            lost=partial(self._lost, parked),
            owner=accepted.owner,
        )

    def _go_on_in_turn(self, parked: Parked, claim: int) -> None:
        """Continue with a CONNECT whose turn has come, and with the packets after it."""
        connection, accepted = parked.connection, parked.accepted
        self._parking.take_out(parked)
        if self._has_room(accepted.client_id):
            self._accept(connection, accepted, claim)
            self._parking.go_on(parked)
        else:
            self._refuse_claimed(connection, refuse_for_now(accepted, FULL), claim)

    def _lost(self, parked: Parked, why: str | None) -> None:
        if why is not None:
            self._connections.refuse_parked(parked, why)
        else:
            # It was taken over before it had an answer. CONNACK has no code for that.
            self._connections.leave(parked.connection)

    # --- the session ---------------------------------------------------------------------

    def _accept(self, connection: Connection, accepted: Accepted, claim: int) -> None:
        """Begin or resume a session; ``claim`` is the claim that this settles, 0 if none."""
        client_id = accepted.client_id
        live = self._table.by_client_id.get(client_id)
        if live is not None:
            if not accepted.may_have(live.owner):
                self._refuse_claimed(connection, self._not_owned(accepted), claim)
                return
            self.take_over(client_id)
        try:
            stored = self._journal.load(client_id)
            if stored is not None and stored.filters:
                self._shared.check(stored)
        except ViewError as exc:
            why = f"stored sessions cannot be read at the moment: {exc}"
            self._refuse_claimed(connection, refuse_for_now(accepted, why), claim)
            return
        if stored is not None:
            now_ms = self._journal.clock.now_ms()
            is_expired = self._expiry.has_expired(stored, now_ms)
            if not (is_expired or accepted.may_have(stored.owner)):
                self._refuse_claimed(connection, self._not_owned(accepted), claim)
                return
            stored = self._expiry.what_is_left(accepted, stored, now_ms, is_expired=is_expired)
        begun_ms = self._turn.now_ms if stored is None else stored.begun_ms
        session = self._begin(connection, accepted, begun_ms)
        is_present = stored is not None
        connection.send(self._rules.connack(accepted, session_present=is_present))
        if stored is not None:
            self._life.resume(session, stored)
        else:
            self._shared.begun(client_id)
        if session.expiry_s:
            is_waited_for = claim or is_present
            then = partial(self._stored_again, session, claim) if is_waited_for else None
            self._storing.store(session, claim=claim, then=then)
        else:
            if is_present:
                self._journal.end(client_id)
            self._claims.settle(client_id, claim)

    def _not_owned(self, accepted: Accepted) -> Refused:
        self._metrics.sessions_not_owned += 1
        return refuse(accepted, ReasonCode.NOT_AUTHORIZED, NOT_OWNED)

    def _refuse_claimed(self, connection: Connection, refused: Refused, claim: int) -> None:
        self._claims.settle(refused.client_id, claim)
        self._connections.refuse(connection, refused)

    def take_over(self, client_id: str) -> None:
        """End the connection that has this client identifier. [MQTT-3.1.4-3]"""
        live = self._table.live(client_id)
        if live is not None:
            self._metrics.sessions_taken_over += 1
            self._connections.end(live[1], ReasonCode.SESSION_TAKEN_OVER, "taken over")

    def _begin(self, connection: Connection, accepted: Accepted, begun_ms: int) -> Session:
        """Return a new session in memory, and set its connection to the agreed terms."""
        identity, number = accepted.identity, connection.number
        version = connection.version = accepted.version
        connection.packet_bytes_max = accepted.packet_bytes_max
        connection.topic_alias_max = accepted.topic_alias_max
        connection.wants_reasons = accepted.wants_reasons
        session = Session(
            accepted.client_id, expiry_s=accepted.expiry_s, identity=identity, begun_ms=begun_ms
        )
        if accepted.will is not None:
            session.particulars.will = accepted.will
        session.attach(connection, inflight_max=accepted.inflight_max)
        certificate = connection.output.identity(number)
        login_ends_s = identity.expires_s if identity is not None else None
        certificate_ends_s = certificate.expires_s if certificate is not None else None
        if login_ends_s or certificate_ends_s or number in self.endings.ends_s:
            self.endings.begin(number, login_ends_s, certificate_ends_s)
        self._table.add(session, number, self._turn.now_ms, accepted.keep_alive_s)
        self._metrics.sessions_now += 1
        self._metrics.clients[connection.output.listener(number)][version] += 1
        _set_terms(connection, accepted, self._config.packet_bytes_max)
        return session

    def _stored_again(self, session: Session, claim: int, error: MotelogError | None) -> None:
        """Note whether the record of a CONNECT was stored."""
        if claim and error is not None:
            self._claims.settle(session.client_id, claim)
        self._delivery.stored_again(session, error)


def _set_terms(connection: Connection, accepted: Accepted, frame_bytes_max: int) -> None:
    output, number = connection.output, connection.number
    output.set_variant(number, accepted.version)
    output.set_limits(number, frame_bytes_max=frame_bytes_max, idle_s_max=accepted.idle_s_max)


def _may_have_its_will(acl: Acl, accepted: Accepted, found: Identity) -> bool:
    will = accepted.will
    if will is None:
        return True
    whose = Who(found.user_name, accepted.client_id, found.rules, found.certificate_name)
    may_retain = not will.retain or acl.may_retain(whose, will.topic)
    return may_retain and acl.publish_qos(whose, will.topic) >= will.qos


def _new_client_id() -> str:
    return f"motelog-{secrets.token_hex(8)}"
