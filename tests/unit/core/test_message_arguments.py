"""What a message takes and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from motelog.core.message import Message


def test_one_key_is_one_key() -> None:
    assert Message("T", b"", keys="k1").keys == ("k1",)
    assert Message("T", b"", keys=["k1", "k2"]).keys == ("k1", "k2")
    assert Message("T", b"").keys == ()


def test_buffers_become_bytes_and_properties_a_copy() -> None:
    properties = {"a": "b"}
    message = Message("T", bytearray(b"x"), properties=properties)
    properties["a"] = "c"
    assert (message.body, message.properties) == (b"x", {"a": "b"})
    assert message == Message("T", b"x", properties={"a": "b"})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"body": "21.5"}, r"body is text, .* write text.encode\(\)"),
        ({"body": 21}, "body must be bytes, not int"),
        ({"body": None}, "body must be bytes, not NoneType"),
        ({"topic": b"T"}, "topic must be text, not bytes"),
        ({"tags": 1}, "tags must be text, not int"),
        ({"keys": [1]}, "a key must be text, not int"),
        ({"properties": {"degrees": 21}}, r"property 'degrees' is int, .* write str\(\)"),
        ({"properties": {1: "a"}}, "the name of a property must be text, not int"),
    ],
)
def test_wrong_types_are_a_sentence_where_the_message_is_made(
    arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        Message(**{"topic": "T", "body": b"", **arguments})
