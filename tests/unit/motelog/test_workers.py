"""What several gateway processes answer as one, and what their counters come to."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
import trio

from motelog.console.asking import AskedGateway, GatewayHere, RefusedError
from motelog.core.errors import StoreFullError
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.config import GatewayConfig
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.operator.answers import (
    GatewayNode,
    GatewayNodes,
    MessageReceiver,
    MessageReceivers,
    Place,
    SessionEntry,
    SessionPage,
)
from motelog.logs import LogConfig
from motelog.workers.answers import GatewayOfWorkers, joined
from motelog.workers.channel import Answer, Channel, Question
from motelog.workers.supervisor import WORKERS_METRICS, Workers
from motelog.workers.worker import _Line
from tests.conformance.peers import Gateway


def asked(gateway: Gateway) -> AskedGateway:
    return GatewayHere(gateway.stage.operator)


def together(*gateways: AskedGateway) -> GatewayOfWorkers:
    return GatewayOfWorkers(lambda: gateways)


class Silent(GatewayHere):
    """A process that does not answer."""

    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        async def refuse(*_: object) -> Any:
            raise RefusedError("it does not answer")

        return refuse


async def test_pages_of_sessions_have_those_of_all() -> None:
    gateways = [Gateway() for _ in range(3)]
    names = [f"dev{number:02}" for number in range(20)]
    for number, name in enumerate(names):
        gateways[number * number % 3].connect(5, name)
    one = together(*map(asked, gateways))
    for limit in (1, 3, 7, 19, 20, 100):
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = await one.list_sessions("dev", after, limit)
            assert len(page.sessions) <= limit
            found += [session.client_id for session in page.sessions]
            after = page.after
        assert found == names


@pytest.mark.parametrize(
    ("states", "best"),
    [
        ([(True, None), (True, 5), (False, 3)], 1),  # connected there
        ([(True, None), (False, 3)], 1),  # left, which one has not heard yet
        ([(True, None), (True, None)], 0),
    ],
)
async def test_the_process_that_knows_a_session_best_counts(
    states: Sequence[tuple[bool, int | None]], best: int
) -> None:
    class Knowing(Silent):
        def __init__(self, entry: SessionEntry) -> None:
            object.__setattr__(self, "entry", entry)

        def __getattribute__(self, name: str) -> Any:
            async def answer(*_: object) -> SessionPage:
                return SessionPage(sessions=[object.__getattribute__(self, "entry")], after=None)

            return answer

    known = [
        Knowing(
            SessionEntry(
                client_id="dev",
                is_connected=is_connected,
                since_ms=since_ms,
                expiry_s=1,
                expires_ms=None,
                filters=0,
                inflight=0,
            )
        )
        for is_connected, since_ms in states
    ]
    for ordered in (known, known[::-1]):
        [found] = (await together(*ordered).list_sessions("", "", 10)).sessions
        assert (found.is_connected, found.since_ms) == states[best]


async def test_a_session_is_ended_where_its_client_is_connected() -> None:
    gateways = [Gateway(), Gateway()]
    peer = gateways[1].connect(5, "dev")
    one = together(*map(asked, gateways))
    session = await one.get_session("dev")
    assert session is not None
    assert session.is_connected
    assert await one.end_session("dev")
    assert peer.is_closed
    assert await one.get_session("dev") is None
    assert not await one.end_session("dev")


async def test_a_client_is_listed_described_and_kicked_where_it_is_connected() -> None:
    gateways = [Gateway(), Gateway()]
    peers = {name: gateways[n].connect(5, name) for n, name in enumerate(("dev/0", "dev/1"))}
    one = together(*map(asked, gateways))
    page = await one.list_clients("dev/", "", 10)
    assert ([client.client_id for client in page.clients], page.after) == (list(peers), None)
    page = await one.list_clients("dev/", "", 1)
    assert ([client.client_id for client in page.clients], page.after) == (["dev/0"], "dev/0")
    client = await one.get_client("dev/1")
    assert client is not None
    assert client.session.client_id == "dev/1"
    assert await one.kick("dev/1")
    assert (peers["dev/0"].is_closed, peers["dev/1"].is_closed) == (False, True)
    assert not await one.kick("dev/1")
    assert await one.get_client("dev/1") is None


async def test_retained_messages_are_asked_of_the_first_that_answers() -> None:
    gateway = Gateway()
    gateway.connect(5).publish("a", b"x", retain=True)
    one = together(Silent(), asked(gateway))
    page = await one.list_retained("#", "", 10)
    assert [message.topic for message in page.messages] == ["a"]
    with pytest.raises(RefusedError, match="does not answer"):
        await one.list_sessions("", "", 10)  # its own would be missing
    with pytest.raises(RefusedError) as refused:
        await one.list_retained("a/#/b", "", 10)
    assert refused.value.status == 400
    gateway.stage.log.error = StoreFullError("full")
    with pytest.raises(RefusedError, match="full"):
        await one.delete_retained("a")
    gateway.stage.log.error = None
    assert await one.delete_retained("a")
    assert await one.get_retained("a") is None


async def test_without_a_process_there_is_no_answer() -> None:
    with pytest.raises(RefusedError, match="no gateway process is running"):
        await together().list_sessions("", "", 10)
    with pytest.raises(RefusedError, match="no gateway process is running"):
        await together().list_retained("#", "", 10)


def test_counters_are_added_and_do_not_go_back_when_a_process_ends() -> None:
    workers = Workers(GatewayConfig(workers=2), AccessConfig(), LogConfig())
    one, two = workers._workers
    for worker, count in ((one, 3), (two, 4)):
        worker.counters = {
            "publishes_received": count,
            "sessions_now": count,
            "retained_messages_now": 7,
        }
    sample = workers.sample()
    assert (sample["publishes_received"], sample["sessions_now"]) == (7, 7)
    assert sample["retained_messages_now"] == 7  # all have the same
    one._keep_counters()
    sample = workers.sample()
    assert (sample["publishes_received"], sample["sessions_now"]) == (7, 4)
    one.counters = {"publishes_received": 1}
    assert workers.sample()["publishes_received"] == 8
    assert sample.keys() | workers.histograms().keys() == WORKERS_METRICS.keys()


def test_distributions_are_added_and_do_not_go_back_when_a_process_ends() -> None:
    workers = Workers(GatewayConfig(workers=2), AccessConfig(), LogConfig())
    one, two = workers._workers
    for worker, times in ((one, [70, 70, 300]), (two, [70])):
        metrics = GatewayMetrics()
        for took_us in times:
            metrics.acknowledge_us.observe(took_us)
        worker.histograms = metrics.histograms()
    expected = [0.0, 3.0, 0.0, 1.0]
    assert workers.histograms()["acknowledge_us"][:4] == expected
    one._keep_counters()
    assert workers.histograms()["acknowledge_us"][:4] == expected
    assert workers.histograms()["acknowledge_us"][-1] == 510


async def test_a_client_is_traced_where_it_is_connected() -> None:
    gateways = [Gateway(), Gateway()]
    for number, gateway in enumerate(gateways):
        gateway.connect(5, f"dev/{number}")
    one = together(*map(asked, gateways))
    assert await one.start_trace("dev/2", 10, 10) is None
    trace = await one.start_trace("dev/1", 10, 10)
    assert trace is not None
    [observer] = gateways[1].stage.output.observers.values()
    observer.received(b"\xc0\0")
    read = await one.read_trace(trace.trace, 0)
    assert read is not None
    assert [packet.type for packet in read.packets] == ["PINGREQ"]
    assert await one.end_trace(trace.trace)
    assert gateways[1].stage.output.observers == {}
    assert not await one.end_trace("another")
    assert await one.read_trace("another", 0) is None


async def test_gateways_are_those_of_all_and_each_knows_itself_best() -> None:
    def of(*nodes: tuple[str, bool]) -> AskedGateway:
        class Knowing(Silent):
            def __getattribute__(self, name: str) -> Any:
                async def answer() -> GatewayNodes:
                    return GatewayNodes(
                        gateways=[GatewayNode(name=n, seen_ms=1, is_here=here) for n, here in nodes]
                    )

                return answer

        return Knowing()

    one = together(of(("g-1", True), ("g-2", False)), of(("far", False), ("g-2", True)))
    found = (await one.list_gateways()).gateways
    assert [(node.name, node.is_here) for node in found] == [
        ("far", False), ("g-1", True), ("g-2", True),
    ]  # fmt: skip


async def test_receivers_of_a_message_are_those_of_all_processes() -> None:
    gateways = [Gateway(), Gateway()]
    for number, name in enumerate(("a", "b")):
        gateways[number].connect(5, name).subscribe("t/#", qos=1)
        gateways[number].connect(5, "writer").publish("t/1", b"", 1)
    queues = [f"t/{queue_id}" for queue_id in range(8)]
    one = together(*map(asked, gateways))
    found = await one.list_receivers("t/1", "t", queues, 0, "")
    assert found is not None
    assert [(each.client_id, found.more) for each in found.receivers] == [("a", 0), ("b", 0)]
    assert await one.list_receivers("t/1", "t", queues, 0, "nobody") is None


def test_who_knows_a_receiver_best_counts() -> None:
    def of(
        client_id: str, place: Place, *, is_connected: bool = True, share: str | None = None
    ) -> MessageReceiver:
        return MessageReceiver(
            client_id=client_id,
            is_connected=is_connected,
            share=share,
            filters=[],
            qos=1,
            place=place,
        )

    away, here = of("a", "waits", is_connected=False), of("a", "passed")
    elsewhere = of("", "elsewhere", share="$share/g/#")
    waits = of("", "waits", share="$share/g/#")
    sent = of("b", "in flight", share="$share/g/#")
    for known, best in (
        ([away, here], here),
        ([elsewhere, waits], waits),
        ([elsewhere, waits, sent], sent),
        ([away], away),
    ):
        for ordered in (known, known[::-1]):
            answers = [MessageReceivers(receivers=[one], more=1) for one in ordered]
            assert joined(answers) == MessageReceivers(receivers=[best], more=len(known))


async def test_a_question_at_which_a_process_fails_is_refused_and_the_next_is_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Gateway()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(gateway.stage.operator, "list_clients", fail)
    ours, theirs = (Channel(end) for end in socket.socketpair())
    line = _Line(theirs)
    line.here = GatewayHere(gateway.stage.operator)
    async with (
        aclosing(ours.messages()) as answers,  # type: ignore[type-var]  # a generator, not told so
        aclosing(theirs.messages()) as questions,  # type: ignore[type-var]  # likewise
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(line.answer_all, questions, nursery.cancel_scope)
        for name, arguments, status in (("list_clients", ("", "", 1), 500), ("kick", ("c",), 0)):
            await ours.send(Question(1, name, arguments))  # type: ignore[arg-type]  # a literal
            answer = await anext(answers)
            assert isinstance(answer, Answer)
            assert answer.status == status
            told = msgspec.msgpack.decode(answer.answer)
        assert told is False
        nursery.cancel_scope.cancel()
    ours.close()
    theirs.close()
    assert "a question failed name=list_clients" in caplog.text
