"""The command line's MQTT client against a server that is scripted in memory."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from motelog.cli.mqtt_client import MqttClientError, connect
from motelog.gateway.mqtt.acks import encode_ack
from motelog.gateway.mqtt.connect import encode_connack
from motelog.gateway.mqtt.disconnect import encode_disconnect
from motelog.gateway.mqtt.frames import encode_publish
from motelog.gateway.mqtt.packet_types import (
    Connect,
    PacketType,
    PropertyId,
    ReasonCode,
    SubscribeEntry,
)
from motelog.gateway.mqtt.properties import reason_string
from motelog.gateway.mqtt.subscribe import encode_suback

Script = Callable[[trio.abc.Stream], Awaitable[None]]
ADDRESS = ("127.0.0.1", 1883)


Serve = Callable[[Script], None]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> Serve:
    """Answer the next connection with a script, which gets the server's end of the stream."""

    def start(script: Script) -> None:
        ours, theirs = trio.testing.memory_stream_pair()

        async def open_stream(
            host: str, port: int, *, local_address: str | None
        ) -> trio.abc.Stream:
            return theirs

        monkeypatch.setattr(trio, "open_tcp_stream", open_stream)
        nursery.start_soon(script, ours)

    return start


def sends(*packets: bytes) -> Script:
    async def script(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        for packet in packets:
            await stream.send_all(packet)
        await trio.sleep_forever()

    return script


async def error_of(serve: Serve, script: Script, version: int = 5) -> str:
    """Return what connecting and then waiting for a message ends with."""
    serve(script)
    with pytest.raises(MqttClientError) as caught:
        async with connect(ADDRESS, Connect(version, True, 0, "")) as client:
            await client.receive()
    return str(caught.value)


@pytest.mark.parametrize(
    ("version", "packet", "text"),
    [
        (4, encode_connack(4, ReasonCode.NOT_AUTHORIZED), "not authorized"),
        (5, encode_connack(5, ReasonCode.SERVER_BUSY), "server busy (0x89)"),
        (
            5,
            encode_connack(5, ReasonCode.BANNED, False, {PropertyId.REASON_STRING: "go away"}),
            "banned (0x8a): go away",
        ),
    ],
)
async def test_refused_connection_says_why(
    serve: Serve, version: int, packet: bytes, text: str
) -> None:
    error = await error_of(serve, sends(packet), version)
    assert error == f"the server refused the connection: {text}"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100), "is this MQTT"),
        (b"\x20\xff\xff\xff\xff\x01", "is this MQTT"),
        (b"\x20\x02\x07\x00", "CONNACK is malformed"),
        (b"\x20\xff\xff\xff\x7f", "packet of 268435455 bytes"),
    ],
)
async def test_answer_that_is_no_connack(serve: Serve, data: bytes, text: str) -> None:
    assert text in await error_of(serve, sends(data))


async def test_name_that_is_not_known_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_stream(host: str, port: int, *, local_address: str | None) -> trio.abc.Stream:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(trio, "open_tcp_stream", open_stream)
    with pytest.raises(MqttClientError, match=r"nowhere:1883: Name or service not known$"):
        async with connect(("nowhere", 1883)):
            raise AssertionError("it is connected")


async def test_server_that_says_nothing(
    serve: Serve, autojump_clock: trio.testing.MockClock
) -> None:
    error = await error_of(serve, sends())
    assert error == "127.0.0.1:1883 did not answer CONNECT within 10 s"


@pytest.mark.parametrize(
    ("packet", "text"),
    [
        (
            encode_disconnect(5, ReasonCode.SESSION_TAKEN_OVER),
            "the server disconnected us: session taken over (0x8e)",
        ),
        (b"\x36\x05\x00\x01a\x00\x01", "the server sent a malformed packet"),
        (b"\x10\x00", "unexpected packet (type 1)"),
    ],
)
async def test_what_ends_a_running_connection(serve: Serve, packet: bytes, text: str) -> None:
    error = await error_of(serve, sends(encode_connack(5, 0), packet))
    assert text in error


async def test_server_that_closes_the_connection(serve: Serve) -> None:
    async def script(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(encode_connack(5, 0))
        await stream.aclose()

    assert "closed the connection" in await error_of(serve, script)


async def test_error_of_the_caller_comes_out_as_itself(serve: Serve) -> None:
    serve(sends(encode_connack(5, 0)))
    with pytest.raises(RuntimeError, match="mine"):
        async with connect(ADDRESS):
            raise RuntimeError("mine")


async def test_publishes_are_counted_by_their_answers(serve: Serve) -> None:
    async def script(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(encode_connack(5, 0))
        data = b""
        while data.count(b"topic") < 3:
            data += await stream.receive_some()
        await stream.send_all(b"\x40\x02\x00\x02" + b"\x40\x03\x00\x01\x10")
        refused = encode_ack(PacketType.PUBACK, 5, 3, 0x97, reason_string("disk full"))
        await stream.send_all(refused)
        await trio.sleep_forever()

    serve(script)
    async with connect(ADDRESS) as client:
        for _ in range(3):
            await client.publish("topic", b"x", qos=1)
        await client.settle()
    assert (client.acknowledged, client.refused) == (2, 1)
    assert list(client.refusals.values()) == ["quota exceeded (0x97): disk full"]


async def test_publisher_waits_when_the_servers_receive_maximum_is_used_up(
    serve: Serve, autojump_clock: trio.testing.MockClock
) -> None:
    connack = encode_connack(5, 0, False, {PropertyId.RECEIVE_MAXIMUM: 2})
    serve(sends(connack))
    async with connect(ADDRESS) as client:
        published = 0
        with trio.move_on_after(5):
            for _ in range(3):
                await client.publish("topic", b"x", qos=1)
                published += 1
    assert published == 2


async def test_messages_arrive_however_the_stream_is_cut_and_qos_1_is_acknowledged(
    serve: Serve,
) -> None:
    first, _ = encode_publish(b"a/b", b"zero", 0x30, 5, None)
    second, number_at = encode_publish(b"a/c", b"one", 0x32, 5, None)
    numbered = second[:number_at] + b"\x00\x07" + second[number_at + 2 :]
    acknowledged = trio.Event()

    async def script(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(encode_connack(5, 0))
        request = await stream.receive_some()
        assert request[0] == 0x82
        answer = encode_suback(5, int.from_bytes(request[2:4], "big"), [1, 0x87])
        for byte in answer + first + numbered:
            await stream.send_all(bytes((byte,)))
        assert await stream.receive_some() == b"\x40\x02\x00\x07"
        acknowledged.set()

    serve(script)
    async with connect(ADDRESS) as client:
        answer = await client.subscribe([SubscribeEntry("a/+", 1), SubscribeEntry("secret", 1)])
        assert answer.reason_codes == (1, 0x87)
        messages = [await client.receive() for _ in range(2)]
        await acknowledged.wait()
    assert [(m.topic, m.payload, m.qos) for m in messages] == [
        ("a/b", b"zero", 0),
        ("a/c", b"one", 1),
    ]


async def test_message_nobody_has_taken_is_not_acknowledged(
    serve: Serve, autojump_clock: trio.testing.MockClock
) -> None:
    first, number_at = encode_publish(b"a", b"taken", 0x32, 5, None)
    second, _ = encode_publish(b"a", b"left", 0x32, 5, None)
    answers = bytearray()

    async def script(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(encode_connack(5, 0))
        for packet_id, packet in ((b"\x00\x01", first), (b"\x00\x02", second)):
            await stream.send_all(packet[:number_at] + packet_id + packet[number_at + 2 :])
        while data := await stream.receive_some():
            answers.extend(data)

    serve(script)
    async with connect(ADDRESS) as client:
        await trio.sleep(1)  # both are here
        assert (await client.receive()).payload == b"taken"
    await trio.testing.wait_all_tasks_blocked()
    assert bytes(answers) == b"\x40\x02\x00\x01" + b"\xe0\x00"


async def test_qos_2_both_ways_hands_out_once(serve: Serve) -> None:
    packet, number_at = encode_publish(b"a", b"once", 0x34, 4, None)
    numbered = packet[:number_at] + b"\x00\x09" + packet[number_at + 2 :]

    async def script(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(encode_connack(4, 0))
        assert (await stream.receive_some())[0] == 0x34
        await stream.send_all(b"\x50\x02\x00\x01")  # PUBREC
        assert await stream.receive_some() == b"\x62\x02\x00\x01"  # PUBREL
        await stream.send_all(b"\x70\x02\x00\x01" + numbered)  # PUBCOMP
        assert await stream.receive_some() == b"\x50\x02\x00\x09"
        await stream.send_all(b"\x3c" + numbered[1:])  # again: our PUBREC was lost
        assert await stream.receive_some() == b"\x50\x02\x00\x09"
        await stream.send_all(b"\x62\x02\x00\x09" + b"\x30\x04\x00\x01ax")
        await trio.sleep_forever()

    serve(script)
    async with connect(ADDRESS, Connect(4, True, 0, "")) as client:
        await client.publish("a", b"x", qos=2)
        await client.settle()
        assert client.acknowledged == 1
        received = [(await client.receive()).payload for _ in range(2)]
    assert received == [b"once", b"x"]
