"""Several gateway processes as one service of a server: started, watched, restarted, stopped.

Owns: the processes, the address that they share, the state of each.
Must not touch: what a gateway does; client sockets, which belong to the processes.

    start     all processes at once; ready when all are. One that cannot start ends the service
    end       a process that ends later is restarted, the sooner the longer it has lived
    stop      the channel to each is closed; a process that does not stop in time is killed

Invariants: no process outlives its channel for longer than a stop may take, and the channel closes
with this process, however that ends. The processes of an earlier start have ended before new ones
are started: a lock that all of them inherit ensures this.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socket import socketpair
from typing import Any, Final, TypeVar

import msgspec
import trio

from motelog.console.asking import ANSWER_WITHIN_S, RefusedError
from motelog.core.addresses import format_address
from motelog.core.errors import MotelogError
from motelog.core.metrics import counter, gauge
from motelog.core.net.config import ListenerConfig
from motelog.core.net.listen import hold_address
from motelog.core.net.listeners import CertificateFile, ListenerError
from motelog.core.niceness import niceness
from motelog.core.private_files import make_folders
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.config import GatewayConfig
from motelog.gateway.metrics import GATEWAY_METRICS, PLAIN, SHARED, GatewayMetrics
from motelog.gateway.operator.answers import (
    Client,
    ClientPage,
    GatewayNodes,
    MessageReceivers,
    RetainedMessage,
    RetainedPage,
    Session,
    SessionPage,
    Trace,
)
from motelog.logs import LogConfig
from motelog.workers.answers import GatewayOfWorkers
from motelog.workers.channel import (
    Answer,
    Asked,
    Begin,
    Channel,
    Failed,
    Message,
    Question,
    Ready,
    State,
)

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

#: After this a process that does not stop is killed; it gives up by itself before (``worker``).
STOPPED_WITHIN_S: Final = 9.0
#: How long processes of an earlier start may take to end.
ALONE_WITHIN_S: Final = 15.0
#: Delay before a restart: doubled after each short life.
RESTART_S: Final = 0.1
RESTART_S_MAX: Final = 10.0
SHORT_LIFE_S: Final = 10.0
#: A process sends its state each second. After this silence it counts as not answering.
SILENCE_S_MAX: Final = 5.0
#: How long the console waits for an answer that needs no append.
LOOK_WITHIN_S: Final = 3.0
#: The answer "there is none".
_NONE: Final = msgspec.msgpack.encode(None)
#: Questions to one process that may be outstanding.
QUESTIONS_MAX: Final = 100

#: How /metrics shows the combined counters of several processes.
WORKERS_METRICS: Final = {
    **GATEWAY_METRICS,
    "workers_now": gauge("workers", "Gateway processes that are ready."),
    "workers_restarted": counter(
        "workers_restarted", "Restarts of gateway processes that had ended."
    ),
}


class WorkerError(MotelogError):
    """A gateway process cannot start."""

    def __init__(self, message: str, *, comes_again: bool = False) -> None:
        super().__init__(message)
        self.comes_again = comes_again


class Workers:
    """Gateway processes as one service; ``address`` is known once started.

    ``config`` names the name servers, and optionally a view; each process has a file beside it.
    """

    def __init__(
        self,
        config: GatewayConfig,
        access: AccessConfig,
        log: LogConfig,
        *,
        listeners: Sequence[ListenerConfig] = (),
    ) -> None:
        self._config = config
        self._access = access
        self._log = log
        self._listener_configs = listeners
        self._workers = [_Worker(config, number) for number in range(1, config.workers + 1)]
        self.address: tuple[str, int] = ("", 0)
        #: Addresses of the further listeners by name, once started.
        self.listeners: dict[str, str] = {}
        #: Answers the console's questions.
        self.gateway = GatewayOfWorkers(lambda: [one for one in self._workers if one.is_ready])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started when all processes are ready.

        OSError if the address cannot be bound, ListenerError for that of a further listener;
        WorkerError if a process cannot start.
        """
        with _lock_file(self._config.view_path) as lock:
            if lock is not None:
                await _take(lock)
            with ExitStack() as held:
                self.address = _hold(held, self._config.listen)
                listeners = []
                for one in self._listener_configs:
                    try:
                        address = format_address(*_hold(held, one.address))
                    except OSError as exc:
                        raise ListenerError(one.name, exc) from exc
                    self.listeners[one.name] = one.text_of(address)
                    listeners.append(msgspec.structs.replace(one, address=address))
                config = msgspec.structs.replace(self._config, listen=format_address(*self.address))
                begin = Begin(config, self._access, self._log, tuple(listeners))
                await self._run_all(begin, lock, task_status)

    async def _run_all(
        self, begin: Begin, lock: int | None, task_status: trio.TaskStatus[None]
    ) -> None:
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as starting:
                for one in self._workers:
                    starting.start_soon(nursery.start, one.run, begin, lock)
            task_status.started()

    async def reload_certificates(self) -> list[CertificateFile]:
        """Make all processes reload their certificates; return the result for each file."""
        return await self.gateway.reload_certificates()

    # --- what the server says of them ----------------------------------------------------

    @property
    def starting(self) -> str | None:
        """Return which processes are not ready; None if all are."""
        names = [one.name for one in self._workers if not one.is_ready]
        return f"waiting for {', '.join(names)}" if names else None

    @property
    def fault(self) -> str | None:
        """Return which processes are down or do not answer; None if all are well."""
        faults = [f"{one.name} {fault}" for one in self._workers if (fault := one.fault)]
        return "; ".join(faults) or None

    @property
    def outage(self) -> str | None:
        """Return which brokers are unreachable, as reported by the first process that lacks one."""
        return next((one.outage for one in self._workers if one.outage), None)

    @property
    def access_fault(self) -> str | None:
        """Return why no client can log in to one of the processes; None while all is well."""
        return next((one.access_fault for one in self._workers if one.access_fault), None)

    def sample(self) -> dict[str, int]:
        """Return the summed counters of all processes, including those that have ended."""
        names = (PLAIN, *(one.name for one in self._listener_configs))
        total = Counter(GatewayMetrics(listeners=names).sample())
        for one in self._workers:
            total.update(one.ended)
            for name, value in one.counters.items():
                total[name] = max(total[name], value) if name in SHARED else total[name] + value
        total["workers_now"] = sum(one.is_ready for one in self._workers)
        total["workers_restarted"] = sum(one.restarts for one in self._workers)
        return dict(total)

    def histograms(self) -> dict[str, list[float]]:
        """Return the summed histograms of all processes, including those that have ended."""
        total = GatewayMetrics().histograms()
        for one in self._workers:
            _add(total, one.ended_histograms)
            _add(total, one.histograms)
        return total


class _Worker:
    """Successive processes under one name; answers as an ``AskedGateway`` while one is ready."""

    def __init__(self, config: GatewayConfig, number: int) -> None:
        self.name = config.name_of(number)
        path = Path(config.view_path)
        self._view_path = str(path.with_stem(f"{path.stem}-{number}")) if config.view_path else ""
        self.restarts = 0
        #: The counters of processes that have ended, and of the running one.
        self.ended: Counter[str] = Counter()
        self.counters: dict[str, int] = {}
        #: Likewise for histograms: name -> the count of each bucket, and the sum.
        self.ended_histograms: dict[str, list[float]] = {}
        self.histograms: dict[str, list[float]] = {}
        self.outage: str | None = None
        self.access_fault: str | None = None
        self.is_ready = False
        self._has_been_ready = False
        self._why = "starts"
        self._heard_s = 0.0
        self._questions: trio.MemorySendChannel[Message] | None = None
        self._asked = 0
        self._open: dict[int, tuple[trio.Event, list[Answer]]] = {}

    @property
    def fault(self) -> str | None:
        if not self.is_ready:
            return self._why
        silent_s = trio.current_time() - self._heard_s
        return f"has not answered for {silent_s:.0f} s" if silent_s > SILENCE_S_MAX else None

    # --- its life ------------------------------------------------------------------------

    async def run(
        self, begin: Begin, lock: int | None, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Keep a process running until cancelled; WorkerError if the first one cannot start."""
        config = msgspec.structs.replace(begin.gateway, name=self.name, view_path=self._view_path)
        begin = msgspec.structs.replace(begin, gateway=config)
        delay_s = RESTART_S
        while True:
            began_s = trio.current_time()
            try:
                why = await self._live(begin, lock, task_status)
            except OSError as exc:  # not enough resources for another process
                why = Failed(str(exc))
            if not self._has_been_ready:
                text = f"{self.name} cannot start: {why.reason}"
                raise WorkerError(text, comes_again=why.comes_again)
            lived_s = trio.current_time() - began_s
            if lived_s >= SHORT_LIFE_S:
                delay_s = RESTART_S
            self._why = f"is restarting: {why.reason}"
            logger.warning(
                "a gateway process has ended and is restarted worker=%s reason=%s after_s=%.1f"
                " delay_s=%.1f",
                self.name,
                why.reason,
                lived_s,
                delay_s,
            )
            self.restarts += 1
            await trio.sleep(delay_s)
            delay_s = min(2 * delay_s, RESTART_S_MAX)

    async def _live(
        self, begin: Begin, lock: int | None, task_status: trio.TaskStatus[None]
    ) -> Failed:
        """Run one process to its end; return why it ended."""
        ours, theirs = socketpair()
        with ours, theirs:
            # -P: do not import modules from the folder in which the server was started.
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", "motelog.workers.worker", self.name],
                stdin=theirs,
                stdout=subprocess.DEVNULL,  # the server's own output belongs to its caller
                pass_fds=() if lock is None else (lock,),
            )
            # Here all processes wait for the broker and the name server.
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, process.pid, own + niceness(begin.gateway.workers))
            channel = Channel(ours)
        questions, asked = trio.open_memory_channel[Message](QUESTIONS_MAX)
        failed: Failed | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_send_all, channel, asked)
                questions.send_nowait(begin)
                async for message in channel.messages():
                    match message:
                        case Ready():
                            self._questions, self.is_ready = questions, True
                            self._heard_s = trio.current_time()
                            if not self._has_been_ready:
                                self._has_been_ready = True
                                task_status.started()
                        case State(counters, histograms, outage, access_fault):
                            self.counters, self.histograms = counters, histograms
                            self.outage = outage
                            self.access_fault = access_fault
                            self._heard_s = trio.current_time()
                        case Answer():
                            self._answered(message)
                        case Failed():
                            failed = message
                nursery.cancel_scope.cancel()
        finally:
            self._questions, self.is_ready, self.outage = None, False, None
            self.access_fault = None
            self._why = "ends"
            self._keep_counters()
            for event, _ in self._open.values():
                event.set()  # no answer will come
            channel.close()
            with trio.CancelScope(shield=True):
                await _stopped(process, self.name)
        return failed or Failed(_status(process.returncode))

    def _keep_counters(self) -> None:
        for name, value in self.counters.items():
            if not name.endswith("_now"):  # a gauge ends with its process
                self.ended[name] += value
        _add(self.ended_histograms, self.histograms)
        self.counters, self.histograms = {}, {}

    # --- questions -----------------------------------------------------------------------

    async def list_gateways(self) -> GatewayNodes:
        return await self._ask(GatewayNodes, "list_gateways")

    async def reload_certificates(self) -> list[CertificateFile]:
        return await self._ask(list[CertificateFile], "reload_certificates")

    async def list_retained(self, topic_filter: str, after: str, limit: int) -> RetainedPage:
        return await self._ask(RetainedPage, "list_retained", topic_filter, after, limit)

    async def get_retained(self, topic: str) -> RetainedMessage | None:
        return await self._find(RetainedMessage, "get_retained", topic)

    async def delete_retained(self, topic: str) -> bool:
        return await self._ask(bool, "delete_retained", topic, within_s=2 * ANSWER_WITHIN_S)

    async def list_receivers(
        self, name: str, topic: str, queue_names: list[str], queue_offset: int, client_id: str
    ) -> MessageReceivers | None:
        place = name, topic, queue_names, queue_offset, client_id
        return await self._find(MessageReceivers, "list_receivers", *place)

    async def list_clients(self, prefix: str, after: str, limit: int) -> ClientPage:
        return await self._ask(ClientPage, "list_clients", prefix, after, limit)

    async def get_client(self, client_id: str) -> Client | None:
        return await self._find(Client, "get_client", client_id)

    async def kick(self, client_id: str) -> bool:
        return await self._ask(bool, "kick", client_id)

    async def start_trace(self, client_id: str, seconds: int, packets: int) -> Trace | None:
        return await self._find(Trace, "start_trace", client_id, seconds, packets)

    async def read_trace(self, trace: str, after: int) -> Trace | None:
        return await self._find(Trace, "read_trace", trace, after)

    async def end_trace(self, trace: str) -> bool:
        return await self._ask(bool, "end_trace", trace)

    async def list_sessions(self, prefix: str, after: str, limit: int) -> SessionPage:
        return await self._ask(SessionPage, "list_sessions", prefix, after, limit)

    async def get_session(self, client_id: str) -> Session | None:
        return await self._find(Session, "get_session", client_id)

    async def end_session(self, client_id: str) -> bool:
        return await self._ask(bool, "end_session", client_id, within_s=2 * ANSWER_WITHIN_S)

    async def end_away_session(self, client_id: str) -> bool:
        return await self._ask(bool, "end_away_session", client_id, within_s=2 * ANSWER_WITHIN_S)

    async def _ask(
        self, kind: type[_T], name: Asked, *arguments: Any, within_s: float = LOOK_WITHIN_S
    ) -> _T:
        """Return the process's answer; RefusedError if it refuses or does not answer in time."""
        raw = await self._answer_to(name, arguments, within_s)
        return msgspec.msgpack.decode(raw, type=kind)

    async def _find(self, kind: type[_T], name: Asked, *arguments: Any) -> _T | None:
        """Do as ``_ask``; None if there is no such object."""
        raw = await self._answer_to(name, arguments, LOOK_WITHIN_S)
        return None if bytes(raw) == _NONE else msgspec.msgpack.decode(raw, type=kind)

    async def _answer_to(
        self, name: Asked, arguments: tuple[Any, ...], within_s: float
    ) -> msgspec.Raw:
        number = self._asked = self._asked + 1
        event, answers = self._open[number] = trio.Event(), []
        try:
            if self._questions is not None:
                self._questions.send_nowait(Question(number, name, arguments))
                with trio.move_on_after(within_s):
                    await event.wait()
        except trio.WouldBlock:
            pass
        finally:
            self._open.pop(number, None)
        if not answers:
            raise RefusedError(f"the gateway process {self.name} does not answer")
        (answer,) = answers
        if answer.status:
            raise RefusedError(msgspec.msgpack.decode(answer.answer, type=str), answer.status)
        return answer.answer

    def _answered(self, answer: Answer) -> None:
        if answer.number in self._open:
            event, answers = self._open[answer.number]
            answers.append(answer)
            event.set()


def _hold(held: ExitStack, address: str) -> tuple[str, int]:
    """Bind an address for the processes; return it with its port."""
    host, port = held.enter_context(hold_address(address)).getsockname()[:2]
    return host, port


def _add(total: dict[str, list[float]], histograms: Mapping[str, Sequence[float]]) -> None:
    for name, counts in histograms.items():
        known = total.get(name)
        total[name] = (
            list(counts) if known is None else [a + b for a, b in zip(known, counts, strict=True)]
        )


async def _send_all(channel: Channel, messages: trio.MemoryReceiveChannel[Message]) -> None:
    with suppress(trio.BrokenResourceError):  # the channel ends: the reading side reports it
        async for message in messages:
            await channel.send(message)


async def _stopped(process: trio.Process, name: str) -> None:
    """Wait for the end of a process whose channel is closed."""
    with trio.move_on_after(STOPPED_WITHIN_S):
        await process.wait()
    if process.returncode is None:
        logger.warning(
            "a gateway process does not stop and is killed worker=%s pid=%d", name, process.pid
        )
        process.kill()
        await process.wait()


def _status(returncode: int | None) -> str:
    assert returncode is not None, "it has ended"
    if returncode < 0:
        return f"ended by {signal.Signals(-returncode).name}"
    return f"ended with status {returncode}"


@contextmanager
def _lock_file(view_path: str) -> Iterator[int | None]:
    """Open the lock file, held while processes with this view run; None without a view."""
    if not view_path:
        yield None
        return
    path = Path(view_path).with_suffix(".lock")
    make_folders(path.parent)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield lock
    finally:
        os.close(lock)


async def _take(lock: int) -> None:
    """Wait until no process of an earlier start holds the lock, and take it."""
    with trio.move_on_after(ALONE_WITHIN_S):
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            await trio.sleep(0.05)
    raise WorkerError("gateway processes of another server use the same view")
