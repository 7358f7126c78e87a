"""The frame codec: known frames byte for byte, bounds, the batch body."""

from __future__ import annotations

import pytest

from motelog.core.errors import RemotingDecodeError
from motelog.core.remoting.frames import (
    FRAME_BYTES_MAX,
    Language,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Serialize,
    decode,
    decode_batch_items,
    encode,
    encode_batch_items,
)

# A frame as a Java 4.9 client writes it: keys in alphabetical order, null members left out.
JAVA_HEADER = (
    b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA",'
    b'"opaque":-7,"serializeTypeCurrentRPC":"JSON","version":409}'
)


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    total = 4 + len(header) + len(body)
    return total.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def test_java_client_frame_is_read() -> None:
    command = decode(json_frame(JAVA_HEADER, b"body"))
    assert command == RemotingCommand(
        code=RequestCode.GET_ROUTEINFO_BY_TOPIC,
        opaque=-7,
        version=409,
        language=Language.JAVA,
        ext={"topic": "T"},
        body=b"body",
    )


def test_header_values_that_are_not_text_become_text() -> None:
    header = b'{"code":10,"extFields":{"a":1,"b":true,"c":null,"d":"x"},"language":"KLINGON"}'
    command = decode(json_frame(header))
    assert command.ext == {"a": "1", "b": "true", "d": "x"}
    assert command.language is Language.OTHER


def test_absent_and_null_members_have_defaults() -> None:
    command = decode(json_frame(b'{"code":0,"extFields":null,"remark":null,"flag":1}'))
    assert command.is_response
    assert not command.is_oneway
    assert command.ext == {}
    assert command.remark is None


def test_binary_header_is_written_as_the_protocol_lays_it_out() -> None:
    command = RemotingCommand(
        code=0x0136,
        opaque=5,
        flag=2,
        version=409,
        remark="r",
        ext={"k": "vw"},
        body=b"B",
        serialize=Serialize.ROCKETMQ,
    )
    header = bytes.fromhex(
        "0136 03 0199 00000005 00000002 00000001 72 00000009 0001 6b 00000002 7677"
    )
    frame = (5 + len(header)).to_bytes(4, "big") + b"\x01\x00\x00" + bytes([len(header)])
    assert encode(command) == frame + header + b"B"


def test_answer_keeps_number_and_header_form_of_the_request() -> None:
    request = RemotingCommand(11, opaque=9, serialize=Serialize.ROCKETMQ)
    answer = request.answer(ResponseCode.PULL_NOT_FOUND, "nothing")
    assert (answer.opaque, answer.serialize, answer.is_response) == (9, Serialize.ROCKETMQ, True)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0\0\0\0", id="length_only"),
        pytest.param(b"\0\0\0\4\0\0\0\0", id="no_header"),
        pytest.param(json_frame(JAVA_HEADER) + b"x", id="byte_too_many"),
        pytest.param(b"\0\0\0\4\0\xff\xff\xff", id="header_longer_than_frame"),
        pytest.param(b"\0\0\0\6\2\0\0\2{}", id="unknown_serialize_type"),
        pytest.param(json_frame(b"{}"), id="no_code"),
        pytest.param(json_frame(b'{"code":"ten"}'), id="code_is_text"),
        pytest.param(json_frame(b'{"code":4294967296}'), id="code_out_of_range"),
        pytest.param(json_frame(b'{"code":1,"extFields":{"a":[]}}'), id="nested_ext"),
        pytest.param(json_frame(b'{"code":1,"extFields":' + b"[" * 5000), id="deep"),
        pytest.param(json_frame(b'{"code":1,"remark":"\xff"}'), id="not_utf8"),
    ],
)
def test_bad_frame_is_a_decode_error(frame: bytes) -> None:
    with pytest.raises(RemotingDecodeError):
        decode(frame)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("0001 00 0000 00000000", id="fixed_part_cut"),
        pytest.param("0001 00 0000 00000000 00000000 00000005 61", id="remark_cut"),
        pytest.param("0001 00 0000 00000000 00000000 ffffffff 00000000", id="negative_remark"),
        pytest.param("0001 00 0000 00000000 00000000 00000000 7fffffff", id="ext_beyond_end"),
        pytest.param("0001 00 0000 00000000 00000000 00000000 00000000 00", id="trailing"),
        pytest.param("0001 00 0000 00000000 00000000 00000000 00000003 0001 61", id="no_value"),
        pytest.param("0001 00 0000 00000000 00000000 00000000 00000002 ffff", id="negative_key"),
    ],
)
def test_bad_binary_header_is_a_decode_error(header: str) -> None:
    data = bytes.fromhex(header)
    with pytest.raises(RemotingDecodeError):
        decode((4 + len(data)).to_bytes(4, "big") + b"\x01\0\0" + bytes([len(data)]) + data)


def test_frame_that_peers_would_refuse_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="remoting frame of"):
        encode(RemotingCommand(10, body=bytes(FRAME_BYTES_MAX)))


def test_code_that_does_not_fit_the_binary_header_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="out of range"):
        encode(RemotingCommand(200_050, serialize=Serialize.ROCKETMQ))


def test_batch_item_is_written_as_the_protocol_lays_it_out() -> None:
    data = encode_batch_items([(7, b"bo", b"prp")])
    assert data == bytes.fromhex("0000001b 00000000 00000000 00000007 00000002 626f 0003 707270")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("00", id="short"),
        pytest.param("00000016 00000000 00000000 00000000 7fffffff 0000", id="body_beyond_end"),
        pytest.param("00000016 00000000 00000000 00000000 ffffffff 0000", id="negative_body"),
        pytest.param("00000017 00000000 00000000 00000000 00000000 0000", id="total_disagrees"),
        pytest.param("00000016 00000000 00000000 00000000 00000000 ffff", id="negative_props"),
    ],
)
def test_bad_batch_is_a_decode_error(data: str) -> None:
    with pytest.raises(RemotingDecodeError):
        decode_batch_items(bytes.fromhex(data))
