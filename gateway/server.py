"""The gateway role: one reactor, its sessions, and their share of the log.

Owns: the parts and their nursery, the listening sockets, the order of start and stop.
Must not touch: packets and records (the parts), the work between batches (``tasks``).
"""

from __future__ import annotations

import gc
import logging
import resource
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
import trio

from motelog.core.clock import Clock, LastingClock, SteadyClock, SystemClock
from motelog.core.flag import Flag
from motelog.core.lasting import run_again
from motelog.core.net.config import ListenerConfig
from motelog.core.net.driver import drive
from motelog.core.net.listeners import (
    CertificateFile,
    OpenListener,
    open_listeners,
    reload_certificates,
)
from motelog.core.net.reactor import Framing, Reactor
from motelog.core.threads import run_in_thread
from motelog.gateway.access.access import Access
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.assembly import CONNECTIONS_RESERVED, GatewayParts, Surroundings, assemble
from motelog.gateway.config import LIVE, GatewayConfig
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.metrics import PLAIN, GatewayMetrics
from motelog.gateway.operator.operator import Operator
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.starting import read_back
from motelog.gateway.state.view import IN_MEMORY, View
from motelog.gateway.tasks import Tasks

logger = logging.getLogger(__name__)

#: Descriptors that are not for MQTT connections: log files, listeners, native clients.
DESCRIPTORS_KEPT: Final = 1024


class Gateway:
    """One MQTT gateway on a log; ``run`` starts and stops it.

    It listens on the address of ``config`` and on those of ``listeners``. ``access`` says who may
    connect, and what each client may do. Without it, every client may do everything.
    """

    def __init__(
        self,
        config: GatewayConfig,
        log: LogPort,
        *,
        access: AccessConfig | None = None,
        listeners: Sequence[ListenerConfig] = (),
        clock: Clock | None = None,
        steady: LastingClock | None = None,
    ) -> None:
        """``steady`` gives the times of sessions: the log's clock, if it is available here."""
        self._config = config
        self._listener_configs = listeners
        self._log_port = log
        self._clock = clock or SystemClock()
        self._steady = steady or SteadyClock(self._clock)
        self._view = View(config.view_path or IN_MEMORY)
        self.metrics = GatewayMetrics(listeners=(PLAIN, *(one.name for one in listeners)))
        self._access: Access | None = None
        if access is not None and access.is_set:
            self._access = Access(
                access,
                clock=self._clock,
                count_login=self.metrics.count_login,
                listeners=listeners,
            )
        #: (host, port) that clients connect to, once started.
        self.address: tuple[str, int] = ("", 0)
        #: The addresses of its other listeners by name, once started.
        self.listeners: dict[str, str] = {}
        self._opened: list[OpenListener] = []
        #: The part that answers the console, once started.
        self.operator: Operator | None = None
        self._parts: GatewayParts | None = None
        self._tasks: Tasks | None = None

    @property
    def access_fault(self) -> str | None:
        """Why no client can log in; None while all files are readable."""
        return None if self._access is None else self._access.fault

    def configure(self, config: GatewayConfig) -> None:
        """Apply the LIVE keys of ``config``; the others keep their values until a restart."""
        live = {name: getattr(config, name) for name in LIVE}
        self._config = msgspec.structs.replace(self._config, **live)
        if self._parts is not None:
            self._parts.configure(self._config)
        if self._tasks is not None:
            self._tasks.state_rewrite_hours = self._config.state_rewrite_hours
            self._tasks.look_at_rates()

    async def reload_certificates(self) -> list[CertificateFile]:
        """Read the certificates of its listeners now; return the outcome for each file."""
        return reload_certificates(self._opened)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started with ``await nursery.start(gateway.run)``.

        Raises, in a group: OSError if it cannot listen on the address, ListenerError if it cannot
        listen on one of the others, CertificateError for a TLS file. Raises AccessFileError before
        any client is admitted.
        """
        if self._access is not None:
            await run_in_thread(self._access.read)
        self._view.open()
        try:
            async with trio.open_nursery() as nursery:
                # The log starts before the first client comes, and outlives the shutdown's appends.
                await nursery.start(self._log_port.run)
                try:
                    journal = SessionJournal(
                        self._log_port, self._view, self._steady, gateway=self._config.name
                    )
                    retained = RetainedStore(self._log_port, self._view, self._steady)
                    await read_back(journal, retained, self._log_port, self._clock)
                    await self._serve(journal, retained, task_status)
                finally:
                    self._log_port.close()
                    nursery.cancel_scope.cancel()
        finally:
            self._view.close()

    async def _serve(
        self,
        journal: SessionJournal,
        retained: RetainedStore,
        task_status: trio.TaskStatus[None],
    ) -> None:
        config = self._config
        listeners = self._open_listeners()
        connections_max = _connections_max(config.connections_max)
        reactor = self._listening(listeners, connections_max)
        around = Surroundings(
            config,
            self._log_port,
            journal,
            retained,
            reactor,
            self.metrics,
            self._clock,
            self._access,
        )
        wanted, to_meet = Flag(), Flag()
        parts = assemble(around, connections_max=connections_max, wake=wanted.set, meet=to_meet.set)
        self.operator = parts.operator
        self._parts = parts
        self._tasks = tasks = Tasks(parts, around, wanted=wanted, to_meet=to_meet)
        # Start-up objects live as long as the process: garbage collections need not visit them.
        gc.freeze()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_again, self._view.run)
                tasks.start(nursery)
                task_status.started()
                await drive(
                    reactor,
                    parts.listener.handle_turn,
                    clock_s=lambda: self._clock.monotonic_ms() // 1000,
                    after_turns=self._log_port.settle_soon,
                    is_held=journal.is_in_doubt,
                )
        finally:
            # Sessions are stored and wills published as the connections end.
            shut_down = partial(parts.clients.shut_down, "the server is shutting down")
            parts.listener.during(shut_down)
            journal.stop()
            reactor.flush()
            reactor.shut_down()
            for one in listeners:
                one.close()

    def _listening(self, listeners: list[OpenListener], connections_max: int) -> Reactor:
        """Return a reactor that accepts connections as soon as it is polled."""
        config = self._config
        reactor = Reactor(
            connections_max=connections_max + CONNECTIONS_RESERVED,
            output_bytes_high=config.output_bytes_high,
            output_bytes_max=config.output_bytes_max,
            sent_counts=self.metrics.sent_packets,
        )
        for one in listeners:
            reactor.listen(
                one.sock,
                Framing.MQTT,
                frame_bytes_max=config.connect_bytes_max,
                first_frame_s=config.connect_timeout_s,
                codec=one.codec(),
                connections_max=one.config.connections_max,
            )
        return reactor

    def _open_listeners(self) -> list[OpenListener]:
        """Open the sockets and read the certificates: all of them, or none."""
        # The configuration has already checked whether the plain address is allowed.
        first = ListenerConfig(name=PLAIN, address=self._config.listen, insecure="I know")
        is_shared = self._config.workers > 1
        opened = open_listeners(first, self._listener_configs, is_shared=is_shared)
        self.address = opened[0].address
        self.listeners = {one.config.name: one.text for one in opened[1:]}
        self._opened = opened
        return opened


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
