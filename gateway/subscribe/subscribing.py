"""SUBSCRIBE and UNSUBSCRIBE: the shell that applies what the rules decide.

Owns: the order in which a decision takes effect, SUBSCRIBEs that wait for the log, the answers.
Must not touch: what a client may ask for (``sessions.subscribe_rules``), delivery plans (it calls
``Delivery`` for each subscription), how a session is stored (``storing``).
Invariant: the SUBSCRIBE and UNSUBSCRIBE packets of one client take effect in order: those that
follow a SUBSCRIBE that waits, wait too.
Spec: MQTT 5.0 sections 3.8 to 3.11.

    SUBSCRIBE -> decided -> where streams begin and queues end -> tree, plans -> record -> SUBACK
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from motelog.core.clock import Clock
from motelog.core.errors import MotelogError
from motelog.core.limited_log import LimitedLog
from motelog.gateway.access.access import Access
from motelog.gateway.config import GatewayConfig
from motelog.gateway.deliver.delivery import Delivery, Starts
from motelog.gateway.deliver.sys_topics import SYS_PREFIX
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.mqtt.topics import SHARED_PREFIX, matched_filter
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.stream import StreamStart
from motelog.gateway.sessions.subscribe_rules import (
    Granted,
    NotGranted,
    Subscribed,
    subscribe,
    unsubscribe,
)
from motelog.gateway.sessions.subscriptions import SubscriptionTree
from motelog.gateway.subscribe.sharing import SharedSubscriptions
from motelog.gateway.turn import Turn

logger = logging.getLogger(__name__)

#: How long a SUBSCRIBE waits for brokers to return the tails of queues; clients wait longer than
#: that for SUBACK.
TAILS_MS_MAX: Final = 4_000
#: Maximum SUBSCRIBE and UNSUBSCRIBE packets of one client that wait for an earlier SUBSCRIBE.
WAITING_MAX: Final = 16


class Waits(NamedTuple):
    """A SUBSCRIBE that waits for the log to say where queues end and streams begin.

    ``later`` has the first byte and body of later packets that change subscriptions too.
    ``give_up`` carries it out without the queues' tails.
    """

    begun_ms: int
    later: list[tuple[int, bytes]]
    give_up: Callable[[], None]


class Subscribing:
    """Changes the subscriptions of one gateway's connected sessions."""

    def __init__(
        self,
        config: GatewayConfig,
        turn: Turn,
        subscriptions: SubscriptionTree[Receiver],
        shared: SharedSubscriptions,
        delivery: Delivery,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
        access: Access | None,
    ) -> None:
        self._config = config
        self._turn = turn
        self._subscriptions = subscriptions
        self._shared = shared
        self._delivery = delivery
        self._metrics = metrics
        self._clock = clock
        self._access = access
        self._peer_log = LimitedLog(logger, monotonic_s=lambda: clock.monotonic_ms() / 1000)
        self._waiting: dict[Session, Waits] = {}

    def configure(self, config: GatewayConfig) -> None:
        """Apply the limits of ``config`` to SUBSCRIBEs from now on."""
        self._config = config

    def handle(
        self, connection: Connection, session: Session, first_byte: int, body: bytes
    ) -> None:
        """Handle a SUBSCRIBE or UNSUBSCRIBE; GatewayError if the connection has to end."""
        waits = self._waiting.get(session)
        if waits is not None:
            if len(waits.later) == WAITING_MAX:
                why = "too many SUBSCRIBE and UNSUBSCRIBE packets wait for an earlier one"
                raise GatewayError(why, reason_code=ReasonCode.QUOTA_EXCEEDED)
            waits.later.append((first_byte, body))
        elif first_byte >> 4 == PacketType.SUBSCRIBE:
            self._subscribe(connection, session, first_byte, body)
        else:
            self._unsubscribe(connection, session, first_byte, body)

    def _subscribe(
        self, connection: Connection, session: Session, first_byte: int, body: bytes
    ) -> None:
        version, acl = connection.version, None if self._access is None else self._access.acl
        subscribed = subscribe(self._config, session, version, first_byte, body, acl)
        suback = connection.choose(subscribed.reasoned, subscribed.suback)
        connection.check_size(suback)  # without an answer, nothing is granted
        reads = self._delivery.reads
        starts = {
            one.topic_filter: one.start
            for one in subscribed.decisions
            if isinstance(one, Granted)
            and (one.start or not reads(matched_filter(one.topic_filter)))
        }
        if starts:
            self._find_starts(session, subscribed, starts, suback)
        else:
            self._apply(connection, session, subscribed, {}, suback)

    def _apply(
        self,
        connection: Connection,
        session: Session,
        subscribed: Subscribed,
        starts: dict[str, Starts],
        suback: bytes,
    ) -> None:
        """Carry out the decisions; ``starts`` has the offsets at which streams begin."""
        changed = []
        for decision in subscribed.decisions:
            if isinstance(decision, Granted):
                changed.append(decision.topic_filter)
                self._add_subscription(session, decision, starts)
            else:
                self._log_refusal(session, decision)
        self._answer_stored(connection, session, changed, suback)

    def _find_starts(
        self,
        session: Session,
        subscribed: Subscribed,
        wanted: dict[str, StreamStart | None],
        suback: bytes,
    ) -> None:
        """Carry out a SUBSCRIBE when the log has said where its streams begin, and queues end.

        The client must get exactly the messages published after SUBACK, even after a crash. So each
        queue's tail has to be known: otherwise the subscription would begin later, or a stored one
        at the beginning of the queue. Until then, the client's other changes to its subscriptions
        wait.
        """
        starts: dict[str, Starts] = {}

        def found(topic_filter: str, of_filter: Starts) -> None:
            if self._waiting.get(session) is not waits:
                return  # it has been given up
            starts[topic_filter] = of_filter
            if len(starts) == len(wanted):
                self._found_starts(session, subscribed, starts, suback)

        def give_up() -> None:
            for topic_filter, start in wanted.items():
                if start is None and topic_filter not in starts:
                    found(topic_filter, {})

        waits = Waits(self._clock.monotonic_ms(), [], give_up)
        self._waiting[session] = waits
        for topic_filter, start in wanted.items():
            then = partial(found, topic_filter)
            self._delivery.find_starts(matched_filter(topic_filter), start, then)

    def _found_starts(
        self, session: Session, subscribed: Subscribed, starts: dict[str, Starts], suback: bytes
    ) -> None:
        later = self._waiting.pop(session).later
        connection = session.connection
        if connection is not None:
            try:
                self._apply(connection, session, subscribed, starts, suback)
            except GatewayError as exc:
                self._turn.end(connection, exc.reason_code, str(exc))
        for topic_filter in starts:
            self._delivery.end_starts(matched_filter(topic_filter))
        if later and connection is not None:
            number = connection.number
            packets = [(number, first_byte, None, body, 0, None) for first_byte, body in later]
            self._turn.handle_again(connection, packets)

    def give_up_waiting(self) -> None:
        """Carry out SUBSCRIBEs that have waited too long for the tails of brokers that are away."""
        now_ms = self._clock.monotonic_ms()
        for waits in list(self._waiting.values()):
            if now_ms - waits.begun_ms >= TAILS_MS_MAX:
                waits.give_up()

    def _answer_stored(
        self, connection: Connection, session: Session, changed: Sequence[str], packet: bytes
    ) -> None:
        """Send an answer once the filters that it confirms are in the log."""
        if not session.expiry_s:
            connection.send(packet)
            self._delivery.begin_replays(session)
            return

        def stored(error: MotelogError | None) -> None:
            if connection.session is not session:
                return  # ended meanwhile
            if error is None:
                connection.send(packet)
                self._delivery.begin_replays(session)
            else:
                code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
                self._turn.end(connection, code, f"the session cannot be stored: {error}")

        self._turn.store(session, changed, stored)

    def _add_subscription(
        self, session: Session, granted: Granted, starts: dict[str, Starts]
    ) -> None:
        topic_filter = granted.topic_filter
        if topic_filter.startswith(SHARED_PREFIX):
            self._shared.join(session, topic_filter, granted.options, granted.identifier)
            return
        is_new = self._subscriptions.add(topic_filter, session, granted.options)
        if is_new:
            session.add_filter(topic_filter)
            self._metrics.subscriptions_now += 1
        if granted.start:
            self._delivery.stream(session, topic_filter, starts[topic_filter], is_new=is_new)
        elif is_new:
            self._delivery.subscribe(session, topic_filter)
        if granted.replays:
            self._delivery.add_replay(session, topic_filter)
        if granted.identifier:
            session.particulars.identifiers[topic_filter] = granted.identifier
        elif session.has_particulars:
            session.particulars.identifiers.pop(topic_filter, None)
        if granted.replays and topic_filter.startswith(SYS_PREFIX):
            self._delivery.sys_topics.subscribed(session, topic_filter)

    def _log_refusal(self, session: Session, refused: NotGranted) -> None:
        self._metrics.subscriptions_not_allowed += refused.reason_code == ReasonCode.NOT_AUTHORIZED
        self._peer_log.warning(
            "the gateway refuses a subscription client_id=%r filter=%r reason_code=0x%02x why=%s",
            session.client_id,
            refused.topic_filter,
            refused.reason_code,
            refused.why,
        )

    def _unsubscribe(
        self, connection: Connection, session: Session, first_byte: int, body: bytes
    ) -> None:
        unsubscribed = unsubscribe(session, connection.version, first_byte, body)
        connection.check_size(unsubscribed.unsuback)
        for topic_filter in unsubscribed.removed:
            if topic_filter.startswith(SHARED_PREFIX):
                self._shared.leave(session, topic_filter)
            else:
                self._remove_subscription(session, topic_filter)
        self._answer_stored(connection, session, unsubscribed.removed, unsubscribed.unsuback)

    def _remove_subscription(self, session: Session, topic_filter: str) -> None:
        self._subscriptions.remove(topic_filter, session)
        session.remove_filter(topic_filter)
        self._metrics.subscriptions_now -= 1
        self._delivery.unsubscribe(session, topic_filter)
