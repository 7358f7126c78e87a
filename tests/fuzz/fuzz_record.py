"""Fuzz the record kernel against its reference: mutated logs, units and messages.

Usage: python tests/fuzz/fuzz_record.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
input that was answered differently, or whatever the sanitizers find when it runs under them. The
input's buffer ends exactly where the input does (bytes have a NUL behind them): a read beyond it is
seen.
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

from motelog.core.records import _record, _record_py
from tests.support.record_kernels import STORE_HOSTS, choose, encode, gather, hold, read

TOPICS = (b"T", b"timed", b"t" * 127, b"t" * 128, b"t" * 255)
PIECES = (
    b"TAGS",
    b"KEYS",
    b"UNIQ_KEY",
    b"name",
    b"\x01",
    b"\x02",
    b"v",
    b"",
    b"\xc3\xa9",
    b"\xff",
    b"0123456789",
)
EDGES = b"\x00\x01\x02\x08\x10\x20\x30\x5b\x5c\x7f\x80\xa3\xa7\xab\xda\xff"
SIZES = (0, 1, 91, 92, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"fuzz_record seed={seed} kernel={_record.__file__}", flush=True)  # noqa: T201  # its output
    chance = random.Random(seed)
    stop = time.monotonic() + seconds
    inputs = 0
    while inputs % 64 or time.monotonic() < stop:
        inputs += 1
        for attempt in (one_encode, one_hold, one_read, one_selection):
            call, arguments, exact = attempt(chance)
            kernel = call(_record, *(exactly(a) if i == exact else a for i, a in arguments))
            reference = call(_record_py, *(a for _, a in arguments))
            if kernel != reference:
                print(f"{arguments!r}\nkernel:    {kernel!r}\nreference: {reference!r}")  # noqa: T201
                return 1
    print(f"fuzz_record inputs={inputs} in {seconds:g} s: no difference")  # noqa: T201  # its output
    return 0


def exactly(data: bytes) -> Any:
    return (ctypes.c_ubyte * len(data)).from_buffer_copy(data)


Attempt = tuple[Any, list[tuple[int, Any]], int]


def one_encode(chance: random.Random) -> Attempt:
    queues = [
        (chance.choice(TOPICS), chance.randrange(-1, 4), chance.randrange(1 << 30))
        for _ in range(3)
    ]
    batch = messages(chance, [0, 1, 2])
    arguments = [queues, batch, chance.randrange(3000), chance.randrange(1 << 50)]
    return encode, list(enumerate(arguments)), -1


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
    return hold, list(enumerate(arguments)), -1


def one_read(chance: random.Random) -> Attempt:
    base = chance.randrange(1 << 50)
    data = mutated(chance, log(chance, base))
    begin = chance.choice((0, 3, chance.randrange(len(data) + 2)))
    end = chance.choice((len(data), chance.randrange(len(data) + 2)))
    arguments: list[Any] = [data, begin, end, base, chance.choice(PIECES)]
    if chance.random() < 0.3:
        units = some_units(chance, base)
        arguments = [data, base, units, chance.randrange(-1, 3), chance.randrange(-1, 6)]
        return gather, list(enumerate(arguments)), 0
    return read, list(enumerate(arguments)), 0


def one_selection(chance: random.Random) -> Attempt:
    units = some_units(chance, 0)
    limits = (chance.randrange(8), chance.randrange(900), chance.randrange(900))
    codes = None if chance.random() < 0.5 else frozenset(chance.choices((0, 1, -1, 2**31), k=2))
    units = units[: chance.randrange(len(units) + 1)]
    return choose, list(enumerate([units, limits, codes])), 0


def messages(chance: random.Random, tails: list[Any]) -> list[Any]:
    def number(bits: int) -> int:
        return chance.choice((0, 1, -1, chance.getrandbits(bits) - (1 << (bits - 1))))

    return [
        (
            chance.choice(tails), chance.randbytes(chance.choice((0, 1, 40, 300))),
            b"".join(chance.choices(PIECES, k=chance.randrange(8))), number(64), number(64),
            chance.choice(STORE_HOSTS), number(32), number(32), number(32), number(64),
        )
        for _ in range(chance.randrange(6))
    ]  # fmt: skip


def log(chance: random.Random, base: int) -> bytearray:
    tails = [_record_py.QueueTail(topic, i, i) for i, topic in enumerate(TOPICS)]
    target = bytearray(8000)
    batch = messages(chance, tails)
    host = chance.choice(STORE_HOSTS)
    _, end = _record_py.encode_batch(target, 3, 8000, base, batch, 0, 1_000, host, [], None)
    return target[:end] + chance.choice((b"", bytes(12), b"\x00\x00\x00\x0c\xcb\xd4\x31\x94abcd"))


def mutated(chance: random.Random, data: bytearray) -> bytes:
    for _ in range(chance.choice((0, 0, 1, 2, 6))):
        if not data:
            break
        at = chance.randrange(len(data))
        match chance.randrange(5):
            case 0:
                data[at] = chance.choice(EDGES)
            case 1:
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                data[at : at + 4] = struct.pack(">I", chance.choice(SIZES))
            case 3:
                del data[at : at + chance.randrange(9)]
            case _:
                del data[at:]
    return bytes(data)


def some_units(chance: random.Random, base: int) -> bytes:
    return b"".join(
        struct.pack(
            ">qIq",
            base + chance.choice((3, 0, -1, chance.randrange(900), 1 << 12)),
            chance.choice((*SIZES, 0, chance.randrange(400))),
            chance.choice((0, 1, -1, 1 << 40)),
        )
        for _ in range(5)
    )


if __name__ == "__main__":
    sys.exit(main())
