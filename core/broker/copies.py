"""What makes a broker one of several of its name: registration, its role, the copying of the log.

Owns: how the parts of replication are put together for a role. Must not touch: requests
(assembly), the order of starting (server).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from motelog.core.acl.addresses import LOOPBACK, parse_addresses
from motelog.core.acl.files import read_credentials
from motelog.core.acl.gate import AclGate
from motelog.core.addresses import format_address
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.delay.schedule import LEVELS_FILE, TIMER_FILE, ScheduleService
from motelog.core.broker.needs import NEEDS
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.registration import BrokerAddress, Registrar
from motelog.core.broker.replication.held_back import HeldBack
from motelog.core.broker.replication.master import Master
from motelog.core.broker.replication.master_link import DELAYS, MasterLink
from motelog.core.broker.replication.namesakes import Namesakes
from motelog.core.broker.replication.peers import Peers
from motelog.core.broker.replication.promotion import Promotion, end_promotion, note_term
from motelog.core.broker.replication.slave import Slave
from motelog.core.broker.replication.table_feed import TableFeed
from motelog.core.broker.tables.saved import SavedTables, state_file
from motelog.core.errors import RemotingError, RivalMasterError
from motelog.core.remoting.client import RemotingClient
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.tls import Tls, read_tls
from motelog.core.replication.role import Role
from motelog.core.state_file import StateFile
from motelog.core.store.message_store import MessageStore
from motelog.core.threads import run_in_thread

_DELAY_PROGRESS: Final = "progress of delivery: messages delivered since are delivered again"
_LOG_POLL_S: Final = 0.1
# How long a name server and another broker may take to answer.
_NAMESAKES_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Access:
    """The broker's access rules and its credentials at name servers; None: no rules, unsigned.

    ``tls`` is for connections to name servers; None: plain.
    """

    acl: AclGate | None = None
    credentials: Credentials | None = None
    tls: Tls | None = None

    @classmethod
    def read(cls, config: BrokerConfig) -> Access:
        """Read the files that the section names; ConfigError if one cannot be used."""
        acl, credentials = config.acl_file, config.credentials_file
        return cls(
            AclGate(acl, NEEDS) if acl else None,
            read_credentials(credentials) if credentials else None,
            read_tls(config.tls_file) if config.tls_file else None,
        )


def role_file(config: BrokerConfig) -> StateFile:
    """Return the file of a promoted broker's role."""
    return state_file(config, "role.json", holds="that this broker was promoted to master")


def delay_files(config: BrokerConfig) -> dict[str, StateFile]:
    """Return the files of how far delayed messages are delivered, by their names."""
    return {
        name: state_file(config, name, holds=_DELAY_PROGRESS) for name in (LEVELS_FILE, TIMER_FILE)
    }


@dataclass(frozen=True, slots=True)
class ServedAt:
    """The addresses of a broker: the one that clients use, and the ports on which it listens."""

    clients: tuple[str, int]
    port: int
    ha_port: int = 0


@dataclass(frozen=True, slots=True)
class Copies:
    """The registration of one broker, and what it has of replication in its role."""

    registrars: list[Registrar]
    feed: TableFeed | None
    slave: Slave | None
    promotion: Promotion


def make_copies(
    shared: Shared,
    schedule: ScheduleService,
    saved: SavedTables,
    address: ServedAt,
    access: Access,
) -> Copies:
    """Return them for a broker that is served at ``address``."""
    config, role, master = shared.config, shared.role, shared.master
    namesakes = namesakes_of(config, address, role, access)
    held_back = None
    if master is not None and role.waits_for_slaves:
        held_back = HeldBack(shared.store, master)
    registrars = _make_registrars(shared, address, access, namesakes, held_back)
    if master is not None:
        _ask_when_slaves_go(master, registrars, held_back)
        master.fault_at = partial(_fault_at, config, namesakes, shared.store.pieces.file_bytes)
    feed = None if master is None else _make_feed(shared, master, schedule)
    slave = None if role.is_master else _make_slave(shared, registrars, saved, access)
    return Copies(registrars, feed, slave, Promotion(role_file(config), slave, role, config.id))


def _make_feed(shared: Shared, master: Master, schedule: ScheduleService) -> TableFeed:
    config, tables = shared.config, shared.tables
    feed = TableFeed(
        master,
        parse_addresses(config.ha_peers) if config.ha_peers else LOOPBACK,
        {name: table.snapshot for name, table in tables.settings().items()},
        {name: table.snapshot for name, table in tables.progress().items()}
        | {DELAYS: schedule.progress},
        end_offset=lambda: shared.store.end_offset,
        waits_for_slaves=shared.role.waits_for_slaves,
        slaves_min=config.slaves_min,
    )
    tables.topics.listeners.append(lambda _topic: feed.note_change())
    tables.groups.listeners.append(feed.note_change)
    return feed


def _make_slave(
    shared: Shared, registrars: list[Registrar], saved: SavedTables, access: Access
) -> Slave:
    users, acl = shared.tables.users, access.acl
    link = MasterLink(
        shared.tables,
        delay_files(shared.config),
        Peers(access.credentials, access.tls),
        levels_file=LEVELS_FILE,
        save=saved.save_settings,
        admit=lambda: None if acl is None else acl.put_users(users.principals()),
        when_copied=partial(_when_copied, shared.store),
    )
    topics, queue_count = shared.tables.topics, shared.config.default_queue_count
    return Slave(
        shared.store,
        registrars,
        link,
        lambda queues: topics.restore(queues, queue_count, shared.clock.now_ms()),
        partial(note_term, role_file(shared.config), shared.config.id),
        term=shared.role.term,
        clock=shared.clock,
        seed=shared.config.seed,
    )


async def _when_copied(store: MessageStore, end_offset: int) -> None:
    """Return when a slave's log is on the disk up to an offset; StoreFencedError if it fails."""
    while store.end_offset < end_offset:  # noqa: ASYNC110  # a slave's log tells nobody
        await trio.sleep(_LOG_POLL_S)
    await store.wait_durable(end_offset)


async def _fault_at(
    config: BrokerConfig, namesakes: Namesakes, file_bytes: int, host: str
) -> str | None:
    """Return why no slave at a host can copy the log; None if one can, or if no broker says."""
    for namesrv in config.namesrv:
        with trio.move_on_after(_NAMESAKES_S), suppress(RemotingError):
            async with namesakes.peers.connected(namesrv) as client:
                sizes = await namesakes.file_sizes(client, host)
            if sizes and file_bytes not in sizes:
                return (
                    f"its log has files of {sizes[0]} bytes, this one of {file_bytes}: set"
                    " mappedFileSizeCommitLog (commitlog_file_bytes) to that, in an empty folder"
                )
    return None


def namesakes_of(config: BrokerConfig, address: ServedAt, role: Role, access: Access) -> Namesakes:
    """Return the question whether another broker is the master of this one's name."""
    own = format_address(*address.clients)
    return Namesakes(config.name, own, role.term, Peers(access.credentials, access.tls))


async def role_beside_rivals(
    config: BrokerConfig, address: ServedAt, role: Role, access: Access
) -> Role:
    """Return the role of a master that starts; RivalMasterError if there is another one already.

    A slave that was promoted, and another one since, is a slave again. A name server that does not
    answer in time knows of none.
    """
    namesakes = namesakes_of(config, address, role, access)
    for namesrv in config.namesrv:
        with trio.move_on_after(_NAMESAKES_S), suppress(RemotingError):
            async with namesakes.peers.connected(namesrv) as client:
                rival = await namesakes.rival(client, or_equal=True)
                if rival is None:
                    continue
                if config.id and await namesakes.rival(client):
                    return await run_in_thread(end_promotion, role_file(config), role, config.id)
                raise RivalMasterError(
                    f"{rival} is the master of {config.name}: stop it first, or let this broker be"
                    " its slave (id = 1 in [broker]; motelog store cut if its log is longer)"
                )
    return role


def _ask_when_slaves_go(
    master: Master, registrars: list[Registrar], held_back: HeldBack | None
) -> None:
    """Have a master whose slave has gone ask at once whether that is the master now."""

    def ask() -> None:
        if master.is_followed:
            return
        for registrar in registrars:
            registrar.register_soon()
        if not registrars and held_back is not None:
            held_back.lift()

    master.listeners.append(ask)


def _make_registrars(
    shared: Shared,
    address: ServedAt,
    access: Access,
    namesakes: Namesakes,
    held_back: HeldBack | None,
) -> list[Registrar]:
    config, role = shared.config, shared.role
    host, port = address.clients

    async def check(namesrv: RemotingClient) -> None:
        """Refuse messages from now on, and registration, if another master has come."""
        rival = await namesakes.rival(namesrv)
        if rival is not None:
            name = config.name
            shared.store.fence(f"{rival} is the master of {name} now: this broker must not be")
            raise RemotingError(f"{rival} has become the master of {config.name}")
        if held_back is not None:
            held_back.lift()

    ha_address = config.ha_advertise or format_address(host, address.ha_port)
    broker = BrokerAddress(
        config.cluster,
        config.name,
        format_address(host, port),
        role.broker_id,
        ha_address=ha_address if role.feeds else "",
        permission=config.permission,
    )
    return [
        Registrar(
            namesrv,
            broker,
            shared.tables.topics,
            interval_s=config.register_interval_s,
            timeout_s=config.register_timeout_s,
            credentials=access.credentials,
            tls=access.tls,
            check=check if role.feeds else None,
        )
        for namesrv in config.namesrv
    ]
