"""Reference of the pulls kernel: what _pulls.pyx must answer, in plain Python.

Owns: the rules, in short code. Must not touch: sockets, the checks of a pull; pulls.py has the
docstrings. The kernel may leave more of the requests to its caller than this does.
"""

from __future__ import annotations

from typing import Any, Final

from motelog.core.errors import RemotingDecodeError
from motelog.core.remoting.codes import (
    FLAG_RESPONSE,
    FRAME_BYTES_MAX,
    LOG_KEY,
    RequestCode,
    Serialize,
)
from motelog.core.remoting.frames import RemotingCommand, decode, encode_head

_INT32: Final = range(-(1 << 31), 1 << 31)
_NUMBER: Final = range(-(10**18) + 1, 10**18)
_TEXTS: Final = ("consumerGroup", "topic")
_NUMBERS: Final = {
    "queueId": range(_INT32.stop),
    "queueOffset": range(_NUMBER.stop),
    "sysFlag": range(_INT32.stop),
    "commitOffset": _NUMBER,
    "suspendTimeoutMillis": _NUMBER,
    "maxMsgNums": _INT32,
}
_OPTIONAL: Final = {"maxMsgBytes": _INT32, "subVersion": _NUMBER}


def split_pulls(data: Any, index: Any, items: list[Any]) -> None:
    view, rows = memoryview(data).cast("B"), memoryview(index).cast("B").cast("I")
    if len(items) > len(rows) // 4:
        raise ValueError(f"{len(items)} frames are not in the index")
    for number, item in enumerate(items):
        begin, end = rows[4 * number + 2], rows[4 * number + 3]
        if not begin <= end <= len(view):
            raise ValueError("a frame lies outside the data")
        if item is None:
            try:
                items[number] = _pull(decode(bytes(view[begin:end])))
            except RemotingDecodeError:
                items[number] = None


def _pull(request: RemotingCommand) -> Any:
    ext = request.ext
    if (
        request.code not in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
        or request.is_response
        or request.is_oneway
        or LOG_KEY in ext
        or any(name not in ext for name in (*_TEXTS, *_NUMBERS))
        or not all(value.isascii() for value in ext.values())
    ):
        return None
    asked = _NUMBERS | {name: values for name, values in _OPTIONAL.items() if name in ext}
    try:
        numbers = {name: int(ext[name]) for name in asked}
    except ValueError:
        return None
    if any(numbers[name] not in values for name, values in asked.items()):
        return None
    return (
        request.code, request.opaque, int(request.serialize), ext["consumerGroup"], ext["topic"],
        numbers["queueId"], numbers["queueOffset"], numbers["sysFlag"], numbers["commitOffset"],
        numbers["suspendTimeoutMillis"], numbers["maxMsgNums"], numbers.get("maxMsgBytes"),
        numbers.get("subVersion"), ext.get("expressionType"), ext.get("subscription", ""),
    )  # fmt: skip


def encode_found(
    opaque: int, form: int, broker_id: int, next_offset: int, min_offset: int, max_offset: int,
    body_bytes: int,
) -> bytes:  # fmt: skip
    ext = {
        "suggestWhichBrokerId": str(broker_id),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
    }
    answer = RemotingCommand(
        0, opaque=opaque, flag=FLAG_RESPONSE, remark="FOUND", ext=ext, serialize=Serialize(form)
    )
    head = encode_head(answer)
    if not 0 <= body_bytes <= FRAME_BYTES_MAX - len(head):
        raise ValueError(f"a body of {body_bytes} bytes fits no frame")
    return (len(head) - 4 + body_bytes).to_bytes(4, "big") + head[4:]
