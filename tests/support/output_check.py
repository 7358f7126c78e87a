"""What every Output of the gateway must do, checked on whichever it is.

Owns: ``check_output`` and OutputStage, the surroundings that it asks for. Must not touch: how an
implementation does it.
"""

from __future__ import annotations

from typing import Protocol

import pytest

from motelog.core.net.reactor_types import CloseReason
from motelog.gateway.sessions.output import Output

#: A stage opens its output with these marks.
OUTPUT_BYTES_HIGH = 100_000
OUTPUT_BYTES_MAX = 200_000
#: More than a peer that does not read can make the output take: both marks and socket buffers.
ENDLESS_BYTES = 64 << 20


class OutputStage(Protocol):
    """One output and its peers."""

    @property
    def output(self) -> Output: ...

    def open(self) -> int:
        """Return the number of a new connection, whose peer reads."""
        ...

    def stop_reading(self, connection: int) -> None: ...

    def receive(self, connection: int, size: int) -> bytes:
        """Return the next bytes that the peer gets, reading on if it had stopped."""
        ...

    def is_at_end(self, connection: int) -> bool:
        """Return whether the peer has got all there is and sees the end."""
        ...

    def variant(self, connection: int) -> int:
        """Return what is handed over with a packet that the peer sends now."""
        ...

    def send_packet(self, connection: int) -> None:
        """Have the peer send a packet."""
        ...

    def packets(self, connection: int) -> int:
        """Return how many packets of the peer have been handed over, once all that can be are."""
        ...

    def reported(self) -> list[tuple[int, CloseReason]]:
        """Return the ends that the output has reported so far."""
        ...


def check_output(stage: OutputStage) -> None:
    """Hold one implementation to what ``gateway.sessions.output`` says."""
    _check_order(stage)
    _check_numbers(stage)
    _check_variant(stage)
    _check_pause(stage)
    _check_close(stage)
    _check_slow_peer(stage)
    _check_peer_that_never_reads(stage)


def _check_order(stage: OutputStage) -> None:
    output = stage.output
    one, two = stage.open(), stage.open()
    output.send(one, b"a")
    assert output.fan_out(b"b" * 1000, [one, two]) == []
    assert output.send_numbered(b"c??c", 1, [(two, 7), (one, 0x0102)]) == []
    output.send(one, b"d")
    output.send(one, b"")
    output.flush()
    assert stage.receive(one, 1006) == b"a" + b"b" * 1000 + b"c\x01\x02cd"
    assert stage.receive(two, 1004) == b"b" * 1000 + b"c\x00\x07c"
    assert output.fan_out(b"", []) == []


def _check_numbers(stage: OutputStage) -> None:
    output = stage.output
    connection = stage.open()
    for number_at in (-1, 2, 3):
        with pytest.raises(ValueError, match="no room"):
            output.send_numbered(b"abc", number_at, [(connection, 1)])
    assert output.send_numbered(b"abc", 0, [(connection, 1), (connection, 2)]) == []
    output.flush()
    assert stage.receive(connection, 6) == b"\x00\x01c\x00\x02c"


def _check_variant(stage: OutputStage) -> None:
    output = stage.output
    connection = stage.open()
    assert stage.variant(connection) == 0
    output.set_variant(connection, 5)
    output.set_limits(connection, frame_bytes_max=1000, idle_s_max=90)
    assert stage.variant(connection) == 5


def _check_pause(stage: OutputStage) -> None:
    output = stage.output
    one, other = stage.open(), stage.open()
    output.pause(one)
    output.pause(one)
    for connection in (one, one, other):
        stage.send_packet(connection)
    assert stage.packets(other) == 1
    assert stage.packets(one) == 0
    output.send(one, b"sent all the same")
    output.flush()
    assert stage.receive(one, 17) == b"sent all the same"
    output.resume(one)
    output.resume(one)
    assert stage.packets(one) == 2
    stage.send_packet(one)
    assert stage.packets(one) == 3


def _check_close(stage: OutputStage) -> None:
    output = stage.output
    gone, other = stage.open(), stage.open()
    address = output.peer(gone)
    assert address != output.peer(other)
    output.send(gone, b"last words")
    output.close(gone)
    output.send(gone, b"too late")
    output.close(gone)
    output.pause(gone)
    output.resume(gone)
    output.set_variant(gone, 4)
    output.set_limits(gone, frame_bytes_max=10, idle_s_max=1)
    assert output.fan_out(b"x", [gone, other]) == [gone]
    assert output.send_numbered(b"12", 0, [(other, 1), (gone, 2)]) == [gone]
    assert output.peer(gone) == address
    output.flush()
    assert stage.receive(gone, 10) == b"last words"
    assert stage.is_at_end(gone)
    assert stage.receive(other, 3) == b"x\x00\x01"
    assert not [end for end in stage.reported() if end[0] == gone]


def _check_slow_peer(stage: OutputStage) -> None:
    output = stage.output
    slow, other = stage.open(), stage.open()
    stage.stop_reading(slow)
    message = bytes(5000)
    taken = 0
    while not output.fan_out(message, [slow]):
        taken += len(message)
        assert taken < ENDLESS_BYTES
    assert taken > OUTPUT_BYTES_HIGH
    assert output.send_numbered(message, 0, [(slow, 1), (other, 2)]) == [slow]
    output.send(slow, b"owed")
    output.flush()
    assert stage.receive(other, 5000) == b"\x00\x02" + message[2:]
    # Whole and in order: what was taken, what was owed, and nothing of what was skipped.
    assert stage.receive(slow, taken) == bytes(taken)
    assert stage.receive(slow, 4) == b"owed"
    assert output.fan_out(b"again", [slow]) == []
    output.flush()
    assert stage.receive(slow, 5) == b"again"


def _check_peer_that_never_reads(stage: OutputStage) -> None:
    output = stage.output
    slow, other = stage.open(), stage.open()
    stage.stop_reading(slow)
    sent = 0
    while (slow, CloseReason.OUTPUT_FULL) not in stage.reported():
        output.send(slow, bytes(5000))
        output.flush()
        sent += 5000
        assert sent < ENDLESS_BYTES
    assert sent > OUTPUT_BYTES_MAX
    assert output.fan_out(b"x", [slow, other]) == [slow]
    output.flush()
    assert stage.receive(other, 1) == b"x"
