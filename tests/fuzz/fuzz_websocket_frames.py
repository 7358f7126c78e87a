"""Fuzz the WebSocket frames kernel against its reference: damaged frames, cut anywhere.

Usage: python tests/fuzz/fuzz_websocket_frames.py [SECONDS] [SEED]. Prints the seed; exit status 1
and the pieces that were answered differently, or whatever the sanitizers find when it runs under
them. Pieces are bytes, which have a NUL behind them; most end within a frame.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.net import _websocket_frames, _websocket_frames_py
from tests.support.coded_peers import split_at
from tests.support.websocket_streams import answers, random_frames


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"fuzz_websocket_frames seed={seed} kernel={_websocket_frames.__file__}", flush=True)  # noqa: T201
    chance = random.Random(seed)
    stop = time.monotonic() + seconds
    streams = 0
    while streams % 64 or time.monotonic() < stop:
        streams += 1
        stream = random_frames(chance) if chance.random() < 0.9 else chance.randbytes(40)
        cuts = [chance.randrange(1 << 20) for _ in range(chance.choice((0, 1, 2, 5, 40, 300)))]
        pieces = split_at(stream, cuts)
        close_before = chance.choice((-1, -1, chance.randrange(len(pieces))))
        kernel = answers(_websocket_frames.Frames(), pieces, close_before)
        reference = answers(_websocket_frames_py.Frames(), pieces, close_before)
        if kernel != reference:
            print(f"{pieces!r}\nkernel:    {kernel!r}\nreference: {reference!r}")  # noqa: T201
            return 1
    print(f"fuzz_websocket_frames streams={streams} in {seconds:g} s: no difference")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
