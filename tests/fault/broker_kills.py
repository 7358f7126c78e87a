"""Kills: brokers and name servers are killed with SIGKILL under clients that go on, round by round.

Usage: python -m tests.fault.broker_kills [--rounds 50] [--java [VERSION]] [--others] [--proxy]
                                          [--apache] [--seed N] [--folder DIR] [--json]

Two brokers and a name server keep folders and ports over all rounds, and the same clients run all
the time; a member of the push consumer's group leaves now and then and comes back.

    broker    one broker is killed
    brokers   both at once
    namesrv   the name server
    all       all of them
    stop      one broker is ended with SIGTERM

Each start of a broker flushes in one of both ways. Producers send singly, in batches, many at once,
one-way, in order to a queue, and in transactions. Consumers: push, push in order, pull, POP. With
``--java`` RocketMQ's Java client has one of each kind, too; with ``--others`` its JavaScript
client (ali-ons) and its C++ client have a producer and a push consumer each; with ``--proxy``
RocketMQ 5's Python client sends and pops through Apache's gRPC proxy. Rounds begin when each of
these has got a message. ali-ons never hands a message over where its first rebalance fails, as when
a broker is away: MQPushConsumer.subscribe catches that error behind the loop that would.

With ``--apache`` the servers are Apache RocketMQ's: a name server and a broker in one process, and
each round ends it. It promises less: after a kill it may store a committed transaction twice, and
pops again what was popped since offsets were saved, acknowledged or not.

Every consumer gets all that was acknowledged, nothing that was rolled back; who reads in order gets
first copies in order. What was popped and acknowledged in time does not come again. A committed
transaction is in the log once. Committed offsets never go back while a broker runs, and a start
finds what was committed SAVED_WITHIN_S before; ali-ons takes its own ones back. After each round
producers get on with both brokers; at the end groups have committed all.
(tests.support.wire_ledger)

A broken promise is told with what a diagnosis needs: when each message that shows it was
acknowledged, who has got it, where it is in the log, how far the groups have committed there, and
the kills with their times. The folder stays, with what the other clients say of errors.

The moments depend on the machine: a seed repeats the kinds and waits.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from motelog.bridge.errors import (
    CommitFailedError,
    NoNameServerError,
    RouteError,
    SendFailedError,
)
from motelog.bridge.producer import Producer, SendResult
from motelog.bridge.pull import PullConsumer
from motelog.bridge.push.consumer import PushConsumer
from motelog.bridge.simple import PoppedMessage, SimpleConsumer
from motelog.bridge.transactions import TransactionProducer, TransactionState
from motelog.core.errors import BrokerError, MotelogError, RemotingError
from motelog.core.message import Message, MessageQueue
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.frames import loads
from motelog.core.remoting.pop_fields import decode_receipt
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import connected, json_body
from tests.support.java import VERSION_5, VERSIONS, ApacheServer, Flush, JavaDriver
from tests.support.lasting_programs import (
    LastingProgram,
    Program,
    lasting_programs,
    proxied_programs,
    running_program,
)
from tests.support.namesrv_process import NamesrvProcess
from tests.support.ports import free_ports
from tests.support.rounds import Report
from tests.support.wire_ledger import Ledger, LedgerError, OffsetWatch, Reader

KINDS = ("broker", "namesrv", "brokers", "all", "stop")
WEIGHTS = (5, 2, 3, 2, 1)
FLUSHES: tuple[Flush, ...] = ("async", "sync")
LOAD_S_MAX = 1.5
AWAY_S_MAX = 1.5
RECOVERED_WITHIN_S = 60.0
DRAINED_WITHIN_S = 90.0
#: Acknowledged by each broker until a round is over.
ACKNOWLEDGED_MIN = 5
PAUSE_S_MAX = 0.02
#: The rate at which the brokers save offsets here, and what a kill may cost on a busy machine.
SAVE_INTERVAL_S = 0.2
SAVED_WITHIN_S = 3.0
WATCH_S = 0.1
DRAIN_WATCH_S = 1.0
#: How long a diagnosis may take.
LOOKED_WITHIN_S = 30.0
REFUSED_SHARE = 0.01
INVISIBLE_S = 5.0
#: Less than that before the end of that time is no acknowledgement in time.
INVISIBLE_SLACK_MS = 1500
PLAIN, ORDERED, BOUND = TOPICS = ("plain", "ordered", "bound")
QUEUES = 4
#: What a client may meet while servers are away.
PASSING = (
    SendFailedError,
    CommitFailedError,
    RouteError,
    NoNameServerError,
    RemotingError,
    BrokerError,
)

DELAY_LEVELS = "1s 1s 1s 1s 2s 2s 2s 2s"
SETTINGS = {
    "save_interval_s": SAVE_INTERVAL_S,
    "transaction_timeout_s": 1.0,
    "transaction_check_interval_s": 0.5,
    # Else a pause of some seconds would roll back what was committed.
    "transaction_check_max": 10_000,
}
APACHE_SETTINGS = {
    "messageDelayLevel": DELAY_LEVELS,
    "flushConsumerOffsetInterval": int(SAVE_INTERVAL_S * 1000),
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 1000,
    # Until it has written that a transaction was ended, it asks again, and each answer is a copy.
    "transactionOpBatchInterval": 100,
    "transactionCheckMax": 10_000,
}


@dataclass(frozen=True, slots=True)
class Round:
    """One round as it went."""

    kind: str
    acknowledged: int


class OurServers:
    """A name server and two brokers, each a process; all are away at first."""

    names = ("broker-0", "broker-1")
    has_once = True

    def __init__(self, folder: Path) -> None:
        ports = free_ports(3)
        self._namesrv = NamesrvProcess(f"127.0.0.1:{ports[0]}")
        self.namesrv_address = self._namesrv.address
        self._brokers = [
            BrokerProcess(
                folder / name,
                namesrv=self.namesrv_address,
                listen=f"127.0.0.1:{port}",
                # The third level is that of a first retry.
                store={"delay_levels": DELAY_LEVELS},
                name=name,
                **SETTINGS,
            )
            for name, port in zip(self.names, ports[1:], strict=True)
        ]
        self.addresses = [broker.address for broker in self._brokers]
        self._started = ExitStack()

    async def start_broker(self, index: int, flush: Flush) -> None:
        broker = self._brokers[index]
        broker.store["flush"] = flush
        await trio.to_thread.run_sync(broker.start)
        self._started.callback(broker.kill)

    async def end_broker(self, index: int, *, is_stop: bool) -> None:
        broker = self._brokers[index]
        await trio.to_thread.run_sync(broker.stop if is_stop else broker.kill)

    async def start_namesrv(self) -> None:
        await trio.to_thread.run_sync(self._namesrv.start)
        self._started.callback(self._namesrv.kill)

    async def kill_namesrv(self) -> None:
        await trio.to_thread.run_sync(self._namesrv.kill)

    def close(self) -> None:
        self._started.close()


class ApacheServers:
    """Apache's name server and broker, which come and go together."""

    names = ("apache",)
    has_once = False

    def __init__(self, folder: Path) -> None:
        make = partial(
            ApacheServer, VERSION_5, folder / "store", settings=APACHE_SETTINGS, has_timer=True
        )
        self._server = make()
        self.namesrv_address = self._server.namesrv_address
        self.addresses = [self._server.broker_address]

    async def start_broker(self, index: int, flush: Flush) -> None:
        self._server.flush = flush
        await self._server.start()

    async def end_broker(self, index: int, *, is_stop: bool) -> None:
        if is_stop:
            await self._server.stop()
        else:
            await trio.to_thread.run_sync(self._server.kill)

    async def start_namesrv(self) -> None:
        """It starts with the broker."""

    async def kill_namesrv(self) -> None:
        """It goes with the broker."""

    def close(self) -> None:
        if self._server.is_running:
            self._server.kill()


class BrokerKills:
    """Servers over one folder, which must be empty at the start, and their clients."""

    def __init__(
        self,
        servers: OurServers | ApacheServers,
        seed: int,
        java: JavaDriver | None = None,
        version: str = VERSION_5,
        programs: Sequence[Program] = (),
        ledger: Ledger | None = None,
    ) -> None:
        self._chance = random.Random(seed)
        self._java = java
        self._programs = programs
        self._running: list[LastingProgram] = []
        self._asks_java = trio.Lock()
        self._version = version
        self._servers = servers
        self._address = servers.namesrv_address
        self._indexes = range(len(servers.names))
        self._has_once = servers.has_once
        self._watches = [
            OffsetWatch(
                address,
                saved_within_s=SAVED_WITHIN_S,
                free=[one.name for one in programs if one.goes_back],
            )
            for address in servers.addresses
        ]
        # How often each was started; None while it is away.
        self._runs: list[int | None] = [None for _ in self._indexes]
        self._starts = 0
        self._ledger = ledger or Ledger()
        self._by_broker: Counter[str] = Counter()
        self._begun = time.monotonic()
        self._happened: list[str] = []
        # For a diagnosis: when, and for our producers where.
        self._acknowledged_at: dict[str, str] = {}
        self._decided: dict[str, TransactionState] = {}
        self._popped_for_good: dict[tuple[object, ...], str] = {}
        self._is_sending = True
        self._active = 0
        reader = partial(Reader, ledger=self._ledger)
        self._readers = {
            one.name: one
            for one in (
                reader("push", topics=(PLAIN, BOUND)),
                reader("orderly", topics=(ORDERED,), in_order=True),
                reader("pull", topics=TOPICS),
                reader("simple", topics=(PLAIN, BOUND)),
            )
        }
        if java is not None:
            java_readers = [
                reader("java-push", topics=(PLAIN, BOUND)),
                reader("java-orderly", topics=(ORDERED,), in_order=True),
                reader("java-pull", topics=(PLAIN,)),
            ]
            if version == VERSION_5:
                java_readers.append(reader("java-pop", topics=(PLAIN, BOUND)))
            self._readers |= {one.name: one for one in java_readers}
        self._readers |= {one.name: reader(one.name, topics=(PLAIN,)) for one in programs}

    # --- rounds --------------------------------------------------------------------------

    async def run(self, kinds: Sequence[str], note: Callable[[Round], None]) -> str:
        """Do rounds of these kinds; return what came more than once, or LedgerError."""
        with ExitStack() as servers:
            servers.callback(self._servers.close)
            await self._servers.start_namesrv()
            for index in self._indexes:
                await self._start_broker(index)
            await self._create_topics()
            try:
                async with trio.open_nursery() as nursery, self._clients(nursery):
                    for kind in kinds:
                        note(await self._round(kind))
                    await self._drain()
                    await self._check_log()
                    nursery.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                # One broken promise ends all tasks.
                if (found := _first(group)) is None:
                    raise
                lines = [str(found), *await self._circumstances(found.bodies)]
                raise LedgerError("\n  ".join(lines), *found.bodies) from group
        repeated = {one.name: one.repeated for one in self._readers.values()}
        return "came again: " + ", ".join(f"{name} {count}" for name, count in repeated.items())

    async def _round(self, kind: str) -> Round:
        before = self._ledger.acknowledged_count
        await trio.sleep(self._chance.uniform(0.1, LOAD_S_MAX))
        one = self._chance.choice(self._indexes)
        indexes = {"broker": [one], "stop": [one], "namesrv": []}.get(kind, [*self._indexes])
        for index in indexes:
            await self._end_broker(index, is_stop=kind == "stop")
        if kind in ("namesrv", "all"):
            self._note("the name server is killed")
            await self._servers.kill_namesrv()
        await trio.sleep(self._chance.uniform(0, AWAY_S_MAX))
        if kind in ("namesrv", "all"):
            await self._servers.start_namesrv()
            self._note("the name server is there again")
        self._chance.shuffle(indexes)
        for index in indexes:
            await self._start_broker(index)
        await self._sends_get_on(kind)
        return Round(kind, self._ledger.acknowledged_count - before)

    async def _start_broker(self, index: int) -> None:
        flush = self._chance.choice(FLUSHES)
        await self._servers.start_broker(index, flush)
        self._starts += 1
        self._runs[index] = self._starts
        self._note(f"{self._servers.names[index]} is there, flush {flush}")

    async def _end_broker(self, index: int, *, is_stop: bool) -> None:
        self._watches[index].ended(trio.current_time())
        self._runs[index] = None
        self._note(f"{self._servers.names[index]} is {'stopped' if is_stop else 'killed'}")
        await self._servers.end_broker(index, is_stop=is_stop)

    async def _sends_get_on(self, kind: str) -> None:
        wanted = {name: self._by_broker[name] + ACKNOWLEDGED_MIN for name in self._servers.names}
        with trio.move_on_after(RECOVERED_WITHIN_S):
            while any(self._by_broker[name] < count for name, count in wanted.items()):  # noqa: ASYNC110  # no event
                await trio.sleep(WATCH_S)
            return
        raise LedgerError(f"sends do not get on after {kind}: {self._by_broker}, not {wanted}")

    async def _drain(self) -> None:
        """Have everything delivered that was acknowledged, and committed by its groups."""
        self._is_sending = False
        self._note("sends end")
        if self._java is not None:
            await self._order("sending", "0")
        for program in self._running:
            await program.stop_sends()
        while self._active:  # noqa: ASYNC110  # no event
            await trio.sleep(0.02)
        missing: dict[str, set[str]] = {}
        deadline = trio.current_time() + DRAINED_WITHIN_S
        while still := self._missing():
            if still != missing:
                missing, deadline = still, trio.current_time() + DRAINED_WITHIN_S
            elif trio.current_time() > deadline:
                shown = {name: (len(some), sorted(some)[:5]) for name, some in missing.items()}
                bodies = [body for _, some in shown.values() for body in some]
                raise LedgerError(f"lost: {shown}", *dict.fromkeys(bodies))
            # Looking through everything takes a while, in which nobody gets anything.
            await trio.sleep(DRAIN_WATCH_S)
        self._ledger.check()
        with trio.move_on_after(DRAINED_WITHIN_S):
            while behind := await self._uncommitted():  # noqa: ASYNC110  # no event
                await trio.sleep(0.2)
            return
        raise LedgerError(f"not committed: {behind}")

    def _missing(self) -> dict[str, set[str]]:
        found = {one.name: one.missing() for one in self._readers.values()}
        return {name: missing for name, missing in found.items() if missing}

    async def _uncommitted(self) -> list[str]:
        """Return which queues have groups that have not committed all."""
        found = []
        for group, topics in (("push", (PLAIN, BOUND)), ("orderly", (ORDERED,)), ("pull", TOPICS)):
            async with PullConsumer(namesrv=self._address, group=group) as consumer:
                for topic in topics:
                    ends = await consumer.end_offsets(await consumer.queues(topic))
                    for queue, end in ends.items():
                        if (committed := await consumer.committed(queue) or 0) != end:
                            found.append(f"{group} {queue} {committed} of {end}")
        return found

    async def _check_log(self) -> None:
        """Find each committed transaction of ours once."""
        found = Counter(message.body.decode() for _, message in await self._log(BOUND))
        for body, state in self._decided.items():
            wanted = int(state is TransactionState.COMMIT)
            is_right = found[body] == wanted or (found[body] > wanted > 0 and not self._has_once)
            if not is_right:
                raise LedgerError(f"{body} is in the log {found[body]} times, not {wanted}", body)

    # --- a diagnosis ---------------------------------------------------------------------

    def _note(self, what: str) -> None:
        self._happened.append(f"{self._now_s()} {what}")

    def _now_s(self) -> str:
        return f"{time.monotonic() - self._begun:.1f} s"

    async def _circumstances(self, bodies: Sequence[str]) -> list[str]:
        """Say all that is known of these messages, and what was done to the servers when."""
        self._note("the promise is broken")
        said = []
        try:
            # A broker that was to be started now is away for good.
            with trio.fail_after(LOOKED_WITHIN_S):
                log = [
                    one
                    for topic in sorted({body.partition("/")[0] for body in bodies})
                    for one in await self._log(topic)
                ]
                for body in bodies:
                    places = [
                        (queue, message.queue_offset)
                        for queue, message in log
                        if message.body.decode() == body
                    ]
                    said += [self._known(body), await self._stored(body, places)]
        except (*PASSING, trio.TooSlowError) as exc:
            said.append(f"the log cannot be read: {exc!r}")
        return [*said, *self._happened]

    def _known(self, body: str) -> str:
        counts = (f"{one.name} {one.count(body)}" for one in self._readers_of(body))
        when = self._acknowledged_at.get(body, "never")
        return f"{body}: acknowledged {when}; how often it came: {', '.join(counts)}"

    def _readers_of(self, body: str) -> list[Reader]:
        topic = body.partition("/")[0]
        return [one for one in self._readers.values() if topic in one.topics]

    async def _stored(self, body: str, places: Sequence[tuple[MessageQueue, int]]) -> str:
        """Say where it is in the log, and how far those are there who have not got it."""
        said = []
        for queue, offset in places:
            said.append(f"{queue.broker_name} {queue.queue_id} {offset}")
            for one in self._readers_of(body):
                if not one.count(body):
                    async with PullConsumer(namesrv=self._address, group=one.name) as consumer:
                        said.append(f"{one.name} at {await consumer.committed(queue)}")
        return f"{body}: in the log: {', '.join(said) or 'not at all'}"

    async def _log(self, topic: str) -> list[tuple[MessageQueue, StoredMessage]]:
        """Return what a topic's queues hold, each from its beginning."""
        found = []
        async with PullConsumer(namesrv=self._address, group="whole") as consumer:
            ends = await consumer.end_offsets(await consumer.queues(topic))
            for queue, end in ends.items():
                offset = 0
                while offset < end:
                    result = await consumer.pull(queue, offset)
                    found += [(queue, message) for message in result.messages()]
                    offset = result.next_offset
        return found

    # --- clients -------------------------------------------------------------------------

    @asynccontextmanager
    async def _clients(self, nursery: trio.Nursery) -> AsyncIterator[None]:
        for index in self._indexes:
            nursery.start_soon(self._watch, index)
        async with (
            Producer(namesrv=self._address, group="senders") as producer,
            TransactionProducer(
                self._check, namesrv=self._address, group="bound", retries=0, topics=[BOUND]
            ) as bound,
            trio.open_nursery() as going,
        ):
            going.start_soon(self._load, partial(self._send, producer, "single"))
            going.start_soon(self._load, partial(self._send_batch, producer))
            for number in range(4):
                going.start_soon(self._load, partial(self._send, producer, f"many{number}"))
            going.start_soon(self._load, partial(self._send_oneway, producer))
            for number in (0, 1, -1):
                going.start_soon(self._send_in_order, producer, number)
            for number in range(2):
                going.start_soon(self._load, partial(self._send_bound, bound, f"b{number}"))
            going.start_soon(self._push)
            going.start_soon(self._push_now_and_then)
            going.start_soon(self._push_in_order)
            going.start_soon(self._pull)
            going.start_soon(self._pop)
            if self._java is not None:
                await self._begin_java()
                going.start_soon(self._report_java)
            async with AsyncExitStack() as running:
                for program in self._programs:
                    one = running_program(program, self._address, PLAIN, self._take)
                    self._running.append(await running.enter_async_context(one))
                for client in self._running:
                    await client.at_work()
                yield
            going.cancel_scope.cancel()

    async def _load(self, send: Callable[[], Awaitable[None]]) -> None:
        while True:
            if self._is_sending:
                self._active += 1
                try:
                    await send()
                except PASSING as exc:
                    self._failed(exc)
                    await trio.sleep(0.05)
                finally:
                    self._active -= 1
            await trio.sleep(self._chance.uniform(0, PAUSE_S_MAX))

    def _failed(self, error: MotelogError) -> None:
        """Take note of a send that failed; nothing here is judged by it."""

    def _acknowledge(self, result: SendResult, *bodies: str) -> None:
        self._by_broker[result.queue.broker_name] += 1
        queue = result.queue
        place = f"at {queue.broker_name} {queue.queue_id} {result.queue_offset}"
        for body in bodies:
            self._ledger.acknowledge(body)
            self._acknowledged_at[body] = f"{self._now_s()} {place}"

    async def _send(self, producer: Producer, writer: str) -> None:
        body = self._ledger.next(PLAIN, writer)
        self._acknowledge(await producer.send(Message(PLAIN, body.encode())), body)

    async def _send_batch(self, producer: Producer) -> None:
        bodies = [self._ledger.next(PLAIN, "batch") for _ in range(5)]
        messages = [Message(PLAIN, body.encode()) for body in bodies]
        self._acknowledge(await producer.send_batch(messages), *bodies)

    async def _send_oneway(self, producer: Producer) -> None:
        body = self._ledger.next(PLAIN, "oneway")
        await producer.send_oneway(Message(PLAIN, body.encode()))

    async def _send_in_order(self, producer: Producer, number: int) -> None:
        """Send the next one when the one before is acknowledged, however often that takes.

        All go to one queue: a key would choose another while a broker is away.
        """
        queue = (await producer.queues(ORDERED))[number]
        body = self._ledger.next(ORDERED, f"q{number}")

        async def send() -> None:
            nonlocal body
            message = Message(ORDERED, body.encode())
            self._acknowledge(await producer.send(message, queue=queue), body)
            body = self._ledger.next(ORDERED, f"q{number}")

        await self._load(send)

    async def _send_bound(self, producer: TransactionProducer, writer: str) -> None:
        """Decide between the half message and its end, as a local transaction would."""
        body = self._ledger.next(BOUND, writer)
        half = await producer.send_half(Message(BOUND, body.encode()))
        state = self._chance.choice((TransactionState.COMMIT, TransactionState.ROLLBACK))
        self._decided[body] = state
        if state is TransactionState.COMMIT:
            self._acknowledge(half.sent, body)
        else:
            self._ledger.roll_back(body)
        if self._chance.random() < 0.8:
            await (
                producer.commit(half)
                if state is TransactionState.COMMIT
                else producer.rollback(half)
            )

    async def _check(self, message: StoredMessage) -> TransactionState:
        return self._decided.get(message.body.decode(), TransactionState.ROLLBACK)

    async def _handle(self, message: StoredMessage) -> None:
        if message.reconsume_times == 0 and self._chance.random() < REFUSED_SHARE:
            raise RefusedError
        self._readers["push"].got(message.body.decode())

    async def _push(self) -> None:
        async with PushConsumer(namesrv=self._address, group="push") as consumer:
            consumer.subscribe(PLAIN)
            consumer.subscribe(BOUND)
            await consumer.run(self._handle)

    async def _push_now_and_then(self) -> None:
        """Be the other member of the group, at times."""
        while True:
            with trio.move_on_after(self._chance.uniform(1, 10)) as scope:
                await self._push()
            assert scope.cancelled_caught
            await trio.sleep(self._chance.uniform(1, 5))

    async def _push_in_order(self) -> None:
        async def handle(message: StoredMessage) -> None:
            if self._chance.random() < REFUSED_SHARE:
                raise RefusedError
            self._readers["orderly"].got(message.body.decode())

        async with PushConsumer(
            namesrv=self._address, group="orderly", is_orderly=True, suspend_s=0.2
        ) as consumer:
            consumer.subscribe(ORDERED)
            await consumer.run(handle)

    async def _pull(self) -> None:
        async with PullConsumer(namesrv=self._address, group="pull") as consumer:
            for topic in TOPICS:
                consumer.subscribe(topic)
            while True:
                try:
                    for message in await consumer.poll(timeout_s=0.5):
                        self._readers["pull"].got(message.body.decode())
                    await consumer.commit()
                except PASSING:
                    await trio.sleep(0.1)

    async def _pop(self) -> None:
        async with SimpleConsumer(namesrv=self._address, group="simple") as consumer:
            for topic in (PLAIN, BOUND):
                await consumer.subscribe(topic)
            while True:
                try:
                    await self._pop_once(consumer)
                except PASSING:
                    await trio.sleep(0.1)

    async def _pop_once(self, consumer: SimpleConsumer) -> None:
        messages = await consumer.receive(32, invisible_s=INVISIBLE_S, wait_s=1)
        taken = []
        for message in messages:
            body = message.body.decode()
            self._readers["simple"].got(body)
            receipt = decode_receipt(message.receipt)
            stored = (message.topic, message.queue_id, message.queue_offset)
            place = (receipt.broker_name, receipt.kind, *stored)
            if place in self._popped_for_good:
                raise LedgerError(f"{body} was acknowledged and comes again: {place}")
            if self._chance.random() < REFUSED_SHARE:
                continue  # it comes again
            taken.append((place, message))
        # The first alone, the others in one request.
        for some in (taken[:1], taken[1:]):
            await self._ack([message for _, message in some], consumer)
        for place, message in taken:
            if self._has_once and _now_ms() < message.invisible_until_ms - INVISIBLE_SLACK_MS:
                self._popped_for_good[place] = message.body.decode()

    async def _ack(self, messages: list[PoppedMessage], consumer: SimpleConsumer) -> None:
        if len(messages) > 1:
            await consumer.ack_many(messages)
        elif messages:
            await consumer.ack(messages[0])

    async def _watch(self, index: int) -> None:
        """Look at the committed offsets of a broker."""
        address, watch = self._servers.addresses[index], self._watches[index]
        while True:
            await trio.sleep(WATCH_S)
            run = self._runs[index]
            if run is None:
                continue
            try:
                async with connected(address) as peer:
                    while self._runs[index] == run:
                        asked_at = trio.current_time()
                        answer = await peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
                        if self._runs[index] != run:
                            break
                        watch.saw(asked_at, loads(answer.body)["offsetTable"])
                        await trio.sleep(WATCH_S)
            except* (RemotingError, OSError):
                pass  # killed meanwhile

    async def _create_topics(self) -> None:
        for address in self._servers.addresses:
            async with connected(address) as peer:
                for topic in TOPICS:
                    ext = {"topic": topic, "perm": 6, "topicFilterType": "SINGLE_TAG"}
                    if topic == PLAIN:
                        # The proxy takes messages for a topic that says which kind it is for.
                        ext["attributes"] = "+message.type=NORMAL"
                    ext |= dict.fromkeys(("readQueueNums", "writeQueueNums"), QUEUES)
                    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
                    assert answer.code == ResponseCode.SUCCESS, answer.remark
                    popped = {"topic": topic, "consumerGroup": "java-pop", "mode": "POP"}
                    body = json_body(popped | {"popShareQueueNum": 0})
                    answer = await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
                    assert answer.code == ResponseCode.SUCCESS, answer.remark

    # --- clients in other languages ------------------------------------------------------

    async def _order(self, what: str, value: str = "0") -> list[list[str]]:
        assert self._java is not None
        # Two who asked at once would read each other's lines, and what has come would be forgotten.
        async with self._asks_java:
            return await self._java.run(self._version, what, self._address, "-", "-", value)

    async def _begin_java(self) -> None:
        await self._order("lasting")

    async def _report_java(self) -> None:
        while True:
            await trio.sleep(0.3)
            for line in await self._order("report"):
                self._take(line)

    def _take(self, line: Sequence[str]) -> None:
        """Note what a client in another language says."""
        what, *words = line
        match what:
            case "tried":
                self._ledger.tried(words[0])
            case "acknowledged":
                self._ledger.acknowledge(words[0])
                self._acknowledged_at[words[0]] = self._now_s()
            case "rolled":
                self._ledger.roll_back(words[0])
            case "got":
                self._readers[words[0]].got(words[1])


class RefusedError(Exception):
    """A message that a listener refuses, to get it again."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def kinds_of(seed: int, count: int) -> list[str]:
    """Return kinds of rounds by chance, every kind among the first ones."""
    chance = random.Random(seed)
    return [
        KINDS[number] if number < len(KINDS) else chance.choices(KINDS, WEIGHTS)[0]
        for number in range(count)
    ]


def rounds(
    folder: Path,
    seed: int,
    count: int,
    note: Callable[[Round], None],
    *,
    java: JavaDriver | None = None,
    version: str = VERSION_5,
    programs: Sequence[Program] = (),
) -> str:
    """Do rounds; ``note`` is told of each, and the last word comes back."""
    kills = BrokerKills(OurServers(folder), seed, java, version, programs)
    return trio.run(kills.run, kinds_of(seed, count), note)


def apache_rounds(folder: Path, seed: int, count: int, note: Callable[[Round], None]) -> str:
    """Do rounds with Apache's servers."""
    chance = random.Random(seed)
    kinds = [
        "broker" if number < 2 else chance.choice(("broker", "stop")) for number in range(count)
    ]
    return trio.run(BrokerKills(ApacheServers(folder), seed).run, kinds, note)


def _first(error: BaseException) -> LedgerError | None:
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_first, error.exceptions)), None)
    return error if isinstance(error, LedgerError) else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.broker_kills")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--java", nargs="?", const=VERSION_5, choices=VERSIONS)
    parser.add_argument("--others", action="store_true", help="with JavaScript's and C++'s clients")
    parser.add_argument("--proxy", action="store_true", help="with a client behind a gRPC proxy")
    parser.add_argument("--apache", action="store_true", help="the servers are Apache's")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=None, help="for the data; else below /tmp")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    # What clients say of servers that are away is no finding.
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("motelog.bridge").setLevel(logging.CRITICAL)
    report = Report.of(args.seed)
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp("", "motelog-broker-kills.", args.folder))
    done: list[Round] = []

    def note(one: Round) -> None:
        done.append(one)
        line = f"round {len(done)} of {args.rounds}: {one.kind}, {one.acknowledged} acknowledged\n"
        sys.stderr.write(line)

    home = folder / "home"
    programs = lasting_programs(home) if args.others else []
    programs += proxied_programs(home) if args.proxy else []
    java = JavaDriver(errors=subprocess.DEVNULL) if args.java else None
    said = ""
    try:
        version = args.java or VERSION_5
        if args.apache:
            said = apache_rounds(folder, report.seed, args.rounds, note)
        else:
            said = rounds(
                folder,
                report.seed,
                args.rounds,
                note,
                java=java,
                version=version,
                programs=programs,
            )
        shutil.rmtree(folder)
    except LedgerError as exc:
        report.failure = f"after {len(done)} rounds: {exc}; the folder is kept: {folder}"
    finally:
        if java is not None:
            java.close()
    found = f"none lost, none that was rolled back, no offset went back; {said}"
    return report.end(done, found, as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
