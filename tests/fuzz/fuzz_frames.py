"""Fuzz the frames kernel against its reference: mutated MQTT packets, hostile indexes and buffers.

Usage: python tests/fuzz/fuzz_frames.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
input that was answered differently, or whatever the sanitizers find when it runs under them. The
kernel's buffers end exactly where the input ends (bytes have a NUL behind them): a read beyond it
is seen.
"""

from __future__ import annotations

import ctypes
import json
import random
import struct
import sys
import time
from pathlib import Path
from typing import Any

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.gateway.mqtt import _frames, _frames_py

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "mqtt" / "packets.json"
# Octets at which something changes in a length, a character or a flag.
EDGES = b"\x00\x01\x02\x1f #+/\x7e\x7f\x80\x9f\xa0\xbf\xc1\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5\xff"

# They take bytes alone, which have a NUL behind them.
ENCODERS = {"encode_publish", "encode_publishes"}


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"fuzz_frames seed={seed} kernel={_frames.__file__}", flush=True)  # noqa: T201
    chance = random.Random(seed)
    corpus = [
        (int(vector["version"]), bytes.fromhex(vector["hex"]))
        for vector in json.loads(VECTORS.read_text())
    ]
    end = time.monotonic() + seconds
    batches = 0
    while batches % 64 or time.monotonic() < end:
        batches += 1
        for name, arguments in calls(chance, corpus):
            exact = arguments if name in ENCODERS else tuple(map(exactly, arguments))
            kernel = answer(getattr(_frames, name), exact)
            reference = answer(getattr(_frames_py, name), arguments)
            if kernel != reference:
                print(f"{name}{arguments!r}\nkernel:    {kernel!r}\nreference: {reference!r}")  # noqa: T201
                return 1
    print(f"fuzz_frames batches={batches} in {seconds:g} s: no difference")  # noqa: T201
    return 0


def answer(function: Any, arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except ValueError:
        return ValueError


def exactly(argument: Any) -> Any:
    if not isinstance(argument, bytes):
        return argument
    return (ctypes.c_ubyte * len(argument)).from_buffer_copy(argument)


def calls(
    chance: random.Random, corpus: list[tuple[int, bytes]]
) -> list[tuple[str, tuple[Any, ...]]]:
    """Return calls that must be answered alike."""
    frames = [mutated(chance, *chance.choice(corpus)) for _ in range(chance.randrange(1, 12))]
    data = b"".join(frame for _, frame in frames)
    numbers = []
    begin = 0
    for version, frame in frames:
        numbers += [chance.randrange(3), version, begin, begin + len(frame)]
        begin += len(frame)
    if chance.random() < 0.1:
        at = chance.randrange(len(numbers))
        numbers[at] = chance.choice([0, 1, 5, numbers[at] + 1, max(numbers[at] - 1, 0), 2**32 - 1])
    index = struct.pack(f"={len(numbers)}I", *numbers)
    if chance.random() < 0.02:
        index = index[: chance.randrange(len(index))]
    version, frame = frames[0]
    topic, payload = chance.randbytes(chance.choice([0, 1, 30, 127, 300])), frame
    block = chance.choice([None, b"", data[:200]])
    first_byte = chance.choice([0x30, 0x32, 0x3D, frame[0] if frame else 0x36])
    many = [
        (topic, each, first_byte, chance.choice([0, 1, 0xFFFF, 0x10000]) if each else 9, block)
        for _, each in frames
    ]
    return [
        ("split", (data, index, bytearray(2048), chance.random() < 0.5)),
        ("split_one", (frame[0] if frame else 0, frame[2:], version or 4, 7)),
        ("encode_publish", (topic, payload, first_byte, chance.choice([3, 4, 5, 6]), block)),
        ("encode_publishes", (many, chance.choice([3, 4, 5, 5]))),
    ]


def mutated(chance: random.Random, version: int, packet: bytes) -> tuple[int, bytes]:
    changed = bytearray(packet)
    for _ in range(chance.choice([0, 1, 1, 2, 4])):
        if not changed:
            break
        at = chance.randrange(len(changed))
        match chance.randrange(6):
            case 0:
                changed[at] = chance.choice(EDGES)
            case 1:
                changed[at] ^= 1 << chance.randrange(8)
            case 2:
                del changed[at : at + chance.randrange(1, 5)]
            case 3:
                changed[at:at] = bytes(chance.choices(EDGES, k=chance.randrange(1, 5)))
            case 4:
                changed[at:at] = changed[at : at + chance.randrange(1, 20)]
            case _:
                del changed[at:]
    # Mostly with a right remaining length, or little would be looked at behind it.
    if len(changed) > 1 and chance.random() < 0.8 and len(changed) < 130:
        changed[1] = len(changed) - 2
    return chance.choice([version, version, version, 3, 4, 5, 0]), bytes(changed)


if __name__ == "__main__":
    sys.exit(main())
