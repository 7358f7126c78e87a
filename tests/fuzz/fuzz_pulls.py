"""Fuzz the pulls kernel against its reference: changed requests, hostile indexes, answers.

Usage: python tests/fuzz/fuzz_pulls.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
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

from motelog.core.remoting import _pulls, _pulls_py
from tests.support.pull_requests import random_found, random_frame
from tests.support.record_fuzz import exactly
from tests.support.send_requests import random_turn


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"fuzz_pulls seed={seed} kernel={_pulls.__file__}", flush=True)  # noqa: T201  # output
    chance = random.Random(seed)
    stop = time.monotonic() + seconds
    inputs = taken = 0
    while inputs % 64 or time.monotonic() < stop:
        inputs += 1
        data, index, count = random_turn(chance, random_frame)
        pulls = split(_pulls, exactly(data), index, count)
        expected = split(_pulls_py, data, index, count)
        if pulls is ValueError or expected is ValueError:
            is_same = pulls is expected
        else:
            is_same = all(p is None or p == e for p, e in zip(pulls, expected, strict=True))
            taken += sum(pull is not None for pull in pulls)
        numbers = random_found(chance)
        is_same &= found(_pulls, *numbers) == found(_pulls_py, *numbers)
        if not is_same:
            print(f"{data!r}\n{index!r} {count}\n{numbers!r}")  # noqa: T201
            return 1
    # A kernel that takes nothing would agree with everything.
    assert taken, "no pull was taken"
    print(f"fuzz_pulls inputs={inputs} taken={taken}: no difference")  # noqa: T201
    return 0


def split(kernel: Any, data: Any, index: bytes, count: int) -> Any:
    items: list[Any] = [None] * count
    try:
        kernel.split_pulls(data, index, items)
    except ValueError:
        return ValueError
    return items


def found(kernel: Any, *numbers: int) -> Any:
    try:
        return kernel.encode_found(*numbers)
    except ValueError:
        return ValueError


if __name__ == "__main__":
    sys.exit(main())
