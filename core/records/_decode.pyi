from typing import Any

# Any stands for an object with the buffer protocol, which Python 3.11 cannot name. ``records`` may
# not lie in a mapped file.

def decode(records: Any, count_max: int = ..., verify: bool = False) -> list[tuple[Any, ...]]:
    """Return the fields of concatenated records; RecordError for anything that is not one.

    (topic, queue_id, queue_offset, physical_offset, flag, sys_flag, born_ms, born_host, store_ms,
    store_host, reconsume_times, prepared_transaction_offset, properties, body); text as bytes.
    ``verify`` checks the CRC of each body too.
    """

def decode_fields(records: Any) -> list[tuple[Any, ...]]:
    """Return the fields of a StoredMessage, in its order, of each of concatenated records.

    Errors as ``decode``. Bodies are as they are stored.
    """

def decode_brief(
    records: Any, name: bytes
) -> list[tuple[int, bytes | None, bytes, bytes, bytes, int, int, int]]:
    """Return what delivery needs of concatenated records, with the value of property ``name``.

    (queue_offset, value or None, topic, properties, body, sys_flag, store_ms, stored_bytes)
    """

def decode_values(records: Any, names: tuple[str, ...]) -> list[tuple[int, int, dict[str, str]]]:
    """Return (queue_offset, stored_bytes, values) of concatenated records.

    ``values`` has the properties among ``names`` that there are: the last value that is not empty.
    """

def in_queue(records: Any, topic: bytes, queue_id: int, begin: int, end: int) -> bool:
    """Say whether these are whole records of one queue, of rising queue offsets in [begin, end)."""
