"""The life of a broker: one store, its tables, and the remoting server in front of it.

Owns: listening addresses, the order of starting and stopping, what happens at intervals.
Must not touch: what the parts are and how they are connected (assembly), what a request does
(processors).

    run: listen -> open the store, load the tables -> serve -> register -> started
    end: stop serving -> save what changed -> the store closes itself
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import msgspec
import trio

from motelog.core.addresses import format_address, parse_address
from motelog.core.broker.api import BrokerApi
from motelog.core.broker.assembly import (
    BrokerParts,
    assemble,
    make_reader_key,
    make_schedule,
)
from motelog.core.broker.config import LIVE, VIP_PORT_DISTANCE, BrokerConfig
from motelog.core.broker.copies import (
    Access,
    ServedAt,
    role_beside_rivals,
    role_file,
)
from motelog.core.broker.delay.schedule import ScheduleService
from motelog.core.broker.pop.state import PopState
from motelog.core.broker.replication.promotion import read_role
from motelog.core.broker.shown.metrics import lag_by_group, topics_by_name
from motelog.core.broker.tables.fit_log import fit_log
from motelog.core.broker.tables.saved import SavedTables
from motelog.core.broker.tables.tables import Tables
from motelog.core.clock import Clock, SystemClock
from motelog.core.freed_memory import keep_freed_memory
from motelog.core.lasting import run_again, run_lasting
from motelog.core.limited_log import LimitedLog
from motelog.core.message import encode_host
from motelog.core.metrics import Reading
from motelog.core.net.config import ListenerConfig, first_listener
from motelog.core.net.listen import open_listener
from motelog.core.net.listeners import (
    CertificateFile,
    OpenListener,
    open_listeners,
    reload_certificates,
)
from motelog.core.net.stalls import sleep_unstalled
from motelog.core.replication.role import Role
from motelog.core.store.config import LIVE as STORE_LIVE
from motelog.core.store.message_store import MessageStore
from motelog.core.store.state.progress import OnProgress, StartProgress, log_progress
from motelog.core.threads import run_in_thread

logger = logging.getLogger(__name__)

_EXPIRE_INTERVAL_S: Final = 10.0
_FIRST_REGISTRATION_S_MAX: Final = 3.0
# Until the answer to a request for a new role is on its way.
_ANSWER_S: Final = 0.05


class Broker:
    """One broker; ``address`` and ``parts`` exist once ``run`` has started.

    It listens on the address of ``config`` and on those of ``listeners``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        listeners: Sequence[ListenerConfig] = (),
        clock: Clock | None = None,
        on_progress: OnProgress = log_progress,
    ) -> None:
        self._config = config
        self._listener_configs = listeners
        #: The addresses of its further listeners, by name, once started.
        self.listeners: dict[str, str] = {}
        self._opened: list[OpenListener] = []
        self._role = Role(config.id, config.replicate)
        # Where slaves connect; none if it feeds no slaves.
        self._ha: socket.socket | None = None
        #: The port at which slaves connect; 0 if it feeds none.
        self.ha_port = 0
        # Whether this process has served in another role before.
        self._has_stopped = False
        self._on_progress = on_progress
        self._clock = clock or SystemClock()
        self._address: tuple[str, int] | None = None
        # The last report of a long start.
        self.start_progress: StartProgress | None = None
        self.tables = Tables.of(config, self._clock)
        self._saved = SavedTables(config, self.tables)
        self._faults = LimitedLog(logger)
        self._parts: BrokerParts | None = None
        # The key of clients that can read the files of the log.
        self._reader_key: str | None = None

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that clients connect to."""
        assert self._address is not None, "the broker has not started"
        return self._address

    @property
    def parts(self) -> BrokerParts:
        """The parts of the running broker."""
        assert self._parts is not None, "the broker has not started"
        return self._parts

    @property
    def api(self) -> BrokerApi:
        """The broker for users in this process."""
        return self.parts.api

    def configure(self, config: BrokerConfig) -> None:
        """Apply the keys of ``config`` that can change while it and its store run; others stay.

        Switches that requests have set stay as well, unless ``config`` changes them.
        """
        changed = {name for name in LIVE if getattr(config, name) != getattr(self._config, name)}
        store = msgspec.structs.replace(
            self._config.store, **{name: getattr(config.store, name) for name in STORE_LIVE}
        )
        live = {name: getattr(config, name) for name in LIVE}
        self._config = msgspec.structs.replace(self._config, store=store, **live)
        if self._parts is None:
            return
        self._parts.store.cleaner.configure(store)
        self._parts.store.disk_watch.configure(store)
        for name in changed:
            self._parts.processors.admin.state.switch(LIVE[name], getattr(config, name))

    @property
    def is_registered(self) -> bool:
        """Return whether a name server accepted the last registration; True without any."""
        registrars = [] if self._parts is None else self._parts.registrars
        return not registrars or any(registrar.is_registered for registrar in registrars)

    def sample(self) -> dict[str, float]:
        """Return the counters since the start and, named ``*_now``, the gauges."""
        held_pulls = 0 if self._parts is None else len(self._parts.processors.pull.held)
        held_pops = 0 if self._parts is None else len(self._parts.processors.pop.held)
        counters: dict[str, float] = {
            "topics_now": len(self.tables.topics),
            "groups_now": len(self.tables.groups),
            "consumers_now": self.tables.consumers.members_count,
            "producers_now": self.tables.producers.members_count,
            "held_pulls_now": held_pulls,
            "held_pops_now": held_pops,
        }
        return counters if self._parts is None else counters | self._parts.sample()

    def histograms(self) -> dict[str, list[float]]:
        """Return the store's distributions; none before ``run`` has started."""
        return {} if self._parts is None else self._parts.store.stats.histograms()

    def readings(self) -> Iterator[Reading]:
        """Yield what /metrics shows by topic and group; nothing before ``run`` has started."""
        if self._parts is not None:
            yield from topics_by_name(self._parts.stats)
            yield from lag_by_group(
                self.tables.offsets, self._parts.store.reader, self._clock.now_ms()
            )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled.

        OSError if the address cannot be used, ListenerError for that of another listener;
        StoreError if the store or a state file cannot be used, ConfigError for a file of accounts,
        credentials or a certificate; then nothing was changed.
        """
        keep_freed_memory()
        access = await run_in_thread(Access.read, self._config)
        with ExitStack() as opened:
            self._opened = self._open_listeners()
            self._address = self._opened[0].address
            for listener in self._opened:
                opened.callback(listener.close)
            while True:
                self._role = await run_in_thread(read_role, role_file(self._config), self._role)
                if self._role.feeds:
                    self._role = await role_beside_rivals(
                        self._config, self._served_at(), self._role, access
                    )
                if self._role.feeds and self._ha is None:
                    self._ha = opened.enter_context(open_listener(self._config.ha_address))
                    self.ha_port = self._ha.getsockname()[1]
                await self._run_in_role(access, task_status)
                # Only a change of its role ends it: all but the listeners is opened again.
                task_status = trio.TASK_STATUS_IGNORED
                self._has_stopped = True
                access = await run_in_thread(Access.read, self._config)
                self.tables = Tables.of(self._config, self._clock)
                self._saved = SavedTables(self._config, self.tables)

    async def _run_in_role(self, access: Access, task_status: trio.TaskStatus[None]) -> None:
        store = MessageStore(
            self._config.store,
            store_host=encode_host(*self._advertised()),
            clock=self._clock,
            is_follower=not self._role.is_master,
        )
        schedule = make_schedule(self._config, store)
        pop_state = PopState(self._config, store, self.tables)
        await run_in_thread(self._open, store, schedule, pop_state)
        async with trio.open_nursery() as nursery:
            # The store must outlive all its users, so it ends here.
            store_scope = trio.CancelScope()
            await nursery.start(run_lasting, store.run, store_scope)
            try:
                await self._serve(store, schedule, pop_state, access, task_status)
            finally:
                with trio.CancelScope(shield=True):
                    await self._saved.save()
                store_scope.cancel()

    async def _serve(
        self,
        store: MessageStore,
        schedule: ScheduleService,
        pop_state: PopState,
        access: Access,
        task_status: trio.TaskStatus[None],
    ) -> None:
        parts = self._parts = assemble(
            self._config,
            self._clock,
            store,
            schedule,
            pop_state,
            self.tables,
            self._saved,
            address=self._served_at(),
            role=self._role,
            access=access,
            reader_key=self._reader_key,
        )
        server = parts.server
        if self._role.is_master:
            await parts.check_back.load()
        for listener in self._opened:
            # The server closes what it is given. While the role changes, clients wait.
            server.listen(replace(listener, sock=listener.sock.dup()))
        try:
            await self._serve_until_promoted(parts, task_status)
        finally:
            if not parts.promotion.decided.is_set():
                for listener in self._opened:
                    listener.close()

    async def _serve_until_promoted(
        self, parts: BrokerParts, task_status: trio.TaskStatus[None]
    ) -> None:
        processors, server, schedule = parts.processors, parts.server, parts.schedule
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            await nursery.start(processors.pull.run, server)
            await nursery.start(processors.pop.run, server)
            await nursery.start(parts.api.cold_reads.run, server.flush)
            await nursery.start(parts.api.line.run, server.send_queued)
            await nursery.start(processors.send.answers.queue.run, server.send_queued)
            await nursery.start(processors.recall.queue.run, server.send_queued)
            await nursery.start(processors.transactions.queue.run, server.send_queued)
            if parts.slave is not None:
                nursery.start_soon(parts.slave.run)
            else:  # these append
                await nursery.start(schedule.run)
                await nursery.start(parts.check_back.run, server.send_queued)
                await nursery.start(processors.pop_service.run, server.flush)
            nursery.start_soon(run_again, parts.settings_gate.run, server)
            nursery.start_soon(run_again, parts.filter_gate.run, server)
            if parts.master is not None and self._ha is not None:
                nursery.start_soon(run_again, parts.master.run, self._ha)
            if processors.feed is not None:
                nursery.start_soon(run_again, processors.feed.run, server)
            if parts.acl is not None:
                nursery.start_soon(run_again, parts.acl.run, server)
            nursery.start_soon(run_again, parts.queues.run, server.send_queued)
            nursery.start_soon(run_again, self._saved.run)
            nursery.start_soon(self._expire_regularly, parts)
            nursery.start_soon(self._tick_regularly, parts)
            for registrar in parts.registrars:
                nursery.start_soon(run_again, registrar.run)
            # Clients that start after the broker should find its topics at once; an unreachable
            # name server must not keep the broker from starting.
            with trio.move_on_after(_FIRST_REGISTRATION_S_MAX):
                for registrar in parts.registrars:
                    await registrar.first_round_over.wait()
            topics_count = len(self.tables.topics)
            logger.info("broker listens address=%s:%d topics=%d", *self.address, topics_count)
            logger.info("messages are %s", self._config.promise)
            task_status.started()
            await parts.promotion.decided.wait()
            await trio.sleep(_ANSWER_S)
            nursery.cancel_scope.cancel()

    async def reload_certificates(self) -> list[CertificateFile]:
        """Read the certificates of its listeners now; return the result for each file."""
        return reload_certificates(self._opened)

    def _open_listeners(self) -> list[OpenListener]:
        first = first_listener("broker", self._config.listen, self._config)
        opened = open_listeners(first, self._listener_configs)
        self.listeners = {one.config.name: one.text for one in opened[1:]}
        host, port = parse_address(self._config.listen)
        vip_port = port - VIP_PORT_DISTANCE
        if not self._config.vip or vip_port <= 0:
            return opened
        vip = msgspec.structs.replace(first, address=format_address(host, vip_port))
        try:
            return [*opened, *open_listeners(vip)]
        except OSError as exc:
            logger.warning(
                "the VIP port is taken: RocketMQ clients before 4.5 cannot send unless they turn it"
                " off port=%d error=%s",
                vip_port,
                exc,
            )
            return opened

    def _served_at(self) -> ServedAt:
        return ServedAt(self._advertised(), self.address[1], self.ha_port)

    def _advertised(self) -> tuple[str, int]:
        return parse_address(self._config.advertise) if self._config.advertise else self.address

    def _open(self, store: MessageStore, schedule: ScheduleService, pop_state: PopState) -> None:
        """Open the store and load the tables saved beside it; blocks."""
        store.open(self._note_progress, trusts_stop=self._has_stopped)
        try:
            self._saved.load(is_expected=store.end_offset > 0)
            schedule.load()
            fit_log(self.tables, store, self._config.default_queue_count, self._clock.now_ms())
            pop_state.load()
            self._reader_key = make_reader_key(self._config)
        except BaseException:
            store.close()
            raise

    def _note_progress(self, progress: StartProgress) -> None:
        self.start_progress = progress
        self._on_progress(progress)
        # An aborted start leaves the same state as a crash: the next one recovers again.
        trio.from_thread.check_cancelled()

    async def _expire_regularly(self, parts: BrokerParts) -> None:
        while True:
            await sleep_unstalled(_EXPIRE_INTERVAL_S)
            with self._faults.boundary("finding silent clients failed, a fault of this broker"):
                parts.processors.consumer.expire(self._config.client_silence_s_max * 1000)

    async def _tick_regularly(self, parts: BrokerParts) -> None:
        while True:
            with self._faults.boundary("counting messages failed, a fault of this broker"):
                parts.processors.runtime.tick()
                parts.stats.tick()
            await trio.sleep(1)
