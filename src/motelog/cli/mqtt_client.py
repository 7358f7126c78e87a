"""A small MQTT client on trio for the command line: QoS 0 and 1, MQTT 3.1.1 and 5.0.

Owns: one connection, its packet identifiers, the publish window. Must not touch: the terminal;
bytes of packets (gateway.mqtt). Faults of the server end the connection with MqttClientError.
"""

from __future__ import annotations

import array
import math
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import trio

from motelog.core.errors import MotelogError
from motelog.gateway.errors import GatewayError
from motelog.gateway.mqtt.connect import decode_connack, encode_connect
from motelog.gateway.mqtt.disconnect import PINGREQ, decode_disconnect, encode_disconnect
from motelog.gateway.mqtt.frames import encode_publish, split
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    Connect,
    PacketType,
    Properties,
    ReasonCode,
    Subscribe,
    SubscribeEntry,
)
from motelog.gateway.mqtt.subscribe import decode_suback, encode_subscribe

CONNECT_WITHIN_S: Final = 10.0
ANSWER_WITHIN_S: Final = 30.0
RECEIVE_BYTES: Final = 65_536
PACKET_BYTES_MAX: Final = 4_194_304
WINDOW_MAX: Final = 64
RECEIVED_MAX: Final = 1000  # messages that wait for the caller; then we stop reading
FAILURE: Final = 0x80  # reason codes from here on are failures

# MQTT 3.1.1 table 3.1.
RETURN_CODES: Final = {
    1: "unacceptable protocol version",
    2: "client identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}


class MqttClientError(MotelogError):
    """The connection could not be made, was refused, or has ended."""


@dataclass(frozen=True, slots=True)
class Received:
    """One application message that the server sent."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class MqttClient:
    """One connection. Its state changes between awaits only, so several tasks may publish.

    ``acknowledged`` and ``refused`` count QoS 1 publishes; ``refusals`` keeps one text per reason.
    """

    def __init__(self, stream: trio.abc.Stream, version: int) -> None:
        self._stream = stream
        self._version = version
        self._send_lock = trio.Lock()
        self._is_leaving = False
        self._packet_id = 0
        self._waiting: dict[int, trio.Event] = {}
        self._answers: dict[int, bytes] = {}
        self._window = trio.Semaphore(WINDOW_MAX)
        self._send_received, self.received = trio.open_memory_channel[Received](RECEIVED_MAX)
        self.acknowledged = 0
        self.refused = 0
        self.refusals: dict[int, str] = {}

    async def publish(self, topic: str, payload: bytes, *, qos: int = 0) -> None:
        """Send one message. At QoS 1, wait while too many are unacknowledged."""
        packet, number_at = encode_publish(
            topic.encode(), payload, 0x30 | qos << 1, self._version, None
        )
        if qos == 0:
            await self._send(packet)
            return
        await self._window.acquire()
        packet_id = self._next_packet_id()
        self._waiting[packet_id] = trio.Event()
        numbered = bytearray(packet)
        numbered[number_at : number_at + 2] = packet_id.to_bytes(2, "big")
        await self._send(bytes(numbered))

    async def settle(self) -> None:
        """Wait until every QoS 1 publish has been answered."""
        with _deadline(ANSWER_WITHIN_S, "the server did not acknowledge"):
            for event in list(self._waiting.values()):
                await event.wait()

    async def subscribe(
        self, topic_filters: list[str], *, qos: int = 0, properties: Properties = NO_PROPERTIES
    ) -> list[int]:
        """Return the reason code of each filter; below 0x80 it is the granted QoS."""
        packet_id = self._next_packet_id()
        event = self._waiting[packet_id] = trio.Event()
        entries = tuple(SubscribeEntry(topic_filter, qos) for topic_filter in topic_filters)
        packet = Subscribe(packet_id, entries, properties)
        await self._send(encode_subscribe(self._version, packet))
        with _deadline(ANSWER_WITHIN_S, "the server did not answer SUBSCRIBE"):
            await event.wait()
        answer = decode_suback(self._version, self._answers.pop(packet_id))
        return list(answer.reason_codes)

    async def _leave(self) -> None:
        self._is_leaving = True
        with suppress(MqttClientError):  # the connection has ended already
            await self._send(encode_disconnect(self._version))

    def _limit_window(self, receive_maximum: int) -> None:
        self._window = trio.Semaphore(min(WINDOW_MAX, receive_maximum))

    def _next_packet_id(self) -> int:
        self._packet_id = self._packet_id % 65535 + 1
        while self._packet_id in self._waiting:
            self._packet_id = self._packet_id % 65535 + 1
        return self._packet_id

    async def _send(self, data: bytes) -> None:
        async with self._send_lock:
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
                raise MqttClientError("the server closed the connection") from exc

    async def _read(self, buffer: bytearray) -> None:
        """Handle packets until cancelled or the connection ends, which is an error."""
        while True:
            for frame in _split(_cut(buffer), self._version):
                await self._handle(frame)
            try:
                buffer += await self._receive()
            except MqttClientError:
                if self._is_leaving:
                    return  # the server may close as soon as it has our DISCONNECT
                raise

    async def _receive(self) -> bytes:
        try:
            data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
        except trio.BrokenResourceError as exc:
            raise MqttClientError("the connection broke") from exc
        if not data:
            raise MqttClientError("the server closed the connection")
        return data

    async def _handle(self, frame: _Frame) -> None:
        _, first_byte, topic, payload, packet_id, extra = frame
        match first_byte >> 4:
            case PacketType.PUBLISH:
                assert topic is not None
                qos = first_byte >> 1 & 3
                if qos:
                    # Acknowledged before the caller has it: the command line keeps no state.
                    await self._send(b"\x40\x02" + packet_id.to_bytes(2, "big"))
                message = Received(
                    topic.decode(errors="replace"), bytes(payload or b""), qos, bool(first_byte & 1)
                )
                await self._send_received.send(message)
            case PacketType.PUBACK:
                self._acknowledge(packet_id, extra if isinstance(extra, int) else 0)
            case PacketType.SUBACK:
                body = bytes(payload or b"")
                packet_id = int.from_bytes(body[:2], "big")
                self._answers[packet_id] = body
                self._done(packet_id)
            case PacketType.DISCONNECT:
                answer = decode_disconnect(
                    self._version, first_byte, bytes(payload or b""), from_server=True
                )
                text = reason_text(answer.reason_code, answer.properties)
                raise MqttClientError(f"the server disconnected us: {text}")
            case PacketType.PINGRESP:
                pass
            case other:
                raise MqttClientError(f"the server sent an unexpected packet (type {other})")

    def _acknowledge(self, packet_id: int, reason_code: int) -> None:
        if packet_id not in self._waiting:
            return
        if reason_code < FAILURE:
            self.acknowledged += 1
        else:
            self.refused += 1
            self.refusals.setdefault(reason_code, reason_text(reason_code, Properties()))
        self._window.release()
        self._done(packet_id)

    def _done(self, packet_id: int) -> None:
        event = self._waiting.pop(packet_id, None)
        if event is not None:
            event.set()


@asynccontextmanager
async def connect(
    address: tuple[str, int], *, version: int = 5, client_id: str = "", keep_alive_s: int = 60
) -> AsyncIterator[MqttClient]:
    """Connect, and disconnect at the end of the block; MqttClientError says what went wrong."""
    host, port = address
    # A name of our own, since MQTT 3.1.1 servers may refuse an empty one.
    client_id = client_id or f"motelog-{os.getpid()}-{os.urandom(4).hex()}"
    with _deadline(CONNECT_WITHIN_S, f"no answer from {host}:{port}"):
        try:
            stream = await trio.open_tcp_stream(host, port)
        except OSError as exc:
            raise MqttClientError(f"cannot connect to {host}:{port}: {_os_reason(exc)}") from exc
    async with stream:
        client = MqttClient(stream, version)
        with _deadline(CONNECT_WITHIN_S, f"{host}:{port} did not answer CONNECT"):
            await client._send(encode_connect(Connect(version, True, keep_alive_s, client_id)))
            buffer = bytearray()
            await _await_connack(client, buffer)
        try:
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                nursery.start_soon(_keep_alive, client, keep_alive_s)
                nursery.start_soon(client._read, buffer)
                yield client
                await client._leave()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise _most_telling(group) from group


def reason_text(reason_code: int, properties: Properties) -> str:
    """Return a reason code in words, with what the server says about it."""
    try:
        name = ReasonCode(reason_code).name.replace("_", " ").lower()
    except ValueError:
        name = "unknown reason"
    text = f"{name} (0x{reason_code:02x})"
    return f"{text}: {properties.reason_string}" if properties.reason_string else text


# connection, first byte, topic, payload or body, packet identifier, extra (gateway.mqtt.frames)
_Frame = tuple[int, int, bytes | None, bytes | None, int, bytes | int | None]


async def _await_connack(client: MqttClient, buffer: bytearray) -> None:
    version = client._version
    while (end := _frame_end(buffer, 0)) is None:
        try:
            buffer += await client._receive()
        except MqttClientError as exc:
            raise MqttClientError(f"CONNECT was not answered: {exc}; is this MQTT?") from exc
    frame = bytes(buffer[:end])
    del buffer[:end]
    if frame[0] >> 4 != PacketType.CONNACK:
        raise MqttClientError("the server did not answer CONNECT with CONNACK: is this MQTT?")
    try:
        answer = decode_connack(version, frame[_header_bytes(frame) :])
    except GatewayError as exc:
        raise MqttClientError(f"the server's CONNACK is malformed: {exc}") from exc
    if answer.reason_code:
        text = RETURN_CODES.get(answer.reason_code, str(answer.reason_code))
        if version == 5:
            text = reason_text(answer.reason_code, answer.properties)
        raise MqttClientError(f"the server refused the connection: {text}")
    if answer.properties.receive_maximum is not None:
        client._limit_window(answer.properties.receive_maximum)


async def _keep_alive(client: MqttClient, keep_alive_s: int) -> None:
    while True:
        await trio.sleep(keep_alive_s / 2 if keep_alive_s else math.inf)
        await client._send(PINGREQ)


def _cut(buffer: bytearray) -> tuple[bytes, list[tuple[int, int]]]:
    """Take the complete packets off ``buffer``; return their bytes and where each lies."""
    places: list[tuple[int, int]] = []
    begin = 0
    while (end := _frame_end(buffer, begin)) is not None:
        places.append((begin, end))
        begin = end
    data = bytes(buffer[:begin])
    del buffer[:begin]
    return data, places


def _split(cut: tuple[bytes, list[tuple[int, int]]], version: int) -> Iterator[_Frame]:
    data, places = cut
    if not places:
        return
    index = array.array("I")
    for begin, end in places:
        index.extend((0, version, begin, end))
    for frame in split(data, index):
        if frame[1] == 0:
            raise MqttClientError(f"the server sent a malformed packet (0x{frame[4]:02x})")
        yield frame


def _frame_end(buffer: bytes | bytearray, begin: int) -> int | None:
    """Return where the packet that begins at ``begin`` ends, or None if it is not complete."""
    length = 0
    for i in range(4):
        at = begin + 1 + i
        if at >= len(buffer):
            return None
        length |= (buffer[at] & 0x7F) << 7 * i
        if buffer[at] < 0x80:
            if length > PACKET_BYTES_MAX:
                raise MqttClientError(f"the server sent a packet of {length} bytes")
            end = at + 1 + length
            return end if end <= len(buffer) else None
    raise MqttClientError("the server sent a malformed packet length: is this MQTT?")


def _header_bytes(frame: bytes) -> int:
    at = 1
    while frame[at] & 0x80:
        at += 1
    return at + 1


@contextmanager
def _deadline(seconds: float, message: str) -> Iterator[None]:
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError as exc:
        raise MqttClientError(f"{message} within {seconds:g} s") from exc


def _most_telling(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what the caller should see: its own error, else the reader's."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        ours = [one for one in error.exceptions if not isinstance(one, MqttClientError)]
        error = (ours or list(error.exceptions))[0]
    return error


def _os_reason(exc: OSError) -> str:
    # trio tells the attempts at all addresses of a name in __cause__, as a group if several.
    cause: BaseException | None = exc.__cause__
    while cause is not None:
        exc = cause if isinstance(cause, OSError) else exc
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__
    return os.strerror(exc.errno) if exc.errno else str(exc)
