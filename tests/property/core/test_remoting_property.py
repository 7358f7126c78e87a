"""The frame codec on generated input: round trips, every cut, hostile bytes."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.core.errors import RemotingDecodeError
from motelog.core.message import MessageQueue
from motelog.core.remoting.frames import (
    BatchItem,
    Language,
    RemotingCommand,
    Serialize,
    decode,
    decode_batch_items,
    dumps,
    encode,
    encode_batch_items,
    loads,
)

I16 = st.integers(-(2**15), 2**15 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

COMMANDS = st.builds(
    RemotingCommand,
    code=I16,
    opaque=I32,
    flag=I32,
    version=I16,
    language=st.sampled_from(Language),
    remark=st.none() | TEXT.filter(bool),
    ext=st.dictionaries(TEXT, TEXT, max_size=5),
    body=st.binary(max_size=50),
    serialize=st.sampled_from(Serialize),
)
ITEMS = st.lists(st.tuples(I32, st.binary(max_size=20), st.binary(max_size=20)), max_size=5)


@settings(max_examples=200)
@given(command=COMMANDS)
def test_command_survives_the_wire(command: RemotingCommand) -> None:
    assert decode(encode(command)) == command


@settings(max_examples=40)
@given(command=COMMANDS)
def test_every_truncated_frame_is_a_decode_error(command: RemotingCommand) -> None:
    frame = encode(command)
    for end in range(len(frame)):
        with pytest.raises(RemotingDecodeError):
            decode(frame[:end])


@settings(max_examples=60)
@given(command=COMMANDS)
def test_frame_cut_short_with_a_matching_length_still_never_fails_otherwise(
    command: RemotingCommand,
) -> None:
    frame = encode(command)
    for end in range(8, len(frame)):
        with contextlib.suppress(RemotingDecodeError):
            decode((end - 4).to_bytes(4, "big") + frame[4:end])


@settings(max_examples=200)
@given(command=COMMANDS, at=st.integers(0), byte=st.integers(0, 255))
def test_changed_byte_gives_a_command_or_a_decode_error(
    command: RemotingCommand, at: int, byte: int
) -> None:
    frame = bytearray(encode(command))
    frame[at % len(frame)] = byte
    with contextlib.suppress(RemotingDecodeError):
        assert isinstance(decode(bytes(frame)), RemotingCommand)


@settings(max_examples=200)
@given(header=st.binary(max_size=60), kind=st.integers(0, 3), body=st.binary(max_size=8))
def test_garbage_gives_a_command_or_a_decode_error(header: bytes, kind: int, body: bytes) -> None:
    total = 4 + len(header) + len(body)
    frame = total.to_bytes(4, "big") + bytes([kind, 0, 0, len(header)]) + header + body
    with contextlib.suppress(RemotingDecodeError):
        assert decode(memoryview(frame)).body == body


@given(items=ITEMS)
def test_batch_survives_the_wire(items: list[BatchItem]) -> None:
    assert decode_batch_items(encode_batch_items(items)) == items


@given(items=ITEMS, cut=st.integers(1, 20))
def test_cut_batch_is_shorter_or_a_decode_error(items: list[BatchItem], cut: int) -> None:
    data = encode_batch_items(items)
    with contextlib.suppress(RemotingDecodeError):
        decoded = decode_batch_items(data[:-cut])
        assert decoded == items[: len(decoded)]


@settings(max_examples=200)
@given(data=st.binary(max_size=80))
def test_garbage_batch_gives_items_or_a_decode_error(data: bytes) -> None:
    with contextlib.suppress(RemotingDecodeError):
        assert encode_batch_items(decode_batch_items(data))[:4] == data[:4]


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT
JSON_VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
)


@given(value=JSON_VALUES)
def test_plain_json_reads_as_the_standard_library_reads_it(value: Any) -> None:
    assert loads(json.dumps(value).encode()) == value


KEYS = TEXT | st.integers(-(2**40), 2**40) | st.builds(MessageQueue, TEXT, TEXT, I32)
DIALECT_VALUES = st.recursive(
    SCALARS.filter(lambda value: value is not None),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


def as_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else dumps(key).decode(): as_text_keys(item)
            for key, item in value.items()
        }
    return [as_text_keys(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=200)
@given(value=DIALECT_VALUES)
def test_dialect_survives_the_wire(value: Any) -> None:
    assert loads(dumps(value)) == as_text_keys(value)


@settings(max_examples=200)
@given(text=st.text(alphabet='{}[]:,"\\01a -.\n', max_size=40))
def test_hostile_json_gives_a_value_or_a_decode_error(text: str) -> None:
    with contextlib.suppress(RemotingDecodeError):
        loads(text.encode())
