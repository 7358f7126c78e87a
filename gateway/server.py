"""The gateway role: one reactor, its sessions, and their share of the log.

Owns: the parts and their nursery, the listening socket, the order of start and stop.
Must not touch: packets and records; the parts do.
"""

from __future__ import annotations

import gc
import logging
import resource
import time
from typing import Final

import trio

from motelog.core.clock import SystemClock
from motelog.core.net.driver import drive
from motelog.core.net.listen import open_listener
from motelog.core.net.reactor import Framing, Reactor
from motelog.gateway.clients import Clients
from motelog.gateway.config import GatewayConfig
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.mapping.topic_mapping import TopicMapping
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.packet_types import ReasonCode
from motelog.gateway.publish.acknowledge import PublishAcks
from motelog.gateway.publish.reactor_listener import ReactorListener
from motelog.gateway.publish.routes import Routes
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import SubscriptionTree

_log = logging.getLogger(__name__)

#: Descriptors that are not for MQTT connections: log files, listeners, native clients.
DESCRIPTORS_KEPT: Final = 1024


class Gateway:
    """One MQTT gateway on a log; ``run`` starts and stops it."""

    def __init__(self, config: GatewayConfig, log: LogPort) -> None:
        self._config = config
        self._log_port = log
        self._mapping = TopicMapping(config.topic_map, default_topic=config.default_topic)
        self.metrics = GatewayMetrics()
        #: (host, port) that clients connect to, once started.
        self.address: tuple[str, int] = ("", 0)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started with ``await nursery.start(gateway.run)``.

        Raises OSError when the address cannot be had.
        """
        config = self._config
        listener_socket = open_listener(config.listen)
        self.address = listener_socket.getsockname()[:2]
        connections_max = _connections_max(config.connections_max)
        reactor = Reactor(
            connections_max=connections_max,
            output_bytes_high=config.output_bytes_high,
            output_bytes_max=config.output_bytes_max,
        )
        sessions: list[Session | None] = [None] * connections_max
        subscriptions: SubscriptionTree[Session] = SubscriptionTree()
        self._log_port.create_topic(config.default_topic, config.topic_queue_count)
        grown = trio.Event()

        def wake() -> None:
            grown.set()

        delivery = Delivery(
            self._log_port,
            reactor,
            self._mapping,
            subscriptions,
            self.metrics,
            sessions=sessions,
            wake=wake,
        )
        clients = Clients(config, reactor, subscriptions, delivery, self.metrics, sessions=sessions)
        routes = Routes(
            self._mapping,
            self._log_port,
            create_topics=config.create_topics,
            topics_max=config.topics_max,
            topic_queue_count=config.topic_queue_count,
            topic_bytes_max=config.topic_bytes_max,
        )
        acks = PublishAcks(
            reactor,
            self._log_port.acknowledge,
            self.metrics,
            clock=SystemClock(),
            sessions=sessions,
            receive_maximum=config.receive_maximum,
            disconnect=clients.disconnect,
        )
        listener = ReactorListener(
            reactor,
            self._log_port,
            routes,
            clients,
            delivery,
            self.metrics,
            sessions=sessions,
            acks=acks,
        )

        async def deliver() -> None:
            # What the turn's own slice left over, and what others appended.
            nonlocal grown
            while True:
                await grown.wait()
                grown = trio.Event()
                while delivery.deliver(time.time_ns() // 1_000_000):
                    reactor.flush()
                    await trio.lowlevel.checkpoint()
                reactor.flush()

        reactor.listen(
            listener_socket,
            Framing.MQTT,
            frame_bytes_max=config.connect_bytes_max,
            first_frame_s=config.connect_timeout_s,
        )
        # Start-up objects live as long as the process: a collection need not walk over them.
        gc.freeze()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(deliver)
                nursery.start_soon(acks.queue.run)
                task_status.started()
                await drive(
                    reactor,
                    listener.handle_turn,
                    clock_s=monotonic_s,
                    after_turns=acks.queue.want,
                )
        finally:
            acks.queue.close()
            clients.disconnect_all(ReasonCode.SERVER_SHUTTING_DOWN)
            reactor.flush()
            reactor.shut_down()
            listener_socket.close()


def monotonic_s() -> int:
    return int(time.monotonic())


def _connections_max(configured: int) -> int:
    """Raise the descriptor limit as far as allowed and return how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = max(64, hard - DESCRIPTORS_KEPT)
    if configured > allowed:
        _log.info("connections bounded by descriptor limit count=%d", allowed)
    return min(configured, allowed)
