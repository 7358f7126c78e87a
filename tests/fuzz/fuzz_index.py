"""Fuzz the index kernel against its reference: keys, mutated index files, mutated logs.

Usage: python tests/fuzz/fuzz_index.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
input that was answered differently, or whatever the sanitizers find when it runs under them. The
input's buffer ends exactly where the input does: a read beyond it is seen.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
import time
from pathlib import Path
from typing import Any

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.store.index import _index, _index_py
from tests.support.index_kernels import any_keyed, build, log, read, walk

TOPICS = (b"T", b"telemetry", b"\xc3\xbc", b"t" * 255)
PIECES = (
    b"KEYS\x01", b"UNIQ_KEY\x01", b"KEYS", b"\x01", b"\x02", b" ", b"Aa", b"BB", b"v" * 40,
    b"\xc3\xa9", b"\xff", b"\xe0", b"\xa0", b"\xed", b"\xf0\x9f", b"\x90", b"\xf4", b"\x80",
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 9, 0x7FFFFFFF, -0x80000000)


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"fuzz_index seed={seed} kernel={_index.__file__}", flush=True)  # noqa: T201  # its output
    chance = random.Random(seed)
    stop = time.monotonic() + seconds
    inputs = 0
    while inputs % 64 or time.monotonic() < stop:
        inputs += 1
        for attempt in (one_batch, one_file, one_log):
            arguments, kernel, reference = attempt(chance)
            if kernel != reference:
                print(f"{arguments!r}\nkernel:    {kernel!r}\nreference: {reference!r}")  # noqa: T201
                return 1
    print(f"fuzz_index inputs={inputs} in {seconds:g} s: no difference")  # noqa: T201  # its output
    return 0


Attempt = tuple[Any, Any, Any]


def one_batch(chance: random.Random) -> Attempt:
    messages = [(text(chance), chance.choice((0, 4, 8, 12, 15))) for _ in range(4)]
    return messages, any_keyed(_index, messages), any_keyed(_index_py, messages)


def one_file(chance: random.Random) -> Attempt:
    shape = (chance.randrange(1, 6), chance.randrange(1, 14))
    items = [
        (number(chance, 63), number(chance, 63), chance.choice(TOPICS), text(chance))
        for _ in range(chance.randrange(6))
    ]
    begin = (chance.choice((0, 0, 0, -1, 2, 9)), chance.choice((0, 0, 1)))
    built = build(_index, shape, items, *begin), build(_index_py, shape, items, *begin)
    if built[0] != built[1]:
        return (shape, items, begin), *built
    data = bytearray(built[1][1])
    for _ in range(chance.choice((0, 1, 3))):
        at = chance.choice((32, 36, 40, chance.randrange(len(data) - 3)))
        struct.pack_into(">i", data, at, chance.choice(NUMBERS))
    if chance.random() < 0.1:
        del data[-1:]
    rest = (
        chance.choice((*NUMBERS, chance.randrange(60))), chance.choice((0, 0, *NUMBERS)),
        number(chance, 63), number(chance, 63), chance.randrange(-1, 15),
    )  # fmt: skip
    exact = (ctypes.c_ubyte * len(data)).from_buffer_copy(data)
    return (
        (bytes(data), shape, rest),
        read(_index, exact, shape, *rest),
        read(_index_py, bytes(data), shape, *rest),
    )


def one_log(chance: random.Random) -> Attempt:
    records = [
        (words(chance), chance.choice((0, 1, 12, 15)), chance.random() < 0.3)
        for _ in range(chance.randrange(5))
    ]
    changes = [
        (chance.randrange(900), chance.randrange(256)) for _ in range(chance.choice((0, 1, 4)))
    ]
    data = log(records, changes)
    data = data[: chance.choice((len(data), chance.randrange(len(data) + 1)))]
    shape = (chance.randrange(1, 6), chance.choice((2, 9, 300)))
    begin, key = chance.choice((0, 0, 0, 3)), chance.choice((0, 0, 1, 150))
    exact = (ctypes.c_ubyte * len(data)).from_buffer_copy(data)
    rest = (begin, len(data), key, chance.randrange(6))
    return (
        (shape, data, rest),
        walk(_index, shape, exact, *rest),
        walk(_index_py, shape, data, *rest),
    )


def text(chance: random.Random) -> bytes:
    return b"".join(chance.choices(PIECES, k=chance.randrange(9)))


def words(chance: random.Random) -> bytes:
    """A text, sometimes with more keys than the kernel takes at once."""
    if chance.random() < 0.9:
        return text(chance)
    return b"KEYS\x01" + b" ".join(chance.choices(PIECES[4:], k=chance.randrange(400)))


def number(chance: random.Random, bits: int) -> int:
    return chance.choice((0, 1, 1_000, 12_345, chance.getrandbits(bits) - (1 << (bits - 1))))


if __name__ == "__main__":
    sys.exit(main())
