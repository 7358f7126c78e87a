"""What a broker's own permission lets clients do, and what name servers are told of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from motelog.core.broker.registration import encode_registration
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.topic_config import TopicConfig
from tests.support.broker_stack import pull_ext, send_ext
from tests.support.broker_stage import broker_stage

OK, DENIED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION
PLAIN = "UNIQ_KEY\x01K\x02"


@pytest.mark.parametrize(
    ("permission", "send", "send_ordered", "pull", "back"),
    [(6, OK, OK, OK, OK), (4, OK, DENIED, OK, DENIED), (2, OK, OK, DENIED, OK)],
)
@pytest.mark.parametrize("properties", ["", PLAIN], ids=["decoded", "plain"])
def test_a_broker_does_what_it_may(
    tmp_path: Path,
    permission: int,
    send: ResponseCode,
    send_ordered: ResponseCode,
    pull: ResponseCode,
    back: ResponseCode,
    properties: str,
) -> None:
    with broker_stage(tmp_path, {"permission": permission}) as stage:
        ordered = TopicConfig(topic_name="O", read_queue_nums=1, write_queue_nums=1, order=True)
        stage.tables.topics.put(ordered, 0)
        code = RequestCode.SEND_MESSAGE_V2
        # Producers that have an old route are served; those of ordered topics never change it.
        assert stage.code(code, send_ext("A", properties=properties), b"x") == send
        assert stage.code(code, send_ext("O", properties=properties), b"x") == send_ordered
        assert stage.code(RequestCode.PULL_MESSAGE, pull_ext("A", 0)) == pull
        again = {"group": "G", "offset": 0}
        assert stage.code(RequestCode.CONSUMER_SEND_MSG_BACK, again) == back


@pytest.mark.parametrize(
    ("permission", "expected"),
    [(6, {"A": 6, "R": 4}), (4, {"A": 4, "R": 4}), (2, {"A": 2, "R": 0})],
)
def test_name_servers_are_told_what_both_allow(
    tmp_path: Path, permission: int, expected: dict[str, int]
) -> None:
    with broker_stage(tmp_path) as stage:
        stage.topic("R", 1, perm=4)
        body = json.loads(encode_registration(stage.tables.topics, permission))
        table = body["topicConfigSerializeWrapper"]["topicConfigTable"]
        assert {name: table[name]["perm"] for name in expected} == expected
        assert stage.tables.topics.table()["A"].perm == 6
