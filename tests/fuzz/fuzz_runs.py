"""Fuzz the runs kernel against its reference: runs of records that are plain, odd and no records.

Usage: python tests/fuzz/fuzz_runs.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
run that was answered differently, or whatever the sanitizers find when it runs under them.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.message import MQTT_PROPERTIES, MQTT_QOS
from motelog.gateway.deliver import _runs, _runs_py

TEXTS = (
    b"",
    *(f"{MQTT_QOS}\x01{qos}\x02".encode() for qos in range(3)),
    f"{MQTT_PROPERTIES}\x01aa\x02".encode(),
    MQTT_QOS.encode(),
)
NAMES = (b"a", b"b", b"", b"x" * 200, None)
ODD = (None, (), (0,) * 8, (0, b"t", b"", b"", b"", 0, 0), (0, "t", b"", b"", b"", 0, 0, 0))


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"fuzz_runs seed={seed} kernel={_runs.__file__}", flush=True)  # noqa: T201
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    batches = 0
    while batches % 64 or time.monotonic() < end:
        batches += 1
        records = [record(chance) for _ in range(chance.randrange(40))]
        taken = chance.sample(range(1, 50), chance.randrange(20))
        numbers = (
            chance.choice([1, 5, 40, 65_535]),  # limit
            chance.choice([0, 1, 30, 65_534, 65_535]),  # last packet identifier
            chance.choice([0, 1, 2**24 - 1]),  # queue number
            chance.randrange(-1, 3),  # plain QoS
            chance.choice([0x30, 0x31]),
            chance.choice([0, 0, 5]),  # aged
            chance.randrange(99),  # bytes taken
            chance.choice([0, 500, 1 << 40]),
        )
        begin, wants = chance.randrange(4), wanted(chance)
        kernel, reference = (
            answer(one, records, begin, wants, taken, numbers) for one in (_runs, _runs_py)
        )
        if kernel != reference:
            told = f"kernel:    {kernel}\nreference: {reference}"
            print(f"{records!r}\n{begin} {wants!r} {taken} {numbers}\n{told}")  # noqa: T201
            return 1
        records.insert(chance.randrange(len(records) + 1), chance.choice(ODD))
        answer(_runs, records, begin, wants, taken, numbers)
    print(f"fuzz_runs batches={batches} in {seconds:g} s: no difference")  # noqa: T201
    return 0


def record(chance: random.Random) -> Any:
    text = b"".join(chance.choices(TEXTS, k=chance.randrange(3))) + chance.randbytes(3)
    body = chance.randbytes(chance.randrange(9))
    flags = chance.choice([0] * 8 + [1, 2, 3])
    queue_offset = chance.choice([0, 2**48 - 1, chance.randrange(2**48)])
    return (queue_offset, chance.choice(NAMES), b"t", text, body, flags, chance.randrange(9), 0)


def wanted(chance: random.Random) -> Any:
    if chance.random() < 0.3:
        return options(chance)
    names = chance.sample(NAMES[:4], chance.randrange(5))
    return {name: {"r": options(chance)} if chance.random() < 0.8 else {} for name in names}


def options(chance: random.Random) -> int:
    return chance.choice([0, 1, 1, 1, 2, 2, chance.randrange(64)])


def answer(
    kernel: Any, records: Any, begin: int, wants: Any, taken: list[int], numbers: Any
) -> Any:
    parts: list[Any] = []
    flights = dict.fromkeys(taken, 7)
    try:
        found = kernel.take_run(records, begin, wants, "r", parts, flights, *numbers)
    except (TypeError, ValueError) as exc:
        found = type(exc)
    return found, parts, list(flights.items())


if __name__ == "__main__":
    sys.exit(main())
