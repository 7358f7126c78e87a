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
ODD = (None, (), (1, b"t"), (1, b"t", None), (1, b"t", (0,) * 8), (1.0, b"t", (0,) * 8))


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"fuzz_runs seed={seed} kernel={_runs.__file__}", flush=True)  # noqa: T201
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    batches = 0
    while batches % 64 or time.monotonic() < end:
        batches += 1
        run = [message(chance) for _ in range(chance.randrange(40))]
        taken = chance.sample(range(1, 50), chance.randrange(20))
        numbers = (
            chance.choice([1, 5, 40, 65_535]),  # limit
            chance.choice([0, 1, 30, 65_534, 65_535]),  # last packet identifier
            chance.choice([0, 1, 2**24 - 1]),  # queue number
            chance.randrange(-1, 3),  # plain QoS
            chance.choice([0x30, 0x31]),
            chance.randrange(99),  # bytes taken
            chance.choice([0, 500, 1 << 40]),
        )
        begin = chance.randrange(4)
        kernel, reference = (answer(one, run, begin, taken, numbers) for one in (_runs, _runs_py))
        if kernel != reference:
            told = f"kernel:    {kernel}\nreference: {reference}"
            print(f"{run!r}\n{begin} {taken} {numbers}\n{told}")  # noqa: T201
            return 1
        run.insert(chance.randrange(len(run) + 1), chance.choice(ODD))
        answer(_runs, run, begin, taken, numbers)
    print(f"fuzz_runs batches={batches} in {seconds:g} s: no difference")  # noqa: T201
    return 0


def message(chance: random.Random) -> Any:
    text = b"".join(chance.choices(TEXTS, k=chance.randrange(3))) + chance.randbytes(3)
    flags = chance.choice([0] * 8 + [1, 2, 3])
    queue_offset = chance.choice([0, 2**48 - 1, chance.randrange(2**48)])
    record = (queue_offset, None, b"t", text, chance.randbytes(chance.randrange(9)), flags, 0, 0)
    options = chance.choice([0, 1, 1, 1, 2, 2, chance.randrange(64)])
    return (options, chance.randbytes(chance.randrange(5)), record)


def answer(kernel: Any, run: Any, begin: int, taken: list[int], numbers: Any) -> Any:
    parts: list[Any] = []
    flights = dict.fromkeys(taken, 7)
    try:
        found = kernel.take_run(run, begin, parts, flights, *numbers)
    except (TypeError, ValueError) as exc:
        found = type(exc)
    return found, parts, list(flights.items())


if __name__ == "__main__":
    sys.exit(main())
