"""Index files: the keys of messages and where their records lie.

Its kernel is _index.pyx; _index_py.py is the reference, which defines the behaviour.
Owns: the byte format of an index file, the keys of a message, their hash. Must not touch: files,
clocks. Spec: RocketMQ IndexFile, IndexHeader, IndexService. All integers big-endian.

    header                                                slots, from byte 40 on
    at  bytes                                              0  4  newest entry; 0 = none
     0  8    store timestamp of the first entry, ms
     8  8    of the last one                              entries, after the slots
    16  8    physical offset of the first entry's record   0  4  hash of topic#key
    24  8    of the last one's                             4  8  physical offset of the record
    32  4    slots in use                                 12  4  seconds since the first entry
    36  4    number of the next entry                     16  4  entry before it in the slot

Entries are numbered from 1: entry 0 is never used, and a new file says 1 at 36. A slot is chosen by
hash % slots, where the hash is the absolute value of Java's String.hashCode of topic + "#" + key.
Keys are the UNIQ_KEY property, then each word of KEYS (separated by spaces).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motelog.core import kernels
from motelog.core.store.index._index_py import (
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    SLOT_BYTES,
    IndexItem,
    key_hash,
    keys_of,
)

if TYPE_CHECKING:
    from motelog.core.store.index import _index as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = [
    "ENTRY",
    "ENTRY_BYTES",
    "HEADER",
    "HEADER_BYTES",
    "SLOT_BYTES",
    "IndexItem",
    "any_keyed",
    "key_hash",
    "keys_of",
    "put",
    "put_records",
    "relink",
    "select",
]

any_keyed = _kernel.any_keyed
put = _kernel.put
put_records = _kernel.put_records
select = _kernel.select
relink = _kernel.relink
