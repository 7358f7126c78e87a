"""A name server and brokers that fit into a test: real sockets, memory for messages, chosen faults.

Owns: FakeCluster, FakeBroker. Must not touch: core.broker, core.namesrv; a client that only agreed
with our own servers would not be tested. Answers follow the wire as Apache RocketMQ 4.9 speaks it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio

from motelog.core.message import encode_properties
from motelog.core.records.append import QueueTail, encode_batch
from motelog.core.remoting.frames import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode,
    decode_batch_items,
    dumps,
    encode,
)

STORE_HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
#: When all messages were stored.
STORED_MS = 2000

# Answers a request in place of the broker; None lets the broker answer, NO_ANSWER nobody.
Script = Callable[[RemotingCommand], RemotingCommand | None]
NO_ANSWER = RemotingCommand(-1)
Answer = Callable[[RemotingCommand], Awaitable[RemotingCommand | None]]


class FakeBroker:
    """Keeps messages per queue; ``script`` may answer in its place."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        self.script: Script = lambda request: None
        self.requests: list[RemotingCommand] = []
        #: Topics that administration has created, with their queue counts.
        self.topics: dict[str, int] = {}
        self.records: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.min_offset = 0
        self.committed: dict[tuple[str, str, int], int] = {}
        self._grown = trio.Event()
        self._asked = trio.Event()

    async def received(self, code: int) -> RemotingCommand:
        """Return the first request with ``code``, waiting for it if need be."""
        while True:
            for request in self.requests:
                if request.code == code:
                    return request
            await self._asked.wait()

    def store(
        self, topic: str, queue_id: int, body: bytes, properties: bytes = b"", sys_flag: int = 0
    ) -> int:
        """Append one message and return its queue offset."""
        records = self.records[topic, queue_id]
        tail = QueueTail(topic.encode(), queue_id, len(records))
        message = (tail, body, properties, 0, 1000, STORE_HOST, sys_flag, 0, 0, 0)
        target = bytearray(200 + len(body) + len(properties) + len(topic))
        _, end = encode_batch(
            target, 0, len(target), 0, [message], 0, STORED_MS, STORE_HOST, [], None
        )
        records.append(bytes(target[:end]))
        self._grown.set()
        self._grown = trio.Event()
        return len(records) - 1

    async def answer(self, request: RemotingCommand) -> RemotingCommand | None:
        self.requests.append(request)
        self._asked.set()
        self._asked = trio.Event()
        scripted = self.script(request)
        if scripted is not None:
            return None if scripted is NO_ANSWER else scripted
        ext = request.ext
        match request.code:
            case RequestCode.SEND_MESSAGE_V2:
                return self._send(request, [(request.body, ext["i"].encode())])
            case RequestCode.SEND_BATCH_MESSAGE:
                items = decode_batch_items(request.body)
                return self._send(request, [(body, properties) for _, body, properties in items])
            case RequestCode.PULL_MESSAGE:
                return await self._pull(request)
            case RequestCode.QUERY_CONSUMER_OFFSET:
                key = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
                if key not in self.committed:
                    return request.answer(ResponseCode.QUERY_NOT_FOUND)
                return request.answer(ext={"offset": str(self.committed[key])})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                key = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
                self.committed[key] = int(ext["commitOffset"])
                return request.answer()
            case RequestCode.GET_MIN_OFFSET:
                return request.answer(ext={"offset": str(self.min_offset)})
            case RequestCode.GET_MAX_OFFSET:
                count = len(self.records[ext["topic"], int(ext["queueId"])])
                return request.answer(ext={"offset": str(count)})
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                count = len(self.records[ext["topic"], int(ext["queueId"])])
                is_later = int(ext["timestamp"]) > STORED_MS
                return request.answer(ext={"offset": str(count if is_later else self.min_offset)})
            case RequestCode.UPDATE_AND_CREATE_TOPIC:
                self.topics[ext["topic"]] = int(ext["writeQueueNums"])
                return request.answer()
            case RequestCode.HEART_BEAT | RequestCode.UNREGISTER_CLIENT:
                return request.answer()
        return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not in the fake")

    def _send(self, request: RemotingCommand, bodies: list[tuple[bytes, bytes]]) -> RemotingCommand:
        topic, queue_id = request.ext["b"], int(request.ext["e"])
        flag = int(request.ext["f"])
        offsets = [self.store(topic, queue_id, body, text, flag) for body, text in bodies]
        ext = {"msgId": "0" * 32, "queueId": str(queue_id), "queueOffset": str(offsets[0])}
        return request.answer(ext=ext)

    async def _pull(self, request: RemotingCommand) -> RemotingCommand:
        ext = request.ext
        records = self.records[ext["topic"], int(ext["queueId"])]
        begin = int(ext["queueOffset"])
        if begin == len(records) and int(ext["sysFlag"]) & 2:
            with trio.move_on_after(int(ext["suspendTimeoutMillis"]) / 1000):
                while begin == len(records):
                    await self._grown.wait()
        found = records[begin : begin + int(ext["maxMsgNums"])]
        code, next_offset = ResponseCode.SUCCESS, begin + len(found)
        if begin < self.min_offset:
            code, next_offset, found = ResponseCode.PULL_OFFSET_MOVED, self.min_offset, []
        elif not found:
            code = ResponseCode.PULL_NOT_FOUND
        answer_ext = {
            "nextBeginOffset": str(next_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(len(records)),
            "suggestWhichBrokerId": "0",
        }
        return request.answer(code, ext=answer_ext, body=b"".join(found))


class FakeCluster:
    """Brokers, and a name server that knows their topics; ``topics`` maps name -> queue count."""

    def __init__(self, *broker_names: str) -> None:
        self.brokers = [FakeBroker(name) for name in broker_names]
        self.topics: dict[str, int] = {}
        #: Of topics that have been changed: how many queues may be read and how many written to.
        self.open_queues: dict[str, tuple[int, int]] = {}
        #: Addresses of slaves by the names of their brokers.
        self.slaves: dict[str, str] = {}
        #: Whether the name server knows the brokers themselves.
        self.has_masters = True
        self.namesrv = ""
        self.quotes_keys = False
        self.script: Script = lambda request: None
        #: The name server's table of values by (namespace, key).
        self.values: dict[tuple[str, str], str] = {}

    async def answer(self, request: RemotingCommand) -> RemotingCommand | None:
        scripted = self.script(request)
        if scripted is not None:
            return None if scripted is NO_ANSWER else scripted
        ext = request.ext
        match request.code:
            case RequestCode.PUT_KV_CONFIG:
                self.values[ext["namespace"], ext["key"]] = ext["value"]
                return request.answer()
            case RequestCode.GET_KV_CONFIG:
                value = self.values.get((ext["namespace"], ext["key"]))
                if value is None:
                    return request.answer(ResponseCode.QUERY_NOT_FOUND, "no such entry")
                return request.answer(ext={"value": value})
            case RequestCode.GET_KVLIST_BY_NAMESPACE:
                table = {k: v for (name, k), v in self.values.items() if name == ext["namespace"]}
                if not table:
                    return request.answer(ResponseCode.QUERY_NOT_FOUND, "no such namespace")
                return request.answer(body=dumps({"table": table}))
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return self._route(request)
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                created = [name for broker in self.brokers for name in broker.topics]
                return request.answer(body=dumps({"topicList": [*self.topics, *created]}))
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                brokers = {
                    b.name: {
                        "brokerAddrs": self._members(b), "brokerName": b.name, "cluster": "c"
                    }
                    for b in self.brokers
                }  # fmt: skip
                names = [broker.name for broker in self.brokers]
                info = {"brokerAddrTable": brokers, "clusterAddrTable": {"c": names}}
                return request.answer(body=dumps(info))
        return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not in the fake")

    def _members(self, broker: FakeBroker) -> dict[int | str, str]:
        master: int | str = "0" if self.quotes_keys else 0
        slave = self.slaves.get(broker.name)
        known = {master: broker.address} if self.has_masters else {}
        return known | ({1: slave} if slave else {})

    def _route(self, request: RemotingCommand) -> RemotingCommand:
        topic = request.ext["topic"]
        counts = {
            broker.name: broker.topics.get(topic, self.topics.get(topic)) for broker in self.brokers
        }
        brokers = [broker for broker in self.brokers if counts[broker.name] is not None]
        if not brokers:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, "no such topic")

        def queue_data(broker: FakeBroker) -> dict[str, int | str | None]:
            count = counts[broker.name]
            read, write = self.open_queues.get(topic, (count, count))
            return {
                "brokerName": broker.name,
                "perm": 6 if write else 4,
                "readQueueNums": read,
                "writeQueueNums": write or read,
                "topicSysFlag": 0,
            }

        route = {
            "brokerDatas": [
                {"brokerAddrs": self._members(b), "brokerName": b.name, "cluster": "c"}
                for b in brokers
            ],
            "filterServerTable": {},
            "queueDatas": [queue_data(b) for b in brokers],
        }
        return request.answer(body=dumps(route))


@asynccontextmanager
async def fake_cluster(*broker_names: str, queue_count: int = 2) -> AsyncIterator[FakeCluster]:
    """A running cluster with topic "T" of ``queue_count`` queues on each broker."""
    cluster = FakeCluster(*broker_names)
    cluster.topics["T"] = queue_count
    async with trio.open_nursery() as nursery:
        cluster.namesrv = await serve(nursery, cluster.answer)
        for broker in cluster.brokers:
            # Looked up at each request: a test may have put another one in its place.
            broker.address = await serve(nursery, partial(_answer_of, broker))
        yield cluster
        nursery.cancel_scope.cancel()


async def _answer_of(broker: FakeBroker, request: RemotingCommand) -> RemotingCommand | None:
    return await broker.answer(request)


async def serve(nursery: trio.Nursery, answer: Answer) -> str:
    """Answer remoting requests on a free port of loopback; return the address."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def handle(stream: trio.SocketStream) -> None:
        sending = trio.Lock()

        async def handle_one(frame: bytes) -> None:
            reply = await answer(decode(frame))
            if reply is not None:
                async with sending:
                    await stream.send_all(encode(reply))

        buffer = b""
        try:
            async with stream, trio.open_nursery() as requests:
                async for data in stream:
                    buffer += data
                    while len(buffer) >= 4:
                        end = 4 + int.from_bytes(buffer[:4], "big")
                        if len(buffer) < end:
                            break
                        requests.start_soon(handle_one, buffer[:end])
                        buffer = buffer[end:]
                requests.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    await nursery.start(trio.serve_listeners, handle, [listener])
    host, port = listener.socket.getsockname()
    return f"{host}:{port}"


def properties(**pairs: str) -> bytes:
    """Return a property text."""
    return encode_properties(pairs)
