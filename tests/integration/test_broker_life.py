"""The broker's life: registration with name servers that come and go, addresses, state on disk."""

from __future__ import annotations

import json
import logging
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest
import trio

from core.broker.config import BrokerConfig
from core.broker.server import Broker
from core.errors import StoreDamagedError
from core.namesrv.config import NamesrvConfig
from core.namesrv.server import NameServer
from core.record import decode_messages
from core.remoting import RequestCode
from tests.support.broker_stack import (
    connected,
    eventually,
    joined,
    json_body,
    pull_ext,
    send_ext,
    started_stack,
    store_config,
)
from tests.support.stores import vector_archive


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def config(directory: Path, **fields: Any) -> BrokerConfig:
    return BrokerConfig(**{"listen": "127.0.0.1:0", "store": store_config(directory), **fields})


async def test_the_broker_registers_again_with_a_name_server_that_was_away(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.broker.registration._RETRY_S", 0.05)
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
    # Said, not found out: an operator sees warnings of brokers that vanish alone.
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


async def test_a_damaged_state_file_stops_the_start_and_is_named(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack:
        stack.broker.api.create_topic("T", 1)
    path = tmp_path / "config" / "topics.json"
    path.with_name("topics.json.bak").unlink(missing_ok=True)
    path.write_text('{"topicConfigTable": {"T": 7}}')
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match=r"topics\.json"):
            await Broker(config(tmp_path)).run()
    assert path.read_text() == '{"topicConfigTable": {"T": 7}}'


async def test_offsets_reach_the_disk_while_the_broker_runs(tmp_path: Path) -> None:
    path = tmp_path / "config" / "consumerOffset.json"
    async with (
        started_stack(tmp_path, save_interval_s=0.02) as stack,
        connected(stack.broker_address) as peer,
    ):
        await peer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
        commit = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        await eventually(path.exists)
        assert json.loads(path.read_text()) == {"offsetTable": {"T@G": {"0": 1}}}
        sample = stack.broker.sample()
        assert (sample["messages_received"], sample["connections_now"]) == (1, 1)
        assert (sample["store_put_messages"], sample["store_appends_within_1000ms"]) == (1, 1)


async def test_a_folder_of_apache_rocketmq_is_served_whole(tmp_path: Path) -> None:
    """Every message of the folder that a real 4.9.8 broker left is pulled by queue."""
    with tarfile.open(vector_archive()) as archive:
        archive.extractall(tmp_path, filter="data")
    directory = tmp_path / "store"
    async with started_stack(directory) as stack, connected(stack.broker_address) as peer:
        # Its groups and their offsets are there too.
        assert len(stack.broker.groups) == 44
        count = 0
        for topic, queues in stack.broker.topics.table().items():
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
        config(tmp_path, listen="0.0.0.0:10911")
    config(tmp_path, listen="0.0.0.0:10911", advertise="10.0.0.1:10911")
