"""Sends byte streams in given pieces through a reactor and says what came out.

Owns: run_streams and what it compares, valid and hostile stream generators. Used by the property
tests and the fuzz program. Must not touch: anything outside abstract Unix sockets.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from motelog.core.net.reactor import CloseReason, Fault, Framing, Reactor, Turn
from tests.support.reactor_loop import listening_unix, mqtt_frame, reactor_loop


@dataclass
class Outcome:
    """What a reactor said about one stream."""

    frames: list[bytes] = field(default_factory=list)
    fault: Fault | None = None
    closed: CloseReason | None = None


def split_at(stream: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The stream in pieces, cut at the given positions (modulo its length)."""
    positions = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    return [stream[begin:end] for begin, end in pairwise(positions)]


def run_streams(
    framing: Framing,
    streams: Sequence[Sequence[bytes]],
    *,
    frame_bytes_max: int,
) -> list[Outcome]:
    """Open a connection per stream, send the pieces in turns, then close; return the outcomes."""
    with reactor_loop(
        Reactor(), framing=framing, frame_bytes_max=frame_bytes_max, sock=listening_unix()
    ) as loop:
        peers = [loop.open() for _ in streams]
        for i in range(max((len(pieces) for pieces in streams), default=0)):
            for (_, peer), pieces in zip(peers, streams, strict=True):
                if i < len(pieces):
                    send_while_polling(loop.turn, peer, pieces[i])
            loop.turn()
        for _, peer in peers:
            peer.shutdown(socket.SHUT_WR)
        known = {connection for connection, _ in peers}
        loop.until(lambda: known == {c for c, _ in loop.faults} | {c for c, _ in loop.closed})
        faults, closed = dict(loop.faults), dict(loop.closed)
        return [Outcome(loop.frames[c], faults.get(c), closed.get(c)) for c, _ in peers]


def send_while_polling(poll: Callable[[], Turn], peer: socket.socket, piece: bytes) -> None:
    """Send all of it, polling whenever the socket is full, until the reactor stops reading."""
    peer.setblocking(False)
    idle = 0
    while piece and idle < 3:
        try:
            piece = piece[peer.send(piece) :]
            idle = 0
        except BlockingIOError:
            # A large frame is received over several turns, and frees its buffer with the last.
            if not poll().more:
                idle += 1


def expected(framing: Framing, stream: bytes, *, frame_bytes_max: int) -> Outcome:
    """What the length rules say about a stream, without a reactor: the specification once more."""
    outcome = Outcome()
    while stream:
        if framing is Framing.REMOTING:
            header, length = 4, int.from_bytes(stream[:4], "big")
            if len(stream) < 4:
                break
            malformed = length < 4
        else:
            groups = stream[1:5]
            last = next((i for i, byte in enumerate(groups) if byte < 128), None)
            if last is None and len(groups) < 4:
                break
            malformed = last is None
            header = 2 + (last or 0)
            length = sum((byte & 127) << (7 * i) for i, byte in enumerate(groups[: header - 1]))
        if malformed or header + length > frame_bytes_max:
            outcome.fault = Fault.MALFORMED_LENGTH if malformed else Fault.FRAME_TOO_LARGE
            return outcome
        if len(stream) < header + length:
            break
        outcome.frames.append(stream[: header + length])
        stream = stream[header + length :]
    outcome.closed = CloseReason.PEER
    return outcome


def random_stream(rng: random.Random, framing: Framing) -> bytes:
    """Valid frames of many sizes, then perhaps damaged: flipped, cut, doubled, spliced bytes."""
    parts = []
    for _ in range(rng.randrange(12)):
        size = rng.choice((0, 1, 4, 60, 127, 128, 300, 5_000, 20_000, 70_000))
        body = rng.randbytes(rng.randrange(size + 1))
        if framing is Framing.MQTT:
            parts.append(mqtt_frame(body, rng.randrange(256)))
        else:
            parts.append((len(body) + 4).to_bytes(4, "big") + b"head" + body)
    stream = bytearray(b"".join(parts))
    for _ in range(rng.choice((0, 0, 1, 3))):
        at = rng.randrange(len(stream) + 1)
        match rng.randrange(4):
            case 0 if at < len(stream):
                stream[at] ^= 1 << rng.randrange(8)
            case 1:
                del stream[at : at + rng.randrange(1, 9)]
            case 2:
                stream[at:at] = stream[at : at + rng.randrange(1, 200)]
            case _:
                stream[at:at] = rng.choice(
                    (b"\xff\xff\xff\xff", b"\x30\x80\x80\x80\x01", b"\0" * 4)
                )
    return bytes(stream)
