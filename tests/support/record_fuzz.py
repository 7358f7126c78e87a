"""Random messages, units and changed logs, and the loop that compares a kernel with its reference.

Owns: what the fuzz programs of the kernels of records share. Must not touch: pytest and Hypothesis
(the programs run under sanitizers).
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from motelog.core.records import _append_py
from tests.support.record_kernels import STORE_HOSTS

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

# What to call, its arguments behind the kernel, and which of them is a buffer that ends exactly
# where the input does (bytes have a NUL behind them), so that a read beyond it is seen; or -1.
Attempt = tuple[Any, list[Any], int]


def compare(
    program: str,
    kernel: Any,
    reference: Any,
    attempts: tuple[Callable[[random.Random], Attempt], ...],
) -> int:
    """Give random input to both until the time is over; the exit status of the program."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"{program} seed={seed} kernel={kernel.__file__}", flush=True)  # noqa: T201  # output
    chance = random.Random(seed)
    stop = time.monotonic() + seconds
    inputs = 0
    while inputs % 64 or time.monotonic() < stop:
        inputs += 1
        for attempt in attempts:
            call, arguments, exact = attempt(chance)
            given = [exactly(a) if i == exact else a for i, a in enumerate(arguments)]
            answered, expected = call(kernel, *given), call(reference, *arguments)
            if answered != expected:
                print(f"{arguments!r}\nkernel:    {answered!r}\nreference: {expected!r}")  # noqa: T201
                return 1
    print(f"{program} inputs={inputs} in {seconds:g} s: no difference")  # noqa: T201  # output
    return 0


def exactly(data: bytes) -> Any:
    return (ctypes.c_ubyte * len(data)).from_buffer_copy(data)


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


def changed_log(chance: random.Random, base: int) -> bytes:
    return mutated(chance, log(chance, base))


def log(chance: random.Random, base: int) -> bytearray:
    tails = [_append_py.QueueTail(topic, i, i) for i, topic in enumerate(TOPICS)]
    target = bytearray(8000)
    batch = messages(chance, tails)
    host = chance.choice(STORE_HOSTS)
    _, end = _append_py.encode_batch(target, 3, 8000, base, batch, 0, 1_000, host, [], None)
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
