from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T", bound=StoredFields)

# Any is an object with the buffer protocol, which Python 3.11 cannot name. ``records`` may
# not lie in a mapped file.

def decode(records: Any, count_max: int = ..., verify: bool = False) -> list[tuple[Any, ...]]:
    """Return the fields of concatenated records; RecordError for anything that is not one.

    (topic, queue_id, queue_offset, physical_offset, flag, sys_flag, born_ms, born_host, store_ms,
    store_host, reconsume_times, prepared_transaction_offset, properties, body); text as bytes.
    ``verify`` checks the CRC of each body too.
    """

class StoredFields:
    """The fields of a record; properties are read from their text when they are accessed.

    Frozen, except for the dictionary of ``properties``.
    """

    __slots__ = ()

    def __init__(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        body: bytes,
        properties: dict[str, str],
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: tuple[str, int],
        store_timestamp_ms: int,
        store_host: tuple[str, int],
        reconsume_times: int,
        prepared_transaction_offset: int,
        stored_bytes: int,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_timestamp_ms(self) -> int: ...
    @property
    def born_host(self) -> tuple[str, int]: ...
    @property
    def store_timestamp_ms(self) -> int: ...
    @property
    def store_host(self) -> tuple[str, int]: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def prepared_transaction_offset(self) -> int: ...
    @property
    def stored_bytes(self) -> int: ...
    def value_of(self, name: str) -> str | None:
        """Return the value of one property, None without it; the others are not read."""

def decode_stored(records: Any, kind: type[T]) -> tuple[list[T], int]:
    """Return each of concatenated records as ``kind``, and the flags that any sys_flag has.

    ``kind`` is StoredFields or a class below it; its ``__init__`` is not called. Errors as
    ``decode``. Bodies are as they are stored.
    """

def body_bytes(messages: Iterable[StoredFields]) -> int:
    """Return the total size of the bodies."""

def decode_brief(
    records: Any, name: bytes
) -> list[tuple[int, bytes | None, bytes, bytes, bytes, int, int, int]]:
    """Return the fields of concatenated records that delivery needs, and the property ``name``.

    (queue_offset, value or None, topic, properties, body, sys_flag, store_ms, stored_bytes)
    """

def decode_values(records: Any, names: tuple[str, ...]) -> list[tuple[int, int, dict[str, str]]]:
    """Return (queue_offset, stored_bytes, values) of concatenated records.

    ``values`` has the properties in ``names`` that exist: the last value that is not empty.
    """

def in_queue(records: Any, topic: bytes, queue_id: int, begin: int, end: int) -> bool:
    """Return whether these are whole records of one queue, of rising offsets in [begin, end)."""
