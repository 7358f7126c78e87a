"""Appends to brokers elsewhere: what shares a send, what is not sent twice, who waits how long."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
import trio.testing

from motelog.bridge.client import Client
from motelog.bridge.errors import NoNameServerError
from motelog.core.errors import (
    BrokerError,
    MotelogError,
    RemotingConnectError,
    RemotingConnectionError,
    RemotingError,
    RemotingTimeoutError,
    StoreFullError,
)
from motelog.core.message import MessageQueue, decode_properties, encode_host
from motelog.core.remoting.codes import STORE_FULL
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_batch_items,
    dumps,
)
from motelog.gateway.log.log_port import OutcomeUnknownError, StoredUnsafelyError, Ticket
from motelog.gateway.log.remote import appends, sends
from motelog.gateway.log.remote.appends import Appends
from motelog.gateway.log.remote.links import BrokerLinks
from motelog.gateway.log.remote.queues import Place, RemoteQueue

HOST = encode_host("192.0.2.7", 4711)
ADDRESS = "127.0.0.1:1"
WAIT_S = 10.0
BYTES_MAX = 10_000

# What becomes of a send: None is stored; an error, or a code.
FULL = "disk 90.7 % full, limit 90 %"
Outcome = RemotingError | ResponseCode | str | None


class ScriptedClient:
    """Answers sends after ``latency_s`` as ``outcome`` says; ``sent`` has (queue id, bodies)."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.start_soon = nursery.start_soon
        self.latency_s = 0.01
        self.outcome: Callable[[list[bytes]], Outcome] = lambda bodies: None
        self.sent: list[tuple[int, list[bytes]]] = []
        self.requests: list[RemotingCommand] = []
        self.in_flight: list[int] = []
        self.has_no_namesrv = False
        #: What the name server knows of the broker's name, and who refuses all sends.
        self.members = {0: ADDRESS}
        self.refusing: set[str] = set()
        #: Addresses of brokers that are away; whether those that are there answer no heartbeats.
        self.away: set[str] = set()
        self.is_mute = False

    async def request(
        self, address: str, command: RemotingCommand, *, timeout_s: float
    ) -> RemotingCommand:
        if address in self.away:
            raise RemotingConnectError(f"{address}: Connection refused")
        assert command.code == RequestCode.SEND_BATCH_MESSAGE
        queue_id = int(command.ext["e"])
        assert queue_id not in self.in_flight, "one send of a queue at a time"
        self.in_flight.append(queue_id)
        bodies = [body for _, body, _ in decode_batch_items(command.body)]
        self.requests.append(command)
        self.sent.append((queue_id, bodies))
        try:
            await trio.sleep(self.latency_s)
        finally:
            self.in_flight.remove(queue_id)
        outcome = self.outcome(bodies)
        if address in self.refusing:
            outcome = ResponseCode.SERVICE_NOT_AVAILABLE
        if isinstance(outcome, RemotingError):
            raise outcome
        if isinstance(outcome, str):
            code = ResponseCode.SERVICE_NOT_AVAILABLE
            return command.answer(code, outcome, {STORE_FULL: "true"})
        return command.answer(outcome or ResponseCode.SUCCESS, "as the script says")

    async def request_namesrv(self, command: RemotingCommand) -> RemotingCommand:
        if self.has_no_namesrv:
            raise NoNameServerError("127.0.0.1:2: Connection refused")
        brokers = {"a": {"brokerAddrs": self.members}}
        return command.answer(body=dumps({"brokerAddrTable": brokers, "clusterAddrTable": {}}))

    async def send_heartbeat(self, address: str) -> None:
        if self.is_mute:
            await trio.sleep(3)
            raise RemotingTimeoutError("no answer")
        if address in self.away:
            raise RemotingConnectError(f"{address}: Connection refused")


class AppendStage:
    """Appends to one broker with three queues."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.client = ScriptedClient(nursery)
        client = cast("Client", self.client)
        self.links = BrokerLinks(client)
        self.links.learn({"a": {0: ADDRESS}})
        self.appends = Appends(
            client,
            self.links,
            group="g",
            wait_s=WAIT_S,
            waiting_bytes_max=BYTES_MAX,
            hold=lambda place, part: BrokerError(ResponseCode.TOPIC_NOT_EXIST, "no such topic"),
        )
        self.settled: list[tuple[Ticket, MotelogError | None]] = []
        self.appends.on_settled(self.settled.extend)
        self.places = [Place("T", number) for number in range(3)]
        for number, place in enumerate(self.places):
            place.queue = RemoteQueue(MessageQueue("T", "a", number))

    def append(self, *bodies: tuple[int, bytes]) -> Ticket:
        return self.appends.append([self.message(number, body) for number, body in bodies])

    def apart(
        self, *bodies: tuple[int, bytes], behind: Mapping[int, Ticket] | None = None
    ) -> Sequence[Ticket]:
        messages = [self.message(number, body) for number, body in bodies]
        return self.appends.append_apart(
            messages, {number: (ticket,) for number, ticket in (behind or {}).items()}
        )

    def message(
        self, number: int, body: bytes, properties: bytes = b"", *, host: bytes = HOST
    ) -> tuple[Any, ...]:
        return (self.places[number], body, properties, 0, 1_000, host, 0, 0, 0, 0)

    def add_broker(self, name: str) -> None:
        """Have another broker, with a fourth queue."""
        self.links.learn({name: {0: "127.0.0.1:2"}})
        self._add("T", name, 3)

    def add_marks(self) -> None:
        """Have a fourth queue for marks."""
        self._add("MQTT_SESSION", "a", 9)

    def _add(self, topic: str, broker_name: str, queue_id: int) -> None:
        self.places.append(Place(topic, 0))
        self.places[-1].queue = RemoteQueue(MessageQueue(topic, broker_name, queue_id))

    async def over(self) -> None:
        with trio.fail_after(100):
            await self.appends.drain()

    def errors(self) -> list[MotelogError | None]:
        return [error for _, error in self.settled]


@asynccontextmanager
async def appending() -> AsyncIterator[AppendStage]:
    async with trio.open_nursery() as nursery:
        yield AppendStage(nursery)
        nursery.cancel_scope.cancel()


async def test_all_that_comes_while_a_send_is_under_way_shares_the_next_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        tickets = [stage.append((0, b"first"))]
        await trio.testing.wait_all_tasks_blocked()
        tickets += [stage.append((0, b"%d" % number)) for number in range(5)]
        await stage.over()
        assert stage.client.sent == [(0, [b"first"]), (0, [b"0", b"1", b"2", b"3", b"4"])]
        assert [ticket for ticket, _ in stage.settled] == tickets
        assert stage.errors() == [None] * 6


async def test_appends_without_a_wait_between_them_share_a_send(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        for number in range(3):
            stage.append((0, b"%d" % number))
        await stage.over()
        assert stage.client.sent == [(0, [b"0", b"1", b"2"])]


async def test_a_ticket_settles_when_all_of_its_own_is_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        stage.client.latency_s = 1.0
        slow = stage.append((0, b"slow"), (1, b"half"))
        await trio.testing.wait_all_tasks_blocked()
        stage.client.latency_s = 0.01
        quick = stage.append((2, b"quick"))
        await trio.sleep(0.5)
        assert stage.settled == [(quick, None)]
        await stage.over()
        assert stage.settled == [(quick, None), (slow, None)]


async def test_a_broker_that_is_away_costs_its_own_messages_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        stage.add_broker("b")
        stage.client.away = {"127.0.0.1:2"}
        away, other, also_away = stage.apart((3, b"away"), (0, b"other"), (3, b"away too"))
        assert away is also_away
        await trio.sleep(WAIT_S / 2)
        assert stage.settled == [(other, None)]
        # While it waits, the memory is shared: the other broker has as much as before.
        assert [t.error for t in stage.apart(*[(3, bytes(BYTES_MAX // 4))] * 2)] == [None, None]
        full = stage.append((3, b"too much"))
        assert isinstance(full.error, BrokerError)
        assert full.error.code == ResponseCode.SYSTEM_BUSY
        assert stage.append((0, bytes(BYTES_MAX // 4))).error is None
        await trio.sleep(2 * WAIT_S)
        assert isinstance(away.error, RemotingConnectError)
        at_once, other = stage.apart((3, b"away"), (0, b"other"))
        assert isinstance(at_once.error, RemotingConnectError)
        await stage.over()
        assert (other, None) in stage.settled
        assert [bodies for number, bodies in stage.client.sent if number == 3] == []


async def test_a_send_that_lacks_memory_settles_as_one_whose_outcome_is_unknown(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def outcome(bodies: list[bytes]) -> Outcome:
        if bodies == [b"unknown"]:
            raise MemoryError
        return None

    async with appending() as stage:
        stage.client.outcome = outcome
        stage.append((0, b"unknown"))
        await trio.testing.wait_all_tasks_blocked()
        stage.append((0, b"next"))
        await stage.over()
        unknown, following = stage.errors()
        assert isinstance(unknown, OutcomeUnknownError)
        assert following is None


@pytest.mark.parametrize("error", [RemotingTimeoutError("late"), RemotingConnectionError("lost")])
async def test_what_may_have_arrived_is_not_sent_again(
    autojump_clock: trio.testing.MockClock, error: RemotingError
) -> None:
    async with appending() as stage:
        stage.client.outcome = lambda bodies: error if bodies == [b"unknown"] else None
        stage.append((0, b"unknown"))
        await trio.testing.wait_all_tasks_blocked()
        stage.append((0, b"next"))
        await stage.over()
        assert stage.client.sent == [(0, [b"unknown"]), (0, [b"next"])]
        unknown, after = stage.errors()
        assert isinstance(unknown, OutcomeUnknownError)
        assert str(error) in str(unknown)
        assert after is None


async def test_what_a_publisher_sends_again_is_not_stored_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    other = encode_host("192.0.2.8", 1)
    async with appending() as stage:
        stage.client.outcome = lambda bodies: (
            RemotingTimeoutError("late") if bodies == [b"unknown"] else None
        )

        def settled(tickets: Sequence[tuple[Ticket, MotelogError | None]]) -> None:
            if any(error is not None for _, error in tickets):
                stage.appends.withdraw(HOST)

        stage.appends.on_settled(settled)
        tickets = [*stage.apart((0, b"unknown"))]
        await trio.testing.wait_all_tasks_blocked()
        tickets += stage.apart((0, b"behind it"))
        tickets += stage.appends.append_apart([stage.message(0, b"another's", host=other)])
        tickets += stage.appends.append_apart(
            [stage.message(0, b"shares", host=other), stage.message(0, b"a ticket")]
        )
        await stage.over()
        unknown = [isinstance(ticket.error, OutcomeUnknownError) for ticket in tickets]
        assert unknown == [True, True, False, True, True]
        assert stage.client.sent == [(0, [b"unknown"]), (0, [b"another's"])]
        stage.apart((0, b"behind it"))
        await stage.over()
        assert stage.client.sent[2:] == [(0, [b"behind it"])]


async def test_a_broker_that_does_not_answer_is_sent_no_more_until_it_does(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        stage.client.outcome = lambda bodies: RemotingTimeoutError("late")
        stage.append((0, b"unknown"))
        await trio.testing.wait_all_tasks_blocked()
        stage.client.is_mute = True
        await trio.sleep(1)
        waiting = [stage.append((number, b"waits")) for number in (0, 1)]
        await trio.sleep(1)
        assert stage.client.sent == [(0, [b"unknown"])]
        stage.client.outcome, stage.client.is_mute = lambda bodies: None, False
        await stage.over()
        assert [ticket.error for ticket in waiting] == [None, None]


async def test_state_of_gateways_does_not_wait_for_publishes(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motelog.gateway.log.remote.links.WINDOW", 2)
    async with appending() as stage:
        stage.client.latency_s = 2.0
        stage.add_marks()
        publishes = [stage.append((number, b"slow")) for number in range(3)]
        await trio.sleep(0.1)
        stage.client.latency_s = 0.01
        state = stage.append((3, b"tick"))
        await trio.sleep(0.5)
        assert stage.settled == [(state, None)]
        await stage.over()
        assert {ticket for ticket, _ in stage.settled} == {state, *publishes}


async def test_a_marked_message_is_not_sent_after_another_gateway_may_have_looked_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        stage.add_marks()
        stage.client.latency_s = 2 * WAIT_S
        stage.append((0, b"slow"))
        await trio.testing.wait_all_tasks_blocked()
        stage.client.latency_s = 0.01
        mark = stage.append((3, b"mark"))
        [marked] = stage.apart((0, b"marked"), behind={0: mark})
        await stage.over()
        assert isinstance(marked.error, BrokerError)
        assert [bodies for _, bodies in stage.client.sent] == [[b"slow"], [b"mark"]]


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE])
async def test_a_busy_broker_is_asked_again_until_the_wait_is_over(
    autojump_clock: trio.testing.MockClock, code: ResponseCode
) -> None:
    async with appending() as stage:
        outcomes: list[Outcome] = [code, code]
        stage.client.outcome = lambda bodies: outcomes.pop() if outcomes else None
        stage.append((0, b"later"))
        await stage.over()
        assert len(stage.client.sent) == 3
        stage.client.outcome = lambda bodies: code
        begin = trio.current_time()
        stage.append((0, b"never"))
        await stage.over()
        assert WAIT_S <= trio.current_time() - begin < WAIT_S + 1
        last = stage.errors()[-1]
        assert isinstance(last, BrokerError)
        assert last.code == code


async def test_a_broker_whose_disk_is_full_is_not_asked_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        stage.client.outcome = lambda bodies: FULL
        begin = trio.current_time()
        stage.append((0, b"never"))
        await stage.over()
        assert trio.current_time() - begin < 1
        [error] = stage.errors()
        assert isinstance(error, StoreFullError)
        assert str(error) == FULL


@pytest.mark.parametrize(
    "code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT]
)
async def test_what_is_stored_less_safely_is_neither_sent_again_nor_refused(
    autojump_clock: trio.testing.MockClock, code: ResponseCode
) -> None:
    async with appending() as stage:
        stage.client.outcome = lambda bodies: code
        for body in (b"a", b"b"):
            stage.append((0, body))
        await stage.over()
        assert stage.client.sent == [(0, [b"a", b"b"])]
        for error in stage.errors():
            assert isinstance(error, StoredUnsafelyError)
            assert code.name in str(error)


async def test_what_a_broker_without_its_slave_has_is_acknowledged(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        stage.client.outcome = lambda bodies: ResponseCode.SLAVE_NOT_AVAILABLE
        stage.append((0, b"a"))
        await stage.over()
        assert stage.client.sent == [(0, [b"a"])]
        assert stage.errors() == [None]


async def test_one_append_does_not_fail_for_another_s_fault(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        stage.client.outcome = lambda bodies: (
            ResponseCode.MESSAGE_ILLEGAL if b"bad" in bodies else None
        )
        stage.append((0, b"first"))
        await trio.testing.wait_all_tasks_blocked()
        for body in (b"good", b"bad", b"well"):
            stage.append((0, body))
        await stage.over()
        assert stage.client.sent[1:] == [
            (0, [b"good", b"bad", b"well"]),
            (0, [b"good"]),
            (0, [b"bad"]),
            (0, [b"well"]),
        ]
        assert [error is None for error in stage.errors()] == [True, True, False, True]


async def test_a_broker_that_is_back_in_time_gets_what_has_waited(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with appending() as stage:
        stage.client.away = {ADDRESS}
        for number in range(3):
            stage.append((number, b"waits"))
        await trio.sleep(WAIT_S / 2)
        assert stage.settled == []
        assert [link.name for link in stage.links.away()] == ["a"]
        stage.client.away = set()
        with caplog.at_level(logging.WARNING):
            await stage.over()
        assert trio.current_time() < WAIT_S / 2 + 1
        assert stage.errors() == [None] * 3
        assert stage.links.away() == []
        assert "a broker is back broker=a" in caplog.text


@pytest.mark.parametrize("was_away", [True, False])
async def test_the_master_is_the_one_that_the_name_server_names(
    autojump_clock: trio.testing.MockClock, was_away: bool
) -> None:
    """A master that hung while another one was promoted answers again, and must not be used."""
    other = "127.0.0.1:3"
    async with appending() as stage:
        stage.client.refusing = {ADDRESS}
        stage.client.members[0] = other
        if was_away:
            stage.client.outcome = lambda bodies: RemotingTimeoutError("late")
            stage.append((0, b"unknown"))
            await stage.over()
            stage.client.outcome = lambda bodies: None
        stage.append((0, b"next"))
        await stage.over()
        assert stage.errors()[-1] is None
        assert stage.links.of("a").address == other


async def test_a_broker_that_stays_away_refuses_after_the_wait_and_then_at_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with appending() as stage:
        stage.client.away = {ADDRESS}
        with caplog.at_level(logging.WARNING):
            stage.append((0, b"waits"))
            await stage.over()
        assert WAIT_S <= trio.current_time() < WAIT_S + 1
        assert caplog.text.count("a broker is away") == 1
        await trio.sleep(WAIT_S)
        late = [stage.append((0, b"late")), stage.append((1, b"late"))]
        assert all(ticket.is_settled for ticket in late)
        errors = [*stage.errors(), *(ticket.error for ticket in late)]
        assert all(isinstance(error, RemotingConnectError) for error in errors)
        assert str(errors[-1]) == "broker 'a' is away: 127.0.0.1:1: Connection refused"
        stage.client.away = set()
        await trio.sleep(1)
        stage.append((0, b"again"))
        await stage.over()
        assert stage.errors()[-1] is None


async def test_publishes_do_not_wait_for_a_broker_of_which_only_a_slave_is_known(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        stage.add_marks()
        stage.client.away, stage.client.members = {ADDRESS}, {1: "127.0.0.1:3"}
        waiting, state = stage.apart((0, b"waits"), (3, b"mark"))
        await trio.sleep(1)
        text = (
            "broker 'a' is away, and its slaves take no messages: 127.0.0.1:1: Connection refused"
        )
        assert str(waiting.error) == str(stage.append((1, b"late")).error) == text
        # Sessions would end without their state.
        assert not state.is_settled
        late_state = stage.append((3, b"mark"))
        assert not late_state.is_settled
        stage.client.away, stage.client.members = set(), {0: ADDRESS, 1: "127.0.0.1:3"}
        await trio.sleep(1)
        await stage.over()
        assert (state.error, late_state.error) == (None, None)
        assert stage.append((0, b"again")).error is None
        await stage.over()
        assert stage.errors()[-1] is None


async def test_messages_wait_again_once_the_name_server_knows_a_master(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        stage.client.away, stage.client.members = {ADDRESS}, {1: "127.0.0.1:3"}
        stage.append((0, b"refused"))
        await stage.over()
        stage.client.members = {0: ADDRESS, 1: "127.0.0.1:3"}
        await trio.sleep(1)
        waiting = stage.append((0, b"waits"))
        await trio.sleep(1)
        assert not waiting.is_settled
        stage.client.away = set()
        await stage.over()
        assert waiting.error is None


async def test_a_long_outage_of_everything_does_not_fill_the_log(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with appending() as stage:
        stage.client.away, stage.client.has_no_namesrv = {ADDRESS}, True
        with caplog.at_level(logging.INFO):
            stage.append((0, b"waits"))
            await trio.sleep(60)
        assert 6 <= caplog.text.count("no name server says where a broker is broker=a") <= 7


async def test_memory_for_what_waits_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    async with appending() as stage:
        stage.client.latency_s = 1.0
        taken = [stage.append((0, bytes(BYTES_MAX // 4))) for _ in range(4)]
        refused = stage.append((1, b"too much"))
        assert refused.is_settled
        assert isinstance(refused.error, BrokerError)
        assert refused.error.code == ResponseCode.SYSTEM_BUSY
        await stage.over()
        assert stage.settled == [(ticket, None) for ticket in taken]
        stage.append((1, b"room again"))
        await stage.over()
        assert stage.errors()[-1] is None


async def test_an_append_larger_than_a_send_takes_several_in_order(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (appends, sends):
        monkeypatch.setattr(module, "SEND_BYTES_MAX", 1000)
    async with appending() as stage:
        bodies = [b"%d" % number + bytes(300) for number in range(10)] + [bytes(3000)]
        ticket = stage.append(*((0, body) for body in bodies))
        await stage.over()
        assert stage.settled == [(ticket, None)]
        assert [body for _, sent in stage.client.sent for body in sent] == bodies
        assert len(stage.client.sent) == 6


async def test_a_refused_topic_is_known_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with appending() as stage:
        stage.places.append(Place("refused", 0))
        first = stage.append((0, b"waits"))
        refused = stage.append((3, b"does not wait"))
        assert refused.is_settled
        assert isinstance(refused.error, BrokerError)
        half = stage.append((0, b"stored"), (3, b"refused"))
        assert not half.is_settled
        await stage.over()
        assert stage.settled == [(first, None), (half, half.error)]
        assert isinstance(half.error, BrokerError)


async def test_marks_are_stored_before_what_they_mark(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        stage.add_marks()
        mark = stage.append((3, b"mark"))
        stage.apart(
            (0, b"marked"), (1, b"marked too"), (0, b"not marked"), behind={0: mark, 1: mark}
        )
        stage.append((0, b"of the next turn"))
        await trio.testing.wait_all_tasks_blocked()
        assert stage.client.sent == [(9, [b"mark"])]
        await stage.over()
        assert sorted(stage.client.sent[1:]) == [
            (0, [b"marked", b"not marked", b"of the next turn"]),
            (1, [b"marked too"]),
        ]
        assert set(stage.errors()) == {None}


async def test_messages_of_other_publishers_do_not_wait_for_marks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        stage.add_marks()
        stage.client.outcome = lambda bodies: (
            RemotingTimeoutError("late") if bodies == [b"mark"] else None
        )
        stage.client.latency_s = 1.0
        mark, other = stage.append((3, b"mark")), encode_host("192.0.2.8", 1)
        messages = [
            stage.message(0, b"%d" % n, host=other if n in (1, 3) else HOST) for n in range(4)
        ]
        tickets = stage.appends.append_apart(messages, {0: (mark,)})
        assert len(set(tickets)) == 3
        await trio.sleep(1.5)
        assert [bodies for number, bodies in stage.client.sent if number == 0] == [
            [b"1", b"3"],
            [b"2"],
        ]
        await stage.over()
        # The next message of the same publisher has waited for its turn, and is stored.
        assert [type(t.error) for t in tickets] == [OutcomeUnknownError, *[type(None)] * 3]


async def test_without_its_mark_a_message_is_not_sent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        stage.add_marks()
        stage.client.outcome = lambda bodies: (
            ResponseCode.SYSTEM_ERROR if bodies == [b"mark"] else None
        )
        tickets = [stage.append((0, b"before"))]
        await trio.testing.wait_all_tasks_blocked()
        mark = stage.append((3, b"mark"))
        tickets += [mark, *stage.apart((0, b"marked"), behind={0: mark})]
        tickets.append(stage.append((0, b"of the next turn")))
        await stage.over()
        assert [bodies for number, bodies in stage.client.sent if number == 0] == [
            [b"before"],
            [b"of the next turn"],
        ]
        assert [ticket.error is None for ticket in tickets] == [True, False, False, True]
        # A mark that is known to be refused refuses at once.
        [late] = stage.apart((0, b"marked"), behind={0: mark})
        assert late.is_settled
        assert late.error is mark.error


async def test_what_waits_behind_marks_of_a_run_that_is_over_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        runs = [1]
        stage.appends.fence(lambda: runs[-1])
        stage.add_marks()
        tickets = [stage.append((0, b"before"))]
        mark = stage.append((3, b"mark"))
        tickets += stage.apart((0, b"marked"), (1, b"marked too"), behind={0: mark, 1: mark})
        await trio.testing.wait_all_tasks_blocked()
        runs.append(2)
        tickets.append(stage.append((0, b"without a mark")))
        await stage.over()
        mark = stage.append((3, b"new mark"))
        tickets += stage.apart((0, b"of the new run"), behind={0: mark})
        await stage.over()
        bodies = [body for _, bodies in stage.client.sent for body in bodies]
        assert set(bodies) == {
            b"before",
            b"mark",
            b"without a mark",
            b"new mark",
            b"of the new run",
        }
        assert [ticket.error is None for ticket in tickets] == [True, False, False, True, True]


async def test_what_is_given_up_is_reported_although_more_is_appended_meanwhile(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        runs = [1]
        stage.appends.fence(lambda: runs[-1])
        stage.add_marks()
        mark = stage.append((3, b"mark"))
        await trio.sleep(0.005)
        stage.append((0, b"before"))
        (marked,) = stage.apart((0, b"marked"), behind={0: mark})
        await trio.sleep(0.007)
        runs.append(2)
        stage.append((0, b"shares its turn"))
        await trio.sleep(0.005)
        assert marked.error is not None
        stage.append((1, b"meanwhile"))
        await stage.over()
        assert marked in [ticket for ticket, _ in stage.settled]


async def test_publisher_s_address_is_a_property_unless_there_is_no_room(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with appending() as stage:
        long = b"a\x01" + b"x" * 32_400 + b"\x02"
        stage.appends.append([stage.message(0, b"", b"a\x01b\x02"), stage.message(0, b"", long)])
        await stage.over()
        (request,) = stage.client.requests
        (_, _, first), (_, _, second) = decode_batch_items(request.body)
        assert decode_properties(first) == {"a": "b", "__BORNHOST": "192.0.2.7:4711"}
        assert second == long
