"""The compiled sends kernel answers like the reference, or leaves a request to its caller."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.records.append import QueueTail
from motelog.core.remoting import _sends, _sends_py
from motelog.core.remoting.frames import Serialize, decode, encode_batch_items
from tests.support.send_requests import (
    ADDED,
    HOST,
    KEY,
    fields,
    frame,
    random_batch,
    random_frame,
    random_staged,
    rules,
    turn,
)

TAIL = QueueTail(b"topic", 1, 0)
BORN_HOST = bytes([127, 0, 0, 1, 0, 0, 1, 2])
KERNELS = pytest.mark.parametrize("kernel", [_sends, _sends_py])
FORMS = pytest.mark.parametrize("serialize", [Serialize.JSON, Serialize.ROCKETMQ])
chances = st.integers(0, 2**32).map(random.Random)


@given(chance=chances)
def test_what_the_kernel_takes_the_reference_takes_alike(chance: random.Random) -> None:
    frames = [random_frame(chance) for _ in range(chance.randrange(6))]
    data, index = turn(frames)
    kernel = _sends.split_sends(data, index, len(frames), rules(_sends))
    reference = _sends_py.split_sends(data, index, len(frames), rules(_sends_py))
    for taken, expected in zip(kernel, reference, strict=True):
        assert taken is None or taken == expected


@given(chance=chances)
def test_batches_are_cut_alike(chance: random.Random) -> None:
    body = random_batch(chance)
    kernel = _sends.split_batch(body, TAIL, 5, BORN_HOST, rules(_sends))
    reference = _sends_py.split_batch(body, TAIL, 5, BORN_HOST, rules(_sends_py))
    assert kernel is None or kernel == reference


@given(chance=chances)
def test_answers_are_alike(chance: random.Random) -> None:
    staged, placed = random_staged(chance)
    assert answers(_sends, staged, placed) == answers(_sends_py, staged, placed)


def answers(kernel: Any, staged: list[Any], placed: list[tuple[int, int]]) -> Any:
    try:
        return kernel.answer_sends(staged, placed, rules(kernel))
    except ValueError:
        return ValueError


def split(kernel: Any, one: bytes) -> Any:
    data, index = turn([one])
    (taken,) = kernel.split_sends(data, index, 1, rules(kernel))
    return taken


@KERNELS
@FORMS
@pytest.mark.parametrize(
    ("properties", "stored", "waits"),
    [
        (f"UNIQ_KEY\x01{KEY}\x02", f"UNIQ_KEY\x01{KEY}\x02", True),
        (f"UNIQ_KEY\x01{KEY}", f"UNIQ_KEY\x01{KEY}\x02", True),
        (
            f'WAIT\x01false\x02ort\x01"Köln"\\\n中\x02UNIQ_KEY\x01{KEY}\x02',
            f'WAIT\x01false\x02ort\x01"Köln"\\\n中\x02UNIQ_KEY\x01{KEY}\x02',
            False,
        ),
    ],
)
def test_a_plain_send_is_taken(
    kernel: Any, serialize: Serialize, properties: str, stored: str, waits: bool
) -> None:
    expected = (
        310, 7, int(serialize), False, False, "topic", 1, 0, 1763700000000, 0, 0, KEY.encode(),
        waits, stored.encode() + ADDED, 0, b"body",
    )  # fmt: skip
    assert split(kernel, frame(fields(properties), b"body", serialize)) == expected


@KERNELS
@FORMS
def test_a_batch_is_taken(kernel: Any, serialize: Serialize) -> None:
    items = [(0, b"one", f"UNIQ_KEY\x01{KEY}\x02TAGS\x01a".encode()), (3, b"", b"")]
    body = encode_batch_items(items)
    taken = split(kernel, frame(fields("", m="true"), body, serialize, 320))
    assert taken[4]
    assert taken[11] is None
    assert taken[-1] == body
    assert kernel.split_batch(body, TAIL, 5, BORN_HOST, rules(kernel)) == [
        (TAIL, b"one", items[0][2] + b"\x02" + ADDED, 97, 5, BORN_HOST, 0, 0, 0, 0),
        (TAIL, b"", ADDED, 0, 5, BORN_HOST, 0, 3, 0, 0),
    ]


@KERNELS
@FORMS
@pytest.mark.parametrize(
    "changed",
    [
        {"i": f"DELAY\x013\x02UNIQ_KEY\x01{KEY}\x02"},
        {"i": f"TRAN_MSG\x01true\x02UNIQ_KEY\x01{KEY}\x02"},
        {"i": f"a\x01\x00\x02UNIQ_KEY\x01{KEY}\x02"},
        {"i": "TAGS\x01a\x02"},
        {"i": 'UNIQ_KEY\x01a"b\x02'},
        {"i": f"UNIQ_KEY\x01{KEY}\x02a\x01{'x' * 32700}"},
        {"b": "%RETRY%group"},
        {"b": ""},
        {"b": "tópic"},
        {"e": "-1"},
        {"e": "x"},
        {"e": ""},
        {"f": "4"},
        {"g": "9" * 19},
        {"j": "2147483648"},
    ],
)
def test_what_is_unusual_is_left_to_the_caller(
    kernel: Any, serialize: Serialize, changed: dict[str, str]
) -> None:
    ext = fields(f"UNIQ_KEY\x01{KEY}\x02", **changed)
    assert split(kernel, frame(ext, b"body", serialize)) is None


@KERNELS
def test_an_index_outside_the_data_is_refused(kernel: Any) -> None:
    data, index = turn([frame(fields(""), b"", Serialize.JSON)])
    with pytest.raises(ValueError, match="outside"):
        kernel.split_sends(data[:-1], index, 1, rules(kernel))
    with pytest.raises(ValueError, match="index"):
        kernel.split_sends(data, index, 2, rules(kernel))


@KERNELS
def test_a_send_with_more_than_a_key_is_left_to_its_caller(kernel: Any) -> None:
    more = (None, 9, 0, False, 3, 2, (KEY.encode(), "handle"), True)
    plain = (None, 8, 0, False, 3, 1, KEY.encode(), True)
    left, answer = kernel.answer_sends([more, plain], [(1, 1), (2, 2), (3, 7)], rules(kernel))
    assert left is None
    assert decode(answer).ext["queueOffset"] == "7"


@KERNELS
@FORMS
def test_an_answer_says_where_the_messages_are(kernel: Any, serialize: Serialize) -> None:
    staged = [(None, 9, int(serialize), False, 3, 2, KEY.encode(), True)]
    (answer,) = kernel.answer_sends(staged, [(16, 5), (255, 6)], rules(kernel))
    told = decode(answer)
    assert told.opaque == 9
    assert told.is_response
    expected = {
        "msgId": f"{HOST.decode()}{16:016X},{HOST.decode()}{255:016X}",
        "queueId": "3",
        "queueOffset": "5",
        "transactionId": KEY,
    }
    assert {name: told.ext[name] for name in expected} == expected
