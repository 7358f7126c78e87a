from typing import Any

from motelog.core.records.append import AppendMessage

# Any is an object with the buffer protocol, which Python 3.11 cannot name.
# ``target`` may be a mapped file: OSError (EIO) if one of its pages cannot be accessed, because the
# file was cut or the disk failed; bytes written by then stay.

class QueueTail:
    """The place of a queue's next record, and its newest units: those not on file yet.

    It holds the units of [first_offset, next_offset); ``pending`` is their number.
    """

    def __init__(self, topic: bytes, queue_id: int, next_offset: int) -> None: ...
    @property
    def topic(self) -> bytes: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def pending(self) -> int: ...
    def units(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` units from ``offset`` on; ValueError below first_offset."""

    def extend(self, units: bytes) -> None:
        """Add units after the last one."""

    def drop(self, end_offset: int) -> None:
        """Forget the units below ``end_offset``: they are on file."""

    def take_back(self, physical_end: int) -> None:
        """Give up the last units as long as their records begin at ``physical_end`` or later.

        They no longer count as put.
        """

    def reset(self, next_offset: int) -> None:
        """Forget all units; the next one will be ``next_offset``."""

    def take_put(self) -> tuple[int, int]:
        """Return (messages, bytes of their records) put into it since the last call."""

def measure(
    messages: list[AppendMessage], begin: int, body_bytes_max: int
) -> tuple[int, int, bool]:
    """Check messages[begin:] and return the most bytes that they take: (total, largest record).

    The third value is whether one is marked: of a class of its own, for its appender to look at.
    Raises RecordTooLargeError, TypeError, ValueError or OverflowError; messages that pass can be
    encoded.
    """

def encode_batch(
    target: Any,
    position: int,
    limit: int,
    physical_base: int,
    messages: list[AppendMessage],
    begin: int,
    store_timestamp_ms: int,
    store_host: bytes,
    dirty: list[QueueTail],
    placed: list[tuple[int, int]] | None,
    batch_begin: int | None = None,
    fresh: list[QueueTail] | None = None,
) -> tuple[int, int]:
    """Write messages[begin:] at ``position`` until one does not fit below ``limit`` less 8 bytes.

    ``physical_base`` is the physical offset of target[0]. Returns (index of the first message not
    written, new position). Appends to ``dirty`` each tail that got its first unit since the
    physical offset ``batch_begin`` (here, unless given), to ``fresh`` each that held no units
    before, and (physical offset, queue offset) of each message to ``placed``.
    """

def encode_blank(target: Any, position: int, limit: int) -> None:
    """Write the blank record that fills ``position`` up to ``limit``, the end of the file."""

def copy_in(target: Any, position: int, data: bytes) -> None:
    """Write ``data`` at ``position``."""

def crc32_31(data: Any) -> int:
    """Return zlib's CRC-32 without its highest bit, as records hold it."""
