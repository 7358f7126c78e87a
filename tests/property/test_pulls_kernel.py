"""The compiled pulls kernel answers like the reference, or leaves a request to its caller."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.remoting import _pulls, _pulls_py
from motelog.core.remoting.codes import FRAME_BYTES_MAX, LOG_KEY
from motelog.core.remoting.frames import Serialize, decode
from tests.support.pull_requests import pull_fields, pull_frame, random_found, random_frame
from tests.support.send_requests import turn

KERNELS = pytest.mark.parametrize("kernel", [_pulls, _pulls_py])
FORMS = pytest.mark.parametrize("serialize", [Serialize.JSON, Serialize.ROCKETMQ])
chances = st.integers(0, 2**32).map(random.Random)


@given(chance=chances)
def test_what_the_kernel_takes_the_reference_takes_alike(chance: random.Random) -> None:
    frames = [random_frame(chance) for _ in range(chance.randrange(6))]
    data, index = turn(frames)
    taken: list[Any] = [None] * len(frames)
    expected: list[Any] = [None] * len(frames)
    _pulls.split_pulls(data, index, taken)
    _pulls_py.split_pulls(data, index, expected)
    for one, other in zip(taken, expected, strict=True):
        assert one is None or one == other


@given(chance=chances)
def test_answers_are_alike(chance: random.Random) -> None:
    numbers = random_found(chance)
    assert found(_pulls, *numbers) == found(_pulls_py, *numbers)


def found(kernel: Any, *numbers: int) -> Any:
    try:
        return kernel.encode_found(*numbers)
    except ValueError:
        return ValueError


def split(kernel: Any, one: bytes) -> Any:
    items: list[Any] = [None]
    kernel.split_pulls(*turn([one]), items)
    return items[0]


@KERNELS
@FORMS
@pytest.mark.parametrize("code", [11, 361])
def test_a_plain_pull_is_taken(kernel: Any, serialize: Serialize, code: int) -> None:
    assert split(kernel, pull_frame(pull_fields(), serialize, code)) == (
        code, 7, int(serialize), "group", "topic", 3, 64, 6, 60, 15000, 32, 2147483647,
        1763700000000, "TAG", "*",
    )  # fmt: skip


@KERNELS
@FORMS
def test_fields_that_older_clients_do_not_send_are_none(kernel: Any, serialize: Serialize) -> None:
    ext = pull_fields()
    for name in ("maxMsgBytes", "subVersion", "expressionType", "subscription"):
        del ext[name]
    assert split(kernel, pull_frame(ext, serialize))[-4:] == (None, None, None, "")


@KERNELS
@FORMS
@pytest.mark.parametrize(
    "changed",
    [
        {"topic": "tópic"},
        {"subscription": "ä"},
        {"queueId": "-1"},
        {"queueId": "2147483648"},
        {"queueOffset": "-1"},
        {"queueOffset": ""},
        {"queueOffset": "9" * 19},
        {"sysFlag": "-4"},
        {"commitOffset": "x"},
        {"suspendTimeoutMillis": "1.5"},
        {"maxMsgNums": "2147483648"},
        {"maxMsgBytes": "x"},
        {"subVersion": "x"},
        {LOG_KEY: ""},
    ],
)
def test_what_is_unusual_is_left_to_the_caller(
    kernel: Any, serialize: Serialize, changed: dict[str, str]
) -> None:
    assert split(kernel, pull_frame(pull_fields(**changed), serialize)) is None


@KERNELS
@FORMS
@pytest.mark.parametrize(
    "name",
    ["consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset",
     "suspendTimeoutMillis"],
)  # fmt: skip
def test_a_pull_has_all_its_fields(kernel: Any, serialize: Serialize, name: str) -> None:
    ext = pull_fields()
    del ext[name]
    assert split(kernel, pull_frame(ext, serialize)) is None


@KERNELS
@pytest.mark.parametrize(("code", "flag"), [(10, 0), (11, 1), (11, 2)])
def test_other_requests_and_those_that_want_no_answer_are_left(
    kernel: Any, code: int, flag: int
) -> None:
    assert split(kernel, pull_frame(pull_fields(), Serialize.JSON, code, flag)) is None


def test_many_fields_are_left_to_the_caller() -> None:
    ext = pull_fields() | {f"more{number}": "" for number in range(40)}
    for serialize in (Serialize.JSON, Serialize.ROCKETMQ):
        assert split(_pulls, pull_frame(ext, serialize)) is None


@KERNELS
def test_what_is_taken_already_stays(kernel: Any) -> None:
    frame = pull_frame(pull_fields(), Serialize.JSON)
    items: list[Any] = ["a send", None]
    kernel.split_pulls(*turn([frame, frame]), items)
    assert items[0] == "a send"
    assert items[1][3] == "group"


@KERNELS
def test_an_index_outside_the_data_is_refused(kernel: Any) -> None:
    data, index = turn([pull_frame(pull_fields(), Serialize.JSON)])
    with pytest.raises(ValueError, match="outside"):
        kernel.split_pulls(data[:-1], index, [None])
    with pytest.raises(ValueError, match="index"):
        kernel.split_pulls(data, index, [None, None])


@KERNELS
@FORMS
def test_an_answer_says_where_to_go_on(kernel: Any, serialize: Serialize) -> None:
    body = b"records"
    told = decode(kernel.encode_found(9, int(serialize), 1, 96, 2, 1 << 40, len(body)) + body)
    assert (told.code, told.opaque, told.remark, told.body) == (0, 9, "FOUND", body)
    assert told.is_response
    assert told.ext == {
        "suggestWhichBrokerId": "1",
        "nextBeginOffset": "96",
        "minOffset": "2",
        "maxOffset": str(1 << 40),
    }


@KERNELS
@pytest.mark.parametrize(("form", "size"), [(2, 0), (0, -1), (0, FRAME_BYTES_MAX), (1, 1 << 40)])
def test_an_answer_that_fits_no_frame_is_refused(kernel: Any, form: int, size: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the texts differ
        kernel.encode_found(1, form, 0, 0, 0, 0, size)
