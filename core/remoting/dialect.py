r"""JSON as fastjson writes it: RocketMQ's bodies that are not quite JSON.

Owns: ``loads``, ``loads_as``, ``dumps``. Must not touch: sockets, clocks, what the values mean.

    standard        {"brokerAddrs":{"0":"10.0.0.1:10911"}}
    integer keys    {"brokerAddrs":{0:"10.0.0.1:10911"}}
    object keys     {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:42}}

``loads`` returns all three as dicts with str keys: an integer key as its digits, an object key as
its JSON text without spaces, which ``loads`` can parse in turn. So callers need not distinguish.
``dumps`` writes an integer key unquoted and a MessageQueue key as an object, as Java's tools need.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from motelog.core.errors import RemotingDecodeError
from motelog.core.message import MessageQueue

T = TypeVar("T")

# Bodies nest about 6 deep; the limit keeps a hostile one away from the interpreter's stack.
DEPTH_MAX: Final = 64

_TOKEN: Final = re.compile(
    rb'[ \t\r\n]*+(?:("[^"\\]*+(?:\\.[^"\\]*+)*+")|([{}\[\]:,])|([^ \t\r\n{}\[\]:,"]++))', re.DOTALL
)
_INTEGER: Final = re.compile(rb"-?[0-9]{1,20}")
_NOT_NESTING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^{}\[\]"]++', re.DOTALL)


def loads(text: bytes) -> Any:
    """Return the value of ``text``; RemotingDecodeError if it is neither JSON nor the dialect.

    Anything after the value, or nesting deeper than DEPTH_MAX, is an error.
    """
    try:
        if text.count(b"{") + text.count(b"[") > DEPTH_MAX:
            _check_depth(text)
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return msgspec.json.decode(_standard(text))
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise RemotingDecodeError(f"body is not JSON: {exc}") from exc


def loads_as(text: bytes, kind: type[T], what: str, *, strict: bool = True) -> T:
    """Return the value of ``text`` as ``kind``; RemotingDecodeError names it as ``what``.

    Without ``strict`` numbers may be texts, as the keys of an object are.
    """
    value = loads(text)
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as exc:
        raise RemotingDecodeError(f"{what}: {exc}") from exc


def dumps(value: Any) -> bytes:
    """Return ``value`` as fastjson would write it, without spaces and without null members."""
    if isinstance(value, dict):
        members = (
            _dump_key(key) + b":" + dumps(item) for key, item in value.items() if item is not None
        )
        return b"{" + b",".join(members) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(dumps, value)) + b"]"
    if isinstance(value, MessageQueue):
        return msgspec.json.encode(
            {"brokerName": value.broker_name, "queueId": value.queue_id, "topic": value.topic}
        )
    return msgspec.json.encode(value)


def _dump_key(key: str | int | MessageQueue) -> bytes:
    return dumps(key)


def _check_depth(text: bytes) -> None:
    depth = 0
    for byte in _NOT_NESTING.sub(b"", text):
        if byte in b"{[":
            depth += 1
            if depth > DEPTH_MAX:
                raise RemotingDecodeError(f"body nests deeper than {DEPTH_MAX}")
        else:
            depth -= 1


def _standard(text: bytes) -> bytes:
    """Rewrite the dialect as standard JSON: quote the keys that are not strings.

    It works token by token, without recursion. It only finds the keys; the JSON parser finds other
    faults of the text.
    """
    out: list[bytes] = []
    # One entry per open bracket: whether it is an object, and where in `out` it began if a key.
    open_brackets: list[tuple[bool, int | None]] = []
    in_key = False  # an object key is open; a key inside a key would be quoted twice
    key_expected = False
    position = 0
    end = len(text.rstrip(b" \t\r\n"))
    while position < end:
        token = _TOKEN.match(text, position, end)
        if token is None:
            raise RemotingDecodeError(f"body has an unfinished string (at byte {position})")
        position = token.end()
        string, mark, bare = token.groups()
        if mark is None:
            word = string if string is not None else bare
            is_key = key_expected and string is None and _INTEGER.fullmatch(word) is not None
            out.append(b'"' + word + b'"' if is_key else word)
            key_expected = False
            continue
        if mark in b"{[":
            key_begin = None
            if key_expected:
                if in_key or mark == b"[":
                    raise RemotingDecodeError(f"body has an impossible key (at byte {position})")
                in_key = True
                key_begin = len(out)
            open_brackets.append((mark == b"{", key_begin))
            if len(open_brackets) > DEPTH_MAX:
                raise RemotingDecodeError(f"body nests deeper than {DEPTH_MAX}")
        out.append(mark)
        if mark in b"}]":
            if not open_brackets:
                raise RemotingDecodeError(f"body closes what is not open (at byte {position})")
            _, key_begin = open_brackets.pop()
            if key_begin is not None:
                key = b"".join(out[key_begin:])
                # The key's own text must be JSON too; once quoted, no parser checks it.
                msgspec.json.decode(key)
                del out[key_begin:]
                out.append(msgspec.json.encode(key.decode()))
                in_key = False
        key_expected = mark in b"{," and bool(open_brackets) and open_brackets[-1][0]
    return b"".join(out)
