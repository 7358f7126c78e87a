"""The packets of a slice for one receiver, sent together.

Owns: Batch. Must not touch: which receiver gets a message, what must be checked or marked before it
is sent.
Invariants: nothing is taken beyond the receiver's window or its output's mark. The messages of a
batch are in the window already, so they are sent before anything else goes to the same receiver.
Spec: MQTT 5.0 sections 3.3 and 4.9.

A call of the output for each message would cost more than the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from motelog.gateway.deliver.outgoing import BriefRecord
from motelog.gateway.deliver.runs import Wants, take_run
from motelog.gateway.mqtt.frames import PUBLISH_OVERHEAD_BYTES, Publish, encode_publishes
from motelog.gateway.sessions.connection import PACKET_BYTES_LIMIT
from motelog.gateway.sessions.session import Session

DUP: Final = 0x08


class Batch:
    """Packets for one receiver; ``bytes`` includes what its output already holds.

    Messages up to ``plain_qos`` need no check, no mark and no encoding specific to the receiver,
    unless its subscription asks for that.
    """

    __slots__ = (
        "_bytes_high",
        "bytes",
        "connection",
        "count",
        "is_full",
        "parts",
        "plain_qos",
        "session",
        "version",
        "window",
    )

    def __init__(self, session: Session, waiting_bytes: int, bytes_high: int) -> None:
        connection = session.connection
        assert connection is not None, "only receivers that are connected are served"
        self.session = session
        self.connection = connection
        self.window = session.inflight
        self.version = connection.version
        self.bytes = waiting_bytes
        self._bytes_high = bytes_high
        self.is_full = waiting_bytes > bytes_high
        self.count = 0
        self.parts: list[Publish] = []
        self.plain_qos = 1 if session.expiry_s else 2
        if connection.packet_bytes_max < PACKET_BYTES_LIMIT or connection.topic_alias_max:
            self.plain_qos = -1

    def add(
        self,
        name: bytes,
        body: bytes,
        block: bytes | None,
        qos: int,
        flight: int,
        first_byte: int = 0x30,
        *,
        again: int = 0,
    ) -> bool:
        """Take one message; return False if there is no room.

        ``flight`` is used above QoS 0; ``first_byte`` is the PUBLISH's without the QoS. ``again``
        is the packet identifier under which the client received the message before.
        """
        if self.is_full:
            return False
        packet_id = 0
        if qos:
            packet_id = self.window.allocate(flight, again=again)
            if not packet_id:
                return False
            if packet_id == again:
                first_byte |= DUP  # [MQTT-3.3.1-1]
        if self.version != 5:
            block = None
        self.parts.append((name, body, first_byte | qos << 1, packet_id, block))
        self.count += 1
        self.bytes += len(name) + len(body) + PUBLISH_OVERHEAD_BYTES
        if block:
            self.bytes += len(block)
        self.is_full = self.bytes > self._bytes_high
        return True

    def take_run(
        self,
        records: Sequence[BriefRecord],
        begin: int,
        wants: Wants,
        queue_number: int,
        *,
        first_byte: int,
        aged_ms: int,
    ) -> int:
        """Take plain messages from ``records[begin]`` on; return the end of the run."""
        window = self.window
        count = len(self.parts)
        end, window.last_packet_id, self.bytes = take_run(
            records,
            begin,
            wants,
            self.session,
            self.parts,
            window.lend(),
            window.limit,
            window.last_packet_id,
            queue_number,
            self.plain_qos,
            first_byte,
            aged_ms,
            self.bytes,
            self._bytes_high,
        )
        window.take_back()
        self.count += len(self.parts) - count
        self.is_full = self.bytes > self._bytes_high
        return end

    def send(self) -> int:
        """Send the messages that were taken; return their number."""
        count, self.count = self.count, 0
        if count:
            packets = encode_publishes(self.parts, self.version)
            self.parts.clear()
            self.connection.output.send(self.connection.number, packets)
        return count
