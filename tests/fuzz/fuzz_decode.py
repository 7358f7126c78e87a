"""Fuzz the decode kernel against its reference: logs that were changed.

Usage: python tests/fuzz/fuzz_decode.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
input that was answered differently, or whatever the sanitizers find when it runs under them.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.records import _decode, _decode_py
from tests.support.record_fuzz import PIECES, Attempt, changed_log, compare
from tests.support.record_kernels import decode


def main() -> int:
    return compare("fuzz_decode", _decode, _decode_py, (one_decode,))


def one_decode(chance: random.Random) -> Attempt:
    data = changed_log(chance, chance.randrange(1 << 50))
    data = data[3:] if chance.random() < 0.9 else data
    offsets = (chance.randrange(9), chance.randrange(9))
    return decode, [data, *offsets, chance.choice(PIECES)], 0


if __name__ == "__main__":
    sys.exit(main())
