"""Requests that pull, as clients write them and changed, and numbers of their answers.

Owns: what the property test and the fuzz program of the pulls kernel share. Must not touch: pytest
and Hypothesis (the program runs under sanitizers).
"""

from __future__ import annotations

import random

from motelog.core.remoting.codes import FRAME_BYTES_MAX, LOG_KEY
from motelog.core.remoting.frames import RemotingCommand, Serialize, encode
from tests.support.send_requests import damaged
from tests.support.send_requests import random_frame as random_send

OPTIONAL = ("maxMsgBytes", "subVersion", "subscription", "expressionType")
VALUES = (
    "0", "-1", "+1", "1", "-0", "007", "2147483647", "2147483648", "-2147483648", "9" * 18,
    "9" * 19, "", "x", "1_0", " 1", "٣", "TAG", "SQL92", "*", "a||b", 'a"b', "a\\b", "a\nb", "é",
    "%RETRY%g",
)  # fmt: skip
NUMBERS = (0, 1, -1, 9, 10, 32, 2**31 - 1, 2**62, 2**63 - 1, -(2**63))


def pull_fields(**changed: str) -> dict[str, str]:
    """Return the header fields of a pull as Java writes them."""
    plain = {
        "consumerGroup": "group", "topic": "topic", "queueId": "3", "queueOffset": "64",
        "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "60", "suspendTimeoutMillis": "15000",
        "subscription": "*", "subVersion": "1763700000000", "expressionType": "TAG",
        "maxMsgBytes": "2147483647", "bname": "broker",
    }  # fmt: skip
    return plain | changed


def pull_frame(
    ext: dict[str, str], serialize: Serialize, code: int = 11, flag: int = 0, body: bytes = b""
) -> bytes:
    return encode(RemotingCommand(code, 7, flag, ext=ext, body=body, serialize=serialize))


def random_frame(chance: random.Random) -> bytes:
    """Return a pull, at times with odd fields, at times a damaged one or a send."""
    if chance.random() < 0.1:
        return random_send(chance)
    ext = pull_fields()
    for name in OPTIONAL:
        if chance.random() < 0.2:
            del ext[name]
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        ext[chance.choice([*ext, LOG_KEY, "x"])] = chance.choice(VALUES)
    if chance.random() < 0.1:
        del ext[chance.choice(list(ext))]
    if chance.random() < 0.05:
        ext |= {f"more{number}": "" for number in range(40)}
    made = pull_frame(
        ext,
        chance.choice((Serialize.JSON, Serialize.ROCKETMQ)),
        chance.choice((11, 11, 361, 10)),
        chance.choice((0, 0, 0, 1, 2)),
        chance.choice((b"", b"body")),
    )
    return damaged(chance, made) if chance.random() < 0.4 else made


def random_found(chance: random.Random) -> tuple[int, int, int, int, int, int, int]:
    """Return what an answer is made of."""
    opaque = chance.choice((0, 7, -1, 2**31 - 1, -(2**31)))
    form = chance.choice((0, 0, 1, 1, 2))
    places = [chance.choice(NUMBERS) for _ in range(4)]
    edge = FRAME_BYTES_MAX - chance.randrange(400)
    body_bytes = chance.choice((0, 8960, edge, FRAME_BYTES_MAX, 2**40, -1))
    return opaque, form, places[0], places[1], places[2], places[3], body_bytes
