"""The frames kernel answers like its reference, on legal, damaged and hostile batches."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.gateway.mqtt import _frames, _frames_py, frames
from tests.support.mqtt import batch, body_of
from tests.support.mqtt_strategies import nearly_packets, packets

CONNECTIONS = st.integers(0, 3)


def test_the_kernel_is_in_use() -> None:
    assert frames.split is _frames.split


def answer(split: Any, *arguments: Any) -> Any:
    try:
        return split(*arguments)
    except ValueError:
        return ValueError


@settings(max_examples=200)
@given(drawn=st.lists(st.tuples(CONNECTIONS, nearly_packets()), max_size=8))
def test_kernel_splits_and_counts_damaged_frames_like_the_reference(
    drawn: list[tuple[int, tuple[int, bytes]]],
) -> None:
    data, index = batch((connection, *packet) for connection, packet in drawn)
    counts, expected = array("Q", bytes(2048)), array("Q", bytes(2048))
    assert _frames.split(data, index, counts) == _frames_py.split(data, index, expected)
    assert counts == expected


ACKS = st.sampled_from(
    [b"\x40\x02\0\1", b"\x40\x02\1\2", b"\x40\x02\0\0", b"\x40\x03\0\3\x10", b"\x40\x02\0"]
)


@settings(max_examples=200)
@given(
    drawn=st.lists(
        st.tuples(CONNECTIONS, st.tuples(st.sampled_from([0, 4, 5, 5]), ACKS) | nearly_packets()),
        max_size=8,
    )
)
def test_kernel_joins_acknowledgements_like_the_reference(
    drawn: list[tuple[int, tuple[int, bytes]]],
) -> None:
    data, index = batch((connection, *packet) for connection, packet in drawn)
    counts, expected = array("Q", bytes(2048)), array("Q", bytes(2048))
    joined = _frames.split(data, index, counts, True)
    assert joined == _frames_py.split(data, index, expected, True)
    assert counts == expected
    apart = [
        (*frame[:4], packet_id)
        for frame in joined
        for packet_id in (frame[5] if isinstance(frame[5], list) else [frame[4]])
    ]
    assert apart == [frame[:5] for frame in _frames.split(data, index)]


@pytest.mark.parametrize("kernel", [_frames, _frames_py], ids=["kernel", "reference"])
def test_pubacks_of_one_connection_in_a_row_are_one(kernel: Any) -> None:
    one, two, pubrec = b"\x40\x02\0\1", b"\x40\x03\0\2\x10", b"\x50\x02\0\3"
    packets = [(1, 4, one), (1, 5, two), (2, 4, one), (1, 4, one), (1, 4, pubrec), (1, 4, one)]
    assert kernel.split(*batch(packets), None, True) == [
        (1, 0x40, None, None, 1, [1, 2]),
        (2, 0x40, None, None, 1, [1]),
        (1, 0x40, None, None, 1, [1]),
        (1, 0x50, None, None, 3, 0),
        (1, 0x40, None, None, 1, [1]),
    ]


@pytest.mark.parametrize("kernel", [_frames, _frames_py], ids=["kernel", "reference"])
def test_frames_are_counted_by_their_first_byte(kernel: Any) -> None:
    counts = array("Q", bytes(2048))
    data, index = batch([(0, 4, b"\xc0\x00"), (1, 4, b"\xc0\x00"), (1, 4, b"\xe0\x01")])
    kernel.split(data, index, counts)
    assert counts[0xC0] == 2
    assert sum(counts) == 2, "the last one has a wrong length"
    for wrong in (bytearray(2040), bytearray(2056)):
        with pytest.raises(ValueError, match="256 u64"):
            kernel.split(data, index, wrong)
    with pytest.raises(BufferError):
        kernel.split(data, index, bytes(2048))


@settings(max_examples=200)
@given(data=st.binary(max_size=60), index=st.lists(st.integers(0, 70), max_size=12))
def test_kernel_treats_a_hostile_index_like_the_reference(data: bytes, index: list[int]) -> None:
    packed = struct.pack(f"={len(index)}I", *index)
    assert answer(_frames.split, data, packed) == answer(_frames_py.split, data, packed)


@settings(max_examples=200)
@given(first_byte=st.integers(0, 255), body=st.binary(max_size=40), version=st.integers(0, 6))
def test_kernel_splits_one_like_the_reference(first_byte: int, body: bytes, version: int) -> None:
    arguments = (first_byte, body, version, 9)
    assert answer(_frames.split_one, *arguments) == answer(_frames_py.split_one, *arguments)


@settings(max_examples=200)
@given(topic=st.binary(max_size=24) | st.text(max_size=24).map(str.encode))
def test_kernel_judges_topics_like_the_reference(topic: bytes) -> None:
    body = len(topic).to_bytes(2, "big") + topic + b"payload"
    assert _frames.split_one(0x30, body, 4, 0) == _frames_py.split_one(0x30, body, 4, 0)


@settings(max_examples=100)
@given(packet=packets())
def test_every_cut_of_a_legal_packet_is_refused_or_raw(packet: tuple[int, bytes]) -> None:
    version, whole = packet
    for end in range(len(whole)):
        data, index = batch([(1, version, whole[:end])])
        kernel = _frames.split(data, index)
        assert kernel == _frames_py.split(data, index)
        assert kernel[0][1] == 0, "the remaining length is that of the whole packet"


@settings(max_examples=100)
@given(
    topic=st.binary(max_size=300),
    payload=st.binary(max_size=300),
    first_byte=st.integers(0x20, 0x4F),
    version=st.integers(2, 6),
    properties=st.none() | st.binary(max_size=200),
)
def test_kernel_encodes_like_the_reference(
    topic: bytes, payload: bytes, first_byte: int, version: int, properties: bytes | None
) -> None:
    arguments = (topic, payload, first_byte, version, properties)
    expected = answer(_frames_py.encode_publish, *arguments)
    assert answer(_frames.encode_publish, *arguments) == expected


PUBLISHES = st.tuples(
    st.binary(max_size=200),
    st.binary(max_size=200),
    st.sampled_from([0x30, 0x32, 0x34, 0x3B, 0x31]) | st.integers(0x2F, 0x40),
    st.integers(0, 65535) | st.sampled_from([-1, 65536]),
    st.none() | st.binary(max_size=140),
)


@settings(max_examples=200)
@given(messages=st.lists(PUBLISHES, max_size=6), version=st.integers(2, 6))
def test_kernel_encodes_many_like_the_reference(messages: list[Any], version: int) -> None:
    expected = answer(_frames_py.encode_publishes, messages, version)
    assert answer(_frames.encode_publishes, messages, version) == expected


@pytest.mark.parametrize("kernel", [_frames, _frames_py], ids=["kernel", "reference"])
def test_many_in_one_piece_are_those_one_by_one(kernel: Any) -> None:
    messages = [
        (b"a/b", b"x" * 200, 0x32, 0xABCD, b"\x01\x01"),
        (b"c", b"", 0x30, 7, None),
        (b"d", b"y", 0x3D, 65535, None),
    ]
    packets = kernel.encode_publishes(messages, 5)
    whole = b""
    for topic, payload, first_byte, packet_id, block in messages:
        packet, at = kernel.encode_publish(topic, payload, first_byte, 5, block)
        whole += packet[:at] + packet_id.to_bytes(2, "big") + packet[at + 2 :] if at else packet
    assert packets == whole
    assert kernel.encode_publishes([], 4) == b""


@pytest.mark.parametrize(
    "message",
    [(), (b"t", b"", 0x30, 0), (b"t", b"", 0x30, True, None), (None, b"", 0x30, 0, None), "five5"],
)
def test_kernel_takes_only_what_it_can_look_at_twice(message: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        _frames.encode_publishes([message], 4)


@settings(max_examples=200)
@given(packet=packets())
def test_split_and_split_one_agree(packet: tuple[int, bytes]) -> None:
    version, whole = packet
    data, index = batch([(5, version, whole)])
    (frame,) = _frames.split(data, index)
    assert frame == _frames.split_one(whole[0], body_of(whole), version, 5)
    assert frame[1] == whole[0]


@pytest.mark.parametrize("kernel", [_frames, _frames_py], ids=["kernel", "reference"])
@pytest.mark.parametrize("bytes_of_length", [1, 2, 3, 4])
def test_long_packets_are_split(kernel: Any, bytes_of_length: int) -> None:
    payload = bytes(128 ** (bytes_of_length - 1))
    packet, number_at = kernel.encode_publish(b"a/b", payload, 0x32, 4, None)
    assert number_at == 1 + bytes_of_length + 2 + 3
    packet = packet[:number_at] + b"\x00\x07" + packet[number_at + 2 :]
    data, index = batch([(0, 4, b"\xc0\x00"), (1, 4, packet)])
    assert kernel.split(data, index) == [
        (0, 0xC0, None, b"", 0, None),
        (1, 0x32, b"a/b", payload, 7, None),
    ]
