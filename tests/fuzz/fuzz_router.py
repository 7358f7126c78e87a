"""Fuzz the router kernel against its reference: topic names that are no names, texts that are long.

Usage: python tests/fuzz/fuzz_router.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
publish that was answered differently, or whatever the sanitizers find when it runs under them.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.message import PROPERTIES_BYTES_MAX
from motelog.gateway.publish import _router, _router_py

LEVELS = (b"", b"a", b"bc", b"$SYS", b"no good", b"x" * 127, b"x" * 128, b"\xc3\xa4", b"\xe2\x82")
TOPIC_BYTES_MAX = 300
NAMES_KEPT_MAX = 64


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"fuzz_router seed={seed} kernel={_router.__file__}", flush=True)  # noqa: T201
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    batches = 0
    while batches % 64 or time.monotonic() < end:
        batches += 1
        octets = bytes(chance.choices(b"\0\1", k=256))
        routers = [
            kernel.Router(octets, level_bytes_max=127, topic_bytes_max=TOPIC_BYTES_MAX)
            for kernel in (_router, _router_py)
        ]
        names = [name(chance) for _ in range(NAMES_KEPT_MAX)]
        levels: list[bytes | str] = [*chance.sample(LEVELS, 4), "others", "unnameable"]
        for level in levels:
            count = chance.choice([None, 0, 1, 7, "routes"])
            routes = chance.sample(names, 20)
            for router, kernel in zip(routers, (_router, _router_py), strict=True):
                put(router, level, place(kernel, count, routes))
        for topic in (*names, *(name(chance) for _ in range(NAMES_KEPT_MAX))):
            text = b"t" * chance.choice([0, 13, PROPERTIES_BYTES_MAX - len(topic) - 16])
            arguments = (topic, b"payload", text, chance.randbytes(chance.randrange(9)), 1, b"h")
            kernel, reference = (router.message(*arguments) for router in routers)
            if kernel != reference:
                print(f"message{arguments!r}\nkernel:    {kernel!r}\nreference: {reference!r}")  # noqa: T201
                return 1
    print(f"fuzz_router batches={batches} in {seconds:g} s: no difference")  # noqa: T201
    return 0


def name(chance: random.Random) -> bytes:
    levels = [chance.choice(LEVELS) for _ in range(chance.randrange(1, 5))]
    if chance.random() < 0.3:
        levels[chance.randrange(len(levels))] = chance.randbytes(chance.randrange(20))
    topic = b"/".join(levels)
    return topic[: chance.randrange(len(topic) + 1)] if chance.random() < 0.2 else topic


def place(kernel: Any, count: Any, names: list[bytes]) -> Any:
    if count == "routes":
        return {name: kernel.Route(name, b"route of " + name, len(name)) for name in names}
    return None if count is None else [f"queue {number}" for number in range(count)]


def put(router: Any, level: bytes | str, where: Any) -> None:
    if isinstance(level, str):
        setattr(router, level, where)
    elif where is not None:
        router.levels[level] = where


if __name__ == "__main__":
    sys.exit(main())
