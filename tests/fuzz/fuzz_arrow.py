"""Fuzz the Arrow decoder's kernel against its reference: mutated pull bodies, odd limits.

Usage: python tests/fuzz/fuzz_arrow.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
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
import zlib
from pathlib import Path
from typing import Any

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.errors import RecordError
from motelog.spark import _arrow, _arrow_py
from motelog.spark.columns import DECODED

# Where something changes in a length, a character or a flag.
EDGES = b"\x00\x01\x02\x10\x20\x30\x5b\x7f\x80\x9f\xa0\xbf\xc1\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5\xff"
PIECES = (
    b"TAGS", b"KEYS", b"mqttRealTopic", b"\x01", b"\x02", b"\x01\x02", b"a", b"", b"\xc3\xa9",
    b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xf0\x9f", b"\xff", b"\xc0\x80",
    b"0123456789", b"qosLevel", b"mqttRetain", b"clientId", b"mqttProperties",
)  # fmt: skip
TIMES = (0, 1, -1, 1_700_000_000_000, 253_402_300_799_999, 253_402_300_800_000, -(1 << 63))


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"fuzz_arrow seed={seed} kernel={_arrow.__file__}", flush=True)  # noqa: T201  # its output
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    bodies = 0
    while bodies % 64 or time.monotonic() < end:
        bodies += 1
        data = pull_body(chance)
        plan = limits(chance)
        kernel = answer(_arrow, exactly(data), plan)
        reference = answer(_arrow_py, data, plan)
        if kernel != reference:
            print(f"{data!r}\n{plan}\nkernel:    {kernel!r}\nreference: {reference!r}")  # noqa: T201
            return 1
    print(f"fuzz_arrow bodies={bodies} in {seconds:g} s: no difference")  # noqa: T201  # its output
    return 0


def exactly(data: bytes) -> Any:
    return (ctypes.c_ubyte * len(data)).from_buffer_copy(data)


def limits(chance: random.Random) -> dict[str, Any]:
    columns = list(DECODED)
    chance.shuffle(columns)
    return {
        "columns": columns[: chance.choice([0, 1, 3, len(columns), len(columns)])],
        "offset_begin": chance.choice([0, 0, 3, -5]),
        "offset_end": chance.choice([5, 40, (1 << 63) - 1]),
        "payload_bytes_max": chance.choice([1, 50, 1 << 20]),
        "bad_payload_null": chance.random() < 0.5,
        "rows_max": chance.choice([1, 3, 1000]),
        "bytes_max": chance.choice([0, 1, 60, 1 << 20]),
    }


def answer(kernel: Any, data: Any, plan: dict[str, Any]) -> list[object]:
    """Return everything that the kernel says about ``data``, batch by batch."""
    decoder = kernel.RecordColumns(
        plan["columns"],
        broker="broker-\u00e9",
        offset_begin=plan["offset_begin"],
        offset_end=plan["offset_end"],
        payload_bytes_max=plan["payload_bytes_max"],
        bad_payload_null=plan["bad_payload_null"],
    )
    said: list[object] = []
    position = 0
    for _ in range(12):
        try:
            position = decoder.append(
                data, position, rows_max=plan["rows_max"], bytes_max=plan["bytes_max"]
            )
            said.append(position)
        except RecordError as exc:
            said.append((str(exc), exc.offset_bytes))
            position = len(data)
        said.append((decoder.rows, decoder.data_bytes, decoder.next_offset))
        taken = decoder.take()
        said.append([(n, [p if p is None else bytes(p) for p in parts]) for n, parts in taken])
        if position == len(data):
            break
    return said


def pull_body(chance: random.Random) -> bytes:
    """Return records back to back, most of them whole, some changed, cut or with bytes added."""
    data = bytearray(b"".join(record(chance, n) for n in range(chance.randrange(8))))
    for _ in range(chance.choice([0, 0, 0, 1, 1, 4])):
        if not data:
            break
        at = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[at] = chance.choice(EDGES)
            case 1:
                data[at : at + 4] = chance.choice(
                    [b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x5b"]
                )
            case 2:
                del data[at : at + chance.randrange(1, 9)]
            case _:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
    return bytes(data)


def record(chance: random.Random, number: int) -> bytes:
    sys_flag = chance.choice([0, 0, 0x10, 0x20, 0x30, 0xFFFF_FFFF])
    body = chance.randbytes(chance.choice([0, 1, 20, 200]))
    kind = chance.randrange(5)
    if kind == 0:
        sys_flag, body = sys_flag & 0x30 | 1, zlib.compress(bytes(len(body) * 3))
    elif kind == 1:
        sys_flag, body = sys_flag & 0x30 | 0x301, zlib.compress(body)[:-1]
    magic, length = chance.choice([(0xDAA320A7, ">B"), (0xDAA320AB, ">H")])
    topic = b"".join(chance.choices(PIECES, k=chance.randrange(4)))
    count = chance.choice([0, 3, 12, 120])
    properties = b"".join(chance.choices(PIECES, k=count))
    if chance.random() < 0.5:
        properties = b"".join(
            b"n%d\x01%s\x02" % (chance.randrange(40), chance.choice(PIECES)) for _ in range(count)
        )
    rest = b"".join(
        (
            struct.pack(">IIi", magic, 0, number),
            struct.pack(">iqqI", 0, chance.choice([number, number, 2]), 0, sys_flag),
            struct.pack(">q", chance.choice(TIMES)) + bytes(20 if sys_flag & 0x10 else 8),
            struct.pack(">q", chance.choice(TIMES)) + bytes(20 if sys_flag & 0x20 else 8),
            struct.pack(">iqi", 0, 0, len(body)) + body,
            struct.pack(length, len(topic)) + topic,
            struct.pack(">h", len(properties)) + properties,
        )
    )
    return struct.pack(">I", len(rest) + 4) + rest


if __name__ == "__main__":
    sys.exit(main())
