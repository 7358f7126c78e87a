"""The state of a half message, found from its records in the log.

Owns: the rule by which a half message is open, committed or over. Must not touch: the ledger's
content, appends, clocks.

    not over, sent since the start, and never asked about -> open: the ledger knows
    its real message is in the log       -> committed
    its newest copy is not over          -> that copy is open
    else                                 -> over without a real message

Ledger and log may disagree after a crash: the log may have the real message without its op, or a
copy that the saved progress does not include. And a producer that has sent a half message twice,
because the answer was late, ends only one of the two. The index finds all of them by the unique id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from motelog.core.broker.transactions.half_message import HalfMessage, half_of
from motelog.core.broker.transactions.ledger import Ledger
from motelog.core.errors import StoreError
from motelog.core.records.decode import decode
from motelog.core.records.layout import COMMIT, TRANSACTION_MASK
from motelog.core.store.message_store import MessageStore
from motelog.core.topic_names import HALF_TOPIC

_TIME_MAX: Final = (1 << 63) - 1
_FOUND_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Past:
    """``open`` is the copy that may be ended; without one, ``is_committed`` says how it ended."""

    open: HalfMessage | None
    is_committed: bool


def past_of(
    half: HalfMessage, ledger: Ledger, store: MessageStore, *, may_wait: bool = True
) -> Past:
    """Return the state of ``half``; StoreError if the index cannot be read."""
    is_over = ledger.is_over(half.queue_offset)
    if half.queue_offset >= ledger.opened_at and not is_over and not half.is_copy:
        return Past(half, is_committed=False)
    if _is_committed(half, store, may_wait=may_wait):
        return Past(None, is_committed=True)
    newest = _newest(half, store, may_wait=may_wait)
    is_open = not ledger.is_over(newest.queue_offset)
    return Past(newest if is_open else None, is_committed=False)


def _is_committed(half: HalfMessage, store: MessageStore, *, may_wait: bool) -> bool:
    return any(
        fields[5] & TRANSACTION_MASK == COMMIT and half.is_same(half_of(fields))
        for fields in _found(half.real_topic, half, store, may_wait=may_wait)
    )


def _newest(half: HalfMessage, store: MessageStore, *, may_wait: bool) -> HalfMessage:
    copies = map(half_of, _found(HALF_TOPIC, half, store, may_wait=may_wait))
    same = [copy for copy in copies if half.is_same(copy)]
    return max([half, *same], key=lambda copy: copy.queue_offset)


def _found(
    topic: str, half: HalfMessage, store: MessageStore, *, may_wait: bool
) -> list[tuple[Any, ...]]:
    if not half.unique_key or not topic:
        return []
    result = store.reader.query(
        topic,
        half.unique_key,
        begin_ms=0,
        end_ms=_TIME_MAX,
        count_max=_FOUND_MAX,
        only_unique=True,
        may_wait=may_wait,
    )
    if store.dispatch_behind_bytes:
        raise StoreError("the index is behind the log: the state of a transaction is unknown")
    return [fields for record in result.records for fields in decode(record)]
