"""A small MQTT client on trio for the command line: all three QoS, MQTT 3.1, 3.1.1 and 5.0.

Owns: one connection, its packet identifiers, the publish window. Must not touch: the terminal;
bytes of packets (gateway.mqtt). Faults of the server end the connection with MqttClientError.
Invariants: a message is acknowledged when the caller takes it, never before. So messages of a
persistent session that the caller has not taken are sent again to the next connection.
"""

from __future__ import annotations

import math
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import msgspec
import trio

from motelog.cli.output import CliError
from motelog.cli.status import IS_IT_RUNNING, Status
from motelog.core.net.tls import tls_fault
from motelog.core.remoting.tls import handshake_fault
from motelog.gateway.mqtt.acks import decode_ack, encode_ack
from motelog.gateway.mqtt.connect import decode_connack, encode_connect
from motelog.gateway.mqtt.disconnect import PINGREQ, decode_disconnect, encode_disconnect
from motelog.gateway.mqtt.errors import GatewayError
from motelog.gateway.mqtt.frames import encode_publish, split_one
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    Ack,
    Connect,
    PacketType,
    Properties,
    ReasonCode,
    Subscribe,
    SubscribeEntry,
    SubscriptionAck,
    Unsubscribe,
)
from motelog.gateway.mqtt.properties import decode_properties, encode_properties
from motelog.gateway.mqtt.subscribe import decode_suback, encode_subscribe, encode_unsubscribe

CONNECT_WITHIN_S: Final = 10.0
TRUST: Final = "name the authority of the server's certificate with --cafile FILE"
PERHAPS_TLS: Final = "if the server requires TLS, add --cafile FILE or --tls-use-os-certs"
ANSWER_WITHIN_S: Final = 30.0
RECEIVE_BYTES: Final = 65_536
PACKET_BYTES_MAX: Final = 4_194_304
WINDOW_MAX: Final = 64
RECEIVED_MAX: Final = 1000  # messages waiting for the caller; beyond that we stop reading
FAILURE: Final = 0x80  # reason codes from here on are failures
KEEP_ALIVE_S: Final = 60
WANTED: Final = Connect(version=5, clean_start=True, keep_alive_s=KEEP_ALIVE_S, client_id="")

# MQTT 3.1.1 table 3.1.
RETURN_CODES: Final = {
    1: "unacceptable protocol version",
    2: "client identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}


class MqttClientError(CliError):
    """The connection failed, was refused, or has ended."""

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        status: Status = Status.UNREACHABLE,
    ) -> None:
        super().__init__(message, remedy=remedy, status=status)


@dataclass(frozen=True, slots=True)
class Received:
    """One application message that the server sent; ``packet_id`` is 0 at QoS 0."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


class MqttClient:
    """One connection. Its state changes between awaits only, so several tasks may publish.

    ``acknowledged`` and ``refused`` count publishes of QoS 1 and 2; ``refusals`` keeps one text per
    reason. ``session_present`` says whether the server had a session for the client identifier.
    """

    def __init__(
        self, stream: trio.abc.Stream, version: int, trace: Callable[[str], None] | None = None
    ) -> None:
        self._stream = stream
        self._version = version
        self._trace = trace
        self._send_lock = trio.Lock()
        self._is_leaving = False
        self._packet_id = 0
        self._waiting: dict[int, trio.Event] = {}
        self._answers: dict[int, bytes] = {}
        self._window = trio.Semaphore(WINDOW_MAX)
        self._send_received, self._received = trio.open_memory_channel[Received](RECEIVED_MAX)
        # Identifiers of QoS 2 messages that have arrived and are not yet released.
        self._unreleased: set[int] = set()
        self.session_present = False
        self.acknowledged = 0
        self.refused = 0
        self.refusals: dict[int, str] = {}

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Send one message. Above QoS 0, wait while too many are unacknowledged."""
        block = encode_properties(properties.as_dict()) or None
        first_byte = PacketType.PUBLISH << 4 | qos << 1 | retain
        packet, number_at = encode_publish(
            topic.encode(), payload, first_byte, self._version, block
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
        """Wait until every publish of QoS 1 and 2 has been answered."""
        with _deadline(ANSWER_WITHIN_S, "the server did not acknowledge"):
            for event in list(self._waiting.values()):
                await event.wait()

    async def subscribe(
        self, entries: Sequence[SubscribeEntry], *, properties: Properties = NO_PROPERTIES
    ) -> SubscriptionAck:
        """Return (reason code, reason) of each filter; a code below 0x80 is the granted QoS."""
        packet_id = self._next_packet_id()
        packet = Subscribe(packet_id, tuple(entries), properties)
        body = await self._ask(packet_id, encode_subscribe(self._version, packet), "SUBSCRIBE")
        return decode_suback(self._version, body)

    async def unsubscribe(self, topic_filters: Sequence[str]) -> None:
        """Return when the server has answered."""
        packet_id = self._next_packet_id()
        packet = Unsubscribe(packet_id, tuple(topic_filters))
        await self._ask(packet_id, encode_unsubscribe(self._version, packet), "UNSUBSCRIBE")

    async def receive(self) -> Received:
        """Return the next message and acknowledge it."""
        message = await self._received.receive()
        if message.qos == 1:
            await self._send_ack(PacketType.PUBACK, message.packet_id)
        elif message.qos == 2:
            await self._send_ack(PacketType.PUBREC, message.packet_id)
        return message

    async def _ask(self, packet_id: int, packet: bytes, name: str) -> bytes:
        """Return the body of the packet that answers this one."""
        event = self._waiting[packet_id] = trio.Event()
        await self._send(packet)
        with _deadline(ANSWER_WITHIN_S, f"the server did not answer {name}"):
            await event.wait()
        return self._answers.pop(packet_id)

    async def _send_ack(self, packet_type: PacketType, packet_id: int) -> None:
        await self._send(encode_ack(packet_type, self._version, packet_id))

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
            self._tell("sends", data)
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
                raise MqttClientError("the server closed the connection") from exc

    async def _read(self, buffer: bytearray) -> None:
        """Handle packets until cancelled or the connection ends, which is an error."""
        while True:
            while (end := _frame_end(buffer, 0)) is not None:
                frame = bytes(buffer[:end])
                del buffer[:end]
                self._tell("received", frame)
                try:
                    await self._handle(frame[0], frame[_header_bytes(frame) :])
                except GatewayError as exc:
                    raise MqttClientError(f"the server sent a malformed packet: {exc}") from exc
            try:
                buffer += await self._receive()
            except MqttClientError:
                if self._is_leaving:
                    return  # the server may close as soon as it has received our DISCONNECT
                raise

    async def _receive(self) -> bytes:
        try:
            data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
        except trio.BrokenResourceError as exc:
            # With TLS 1.3 a server rejects our certificate only now.
            why = f": {tls_fault(exc.__cause__)}" if isinstance(exc.__cause__, ssl.SSLError) else ""
            raise MqttClientError(f"the connection broke{why}") from exc
        if not data:
            raise MqttClientError("the server closed the connection")
        return data

    async def _handle(self, first_byte: int, body: bytes) -> None:
        match first_byte >> 4:
            case PacketType.PUBLISH:
                await self._take(first_byte, body)
            case PacketType.PUBACK | PacketType.PUBREC | PacketType.PUBCOMP as answered:
                ack = decode_ack(self._version, first_byte, body)
                if answered == PacketType.PUBREC and ack.reason_code < FAILURE:
                    await self._send_ack(PacketType.PUBREL, ack.packet_id)
                else:
                    self._acknowledge(ack)
            case PacketType.PUBREL:
                packet_id = decode_ack(self._version, first_byte, body).packet_id
                self._unreleased.discard(packet_id)
                await self._send_ack(PacketType.PUBCOMP, packet_id)
            case PacketType.SUBACK | PacketType.UNSUBACK:
                packet_id = int.from_bytes(body[:2], "big")
                self._answers[packet_id] = body
                self._done(packet_id)
            case PacketType.DISCONNECT:
                answer = decode_disconnect(self._version, first_byte, body, from_server=True)
                text = reason_text(answer.reason_code, answer.properties)
                raise MqttClientError(f"the server disconnected us: {text}", status=Status.REFUSED)
            case PacketType.PINGRESP:
                pass
            case other:
                raise MqttClientError(f"the server sent an unexpected packet (type {other})")

    def _tell(self, doing: str, packet: bytes) -> None:
        if self._trace is not None:
            self._trace(f"{doing} {_packet_text(packet)}")

    async def _take(self, first_byte: int, body: bytes) -> None:
        """Keep a PUBLISH for the caller, unless it repeats a QoS 2 message that we have."""
        _, kind, topic, payload, packet_id, block = split_one(first_byte, body, self._version, 0)
        if kind == 0:
            raise MqttClientError(f"the server sent a malformed packet (0x{packet_id:02x})")
        qos = first_byte >> 1 & 3
        if qos == 2:
            if packet_id in self._unreleased:
                await self._send_ack(PacketType.PUBREC, packet_id)
                return
            self._unreleased.add(packet_id)
        properties = decode_properties(block, PacketType.PUBLISH, from_server=True)
        message = Received(
            topic.decode(), bytes(payload), qos, bool(first_byte & 1), packet_id, properties
        )
        await self._send_received.send(message)

    def _acknowledge(self, ack: Ack) -> None:
        if ack.packet_id not in self._waiting:
            return
        if ack.reason_code < FAILURE:
            self.acknowledged += 1
        else:
            self.refused += 1
            text = reason_text(ack.reason_code, ack.properties)
            self.refusals.setdefault(ack.reason_code, text)
        self._window.release()
        self._done(ack.packet_id)

    def _done(self, packet_id: int) -> None:
        event = self._waiting.pop(packet_id, None)
        if event is not None:
            event.set()


@asynccontextmanager
async def connect(
    address: tuple[str, int],
    wanted: Connect = WANTED,
    *,
    bind: str | None = None,
    tls: ssl.SSLContext | None = None,
    trace: Callable[[str], None] | None = None,
) -> AsyncIterator[MqttClient]:
    """Connect, and disconnect at the end of the block; MqttClientError says what went wrong.

    ``bind`` is the local address to connect from; ``trace`` is called for each packet.
    """
    host, port = address
    if not wanted.client_id:
        # We make up a name, since MQTT 3 servers may refuse an empty one; 3.1 allows 23 characters.
        wanted = msgspec.structs.replace(wanted, client_id=f"motelog-{os.urandom(6).hex()}")
    with _deadline(CONNECT_WITHIN_S, f"no answer from {host}:{port}"):
        stream = await _open_stream(host, port, bind, tls)
    async with stream:
        client = MqttClient(stream, wanted.version, trace)
        with _deadline(CONNECT_WITHIN_S, f"{host}:{port} did not answer CONNECT"):
            await client._send(encode_connect(wanted))
            buffer = bytearray()
            keep_alive_s = await _await_connack(client, buffer, wanted.keep_alive_s)
        try:
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                nursery.start_soon(_keep_alive, client, keep_alive_s)
                nursery.start_soon(client._read, buffer)
                yield client
                await client._leave()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise _most_telling(group) from group


async def _open_stream(
    host: str, port: int, bind: str | None, tls: ssl.SSLContext | None
) -> trio.abc.Stream:
    """Return a stream to the server, after a TLS handshake if TLS is wanted."""
    try:
        stream = await trio.open_tcp_stream(host, port, local_address=bind)
    except (OSError, ValueError) as exc:  # ValueError: not an address, so it cannot be bound
        why = _os_reason(exc) if isinstance(exc, OSError) else f"-A {bind}: {exc}"
        text = f"cannot connect to {host}:{port}: {why}"
        raise MqttClientError(text, remedy=IS_IT_RUNNING if bind is None else None) from exc
    if tls is None:
        return stream
    # A server need not announce the end of TLS: DISCONNECT is MQTT's own end.
    secured = trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)
    try:
        await secured.do_handshake()
    except BaseException as exc:
        await trio.aclose_forcefully(stream)
        if not isinstance(exc, trio.BrokenResourceError):
            raise
        is_untrusted = isinstance(exc.__cause__, ssl.SSLCertVerificationError)
        raise MqttClientError(
            f"TLS with {host}:{port} failed: {handshake_fault(exc)}",
            remedy=TRUST if is_untrusted else None,
            status=Status.REFUSED,
        ) from exc
    return secured


def reason_text(reason_code: int, properties: Properties) -> str:
    """Return a reason code in words, with what the server says about it."""
    try:
        name = ReasonCode(reason_code).name.replace("_", " ").lower()
    except ValueError:
        name = "unknown reason"
    text = f"{name} (0x{reason_code:02x})"
    return f"{text}: {properties.reason_string}" if properties.reason_string else text


async def _await_connack(client: MqttClient, buffer: bytearray, keep_alive_s: int) -> int:
    """Read the CONNACK and return the keep alive in seconds, which the server may have chosen."""
    version = client._version
    while (end := _frame_end(buffer, 0)) is None:
        try:
            buffer += await client._receive()
        except MqttClientError as exc:
            is_plain = not isinstance(client._stream, trio.SSLStream)
            raise MqttClientError(
                f"CONNECT was not answered: {exc}; is this MQTT?",
                remedy=PERHAPS_TLS if is_plain else None,
            ) from exc
    frame = bytes(buffer[:end])
    del buffer[:end]
    client._tell("received", frame)
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
        text = f"the server refused the connection: {text}"
        raise MqttClientError(text, status=Status.REFUSED)
    client.session_present = answer.session_present
    if answer.properties.receive_maximum is not None:
        client._limit_window(answer.properties.receive_maximum)
    chosen = answer.properties.server_keep_alive_s
    return keep_alive_s if chosen is None else chosen


async def _keep_alive(client: MqttClient, keep_alive_s: int) -> None:
    while True:
        await trio.sleep(keep_alive_s / 2 if keep_alive_s else math.inf)
        await client._send(PINGREQ)


def _packet_text(packet: bytes) -> str:
    """Return a packet's type, flags and size, as --debug prints them."""
    first_byte = packet[0]
    try:
        name = PacketType(first_byte >> 4).name
    except ValueError:
        name = f"type {first_byte >> 4}"
    if name == PacketType.PUBLISH.name:
        qos, dup, retain = first_byte >> 1 & 3, first_byte >> 3 & 1, first_byte & 1
        name += f" (QoS {qos}, DUP {dup}, retain {retain})"
    return f"{name}, {len(packet)} bytes"


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
        raise MqttClientError(f"{message} within {seconds:g} s", status=Status.TIME) from exc


def _most_telling(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what the caller should see: its own error, else the reader's."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        ours = [one for one in error.exceptions if not isinstance(one, MqttClientError)]
        error = (ours or list(error.exceptions))[0]
    return error


def _os_reason(exc: OSError) -> str:
    # trio puts the errors of all addresses of a name into __cause__, as a group if several.
    cause: BaseException | None = exc.__cause__
    while cause is not None:
        exc = cause if isinstance(cause, OSError) else exc
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__
    if isinstance(exc, socket.gaierror):  # its numbers are not errno values
        return exc.strerror or str(exc)
    return os.strerror(exc.errno) if exc.errno else str(exc)
