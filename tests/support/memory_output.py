"""The gateway's Output without sockets: what each peer was sent, and peers that do not read.

Owns: MemoryOutput. Must not touch: expectations; those are the tests'.
"""

from __future__ import annotations

from collections.abc import Sequence

from motelog.core.net.codec import Certificate, Observer
from motelog.core.net.reactor_types import CloseReason


class MemoryOutput:
    """Peers are lists of messages; tests open them, stop them from reading, and take what came."""

    def __init__(
        self, *, output_bytes_high: int = 262_144, output_bytes_max: int = 1_048_576
    ) -> None:
        #: What each peer was sent and no test has taken; MQTT packets one by one.
        self.sent: dict[int, list[bytes]] = {}
        self.closed: list[int] = []
        self.aborted: list[int] = []
        self.limits: dict[int, tuple[int, int]] = {}
        self.variants: dict[int, int] = {}
        self.paused: set[int] = set()
        #: What peers have shown.
        self.certificates: dict[int, Certificate] = {}
        #: What is wrong with what carries their packets.
        self.codec_faults: dict[int, str] = {}
        #: The numbers of the listeners that they came by, where it is not the plain one.
        self.listeners: dict[int, int] = {}
        #: Who watches which connection; a test shows them what is received.
        self.observers: dict[int, Observer] = {}
        self._output_bytes_high = output_bytes_high
        self._output_bytes_max = output_bytes_max
        self._open: set[int] = set()
        self._waiting_bytes: dict[int, int] = {}
        self._ended: list[tuple[int, CloseReason]] = []

    # --- what the peers do ---------------------------------------------------------------

    def open(self, connection: int) -> None:
        """Begin a connection, under a number that may have been another's."""
        self._open.add(connection)
        self.sent.pop(connection, None)
        self.limits.pop(connection, None)
        self.variants.pop(connection, None)
        self.paused.discard(connection)
        self._waiting_bytes.pop(connection, None)

    def end(self, connection: int) -> None:
        """End a connection from the peer's side."""
        self._open.discard(connection)

    def stop_reading(self, connection: int) -> None:
        self._waiting_bytes.setdefault(connection, 0)

    def fill(self, connection: int) -> None:
        """Stop the peer from reading, with the lower mark exceeded."""
        self._waiting_bytes[connection] = self._output_bytes_high + 1

    def read_on(self, connection: int) -> None:
        """Let the peer read whatever waits, and what comes after."""
        self._waiting_bytes.pop(connection, None)

    def take_ended(self) -> list[tuple[int, CloseReason]]:
        """Return the connections that the output ended by itself, as the next turn reports them."""
        ended, self._ended = self._ended, []
        return ended

    # --- Output --------------------------------------------------------------------------

    def send(self, connection: int, data: bytes) -> None:
        if connection not in self._open:
            return
        waiting_bytes = self._waiting_bytes.get(connection, 0)
        is_above_high = waiting_bytes > self._output_bytes_high
        if is_above_high and waiting_bytes + len(data) > self._output_bytes_max:
            self._open.discard(connection)
            self._ended.append((connection, CloseReason.OUTPUT_FULL))
            return
        self._take(connection, data)

    def fan_out(self, data: bytes, connections: Sequence[int]) -> list[int]:
        return self._fan_out([(connection, data) for connection in connections])

    def send_numbered(
        self, data: bytes, number_at: int, receivers: list[tuple[int, int]]
    ) -> list[int]:
        if not 0 <= number_at <= len(data) - 2:
            raise ValueError(f"no room for a number at byte {number_at} of {len(data)}")
        before, after = data[:number_at], data[number_at + 2 :]
        return self._fan_out(
            [
                (connection, before + number.to_bytes(2, "big") + after)
                for connection, number in receivers
            ]
        )

    def output_bytes(self, connection: int) -> int:
        return self._waiting_bytes.get(connection, 0)

    def held_bytes(self) -> int:
        return sum(self._waiting_bytes.values())

    def holding(self, bytes_min: int) -> list[tuple[int, int]]:
        waiting = ((held, number) for number, held in self._waiting_bytes.items())
        return [(held, number) for held, number in waiting if held >= bytes_min]

    def flush(self) -> None:
        """Nothing is held back here."""

    def close(self, connection: int) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self.closed.append(connection)

    def abort(self, connection: int) -> None:
        self._open.discard(connection)
        self._waiting_bytes.pop(connection, None)
        self.aborted.append(connection)

    def set_variant(self, connection: int, variant: int) -> None:
        if connection in self._open:
            self.variants[connection] = variant

    def set_limits(self, connection: int, *, frame_bytes_max: int, idle_s_max: int) -> None:
        if connection in self._open:
            self.limits[connection] = (frame_bytes_max, idle_s_max)

    def pause(self, connection: int) -> None:
        if connection in self._open:
            self.paused.add(connection)

    def resume(self, connection: int) -> None:
        self.paused.discard(connection)

    def peer(self, connection: int) -> tuple[str, int]:
        return "127.0.0.1", 4000 + connection

    def identity(self, connection: int) -> Certificate | None:
        return self.certificates.get(connection)

    def codec_fault(self, connection: int) -> str:
        return self.codec_faults.get(connection, "")

    def observe(self, connection: int, observer: Observer | None) -> bool:
        self.observers.pop(connection, None)
        if connection in self._open and observer is not None:
            self.observers[connection] = observer
            observer.begin(b"", 0)
        return connection in self._open

    def listener(self, connection: int) -> int:
        return self.listeners.get(connection, 0)

    def _fan_out(self, messages: list[tuple[int, bytes]]) -> list[int]:
        skipped = []
        for connection, data in messages:
            waiting_bytes = self._waiting_bytes.get(connection, 0)
            if connection not in self._open or waiting_bytes > self._output_bytes_high:
                skipped.append(connection)
            else:
                self._take(connection, data)
        return skipped

    def _take(self, connection: int, data: bytes) -> None:
        if connection in self.observers:
            self.observers[connection].sent(data)
        self.sent.setdefault(connection, []).extend(_packets(data))
        if connection in self._waiting_bytes:
            self._waiting_bytes[connection] += len(data)


def _packets(data: bytes) -> list[bytes]:
    """Return the MQTT packets of a message, or it as a whole if it is not made of such."""
    packets = []
    begin = 0
    while begin < len(data):
        at, shift, end = begin + 1, 0, begin
        while at < len(data) and shift < 28:
            end += (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if data[at - 1] < 0x80:
                break
        end += at - begin
        if end > len(data) or at == begin + 1:
            return [data]
        packets.append(data[begin:end])
        begin = end
    return packets
