"""Routes as name servers write them, and which queues a client may use."""

from __future__ import annotations

import pytest

from motelog.bridge.routes import DEFAULT_TOPIC_QUEUE_COUNT, decode_route
from motelog.core.errors import RemotingDecodeError
from motelog.core.message import MessageQueue

ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{%s:"10.0.0.1:10911",%s:"10.0.0.2:10911"},"brokerName":"b",'
    b'"cluster":"c"},{"brokerAddrs":{1:"10.0.0.3:10911"},"brokerName":"a"}],"filterServerTable":{},'
    b'"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":3,"writeQueueNums":2},'
    b'{"brokerName":"a","perm":6,"readQueueNums":1,"writeQueueNums":1}]}'
)


def queue(broker_name: str, queue_id: int) -> MessageQueue:
    return MessageQueue("T", broker_name, queue_id)


@pytest.mark.parametrize(("master", "slave"), [(b"0", b"1"), (b'"0"', b'"1"')])
def test_bare_and_quoted_broker_ids_are_read(master: bytes, slave: bytes) -> None:
    route = decode_route("T", ROUTE % (master, slave))
    assert route.address("b") == "10.0.0.1:10911"
    assert route.any_address("b", 1) == "10.0.0.2:10911"
    assert route.any_address("b", 7) == "10.0.0.1:10911"


def test_group_without_master_is_read_but_not_written() -> None:
    route = decode_route("T", ROUTE % (b"0", b"1"))
    assert route.write_queues == (queue("b", 0), queue("b", 1))
    assert route.read_queues == (queue("a", 0), queue("b", 0), queue("b", 1), queue("b", 2))
    assert route.any_address("a", 0) == "10.0.0.3:10911"
    assert route.any_address("unknown", 0) is None


def test_permissions_decide_what_queues_are_for() -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"h:1"},"brokerName":"r"},{"brokerAddrs":{"0":"h:2"},'
        b'"brokerName":"w"}],"queueDatas":[{"brokerName":"r","perm":4,"readQueueNums":1,'
        b'"writeQueueNums":1},{"brokerName":"w","perm":2,"readQueueNums":1,"writeQueueNums":1}]}'
    )
    route = decode_route("T", body)
    assert route.write_queues == (queue("w", 0),)
    assert route.read_queues == (queue("r", 0),)


def test_stand_in_has_as_many_queues_as_the_topic_will_get() -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"h:1"},"brokerName":"b"}],"queueDatas":[{"brokerName":'
        b'"b","perm":7,"readQueueNums":8,"writeQueueNums":8}]}'
    )
    route = decode_route("T", body, is_stand_in=True)
    assert len(route.write_queues) == DEFAULT_TOPIC_QUEUE_COUNT
    assert route.read_queues == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"brokerDatas":[{"brokerAddrs":{"x":"h:1"},"brokerName":"b"}]}',
        b'{"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":-1,"writeQueueNums":1}]}',
        b'{"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":1,"writeQueueNums":99999999}]}',
    ],
)
def test_damaged_route_is_a_decode_error(body: bytes) -> None:
    with pytest.raises(RemotingDecodeError):
        decode_route("T", body)
