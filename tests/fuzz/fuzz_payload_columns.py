"""Fuzz the payload parser's kernel against its reference: nearly right payloads, odd limits.

Usage: python tests/fuzz/fuzz_payload_columns.py [SECONDS] [SEED]. Prints the seed; exit status 1
and the input that was answered differently, or what the sanitizers find when it runs under them.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.spark import _payload_columns, _payload_columns_py
from motelog.spark.payload_fields import Node, PayloadFormat
from tests.support.msgpack_payloads import MSGPACK_NODES, random_msgpack
from tests.support.payloads import NODES, answer, random_payload
from tests.support.sparkplug_payloads import ODD_NODES, SPARKPLUG_NODES, random_sparkplug

Make = Callable[[random.Random], bytes]
FORMATS: list[tuple[PayloadFormat, list[Node], Make]] = [
    ("json", NODES, random_payload),
    ("msgpack", MSGPACK_NODES, random_msgpack),
    ("sparkplug", SPARKPLUG_NODES, random_sparkplug),
    *(("sparkplug", nodes, random_sparkplug) for nodes in ODD_NODES),
]
FORMATS += FORMATS[:3] * 5


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"fuzz_payload_columns seed={seed} kernel={_payload_columns.__file__}", flush=True)  # noqa: T201  # its output
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    columns = 0
    while columns % 64 or time.monotonic() < end:
        columns += 1
        payload_format, nodes, make = chance.choice(FORMATS)
        rows = [payload(chance, make) for _ in range(chance.randrange(6))]
        row_values_max = chance.choice([2, 20, 1 << 20])
        batch_values_max = chance.choice([1, 40, 1 << 24])
        kernel, reference = (
            answer(
                one,
                rows,
                nodes,
                payload_format=payload_format,
                row_values_max=row_values_max,
                batch_values_max=batch_values_max,
            )
            for one in (_payload_columns, _payload_columns_py)
        )
        if kernel != reference:
            print(f"{payload_format} {rows!r}\nkernel:    {kernel!r}\nreference: {reference!r}")  # noqa: T201  # its output
            return 1
    print(f"fuzz_payload_columns columns={columns} in {seconds:g} s: no difference")  # noqa: T201  # its output
    return 0


def payload(chance: random.Random, make: Make) -> bytes | None:
    if chance.random() < 0.1:
        return None
    return chance.randbytes(chance.randrange(30)) if chance.random() < 0.1 else make(chance)


if __name__ == "__main__":
    sys.exit(main())
