"""The WebSocket frames kernel answers like its reference, however hostile frames are cut."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.net import _websocket_frames, _websocket_frames_py, websocket_frames
from motelog.core.net.codec import Decoded, Stream
from tests.support.coded_peers import client_frame, server_frames, split_at
from tests.support.websocket_streams import CODES, SIZES, answers, random_frames

KERNELS = pytest.mark.parametrize(
    "kernel", [_websocket_frames, _websocket_frames_py], ids=["kernel", "reference"]
)
chances = st.integers(0, 2**32).map(random.Random)
cuts = st.lists(st.integers(0, 1 << 20), max_size=40)


def test_the_kernel_is_in_use() -> None:
    chosen: object = websocket_frames.Frames
    assert chosen is _websocket_frames.Frames


@given(chance=chances, cuts=cuts, close_before=st.integers(-5, 10))
def test_kernel_answers_each_piece_like_the_reference(
    chance: random.Random, cuts: list[int], close_before: int
) -> None:
    pieces = split_at(random_frames(chance), cuts)
    kernel = answers(_websocket_frames.Frames(), pieces, close_before)
    assert kernel == answers(_websocket_frames_py.Frames(), pieces, close_before)


@given(stream=st.binary(max_size=300), cuts=cuts)
def test_kernel_answers_any_bytes_like_the_reference(stream: bytes, cuts: list[int]) -> None:
    pieces = split_at(stream, cuts)
    kernel = answers(_websocket_frames.Frames(), pieces)
    assert kernel == answers(_websocket_frames_py.Frames(), pieces)


@KERNELS
@pytest.mark.parametrize("size", SIZES)
def test_messages_of_every_length_come_and_go_whole(kernel: Any, size: int) -> None:
    payload = random.Random(size).randbytes(size)
    frame = client_frame(payload, mask=b"\x01\x20\x03\x40")
    assert kernel.Frames().receive(frame) == (payload, b"", Stream.OPEN)
    halves = kernel.Frames()
    first, second = (halves.receive(piece).data for piece in split_at(frame, [len(frame) // 2 + 5]))
    assert first + second == payload
    assert server_frames(kernel.Frames().send(payload)) == ([(2, payload)], b"")


@KERNELS
@pytest.mark.parametrize(
    ("size", "width"), [(0, 2), (125, 2), (0, 8), (125, 8), (126, 8), (65_535, 8)]
)
def test_length_that_has_a_shorter_form_is_malformed(kernel: Any, size: int, width: int) -> None:
    decoded = kernel.Frames().receive(client_frame(bytes(size), width=width))
    assert decoded == (b"", b"\x88\x02" + (1002).to_bytes(2, "big"), Stream.FAULTY)


@KERNELS
@pytest.mark.parametrize("code", CODES)
def test_peer_closes_with_a_code_that_it_may_send(kernel: Any, code: int) -> None:
    decoded = kernel.Frames().receive(client_frame(code.to_bytes(2, "big") + b"why", 8))
    is_right = code in (1000, 1003, 1007, 1014, 3000, 4999)
    answer = b"\x88\x02" + (code if is_right else 1002).to_bytes(2, "big")
    assert decoded == (b"", answer, Stream.ENDED if is_right else Stream.FAULTY)


@KERNELS
def test_what_comes_is_what_the_codec_hands_over(kernel: Any) -> None:
    decoded = kernel.Frames().receive(client_frame(b"data"))
    assert isinstance(decoded, Decoded)
    assert decoded.data == b"data"
    with pytest.raises(TypeError):
        kernel.Frames().receive(None)


@KERNELS
def test_many_pings_are_answered_in_one_piece(kernel: Any) -> None:
    pings = [client_frame(bytes([number]) * number, 9) for number in range(126)]
    answer = kernel.Frames().receive(b"".join(pings)).answer
    assert server_frames(answer)[0] == [(10, bytes([number]) * number) for number in range(126)]
