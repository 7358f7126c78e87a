"""The roles of one process in one nursery: started in order, stopped in reverse order.

Owns: the order, readiness, what happens when a role fails. Must not touch: what a role does.

    console -> namesrv -> broker -> gateway        each is started when the previous one is ready
    gateway -> broker -> namesrv -> console        each is stopped when the previous one has ended

So a gateway never loses the broker of its own process, and the broker can still unregister. During
a long recovery the console shows the broker's progress.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
import trio

from motelog import logs
from motelog.config import MotelogConfig, Role, client_files
from motelog.console.apis import Apis
from motelog.console.asking import GatewayHere
from motelog.console.health import Health
from motelog.console.queues import Brokers
from motelog.console.server import Console
from motelog.console.status import Status
from motelog.core.acl.files import read_credentials
from motelog.core.addresses import format_address
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from motelog.core.broker.shown.metrics import BROKER_METRICS
from motelog.core.config import Loaded
from motelog.core.errors import MotelogError, leaves
from motelog.core.lasting import run_lasting
from motelog.core.metrics import Registry
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NAMESRV_METRICS, NameServer
from motelog.core.net.listen import is_refused_for_good
from motelog.core.net.listeners import CertificateFile
from motelog.core.remoting.tls import read_tls
from motelog.core.state_file import StateFile
from motelog.core.store.state.progress import OnProgress, StartProgress, log_progress
from motelog.core.threads import hear_without_memory
from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.local_log import LocalLog
from motelog.gateway.log.log_port import LogPort
from motelog.gateway.log.remote.remote_log import RemoteLog
from motelog.gateway.metrics import GATEWAY_METRICS, clients_table
from motelog.gateway.server import Gateway
from motelog.running_config import RunningConfig
from motelog.workers.supervisor import WORKERS_METRICS, Workers

logger = logging.getLogger(__name__)

# A role that takes longer to stop is logged; the other roles are stopped anyway.
STOP_WITHIN_S: Final = 10.0

Address = tuple[str, int]


class Service(Protocol):
    """The interface of every role."""

    @property
    def address(self) -> Address: ...

    @property
    def listeners(self) -> dict[str, str]: ...

    async def reload_certificates(self) -> list[CertificateFile]: ...

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None: ...


class PortTakenError(MotelogError):
    """A role's address is in use by another process."""

    def __init__(self, role: Role, listen: str) -> None:
        super().__init__(f"the {role} cannot listen on {listen}: another process uses that port")
        self.role = role
        self.listen = listen


class CannotListenError(MotelogError):
    """A role's address cannot be bound for another reason (permission, no such address)."""

    def __init__(self, role: Role, listen: str, exc: OSError) -> None:
        super().__init__(f"the {role} cannot listen on {listen}: {exc.strerror or exc}")
        self.role = role
        self.listen = listen
        self.comes_again = is_refused_for_good(exc)


@dataclass(slots=True)
class Roles:
    """The running roles by name, and what keeps them from being ready: see Health.faults."""

    addresses: dict[Role, Address] = field(default_factory=dict)
    #: The address of each that clients use, as text: its advertised address, or where it listens.
    advertised: dict[Role, str] = field(default_factory=dict)
    #: Further addresses for clients, by the name of the listener, as text.
    listeners: dict[str, str] = field(default_factory=dict)
    #: Number of gateway processes; 1: the gateway runs in this process.
    workers: int = 1
    faults: Callable[[], dict[str, str]] = dict


@dataclass(slots=True)
class _Running:
    role: Role
    scope: trio.CancelScope
    ended: trio.Event


async def run_roles(
    config: MotelogConfig,
    on_progress: OnProgress = log_progress,
    *,
    running_config: RunningConfig | None = None,
    task_status: trio.TaskStatus[Roles] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the roles that ``config`` names until cancelled; started when all are ready.

    ``running_config`` is the same configuration, and can read it again.
    During a long start ``on_progress`` is called every two seconds, from any thread. When a role
    fails, the others are stopped in order and its error is raised.
    """
    hear_without_memory()
    health = Health()
    registry = Registry()
    roles = Roles(workers=config.gateway.workers, faults=health.faults)
    running: list[_Running] = []
    async with trio.open_nursery() as nursery:
        try:
            running_config = running_config or RunningConfig(Loaded(config, {}))
            starting = _Starting(config, running_config, nursery, roles, running, health, registry)
            await starting.start_all(on_progress)
            health.is_ready = True
            task_status.started(roles)
            await trio.sleep_forever()
        finally:
            health.is_ready = False
            await _stop_all(running)


class _Starting:
    """The start of the roles of one process, in an order in which each finds what it needs."""

    def __init__(
        self,
        config: MotelogConfig,
        running_config: RunningConfig,
        nursery: trio.Nursery,
        roles: Roles,
        running: list[_Running],
        health: Health,
        registry: Registry,
    ) -> None:
        self._config = config
        self._nursery = nursery
        self._roles = roles
        self._running = running
        self._health = health
        self._registry = registry
        self._configure = running_config.configure
        self._apis = Apis(running_config)
        self._advertised = {"namesrv": config.namesrv.advertise}
        if config.broker is not None:
            self._advertised["broker"] = config.broker.advertise
        if running_config.is_live("log.level"):
            self._configure.append(lambda changed: logs.set_up(changed.log))

    async def start_all(self, on_progress: OnProgress) -> None:
        """Start the roles of the configuration; returns when they serve."""
        config = self._config
        if "console" in config.roles:
            await self._start_console()
        if "namesrv" in config.roles:
            await self._start_namesrv()
        self._apis.queues.brokers = _brokers(config, self._roles)
        broker = await self._start_broker(on_progress) if "broker" in config.roles else None
        if "gateway" not in config.roles:
            return
        section = _beside_store(config)
        if section.workers > 1:
            await self._start_workers(_with_names(section, config, self._roles))
        else:
            await self._start_gateway(section, broker)

    async def _start(self, role: Role, listen: str, service: Service) -> None:
        roles = self._roles
        self._health.starting(role)
        entry = _Running(role, trio.CancelScope(), trio.Event())
        self._running.append(entry)
        try:
            await self._nursery.start(_run_one, service.run, entry)
        except BaseException as exc:
            entry.ended.set()
            _raise_listen_error(exc, role, listen)
            raise
        roles.addresses[role] = service.address
        roles.listeners |= service.listeners
        self._apis.certificates.reloads.append(service.reload_certificates)
        roles.advertised[role] = self._advertised.get(role) or format_address(*service.address)
        self._health.started(role)
        logger.debug("role started role=%s address=%s:%d", role, *service.address)

    async def _start_console(self) -> None:
        config, health, registry, roles = self._config, self._health, self._registry, self._roles
        status = Status(health, registry, roles.advertised, roles.listeners, data=_data(config))
        listeners = config.listeners_for("admin")
        console = Console(config.admin, health, registry, self._apis, status, listeners=listeners)
        await self._start("console", config.admin.listen, console)

    async def _start_namesrv(self) -> None:
        config = self._config
        kv_file = StateFile(_kv_config_path(config), holds="entries of the key-value table")
        listeners = config.listeners_for("namesrv")
        namesrv = NameServer(_with_users(config), listeners=listeners, kv_file=kv_file)
        self._registry.add("motelog_namesrv", NAMESRV_METRICS, namesrv.sample)
        await self._start("namesrv", config.namesrv.listen, namesrv)

    async def _start_broker(self, on_progress: OnProgress) -> Broker:
        config, health, registry = self._config, self._health, self._registry
        assert config.broker is not None, "checked by MotelogConfig"
        broker = Broker(
            _with_namesrv(config.broker, self._roles),
            listeners=config.listeners_for("broker"),
            on_progress=on_progress,
        )
        health.doing["broker"] = lambda: _text(broker.start_progress)
        registry.add("motelog_broker", BROKER_METRICS, broker.sample, broker.histograms)
        registry.add_readings("motelog_broker", broker.readings)
        await self._start("broker", config.broker.listen, broker)
        self._configure.append(partial(_configure_broker, broker))
        _watch(broker, health)
        return broker

    async def _start_workers(self, section: GatewayConfig) -> None:
        config, health = self._config, self._health
        listeners = config.listeners_for("mqtt")
        workers = Workers(section, config.access, config.log, listeners=listeners)
        health.doing["gateway"] = lambda: workers.starting
        metrics = WORKERS_METRICS | clients_table([one.name for one in listeners])
        self._registry.add("motelog_gateway", metrics, workers.sample, workers.histograms)
        await self._start("gateway", config.gateway.listen, workers)
        health.checks["workers"] = lambda: workers.fault
        health.checks["log"] = lambda: workers.outage
        health.checks["access"] = lambda: workers.access_fault
        self._apis.gateway.gateway = workers.gateway

    async def _start_gateway(self, section: GatewayConfig, broker: Broker | None) -> None:
        config, health = self._config, self._health
        listeners = config.listeners_for("mqtt")
        log = _log_of(section, broker, health)
        steady = None if broker is None or section.namesrv else broker.api.steady_clock
        gateway = Gateway(section, log, access=config.access, listeners=listeners, steady=steady)
        health.checks["access"] = lambda: gateway.access_fault
        table = GATEWAY_METRICS | clients_table([one.name for one in listeners])
        metrics = gateway.metrics
        self._registry.add("motelog_gateway", table, metrics.sample, metrics.histograms)
        await self._start("gateway", config.gateway.listen, gateway)
        assert gateway.operator is not None, "it has started"
        self._apis.gateway.gateway = GatewayHere(gateway.operator, gateway.reload_certificates)
        self._configure.append(lambda changed: gateway.configure(_beside_store(changed)))


def _configure_broker(broker: Broker, config: MotelogConfig) -> None:
    if config.broker is not None:
        broker.configure(config.broker)


def _data(config: MotelogConfig) -> str | None:
    """Return the folder of this process's store."""
    if "broker" not in config.roles or config.broker is None:
        return None
    return str(Path(config.broker.store.directory).absolute())


def _log_of(config: GatewayConfig, broker: Broker | None, health: Health) -> LogPort:
    """Return the log that the gateway's section names."""
    if not config.namesrv:
        assert broker is not None, "checked by MotelogConfig"
        return LocalLog(broker.api)
    log = RemoteLog.of(config)
    health.doing["gateway"] = lambda: log.start_waits_for
    health.checks["log"] = lambda: log.outage
    return log


def _text(progress: StartProgress | None) -> str | None:
    return str(progress) if progress is not None else None


def _watch(broker: Broker, health: Health) -> None:
    """Add health checks: the store accepts messages, the broker is registered, there is a copy."""
    # A promotion gives the broker other parts.
    health.checks["store"] = lambda: broker.api.fence_reason
    health.checks["disk"] = lambda: broker.api.disk.fault
    health.warnings["copies"] = lambda: broker.parts.copy_fault
    health.checks["registration"] = lambda: (
        None if broker.is_registered else "no name server accepted the last registration"
    )


async def _run_one(
    run: Callable[..., Awaitable[None]],
    entry: _Running,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a role; its start can be cancelled, the started role cannot.

    So a cancelled process stops its roles one by one instead of all at once.
    """
    try:
        await run_lasting(run, entry.scope, task_status=task_status)
    finally:
        entry.ended.set()


async def _stop_all(running: list[_Running]) -> None:
    for entry in reversed(running):
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_WITHIN_S):
            entry.scope.cancel()
            await entry.ended.wait()
        if not entry.ended.is_set():
            logger.warning(
                "a role did not stop in time and is abandoned; if the process does not end, kill "
                "it: the next start recovers role=%s within_s=%g",
                entry.role,
                STOP_WITHIN_S,
            )


def _with_namesrv(config: BrokerConfig, roles: Roles) -> BrokerConfig:
    """Return the section, by default with the name server of this process."""
    if config.namesrv or "namesrv" not in roles.addresses:
        return config
    return msgspec.structs.replace(config, namesrv=(_reached_here(roles.addresses["namesrv"]),))


def _with_names(section: GatewayConfig, config: MotelogConfig, roles: Roles) -> GatewayConfig:
    """Return the section, by default with the name servers with which our broker registers."""
    if section.namesrv:
        return section
    assert config.broker is not None, "checked by MotelogConfig"
    names = _with_namesrv(config.broker, roles).namesrv
    return msgspec.structs.replace(section, namesrv=names, tls_file=client_files(config)[1])


def _brokers(config: MotelogConfig, roles: Roles) -> Brokers:
    """Return the console's name servers: those of the gateway, or else of our own broker.

    The console uses the credentials of the gateway or the broker.
    """
    names = config.gateway.namesrv
    if config.broker is not None:
        names = names or _with_namesrv(config.broker, roles).namesrv
    elif not names and "namesrv" in roles.addresses:
        names = (_reached_here(roles.addresses["namesrv"]),)
    file, tls = client_files(config)
    return Brokers(names, read_credentials(file) if file else None, read_tls(tls) if tls else None)


def _reached_here(address: Address) -> str:
    """Return the address for clients in this process; no certificate is valid for 0.0.0.0."""
    host, port = address
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return format_address(here.get(host, host), port)


def _beside_store(config: MotelogConfig) -> GatewayConfig:
    """Return the gateway's section, by default with a view beside the store.

    State records are appended again before the store may delete them.
    """
    if config.broker is None:
        return config.gateway
    store = config.broker.store
    hours = max(1, min(config.gateway.state_rewrite_hours, store.retention_hours // 2))
    path = config.gateway.view_path or str(Path(store.directory) / "gateway" / "view.db")
    return msgspec.structs.replace(config.gateway, view_path=path, state_rewrite_hours=hours)


def _with_users(config: MotelogConfig) -> NamesrvConfig:
    """Return the name server's section, with the broker's file of users."""
    if config.namesrv.users_file or config.broker is None:
        return config.namesrv
    path = Path(config.broker.store.directory) / "config" / "users.json"
    return msgspec.structs.replace(config.namesrv, users_file=str(path))


def _kv_config_path(config: MotelogConfig) -> str:
    """Return the file of the name server's key-value table."""
    if config.namesrv.kv_config_path:
        return config.namesrv.kv_config_path
    folder = Path.home()
    if "broker" in config.roles and config.broker is not None:
        folder = Path(config.broker.store.directory)
    return str(folder / "namesrv" / "kvConfig.json")


def _raise_listen_error(exc: BaseException, role: Role, listen: str) -> None:
    """Raise an error with role and address, if binding the address ended the role's start."""
    for leaf in leaves(exc):
        if not isinstance(leaf, OSError):
            continue
        if leaf.errno == errno.EADDRINUSE:
            raise PortTakenError(role, listen) from exc
        is_address = leaf.errno in (errno.EACCES, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
        if isinstance(leaf, socket.gaierror) or (is_address and leaf.filename is None):
            raise CannotListenError(role, listen, leaf) from exc
