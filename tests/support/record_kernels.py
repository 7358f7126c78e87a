"""Drives the kernels of records and their references alike and makes their answers comparable.

Owns: what the property tests and the fuzz programs both do with one input. Must not touch: pytest.
"""

from __future__ import annotations

from typing import Any

from motelog.core.errors import MotelogError

STORE_HOSTS = (bytes([127, 0, 0, 1, 0, 0, 42, 159]), bytes(range(20)))
EXPECTED = (MotelogError, ValueError, TypeError, OverflowError, BufferError)


def answer(function: Any, *arguments: Any) -> Any:
    """Return what a call returns or, if it raises, which error and where."""
    try:
        return function(*arguments)
    except EXPECTED as exc:
        return type(exc), getattr(exc, "offset_bytes", None)


def due(properties: bytes, store_timestamp_ms: int) -> int:
    """Some time that depends on both, and sometimes none."""
    return 0 if len(properties) % 3 == 0 else store_timestamp_ms // 2 + len(properties)


def encode(
    kernel: Any, queues: list[tuple[bytes, int, int]], messages: list[Any], limit: int, base: int
) -> Any:
    """Encode messages, whose first item is an index into queues; return all that shows."""
    tails = [answer(kernel.QueueTail, *queue) for queue in queues]
    batch = [(tails[m[0]], *m[1:]) if isinstance(m[0], int) else m for m in messages]
    dirty: list[Any] = []
    placed: list[Any] = []
    fresh: list[Any] = []
    measured = answer(kernel.measure, batch, 0, 5_000)
    target = bytearray(limit + 16)
    store_host = STORE_HOSTS[base & 1]
    written = answer(
        kernel.encode_batch,
        target,
        3,
        limit,
        base,
        batch,
        0,
        1_000,
        store_host,
        dirty,
        placed,
        None,
        fresh,
    )
    units = [
        (
            tail.units(tail.first_offset, tail.pending),
            tail.next_offset,
            tail.pending,
            tail.take_put(),
            tail.take_put(),
        )
        for tail in tails
        if isinstance(tail, kernel.QueueTail)
    ]
    order = [[tails.index(tail) for tail in some] for some in (dirty, fresh)]
    return measured, written, bytes(target), units, order, placed


def hold(kernel: Any, begin: int, steps: list[tuple[str, Any]]) -> list[Any]:
    """Do ``steps`` (method, argument) on a tail; what each returns and what it then holds."""
    tail = answer(kernel.QueueTail, b"T", 0, begin)
    seen = []
    for method, argument in steps:
        arguments = argument if isinstance(argument, tuple) else (argument,)
        done = answer(getattr(tail, method), *arguments)
        held = answer(tail.units, tail.first_offset, tail.pending)
        seen.append((done, tail.first_offset, tail.next_offset, tail.pending, held))
    return seen


def copy_in(kernel: Any, data: Any, position: int) -> Any:
    target = bytearray(data)
    return answer(kernel.copy_in, target, position, b"copied"), bytes(target)


FIELDS = (
    "topic", "queue_id", "queue_offset", "physical_offset", "body", "properties", "flag",
    "sys_flag", "born_timestamp_ms", "born_host", "store_timestamp_ms", "store_host",
    "reconsume_times", "prepared_transaction_offset", "stored_bytes",
)  # fmt: skip


def stored(kernel: Any, data: Any, name: bytes) -> Any:
    """Messages as values: each value of a property before and after all of them are read."""
    messages, sys_flags = kernel.decode_stored(data, kernel.StoredFields)
    names = ["a", "T\x01", "", "\ufffd", "\udc80", name.decode(errors="replace")]
    before = [[one.value_of(name) for name in names] for one in messages]
    fields = [[getattr(one, field) for field in FIELDS] for one in messages]
    after = [[one.value_of(name) for name in names] for one in messages]
    again = [kernel.StoredFields(*values) for values in fields]
    assert [[getattr(one, field) for field in FIELDS] for one in again] == fields
    return fields, before, after, sys_flags, kernel.body_bytes(messages)


def decode(kernel: Any, data: Any, begin: int, end: int, name: bytes) -> list[Any]:
    """Every way of decoding ``data``, as plain values; begin and end are queue offsets too."""
    return [
        answer(kernel.decode, data),
        answer(kernel.decode, data, 2, True),
        answer(stored, kernel, data, name),
        answer(kernel.decode_brief, data, name),
        answer(kernel.decode_values, data, (name.decode(errors="replace"), "a", "a\x01b", "")),
        answer(kernel.in_queue, data, b"T", 0, begin, end),
        answer(kernel.in_queue, data, b"T", 0, 0, 1 << 62),
    ]


def scan(kernel: Any, data: Any, begin: int, end: int, base: int, name: bytes) -> list[Any]:
    """Every way of walking ``data``, as plain values."""
    keyed: list[Any] = []
    with_keys = answer(kernel.collect, data, begin, end, base, 9, (), due, keyed, len(name) * 20)
    return [
        with_keys[1:],
        keyed,
        answer(kernel.scan, data, begin, end, base, 3),
        answer(kernel.scan, data, begin, end, base, 50),
        answer(kernel.find_record, data, begin, (begin + end) // 2, end, base),
        answer(kernel.find_record, data, begin, end, end, base),
        answer(kernel.zeros_from, data, begin, end),
        answer(kernel.collect, data, begin, end, base, 50, (b"none", b"timed"), due),
    ]


def choose(
    kernel: Any, units: bytes, limits: tuple[int, int, int], codes: frozenset[int] | None
) -> Any:
    return answer(kernel.select_units, units, limits[0], limits[1], codes, limits[2])


def gather(kernel: Any, data: Any, base: int, units: bytes, begin: int, end: int) -> Any:
    return [
        answer(kernel.gather, data, base, units, begin, end, verify) for verify in (False, True)
    ]


def copy_out(kernel: Any, data: Any, begin: int, end: int) -> Any:
    return answer(kernel.copy_out, data, begin, end)
