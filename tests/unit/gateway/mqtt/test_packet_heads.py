"""Heads of packets: what they say, and that it does not depend on how the stream is cut."""

from __future__ import annotations

import pytest

from motelog.gateway.mqtt.packet_heads import HEAD_BYTES_MAX, PacketHead, PacketHeads
from motelog.gateway.mqtt.varint import encode_varint


def packet(first_byte: int, body: bytes) -> bytes:
    return bytes([first_byte]) + encode_varint(len(body)) + body


SECRET = b"secret"
PACKETS = [
    (packet(0x33, b"\0\1t\0\7\3\x23\0\5" + SECRET), "PUBLISH"),
    (packet(0x30, b"\0\0\3\x23\0\5" + SECRET * 20_000), "PUBLISH"),
    (packet(0x40, b"\0\7"), "PUBACK"),
    (packet(0x50, b"\0\7\x97\0"), "PUBREC"),
    (packet(0x82, b"\0\1\2\x0b\1\0\2a+\1\0\1#\0"), "SUBSCRIBE"),
    (packet(0x90, b"\0\1\0\1\x87"), "SUBACK"),
    (packet(0xA2, b"\0\2\0\0\1#"), "UNSUBSCRIBE"),
    (b"\xc0\0", "PINGREQ"),
    (packet(0xF0, b"\x18\x0a\x15\0\1x\x16\0\6" + SECRET), "AUTH"),
    (packet(0xE0, b""), "DISCONNECT"),
]
STREAM = b"".join(data for data, _ in PACKETS)


def read(*pieces: bytes) -> list[PacketHead]:
    heads = PacketHeads(5, from_server=False)
    return [head for piece in pieces for head in heads.feed(piece)]


def test_heads_say_what_a_packet_is_and_no_payload() -> None:
    found = read(STREAM)
    assert [(head.type, head.packet_bytes) for head in found] == [
        (name, len(data)) for data, name in PACKETS
    ]
    assert "secret" not in repr(found)
    first, large = found[:2]
    assert (first.topic, first.qos, first.retain, first.dup) == ("t", 1, True, False)
    assert (first.packet_id, first.topic_alias) == (7, 5)
    assert (large.topic, large.topic_alias) == ("", 5)
    assert [head.reason_codes for head in found[2:4]] == [[0], [0x97]]
    assert found[4].filters == ["a+", "#"]
    assert found[5].reason_codes == [1, 0x87]
    assert found[6].filters == ["#"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_heads_do_not_depend_on_the_cut(size: int) -> None:
    assert read(*(STREAM[i : i + size] for i in range(0, len(STREAM), size))) == read(STREAM)


def test_older_versions_have_no_properties() -> None:
    heads = PacketHeads(4, from_server=True)
    (one,) = heads.feed(packet(0x32, b"\0\1t\0\7\3\x23\0\5"))
    assert (one.topic, one.packet_id, one.topic_alias) == ("t", 7, None)


def test_what_was_there_before_is_skipped() -> None:
    heads = PacketHeads(5, from_server=True)
    heads.skip(5)
    assert heads.feed(b"abc") == []
    assert [head.type for head in heads.feed(b"de\xd0\0")] == ["PINGRESP"]


def test_long_and_broken_names_are_shown_as_far_as_they_go() -> None:
    long = packet(0x30, (3000).to_bytes(2, "big") + b"t" * 3000 + b"\0")
    (one,) = read(long)
    assert one.topic is not None
    assert one.topic.endswith("t...")
    assert len(one.topic) < HEAD_BYTES_MAX
    assert one.packet_bytes == len(long)
    (broken,) = read(packet(0x30, b"\0\2\xff\xfe\0"))
    assert broken.topic == "\ufffd\ufffd"
    assert [head.type for head in read(packet(0x82, b"\0"), b"\0\0")] == ["SUBSCRIBE", "reserved"]
