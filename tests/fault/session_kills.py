"""Kills: a gateway with persistent sessions is killed with SIGKILL, round after round.

Usage: python -m tests.fault.session_kills [--rounds 200] [--workers N] [--power] [--seed N]
                                           [--folder DIR] [--json]

All rounds use one folder, one port and the same clients. Publishers number their messages for each
topic and QoS; subscribers are at QoS 1, at QoS 2, or at 1 for messages at 2; one publisher and one
subscriber are paho's. Meanwhile connections break, clients disconnect, stay away or are taken over,
acknowledgements are held back, subscriptions are made.

    async     killed some time after the first message of the round
    sync      the same, where acknowledgements wait for the disk
    start     killed while the clients come back
    stop      ended with SIGTERM
    power     with --power, every round: the power of the disk goes, and with it all that was not
              synced (tests.fault.power_cut); acknowledgements wait for the disk

With ``--workers N`` the gateway is several processes, and most rounds are about one of them:

    worker    one after the other is killed while the server and the others go on; clients come back
              to whichever takes them. Then the server is killed or stopped
    pause     one stands still for so long that the others take it for dead, and then goes on
    stall     one stands still for some seconds, while its clients wait; the others may take it for
              dead, or not

Whenever a subscriber gets a message, for each topic and QoS: the first copies come in the order in
which they were published, without a gap, and at QoS 2 there is no second copy. Whenever a client
comes back, its session is present. At the end everything is there that was published: what was not
acknowledged was sent again. A subscription gets nothing that was acknowledged before SUBSCRIBE was
sent, and everything that was published after SUBACK.

The moments depend on the machine: a seed repeats the kinds and waits.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import psutil
from paho.mqtt.enums import CallbackAPIVersion

from motelog.gateway.config import GatewayConfig
from motelog.gateway.log.reckoning import arrival_ms_max
from motelog.testing import MotelogProcess
from tests.support.delivery_audit import Audit, AuditError, Received
from tests.support.durable_client import (
    Arrived,
    BadAnswerError,
    ClientSession,
    DurableClient,
    Sockets,
)
from tests.support.loop_disk import LoopDisk, NotPermittedError, loop_disk
from tests.support.ports import free_port
from tests.support.rounds import Report
from tests.support.worker_processes import clients_of, is_ready, workers_of

KINDS = ("async", "sync", "start", "stop")
#: Of KINDS, by chance: a start is quick and a stop is not what this is about.
WEIGHTS = (6, 3, 2, 1)
WORKER_KINDS = ("worker", *KINDS, "pause", "stall")
WORKER_WEIGHTS = (12, 2, 1, 1, 1, 2, 2)
#: Processes that are killed in one round, at most.
WORKERS_KILLED_MAX = 3
#: Longer than the others wait for a process that says nothing.
PAUSE_S = 8.0
#: Around the time after which a process asks whether it counts as lost.
STALL_S = (2.0, 5.0)
#: What the process says when it hears that.
LOST = "as lost: its clients are disconnected"
#: What it answers to a client that comes before it has begun again.
UNAVAILABLE = (3, 0x88)
#: How long it may take to begin again.
BEGINS_S = 3.0
#: How long a client waits for CONNACK meanwhile.
PATIENCE_S = 0.5
POWER = "power"
DISK_BYTES = 1 << 30
#: Time for the gateway to meet the errors of a disk without power.
AFTERMATH_S = 0.1
EXIT_NOT_PERMITTED = 3
#: Filters that match nothing.
OTHER_FILTERS = tuple(f"none/{number}" for number in range(24))
LOAD_S_MAX = 1.5
DRAINED_WITHIN_S = 60.0
#: Time between two connections that a client makes to have one thing sent again; paho by itself
#: waits for a second.
COMES_BACK_S = 0.5
#: How many there are at most: while a message that a killed process had marked may still arrive at
#: its broker, it cannot be accepted.
COMES_BACK_MAX = 10 + round(arrival_ms_max(GatewayConfig().append_wait_s) / 1000 / COMES_BACK_S)
#: Unacknowledged messages of one publisher.
SENDING_MAX = 20
#: Rounds after which publishers take new topics, which the log does not have yet.
ROUNDS_PER_TOPIC = 4


class PahoClient:
    """paho with clean_session off, on a thread of its own while it is connected.

    It must not try to connect in vain: a second try would forget that it has sent PUBREL, and
    publish the message again (``_messages_reconnect_reset_out`` in paho 2.1 and 2.2).
    """

    def __init__(self, name: str, audit: Audit, received: Received | None) -> None:
        self.name = name
        self._audit = audit
        self._received = received
        #: Messages that are not known to be acknowledged, and identifiers that paho has told of.
        self._sending: dict[int, tuple[str, bytes]] = {}
        self._told: set[int] = set()
        self._was_connected = False
        #: Whether what it had to send again has been sent: before, a new message would overtake it.
        self._has_sent_again = False
        self._subscribed = threading.Event()
        self._accepted = threading.Event()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            clean_session=False,
            reconnect_on_failure=False,
        )
        self.client.on_connect = self._on_connect
        self.client.on_message = self._on_message
        self.client.on_publish = self._on_publish
        self.client.on_subscribe = lambda *_: self._subscribed.set()

    def come_back(self, port: int) -> None:
        """Connect; the gateway must be there, and stay until what is owed was sent again.

        It may end a connection, to look up in a log that is far away what is sent again.
        """
        for _ in range(COMES_BACK_MAX):
            if self._has_come_back(port):
                return
            time.sleep(COMES_BACK_S)
        raise AuditError(f"{self.name} is disconnected each time that it comes back")

    def _has_come_back(self, port: int) -> bool:
        self.client.loop_stop()
        self.client._reset_sockets()  # it leaves them to the collector
        self._has_sent_again = False
        self._accepted.clear()
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        _wait_until(self._accepted.is_set, f"{self.name} does not connect")
        _wait_until(
            lambda: self._has_sent_again or not self.waiting or not self.client.is_connected(),
            f"{self.name} waits",
        )
        return self._has_sent_again or not self.waiting

    def subscribe(self) -> None:
        assert self._received is not None
        self._received.subscribing()
        self.client.subscribe(self._received.filter, self._received.qos)
        _wait_until(self._subscribed.is_set, f"{self.name} gets no SUBACK")
        self._received.subscribed()

    @property
    def waiting(self) -> int:
        """How many messages are not acknowledged."""
        for mid in self._told & self._sending.keys():
            self._told.remove(mid)
            self._audit.done(*self._sending.pop(mid))
        return len(self._sending)

    def publish(self, chance: random.Random, number: int, generation: int) -> None:
        waiting = self.waiting
        if waiting < SENDING_MAX and self.client.is_connected():
            topic = topic_of(chance, number, generation)
            payload = self._audit.publish(topic)
            info = self.client.publish(topic, payload, int(topic[-1]))
            self._sending[info.mid] = (topic, payload)

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        self.client._reset_sockets()

    def _on_connect(
        self, _client: Any, _data: Any, flags: Any, code: Any, _properties: Any
    ) -> None:
        if code == 0:
            if self._was_connected and not flags.session_present:
                self._audit.fail(f"{self.name}: its session is lost")
            self._was_connected = True
            self._accepted.set()

    def _on_publish(self, _client: Any, _data: Any, mid: int, _code: Any, _properties: Any) -> None:
        self._told.add(mid)
        self._has_sent_again = True

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        assert self._received is not None
        self._received.arrived(message.topic, bytes(message.payload), message.qos, message.dup)


@dataclass(frozen=True, slots=True)
class Round:
    """One round as it went."""

    kind: str
    acknowledged: int


class Publisher:
    """One of our clients that publishes at QoS 1 and 2, in turn by chance."""

    def __init__(self, number: int, version: int, audit: Audit) -> None:
        self.number = number
        session = ClientSession(f"p{number}", version=version, on_done=audit.done)
        self.client = DurableClient(session)
        self._audit = audit

    def publish(self, chance: random.Random, generation: int) -> None:
        session = self.client.session
        if len(session.sending) < SENDING_MAX:
            topic = topic_of(chance, self.number, generation)
            session.publish(topic, self._audit.publish(topic), int(topic[-1]))
            self.client.flush()


def topic_of(chance: random.Random, publisher: int, generation: int) -> str:
    qos = chance.choice((1, 2))
    return f"kill{generation}{publisher % 2}/p{publisher}/{qos}"


class Subscriber:
    """One of our clients with one subscription."""

    def __init__(
        self, name: str, version: int, audit: Audit, topic_filter: str, qos: int, window: int | None
    ) -> None:
        self.received = Received(name, audit, topic_filter, qos)
        session = ClientSession(
            name, version=version, receive_maximum=window, on_message=self._on_message
        )
        self.client = DurableClient(session)

    def _on_message(self, message: Arrived) -> None:
        self.received.arrived(message.topic, message.payload, message.qos, message.is_dup)


class SessionKills:
    """Rounds over one folder, which must be empty at the start."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        workers: int = 1,
        disk: LoopDisk | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._folder = folder
        self._workers = workers
        self._is_paused = False
        self._disk = disk
        self._chance = random.Random(seed)
        self._port = free_port()
        self._audit = audit or Audit()
        self._number = 0
        self._publishers = [Publisher(n, version, self._audit) for n, version in enumerate((4, 5))]
        self._subscribers: list[Subscriber] = []
        self._known: set[str] = set()
        self._joined = 0
        received = Received("paho-s", self._audit, "#", 2)
        self._paho_reader = PahoClient("paho-s", self._audit, received)
        self._paho_writer = PahoClient("paho-p", self._audit, None)
        self._paho_received = received
        self._sockets = Sockets()

    # --- rounds --------------------------------------------------------------------------

    def first(self) -> None:
        """Start with a subscriber of each kind, before anything is published."""
        with self._process(self._quiet_flush):
            self._paho_come_back()
            self._paho_reader.subscribe()
            for one in (
                Subscriber("all-2", 4, self._audit, "#", 2, None),
                Subscriber("all-1", 5, self._audit, "#", 1, None),
                Subscriber("narrow", 5, self._audit, "+/+/2", 2, 5),
            ):
                self._join(one)
        self._all_away()

    def run(self, kind: str) -> Round:
        """Do one round; AuditError says what is wrong."""
        before = self._audit.acknowledged
        self._number += 1
        flush = "sync" if kind in ("sync", POWER) else "async"
        with self._process(flush) as process:
            away = self._away()
            if kind == "start":
                self._paho_come_back()
                timer = threading.Timer(self._chance.uniform(0, 0.1), _kill_all, [process])
                timer.start()
                self._come_back(away)
                self._play(self._chance.uniform(0, 0.1))
                timer.join()
            else:
                self._paho_come_back()
                self._come_back(away)
                if self._number % 3 == 0:
                    self._joined += 1
                    self._join(self._newcomer())
                self._play(self._chance.uniform(0.1, LOAD_S_MAX))
                if kind == "worker":
                    self._kill_workers(process)
                elif kind == "pause":
                    self._pause_worker(process)
                elif kind == "stall":
                    self._stall_worker(process)
                elif kind == POWER:
                    assert self._disk is not None
                    # A gateway that cannot flush refuses what it could not; nobody may hear more.
                    for publisher in self._publishers:
                        publisher.client.session.refusal_is_fault = False
                    self._disk.cut_power()
                    self._wait(AFTERMATH_S)
                if kind != "stop" and (kind in (*KINDS, POWER) or self._chance.random() < 0.5):
                    _kill_all(process)
        self._all_away()
        if kind == POWER and self._disk is not None:
            self._disk.unmount()
            self._disk.mount()
            for publisher in self._publishers:
                publisher.client.session.refusal_is_fault = True
        self._audit.check()
        return Round(kind, self._audit.acknowledged - before)

    def _kill_workers(self, process: MotelogProcess) -> None:
        for _ in range(self._chance.randint(1, WORKERS_KILLED_MAX)):
            # There is always one that takes connections: paho does not come back in vain.
            self._play_until_ready(process)
            victim = self._one_worker(process)
            victim.kill()
            psutil.wait_procs([victim], DRAINED_WITHIN_S)
            self._play(self._chance.uniform(0.1, LOAD_S_MAX), is_coming_back=True)

    def _pause_worker(self, process: MotelogProcess) -> None:
        with self._standing_still(process) as worker:
            self._play(1.0)  # some of it into the sockets of the process
            theirs = clients_of(worker.pid)
            for client in self._clients():
                if not client.is_away and client.address in theirs:
                    client.break_off()
            self._play(PAUSE_S)
        # It ends the connections of those who have come meanwhile, and refuses others until its new
        # run has begun: paho must not be among them.
        end = time.monotonic() + PAUSE_S
        while LOST not in process.output() and time.monotonic() < end:
            self._play(0.1)
        self._come_back_after()

    def _stall_worker(self, process: MotelogProcess) -> None:
        with self._standing_still(process):
            self._play(self._chance.uniform(*STALL_S))
        self._come_back_after()

    @contextmanager
    def _standing_still(self, process: MotelogProcess) -> Iterator[psutil.Process]:
        worker = self._one_worker(process)
        for one in (self._paho_reader, self._paho_writer):
            one.stop()  # it would wait for an answer until the process goes on
        worker.suspend()
        self._is_paused = True
        try:
            yield worker
        finally:
            worker.resume()

    def _come_back_after(self) -> None:
        self._play(BEGINS_S)
        self._is_paused = False
        self._play(LOAD_S_MAX, is_coming_back=True)

    def _play_until_ready(self, process: MotelogProcess) -> None:
        deadline = time.monotonic() + DRAINED_WITHIN_S
        while not is_ready(process):
            if time.monotonic() > deadline:
                raise AuditError("a gateway process does not come back")
            self._play(0.2, is_coming_back=True)

    def _one_worker(self, process: MotelogProcess) -> psutil.Process:
        return psutil.Process(self._chance.choice(sorted(workers_of(process.pid).values())))

    def end(self) -> str:
        """Have everything delivered that was published; return what came more than once."""
        with self._process(self._quiet_flush) as process:
            self._paho_come_back()
            self._come_back(set())
            before: list[str] = []
            while missing := self._missing():
                # Who lags and has a small window may be at it for minutes on a busy machine.
                if missing != before:
                    before, deadline = missing, time.monotonic() + DRAINED_WITHIN_S
                elif time.monotonic() > deadline:
                    missing += self._lagging(process.admin)
                    raise AuditError("lost: " + "; ".join(missing))
                # The gateway may end connections, to look up what is sent again.
                self._paho_come_back()
                self._bring_on()
            self._wait(0.5)
            self._audit.check()
            self._paho_reader.stop()
            self._paho_writer.stop()
        self._all_away()
        repeated = sum(one.received.repeated for one in self._subscribers)
        return f"{repeated} repeated at QoS 1"

    def _bring_on(self) -> None:
        """Have all clients connected, and acknowledge what they owe."""
        for one in self._clients():
            if one.is_away:
                self._connect(one)
            one.session.holds_back = False
            one.session.acknowledge()
            one.flush()
        self._wait(0.05)
        self._audit.check()

    @property
    def _quiet_flush(self) -> str:
        """How the processes flush that are not killed: the first cut must find all of the first."""
        return "async" if self._disk is None else "sync"

    def _process(self, flush: str) -> MotelogProcess:
        options = [f"--mqtt=127.0.0.1:{self._port}", "--flush", flush]
        options += [f"--workers={self._workers}"]
        return MotelogProcess(data=self._folder, options=options)

    def _missing(self) -> list[str]:
        found = [
            f"{session.client_id} waits for {len(session.sending)} acknowledgements"
            for session in (one.client.session for one in self._publishers)
            if session.sending
        ]
        if self._paho_writer.waiting:
            found.append(f"paho-p waits for {self._paho_writer.waiting} acknowledgements")
        for received in (self._paho_received, *(one.received for one in self._subscribers)):
            found += received.missing()
        return found

    def _lagging(self, admin: tuple[str, int]) -> list[str]:
        """Say of each of our subscribers that misses something how it stands on both sides."""
        found = []
        for one in self._subscribers:
            if one.received.missing():
                session = one.client.session
                name = session.client_id
                address = "http://{}:{}".format(*admin)
                answer = httpx.get(f"{address}/api/v1/sessions/session", params={"client_id": name})
                found.append(
                    f"{name}: away {one.client.is_away}, not released {sorted(session.received)}, "
                    f"the gateway says {answer.text}"
                )
        return found

    # --- clients -------------------------------------------------------------------------

    def _clients(self) -> list[DurableClient]:
        ours: list[Publisher | Subscriber] = [*self._publishers, *self._subscribers]
        return [one.client for one in ours]

    def _away(self) -> set[str]:
        """Return who stays away in this round."""
        names = [one.client.session.client_id for one in self._subscribers]
        return {name for name in names if self._chance.random() < 0.2}

    def _paho_come_back(self) -> None:
        for one in (self._paho_reader, self._paho_writer):
            if not one.client.is_connected():
                one.come_back(self._port)

    def _come_back(self, away: set[str]) -> None:
        clients = self._clients()
        self._chance.shuffle(clients)
        for client in clients:
            if client.session.client_id not in away:
                self._connect(client)

    def _connect(self, client: DurableClient) -> None:
        name = client.session.client_id
        connack = None
        address = ("127.0.0.1", self._port)
        with suppress(ConnectionError):
            if self._is_paused:
                with suppress(TimeoutError):  # it may be the one that stands still
                    connack = client.connect(address, within_s=PATIENCE_S)
            else:
                connack = client.connect(address)
        if connack is None:
            return  # killed meanwhile
        if connack.reason_code in UNAVAILABLE and self._is_paused:
            client.break_off()  # it comes again
            return
        if connack.reason_code:
            raise AuditError(f"{name} is refused: {connack.reason_code:#x}")
        if name in self._known and not connack.session_present:
            raise AuditError(f"{name}: its session is lost")
        self._known.add(name)
        client.session.holds_back = False

    def _all_away(self) -> None:
        for client in self._clients():
            # What the gateway has sent before it died has arrived.
            while not client.is_away:
                client.readable()

    def _newcomer(self) -> Subscriber:
        name = f"joined{self._joined}"
        topic_filter = self._chance.choice(("#", "+/p1/+", "+/p0/#"))
        qos, window = self._chance.choice(((1, None), (2, None), (2, 3), (1, 3)))
        return Subscriber(name, self._chance.choice((4, 5)), self._audit, topic_filter, qos, window)

    def _join(self, one: Subscriber) -> None:
        """Connect and subscribe, while others publish."""
        self._subscribers.append(one)
        self._connect(one.client)
        # With so many filters, the gateway stores what a SUBSCRIBE changes.
        self._subscribe(one.client, *((name, 1) for name in OTHER_FILTERS))
        one.received.subscribing()
        self._subscribe(
            one.client, (one.received.filter, one.received.qos), writers=self._publishers
        )
        one.received.subscribed()

    def _subscribe(
        self,
        client: DurableClient,
        *filters: tuple[str, int],
        writers: Sequence[Publisher] = (),
    ) -> None:
        client.session.subscribe(*filters)
        client.flush()

        def has_suback() -> bool:
            for publisher in writers:
                if not publisher.client.is_away:
                    publisher.publish(self._chance, self._number // ROUNDS_PER_TOPIC)
            self._wait(0.01)
            return client.session.granted is not None

        _wait_until(has_suback, f"{client.session.client_id} gets no SUBACK")

    # --- load ----------------------------------------------------------------------------

    def _play(self, seconds: float, *, is_coming_back: bool = False) -> None:
        """Publish, acknowledge, break connections by chance for some time.

        ``is_coming_back``: who is away does not stay away for long.
        """
        chance = self._chance
        end = time.monotonic() + seconds
        generation = self._number // ROUNDS_PER_TOPIC
        while time.monotonic() < end:
            for publisher in self._publishers:
                if not publisher.client.is_away:
                    for _ in range(chance.randrange(4)):
                        publisher.publish(chance, generation)
            if is_coming_back:
                self._paho_come_back()
            self._paho_writer.publish(chance, 7, generation)
            for one in self._clients():
                if chance.random() < 0.03:
                    one.session.holds_back = not one.session.holds_back
                if not one.is_away and chance.random() < 0.02:
                    one.session.subscribe((chance.choice(OTHER_FILTERS), chance.randrange(3)))
                    one.session.unsubscribe(chance.choice(OTHER_FILTERS))
                if not one.session.holds_back:
                    one.session.acknowledge()
                    one.flush()
                if chance.random() < (0.1 if is_coming_back and one.is_away else 0.004):
                    self._disturb(one)
            self._wait(chance.uniform(0, 0.01))
            self._audit.check()

    def _disturb(self, one: DurableClient) -> None:
        """Break a connection, end it, or have the next one take it over; come back if away."""
        if one.is_away:
            self._connect(one)
            return
        match self._chance.randrange(4):
            case 0:
                one.break_off()
            case 1:
                one.disconnect()
            case 2:
                one.break_off()
                self._connect(one)
            case _:
                one.disconnect()
                self._connect(one)

    def _wait(self, seconds: float) -> None:
        """Serve the sockets of our clients for some time."""
        self._sockets.serve(self._clients(), seconds)


def _kill_all(process: MotelogProcess) -> None:
    """Kill a server with its gateway processes, which would tell clients that the broker is away.

    A client whose publish is refused then would not send it again, as the broker may have it.
    """
    victims = [psutil.Process(pid) for pid in workers_of(process.pid).values()]
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    process.kill()


def _wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + DRAINED_WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise AuditError(otherwise)
        time.sleep(0.005)


def power_rounds(
    folder: Path, seed: int, count: int, *, note: Callable[[str], None]
) -> Generator[Round, None, None]:
    """Cut the power in each round; NotPermittedError where that cannot be done."""
    with loop_disk(folder, DISK_BYTES) as disk:
        kills = SessionKills(disk.root / "data", seed, disk=disk)
        kills.first()
        for _ in range(count):
            yield kills.run(POWER)
        note(kills.end())


def rounds(
    folder: Path, seed: int, count: int, *, note: Callable[[str], None], workers: int = 1
) -> Generator[Round, None, None]:
    """Do rounds by chance, every kind among the first ones; ``note`` is told the last word."""
    kinds, weights = (WORKER_KINDS, WORKER_WEIGHTS) if workers > 1 else (KINDS, WEIGHTS)
    kills = SessionKills(folder, seed, workers)
    kills.first()
    chance = random.Random(seed)
    for number in range(count):
        kind = kinds[number] if number < len(kinds) else chance.choices(kinds, weights)[0]
        yield kills.run(kind)
    note(kills.end())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.session_kills")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1, help="processes of the gateway")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=None, help="for the data; else below /tmp")
    parser.add_argument("--power", action="store_true", help="cut the power of a disk; needs root")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    report = Report.of(args.seed)
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp("", "motelog-session-kills.", args.folder))
    done: list[Round] = []
    said: list[str] = []
    try:
        if args.power:
            going = power_rounds(folder, report.seed, args.rounds, note=said.append)
        else:
            going = rounds(folder, report.seed, args.rounds, note=said.append, workers=args.workers)
        with closing(going):
            for one in going:
                done.append(one)
                sys.stderr.write(
                    f"round {len(done)} of {args.rounds}: {one.kind}, "
                    f"{one.acknowledged} acknowledged\n"
                )
        shutil.rmtree(folder)
    except NotPermittedError as exc:
        sys.stderr.write(f"not possible here: {exc}\n")
        return EXIT_NOT_PERMITTED
    except (AuditError, BadAnswerError) as exc:
        report.failure = f"after {len(done)} rounds: {exc}; the folder is kept: {folder}"
    found = "none lost, doubled at QoS 2 or out of order, no session lost"
    return report.end(done, ", ".join((found, *said)), as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
