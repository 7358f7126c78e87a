"""The tables of needs: every request has an entry, and what those that read a body ask for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from motelog.core.acl.accounts import ADMINISTRATOR, Right, group_need, topic_need
from motelog.core.broker.needs import NEEDS
from motelog.core.errors import BrokerError, RemotingDecodeError
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.needs import NEEDS as NAMESRV_NEEDS
from motelog.core.namesrv.server import NameServer
from motelog.core.remoting.codes import RequestCode
from motelog.core.remoting.frames import RemotingCommand
from tests.support.broker_stack import json_body
from tests.support.broker_stage import BrokerStage
from tests.support.stores import opened


def read(*names: str) -> set[object]:
    return {topic_need(name, Right.SUB) for name in names}


def test_every_request_that_a_broker_takes_has_an_entry(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert NEEDS.keys() == BrokerStage(store).processors.by_code().keys()


def test_every_request_that_a_name_server_takes_has_an_entry() -> None:
    assert NAMESRV_NEEDS.keys() == NameServer(NamesrvConfig()).processors().keys()


BODIES: list[tuple[int, Any, Iterable[object]]] = [
    (
        RequestCode.HEART_BEAT,
        {
            "clientID": "c",
            "producerDataSet": [{"groupName": "P"}],
            "consumerDataSet": [
                {
                    "groupName": "G",
                    "subscriptionDataSet": [
                        {"topic": "T", "subString": "*"},
                        {"topic": "%RETRY%G", "subString": "*"},
                    ],
                },
                {"groupName": "H"},
            ],
        },
        {group_need("G"), group_need("H"), *read("T")},
    ),
    (RequestCode.LOCK_BATCH_MQ, {"consumerGroup": "G", "clientId": "c"}, {group_need("G")}),
    (RequestCode.UNLOCK_BATCH_MQ, {"consumerGroup": "G", "clientId": "c"}, {group_need("G")}),
    (RequestCode.CHECK_CLIENT_CONFIG, {"group": "G"}, {group_need("G")}),
    (
        RequestCode.QUERY_ASSIGNMENT,
        {"consumerGroup": "G", "topic": "T"},
        {group_need("G"), *read("T")},
    ),
    (
        RequestCode.BATCH_ACK_MESSAGE,
        {"acks": [{"c": "G", "t": "T"}, {"c": "H", "t": "U"}]},
        {group_need("G"), group_need("H"), *read("T", "U")},
    ),
]


@pytest.mark.parametrize(("code", "body", "needs"), BODIES)
def test_a_body_is_read_as_its_processor_reads_it(code: int, body: Any, needs: set[object]) -> None:
    assert set(NEEDS[code](RemotingCommand(code, body=json_body(body)))) == needs


@pytest.mark.parametrize("code", [code for code, _, _ in BODIES])
@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{}", b'{"acks": [1]}', b'{"acks": 1}'])
def test_a_body_that_says_nothing_is_refused(code: int, body: bytes) -> None:
    if body == b"{}" and code == RequestCode.BATCH_ACK_MESSAGE:
        return  # it acknowledges nothing
    with pytest.raises((BrokerError, RemotingDecodeError)):
        list(NEEDS[code](RemotingCommand(code, body=body)))


def needs_of(code: int, **ext: str) -> set[object]:
    return set(NEEDS[code](RemotingCommand(code, ext=ext)))


def test_a_retry_topic_is_its_group_s_whatever_group_a_request_names() -> None:
    sent = needs_of(RequestCode.SEND_MESSAGE_V2, a="mine", b="%RETRY%other")
    assert sent == {group_need("other")}
    pulled = needs_of(RequestCode.PULL_MESSAGE, consumerGroup="mine", topic="%RETRY%other")
    assert pulled == {group_need("mine"), group_need("other")}


def test_messages_in_work_may_be_in_a_retry_topic_of_pop() -> None:
    for topic in ("T", "%RETRY%G_T", "%RETRY%G+T"):
        acked = needs_of(RequestCode.ACK_MESSAGE, consumerGroup="G", topic=topic)
        assert acked == {group_need("G"), *read("T")}
    other = needs_of(RequestCode.ACK_MESSAGE, consumerGroup="G", topic="%RETRY%H_T")
    assert other == {group_need("G"), group_need("H_T")}
    pulled = needs_of(RequestCode.PULL_MESSAGE, consumerGroup="G", topic="%RETRY%G_T")
    assert pulled == {group_need("G"), group_need("G_T")}


def test_a_client_says_goodbye_for_a_consumer_group_or_a_producer_group() -> None:
    assert needs_of(RequestCode.UNREGISTER_CLIENT, consumerGroup="G") == {group_need("G")}
    assert needs_of(RequestCode.UNREGISTER_CLIENT, producerGroup="P") == set()


def test_progress_is_asked_for_one_topic_or_all_of_the_group() -> None:
    code = RequestCode.GET_CONSUME_STATS
    assert needs_of(code, consumerGroup="G", topic="T") == {group_need("G"), *read("T")}
    assert needs_of(code, consumerGroup="G") == {group_need("G")}


def test_a_name_server_tells_routes_to_those_who_use_the_topic() -> None:
    route = NAMESRV_NEEDS[RequestCode.GET_ROUTEINFO_BY_TOPIC]

    def needs(topic: str) -> set[object]:
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        return set(route(RemotingCommand(code, ext={"topic": topic})))

    assert needs("T") == {topic_need("T", Right.EITHER)}
    assert needs("%RETRY%G") == {group_need("G")}
    assert needs("TBW102") == set()
    others = [needs for code, needs in NAMESRV_NEEDS.items() if needs is not route]
    assert all(set(needs(RemotingCommand(0))) == {ADMINISTRATOR} for needs in others)
