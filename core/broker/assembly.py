"""The parts of one broker, put together: which parts use which, and which serves which request.

Owns: BrokerParts, the table of request codes with the gates before it, the broker's counters.
Must not touch: tasks and the order of starting (server), what the parts do.

    request -> acl gate -> settings gate | filter gate -> processor -> api -> store
                                                               '----> tables, stats

Without access control there is no acl gate. With it, sends have no fast path: each is decoded,
because the signature is over its header's fields.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from motelog.core.acl.addresses import parse_addresses
from motelog.core.acl.gate import AclGate
from motelog.core.broker.acknowledge import Copied, policy_of
from motelog.core.broker.admin.admin import Admin
from motelog.core.broker.admin.state import StateAdmin
from motelog.core.broker.api import BrokerApi
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.copies import (
    Access,
    Copies,
    ServedAt,
    delay_files,
    make_copies,
)
from motelog.core.broker.delay.schedule import LEVELS_FILE, TIMER_FILE, ScheduleService
from motelog.core.broker.pop.service import PopService
from motelog.core.broker.pop.state import PopState
from motelog.core.broker.processors.assignment import AssignmentProcessor
from motelog.core.broker.processors.consumer import ConsumerProcessor
from motelog.core.broker.processors.end_transaction import EndTransactionProcessor
from motelog.core.broker.processors.pop import PopProcessor
from motelog.core.broker.processors.pop_ack import PopAckProcessor
from motelog.core.broker.processors.pull import PullProcessor
from motelog.core.broker.processors.recall import RecallProcessor
from motelog.core.broker.processors.reply import ReplyProcessor
from motelog.core.broker.processors.send import SendProcessor
from motelog.core.broker.processors.send_back import SendBackProcessor
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.registration import Registrar
from motelog.core.broker.replication.master import Master
from motelog.core.broker.replication.promotion import Promotion
from motelog.core.broker.replication.slave import Slave
from motelog.core.broker.replication.table_feed import TableFeed
from motelog.core.broker.shown.copies import (
    fault_of_copies,
    sample_of_copies,
    status_of_copies,
)
from motelog.core.broker.shown.properties import shown_properties
from motelog.core.broker.shown.runtime_info import RuntimeInfo
from motelog.core.broker.shown.stats import BrokerStats
from motelog.core.broker.tables.saved import SavedTables
from motelog.core.broker.tables.tables import Tables
from motelog.core.broker.transactions.check_back import CheckBack, CheckRules
from motelog.core.broker.transactions.ledger import Ledger
from motelog.core.broker.waiting.cluster_queues import ClusterQueues
from motelog.core.broker.waiting.filter_gate import FilterGate
from motelog.core.broker.waiting.flow_control import FlowControl
from motelog.core.broker.waiting.settings_gate import SettingsGate
from motelog.core.clock import Clock
from motelog.core.errors import BrokerError, StoreError, TooFewSlavesError
from motelog.core.filter.sql_filter import SqlFilters
from motelog.core.message import encode_host
from motelog.core.reader_key import write_key
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.frames import RemotingCommand
from motelog.core.remoting.pulls import split_pulls
from motelog.core.remoting.sends import split_sends
from motelog.core.remoting.server import Connection, ConnectionLimits, Processor, RemotingServer
from motelog.core.replication.role import ALONE, Role
from motelog.core.store.message_store import MessageStore

logger = logging.getLogger(__name__)

# Requests that change topics, groups or users: their answers wait until the change is durable.
_CHANGING: Final = (
    RequestCode.HEART_BEAT,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
)
# Requests that may need the parser of SQL92 filters.
_FILTERING: Final = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.POP_MESSAGE,
)


# Requests that only a master carries out: messages, deliveries of its own, and changed settings.
_OF_A_MASTER: Final = frozenset(
    {
        *(code for code in _CHANGING if code is not RequestCode.HEART_BEAT),
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.RECALL_MESSAGE,
        RequestCode.END_TRANSACTION,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.FOLLOW_TABLES,
    }
)


@dataclass(frozen=True, slots=True)
class Processors:
    """One broker's processors, and the figures of their work."""

    flow: FlowControl
    send: SendProcessor
    send_back: SendBackProcessor
    reply: ReplyProcessor
    recall: RecallProcessor
    transactions: EndTransactionProcessor
    pull: PullProcessor
    pop: PopProcessor
    pop_ack: PopAckProcessor
    assignment: AssignmentProcessor
    consumer: ConsumerProcessor
    admin: Admin
    runtime: RuntimeInfo
    pop_service: PopService
    feed: TableFeed | None

    @classmethod
    def of(
        cls,
        shared: Shared,
        schedule: ScheduleService,
        ledger: Ledger,
        pop_state: PopState,
        queues: ClusterQueues,
        *,
        address: ServedAt,
        copies: Copies,
    ) -> Processors:
        """Make the processors of a broker that is served at ``address``."""
        flow = FlowControl(shared.config, shared.api.line, shared.store, shared.clock)
        send = SendProcessor(shared, flow)
        reply = ReplyProcessor(shared)
        recall = RecallProcessor(shared)
        pop_service = PopService(
            shared.config, shared.clock, shared.store, shared.api, shared.tables, pop_state
        )
        pop = PopProcessor(shared, pop_service)
        runtime = _runtime(shared, send, schedule)
        return cls(
            flow,
            send,
            SendBackProcessor(shared, send, flow),
            reply,
            recall,
            EndTransactionProcessor(shared, ledger),
            PullProcessor(shared),
            pop,
            PopAckProcessor(shared, pop_service, pop.held),
            AssignmentProcessor(shared, queues),
            ConsumerProcessor(shared),
            Admin(
                shared,
                StateAdmin(
                    shared,
                    properties=shown_properties(
                        shared.config,
                        shared.role,
                        port=address.port,
                        ha_port=address.ha_port,
                        file_bytes=shared.store.pieces.file_bytes,
                    ),
                    switches=_switches(shared, reply, recall, flow),
                    runtime=runtime,
                    delay_offsets=schedule.level_offsets,
                    copies=partial(status_of_copies, shared.store, shared.master, copies.slave),
                    promotion=copies.promotion,
                ),
            ),
            runtime,
            pop_service,
            copies.feed,
        )

    def by_code(self) -> dict[int, Processor]:
        """Return the processor of each request code."""
        return (
            self.send.processors()
            | self.send_back.processors()
            | self.reply.processors()
            | self.recall.processors()
            | self.transactions.processors()
            | self.pull.processors()
            | self.pop.processors()
            | self.pop_ack.processors()
            | self.assignment.processors()
            | self.consumer.processors()
            | self.admin.processors()
            | {RequestCode.FOLLOW_TABLES: self.feed.follow if self.feed else _follow_nothing}
        )

    def plain(self, role: Role = ALONE) -> PlainRequests:
        """Return the handler of requests that need not be decoded."""
        return PlainRequests(self.flow, self.send, self.pull, takes_sends=role.is_master)

    def end_turn(self) -> None:
        """Append the messages of the turn's requests, and answer them."""
        if self.send.turn.staged:
            self.send.end_turn()
        if self.recall.staged:
            self.recall.end_turn()
        if self.transactions.staged:
            self.transactions.end_turn()
        if self.pop_service.log.staged:
            self.pop_service.log.flush()

    def after_turns(self) -> None:
        """Start the sync that the answers of the last turns wait for."""
        self.send.answers.queue.want()
        self.recall.queue.want()
        self.transactions.queue.want()

    def connection_closed(self, connection: Connection) -> None:
        """Forget the requests held for a connection, and the clients that used it."""
        self.pull.connection_closed(connection)
        self.pop.held.connection_closed(connection)
        self.consumer.connection_closed(connection)
        if self.feed is not None:
            self.feed.connection_closed(connection)


def _follow_nothing(_request: RemotingCommand, _: Connection) -> RemotingCommand:
    text = 'slaves may not copy this broker (replicate = "off")'
    raise BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)


def _runtime(shared: Shared, send: SendProcessor, schedule: ScheduleService) -> RuntimeInfo:
    return RuntimeInfo(
        shared.store,
        clock=shared.clock,
        messages_in=lambda: send.messages_count,
        messages_out=lambda: shared.stats.messages_out,
        refused=lambda: send.answers.refused_count,
        timers_near=lambda: schedule.near_count,
        line=shared.api.line,
    )


class PlainRequests:
    """Sends and pulls of a turn, cut out of their frames by kernels."""

    def __init__(
        self, flow: FlowControl, send: SendProcessor, pull: PullProcessor, *, takes_sends: bool
    ) -> None:
        self._flow = flow
        self._takes_sends = takes_sends
        self._rules = send.rules
        self.takers: Mapping[int, Callable[[Any, Connection], bool]] = {
            RequestCode.SEND_MESSAGE_V2: send.take,
            RequestCode.SEND_BATCH_MESSAGE: send.take,
            RequestCode.PULL_MESSAGE: pull.take,
            RequestCode.LITE_PULL_MESSAGE: pull.take,
        }

    def split(self, data: Any, index: Any, count: int) -> list[Any]:
        """Return a plain send, a plain pull or None for each of the first ``count`` frames.

        While all sends are refused, none is plain.
        """
        items: list[Any]
        if self._flow.is_refusing or not self._takes_sends:
            items = [None] * count
        else:
            items = split_sends(data, index, count, self._rules)
        split_pulls(data, index, items)
        return items


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """One broker on an open store; ``server`` knows how to run them."""

    store: MessageStore
    schedule: ScheduleService
    check_back: CheckBack
    api: BrokerApi
    stats: BrokerStats
    processors: Processors
    registrars: list[Registrar]
    queues: ClusterQueues
    settings_gate: SettingsGate
    filter_gate: FilterGate
    acl: AclGate | None
    server: RemotingServer
    #: What feeds slaves, and what copies the log of a master; a broker has one of them or none.
    master: Master | None
    slave: Slave | None
    promotion: Promotion

    @property
    def _waits_for_slaves(self) -> bool:
        return isinstance(self.api.acknowledge, Copied)

    @property
    def copy_fault(self) -> str | None:
        """Why there is no copy of the log although there should be one."""
        return fault_of_copies(self.master, self.slave, waits=self._waits_for_slaves)

    def sample(self) -> dict[str, float]:
        """Return the counters since the start and, named ``*_now``, the gauges."""
        store, cold_reads, send = self.store, self.api.cold_reads, self.processors.send
        transactions = self.processors.transactions
        pop, flow = self.processors.pop_service, self.processors.flow
        copies = sample_of_copies(
            store.end_offset, self.master, self.slave, waits=self._waits_for_slaves
        )
        return {**store.sample(), **copies} | {
            "connections_now": self.server.connections_count,
            "messages_received": send.messages_count,
            "messages_refused": send.answers.refused_count,
            "messages_too_late_on_disk": send.answers.timed_out_count,
            "messages_uncopied": send.answers.uncopied_count,
            "requests_busy_waited": flow.waited_count + self.api.line.overdue_count,
            "requests_busy_page_cache": flow.page_cache_count,
            "requests_busy_rejected": flow.rejected_count,
            "dead_letters": send.dead_letters_count + pop.dead_letters_count,
            "messages_revived": pop.revived_count,
            "messages_in_work_now": pop.checkpoints.open_count,
            "messages_pulled": self.stats.messages_out,
            "held_pulls_woken": self.processors.pull.woken_count,
            "cold_reads": cold_reads.loaded_count,
            "cold_reads_waiting_now": cold_reads.waiting_count,
            "delayed_messages_delivered": self.schedule.delivered_count,
            "delayed_messages_recalled": self.schedule.recalled_count,
            "transactions_committed": transactions.committed_count,
            "transactions_rolled_back": transactions.rolled_back_count,
            "transactions_asked_about": self.check_back.asked_count,
            "transactions_given_up": self.check_back.given_up_count,
            "timers_near_now": self.schedule.near_count,
            "sends_waiting_for_disk_now": send.answers.waiting_count,
            "store_dispatch_behind_bytes_now": store.dispatch_behind_bytes,
            "store_sync_behind_bytes_now": store.end_offset - store.durable_offset,
            "store_log_bytes_now": store.end_offset - store.begin_offset,
        }


def make_schedule(config: BrokerConfig, store: MessageStore) -> ScheduleService:
    """Return the delivery of delayed messages; ``load`` it when the store is open."""
    files = delay_files(config)
    return ScheduleService(
        store,
        levels_file=files[LEVELS_FILE],
        timer_file=files[TIMER_FILE],
        save_interval_s=config.delay_save_interval_s,
        near_max=config.timers_near_max,
    )


def assemble(
    config: BrokerConfig,
    clock: Clock,
    store: MessageStore,
    schedule: ScheduleService,
    pop_state: PopState,
    tables: Tables,
    saved: SavedTables,
    *,
    address: ServedAt,
    role: Role,
    access: Access,
    reader_key: str | None = None,
) -> BrokerParts:
    """Make a broker on an open store, served at ``address``."""
    shared = make_shared(
        config,
        clock,
        store,
        tables,
        store_host=encode_host(*address.clients),
        acl=access.acl,
        reader_key=reader_key,
        role=role,
    )
    api, stats = shared.api, shared.stats
    ledger = Ledger()
    check_back = make_check_back(shared, ledger)
    copies = make_copies(shared, schedule, saved, address, access)
    registrars = copies.registrars
    queues = ClusterQueues(tables.topics, registrars, clock, name=config.name)
    processors = Processors.of(
        shared, schedule, ledger, pop_state, queues, address=address, copies=copies
    )
    settings_gate = _settings_gate(tables, copies, saved)
    filter_gate = FilterGate(shared.filters)
    guarded = _guarded(_by_code(processors, role), settings_gate, filter_gate)
    if access.acl is not None:
        access.acl.put_users(tables.users.principals())
    return BrokerParts(
        store,
        schedule,
        check_back,
        api,
        stats,
        processors,
        registrars,
        queues,
        settings_gate,
        filter_gate,
        access.acl,
        _make_server(config, processors, guarded, access.acl, role),
        shared.master,
        copies.slave,
        copies.promotion,
    )


def _make_server(
    config: BrokerConfig,
    processors: Processors,
    guarded: Mapping[int, Processor],
    acl: AclGate | None,
    role: Role,
) -> RemotingServer:
    return RemotingServer(
        guarded if acl is None else acl.guard(guarded),
        ConnectionLimits(
            connections_max=config.connections_max,
            frame_bytes_max=config.frame_bytes_max,
            idle_s_max=config.idle_s_max,
        ),
        plain=processors.plain(role) if acl is None else None,
        lateness=processors.flow,
        end_turn=processors.end_turn,
        after_turns=processors.after_turns,
        on_closed=processors.connection_closed,
    )


def _settings_gate(tables: Tables, copies: Copies, saved: SavedTables) -> SettingsGate:
    return SettingsGate(
        tables.topics,
        tables.groups,
        tables.request_modes,
        tables.users,
        copies.registrars,
        save=saved.save_settings,
        feed=copies.feed,
    )


def _by_code(processors: Processors, role: Role) -> dict[int, Processor]:
    """Return the processor of each request code; a slave refuses what its master does."""
    found = processors.by_code()
    if role.is_master:
        return found
    return found | dict.fromkeys(_OF_A_MASTER & found.keys(), _refuse_as_slave)


def _refuse_as_slave(request: RemotingCommand, _: Connection) -> RemotingCommand:
    is_end = request.code == RequestCode.END_TRANSACTION
    # With the first code producers try another broker; RocketMQ has the other one for commits.
    code = ResponseCode.SLAVE_NOT_AVAILABLE if is_end else ResponseCode.SERVICE_NOT_AVAILABLE
    return request.answer(code, "this broker is a slave: only its master does this")


def make_check_back(shared: Shared, ledger: Ledger) -> CheckBack:
    """Return the checks with producers of open transactions; ``load`` before the broker serves."""
    config = shared.config
    rules = CheckRules(
        broker_name=config.name,
        timeout_ms=round(config.transaction_timeout_s * 1000),
        interval_s=config.transaction_check_interval_s,
        check_max=config.transaction_check_max,
        age_ms_max=config.store.retention_hours * 3_600_000,
    )
    return CheckBack(
        shared.store,
        shared.tables,
        ledger,
        rules,
        store_host=shared.api.store_host,
        acl=shared.acl,
    )


def _too_few_slaves(master: Master | None, slaves_min: int) -> StoreError | None:
    """Return why messages are refused for lack of slaves, None if they are not."""
    if master is None or master.near_count >= slaves_min:
        return None
    return TooFewSlavesError(f"slaves near enough: {master.near_count}; slaves_min is {slaves_min}")


def make_shared(
    config: BrokerConfig,
    clock: Clock,
    store: MessageStore,
    tables: Tables,
    *,
    store_host: bytes,
    acl: AclGate | None = None,
    reader_key: str | None = None,
    role: Role = ALONE,
) -> Shared:
    """Return the objects that the processors of a broker on ``store`` share."""
    master = None
    if role.feeds:  # without ha_peers it listens where this machine alone can connect
        master = Master(store.pieces, parse_addresses(config.ha_peers or ("*",)), clock)
    acknowledge = policy_of(store)
    if master is not None and role.waits_for_slaves:
        acknowledge = Copied(
            acknowledge,
            master,
            timeout_ms=config.slave_timeout_ms,
            may_be_alone=not config.slaves_min,
        )
    api = BrokerApi(
        store,
        tables.topics,
        clock=clock,
        store_host=store_host,
        cold_reads_max=config.held_pulls_max,
        acknowledge=acknowledge,
        refusal=partial(_too_few_slaves, master, config.slaves_min) if config.slaves_min else None,
    )
    filters = SqlFilters(is_enabled=config.enable_property_filter, is_loaded=False)
    stats = BrokerStats(
        cluster=config.cluster,
        clock=clock,
        messages_in=lambda: store.stats.put_messages,
        take_grown=lambda: store.readable.take_grown(),
    )
    return Shared(config, clock, store, api, tables, filters, stats, acl, reader_key, role, master)


def make_reader_key(config: BrokerConfig) -> str | None:
    """Return the key of clients that can read the log's files; None if all must request records.

    The key is then in the folder of the open store; blocks.
    """
    # Bytes in a write buffer are not in the file yet.
    if not config.mapped_reads or config.store.write_buffer:
        return None
    try:
        return write_key(config.store.directory)
    except OSError as exc:
        logger.warning("no key for readers of the files; all clients get records error=%s", exc)
        return None


def _switches(
    shared: Shared, reply: ReplyProcessor, recall: RecallProcessor, flow: FlowControl
) -> dict[str, Callable[[bool], None]]:
    """Return the switches of a running broker, by RocketMQ's names."""
    return {
        "autoCreateTopicEnable": lambda is_on: shared.tables.topics.allow_creation(
            is_on, shared.clock.now_ms()
        ),
        "autoCreateSubscriptionGroup": shared.tables.groups.allow_creation,
        "enablePropertyFilter": shared.filters.enable,
        "storeReplyMessageEnable": reply.store_replies,
        "recallMessageEnable": recall.enable,
        "brokerFastFailureEnable": flow.enable,
    }


def _guarded(
    processors: Mapping[int, Processor], settings_gate: SettingsGate, filter_gate: FilterGate
) -> dict[int, Processor]:
    return (
        {**processors}
        | {code: settings_gate.guard(processors[code]) for code in _CHANGING}
        | {code: filter_gate.guard(processors[code]) for code in _FILTERING}
    )
