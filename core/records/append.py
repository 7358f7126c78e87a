"""Append: encodes checked messages as records in mapped bytes, and units of their queues.

Its kernel is _append.pyx; _append_py.py is the reference, which specifies the result.
Owns: the form of a message to append, its encoding as a record, and the end of each queue.
Must not touch: files, clocks, sockets; the layout (layout).
Spec: RocketMQ MessageExtEncoder, CommitLog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from motelog.core import kernels

if TYPE_CHECKING:
    from motelog.core.records import _append as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = [
    "AppendMessage",
    "QueueTail",
    "copy_in",
    "crc32_31",
    "encode_batch",
    "encode_blank",
    "measure",
]

# (tail, body, properties, tags_code, born_timestamp_ms, born_host, sys_flag, flag,
#  reconsume_times, prepared_transaction_offset)
# tags_code must be the hash of the TAGS property (in SCHEDULE_TOPIC_XXXX the due time). It is in
# the unit and not in the record: a rebuild of the ConsumeQueue computes it again and must agree.
AppendMessage: TypeAlias = "tuple[QueueTail, bytes, bytes, int, int, bytes, int, int, int, int]"

QueueTail = _kernel.QueueTail
measure = _kernel.measure
encode_batch = _kernel.encode_batch
encode_blank = _kernel.encode_blank
copy_in = _kernel.copy_in
crc32_31 = _kernel.crc32_31
