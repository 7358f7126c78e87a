"""The output in memory does what every output must."""

from __future__ import annotations

from motelog.core.net.reactor_types import CloseReason
from tests.support.memory_output import MemoryOutput
from tests.support.output_check import OUTPUT_BYTES_HIGH, OUTPUT_BYTES_MAX, check_output


class MemoryStage:
    """Peers of a MemoryOutput, as the check asks for them."""

    def __init__(self) -> None:
        self.output = MemoryOutput(
            output_bytes_high=OUTPUT_BYTES_HIGH, output_bytes_max=OUTPUT_BYTES_MAX
        )
        self._count = 0
        self._reported: list[tuple[int, CloseReason]] = []
        self._received: dict[int, bytes] = {}
        self._sent: dict[int, int] = {}
        self._taken: dict[int, int] = {}

    def open(self) -> int:
        self._count += 1
        self.output.open(self._count)
        return self._count

    def stop_reading(self, connection: int) -> None:
        self.output.stop_reading(connection)

    def receive(self, connection: int, size: int) -> bytes:
        self.output.read_on(connection)
        sent = b"".join(self.output.sent.pop(connection, []))
        received = self._received.pop(connection, b"") + sent
        self._received[connection] = received[size:]
        return received[:size]

    def is_at_end(self, connection: int) -> bool:
        return connection in self.output.closed and not self.receive(connection, 1)

    def variant(self, connection: int) -> int:
        return self.output.variants.get(connection, 0)

    def send_packet(self, connection: int) -> None:
        self._sent[connection] = self._sent.get(connection, 0) + 1

    def packets(self, connection: int) -> int:
        if connection not in self.output.paused:
            self._taken[connection] = self._sent.get(connection, 0)
        return self._taken.get(connection, 0)

    def reported(self) -> list[tuple[int, CloseReason]]:
        self._reported += self.output.take_ended()
        return self._reported


def test_memory_output_does_what_every_output_must() -> None:
    check_output(MemoryStage())
