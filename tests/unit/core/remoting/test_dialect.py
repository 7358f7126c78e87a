"""The fastjson dialect: what Java writes is read, what Java needs is written."""

from __future__ import annotations

from typing import Any

import pytest

from motelog.core.errors import RemotingDecodeError
from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import DEPTH_MAX, dumps, loads

QUEUE_KEY = '{"brokerName":"b","queueId":0,"topic":"T"}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"brokerAddrs":{0:"a",1:"b"}}', {"brokerAddrs": {"0": "a", "1": "b"}}),
        (b'{"brokerAddrs":{"0":"a"}}', {"brokerAddrs": {"0": "a"}}),
        (b'{"T@G":{0:12, -1 : 7}} ', {"T@G": {"0": 12, "-1": 7}}),
        (
            b'{"offsetTable":{{"brokerName":"b", "queueId":0,"topic":"T"}:{"maxOffset":3}}}',
            {"offsetTable": {QUEUE_KEY: {"maxOffset": 3}}},
        ),
        (b'{0:{1:{2:"{0:1}"}}}', {"0": {"1": {"2": "{0:1}"}}}),
        (b'[{0:"\\"}"},{}]', [{"0": '"}'}, {}]),
        (b"{0:9223372036854775807}", {"0": 9223372036854775807}),
    ],
)
def test_dialect_is_read(text: bytes, value: Any) -> None:
    assert loads(text) == value


def test_object_key_is_json_in_turn() -> None:
    (key,) = loads(b"{{0:{}}:1}")
    assert loads(key.encode()) == {"0": {}}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"a":1}x',
        b"{0:1}{}",
        b"[0:1]",
        b"{0 1}",
        b"{0:1",
        b"{1.5:2}",
        b"{[1]:2}",
        b"{{{1:2}:3}:4}",
        b'{{"a" 1}:2}',
        b"{{:1}",
        b"}",
        b'{0:"',
        b'{0:"\xff"}',
        b"{0:NaN}",
        b"{0:1e999}",
    ],
)
def test_anything_else_is_a_decode_error(text: bytes) -> None:
    with pytest.raises(RemotingDecodeError):
        loads(text)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"{0:", b'["]",'])
def test_depth_is_limited_in_both_dialects(opening: bytes) -> None:
    closing = b"]" if opening[:1] == b"[" else b"}"
    assert loads(opening * DEPTH_MAX + b"1" + closing * DEPTH_MAX)
    with pytest.raises(RemotingDecodeError, match="nests deeper"):
        loads(opening * (DEPTH_MAX + 1) + b"1" + closing * (DEPTH_MAX + 1))


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert len(loads(b"[" + b",".join([b'{"]":[]}'] * 500) + b"]")) == 500


def test_map_keys_are_written_as_java_tools_need_them() -> None:
    value = {"offsetTable": {MessageQueue("T", "b", 0): 5}, "T@G": {3: [True, "é"]}, "gone": None}
    text = dumps(value)
    assert text.decode() == '{"offsetTable":{' + QUEUE_KEY + ':5},"T@G":{3:[true,"é"]}}'
    assert loads(text) == {"offsetTable": {QUEUE_KEY: 5}, "T@G": {"3": [True, "é"]}}
