"""Assembles the parts of one gateway, in the same way for the server and for the tests' stage.

Owns: GatewayParts, and which part knows which. Must not touch: sockets and tasks (``server``), the
work of the parts.

    listener -> clients, publishing, delivery -> turn -> commit -> log      all of them -> output
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from motelog.core.clock import Clock
from motelog.gateway.access.access import Access
from motelog.gateway.config import GatewayConfig
from motelog.gateway.connect.admission import Admission
from motelog.gateway.connect.clients import CONNECTIONS_RESERVED, Clients
from motelog.gateway.connect.connections import Connections
from motelog.gateway.connect.expiry import Expiry
from motelog.gateway.connect.life import Life
from motelog.gateway.connect.memory import Memory
from motelog.gateway.connect.parking import Parking
from motelog.gateway.connect.proofs import Proofs
from motelog.gateway.connect.rechecks import Rechecks
from motelog.gateway.connect.run import Run
from motelog.gateway.connect.table import SessionTable
from motelog.gateway.deliver.catch_up import Quota
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.listener import Listener
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.mapping.topic_mapping import TopicMapping
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.operator.operator import Operator
from motelog.gateway.operator.sessions import OperatorSessions
from motelog.gateway.output import Output
from motelog.gateway.publish.acknowledge import Answers
from motelog.gateway.publish.commit import Commit
from motelog.gateway.publish.exchanges import Exchanges
from motelog.gateway.publish.publishing import Publishing
from motelog.gateway.publish.rates import Rates
from motelog.gateway.publish.retaining import Retaining
from motelog.gateway.publish.routes import Routes
from motelog.gateway.publish.wills import Wills
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.inflight import PACKET_ID_MAX
from motelog.gateway.sessions.subscriptions import SubscriptionTree
from motelog.gateway.state.claims import TOPICS_MS_MAX, Claims
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.subscribe.sharing import SharedSubscriptions
from motelog.gateway.subscribe.storing import Storing
from motelog.gateway.subscribe.subscribing import Subscribing
from motelog.gateway.turn import Turn


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


def assemble(
    config: GatewayConfig,
    log: LogPort,
    journal: SessionJournal,
    retained: RetainedStore,
    output: Output,
    metrics: GatewayMetrics,
    clock: Clock,
    *,
    connections_max: int,
    wake: Callable[[], None],
    meet: Callable[[], None],
    access: Access | None = None,
    random_skip: Callable[[], int] = random_skip,
) -> GatewayParts:
    """Make a gateway on ``log`` that sends through ``output``.

    ``connections_max`` clients may be connected at once; ``output`` may open CONNECTIONS_RESERVED
    more connections.
    ``access`` is None if clients do not log in.
    ``random_skip`` is as for ``Sender``.
    ``wake`` is called when ``listener.deliver`` has something to do outside a turn, ``meet`` when
    ``clients.read_back`` has claims to append for other gateways to read.
    """
    log.create_topic(config.default_topic, config.topic_queue_count)
    mapping = TopicMapping(config.topic_map, default_topic=config.default_topic)
    connections: list[Connection | None] = [None] * (connections_max + CONNECTIONS_RESERVED)
    subscriptions: SubscriptionTree[Receiver] = SubscriptionTree()
    turn = Turn(connections, wake=wake)
    routes = Routes(
        mapping,
        log,
        create_topics=config.create_topics,
        topics_max=config.topics_max,
        topic_queue_count=config.topic_queue_count,
        topic_bytes_max=config.topic_bytes_max,
    )
    retaining = Retaining(retained, **_retained_limits(config))
    wills = Wills(log, routes, retaining, metrics, clock=clock, access=access)
    answers = Answers(
        turn,
        output,
        metrics,
        receive_maximum=config.receive_maximum,
        clock=clock,
        is_apart=log.append_apart is not None,
    )
    journal.after = answers.after
    delivery = Delivery(
        turn,
        log,
        mapping,
        subscriptions,
        journal,
        retained,
        metrics,
        after=answers.after,
        quota=_quota_of(config),
        output_bytes_high=config.output_bytes_high,
        clock=clock,
        wake=wake,
        random_skip=random_skip,
    )
    exchanges = Exchanges(
        turn, log, journal, answers, clock=clock, receive_maximum=config.receive_maximum
    )

    def is_at_hand(client_id: str, waited_ms: int) -> bool:
        stored = journal.load(client_id)
        if stored is None:
            return True
        knows_topics = waited_ms >= TOPICS_MS_MAX or delivery.knows_queues(stored)
        return knows_topics and exchanges.knows(stored)

    claims = Claims(journal, clock=clock, after=answers.after, is_at_hand=is_at_hand, soon=meet)
    shared = SharedSubscriptions(
        subscriptions, delivery, journal, claims, metrics, clock=journal.clock, after=answers.after
    )
    storing = Storing(subscriptions, shared, delivery, journal)
    table = SessionTable(len(connections))
    parking = Parking(turn, claims)
    proofs = rechecks = None
    if access is not None:
        rechecks = Rechecks(turn, access, table.by_client_id, subscriptions)
        if access.scram is not None:
            proofs = Proofs(access, access.scram, connections)
    life = Life(
        table, subscriptions, shared, delivery, journal, exchanges, wills, storing, metrics, access
    )
    ends = Connections(turn, parking, proofs, life, metrics, clock=clock)
    run = Run(table, parking, ends, life, claims, journal)
    expiry = Expiry(journal, claims, shared, wills, metrics)
    admission = Admission(
        config,
        turn,
        table,
        parking,
        ends,
        run,
        life,
        expiry,
        shared,
        delivery,
        journal,
        claims,
        storing,
        proofs,
        metrics,
        connections_max=connections_max,
        access=access,
    )
    subscribing = Subscribing(
        config, turn, subscriptions, shared, delivery, metrics, clock=clock, access=access
    )
    clients = Clients(
        config,
        turn,
        table,
        parking,
        ends,
        run,
        admission,
        expiry,
        subscribing,
        shared,
        delivery,
        journal,
        claims,
        proofs,
        rechecks,
        metrics,
        clock=clock,
    )
    commit = Commit(turn, log, journal, exchanges, answers, output, metrics)
    publishing = Publishing(
        turn,
        log,
        routes,
        exchanges,
        retaining,
        answers,
        commit,
        metrics,
        topic_alias_max=config.topic_alias_max,
        clock=clock,
        access=access,
    )
    rates = Rates(output, **_rates_of(config))
    listener = Listener(
        turn,
        output,
        journal,
        claims,
        storing,
        routes,
        clients,
        delivery,
        publishing,
        exchanges,
        answers,
        commit,
        rates,
        metrics,
        clock=clock,
        access=access,
    )
    log.on_settled(listener.settled)
    sessions = OperatorSessions(
        table,
        ends,
        expiry,
        subscriptions,
        shared,
        journal,
        claims,
        storing,
        answers.after,
    )
    operator = Operator(
        log,
        retained,
        sessions,
        delivery,
        listeners=metrics.listeners,
        clock=clock,
        after=answers.after,
    )
    memory = Memory(output, ends, metrics, bytes_max=config.memory_bytes_max)
    return GatewayParts(
        turn,
        delivery,
        clients,
        sessions,
        answers,
        journal,
        listener,
        operator,
        rates,
        memory,
        retaining,
    )
