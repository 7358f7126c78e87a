"""Drives the index kernel and its reference alike and makes their answers comparable.

Owns: what the property tests and the fuzz program both do with one input. Must not touch: pytest.
"""

from __future__ import annotations

from typing import Any

from motelog.core.records import _append_py
from motelog.core.store.index import _index, _index_py
from tests.support.record_kernels import STORE_HOSTS, answer

KERNELS: tuple[Any, Any] = (_index, _index_py)


def any_keyed(kernel: Any, messages: list[tuple[bytes, int]]) -> Any:
    batch = [(None, b"", text, 0, 0, b"", flag, 0, 0, 0) for text, flag in messages]
    return answer(kernel.any_keyed, batch)


def new_file(shape: tuple[int, int]) -> bytearray:
    data = bytearray(40 + 4 * shape[0] + 20 * shape[1])
    data[39] = 1
    return data


def build(
    kernel: Any, shape: tuple[int, int], items: list[Any], item: int, key: int
) -> tuple[Any, bytes]:
    """Put items into a new file; return where it ended and the file's bytes."""
    data = new_file(shape)
    at = answer(kernel.put, data, *shape, items, item, key)
    return at, bytes(data)


def read(
    kernel: Any, data: Any, shape: tuple[int, int], hashed: int, number: int, begin_ms: int,
    end_ms: int, cut: int,
) -> list[Any]:  # fmt: skip
    """Walk a chain, rebuild chains, and put something more; return plain values."""
    relinked, grown = bytearray(data), bytearray(data)
    return [
        answer(kernel.select, data, *shape, hashed, number, begin_ms, end_ms, 3),
        answer(kernel.select, data, *shape, hashed, 0, begin_ms, end_ms, 100),
        answer(kernel.relink, relinked, *shape, cut, end_ms),
        bytes(relinked),
        answer(kernel.put, grown, *shape, [(7, begin_ms, b"T", b"KEYS\x01a b\x02")], 0, 0),
        bytes(grown),
    ]


def log(records: list[tuple[bytes, int, bool]], changes: list[tuple[int, int]]) -> bytes:
    """Records of the given property texts, flags and topic lengths, then changed bytes."""
    target = bytearray(8_000)
    batch = [
        (
            _append_py.QueueTail(b"t" * (200 if is_long else 3), 0, 0), b"body", text, 0, 1,
            STORE_HOSTS[flag & 1], flag & ~0x10 | (flag & 1) << 4, 0, 0, 0,
        )
        for text, flag, is_long in records
    ]  # fmt: skip
    host = STORE_HOSTS[len(records) & 1]
    written = answer(
        _append_py.encode_batch, target, 0, 8_000, 1_000, batch, 0, 5_000, host, [], None
    )
    end = written[1] if isinstance(written[1], int) else 0
    data = target[: end + 9]
    for at, value in changes:
        data[at % len(data)] = value
    return bytes(data)


def walk(
    kernel: Any, shape: tuple[int, int], data: Any, begin: int, end: int, key: int, count_max: int
) -> tuple[Any, bytes]:
    """Put the records of a log into a new file; return where it ended and the file's bytes."""
    file = new_file(shape)
    at = answer(kernel.put_records, file, *shape, data, begin, end, 1_000, key, count_max)
    return at, bytes(file)
