"""Mutated streams through the WebSocket and PROXY codecs: any cut gives the same, none raises.

Usage: python tests/fuzz/fuzz_codecs.py [SECONDS] [SEED]. Prints the seed; exit status 1 and the
round that showed a difference.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.net.codec import Codec, Stacked, Stream
from motelog.core.net.proxy_protocol import SIGNATURE, ProxyCodec
from motelog.core.net.websocket import REQUEST_BYTES_MAX, WebSocketCodec
from tests.support.coded_peers import client_frame, opening_request, split_at

HEADERS = (
    b"PROXY TCP4 192.0.2.7 198.51.100.1 51515 1883\r\n",
    SIGNATURE + bytes.fromhex("21 11 000c c0000207 01020304 c93b 075b"),
)


def stream_of(rng: random.Random) -> bytes:
    stream = bytearray(rng.choice(HEADERS) + opening_request())
    for _ in range(rng.randrange(8)):
        size = rng.choice((0, 1, 125, 126, 200, 70_000))
        opcode = rng.choice((0, 2, 2, 2, 8, 9, 10))
        stream += client_frame(rng.randbytes(size), opcode, is_last=rng.random() < 0.8)
    for _ in range(rng.choice((0, 0, 1, 5))):
        stream[rng.randrange(len(stream))] = rng.randrange(256)
    return bytes(stream)


def run(pieces: list[bytes]) -> tuple[bytes, bytes, Stream, tuple[str, int] | None]:
    codec: Codec = Stacked(ProxyCodec(), WebSocketCodec("/mqtt"))
    data = answer = b""
    stream = Stream.OPEN
    for piece in pieces:
        decoded = codec.receive(piece)
        data += decoded.data
        answer += decoded.answer
        stream = max(stream, decoded.stream)
    assert len(data) <= sum(map(len, pieces)), "more came out than went in"
    return data, answer, stream, codec.peer


def fuzz_round(rng: random.Random) -> None:
    stream = stream_of(rng)
    cuts = [rng.randrange(len(stream)) for _ in range(rng.choice((1, 3, 40, REQUEST_BYTES_MAX)))]
    assert run([stream]) == run(split_at(stream, cuts))


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() & 0xFFFFFFFF
    sys.stdout.write(f"seed {seed}\n")
    ends_s = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < ends_s:
        try:
            fuzz_round(random.Random(f"{seed}/{rounds}"))
        except BaseException:
            sys.stdout.write(f"round {rounds} of seed {seed}\n")
            raise
        rounds += 1
    sys.stdout.write(f"{rounds} rounds\n")


if __name__ == "__main__":
    main()
