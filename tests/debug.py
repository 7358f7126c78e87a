"""A gateway in memory at a Python prompt: send packets, and see what it does (``make debug``).

Owns: the names at the prompt, what is shown after each line. Must not touch: what a client can do
(``tests.conformance.peers``).

    >>> a = connect("a")
    a < CONNACK Connack(reason_code=0, session_present=False, properties=...)
    >>> a.subscribe("t/+")
    [1]
    a < SUBACK SubscriptionAck(packet_id=1, reason_codes=(1,), ...)
    >>> a.send_hex("30 07 00 03 74 2f 31 00 21")
    log: topic t, queue 7, offset 0, b'!'
    a < PUBLISH Message(topic='t/1', payload=b'!', ...)

After each line it shows what each client was sent, which messages are new in the log, and whose
connection the gateway has closed. All that follows from a line is done before the next prompt: time
stands still until ``pass_s``.
"""

from __future__ import annotations

import code
import contextlib
import logging
import sys
from types import CodeType
from typing import Any, Final

from motelog.gateway.mqtt.packet_types import PacketType
from tests.conformance.peers import Gateway, Packet, Peer, connect_packet, decode_message
from tests.support.durable_client import split
from tests.support.mqtt import decode_packet
from tests.support.mqtt_wire import varint

BANNER: Final = """\
A gateway in memory.
    a = connect("a")     a client; connect("a", 4) for MQTT 3.1.1, and fields of CONNECT
    a.subscribe("t/+")   a.publish("t/1", b"hi", qos=1)   a.send_hex("c0 00")   a.drop()   dir(a)
    pass_s(30)           lets time pass
    stage                the gateway's parts: stage.clients, stage.delivery, stage.journal, ..."""


class ShownPeer(Peer):
    """A client that says what it takes from the gateway."""

    name = ""
    was_closed = False

    def received(self) -> bytes:
        data = super().received()
        for first_byte, body in split(data)[0]:
            say(f"{self.name} < {described(self.version, Packet(first_byte, body))}")
        return data

    def show(self) -> None:
        """Say what came; ``packets()`` and the like return it."""
        self._receive()
        if self.is_closed and not self.was_closed:
            self.was_closed = True
            say(f"{self.name}: the gateway has closed the connection")


class Shown(Gateway):
    """A gateway that knows what it has not shown yet."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._peers: list[ShownPeer] = []
        self._stored: set[tuple[bytes, int, int]] = set()

    def open(self, version: int) -> ShownPeer:
        peer = super().open(version)
        shown = ShownPeer(self, peer.number, version)
        self._peers.append(shown)
        return shown

    def named(self, client_id: str, version: int = 5, **connect: Any) -> ShownPeer:
        """Open a connection and send CONNECT on it, which may be refused."""
        peer = self.open(version)
        peer.name = client_id or f"connection {peer.number}"
        peer.send(connect_packet(version, client_id, **connect))
        return peer

    def show(self) -> None:
        """Say what has happened since the last time."""
        self.deliver()
        for record in self.stage.stored():
            topic, queue_id, queue_offset = place = record[:3]
            if place not in self._stored:
                self._stored.add(place)
                name = topic.decode()
                say(f"log: topic {name}, queue {queue_id}, offset {queue_offset}, {record[13]!r}")
        for peer in self._peers:
            peer.show()


class Prompt(code.InteractiveConsole):
    """Python's prompt, with what the gateway did after each line."""

    def __init__(self, gateway: Shown) -> None:
        names = {"gateway": gateway, "stage": gateway.stage}
        super().__init__({**names, "connect": gateway.named, "pass_s": gateway.pass_s})
        self._gateway = gateway

    def runcode(self, code: CodeType) -> None:
        super().runcode(code)
        self._gateway.show()


def described(version: int, packet: Packet) -> str:
    match packet.type:
        case PacketType.PUBLISH:
            value: object = decode_message(version, packet)
        case PacketType.PINGRESP:
            value = ""
        case _:
            whole = bytes([packet.first_byte]) + varint(len(packet.body)) + packet.body
            value = decode_packet(version, whole)
    return f"{packet.type.name} {value}"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def main() -> None:
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # arrows and history at the prompt
    Prompt(Shown()).interact(banner=BANNER, exitmsg="")


if __name__ == "__main__":
    main()
