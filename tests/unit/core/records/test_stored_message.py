"""What a message that was read says of itself, and that it stays as it was read."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest

from motelog.core.message import encode_properties
from motelog.core.records.append import QueueTail
from motelog.core.records.decode import StoredMessage, body_bytes, decode_messages
from tests.support.stores import encoded, message


def stored(body: bytes = b"", **properties: str) -> StoredMessage:
    host = ("127.0.0.1", 1)
    return StoredMessage("room", 2, 7, 0, body, properties, 0, 0, 0, host, 0, host, 0, 0, 0)


def read(body: bytes = b"body", **properties: str) -> StoredMessage:
    text = encode_properties(properties)
    (found,) = decode_messages(encoded(message(QueueTail(b"T", 0, 7), body, properties=text)))
    return found


def test_mqtt_topic_is_the_one_subscribers_know() -> None:
    assert stored(mqttRealTopic="room/dev1/temp", TAGS="dev1").mqtt_topic == "room/dev1/temp"
    assert stored(TAGS="dev1").mqtt_topic == "room/dev1"
    assert stored().mqtt_topic == "room"
    assert stored(TAGS="dev1").device == "dev1"
    assert stored().device is None


def test_body_as_json() -> None:
    assert stored(b'{"value": 21.5}').json() == {"value": 21.5}
    for body in (b"21.5 C", b"\xff", b""):
        with pytest.raises(ValueError, match="message at room, queue 2, offset 7 is not JSON"):
            stored(body).json()


def test_single_properties_are_those_of_the_dictionary() -> None:
    one = read(TAGS="dev1", KEYS="k1 k2", UNIQ_KEY="id", site="\u00e4")
    before = (one.tags, one.keys, one.message_id, one.value_of("site"), one.value_of("none"))
    assert before == ("dev1", ("k1", "k2"), "id", "\u00e4", None)
    assert one.properties == {"TAGS": "dev1", "KEYS": "k1 k2", "UNIQ_KEY": "id", "site": "\u00e4"}
    one.properties["TAGS"] = "dev2"
    assert (one.tags, one.properties["TAGS"]) == ("dev2", "dev2")
    assert (one.keys, one.message_id) == (("k1", "k2"), "id")


def test_a_message_is_not_writable_and_has_no_hash() -> None:
    one: Any = read()
    for name in (*StoredMessage.FIELDS, "other"):
        with pytest.raises(AttributeError):
            setattr(one, name, None)
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_copies_are_equal_and_a_replaced_field_is_another() -> None:
    one = read(b"body", TAGS="dev1")
    assert read(b"body", TAGS="dev1") == one
    assert (
        pickle.loads(pickle.dumps(one)) == copy.copy(one) == one == StoredMessage(**one.as_dict())
    )
    other = one.replace(topic="U", reconsume_times=3)
    assert (other.topic, other.reconsume_times, other.tags, one.topic) == ("U", 3, "dev1", "T")
    assert other != one
    assert one != one.as_dict()
    assert repr(one).startswith("StoredMessage(topic='T', queue_id=0, queue_offset=7,")
    with pytest.raises(TypeError):
        one.replace(colour="red")


def test_the_collector_does_not_look_at_messages_of_the_kernel() -> None:
    assert not gc.is_tracked(read())


def test_a_message_of_the_kernel_that_was_never_made_is_empty() -> None:
    one = StoredMessage.__new__(StoredMessage)
    assert (one.body, one.properties, one.tags) == (b"", {}, None)
    assert body_bytes([one, read(b"12345")]) == 5
