"""Fuzz the file batch kernel against its reference: pieces of files, some of which cannot be.

Usage: python tests/fuzz/fuzz_file_batch.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
input that was answered differently, or whatever the sanitizers find when it runs under them.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.store.disk import _file_batch
from tests.support.file_batches import FILE_BYTES, NAMES, Piece, run_both

LONG = "d" * 200


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"fuzz_file_batch seed={seed} kernel={_file_batch.__file__}", flush=True)  # noqa: T201  # its output
    chance = random.Random(seed)
    stop = time.monotonic() + seconds
    inputs = 0
    while inputs % 64 or time.monotonic() < stop:
        inputs += 1
        before = {
            name: chance.randbytes(chance.randrange(FILE_BYTES + 9))
            for name in chance.sample(NAMES[:4], chance.randrange(4))
        }
        pieces = [one_piece(chance) for _ in range(chance.randrange(9))]
        kernel, reference = run_both(before, pieces)
        if kernel != reference:
            print(f"{before!r} {pieces!r}\nkernel:    {kernel!r}\nreference: {reference!r}")  # noqa: T201
            return 1
    print(f"fuzz_file_batch inputs={inputs} in {seconds:g} s: no difference")  # noqa: T201  # its output
    return 0


def one_piece(chance: random.Random) -> Piece:
    data = chance.randbytes(chance.choice((0, 1, 20, FILE_BYTES, FILE_BYTES + 1)))
    at = chance.choice((0, 0, 20, FILE_BYTES - len(data), chance.randrange(-1, FILE_BYTES + 2)))
    odd = ("\0", "T/0/\0", "/".join([LONG] * chance.randrange(1, 22)), "", "..", "T/0/a" * 99)
    name = chance.choice(NAMES) if chance.random() < 0.9 else chance.choice(odd)
    return name, max(at, -1), data


if __name__ == "__main__":
    sys.exit(main())
