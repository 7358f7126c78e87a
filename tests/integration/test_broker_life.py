"""The broker's life: registration with name servers that come and go, addresses, state on disk."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import tarfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.server import Broker
from motelog.core.errors import StoreDamagedError
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.records.decode import decode_messages
from motelog.core.remoting.frames import RequestCode, ResponseCode
from motelog.core.store.message_store import MessageStore
from motelog.core.store.state.progress import StartProgress
from tests.support.broker_process import BrokerProcess
from tests.support.broker_stack import (
    Peer,
    connected,
    eventually,
    joined,
    json_body,
    pull_ext,
    send_ext,
    started_stack,
    store_config,
)
from tests.support.ports import free_port
from tests.support.stores import vector_archive


def config(directory: Path, **fields: Any) -> BrokerConfig:
    return BrokerConfig(**{"listen": "127.0.0.1:0", "store": store_config(directory), **fields})


async def test_a_start_that_is_cancelled_closes_the_store_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store = Broker._open

    def open_and_cancel(self: Broker, *parts: Any) -> None:
        open_store(self, *parts)
        trio.from_thread.run_sync(cancelled.cancel)

    async def run_within_time(
        self: MessageStore, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with scope:
            await run_store(self, task_status=task_status)

    run_store, scope = MessageStore.run, trio.CancelScope(deadline=trio.current_time() + 10)
    monkeypatch.setattr(Broker, "_open", open_and_cancel)
    monkeypatch.setattr(MessageStore, "run", run_within_time)
    with trio.CancelScope() as cancelled:
        await Broker(config(tmp_path)).run()
    assert cancelled.cancelled_caught
    assert not scope.cancel_called, "it waited until a deadline ended the store"
    assert not (tmp_path / "abort").exists(), "the store is closed"


async def test_the_broker_registers_again_with_a_name_server_that_was_away(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("motelog.core.broker.registration._RETRY_S", 0.05)
    address = f"127.0.0.1:{free_port()}"
    broker = Broker(config(tmp_path, namesrv=(address,)))
    await nursery.start(broker.run)
    assert not broker.is_registered
    for _ in range(2):
        async with trio.open_nursery() as inner:
            namesrv = NameServer(NamesrvConfig(listen=address))
            await inner.start(namesrv.run)
            await eventually(lambda: broker.is_registered)
            assert namesrv.routes.route("TBW102") is not None
            assert namesrv.sample()["brokers_now"] == 1
            inner.cancel_scope.cancel()
        await eventually(lambda: not broker.is_registered)


async def test_it_registers_with_every_name_server_and_leaves_them_when_it_stops(
    tmp_path: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    servers = [NameServer(NamesrvConfig(listen="127.0.0.1:0")) for _ in range(2)]
    for server in servers:
        await nursery.start(server.run)
    async with trio.open_nursery() as inner:
        broker = Broker(config(tmp_path, namesrv=tuple(joined(s.address) for s in servers)))
        await inner.start(broker.run)
        # Started means that clients find its topics.
        assert all(server.routes.route("TBW102") for server in servers)
        inner.cancel_scope.cancel()
    await eventually(lambda: not any(server.routes.topics() for server in servers))
    # The broker said so: an operator sees warnings only of brokers that vanish.
    assert not [record for record in caplog.records if "dropped" in record.message]


async def test_a_heartbeat_is_answered_when_the_group_s_topic_can_be_found(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        for number in range(20):
            group = f"G{number}"
            body = json_body(
                {
                    "clientID": "c",
                    "consumerDataSet": [
                        {
                            "groupName": group,
                            "consumeType": "CONSUME_PASSIVELY",
                            "messageModel": "CLUSTERING",
                            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                            "subscriptionDataSet": [],
                        }
                    ],
                    "producerDataSet": [],
                }
            )
            answer = await peer.ask(RequestCode.HEART_BEAT, body=body)
            assert answer.code == 0
            assert stack.namesrv.routes.route(f"%RETRY%{group}") is not None


async def test_a_name_server_that_is_away_holds_up_no_heartbeat(tmp_path: Path) -> None:
    broker = Broker(config(tmp_path, namesrv=(f"127.0.0.1:{free_port()}",)))
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        async with connected(joined(broker.address)) as peer:
            body = json_body({"clientID": "c", "consumerDataSet": [{"groupName": "G"}]})
            with trio.fail_after(10):
                assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == 0
        nursery.cancel_scope.cancel()


async def test_old_clients_find_the_vip_port(tmp_path: Path, nursery: trio.Nursery) -> None:
    port = free_port()
    broker = Broker(config(tmp_path, listen=f"127.0.0.1:{port}"))
    await nursery.start(broker.run)
    async with connected(f"127.0.0.1:{port - 2}") as peer:
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
        assert answer.code == 0


async def test_a_taken_vip_port_is_a_warning_and_a_taken_port_an_error(
    tmp_path: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port - 2)):
        with caplog.at_level(logging.WARNING):
            await nursery.start(Broker(config(tmp_path, listen=f"127.0.0.1:{port}")).run)
        assert any("VIP port" in record.message for record in caplog.records)
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            await Broker(config(tmp_path, listen=f"127.0.0.1:{port}")).run()


async def test_a_start_that_is_given_up_leaves_what_the_next_one_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        for number in range(30):
            await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"%d" % number)
    (tmp_path / "index.json").unlink()
    for queue in (tmp_path / "consumequeue" / "T").iterdir():
        for file in queue.iterdir():
            file.unlink()
    monkeypatch.setattr("motelog.core.store.state.progress.INTERVAL_MS", 0)
    given_up: list[str] = []
    with trio.CancelScope() as scope:

        def give_up(progress: StartProgress) -> None:
            given_up.append(progress.doing)
            trio.from_thread.run_sync(scope.cancel)

        await Broker(config(tmp_path), on_progress=give_up).run()
    assert scope.cancelled_caught
    assert given_up == ["reading the log"], "it ends with the first step after that"
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        answer = await peer.ask(RequestCode.PULL_MESSAGE, pull_ext("T", 0))
        bodies = [int(message.body) for message in decode_messages(answer.body)]
        assert bodies == list(range(30))


STATE_FILES = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "delayOffset.json",
    "timerOffset.json",
)


async def test_damaged_state_files_stop_the_start_and_are_named(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        stack.broker.api.create_topic("T", 1)
    path = tmp_path / "config" / "topics.json"
    for damaged in (path, path.with_name("topics.json.bak")):
        damaged.write_text('{"topicConfigTable": {"T": 7}}')
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match=r"topics\.json"):
            await Broker(config(tmp_path)).run()
    assert path.read_text() == '{"topicConfigTable": {"T": 7}}'


COMMIT = {"consumerGroup": "G", "topic": "T", "queueId": 0}


async def use_every_state_file(folder: Path) -> None:
    store = store_config(folder, delay_levels="1s")
    async with (
        started_stack(folder, delay_save_interval_s=0.02, store=store) as stack,
        connected(stack.broker_address) as peer,
    ):
        for properties in ("DELAY\x011\x02", "TIMER_DELAY_MS\x0150\x02"):
            await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T", properties=properties), b"x")
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**COMMIT, "commitOffset": 1})
        await eventually(lambda: stack.broker.api.max_offset("T", 0) == 2)


@pytest.fixture(scope="module")
def used_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("used")
    trio.run(use_every_state_file, folder)
    return folder


@pytest.mark.parametrize("damage", ["flipped", "cut", "removed", "both removed"])
@pytest.mark.parametrize("name", STATE_FILES)
async def test_a_start_goes_on_with_the_state_saved_before(
    tmp_path: Path, used_folder: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(used_folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config" / name
    text = path.read_bytes()
    if damage == "flipped":
        at = text.rindex(b"1")  # a number in the content
        path.write_bytes(text[:at] + b"3" + text[at + 1 :])
    elif damage == "cut":
        path.write_bytes(text[: len(text) // 2])
    else:
        path.unlink()
        if damage == "both removed":
            path.with_name(name + ".bak").unlink()
    async with started_stack(tmp_path) as stack:
        warned = [message for message in caplog.messages if str(path) in message]
        assert len(warned) == 1
        assert ("lost=all " if damage == "both removed" else "lost=newest ") in warned[0]
        async with connected(stack.broker_address) as peer:
            # Whatever was lost, messages are there, topics are found and the broker takes more.
            answer = await peer.ask(RequestCode.PULL_MESSAGE, pull_ext("T", 0))
            assert {m.body for m in decode_messages(answer.body)} == {b"x"}
            assert (await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"y")).code == 0
            answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, COMMIT)
            if name != "consumerOffset.json":
                assert answer.ext["offset"] == "1"
    # The stop has written it again.
    assert b"crc32c" in path.read_bytes()


async def test_offsets_reach_the_disk_while_the_broker_runs(tmp_path: Path) -> None:
    path = tmp_path / "config" / "consumerOffset.json"
    store = store_config(tmp_path, checkpoint_interval_ms=200)
    async with (
        started_stack(tmp_path, save_interval_s=0.02, store=store) as stack,
        connected(stack.broker_address) as peer,
    ):
        await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
        commit = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        await eventually(path.exists)
        await eventually(lambda: json.loads(path.read_text())["offsetTable"] == {"T@G": {"0": 1}})
        sample = stack.broker.sample()
        assert (sample["messages_received"], sample["connections_now"]) == (1, 1)
        assert sample["store_put_messages"] == 1
        behind = "store_dispatch_behind_bytes_now"
        await eventually(lambda: stack.broker.sample()[behind] == 0)


async def test_a_group_sees_what_follows_messages_that_a_crash_took(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**COMMIT, "commitOffset": 5})
    async with started_stack(tmp_path) as stack, connected(stack.broker_address) as peer:
        await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"y")
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, COMMIT)
        assert answer.ext["offset"] == "1"


async def test_a_folder_of_apache_rocketmq_is_served_whole(tmp_path: Path) -> None:
    """Every message of the folder that a real 4.9.8 broker left is pulled by queue."""
    with tarfile.open(vector_archive()) as archive:
        archive.extractall(tmp_path, filter="data")
    directory = tmp_path / "store"
    async with started_stack(directory) as stack, connected(stack.broker_address) as peer:
        # Its groups and their offsets are there too.
        assert len(stack.broker.tables.groups) == 44
        count = 0
        for topic, queues in stack.broker.tables.topics.table().items():
            for queue_id in range(queues.read_queue_nums):
                offset = stack.broker.api.min_offset(topic, queue_id)
                while offset < stack.broker.api.max_offset(topic, queue_id):
                    ext = pull_ext(topic, offset, queue_id=queue_id)
                    answer = await peer.ask(RequestCode.PULL_MESSAGE, ext)
                    count += len(decode_messages(answer.body))
                    offset = int(answer.ext["nextBeginOffset"])
        assert count == 558
        mine = {"consumerGroup": "cg_ord_1134a992", "topic": "it_ord_1134a992", "queueId": 0}
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, mine)
        assert answer.ext["offset"] == "21"


def test_a_wildcard_address_needs_one_to_tell_clients(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="advertise"):
        config(tmp_path, listen="0.0.0.0:10911", insecure="I know")
    config(tmp_path, listen="0.0.0.0:10911", insecure="I know", advertise="10.0.0.1:10911")


async def test_what_is_sent_to_a_stopped_broker_is_taken_when_it_goes_on(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        namesrv = NameServer(NamesrvConfig(listen="127.0.0.1:0"))
        await nursery.start(namesrv.run)
        with BrokerProcess(tmp_path, namesrv=joined(namesrv.address)) as broker:
            async with AsyncExitStack() as stack:
                peers = [
                    await stack.enter_async_context(connected(broker.address)) for _ in range(10)
                ]
                codes: list[int] = []

                async def send(peer: Peer) -> None:
                    answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"late")
                    codes.append(answer.code)

                await send(peers[0])
                os.kill(broker.pid, signal.SIGSTOP)
                try:
                    async with trio.open_nursery() as senders:
                        for peer in peers:
                            senders.start_soon(send, peer)
                        await trio.sleep(0.5)
                        assert codes == [ResponseCode.SUCCESS]
                        os.kill(broker.pid, signal.SIGCONT)
                finally:
                    os.kill(broker.pid, signal.SIGCONT)
        assert codes == [ResponseCode.SUCCESS] * 11
        nursery.cancel_scope.cancel()
