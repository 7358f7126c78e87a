"""The broker: one store, its topics and groups, and the remoting server in front of it.

Owns: the life of all of these, listening addresses, the table of request codes, saving state.
Must not touch: what a request does (processors), what a message is (the store).

    run: listen -> open the store, load state -> serve -> register -> started
    end: stop serving -> save what changed -> the store closes itself
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio

from motelog.core.addresses import parse_address
from motelog.core.broker.api import BrokerApi
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.delay.schedule import ScheduleService
from motelog.core.broker.processors.admin import AdminProcessor
from motelog.core.broker.processors.consumer import ConsumerProcessor
from motelog.core.broker.processors.pull import PullProcessor
from motelog.core.broker.processors.send import SendProcessor
from motelog.core.broker.processors.send_answers import SendAnswers
from motelog.core.broker.processors.send_back import SendBackProcessor
from motelog.core.broker.registration import BrokerAddress, Registrar
from motelog.core.broker.shown.runtime_info import RuntimeInfo
from motelog.core.broker.shown.stats import BrokerStats
from motelog.core.broker.tables.consumer_groups import GroupMembers
from motelog.core.broker.tables.consumer_offsets import ConsumerOffsets
from motelog.core.broker.tables.subscription_groups import SubscriptionGroups
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.broker.waiting.filter_gate import FilterGate
from motelog.core.broker.waiting.long_poll import HeldRequests
from motelog.core.broker.waiting.settings_gate import SettingsGate
from motelog.core.clock import Clock, SystemClock
from motelog.core.filter.sql_filter import SqlFilters
from motelog.core.limited_log import LimitedLog
from motelog.core.message import encode_host
from motelog.core.metrics import Histogram
from motelog.core.net.listen import open_listener
from motelog.core.remoting.codes import RequestCode
from motelog.core.remoting.server import Connection, RemotingServer
from motelog.core.saved_table import SavedTable
from motelog.core.state_file import StateFile
from motelog.core.store.message_store import MessageStore
from motelog.core.store.state.progress import OnProgress, StartProgress, log_progress

logger = logging.getLogger(__name__)

VIP_PORT_DISTANCE: Final = 2
_EXPIRE_INTERVAL_S: Final = 10.0
_FIRST_REGISTRATION_S_MAX: Final = 3.0
_DELAY_PROGRESS: Final = "progress of delivery: delayed messages delivered since come again"


class Broker:
    """One broker; ``address`` and ``api`` exist once ``run`` has started."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        on_progress: OnProgress = log_progress,
    ) -> None:
        self._config = config
        self._on_progress = on_progress
        self._clock = clock or SystemClock()
        self._address: tuple[str, int] | None = None
        self._api: BrokerApi | None = None
        # What a start that takes long said last of itself.
        self.start_progress: StartProgress | None = None
        self.topics = TopicTable(
            broker_name=config.name,
            cluster=config.cluster,
            default_queue_count=config.default_queue_count,
            auto_create=config.auto_create_topics,
            topics_max=config.topics_max,
        )
        self.groups = SubscriptionGroups(
            auto_create=config.auto_create_groups, groups_max=config.groups_max
        )
        self.offsets = ConsumerOffsets(entries_max=config.offset_entries_max)
        self.consumers: GroupMembers[Connection] = GroupMembers(members_max=config.clients_max)
        self.producers: GroupMembers[Connection] = GroupMembers(members_max=config.clients_max)
        self.held_pulls = HeldRequests(
            requests_max=config.held_pulls_max,
            requests_per_owner_max=config.held_pulls_per_connection_max,
        )
        self._topics_saved = SavedTable(
            self._state_file("topics.json", "settings of topics"), self.topics
        )
        self._groups_saved = SavedTable(
            self._state_file("subscriptionGroup.json", "settings of consumer groups"), self.groups
        )
        self._offsets_saved = SavedTable(
            self._state_file(
                "consumerOffset.json", "consume offsets: what was consumed since comes again"
            ),
            self.offsets,
        )
        self._faults = LimitedLog(logger)
        self._registrars: list[Registrar] = []
        self._serving: _Serving | None = None

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that clients connect to."""
        assert self._address is not None, "the broker has not started"
        return self._address

    @property
    def api(self) -> BrokerApi:
        """The broker for users in this process."""
        assert self._api is not None, "the broker has not started"
        return self._api

    @property
    def is_registered(self) -> bool:
        """Whether at least one name server took the last registration; True without any."""
        return not self._registrars or any(r.is_registered for r in self._registrars)

    def sample(self) -> dict[str, int]:
        """Return the counters since the start and, named ``*_now``, the gauges."""
        counters = {
            "topics_now": len(self.topics),
            "groups_now": len(self.groups),
            "consumers_now": self.consumers.members_count,
            "producers_now": self.producers.members_count,
            "held_pulls_now": len(self.held_pulls),
        }
        serving = self._serving
        if serving is not None:
            store = serving.store
            counters |= store.sample() | {
                "connections_now": serving.server.connections_count,
                "messages_received": serving.send.messages_count,
                "messages_refused": serving.send.answers.refused_count,
                "messages_too_late_on_disk": serving.send.answers.timed_out_count,
                "dead_letters": serving.send.dead_letters_count,
                "messages_pulled": serving.pull.messages_count,
                "held_pulls_woken": serving.pull.woken_count,
                "cold_reads": serving.api.cold_reads.loaded_count,
                "cold_reads_waiting_now": serving.api.cold_reads.waiting_count,
                "delayed_messages_delivered": serving.schedule.delivered_count,
                "timers_near_now": serving.schedule.near_count,
                "sends_waiting_for_disk_now": serving.send.answers.waiting_count,
                "store_dispatch_behind_bytes_now": store.dispatch_behind_bytes,
                "store_sync_behind_bytes_now": store.end_offset - store.durable_offset,
                "store_log_bytes_now": store.end_offset - store.begin_offset,
            }
        return counters

    def histograms(self) -> list[Histogram]:
        """Return the store's distributions; none before ``run`` has started."""
        return [] if self._serving is None else self._serving.store.stats.histograms()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled.

        OSError if the address cannot be had, StoreError if the store or a state file cannot be
        used; then nothing was changed.
        """
        listeners = self._open_listeners()
        try:
            self._address = listeners[0].getsockname()[:2]
            store = MessageStore(
                self._config.store, store_host=encode_host(*self._advertised()), clock=self._clock
            )
            schedule = ScheduleService(
                store,
                levels_file=self._state_file("delayOffset.json", _DELAY_PROGRESS),
                timer_file=self._state_file("timerOffset.json", _DELAY_PROGRESS),
                save_interval_s=self._config.delay_save_interval_s,
                near_max=self._config.timers_near_max,
            )
            await trio.to_thread.run_sync(self._open, store, schedule)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        async with trio.open_nursery() as nursery:
            # The store outlives everybody who uses it, so its end is ours to choose.
            store_scope = trio.CancelScope(shield=True)
            await nursery.start(_run_in_scope, store.run, store_scope)
            try:
                await self._serve(store, schedule, listeners, task_status)
            finally:
                with trio.CancelScope(shield=True):
                    await self._save_changed()
                store_scope.cancel()

    async def _serve(
        self,
        store: MessageStore,
        schedule: ScheduleService,
        listeners: list[socket.socket],
        task_status: trio.TaskStatus[None],
    ) -> None:
        api = self._api = BrokerApi(
            store,
            self.topics,
            clock=self._clock,
            store_host=encode_host(*self._advertised()),
            cold_reads_max=self._config.held_pulls_max,
        )
        filters = SqlFilters(is_enabled=self._config.enable_property_filter, is_loaded=False)
        stats = BrokerStats(
            cluster=self._config.cluster,
            clock=self._clock,
            messages_in=lambda: store.stats.put_messages,
            messages_out=lambda: pull.messages_count,
        )
        send, pull, consumer = self._processors(store, api, filters, stats)
        runtime = RuntimeInfo(
            store,
            clock=self._clock,
            messages_in=lambda: send.messages_count,
            messages_out=lambda: pull.messages_count,
            refused=lambda: send.answers.refused_count,
            timers_near=lambda: schedule.near_count,
        )
        admin = AdminProcessor(
            store,
            self.topics,
            self.groups,
            self.consumers,
            self.producers,
            self.offsets,
            api.cold_reads,
            clock=self._clock,
            broker_name=self._config.name,
            properties=self._shown_properties(),
            runtime=runtime,
            stats=stats,
            delay_offsets=schedule.level_offsets,
        )
        back = SendBackProcessor(
            store.reader, self.topics, self.groups, send, api.cold_reads, clock=self._clock
        )
        gate = SettingsGate(self.topics, self.groups, self._registrars, save=self._save_settings)
        processors = (
            send.processors()
            | back.processors()
            | pull.processors()
            | consumer.processors()
            | admin.processors()
        )
        for code in (
            RequestCode.HEART_BEAT,
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
        ):
            processors[code] = gate.guard(processors[code])
        filter_gate = FilterGate(filters)
        filtering = {*pull.processors(), RequestCode.CHECK_CLIENT_CONFIG}
        processors |= {code: filter_gate.guard(processors[code]) for code in filtering}
        server = RemotingServer(
            processors,
            connections_max=self._config.connections_max,
            frame_bytes_max=self._config.frame_bytes_max,
            idle_s_max=self._config.idle_s_max,
            end_turn=send.end_turn,
            after_turns=send.answers.queue.want,
            on_closed=partial(_connection_closed, pull, consumer),
        )
        for listener in listeners:
            server.listen(listener)
        api.on_growth(pull.queues_grew)
        api.on_growth(stats.queues_grew)
        self._serving = _Serving(store, api, send, pull, server, schedule)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            await nursery.start(pull.run, server)
            await nursery.start(api.cold_reads.run, server.flush)
            await nursery.start(send.answers.run, server)
            await nursery.start(schedule.run)
            nursery.start_soon(gate.run, server)
            nursery.start_soon(filter_gate.run, server)
            nursery.start_soon(self._save_regularly)
            nursery.start_soon(self._expire_regularly, consumer)
            nursery.start_soon(self._tick_regularly, runtime, stats)
            await self._start_registrars(nursery)
            logger.info("broker listens address=%s:%d topics=%d", *self.address, len(self.topics))
            logger.info("messages are %s", self._config.store.promise)
            task_status.started()

    def _processors(
        self, store: MessageStore, api: BrokerApi, filters: SqlFilters, stats: BrokerStats
    ) -> tuple[SendProcessor, PullProcessor, ConsumerProcessor]:
        config = self._config
        send = SendProcessor(
            api,
            self.topics,
            self.groups,
            stats,
            clock=self._clock,
            answers=SendAnswers(api, clock=self._clock, region=config.region),
            cluster=config.cluster,
            region=config.region,
            body_bytes_max=config.store.message_bytes_max,
            waiting_answers_max=config.waiting_answers_max,
        )
        pull = PullProcessor(
            api,
            self.topics,
            self.groups,
            self.consumers,
            self.offsets,
            self.held_pulls,
            api.cold_reads,
            filters,
            stats,
            clock=self._clock,
            count_max=config.pull_count_max,
            bytes_max=config.pull_bytes_max,
            hold_ms_max=config.hold_ms_max,
            short_poll_ms=None if config.long_poll else config.short_poll_ms,
            cached_bytes=store.reader.cached_bytes if config.slave_read_enable else None,
        )
        consumer = ConsumerProcessor(
            store,
            self.topics,
            self.groups,
            self.consumers,
            self.producers,
            self.offsets,
            filters,
            api.cold_reads,
            clock=self._clock,
            young_bytes_max=store.reader.cached_bytes,
        )
        return send, pull, consumer

    def _open_listeners(self) -> list[socket.socket]:
        main = open_listener(self._config.listen)
        host, port = parse_address(self._config.listen)
        vip_port = port - VIP_PORT_DISTANCE
        if not self._config.vip or vip_port <= 0:
            return [main]
        shown_host = f"[{host}]" if ":" in host else host
        try:
            return [main, open_listener(f"{shown_host}:{vip_port}")]
        except OSError as exc:
            logger.warning("VIP port not available, old clients may need it error=%s", exc)
            return [main]

    def _advertised(self) -> tuple[str, int]:
        return parse_address(self._config.advertise) if self._config.advertise else self.address

    def _open(self, store: MessageStore, schedule: ScheduleService) -> None:
        """Open the store and load what is saved beside it; blocking."""
        store.open(self._note_progress)
        try:
            for saved in (self._topics_saved, self._groups_saved, self._offsets_saved):
                saved.load(is_expected=store.end_offset > 0)
            schedule.load()
            self.topics.restore(
                store.queues(), self._config.default_queue_count, self._clock.now_ms()
            )
            lowered = self.offsets.lower_to(store.reader.max_offset)
            if lowered:
                logger.warning("consume offsets beyond the end of their queues lowered=%d", lowered)
        except BaseException:
            store.close()
            raise

    def _note_progress(self, progress: StartProgress) -> None:
        self.start_progress = progress
        self._on_progress(progress)

    async def _start_registrars(self, nursery: trio.Nursery) -> None:
        host, port = self._advertised()
        shown_host = f"[{host}]" if ":" in host else host
        broker = BrokerAddress(
            cluster=self._config.cluster,
            name=self._config.name,
            address=f"{shown_host}:{port}",
        )
        for namesrv in self._config.namesrv:
            registrar = Registrar(
                namesrv,
                broker,
                self.topics,
                interval_s=self._config.register_interval_s,
                timeout_s=self._config.register_timeout_s,
            )
            self._registrars.append(registrar)
            nursery.start_soon(registrar.run)
        # Clients that start after us should find our topics at once; a name server that is
        # away must not keep us from starting.
        with trio.move_on_after(_FIRST_REGISTRATION_S_MAX):
            for registrar in self._registrars:
                await registrar.first_round_over.wait()

    async def _save_regularly(self) -> None:
        """Save what has changed at each interval, and a new or changed topic or group at once."""
        changed = trio.Event()
        self.topics.listeners.append(lambda _topic: changed.set())
        self.groups.listeners.append(lambda: changed.set())
        while True:
            with trio.move_on_after(self._config.save_interval_s):
                await changed.wait()
            changed = trio.Event()
            await self._save_changed()

    async def _save_changed(self) -> None:
        await self._save_settings()
        await self._offsets_saved.save_if_changed()

    async def _save_settings(self) -> str | None:
        """Save topics and groups that have changed; return why that failed, None if it did not."""
        topics_fault = await self._topics_saved.save_if_changed()
        groups_fault = await self._groups_saved.save_if_changed()
        return topics_fault or groups_fault

    async def _expire_regularly(self, consumer: ConsumerProcessor) -> None:
        while True:
            await trio.sleep(_EXPIRE_INTERVAL_S)
            with self._faults.boundary("looking for silent clients failed, a fault of this broker"):
                consumer.expire(self._config.client_silence_s_max * 1000)

    async def _tick_regularly(self, runtime: RuntimeInfo, stats: BrokerStats) -> None:
        while True:
            with self._faults.boundary("counting messages failed, a fault of this broker"):
                runtime.tick()
                stats.tick()
            await trio.sleep(1)

    def _state_file(self, name: str, holds: str) -> StateFile:
        return StateFile(f"{self._config.store.directory}/config/{name}", holds=holds)

    def _shown_properties(self) -> dict[str, str]:
        """Return the settings under the names RocketMQ's tools know."""
        config = self._config
        return {
            "brokerName": config.name,
            "brokerClusterName": config.cluster,
            "brokerId": "0",
            "brokerPermission": "6",
            "namesrvAddr": ";".join(config.namesrv),
            "listenPort": str(self.address[1]),
            "flushDiskType": f"{config.store.flush.upper()}_FLUSH",
            "defaultTopicQueueNums": str(config.default_queue_count),
            "autoCreateTopicEnable": str(config.auto_create_topics).lower(),
            "autoCreateSubscriptionGroup": str(config.auto_create_groups).lower(),
            "maxMessageSize": str(config.store.message_bytes_max),
            "longPollingEnable": str(config.long_poll).lower(),
            "enablePropertyFilter": str(config.enable_property_filter).lower(),
            "slaveReadEnable": str(config.slave_read_enable).lower(),
            "accessMessageInMemoryMaxRatio": str(config.store.cached_memory_percent),
        }


@dataclass(frozen=True, slots=True)
class _Serving:
    """What runs while the broker serves; its counters are shown."""

    store: MessageStore
    api: BrokerApi
    send: SendProcessor
    pull: PullProcessor
    server: RemotingServer
    schedule: ScheduleService


async def _run_in_scope(
    run: Callable[..., Any],
    scope: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with scope:
        await run(task_status=task_status)


def _connection_closed(
    pull: PullProcessor, consumer: ConsumerProcessor, connection: Connection
) -> None:
    pull.connection_closed(connection)
    consumer.connection_closed(connection)
