"""Fuzz the scan kernel against its reference: logs that were changed.

Usage: python tests/fuzz/fuzz_scan.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
input that was answered differently, or whatever the sanitizers find when it runs under them.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.records import _scan, _scan_py
from tests.support.record_fuzz import PIECES, Attempt, changed_log, compare
from tests.support.record_kernels import scan


def main() -> int:
    return compare("fuzz_scan", _scan, _scan_py, (one_scan,))


def one_scan(chance: random.Random) -> Attempt:
    base = chance.randrange(1 << 50)
    data = changed_log(chance, base)
    begin = chance.choice((0, 3, chance.randrange(len(data) + 2)))
    end = chance.choice((len(data), chance.randrange(len(data) + 2)))
    return scan, [data, begin, end, base, chance.choice(PIECES)], 0


if __name__ == "__main__":
    sys.exit(main())
