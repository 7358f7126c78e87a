from collections.abc import Sequence

from motelog.spark._arrow_py import Bytes, ColumnBuffers

class RecordColumns:
    rows: int
    data_bytes: int
    next_offset: int
    def __init__(
        self,
        columns: Sequence[int],
        *,
        broker: str,
        offset_begin: int,
        offset_end: int,
        payload_bytes_max: int,
        bad_payload_null: bool = False,
    ) -> None: ...
    def append(self, records: Bytes, begin: int, *, rows_max: int, bytes_max: int) -> int: ...
    def take(self) -> list[ColumnBuffers]: ...
