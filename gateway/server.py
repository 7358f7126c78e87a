"""The gateway role: one reactor, its sessions, and their share of the log.

Owns: the parts and their nursery, the listening socket, the order of start and stop.
Must not touch: packets and records; the parts do.
"""

from __future__ import annotations

import gc
import logging
import resource
from typing import Final

import trio

from motelog.core.clock import Clock, SystemClock
from motelog.core.net.driver import drive
from motelog.core.net.listen import open_listener
from motelog.core.net.reactor import Framing, Reactor
from motelog.gateway.assembly import assemble
from motelog.gateway.clients import CONNECTIONS_RESERVED
from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.packet_types import ReasonCode

logger = logging.getLogger(__name__)

#: Descriptors that are not for MQTT connections: log files, listeners, native clients.
DESCRIPTORS_KEPT: Final = 1024


class Gateway:
    """One MQTT gateway on a log; ``run`` starts and stops it."""

    def __init__(self, config: GatewayConfig, log: LogPort, *, clock: Clock | None = None) -> None:
        self._config = config
        self._log_port = log
        self._clock = clock or SystemClock()
        self.metrics = GatewayMetrics()
        #: (host, port) that clients connect to, once started.
        self.address: tuple[str, int] = ("", 0)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started with ``await nursery.start(gateway.run)``.

        Raises OSError when it cannot listen on the address.
        """
        config = self._config
        listener_socket = open_listener(config.listen)
        self.address = listener_socket.getsockname()[:2]
        connections_max = _connections_max(config.connections_max)
        reactor = Reactor(
            connections_max=connections_max + CONNECTIONS_RESERVED,
            output_bytes_high=config.output_bytes_high,
            output_bytes_max=config.output_bytes_max,
        )
        grown = trio.Event()

        def wake() -> None:
            grown.set()

        parts = assemble(
            config,
            self._log_port,
            reactor,
            self.metrics,
            self._clock,
            connections_max=connections_max,
            wake=wake,
        )

        async def deliver() -> None:
            # Delivers what the turn's own slice left over, and what others appended.
            nonlocal grown
            while True:
                await grown.wait()
                grown = trio.Event()
                while parts.delivery.deliver(self._clock.now_ms()):
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
                nursery.start_soon(self._log_port.run)
                task_status.started()
                await drive(
                    reactor,
                    parts.listener.handle_turn,
                    clock_s=lambda: self._clock.monotonic_ms() // 1000,
                    after_turns=self._log_port.settle_soon,
                )
        finally:
            self._log_port.close()
            parts.clients.disconnect_all(ReasonCode.SERVER_SHUTTING_DOWN)
            reactor.flush()
            reactor.shut_down()
            listener_socket.close()


def _connections_max(configured: int) -> int:
    """Raise the descriptor limit as far as allowed and return how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = max(64, hard - DESCRIPTORS_KEPT - CONNECTIONS_RESERVED)
    if configured > allowed:
        logger.info(
            "the descriptor limit allows fewer connections than configured: raise it to serve them"
            " all connections_max=%d configured=%d",
            allowed,
            configured,
        )
    return min(configured, allowed)
