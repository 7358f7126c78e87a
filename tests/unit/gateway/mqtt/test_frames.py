"""What ``split`` promises beyond single packets: batches, connections before CONNECT, buffers."""

from __future__ import annotations

import array
from typing import Any

import pytest

from motelog.gateway.mqtt import _frames, _frames_py
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect
from tests.support.mqtt import batch

CONNECT = encode_connect(Connect(version=5, clean_start=True, keep_alive_s=0, client_id="c"))
PUBLISH = bytes.fromhex("30 06 0003 612f62 21")
PING = b"\xc0\x00"
KERNELS = pytest.mark.parametrize("kernel", [_frames, _frames_py], ids=["kernel", "reference"])


@KERNELS
def test_what_follows_connect_in_its_batch_stays_unparsed(kernel: Any) -> None:
    data, index = batch([(1, 0, CONNECT), (2, 0, CONNECT), (1, 0, PUBLISH), (1, 0, b"\xf7\x00")])
    assert kernel.split(data, index)[2:] == [
        (1, 0x30, None, PUBLISH[2:], 0, None),
        (1, 0xF7, None, b"", 0, None),
    ]


@KERNELS
def test_packet_before_connect_is_a_protocol_error(kernel: Any) -> None:
    data, index = batch([(1, 0, CONNECT), (2, 0, PING), (2, 0, PUBLISH), (2, 0, CONNECT)])
    assert [frame[:5] for frame in kernel.split(data, index)[1:]] == [
        (2, 0, None, None, 0x82),
        (2, 0, None, None, 0x82),
        (2, 0x10, None, CONNECT[2:], 0),
    ]


@KERNELS
def test_connect_with_flags_is_handed_over_to_be_judged_with_its_version(kernel: Any) -> None:
    data, index = batch([(1, 0, b"\x1f" + CONNECT[1:]), (1, 0, PING)])
    assert kernel.split(data, index) == [
        (1, 0x1F, None, CONNECT[2:], 0, None),
        (1, 0xC0, None, b"", 0, None),
    ]


@KERNELS
def test_one_malformed_packet_harms_no_other(kernel: Any) -> None:
    data, index = batch([(1, 4, PUBLISH), (2, 4, b"\x36\x00"), (1, 4, PING), (2, 4, PUBLISH)])
    assert [frame[:2] for frame in kernel.split(data, index)] == [
        (1, 0x30),
        (2, 0),
        (1, 0xC0),
        (2, 0x30),
    ]


@KERNELS
@pytest.mark.parametrize(
    "index",
    [
        array.array("I", [1, 4, 0, 9]),
        array.array("I", [1, 4, 3, 2]),
        array.array("I", [1, 4, 9, 9]),
        array.array("I", [1, 4, 0, 2**32 - 1]),
        array.array("I", [1, 2, 0, 8]),
        array.array("I", [1, 4, 0, 8, 1]),
        b"\0" * 15,
    ],
    ids=["end", "reversed", "empty but outside", "far outside", "version", "not four", "odd"],
)
def test_wrong_index_is_refused_as_a_whole(kernel: Any, index: Any) -> None:
    with pytest.raises(ValueError, match=r"index|outside|version"):
        kernel.split(PUBLISH, index)


@KERNELS
def test_empty_batch(kernel: Any) -> None:
    assert kernel.split(b"", b"") == []


@KERNELS
def test_empty_frame_is_malformed(kernel: Any) -> None:
    assert kernel.split(PUBLISH, array.array("I", [1, 4, 8, 8])) == [(1, 0, None, None, 0x81, 0)]


@KERNELS
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview], ids=["bytes", "array", "view"])
def test_any_buffer_is_taken_at_any_alignment(kernel: Any, wrap: Any) -> None:
    data, index = batch([(1, 4, PUBLISH)])
    assert kernel.split(wrap(data), memoryview(b"." + index)[1:]) == kernel.split(data, index)
    assert kernel.split_one(0x30, wrap(PUBLISH[2:]), 4, 1) == kernel.split(data, index)[0]


@KERNELS
def test_results_do_not_depend_on_the_buffer_afterwards(kernel: Any) -> None:
    data, index = batch([(1, 4, PUBLISH), (2, 4, PING)])
    turn = bytearray(data)
    frames = kernel.split(turn, index)
    turn[:] = bytes(len(turn))
    assert frames == kernel.split(data, index)


@KERNELS
@pytest.mark.parametrize(
    "arguments",
    [
        (b"t", b"", 0x30, 2, None),
        (b"t", b"", 0x40, 4, None),
        (b"t", b"", 0x36, 4, None),
        (b"t" * 65536, b"", 0x30, 4, None),
        (b"t", b"", 0x30, 4, b"\x01\x00"),
    ],
    ids=["version", "type", "QoS 3", "topic", "v5 properties"],
)
def test_publish_that_cannot_be_written_is_refused(kernel: Any, arguments: Any) -> None:
    with pytest.raises(ValueError, match=r"version|begin|topic|properties|body"):
        kernel.encode_publish(*arguments)


@KERNELS
@pytest.mark.parametrize("payload_bytes", [268_435_456, 268_435_455 - 2])
def test_publish_beyond_the_protocols_limit_is_refused(kernel: Any, payload_bytes: int) -> None:
    with pytest.raises(ValueError, match="body"):
        kernel.encode_publish(b"t", bytes(payload_bytes), 0x30, 4, None)


@KERNELS
def test_one_frame_needs_a_version_and_a_byte(kernel: Any) -> None:
    with pytest.raises(ValueError, match="version"):
        kernel.split_one(0x30, b"", 0, 1)
    with pytest.raises(ValueError, match="byte"):
        kernel.split_one(256, b"", 4, 1)
