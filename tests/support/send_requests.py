"""Requests that send, as clients write them and changed, and the rules of a broker that takes them.

Owns: what the property test and the fuzz program of the sends kernel share. Must not touch: pytest
and Hypothesis (the program runs under sanitizers).
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

from motelog.core.remoting.frames import (
    RemotingCommand,
    Serialize,
    encode,
    encode_batch_items,
)

HOST = b"7F00000100002A9F"
ADDED = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
ODD_NAMES = (b"DELAY", b"TRAN_MSG", b"MSG_REGION")
KEY = "AC1100021A6F18B4AAC2951F4A680000"
PIECES = (
    "TAGS", "WAIT", "UNIQ_KEY", "DELAY", "DELA", "color", "\x01", "\x02", "\x01true\x02",
    "\x01false\x02", KEY, "é", "𝄞", '"', "\\", "\n", "\x00", "",
)  # fmt: skip
VALUES = ("0", "-1", "1", "4", "2147483647", "2147483648", "true", "", "x", "1_0", " 1", "٣", "%R")
EDGES = b'\x00\x01\x02\x0c\x20"\\{}[]:,u0123456789-\x7f\x80\xc3\xed\xff'


def rules(kernel: Any) -> Any:
    """Return the rules of a broker, made by the kernel or its reference."""
    return kernel.SendRules(
        ADDED,
        ODD_NAMES,
        b'{"code":0,"extFields":{"msgId":"',
        b',"flag":1}',
        b"\x00\x00\x03\x01\x99",
        b"\x00\x08TRACE_ON\x00\x00\x00\x04true",
        HOST,
    )


def fields(properties: str, **changed: str) -> dict[str, str]:
    """Return the header fields of a send as Java writes them."""
    plain = {
        "a": "group", "b": "topic", "c": "TBW102", "d": "4", "e": "1", "f": "0",
        "g": "1763700000000", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        "n": "broker",
    }  # fmt: skip
    return plain | changed


def frame(
    ext: dict[str, str], body: bytes, serialize: Serialize, code: int = 310, flag: int = 0
) -> bytes:
    return encode(
        RemotingCommand(code, opaque=7, flag=flag, ext=ext, body=body, serialize=serialize)
    )


def random_text(chance: random.Random) -> str:
    """Return a property text, mostly one with a unique key."""
    text = "".join(chance.choice(PIECES) for _ in range(chance.randrange(8)))
    return text + (f"\x02UNIQ_KEY\x01{KEY}\x02" if chance.random() < 0.7 else "")


def random_batch(chance: random.Random) -> bytes:
    """Return the body of a batch, at times a damaged one."""
    items = [
        (chance.choice((0, 1, -1)), chance.randbytes(chance.randrange(6)), text.encode())
        for text in (random_text(chance) for _ in range(chance.randrange(4)))
    ]
    return (
        damaged(chance, encode_batch_items(items))
        if chance.random() < 0.5
        else (encode_batch_items(items))
    )


def random_frame(chance: random.Random) -> bytes:
    """Return a send, at times with odd fields, at times a damaged one."""
    ext = fields(random_text(chance))
    for _ in range(chance.choice((0, 0, 1, 2))):
        ext[chance.choice([*"abcdefghijklm", "x"])] = chance.choice(VALUES)
    if chance.random() < 0.1:
        del ext[chance.choice(list(ext))]
    made = frame(
        ext,
        random_batch(chance),
        chance.choice((Serialize.JSON, Serialize.ROCKETMQ)),
        chance.choice((310, 310, 320, 10)),
        chance.choice((0, 0, 1, 2)),
    )
    return damaged(chance, made) if chance.random() < 0.4 else made


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return ``data`` with some bytes changed, cut or put in."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(3):
            case 0 if at < len(changed):
                changed[at] = chance.choice(EDGES)
            case 1:
                del changed[at : at + chance.randrange(1, 4)]
            case _:
                changed[at:at] = bytes(chance.choices(EDGES, k=chance.randrange(1, 4)))
    if chance.random() < 0.7 and len(changed) >= 4:
        changed[:4] = (len(changed) - 4).to_bytes(4, "big")
    return bytes(changed)


def turn(frames: list[bytes]) -> tuple[bytes, bytes]:
    """Return the data and the index of a turn that has these frames."""
    index, begin = array("I"), 0
    for number, one in enumerate(frames):
        index.extend((number, 0, begin, begin + len(one)))
        begin += len(one)
    return b"".join(frames), index.tobytes()


def random_turn(
    chance: random.Random, make: Callable[[random.Random], bytes]
) -> tuple[bytes, bytes, int]:
    """Return data, index and count of frames of a turn; at times they do not fit each other."""
    frames = [make(chance) for _ in range(chance.randrange(1, 6))]
    data, index = turn(frames)
    if chance.random() < 0.1:
        data = data[: chance.randrange(len(data) + 1)]
    return data, index, len(frames) + (chance.random() < 0.02)


def random_staged(chance: random.Random) -> tuple[list[Any], list[tuple[int, int]]]:
    """Return staged sends and where their messages are."""
    staged, placed = [], []
    for _ in range(chance.randrange(4)):
        count = chance.choice((1, 1, 2, 5))
        key = chance.choice((None, KEY.encode(), b"", b'a"b', b"\xc3\xa9"))
        staged.append(
            (
                None, chance.choice((0, 7, -1, 2**31 - 1, -(2**31))), chance.choice((0, 0, 1, 2)),
                chance.random() < 0.1, chance.choice((0, 3, 2**31 - 1)), count, key, True,
            )
        )  # fmt: skip
        placed += [(chance.randrange(1 << 62), chance.randrange(1 << 40)) for _ in range(count)]
    if placed and chance.random() < 0.1:
        placed.pop()
    return staged, placed
