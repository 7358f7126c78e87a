"""The shell for CONNECT, DISCONNECT and AUTH: it applies what the rules decide.

Owns: the session of each connection and of each client identifier, its life from CONNECT to expiry,
when its will is published, the order in which a decision takes effect, metrics and log lines.
Must not touch: what a client may ask for (``sessions.connect_rules``), subscriptions of a session
that is connected (``subscribing``), appends, delivery plans.
State changes between two awaits of its callers.
Spec: MQTT 5.0 and 3.1.1 chapter 3, 4.1.

    CONNECT -> the stored session, or a new one -> Session in memory, filters in the tree
                                                     |  connection ends
    expiry 0: gone        else: one record, a row of the view  <-'      -> expires, or comes back

While other gateways live, whatever begins or changes a session here that is not connected here
waits for its turn (``claims``). So does a CONNECT whose password takes a thread to check. One that
waits is parked: its connection has no place in the table, and the packets behind it are kept.

A session is its owner's: nothing is ended, taken over, claimed or published for a CONNECT before it
is known who sends it, and nothing if the session is another's.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from array import array
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple

import msgspec
from sortedcontainers import SortedList

from motelog.core.clock import Clock
from motelog.core.errors import MotelogError
from motelog.core.limited_log import LimitedByKey, LimitedLog
from motelog.core.net.endings import Endings
from motelog.core.net.reactor_types import CloseReason, Fault
from motelog.gateway.access.access import Access
from motelog.gateway.access.acl import Acl
from motelog.gateway.access.login import Denied, Identity
from motelog.gateway.access.rights import Who
from motelog.gateway.access.scram import METHOD
from motelog.gateway.claims import Claim, ClaimKind, Claims
from motelog.gateway.config import GatewayConfig
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.errors import (
    GatewayError,
    MalformedPacketError,
    SessionInUseError,
)
from motelog.gateway.log.log_port import SETTLED, After, Then, Ticket
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.disconnect import decode_disconnect, encode_disconnect
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.mqtt.properties import reason_string
from motelog.gateway.output import Output
from motelog.gateway.proofs import Proofs, Proved
from motelog.gateway.publish.exchanges import Exchanges
from motelog.gateway.publish.wills import Wills
from motelog.gateway.rechecks import Rechecks
from motelog.gateway.sessions.connect_rules import (
    Accepted,
    ConnectRules,
    Refused,
    check_disconnect,
    refuse,
    refuse_for_now,
    refuse_unread,
)
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.publish_rules import unexpected
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscribe_rules import (
    resumable,
    who,
)
from motelog.gateway.sessions.subscriptions import SubscriptionTree
from motelog.gateway.sharing import SharedSubscriptions, is_shared
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.session_rows import ClaimHeard
from motelog.gateway.state.stored import StoredSession
from motelog.gateway.state.view import ViewError
from motelog.gateway.storing import Storing
from motelog.gateway.subscribing import Subscribing
from motelog.gateway.turn import Turn

logger = logging.getLogger(__name__)

#: Connections beyond ``connections_max``, for peers that have not sent CONNECT. So a full gateway
#: can answer a CONNECT: it refuses a new client, and a client whose old connection is half-open
#: takes that over. When these are taken too, peers wait until one of them has sent CONNECT or its
#: time is over.
CONNECTIONS_RESERVED: Final = 256
FULL: Final = "as many clients are connected as connections_max allows"

_FAULTS: Final = {
    Fault.FRAME_TOO_LARGE: (ReasonCode.PACKET_TOO_LARGE, "packet above Maximum Packet Size"),
    Fault.MALFORMED_LENGTH: (ReasonCode.MALFORMED_PACKET, "remaining length of five bytes"),
    Fault.IDLE: (ReasonCode.KEEP_ALIVE_TIMEOUT, "no packet within the keep alive and a half"),
}
#: What the frames kernel finds in a packet behind CONNECT: it tells a code and a place.
_FRAME_FAULTS: Final = {
    ReasonCode.TOPIC_NAME_INVALID: "topic name is empty, or holds '+', '#' or a control character",
    ReasonCode.PROTOCOL_ERROR: "packet identifier is 0, or there is no topic name and no alias",
}
#: Rows of the view that one tick looks at, so that many sessions that end together stall nobody.
DUE_MAX: Final = 100
#: Bytes of the packets behind a CONNECT that is parked. Nothing more is read from such a client, so
#: that it is what came with the CONNECT.
KEPT_BYTES_MAX: Final = 1_048_576
NOT_OWNED: Final = "the session is another user's"


class Parked:
    """A CONNECT that waits, and the packets that have come behind it.

    ``claim``: what it waits for its turn by; else it waits for its login.
    """

    __slots__ = ("accepted", "claim", "connection", "kept", "kept_bytes", "kept_bytes_max")

    def __init__(self, connection: Connection, accepted: Accepted, kept_bytes_max: int) -> None:
        self.connection = connection
        self.accepted = accepted
        self.claim: Claim | None = None
        self.kept_bytes_max = kept_bytes_max
        #: As the frames kernel makes them.
        self.kept: list[tuple[Any, ...]] = []
        self.kept_bytes = 0


class Connected(NamedTuple):
    """What is kept of a CONNECT."""

    at_ms: int
    keep_alive_s: int


class Clients:
    """The connections and sessions of one gateway.

    Callers name a connection by its number; a connection that has ended meanwhile is ignored.
    """

    def __init__(
        self,
        config: GatewayConfig,
        turn: Turn,
        subscriptions: SubscriptionTree[Receiver],
        shared: SharedSubscriptions,
        delivery: Delivery,
        journal: SessionJournal,
        claims: Claims,
        exchanges: Exchanges,
        wills: Wills,
        storing: Storing,
        metrics: GatewayMetrics,
        *,
        connections_max: int,
        clock: Clock,
        after: After,
        access: Access | None = None,
    ) -> None:
        """``access`` is None where clients are not told apart."""
        self._config = config
        self._turn = turn
        self._access = access
        self._connections_max = connections_max
        scram = None if access is None else access.scram
        self._methods = () if scram is None else (METHOD,)
        self._connect_rules = ConnectRules(config, methods=self._methods)
        self._subscriptions = subscriptions
        self._shared = shared
        self._delivery = delivery
        self._journal = journal
        self._clock = clock
        self._after = after
        self._exchanges = exchanges
        self._wills = wills
        self._storing = storing
        self._metrics = metrics
        self._claims = claims
        claims.hand_over = self._yield_to
        self._parked: dict[int, Parked] = {}
        self._is_shut_down = False
        #: Sessions whose expiry or will is due and claimed; whether more may be due.
        self._due_claimed = 0
        self._is_more_due = False
        #: Number -> connection, None while it is parked and once it has ended; the hot path reads
        #: it too.
        self._connections = turn.connections
        self._by_client_id: dict[str, Session] = {}
        journal.watch(self._by_client_id)
        #: Its keys in order, so that an operator's page of a million costs nobody a pause.
        self._names: SortedList = SortedList()
        #: Number -> time and keep alive of its CONNECT, without an object each, as there may be a
        #: million.
        self._connected_ms = array("Q", bytes(8 * len(turn.connections)))
        self._keep_alive_s = array("H", bytes(2 * len(turn.connections)))
        self._peer_log = LimitedLog(logger, monotonic_s=lambda: clock.monotonic_ms() / 1000)
        #: What one peer has brought about is done inside.
        self.boundary = self._peer_log.boundary(
            "the gateway failed at what a client sent, others are served"
        )
        self._subscribing = Subscribing(
            config, turn, subscriptions, shared, delivery, storing, metrics,
            clock=clock, access=access,
        )  # fmt: skip
        self._proofs: Proofs | None = None
        #: When logins end, and certificates of clients.
        self._endings = Endings()
        self._rechecks: Rechecks | None = None
        if access is not None:
            self._rechecks = Rechecks(turn, access, self._by_client_id, subscriptions)
            if scram is not None:
                self._proofs = Proofs(access, scram, turn.connections)
        self._closings = LimitedByKey(logger, monotonic_s=lambda: clock.monotonic_ms() / 1000)

    # --- connections ---------------------------------------------------------------------

    def opened(self, output: Output, number: int) -> None:
        self._metrics.connections_opened += 1
        self._connections[number] = Connection(output, number)

    def faulted(self, output: Output, number: int, fault: Fault) -> None:
        """Answer a peer whose stream has a fault; no more is read from this connection."""
        with self.boundary:
            self._faulted(output, number, fault)

    def _faulted(self, output: Output, number: int, fault: Fault) -> None:
        if fault is Fault.TRANSPORT:
            self._end_faulty(number, ReasonCode.PROTOCOL_ERROR, output.codec_fault(number))
        else:
            self._end_faulty(number, *_FAULTS[fault])

    def closed(self, number: int, reason: CloseReason) -> None:
        """Note that the connection is gone."""
        with self.boundary:
            self._closed(number, reason)

    def failed(self, number: int) -> None:
        """End a connection at whose packet this gateway has failed."""
        connection = self._connections[number]
        with self.boundary:
            self._end_faulty(number, ReasonCode.UNSPECIFIED_ERROR, "a fault of this gateway")
            return
        if connection is not None:
            connection.output.abort(number)
        if connection is not None and self._connections[number] is connection:
            with self.boundary:
                self._forget(connection)

    def _closed(self, number: int, reason: CloseReason) -> None:
        connection = self._connections[number]
        if connection is None:
            parked = self._parked.get(number)
            if parked is not None:
                self._drop_claim(parked)
                self._forget(parked.connection)
            else:
                connection = self._proving(number)
                if connection is not None:
                    self._forget(connection)
            return
        session = connection.session
        if reason is CloseReason.OUTPUT_FULL and session is not None:
            self._peer_log.warning(
                "a client reads too slowly and is disconnected, its output is full client_id=%r",
                session.client_id,
            )
        self._forget(connection)

    def end_all(self) -> None:
        """End the connections that the turn says have to end."""
        ended, self._turn.ended = self._turn.ended, []
        for one in ended:
            with self.boundary:
                self.end(*one)

    def end(self, connection: Connection, reason_code: int, why: str) -> None:
        """End a connection now: the turn has got to it, or who takes its session over waits."""
        session = connection.session
        if session is None:
            return  # ended meanwhile
        self._closings.warning(
            session.client_id,
            "the gateway closes a connection client_id=%r reason_code=0x%02x why=%s times=%d",
            session.client_id,
            reason_code,
            why,
        )
        self._close(connection, reason_code, why)

    def shed(self, number: int) -> None:
        """End a connection because of the memory that it takes.

        A client that does not read what waits for it cannot be told why; others are.
        """
        connection = self._connections[number]
        if connection is None:
            return  # ended meanwhile
        self._metrics.connections_shed += 1
        if connection.output.output_bytes(number):
            connection.output.abort(number)
            self._forget(connection)
        else:
            self._close(connection, ReasonCode.QUOTA_EXCEEDED, "all connections hold too much")

    def shut_down(self, why: str) -> None:
        """End every connection for good: sessions are stored and wills published."""
        self._is_shut_down = True
        self.disconnect_all(ReasonCode.SERVER_SHUTTING_DOWN, why)

    def disconnect_all(self, reason_code: int, why: str) -> None:
        """End every connection, for a shutdown or when this gateway's run is over."""
        for session in list(self._by_client_id.values()):
            if session.connection is not None:
                self._close(session.connection, reason_code, why)
        for parked in list(self._parked.values()):
            if parked.claim is not None:
                self._claims.overtake(parked.accepted.client_id)
            else:
                self._end_parked(parked, why)

    def _close(self, connection: Connection, reason_code: int, why: str) -> None:
        if connection.version == 5:
            reasoned = encode_disconnect(5, reason_code, reason_string(why))
            connection.send(connection.choose(reasoned, encode_disconnect(5, reason_code)))
        connection.output.close(connection.number)
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        """Drop a connection; its session is stored, or ends with it (session expiry 0)."""
        self._metrics.connections_closed += 1
        self._connections[connection.number] = None
        self._parked.pop(connection.number, None)
        if self._proofs is not None:
            self._proofs.forget(connection.number)
        session = connection.session
        if session is not None:
            listener = connection.output.listener(connection.number)
            self._metrics.clients[listener][connection.version] -= 1
            session.detach()
            self._shared.lost(session)
            self._leave(session)

    # --- the life of a session -----------------------------------------------------------

    def _leave(self, session: Session) -> None:
        """Take a session out of memory, when its client has gone."""
        will = session.particulars.will if session.has_particulars else None
        # When this run is over, what is stored has become the others' to go on with.
        is_stored = session.expiry_s > 0
        is_ours = not (is_stored and self._journal.is_over)
        if will is not None and (will.delay_s == 0 or not is_stored) and is_ours:
            session.particulars.will = None
            self._wills.publish(who(session), will)
        if is_stored and is_ours:
            self._storing.leave(session)
        self._metrics.sessions_now -= 1
        self._delivery.forget(session)
        self._metrics.subscriptions_now -= len(session.filters)
        if not self._is_shut_down:  # else the tree ends too, and a million filters take seconds
            for topic_filter in session.filters:
                self._subscriptions.remove(topic_filter, session)
            self._delivery.unwatch(session)
        self._shared.leave_all(session)
        del self._by_client_id[session.client_id]
        self._names.remove(session.client_id)

    def _resume(self, session: Session, stored: StoredSession) -> None:
        """Put a stored session into memory; it has its connection already."""
        acl = self._acl
        if acl is not None:
            whole, stored = stored, resumable(acl, session, stored)
            if len(stored.filters) < len(whole.filters):
                session.particulars.withdrawn = True
                self._metrics.subscriptions_not_allowed += len(whole.filters) - len(stored.filters)
                self._shared.ended(whole)
        stored = self._shared.resume(session, stored)
        for one in stored.filters:
            self._subscriptions.add(one.topic_filter, session, one.options)
            session.add_filter(one.topic_filter)
            if one.identifier:
                session.particulars.identifiers[one.topic_filter] = one.identifier
            self._metrics.subscriptions_now += 1
        for received in stored.received:
            known = received if received.queue else None
            session.particulars.received[received.packet_id] = known
        if stored.received:
            self._exchanges.resumed(session)
        self._delivery.resume(session, stored)
        self._metrics.sessions_resumed += 1

    def _discard(self, stored: StoredSession, claim: int = 0) -> Ticket:
        """End a stored session; its will is due at the latest now. [MQTT-3.1.2-8]

        ``claim`` is the number of the claim that this settles, 0 if there is none.
        """
        if stored.will is not None:
            self._wills.publish(_who_left(stored), stored.will)
        ticket = self._journal.end(stored.client_id, claim=claim)
        self._shared.ended(stored)
        return ticket

    def tick(self) -> bool:
        """Store how far delivery has got, end sessions and publish wills that are due.

        Called each second. Return whether more is due already.
        """
        if self._journal.is_in_doubt():
            return False
        self._end_logins()
        self._subscribing.give_up_waiting()
        self._delivery.keep_to_quota()
        delivery = self._delivery
        self._journal.tick(delivery.positions(), delivery.progress(), delivery.take_left())
        self._delivery.sys_topics.tick()
        self._shared.tick()
        self._claims.tick()
        return self._journal.is_first and self._do_due()

    def _do_due(self) -> bool:
        """End sessions and publish wills that are due; return whether more is due already.

        While other gateways live, each waits for its turn first.
        """
        due = self._journal.due(self._journal.clock.now_ms(), DUE_MAX)
        is_more = len(due) == DUE_MAX
        if not self._journal.others_live:
            for stored in due:
                self._do_due_one(stored, 0)
            return is_more
        self._is_more_due = is_more
        for stored in due:
            client_id = stored.client_id
            if client_id not in self._claims:
                self._due_claimed += 1
                self._claims.want(
                    client_id,
                    ClaimKind.AWAY,
                    go_on=partial(self._do_due_in_turn, client_id),
                    lost=self._due_lost,
                )
        self._claims.commit()
        return False

    def _do_due_one(self, stored: StoredSession, claim: int) -> bool:
        """End one session or publish its will, if that is due; return whether it was."""
        now_ms = self._journal.clock.now_ms()
        if self._journal.has_come(stored, stored.expires_ms, now_ms):
            self._metrics.sessions_expired += 1
            self._discard(stored, claim)
        elif stored.will and self._journal.has_come(stored, stored.will_due_ms, now_ms):
            self._wills.publish(_who_left(stored), stored.will)
            self._journal.save(msgspec.structs.replace(stored, will=None), claim=claim)
        else:
            return False
        return True

    def _do_due_in_turn(self, client_id: str, claim: int) -> None:
        self._due_claimed -= 1
        stored = None
        with suppress(ViewError):  # then the next tick tries again
            stored = self._journal.load(client_id)
        if stored is None or not self._do_due_one(stored, claim):
            self._claims.settle(client_id, claim)

    def _due_lost(self, _: str | None) -> None:
        self._due_claimed -= 1  # what it was is due still, or whoever has the session sees to it

    # --- other gateways ------------------------------------------------------------------

    def read_back(self, limit: int) -> bool:
        """Bring the view of sessions up to date, and do what other gateways' records ask for.

        About ``limit`` changes; return whether there are more at hand.
        """
        self._journal.is_in_doubt()  # then that is asked before anything is read
        is_more = self._journal.refresh(limit)
        if self._journal.is_over:
            self._begin_again("another gateway counts this one as lost")
            return True
        if self._journal.is_in_doubt():
            return is_more
        for heard in self._journal.take_heard():
            if isinstance(heard, ClaimHeard) and heard.takes and not self._journal.is_own(heard):
                self._yield_to(heard)
            elif heard is None:
                self._shared.run_ended()
            self._claims.hear(heard)
        if self._claims.go_on(limit):
            is_more = True
        if self._is_more_due and not self._due_claimed:
            self._do_due()
        self._claims.commit()
        return is_more

    def _yield_to(self, heard: ClaimHeard) -> None:
        """Hand over what another gateway has claimed, if it is here; then our claim is older."""
        session = self._by_client_id.get(heard.client_id)
        if session is not None and session.connection is not None:
            if heard.owner is None or session.owner in (None, heard.owner):
                self._take_over(heard.client_id)
        else:
            with suppress(ViewError):  # the other one's client tries again
                self._journal.release(heard)

    def check_life(self) -> None:
        """Begin again if this gateway has stood still for so long that the others take it for lost.

        To be called when something has been taken from clients: another gateway may have their
        sessions. Before that, ``SessionJournal.is_in_doubt`` asks.
        """
        if self._journal.has_stood_still:
            self._journal.abandon()
            self._begin_again("this gateway has stood still, so that others count it as lost")

    def _begin_again(self, why: str) -> None:
        """Drop all sessions without storing them: for the others, this gateway's run is over."""
        logger.error("%s: its clients are disconnected count=%d", why, len(self._by_client_id))
        self.disconnect_all(ReasonCode.SERVER_BUSY, "this gateway was taken for lost")
        self._claims.clear()
        self._journal.flush()
        self._journal.begin_again()

    def keep(self, packet: tuple[Any, ...]) -> bool:
        """Keep a packet of a connection that is parked; return False if it is not."""
        parked = self._parked.get(packet[0])
        if parked is None:
            return False
        parked.kept.append(packet)
        parked.kept_bytes += sum(len(part) for part in packet[2:] if isinstance(part, bytes))
        if parked.kept_bytes > parked.kept_bytes_max:
            self._end_parked(parked, "too much has come behind a CONNECT that waits")
        else:
            parked.connection.output.pause(packet[0])
        return True

    def _proving(self, number: int) -> Connection | None:
        """Return a connection that has no place in the table as its client proves who it is."""
        return None if self._proofs is None else self._proofs.connection(number)

    def _park(self, connection: Connection, accepted: Accepted, kept_bytes_max: int) -> Parked:
        """Have a CONNECT wait; nothing more is read from its client."""
        output, number = connection.output, connection.number
        parked = self._parked[number] = Parked(connection, accepted, kept_bytes_max)
        self._connections[number] = None
        output.pause(number)
        # Bytes that came with the CONNECT are cut into packets in the next turn.
        output.set_variant(number, accepted.version)
        return parked

    def _unpark(self, parked: Parked) -> None:
        del self._parked[parked.connection.number]
        self._connections[parked.connection.number] = parked.connection

    def _claim(self, parked: Parked) -> None:
        """Have a CONNECT wait until this gateway has its client identifier."""
        accepted = parked.accepted
        parked.kept_bytes_max = KEPT_BYTES_MAX
        self._set_terms(parked.connection, accepted)
        parked.claim = self._claims.want(
            accepted.client_id,
            ClaimKind.LASTING if accepted.expiry_s else ClaimKind.PASSING,
            go_on=partial(self._go_on_in_turn, parked),
            lost=partial(self._lose_parked, parked),
            owner=accepted.owner,
        )

    def _go_on_in_turn(self, parked: Parked, claim: int) -> None:
        """Go on with a CONNECT whose turn it is, and with what came behind it."""
        connection, accepted = parked.connection, parked.accepted
        self._unpark(parked)
        if self._has_room(accepted.client_id):
            self._accept(connection, accepted, claim)
            connection.output.resume(connection.number)
            self._turn.handle_again(connection, parked.kept)
        else:
            self._claims.settle(accepted.client_id, claim)
            self._refuse(connection, refuse_for_now(accepted, FULL))

    def _lose_parked(self, parked: Parked, why: str | None) -> None:
        if why is not None:
            self._refuse(parked.connection, refuse_for_now(parked.accepted, why))
            return
        # Taken over before it had an answer; CONNACK has no code for that.
        parked.connection.output.close(parked.connection.number)
        self._forget(parked.connection)

    def _end_parked(self, parked: Parked, why: str) -> None:
        self._drop_claim(parked)
        self._refuse(parked.connection, refuse_for_now(parked.accepted, why))

    def _drop_claim(self, parked: Parked) -> None:
        if parked.claim is not None:
            self._claims.drop(parked.accepted.client_id, parked.claim)

    # --- for the operator ----------------------------------------------------------------

    def configure(self, config: GatewayConfig) -> None:
        """Take the limits of ``config`` for CONNECTs and SUBSCRIBEs that come from now on."""
        self._config = config
        self._connect_rules = ConnectRules(config, methods=self._methods)
        self._subscribing.configure(config)

    def named(self, prefix: str, after: str, limit: int) -> list[str]:
        """Return the client identifiers of sessions in order, connected or away; ViewError."""
        connected = self.connected(prefix, after, limit)
        return sorted({*self._journal.named(prefix, after, limit), *connected})[:limit]

    def connected(self, prefix: str, after: str, limit: int) -> list[str]:
        """Return the client identifiers of clients that are connected here, in order."""
        behind = self._names.irange(max(after, prefix), inclusive=(after < prefix, True))
        return list(islice(takewhile(lambda name: name.startswith(prefix), behind), limit))

    def gateways(self) -> list[tuple[str, int, bool]]:
        """Return (name, when it last wrote, whether it is this one) of the gateways that live."""
        return self._journal.gateways()

    def live(self, client_id: str) -> tuple[Session, Connection] | None:
        """Return a session whose client is connected, and its connection."""
        session = self._by_client_id.get(client_id)
        if session is None or session.connection is None:
            return None
        return session, session.connection

    def connected_of(self, connection: Connection) -> Connected:
        """Return what is kept of the CONNECT of a connection that has a session."""
        number = connection.number
        return Connected(self._connected_ms[number], self._keep_alive_s[number])

    def wanting(self, name: str) -> Collection[Receiver]:
        """Return the sessions connected here, and the groups, that want a topic name."""
        return self._subscriptions.match(name)

    def kick(self, client_id: str) -> bool:
        """Disconnect a client; False if it is not connected here. Its session stays."""
        live = self.live(client_id)
        if live is None:
            return False
        code = ReasonCode.ADMINISTRATIVE_ACTION
        self._turn.end(live[1], code, "an operator has disconnected the client")
        return True

    def describe(self, client_id: str) -> StoredSession | None:
        """Return all of a session, connected or away, as the log keeps it; ViewError."""
        if is_shared(client_id):
            return self._shared.describe(client_id)
        session = self._by_client_id.get(client_id)
        return self._journal.load(client_id) if session is None else self._storing.state(session)

    def end_session(self, client_id: str, then: Then) -> bool:
        """End a session, and the connection if there is one; False if there is no such session.

        Its will is published. ``then`` is called when it is sure, or with the reason why it failed.
        ViewError; SessionInUseError if it is not a client's that could be ended.
        """
        session = self._by_client_id.get(client_id)
        if session is None or session.connection is None:
            return self._end_stored(client_id, then)
        was_stored = session.expiry_s > 0
        session.expiry_s = 0
        code = ReasonCode.ADMINISTRATIVE_ACTION
        self.end(session.connection, code, "an operator has ended the session")
        ticket = self._journal.end(client_id) if was_stored else SETTLED
        self._after(ticket, then)
        return True

    def _end_stored(self, client_id: str, then: Then) -> bool:
        """End a session that is not connected here; another gateway may have to give it up."""
        stored = self.describe(client_id)
        if stored is None:
            return False
        if not self._journal.others_live or is_shared(client_id):
            if stored.left_ms is None:
                raise SessionInUseError(client_id)
            ticket = self._shared.end(client_id) if is_shared(client_id) else self._discard(stored)
            self._after(ticket, then)
            return True

        def in_turn(claim: int) -> None:
            try:
                handed_over = self._journal.load(client_id)
            except ViewError as exc:
                self._claims.settle(client_id, claim)
                then(exc)
                return
            if handed_over is None:
                self._claims.settle(client_id, claim)
                then(None)
                return
            ticket = self._discard(handed_over, claim)
            self._after(ticket, partial(self._settle_refused, client_id, claim))
            self._after(ticket, then)

        def lost(why: str | None) -> None:
            then(GatewayError(why or "its client has connected meanwhile"))

        self._claims.want(client_id, ClaimKind.TO_END, go_on=in_turn, lost=lost)
        self._claims.commit()
        return True

    # --- packets -------------------------------------------------------------------------

    def malformed(self, number: int, reason_code: int, offset_bytes: int) -> None:
        """End a connection whose packet the frames kernel refused."""
        self._metrics.packets_malformed += 1
        connection = self._connections[number]
        if connection is not None and connection.session is None:
            self._refuse(connection, refuse_unread(reason_code, "the first packet is no CONNECT"))
            return
        what = _FRAME_FAULTS.get(ReasonCode(reason_code), "malformed packet")
        self._end_faulty(number, reason_code, f"{what} (at byte {offset_bytes})")

    def _end_faulty(self, number: int, reason_code: int, why: str) -> None:
        connection = self._connections[number]
        if connection is None:
            if number in self._parked:
                self._end_parked(self._parked[number], why)
            else:
                connection = self._proving(number)
                if connection is not None:
                    self._refuse(connection, refuse_unread(reason_code, f"{why} in a login"))
            return
        if connection.session is None:
            self._refuse(connection, refuse_unread(reason_code, f"{why} before CONNECT"))
        else:
            self.end(connection, reason_code, why)

    def handle(self, number: int, first_byte: int, body: bytes) -> None:
        """Handle one whole control packet; a fault, be it this gateway's, ends its connection."""
        with self.boundary:
            self._handle_one(number, first_byte, body)
            return
        self.failed(number)

    def _handle_one(self, number: int, first_byte: int, body: bytes) -> None:
        connection = self._connections[number]
        if connection is None:
            if self._proofs is not None:
                self._go_on_proved(self._proofs.go_on(number, first_byte, body))
            return  # or closed earlier in this turn
        if connection.session is None:
            self._connect(connection, first_byte, body)
            return
        try:
            self._handle(connection, connection.session, first_byte, body)
        except GatewayError as exc:
            self._metrics.packets_malformed += isinstance(exc, MalformedPacketError)
            self.end(connection, exc.reason_code, str(exc))

    def _handle(
        self, connection: Connection, session: Session, first_byte: int, body: bytes
    ) -> None:
        packet_type = first_byte >> 4
        if packet_type in (PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE):
            self._subscribing.handle(connection, session, first_byte, body)
        elif packet_type == PacketType.DISCONNECT:
            self._disconnected(connection, session, first_byte, body)
        elif packet_type == PacketType.AUTH and self._proofs is not None:
            self._proofs.again(connection, session, first_byte, body)
        else:
            raise unexpected(first_byte)

    def _disconnected(
        self, connection: Connection, session: Session, first_byte: int, body: bytes
    ) -> None:
        packet = decode_disconnect(connection.version, first_byte, body)
        # A gateway that grants no expiry cannot tell who has asked for one.
        may_set = session.expiry_s > 0 or self._config.session_expiry_max_s == 0
        check_disconnect(packet, asked_for_expiry=may_set)
        expiry_s = packet.properties.session_expiry_interval_s
        if expiry_s is not None:
            was_stored = session.expiry_s > 0
            session.expiry_s = min(expiry_s, self._config.session_expiry_max_s)
            if was_stored and not session.expiry_s:
                self._journal.end(session.client_id)
        if packet.reason_code == ReasonCode.NORMAL_DISCONNECTION and session.has_particulars:
            session.particulars.will = None  # [MQTT-3.14.4-3]
        connection.output.close(connection.number)
        self._forget(connection)

    # --- CONNECT -------------------------------------------------------------------------

    def expect(self, bodies: Iterable[tuple[int, bytes]]) -> None:
        """Decide about the CONNECTs of a turn, and find their stored sessions with one look.

        ``bodies`` are (number, body). What is decided takes effect when each packet is handled.
        """
        if self._journal.others_live:
            return  # they wait for their turns
        decided = self._turn.decided
        for number, body in bodies:
            connection = self._connections[number]
            if connection is not None and connection.session is None and number not in decided:
                decided[number] = self._decide(PacketType.CONNECT << 4, body)
        accepted = [one.client_id for one in decided.values() if isinstance(one, Accepted)]
        self._journal.fetch(accepted)

    def _decide(self, first_byte: int, body: bytes) -> Accepted | Refused:
        return self._connect_rules.decide(first_byte, body, new_client_id=_new_client_id)

    def _connect(self, connection: Connection, first_byte: int, body: bytes) -> None:
        decision = None
        if first_byte >> 4 == PacketType.CONNECT:
            decision = self._turn.decided.pop(connection.number, None)
        if decision is None:
            decision = self._decide(first_byte, body)
        if isinstance(decision, Refused):
            self._refuse(connection, decision)
        elif self._access is None:
            self._admit(connection, decision)
        else:
            self._log_in(connection, decision, self._access)

    def _admit(self, connection: Connection, accepted: Accepted) -> None:
        """Go on with a CONNECT whose sender is known, if that matters; it may have to wait."""
        if not self._has_room(accepted.client_id):
            self._refuse(connection, refuse_for_now(accepted, FULL))
        elif not self._journal.others_live:
            if accepted.client_id in self._claims:
                self._claims.overtake(accepted.client_id)
            self._accept(connection, accepted, 0)
        elif self._is_owned(accepted):
            self._refuse(connection, self._not_owned(accepted))
        else:
            self._claim(self._park(connection, accepted, KEPT_BYTES_MAX))

    def _is_owned(self, accepted: Accepted) -> bool:
        """Whether another user has the session, as far as is known here; else a claim tells."""
        if accepted.owner is None:
            return False
        live = self._by_client_id.get(accepted.client_id)
        if live is not None:
            return not accepted.may_have(live.owner)
        with suppress(ViewError):
            stored = self._journal.load(accepted.client_id)
            return stored is not None and not self._is_theirs(accepted, stored)
        return False

    def _is_theirs(self, accepted: Accepted, stored: StoredSession) -> bool:
        """Whether a client may go on with a stored session, or begin in its place."""
        now_ms = self._journal.clock.now_ms()
        is_expired = self._journal.has_come(stored, stored.expires_ms, now_ms)
        return is_expired or accepted.may_have(stored.owner)

    def _not_owned(self, accepted: Accepted) -> Refused:
        self._metrics.sessions_not_owned += 1
        return refuse(accepted, ReasonCode.NOT_AUTHORIZED, NOT_OWNED)

    # --- logins and rights ---------------------------------------------------------------

    @property
    def _acl(self) -> Acl | None:
        return None if self._access is None else self._access.acl

    def _log_in(self, connection: Connection, accepted: Accepted, access: Access) -> None:
        """Go on with a CONNECT when it is known who has sent it."""
        parked: Parked | None = None

        def known(found: Identity | Denied) -> None:
            assert parked is not None, "it was not known at once"
            self.check_life()
            if self._parked.get(connection.number) is parked:  # its client has not gone meanwhile
                self._unpark(parked)
                self._logged_in(connection, accepted, found)
                claimed = self._parked.get(connection.number)
                if claimed is None:
                    connection.output.resume(connection.number)
                    self._turn.handle_again(connection, parked.kept)
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
                self._refuse(connection, refused)
            return
        found = access.logins.log_in(shown, known)
        if found is None:
            parked = self._park(connection, accepted, self._config.connect_bytes_max)
        else:
            self._logged_in(connection, accepted, found)

    def _go_on_proved(self, proved: Proved | None) -> None:
        """Go on with a CONNECT whose client has proved who it is, or has not."""
        if proved is None:
            return
        connection, accepted, outcome = proved
        if outcome is None:
            connection.output.close(connection.number)
            self._forget(connection)
        elif isinstance(outcome, Refused):
            self._refuse(connection, outcome)
        else:
            self._logged_in(connection, accepted, outcome)

    def _logged_in(
        self, connection: Connection, accepted: Accepted, found: Identity | Denied
    ) -> None:
        if isinstance(found, Denied):
            self._refuse(connection, refuse(accepted, found.reason_code, found.why))
            return
        certificate = connection.output.identity(connection.number)
        if certificate is not None:
            found = dataclasses.replace(found, certificate_name=certificate.name or "")
        accepted = accepted.as_user(found)
        acl, will = self._acl, accepted.will
        if acl is not None and will is not None:
            whose = Who(found.user_name, accepted.client_id, found.rules, found.certificate_name)
            is_retained = will.retain and not acl.may_retain(whose, will.topic)
            if acl.publish_qos(whose, will.topic) < will.qos or is_retained:
                self._metrics.wills_not_allowed += 1
                why = "the client has no right to publish its will"
                self._refuse(connection, refuse(accepted, ReasonCode.NOT_AUTHORIZED, why))
                return
        self._admit(connection, accepted)

    def _end_logins(self) -> None:
        """End the connections whose logins are over, by a token or the client's certificate."""
        for number in self._endings.due(self._clock.now_ms() / 1000):
            connection = self._connections[number]
            if connection is not None and connection.session is not None:
                self.end(connection, ReasonCode.NOT_AUTHORIZED, "the login has expired")

    def access_changed(self) -> None:
        """Have all sessions looked at: logins or rights have changed."""
        if self._rechecks is not None:
            self._rechecks.begin()

    def recheck(self) -> bool:
        """Look at some of them; return whether there are more."""
        if self._rechecks is None:
            return False
        self.check_life()
        return self._rechecks.look()

    # --- the session of a CONNECT --------------------------------------------------------

    def _has_room(self, client_id: str) -> bool:
        """Return whether the client may connect: it is new and there is room, or it takes over."""
        return client_id in self._by_client_id or len(self._by_client_id) < self._connections_max

    def _accept(self, connection: Connection, accepted: Accepted, claim: int) -> None:
        """Begin or resume a session; ``claim`` is that which is settled, 0 if there is none."""
        client_id = accepted.client_id
        live = self._by_client_id.get(client_id)
        if live is not None:
            if not accepted.may_have(live.owner):
                self._claims.settle(client_id, claim)
                self._refuse(connection, self._not_owned(accepted))
                return
            self._take_over(client_id)
        try:
            stored = self._journal.load(client_id)
            if stored is not None:
                self._shared.check(stored)
        except ViewError as exc:
            why = f"stored sessions cannot be found for the moment: {exc}"
            self._claims.settle(client_id, claim)
            self._refuse(connection, refuse_for_now(accepted, why))
            return
        if stored is not None:
            if not self._is_theirs(accepted, stored):
                self._claims.settle(client_id, claim)
                self._refuse(connection, self._not_owned(accepted))
                return
            stored = self._what_is_left(accepted, stored)
        session = self._begin(connection, accepted)
        is_present = stored is not None
        connection.send(self._connect_rules.connack(accepted, session_present=is_present))
        if stored is not None:
            self._resume(session, stored)
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

    def _what_is_left(self, accepted: Accepted, stored: StoredSession) -> StoredSession | None:
        """Return what a client goes on with of a stored session, None if it begins anew."""
        now_ms = self._journal.clock.now_ms()
        is_expired = self._journal.has_come(stored, stored.expires_ms, now_ms)
        if accepted.clean_start or is_expired:  # [MQTT-3.1.2-4]
            self._discard(stored)
            return None
        if stored.will and self._journal.has_come(stored, stored.will_due_ms, now_ms):
            # No tick has come yet since it was due, as after a crash.
            self._wills.publish(_who_left(stored), stored.will)
        return stored

    def _begin(self, connection: Connection, accepted: Accepted) -> Session:
        """Return a new session in memory, with its connection on the terms that are agreed."""
        client_id, identity, number = accepted.client_id, accepted.identity, connection.number
        version = connection.version = accepted.version
        connection.packet_bytes_max = accepted.packet_bytes_max
        connection.topic_alias_max = accepted.topic_alias_max
        connection.wants_reasons = accepted.wants_reasons
        session = Session(client_id, expiry_s=accepted.expiry_s, identity=identity)
        if accepted.will is not None:
            session.particulars.will = accepted.will
        session.attach(connection, inflight_max=accepted.inflight_max)
        certificate = connection.output.identity(number)
        self._endings.begin(
            number,
            identity.expires_s if identity is not None else None,
            certificate.expires_s if certificate is not None else None,
        )
        self._by_client_id[client_id] = session
        self._names.add(client_id)
        self._connected_ms[number] = self._clock.now_ms()
        self._keep_alive_s[number] = accepted.keep_alive_s
        self._metrics.sessions_now += 1
        self._metrics.clients[connection.output.listener(number)][version] += 1
        self._set_terms(connection, accepted)
        return session

    def _stored_again(self, session: Session, claim: int, error: MotelogError | None) -> None:
        """Note what has become of the record of a CONNECT."""
        if claim:
            self._settle_refused(session.client_id, claim, error)
        self._delivery.stored_again(session, error)

    def _settle_refused(self, client_id: str, claim: int, error: MotelogError | None) -> None:
        """Settle a claim otherwise if the record that does so is refused."""
        if error is not None:
            self._claims.settle(client_id, claim)

    def _set_terms(self, connection: Connection, accepted: Accepted) -> None:
        output, number = connection.output, connection.number
        output.set_variant(number, accepted.version)
        output.set_limits(
            number,
            frame_bytes_max=self._config.packet_bytes_max,
            idle_s_max=accepted.idle_s_max,
        )

    def _take_over(self, client_id: str) -> None:
        """End the connection that has this client identifier. [MQTT-3.1.4-3]"""
        session = self._by_client_id.get(client_id)
        if session is not None and session.connection is not None:
            self._metrics.sessions_taken_over += 1
            self.end(session.connection, ReasonCode.SESSION_TAKEN_OVER, "taken over")

    def _refuse(self, connection: Connection, refused: Refused) -> None:
        output, number = connection.output, connection.number
        self._metrics.connections_refused += 1
        self._peer_log.warning(
            "the gateway refuses a connection peer=%s:%d client_id=%r reason_code=0x%02x why=%s",
            *output.peer(number),
            refused.client_id,
            refused.reason_code,
            refused.why,
        )
        if refused.connack:
            output.send(number, refused.connack)
        output.close(number)
        self._forget(connection)


def _who_left(stored: StoredSession) -> Who:
    certificate_name = "" if stored.will is None else stored.will.certificate_name
    return Who(stored.owner or "", stored.client_id, certificate_name=certificate_name)


def _new_client_id() -> str:
    return f"motelog-{secrets.token_hex(8)}"
