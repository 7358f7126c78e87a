"""Fuzz the append kernel against its reference: messages, steps of a queue's tail, copies.

Usage: python tests/fuzz/fuzz_append.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
input that was answered differently, or whatever the sanitizers find when it runs under them.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.records import _append, _append_py
from tests.support.record_fuzz import TOPICS, Attempt, changed_log, compare, messages, some_units
from tests.support.record_kernels import answer, copy_in, encode, hold


def main() -> int:
    return compare("fuzz_append", _append, _append_py, (one_encode, one_hold, one_copy, one_crc))


def one_encode(chance: random.Random) -> Attempt:
    queues = [
        (chance.choice(TOPICS), chance.randrange(-1, 4), chance.randrange(1 << 30))
        for _ in range(3)
    ]
    batch = messages(chance, [0, 1, 2])
    arguments = [queues, batch, chance.randrange(3000), chance.randrange(1 << 50)]
    return encode, arguments, -1


def one_hold(chance: random.Random) -> Attempt:
    def step() -> tuple[str, Any]:
        offset = chance.choice((chance.randrange(40), chance.getrandbits(64) - (1 << 63)))
        cut = chance.choice((0, 0, 0, 1, 20, 100))
        choices: list[tuple[str, Any]] = [
            ("extend", some_units(chance, 0)[cut:]), ("drop", offset), ("take_back", offset),
            ("units", (offset, chance.randrange(-1, 40))), ("reset", chance.randrange(40)),
        ]  # fmt: skip
        return chance.choices(choices, weights=(6, 3, 1, 3, 1))[0]

    arguments = [chance.randrange(30), [step() for _ in range(chance.randrange(12))]]
    return hold, arguments, -1


def one_copy(chance: random.Random) -> Attempt:
    data = changed_log(chance, 0)
    return copy_in, [data, chance.choice((0, len(data), chance.randrange(-1, len(data) + 2)))], -1


def one_crc(chance: random.Random) -> Attempt:
    return crc, [chance.randbytes(chance.randrange(300))], 0


def crc(kernel: Any, data: Any) -> Any:
    return answer(kernel.crc32_31, data)


if __name__ == "__main__":
    sys.exit(main())
