"""Assembles the parts of one gateway, in the same way for the server and for the tests' stage.

Owns: Surroundings, GatewayParts, and which part knows which. Must not touch: sockets and tasks
(``server``), the work of the parts.

    listener -> clients, publishing, delivery -> turn -> commit -> log      all of them -> output
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from motelog.core.clock import Clock
from motelog.gateway.access.access import Access
from motelog.gateway.config import GatewayConfig
from motelog.gateway.connect.admission import Admission
from motelog.gateway.connect.clients import Clients
from motelog.gateway.connect.connections import Connections
from motelog.gateway.connect.expiry import Expiry
from motelog.gateway.connect.life import Life
from motelog.gateway.connect.memory import Memory
from motelog.gateway.connect.parking import Parking
from motelog.gateway.connect.parts import ConnectionParts, SessionParts
from motelog.gateway.connect.proofs import Proofs
from motelog.gateway.connect.rechecks import Rechecks
from motelog.gateway.connect.run import Run
from motelog.gateway.connect.table import SessionTable
from motelog.gateway.deliver.catch_up import Quota
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.deliver.marking import Marking
from motelog.gateway.deliver.offers import Offers
from motelog.gateway.deliver.sender import Sender
from motelog.gateway.deliver.watched import WatchedQueues
from motelog.gateway.listener import Listener
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.mapping.topic_mapping import TopicMapping
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.operator.operator import Operator
from motelog.gateway.operator.sessions import OperatorSessions
from motelog.gateway.publish.acknowledge import Answers
from motelog.gateway.publish.commit import Commit
from motelog.gateway.publish.exchanges import Exchanges
from motelog.gateway.publish.parts import PublishParts
from motelog.gateway.publish.publishing import Publishing
from motelog.gateway.publish.rates import Rates
from motelog.gateway.publish.retaining import Retaining
from motelog.gateway.publish.routes import Routes
from motelog.gateway.publish.wills import Wills
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.inflight import PACKET_ID_MAX
from motelog.gateway.sessions.output import Output
from motelog.gateway.sessions.subscriptions import SubscriptionTree
from motelog.gateway.state.claims import TOPICS_MS_MAX, Claims
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.subscribe.sharing import SharedSubscriptions
from motelog.gateway.subscribe.storing import Storing
from motelog.gateway.subscribe.subscribing import Subscribing
from motelog.gateway.turn import Turn

#: Connections beyond ``connections_max``, for peers that have not sent CONNECT. With them, a full
#: gateway can still answer a CONNECT: it refuses a new client, but a client whose old connection is
#: half-open can take over its session. If these are taken too, further peers wait until one of them
#: sends CONNECT or times out.
CONNECTIONS_RESERVED: Final = 256


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """The parts of one gateway that its users need."""

    turn: Turn
    delivery: Delivery
    clients: Clients
    sessions: OperatorSessions
    answers: Answers
    journal: SessionJournal
    listener: Listener
    operator: Operator
    rates: Rates
    memory: Memory
    retaining: Retaining

    def configure(self, config: GatewayConfig) -> None:
        """Apply the limits of ``config`` while the gateway runs; only LIVE keys may differ."""
        self.clients.configure(config)
        self.delivery.limit(_quota_of(config))
        self.retaining.limit(**_retained_limits(config))
        self.rates.limit(**_rates_of(config))
        self.memory.bytes_max = config.memory_bytes_max


def _quota_of(config: GatewayConfig) -> Quota:
    return Quota(
        config.session_messages_max,
        config.session_age_max_s * 1000,
        config.session_bytes_max,
        config.offline_qos_0,
    )


def _retained_limits(config: GatewayConfig) -> dict[str, int]:
    return {
        "count_max": config.retained_count_max,
        "client_count_max": config.retained_client_count_max,
        "bytes_max": config.retained_bytes_max,
    }


def _rates_of(config: GatewayConfig) -> dict[str, int]:
    return {
        "publishes_per_s": config.publish_rate_max,
        "publish_bytes_per_s": config.publish_bytes_per_s_max,
        "connects_per_s": config.connect_rate_max,
    }


def random_skip() -> int:
    """Return how far to skip ahead, past packet identifiers that a client may still hold."""
    return secrets.randbelow(PACKET_ID_MAX)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a gateway is built on. ``access`` is None if clients do not log in."""

    config: GatewayConfig
    log: LogPort
    journal: SessionJournal
    retained: RetainedStore
    output: Output
    metrics: GatewayMetrics
    clock: Clock
    access: Access | None = None


def assemble(
    around: Surroundings,
    *,
    connections_max: int,
    wake: Callable[[], None],
    meet: Callable[[], None],
    random_skip: Callable[[], int] = random_skip,
) -> GatewayParts:
    """Make a gateway that reads and writes ``around.log``, and sends through ``around.output``.

    ``connections_max`` clients may be connected at once; the output may open CONNECTIONS_RESERVED
    more connections.
    ``random_skip`` is as for ``Marking``.
    ``wake`` is called when ``listener.deliver`` has something to do outside a turn, ``meet`` when
    ``clients.read_back`` has claims to append for other gateways to read.
    """
    config, log, journal, metrics = around.config, around.log, around.journal, around.metrics
    log.create_topic(config.default_topic, config.topic_queue_count)
    mapping = TopicMapping(config.topic_map, default_topic=config.default_topic)
    turn = Turn([None] * (connections_max + CONNECTIONS_RESERVED), wake=wake)
    maximum = config.receive_maximum
    answers = Answers(
        turn,
        log,
        around.output,
        metrics,
        receive_maximum=maximum,
        clock=around.clock,
    )
    journal.after = answers.after
    exchanges = Exchanges(turn, log, journal, answers, clock=around.clock, receive_maximum=maximum)
    sessions = _sessions(around, turn, mapping, exchanges, meet, random_skip)
    retaining = Retaining(around.retained, **_retained_limits(config))
    publish = _publish(around, turn, mapping, exchanges, retaining, answers)
    parts = _connections(around, turn, sessions, publish, retaining)
    clients = _clients(around, turn, sessions, parts, connections_max)
    listener = Listener(
        turn, around.output, clients, sessions, publish, clock=around.clock, access=around.access
    )
    log.on_settled(listener.settled)
    seen = OperatorSessions(sessions, parts.connections, parts.expiry, answers.after)
    return GatewayParts(
        turn,
        sessions.delivery,
        clients,
        seen,
        answers,
        journal,
        listener,
        _operator(around, seen, sessions.delivery),
        publish.rates,
        Memory(around.output, parts.connections, metrics, bytes_max=config.memory_bytes_max),
        retaining,
    )


def _operator(around: Surroundings, seen: OperatorSessions, delivery: Delivery) -> Operator:
    return Operator(
        around.log,
        around.retained,
        seen,
        delivery,
        listeners=around.metrics.listeners,
        clock=around.clock,
        after=around.journal.after,
    )


def _sessions(
    around: Surroundings,
    turn: Turn,
    mapping: TopicMapping,
    exchanges: Exchanges,
    meet: Callable[[], None],
    random_skip: Callable[[], int],
) -> SessionParts:
    journal, metrics, after = around.journal, around.metrics, around.journal.after
    subscriptions: SubscriptionTree[Receiver] = SubscriptionTree()
    delivery = _delivery(around, turn, mapping, subscriptions, random_skip)

    def is_known(client_id: str, waited_ms: int) -> bool:
        """Whether this gateway knows all that a stored session refers to."""
        stored = journal.load(client_id)
        if stored is None:
            return True
        knows_topics = waited_ms >= TOPICS_MS_MAX or delivery.knows_queues(stored)
        return knows_topics and exchanges.knows(stored)

    claims = Claims(journal, clock=around.clock, after=after, is_at_hand=is_known, soon=meet)
    shared = SharedSubscriptions(subscriptions, delivery, journal, claims, metrics)
    storing = Storing(subscriptions, shared, delivery, journal)
    table = SessionTable(len(turn.connections))
    return SessionParts(table, subscriptions, shared, delivery, journal, claims, storing, metrics)


def _delivery(
    around: Surroundings,
    turn: Turn,
    mapping: TopicMapping,
    subscriptions: SubscriptionTree[Receiver],
    random_skip: Callable[[], int],
) -> Delivery:
    journal, metrics = around.journal, around.metrics
    queues = WatchedQueues(around.log, mapping)
    marking = Marking(
        turn,
        queues,
        journal,
        metrics,
        output_bytes_high=around.config.output_bytes_high,
        random_skip=random_skip,
    )
    sender = Sender(subscriptions, marking, metrics)
    offers = Offers(subscriptions, mapping, sender, metrics)
    return Delivery(
        turn,
        around.log,
        queues,
        offers,
        subscriptions,
        journal,
        around.retained,
        quota=_quota_of(around.config),
    )


def _publish(
    around: Surroundings,
    turn: Turn,
    mapping: TopicMapping,
    exchanges: Exchanges,
    retaining: Retaining,
    answers: Answers,
) -> PublishParts:
    config, log, metrics = around.config, around.log, around.metrics
    routes = Routes(
        mapping,
        log,
        create_topics=config.create_topics,
        topics_max=config.topics_max,
        topic_queue_count=config.topic_queue_count,
        topic_bytes_max=config.topic_bytes_max,
    )
    commit = Commit(turn, log, around.journal, exchanges, answers, around.output, metrics)
    publishing = Publishing(
        turn,
        routes,
        exchanges,
        retaining,
        commit,
        metrics,
        topic_alias_max=config.topic_alias_max,
        access=around.access,
    )
    rates = Rates(around.output, **_rates_of(config))
    return PublishParts(rates, routes, publishing, exchanges, commit, answers)


def _connections(
    around: Surroundings,
    turn: Turn,
    sessions: SessionParts,
    publish: PublishParts,
    retaining: Retaining,
) -> ConnectionParts:
    access, clock, metrics = around.access, around.clock, around.metrics
    after = publish.answers.after
    wills = Wills(
        around.log, publish.routes, retaining, metrics, after=after, clock=clock, access=access
    )
    parking = Parking(turn, sessions.claims)
    proofs = None
    if access is not None and access.scram is not None:
        proofs = Proofs(access, access.scram, turn.connections)
    life = Life(sessions, publish.exchanges, wills, access)
    ends = Connections(turn, parking, proofs, life, metrics, clock=clock)
    run = Run(sessions, parking, ends, life)
    return ConnectionParts(parking, proofs, ends, life, run, Expiry(sessions, wills))


def _clients(
    around: Surroundings,
    turn: Turn,
    sessions: SessionParts,
    parts: ConnectionParts,
    connections_max: int,
) -> Clients:
    config, access, clock = around.config, around.access, around.clock
    admission = Admission(
        config, turn, sessions, parts, connections_max=connections_max, access=access
    )
    subscribing = Subscribing(
        config,
        turn,
        sessions.subscriptions,
        sessions.shared,
        sessions.delivery,
        sessions.metrics,
        clock=clock,
        access=access,
    )
    rechecks = None
    if access is not None:
        rechecks = Rechecks(turn, access, sessions.table.by_client_id, sessions.subscriptions)
    return Clients(config, turn, sessions, parts, admission, subscribing, rechecks, clock=clock)
