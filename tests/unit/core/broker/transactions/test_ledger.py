"""Which half messages are over: the ledger beside a set of all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motelog.core.broker.transactions.ledger import Ledger

steps = st.lists(
    st.one_of(
        st.tuples(st.just("op"), st.lists(st.integers(0, 40), max_size=4)),
        st.tuples(st.just("move"), st.integers(0, 40)),
    ),
    max_size=40,
)


@given(steps=steps)
def test_the_ledger_knows_what_is_over_and_what_a_restart_needs(
    steps: list[tuple[str, list[int] | int]],
) -> None:
    ledger = Ledger()
    over: set[int] = set()
    ops: list[list[int]] = []
    for kind, value in steps:
        if isinstance(value, list):
            ledger.note_op(len(ops), value)
            ops.append(value)
            over.update(value)
        else:
            ledger.move_to(value)
            over.update(range(value))
        assert kind
        ledger._check()
        assert [ledger.is_over(offset) for offset in range(50)] == [o in over for o in range(50)]
        assert ledger.next_open(0) == min(set(range(50)) - over)
        # One that begins at the saved progress knows the same.
        begin, op_begin = ledger.progress
        again = Ledger()
        again.start(begin, op_begin, 50)
        for op_offset in range(op_begin, len(ops)):
            again.note_op(op_offset, ops[op_offset])
        assert [again.is_over(offset) for offset in range(50)] == [o in over for o in range(50)]
        assert again.progress[1] >= op_begin


def test_what_is_over_in_a_row_is_not_remembered_one_by_one() -> None:
    ledger = Ledger()
    for offset in range(1000):
        ledger.note_op(offset, [offset])
    assert not ledger._over
    assert ledger.progress == (1000, 1000)
