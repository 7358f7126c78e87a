"""All gateways have the same order of queues; publishers move to queues that are added."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, pairwise

import pytest
import trio

from motelog.core.remoting.frames import RemotingCommand, RequestCode
from motelog.gateway.log.log_port import Ticket
from motelog.gateway.log.remote import listing, orders, topics
from motelog.gateway.log.remote.entries import NAMESPACE
from motelog.gateway.log.remote.remote_log import RemoteLog
from tests.support.broker_stack import eventually
from tests.support.fake_cluster import FakeBroker, FakeCluster, fake_cluster
from tests.support.log_port_check import message
from tests.unit.gateway.log.test_remote_log import remote_log

ORDER = (NAMESPACE, "order.T")
LEAD_S, HOLD_S = 0.4, 0.3
DEVICES = [f"device{number}" for number in range(40)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LIST_INTERVAL_S", 0.02)
    monkeypatch.setattr(listing, "ROUTES_INTERVAL_S", 0.05)
    monkeypatch.setattr(listing, "LOOK_S", 0.02)
    monkeypatch.setattr(topics, "HOLD_S", HOLD_S)
    monkeypatch.setattr(orders, "HOLD_S", HOLD_S)
    monkeypatch.setattr(orders, "LEAD_S", LEAD_S)
    monkeypatch.setattr("motelog.bridge.route_cache.ROUTE_REFRESH_S", 0.05)


def publish(log: RemoteLog, device: str, body: bytes) -> Ticket:
    return log.append([message(log.queue_of("T", device), body)])


def places(log: RemoteLog) -> list[str]:
    return [log.describe(log.queue_of("T", device)) for device in DEVICES]


async def written(cluster: FakeCluster, log: RemoteLog) -> None:
    """Have the order of the topic written down."""
    publish(log, "first", b"first")
    await eventually(lambda: ORDER in cluster.values)


def stored(brokers: Iterable[FakeBroker]) -> list[tuple[str, bytes]]:
    """Note what the brokers store from now on, in order: the queue and the body."""
    found: list[tuple[str, bytes]] = []

    def note(broker: FakeBroker) -> None:
        store = broker.store

        def noted(topic: str, queue_id: int, body: bytes, *rest: bytes) -> int:
            found.append((f"{topic}/{broker.name}/{queue_id}", body))
            return store(topic, queue_id, body, *rest)  # type: ignore[arg-type]

        broker.store = noted  # type: ignore[method-assign, assignment]

    for broker in brokers:
        note(broker)
    return found


async def test_a_topic_that_no_gateway_appends_to_is_not_written_down() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        places(log)
        await trio.sleep(0.2)
        assert not cluster.values
        await written(cluster, log)
        assert cluster.values[ORDER] == '1:[[0,[["a",0,2]]]]'


@pytest.mark.parametrize("away", [0, 1])
async def test_a_gateway_that_starts_while_a_broker_is_away_has_the_same_order(away: int) -> None:
    async with fake_cluster("a", "b") as cluster, remote_log(cluster) as early:
        await written(cluster, early)
        broker = cluster.brokers.pop(away)
        async with remote_log(cluster) as late:
            assert places(late) == places(early)
            assert f"T/{broker.name}/0" in places(late)
            # A session that has a place there does not lose it.
            assert late.find_queue(f"T/{broker.name}/0") is not None
            refused = publish(late, DEVICES[places(late).index(f"T/{broker.name}/0")], b"waits")
            await eventually(lambda: late.outage is not None)
            assert not refused.is_settled
            cluster.brokers.insert(away, broker)
            await eventually(lambda: refused.is_settled)
            assert refused.error is None
            await eventually(lambda: len(late.queues("T")) == 4)
            assert places(late) == places(early)


async def test_a_broker_of_which_only_the_slave_is_left_keeps_its_publishers() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        await written(cluster, log)
        before = places(log)
        cluster.slaves["a"] = "127.0.0.1:1"
        cluster.has_masters = False
        route = await log._client.route("T", newer_than=trio.current_time())
        assert not route.write_queues
        await trio.sleep(0.3)
        assert places(log) == before
        assert cluster.values[ORDER].startswith("1:")


async def test_an_order_that_is_lost_is_written_again() -> None:
    async with fake_cluster("a", "b") as cluster, remote_log(cluster) as log:
        await written(cluster, log)
        entry = cluster.values.pop(ORDER)
        cluster.brokers.pop()
        await eventually(lambda: cluster.values.get(ORDER) == entry)


async def settled(ticket: Ticket) -> None:
    await eventually(lambda: ticket.is_settled)
    assert ticket.error is None


async def test_devices_keep_their_order_as_they_move_to_a_new_broker() -> None:
    """At one gateway without waiting for answers, at several after each answer."""
    async with fake_cluster("b", "a") as cluster:
        new = cluster.brokers.pop()
        async with remote_log(cluster) as one, remote_log(cluster) as other:
            await written(cluster, one)
            found = stored([*cluster.brokers, new])
            over = trio.Event()
            sent = dict.fromkeys(DEVICES, 0)

            async def play(device: str, *logs: RemoteLog) -> None:
                for log in cycle(logs):
                    ticket = publish(log, device, f"{device} {sent[device]}".encode())
                    sent[device] += 1
                    if len(logs) > 1:
                        await settled(ticket)
                    await trio.sleep(0.01)
                    if over.is_set():
                        return await settled(ticket)

            async with trio.open_nursery() as nursery:
                for number, device in enumerate(DEVICES):
                    nursery.start_soon(play, device, *([one], [other], [one, other])[number % 3])
                await trio.sleep(0.1)
                cluster.topics["a"] = 1  # it registers its own name, and the topic
                cluster.brokers.append(new)
                for log in (one, other):
                    await eventually(lambda log=log: any("/a/" in at for at in places(log)))  # type: ignore[misc]
                await trio.sleep(0.1)
                over.set()
            assert places(one) == places(other)
    assert cluster.values[ORDER].startswith("2:")
    moved = 0
    for device in DEVICES:
        own = [(at, body) for at, body in found if body.split()[0] == device.encode()]
        assert [int(body.split()[1]) for _, body in own] == list(range(sent[device]))
        order = [at for at, _ in own]
        changes = [after for at, after in pairwise(order) if at != after]
        assert all(at.startswith("T/a/") for at in changes)
        assert len(changes) <= 1
        moved += len(changes)
    assert 0 < moved < len(DEVICES)


async def test_a_move_waits_for_what_was_appended_before() -> None:
    async with fake_cluster("a", "b") as cluster:
        new = cluster.brokers.pop()
        async with remote_log(cluster) as log:
            await written(cluster, log)
            answer, slow = cluster.brokers[0].answer, trio.Event()

            async def answer_late(request: RemotingCommand) -> RemotingCommand | None:
                if request.code == RequestCode.SEND_BATCH_MESSAGE:
                    await slow.wait()
                return await answer(request)

            cluster.brokers[0].answer = answer_late  # type: ignore[method-assign]  # it can be slow
            before = publish(log, "device", b"before")
            cluster.topics["b"] = 1
            cluster.brokers.append(new)
            await eventually(lambda: not log.append_queues("T"))
            during = [publish(log, device, b"during") for device in DEVICES]
            await trio.sleep(3 * HOLD_S)
            assert not before.is_settled
            assert not new.records  # even to a broker that answers nothing is sent
            slow.set()
            for ticket in during:
                await settled(ticket)
            assert log.append_queues("T")
            assert sum(map(len, new.records.values())) > 0


async def test_a_queue_that_is_closed_leaves_the_order_and_comes_back_by_a_move() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        await written(cluster, log)
        before = places(log)
        cluster.open_queues["T"] = 2, 1
        await eventually(lambda: set(places(log)) == {"T/a/0"})
        await eventually(lambda: cluster.values[ORDER] == '2:[[0,[["a",0,1]]]]')
        cluster.open_queues["T"] = 2, 2
        await eventually(lambda: set(places(log)) == {"T/a/0", "T/a/1"})
        assert cluster.values[ORDER].startswith('3:[[0,[["a",0,1]]],[')
        assert before != places(log)


async def test_a_topic_that_is_closed_to_writers_keeps_its_order() -> None:
    async with fake_cluster("a") as cluster, remote_log(cluster) as log:
        await written(cluster, log)
        before = places(log)
        cluster.open_queues["T"] = 2, 0
        await eventually(lambda: not log.has_topic("T"))
        await trio.sleep(0.2)
        cluster.open_queues["T"] = 2, 2
        await eventually(lambda: log.has_topic("T"))
        assert places(log) == before
        assert cluster.values[ORDER].startswith("1:")


async def test_a_gateway_that_starts_during_a_move_takes_part_in_it() -> None:
    async with fake_cluster("a", "b") as cluster:
        new = cluster.brokers.pop()
        async with remote_log(cluster) as log:
            await written(cluster, log)
            cluster.topics["b"] = 1
            cluster.brokers.append(new)
            await eventually(lambda: not log.append_queues("T"))
            async with remote_log(cluster) as late:
                assert not late.append_queues("T") or not log.append_queues("T")
                waiting = publish(late, "device", b"waits")
                await eventually(lambda: bool(late.append_queues("T")))
                await settled(waiting)
                await eventually(lambda: places(late) == places(log))


async def test_readers_are_told_from_where_publishers_have_moved() -> None:
    async with fake_cluster("a", "b") as cluster:
        new = cluster.brokers.pop()
        async with remote_log(cluster) as log:
            await written(cluster, log)
            told: list[tuple[bool, list[str]]] = []

            def note(topic: str) -> None:
                for queue in log.queues(topic):
                    moved = log.moved_from(queue)
                    if moved is not None:
                        names = [str(queue), *map(str, moved.queues)]
                        told.append((moved.time_ms > 0, names))

            log.on_topic_created(note)
            cluster.topics["b"] = 1
            cluster.brokers.append(new)
            names = [[f"T/b/{number}", "T/a/0", "T/a/1"] for number in range(2)]
            await eventually(lambda: len(told) == 4)
            assert told == [(is_over, one) for is_over in (False, True) for one in names]
        async with remote_log(cluster) as late:
            [*first, added, _] = late.queues("T")
            assert [late.moved_from(queue) for queue in first] == [None, None]
            moved = late.moved_from(added)
            assert moved is not None
            assert moved.time_ms > 0
