from collections.abc import Sequence

from motelog.spark._arrow_py import ColumnBuffers
from motelog.spark._payload_nodes_py import NodeBuffers
from motelog.spark.payload_fields import Node, PayloadFormat

class PayloadColumns:
    @property
    def rows(self) -> int: ...
    def __init__(
        self,
        payload_format: PayloadFormat,
        nodes: Sequence[Node],
        *,
        row_values_max: int = ...,
        batch_values_max: int = ...,
    ) -> None: ...
    def parse(self, payloads: ColumnBuffers, begin: int, end: int) -> int: ...
    def take(self) -> tuple[list[NodeBuffers], list[tuple[int, str]]]: ...
