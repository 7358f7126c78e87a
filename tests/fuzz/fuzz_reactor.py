"""Mutated and random streams through the reactor kernel, compared with the length rules.

Usage: python tests/fuzz/fuzz_reactor.py [SECONDS] [SEED]. Beside the input, output calls with
random arguments run on connections that do not read or leave. Prints the seed; exit status 1 and
the round that showed a difference, or whatever the sanitizers find when it runs under them.
"""

from __future__ import annotations

import contextlib
import random
import select
import sys
import time
from pathlib import Path

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.net import _reactor
from motelog.core.net.reactor import Framing, Reactor
from tests.support.reactor_loop import listening, reactor_loop
from tests.support.reactor_streams import expected, random_stream, run_streams, split_at

SOCKET_BUFFER_BYTES = 4_096


def fuzz_input(rng: random.Random) -> None:
    """Streams of several connections, cut anywhere: the frames and faults that the rules say."""
    framing = rng.choice(list(Framing))
    frame_bytes_max = rng.choice((2, 100, 5_000, 100_000))
    streams = [random_stream(rng, framing) for _ in range(rng.randrange(1, 5))]
    pieces = [
        split_at(s, [rng.randrange(1 << 20) for _ in range(rng.choice((0, 1, 5, 40)))])
        for s in streams
    ]
    wanted = [expected(framing, s, frame_bytes_max=frame_bytes_max) for s in streams]
    outcomes = run_streams(framing, pieces, frame_bytes_max=frame_bytes_max)
    assert [(o.frames, o.fault) for o in outcomes] == [(w.frames, w.fault) for w in wanted]


def fuzz_output(rng: random.Random) -> None:
    """Random calls on connections that do not read or leave; what arrives is what was sent."""
    reactor = Reactor(connections_max=8, output_bytes_high=3_000, output_bytes_max=9_000)
    sock = listening(buffer_bytes=SOCKET_BUFFER_BYTES)
    with reactor_loop(
        reactor, sock=sock, first_frame_s=2, buffer_bytes=SOCKET_BUFFER_BYTES
    ) as loop:
        peers = [loop.open() for _ in range(rng.randrange(1, 7))]
        sent = {connection: bytearray() for connection, _ in peers}
        received = {connection: bytearray() for connection, _ in peers}
        ended: set[int] = set()
        for _ in range(rng.randrange(10, 200)):
            connection, peer = rng.choice(peers)
            data = rng.randbytes(rng.choice((0, 3, 4, 200, 256, 257, 2_000, 12_000)))
            ids = [rng.choice((c, c, c, -1, 7, 99)) for c in sent]
            match rng.randrange(14):
                case 0 | 1:
                    at = rng.choice((0, len(data) // 2, len(data)))
                    reactor.send(connection, data[:at], data[at:])
                    sent[connection] += data
                case 2 | 3 | 4:
                    ids = list(dict.fromkeys(ids))
                    skipped = reactor.fan_out(data, ids)
                    for c in set(ids) - set(skipped):
                        sent[c] += data
                case 5 | 6 | 7 if len(data) >= 2:
                    at = rng.randrange(len(data) - 1)
                    numbers = {c: rng.randrange(65_536) for c in ids}
                    skipped = reactor.send_numbered(data, at, list(numbers.items()))
                    for c in set(numbers) - set(skipped):
                        sent[c] += data[:at] + numbers[c].to_bytes(2, "big") + data[at + 2 :]
                case 8:
                    rng.choice((reactor.pause, reactor.resume))(connection)
                case 9:
                    ended.add(connection)
                    rng.choice((reactor.close, reactor.abort))(connection)
                case 10:
                    loop.now_s += rng.randrange(3)
                    reactor.sweep(loop.now_s)
                case 11:
                    ended.add(connection)
                    peer.close()
                case 12 if peer.fileno() >= 0:
                    with contextlib.suppress(OSError):
                        peer.send(rng.randbytes(20))
                case _:
                    loop.turn()
            for c, reader in peers:
                if rng.random() < 0.1 and reader.fileno() >= 0:
                    while select.select([reader], [], [], 0)[0]:
                        try:
                            chunk = reader.recv(100_000)
                        except OSError:
                            chunk = b""
                        if not chunk:
                            reader.close()
                            ended.add(c)
                            break
                        received[c] += chunk
            ended |= {c for c, _ in loop.closed}
        for c in sent:
            assert sent[c].startswith(received[c]), f"connection {c} got what it was not sent"


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    print(f"fuzz_reactor seed={seed} kernel={_reactor.__file__}", flush=True)  # noqa: T201
    give_up = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < give_up:
        rng = random.Random(f"{seed}-{rounds}")
        try:
            (fuzz_output if rng.random() < 0.3 else fuzz_input)(rng)
        except AssertionError as exc:
            print(f"fuzz_reactor seed={seed} round {rounds}: {exc}")  # noqa: T201
            return 1
        rounds += 1
    print(f"fuzz_reactor {rounds} rounds, no difference")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
