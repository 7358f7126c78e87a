"""The name server over real sockets, with JSON and binary headers."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.remoting.frames import RequestCode, ResponseCode, Serialize, loads
from tests.support.broker_stack import Peer, connected, joined, json_body, started_stack

BOTH = pytest.mark.parametrize("serialize", list(Serialize))

IDENTITY = {
    "brokerName": "a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "c",
    "brokerId": 0,
    "haServerAddr": "10.0.0.1:10912",
}


@asynccontextmanager
async def namesrv(**config: Any) -> AsyncIterator[NameServer]:
    async with trio.open_nursery() as nursery:
        server = NameServer(NamesrvConfig(listen="127.0.0.1:0", **config))
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()


def registration(*topics: str, counter: int = 1) -> bytes:
    table = {
        name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        for name in topics
    }
    wrapper = {"dataVersion": {"counter": counter, "timestamp": 9}, "topicConfigTable": table}
    return json_body({"topicConfigSerializeWrapper": wrapper, "filterServerList": []})


async def register(peer: Peer, *topics: str, counter: int = 1, **ext: Any) -> Any:
    body = registration(*topics, counter=counter)
    answer = await peer.ask(RequestCode.REGISTER_BROKER, {**IDENTITY, **ext}, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


@BOTH
async def test_register_route_and_unregister(serialize: Serialize) -> None:
    async with namesrv() as server, connected(joined(server.address), serialize) as peer:
        answer = await register(peer, "T")
        assert answer.serialize is serialize
        assert loads(answer.body) == {"table": {}}
        answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert loads(answer.body) == {
            "brokerDatas": [
                {
                    "brokerAddrs": {"0": "10.0.0.1:10911"},
                    "brokerName": "a",
                    "cluster": "c",
                    "enableActingMaster": False,
                }
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": "a",
                    "perm": 6,
                    "readQueueNums": 4,
                    "topicSynFlag": 0,
                    "topicSysFlag": 0,
                    "writeQueueNums": 4,
                }
            ],
        }
        answer = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert loads(answer.body)["clusterAddrTable"] == {"c": ["a"]}
        answer = await peer.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert loads(answer.body) == {"topicList": ["T"]}
        answer = await peer.ask(RequestCode.UNREGISTER_BROKER, IDENTITY)
        assert answer.code == ResponseCode.SUCCESS
        answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_topics_of_all_brokers_are_listed() -> None:
    async with (
        namesrv() as server,
        connected(joined(server.address)) as first,
        connected(joined(server.address)) as second,
        connected(joined(server.address)) as other,
    ):
        await register(first, "T", "Both")
        at: dict[str, Any] = {"brokerName": "b", "brokerAddr": "10.0.0.2:10911"}
        await register(second, "U", "Both", **at)
        far: dict[str, Any] = {
            "brokerName": "d",
            "brokerAddr": "10.0.0.3:10911",
            "clusterName": "e",
        }
        await register(other, "V", "Both", **far)
        await register(first, "T", "Both", "Later", counter=2)

        async def listed(code: int, **ext: str) -> list[str]:
            return sorted(loads((await first.ask(code, ext)).body)["topicList"])

        everywhere = ["Both", "Later", "T", "U", "V"]
        assert await listed(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == everywhere
        at_broker = await first.ask(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {"brokerName": "b"}
        )
        assert sorted(loads(at_broker.body)["topicList"]) == ["Both", "U"]
        assert at_broker.ext["brokerName"] == "b"
        unknown = await first.ask(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {"brokerName": "x"}
        )
        assert unknown.code == ResponseCode.QUERY_NOT_FOUND
        by_cluster = RequestCode.GET_TOPICS_BY_CLUSTER
        assert await listed(by_cluster, cluster="c") == ["Both", "Later", "T", "U"]
        assert await listed(by_cluster, cluster="e") == ["Both", "V"]
        systems = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS
        assert await listed(systems) == ["a", "b", "c", "d", "e"]


@BOTH
async def test_data_version_says_whether_to_register_again(serialize: Serialize) -> None:
    version = json_body({"counter": 1, "timestamp": 9})
    async with namesrv() as server, connected(joined(server.address), serialize) as peer:
        answer = await peer.ask(RequestCode.QUERY_DATA_VERSION, IDENTITY, version)
        assert (answer.ext["changed"], answer.body) == ("true", b"")
        await register(peer, "T")
        answer = await peer.ask(RequestCode.QUERY_DATA_VERSION, IDENTITY, version)
        assert answer.ext["changed"] == "false"
        assert loads(answer.body)["counter"] == 1
        await register(peer, "T", counter=2)
        answer = await peer.ask(RequestCode.QUERY_DATA_VERSION, IDENTITY, version)
        assert answer.ext["changed"] == "true"


async def test_compressed_body_and_its_checksum() -> None:
    def counted(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    topic = b"T 8 8 6 SINGLE_TAG"
    parts = counted(b'{"counter":1,"timestamp":2}') + (1).to_bytes(4, "big") + counted(topic)
    body = zlib.compress(parts + counted(b"[]"))
    crc = zlib.crc32(body) & 0x7FFFFFFF
    async with namesrv() as server, connected(joined(server.address)) as peer:
        for told, code in ((crc ^ 1, ResponseCode.SYSTEM_ERROR), (crc, ResponseCode.SUCCESS)):
            ext = {**IDENTITY, "compressed": "true", "bodyCrc32": told}
            answer = await peer.ask(RequestCode.REGISTER_BROKER, ext, body)
            assert answer.code == code
        answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert loads(answer.body)["queueDatas"][0]["readQueueNums"] == 8


async def test_a_slave_is_told_its_master() -> None:
    async with namesrv() as server, connected(joined(server.address)) as peer:
        await register(peer, "T")
        answer = await register(peer, brokerId=1, brokerAddr="10.0.0.2:10911")
        assert answer.ext == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
        await peer.ask(RequestCode.UNREGISTER_BROKER, IDENTITY)
        # Apache's slaves would take an empty address for their master's.
        answer = await register(peer, brokerId=1, brokerAddr="10.0.0.2:10911")
        assert answer.ext == {}


async def test_a_closed_connection_takes_the_broker_off_the_routes() -> None:
    async with namesrv() as server, connected(joined(server.address)) as reader:
        async with connected(joined(server.address)) as peer:
            await register(peer, "T")
        with trio.fail_after(10):
            while True:
                answer = await reader.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    break
                await trio.sleep(0.01)


async def test_write_permission_topic_deletion_and_lists() -> None:
    async with namesrv() as server, connected(joined(server.address)) as peer:
        await register(peer, "T", "U")
        answer = await peer.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "a"})
        assert answer.ext == {"wipeTopicCount": "2"}
        answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert loads(answer.body)["queueDatas"][0]["perm"] == 4
        answer = await peer.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "a"})
        assert answer.ext == {"addTopicCount": "2"}
        await peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
        answer = await peer.ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c"})
        assert loads(answer.body) == {"topicList": ["U"]}
        queues = {"brokerName": "a", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6}
        body = json_body({"queueDatas": [queues]})
        answer = await peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "V"}, body)
        assert answer.code == ResponseCode.SUCCESS
        answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "V"})
        assert loads(answer.body)["queueDatas"][0]["readQueueNums"] == 3


@BOTH
async def test_key_value_table_and_order_topics(serialize: Serialize) -> None:
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
    async with (
        namesrv(kv_entries_max=1) as server,
        connected(joined(server.address), serialize) as peer,
    ):
        await peer.ask(RequestCode.PUT_KV_CONFIG, {**order, "value": "a:4"})
        assert loads((await register(peer, "T")).body) == {"table": {"T": "a:4"}}
        answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert loads(answer.body)["orderTopicConf"] == "a:4"
        answer = await peer.ask(RequestCode.GET_KV_CONFIG, order)
        assert answer.ext == {"value": "a:4"}
        answer = await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, order)
        assert loads(answer.body) == {"table": {"T": "a:4"}}
        answer = await peer.ask(
            RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}
        )
        assert answer.code == ResponseCode.SYSTEM_ERROR
        await peer.ask(RequestCode.DELETE_KV_CONFIG, order)
        for code in (RequestCode.GET_KV_CONFIG, RequestCode.GET_KVLIST_BY_NAMESPACE):
            assert (await peer.ask(code, order)).code == ResponseCode.QUERY_NOT_FOUND


@BOTH
async def test_unknown_codes_and_missing_fields_are_answered(serialize: Serialize) -> None:
    async with namesrv() as server, connected(joined(server.address), serialize) as peer:
        answer = await peer.ask(10)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "the field topic is missing",
        )
        answer = await peer.ask(RequestCode.REGISTER_BROKER, {**IDENTITY, "brokerId": "x"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        answer = await peer.ask(RequestCode.REGISTER_BROKER, IDENTITY, b"[[[")
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_our_broker_announces_no_address_for_slaves(tmp_path: Path) -> None:
    async with started_stack(tmp_path) as stack, connected(stack.namesrv_address) as peer:
        ext = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
        ext |= {"brokerAddr": "10.0.0.2:1", "brokerId": "1"}
        answer = await peer.ask(RequestCode.REGISTER_BROKER, ext)
        assert answer.ext == {"masterAddr": stack.broker_address}


async def test_a_heartbeat_counts_for_the_broker_that_sends_it() -> None:
    async with namesrv() as server, connected(joined(server.address)) as peer:
        await peer.ask(RequestCode.REGISTER_BROKER, IDENTITY, registration("T"))
        (live,) = server.routes._live.values()
        live.last_seen_ms = -1
        other = IDENTITY | {"brokerAddr": "10.0.0.9:10911"}
        assert (await peer.ask(RequestCode.BROKER_HEARTBEAT, other)).code == ResponseCode.SUCCESS
        assert live.last_seen_ms == -1
        assert (await peer.ask(RequestCode.BROKER_HEARTBEAT, IDENTITY)).code == ResponseCode.SUCCESS
        assert live.last_seen_ms >= 0
        without = {"clusterName": "c"}
        assert (await peer.ask(RequestCode.BROKER_HEARTBEAT, without)).code != ResponseCode.SUCCESS


async def test_tools_are_told_of_brokers_and_settings_and_change_none() -> None:
    async with namesrv() as server, connected(joined(server.address)) as peer:
        await peer.ask(RequestCode.REGISTER_BROKER, IDENTITY, registration("T"))
        answer = await peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        assert loads(answer.body) == {"topicList": ["a", "c"], "brokerAddr": "10.0.0.1:10911"}
        ext = {"clusterName": "c", "brokerName": "a"}
        answer = await peer.ask(RequestCode.GET_BROKER_MEMBER_GROUP, ext)
        group = {"cluster": "c", "brokerName": "a", "brokerAddrs": {"0": "10.0.0.1:10911"}}
        assert loads(answer.body) == {"brokerMemberGroup": group}
        other = await peer.ask(RequestCode.GET_BROKER_MEMBER_GROUP, ext | {"clusterName": "d"})
        assert loads(other.body)["brokerMemberGroup"]["brokerAddrs"] == {}
        shown = (await peer.ask(RequestCode.GET_NAMESRV_CONFIG)).body.decode().splitlines()
        assert f"listenPort={server.address[1]}" in shown
        answer = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=/tmp/x")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert (await peer.ask(RequestCode.GET_NAMESRV_CONFIG)).body.decode().splitlines() == shown
        for code in (
            RequestCode.GET_UNIT_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        ):
            assert loads((await peer.ask(code)).body) == {"topicList": []}
