"""Fuzz the sends kernel against its reference: changed requests, hostile indexes, answers.

Usage: python tests/fuzz/fuzz_sends.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
input that was answered differently, or whatever the sanitizers find when it runs under them. The
kernel's buffers end exactly where the input ends (bytes have a NUL behind them): a read beyond it
is seen.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.records.append import QueueTail
from motelog.core.remoting import _sends, _sends_py
from tests.support.record_fuzz import exactly
from tests.support.send_requests import (
    random_batch,
    random_frame,
    random_staged,
    random_turn,
    rules,
)

OURS, REFERENCE = rules(_sends), rules(_sends_py)
TAIL = QueueTail(b"topic", 1, 0)


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"fuzz_sends seed={seed} kernel={_sends.__file__}", flush=True)  # noqa: T201  # output
    chance = random.Random(seed)
    stop = time.monotonic() + seconds
    inputs = taken = 0
    while inputs % 64 or time.monotonic() < stop:
        inputs += 1
        data, index, count = random_turn(chance, random_frame)
        sends = answer(_sends.split_sends, exactly(data), index, count, OURS)
        expected = answer(_sends_py.split_sends, data, index, count, REFERENCE)
        if sends is ValueError or expected is ValueError:
            is_same = sends is expected
        else:
            is_same = all(s is None or s == e for s, e in zip(sends, expected, strict=True))
            taken += sum(send is not None for send in sends)
        body = random_batch(chance)
        batch = _sends.split_batch(body, TAIL, 5, b"h" * 8, OURS)
        is_same &= batch is None or batch == _sends_py.split_batch(
            body, TAIL, 5, b"h" * 8, REFERENCE
        )
        staged, placed = random_staged(chance)
        is_same &= answer(_sends.answer_sends, staged, placed, OURS) == answer(
            _sends_py.answer_sends, staged, placed, REFERENCE
        )
        if not is_same:
            print(f"{data!r}\n{index!r} {count}\n{body!r}\n{staged!r} {placed!r}")  # noqa: T201
            return 1
    # A kernel that takes nothing would agree with everything.
    assert taken, "no send was taken"
    print(f"fuzz_sends inputs={inputs} taken={taken}: no difference")  # noqa: T201
    return 0


def answer(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ValueError:
        return ValueError


if __name__ == "__main__":
    sys.exit(main())
