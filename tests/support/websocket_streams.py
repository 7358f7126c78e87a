"""Streams of WebSocket frames, whole and damaged, and what one end makes of them.

Owns: random_frames, answers. Must not touch: which implementation is asked.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.support.coded_peers import client_frame

#: Lengths at which a header gets another form, or a mask is turned.
SIZES = (0, 1, 2, 3, 4, 7, 8, 9, 79, 124, 125, 126, 127, 300, 65_535, 65_536, 70_000)
#: Codes of closing frames at the edges of those that an endpoint may send.
CODES = (0, 999, 1000, 1003, 1004, 1006, 1007, 1014, 1015, 2999, 3000, 4999, 5000, 65_535)
#: First bytes of a header, most of which are wrong somewhere.
EDGES = b"\x00\x01\x02\x0a\x70\x7e\x7f\x80\x81\x82\x83\x87\x88\x89\x8a\x8b\xc2\xfe\xff"


def random_frames(chance: random.Random) -> bytes:
    """Return frames as clients send them, some of them in a fragmented message, some damaged."""
    stream = bytearray()
    in_message = False
    for _ in range(chance.randrange(8)):
        mask = chance.randbytes(4)
        kind = chance.randrange(10)
        if kind < 6:
            is_last = chance.random() < 0.7
            payload = chance.randbytes(
                chance.choice(SIZES[:-3] if chance.random() < 0.9 else SIZES)
            )
            width = chance.choice((0,) * 20 + (2, 8))
            opcode = 0 if in_message else 2
            stream += client_frame(payload, opcode, is_last=is_last, mask=mask, width=width)
            in_message = not is_last
        elif kind < 8:
            payload = chance.randbytes(chance.choice((0, 1, 5, 125, 126)))
            stream += client_frame(payload, chance.choice((9, 10)), mask=mask)
        elif kind < 9:
            payload = chance.choice(CODES).to_bytes(2, "big") + chance.randbytes(5)
            stream += client_frame(payload[: chance.choice((0, 1, 2, 7))], 8, mask=mask)
        else:
            stream += client_frame(b"x", chance.randrange(16), is_last=chance.random() < 0.5)
    for _ in range(chance.choice((0, 0, 1, 3))):
        if stream:
            stream[chance.randrange(len(stream))] = chance.choice(EDGES)
    if chance.random() < 0.2:
        del stream[chance.randrange(len(stream) + 1) :]
    return bytes(stream)


def answers(frames: Any, pieces: Sequence[bytes], close_before: int = -1) -> list[Any]:
    """Return everything that one end answers to pieces; it closes before that one."""
    said: list[Any] = []
    for number, piece in enumerate(pieces):
        if number == close_before:
            said.append(frames.close())
        said += [frames.receive(piece), frames.send(piece)]
    return [*said, frames.close(), frames.send(b"behind"), frames.receive(b"behind")]
