"""Reference of the payload parser: payloads -> Arrow buffers of typed columns, in plain Python.

Owns: the parser's specification. Must not touch: pyarrow, pyspark, sockets. One module for each
format reads its bytes; ``payload_columns.py`` says which values a field accepts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

from motelog.spark._arrow_py import ColumnBuffers
from motelog.spark._json_payload_py import JsonReader
from motelog.spark._msgpack_payload_py import MsgpackReader
from motelog.spark._payload_nodes_py import (
    BATCH_VALUES_MAX,
    ROW_VALUES_MAX,
    Fault,
    Malformed,
    NodeBuffers,
    PayloadReader,
    buffers_of,
    fault_text,
)
from motelog.spark._sparkplug_payload_py import SparkplugReader
from motelog.spark.payload_fields import Node, PayloadFormat

_READERS: Final[dict[PayloadFormat, type[PayloadReader]]] = {
    "json": JsonReader,
    "msgpack": MsgpackReader,
    "sparkplug": SparkplugReader,
}


class PayloadColumns:
    """Typed columns of payloads; documented in ``payload_columns.py``."""

    def __init__(
        self,
        payload_format: PayloadFormat,
        nodes: Sequence[Node],
        *,
        row_values_max: int = ROW_VALUES_MAX,
        batch_values_max: int = BATCH_VALUES_MAX,
    ) -> None:
        self._format = payload_format
        self._reader = _READERS[payload_format]
        self._nodes = list(nodes)
        self._row_values_max = row_values_max
        self._batch_values_max = batch_values_max
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._values: list[list[Any]] = [[] for _ in self._nodes]
        self._faults: list[tuple[int, str]] = []
        self._count = 0

    def parse(self, payloads: ColumnBuffers, begin: int, end: int) -> int:
        valid, offsets, data = payloads[1]
        places = array("i", bytes(offsets or b""))
        content = bytes(data or b"")
        bits = None if valid is None else bytes(valid)
        if not 0 <= begin <= end < max(1, len(places)):
            raise ValueError(f"rows [{begin}, {end}) are not in the payloads")
        for row in range(begin, end):
            if self._count >= self._batch_values_max:
                return row
            is_null = bits is not None and not bits[row >> 3] >> (row & 7) & 1
            self._add(None if is_null else content[places[row] : places[row + 1]])
        return end

    def take(self) -> tuple[list[NodeBuffers], list[tuple[int, str]]]:
        taken = [
            buffers_of(node.field.kind, values)
            for node, values in zip(self._nodes[1:], self._values[1:], strict=True)
        ]
        faults = self._faults
        self._clear()
        return taken, faults

    def _add(self, payload: bytes | None) -> None:
        lengths = [len(values) for values in self._values]
        reader = self._reader(self._nodes, self._values, payload or b"", self._row_values_max)
        try:
            if payload is None:
                raise Malformed(Fault.NO_PAYLOAD, 0, 0)
            reader.payload()
        except Malformed as wrong:
            for values, length in zip(self._values, lengths, strict=True):
                del values[length:]
            reader.put_null(0)
            node = self._nodes[wrong.node]
            text = fault_text(self._format, wrong.fault, node, wrong.at, len(payload or b""))
            self._faults.append((self.rows, text))
        self._count += reader.count
        self.rows += 1
