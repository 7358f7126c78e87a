"""Read: which units are chosen, and which bytes they may name."""

from __future__ import annotations

import pytest

from motelog.core.errors import RecordError
from motelog.core.records.append import QueueTail
from motelog.core.records.decode import decode
from motelog.core.records.layout import FILLER_SIZE
from motelog.core.records.read import gather, select_units
from tests.support.stores import encoded, message, unit


def test_gather_joins_records_in_rows_and_apart() -> None:
    # More of them than gather looks ahead; queue 1's lie in rows of 1 to 5 between queue 0's.
    tails = [QueueTail(b"T", 0, 0), QueueTail(b"T", 1, 0)]
    turns = [1 if number % 7 < number % 5 + 1 else 0 for number in range(120)]
    bodies = [b"%d" % number * (number % 40) for number in range(120)]
    data = encoded(
        *(message(tails[turn], body) for turn, body in zip(turns, bodies, strict=True)), base=500
    )
    for queue_id, tail in enumerate(tails):
        units = tail.units(tail.first_offset, tail.pending)
        mine = [body for turn, body in zip(turns, bodies, strict=True) if turn == queue_id]
        assert len(mine) > 20
        for begin in (0, 3):
            records = gather(data, 500, units, begin, len(mine))
            assert [fields[13] for fields in decode(records)] == mine[begin:]


def test_gather_copies_what_units_name_and_nothing_else() -> None:
    tail = QueueTail(b"T", 0, 0)
    data = encoded(message(tail, b"one"), message(tail, b"two"), base=500)
    units = tail.units(tail.first_offset, tail.pending)
    assert gather(data, 500, units, 0, 2) == data
    assert [f[13] for f in decode(gather(data, 500, units, 1, 2))] == [b"two"]
    for wrong in (
        unit(499, 95, 0),
        unit(500, 96, 0),
        unit(501, 95, 0),
        unit(500 + 190, 95, 0),
        unit(-1, 95, 0),
        unit(1 << 62, 95, 0),
        unit(500, -95, 0),
        unit(0, FILLER_SIZE, 0),
    ):
        with pytest.raises(RecordError):
            gather(data, 500, wrong, 0, 1)
    with pytest.raises(ValueError, match="outside the units"):
        gather(data, 500, units, 0, 3)


def test_select_units_keeps_the_limits_but_always_takes_the_first() -> None:
    units = b"".join(unit(i * 100, 100, i) for i in range(5))
    assert select_units(units, 9, 250, None, 0) == (units[:40], 2, 0, 200)
    assert select_units(units, 9, 1, None, 0) == (units[:20], 1, 0, 100)
    assert select_units(units, 3, 9999, None, 0) == (units[:60], 3, 0, 300)
    assert select_units(units, 9, 9999, frozenset({3}), 0) == (units[60:80], 5, 0, 100)
    assert select_units(units, 9, 9999, None, 250) == (units[60:], 5, 3, 200)
    assert select_units(units[:20] + bytes(40), 9, 9999, None, 0) == (units[:20], 1, 0, 100)
    lost = unit(0, FILLER_SIZE, 0)
    assert select_units(lost + units, 1, 9999, None, 0) == (units[:20], 2, 1, 100)


def test_a_tag_hash_is_compared_in_its_low_32_bits() -> None:
    deliver_time = (7 << 32) | 0xFFFFFFFF
    assert select_units(unit(0, 99, deliver_time), 9, 99, frozenset({-1}), 0)[1] == 1
    assert select_units(unit(0, 99, deliver_time), 9, 99, frozenset({-1}), 0)[0] != b""
