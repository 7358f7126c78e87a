"""The recall handle: as RocketMQ writes it, and what is none."""

from __future__ import annotations

import base64

import pytest

from motelog.core.remoting.recall_handle import RecallHandle, decode_handle

HANDLE = RecallHandle("T", "broker-a", 1763700000000, "AC1100021A6F18B4AAC2951F4A680000")
# As RecallMessageHandle.HandleV1.buildHandle of RocketMQ 5.3.3 returns it.
TEXT = "djEgVCBicm9rZXItYSAxNzYzNzAwMDAwMDAwIEFDMTEwMDAyMUE2RjE4QjRBQUMyOTUxRjRBNjgwMDAw"


def test_a_handle_is_written_as_rocketmq_does() -> None:
    assert HANDLE.encode() == TEXT
    assert decode_handle(TEXT) == HANDLE
    padded = HANDLE._replace(topic="To").encode()
    assert padded is not None
    assert padded.endswith("=")
    assert decode_handle(padded.rstrip("=")).topic == "To"


def test_a_part_with_a_space_makes_no_handle() -> None:
    assert HANDLE._replace(unique_key="a b").encode() is None
    assert HANDLE._replace(unique_key="").encode() is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"v1",
        b"v2 T b 1 k",
        b"v1 T b 1",
        b"v1 T b x k",
        b"v1 T b -1 k",
        b"v1 T b 1 k more",
        b"v1 T b 1 \xff",
        b"v1 T b 9999999999999999999 k",
    ],
)
def test_anything_else_is_no_handle(raw: bytes) -> None:
    with pytest.raises(ValueError, match="recall handle is invalid"):
        decode_handle(base64.urlsafe_b64encode(raw).decode())


@pytest.mark.parametrize("text", ["", "=", "####", "é", "a", TEXT + "!"])
def test_what_is_no_base64_is_no_handle(text: str) -> None:
    with pytest.raises(ValueError, match="recall handle is invalid"):
        decode_handle(text)
