"""Fuzz the read kernel against its reference: units and the logs that they name.

Usage: python tests/fuzz/fuzz_read.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
input that was answered differently, or whatever the sanitizers find when it runs under them.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.records import _read, _read_py
from tests.support.record_fuzz import Attempt, changed_log, compare, some_units
from tests.support.record_kernels import choose, copy_out, gather


def main() -> int:
    return compare("fuzz_read", _read, _read_py, (one_gather, one_copy, one_selection))


def one_gather(chance: random.Random) -> Attempt:
    base = chance.randrange(1 << 50)
    data = changed_log(chance, base)
    units = some_units(chance, base)
    return gather, [data, base, units, chance.randrange(-1, 3), chance.randrange(-1, 6)], 0


def one_copy(chance: random.Random) -> Attempt:
    data = changed_log(chance, 0)
    begin, end = (chance.randrange(-1, len(data) + 2) for _ in range(2))
    return copy_out, [data, begin, end], 0


def one_selection(chance: random.Random) -> Attempt:
    units = some_units(chance, 0)
    limits = (chance.randrange(8), chance.randrange(900), chance.randrange(900))
    codes = None if chance.random() < 0.5 else frozenset(chance.choices((0, 1, -1, 2**31), k=2))
    units = units[: chance.randrange(len(units) + 1)]
    return choose, [units, limits, codes], 0


if __name__ == "__main__":
    sys.exit(main())
