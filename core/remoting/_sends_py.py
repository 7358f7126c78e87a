"""Reference of the sends kernel: what _sends.pyx must answer, in plain Python.

Owns: the rules, in short code. Must not touch: sockets, the checks of a send; sends.py has the
docstrings. The kernel may leave more of the requests to its caller than this does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

from motelog.core.errors import RemotingDecodeError
from motelog.core.message import NAME_END, PROPERTIES_BYTES_MAX, TAGS, UNIQ_KEY, VALUE_END, WAIT
from motelog.core.message import tags_code as hash_tags
from motelog.core.remoting.codes import RequestCode, Serialize
from motelog.core.remoting.frames import RemotingCommand, decode, decode_batch_items

_INT32: Final = range(1 << 31)
_TIME: Final = range(10**18)
_HEAD: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">i")
_REQUIRED: Final = "abcdefghi"
_HEADER_BYTES_MAX: Final = 0xFFFFFF


class SendRules:
    def __init__(
        self, added: bytes, odd_names: Iterable[bytes], json_begin: bytes, json_end: bytes,
        binary_begin: bytes, binary_ext: bytes, host: bytes,
    ) -> None:  # fmt: skip
        self.added = added
        self.odd_names = frozenset(odd_names)
        if b"" in self.odd_names:
            raise ValueError("a property has a name")
        self.json_begin, self.json_end = json_begin, json_end
        self.binary_begin, self.binary_ext = binary_begin, binary_ext
        self.host = host


def split_sends(data: Any, index: Any, count: int, rules: SendRules) -> list[Any]:
    view, rows = memoryview(data).cast("B"), memoryview(index).cast("B").cast("I")
    if not 0 <= count <= len(rows) // 4:
        raise ValueError(f"{count} frames are not in the index")
    sends = []
    for i in range(0, 4 * count, 4):
        begin, end = rows[i + 2], rows[i + 3]
        if not begin <= end <= len(view):
            raise ValueError("a frame lies outside the data")
        try:
            sends.append(_send(decode(bytes(view[begin:end])), rules))
        except RemotingDecodeError:
            sends.append(None)
    return sends


def _send(request: RemotingCommand, rules: SendRules) -> Any:
    ext = request.ext
    if (
        request.code not in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        or request.is_response
        or any(name not in ext for name in _REQUIRED)
    ):
        return None
    try:
        queue_count, queue_id, sys_flag, born_ms, flag, times = (
            int(ext.get(name, "0")) for name in "defghj"
        )
    except ValueError:
        return None
    is_batch = request.code == RequestCode.SEND_BATCH_MESSAGE or ext.get("m") in (
        "true", "True", "1",
    )  # fmt: skip
    is_in_range = (
        -(1 << 31) <= queue_count < 1 << 31
        and all(number in _INT32 for number in (queue_id, sys_flag, flag, times))
        and born_ms in _TIME
    )
    topic = ext["b"]
    if not is_in_range or sys_flag & 0xC or not topic.isascii() or topic[:1] in ("", "%"):
        return None
    found = _properties(ext["i"], rules)
    if found is None:
        return None
    properties, code, key, waits = found
    if key is not None and not (key.isascii() and key.isalnum()):
        return None
    if key is None and not is_batch:
        return None
    return (
        request.code, request.opaque, int(request.serialize), request.is_oneway, is_batch, topic,
        queue_id, sys_flag, born_ms, flag, times, None if key is None else key.encode(), waits,
        properties, code, request.body,
    )  # fmt: skip


def _properties(text: str, rules: SendRules) -> tuple[bytes, int, str | None, bool] | None:
    pairs = {}
    for item in text.split(VALUE_END):
        name, _, value = item.partition(NAME_END)
        if value:
            pairs[name] = value
    if "\0" in text or any(name.encode() in rules.odd_names for name in pairs):
        return None
    tags = pairs.get(TAGS, "")
    if not tags.isascii():
        return None
    if text and not text.endswith(VALUE_END):
        text += VALUE_END
    stored = text.encode() + rules.added
    if len(stored) > PROPERTIES_BYTES_MAX:
        return None
    return stored, hash_tags(tags), pairs.get(UNIQ_KEY), pairs.get(WAIT) != "false"


def split_batch(
    body: bytes, tail: Any, born_ms: int, born_host: bytes, rules: SendRules
) -> list[Any] | None:
    try:
        items = decode_batch_items(body)
        texts = [text.decode() for _, _, text in items]
    except (RemotingDecodeError, UnicodeDecodeError):
        return None
    messages = []
    for (flag, content, _), text in zip(items, texts, strict=True):
        found = _properties(text, rules)
        if found is None:
            return None
        messages.append((tail, content, found[0], found[1], born_ms, born_host, 0, flag, 0, 0))
    return messages or None


def answer_sends(
    staged: list[Any], placed: list[tuple[int, int]], rules: SendRules
) -> list[bytes | None]:
    frames: list[bytes | None] = []
    first = 0
    for _, opaque, form, is_oneway, queue_id, count, told, _ in staged:
        if not 1 <= count <= len(placed) - first:
            raise ValueError("there are fewer places than messages")
        places = placed[first : first + count]
        first += count
        key = told if isinstance(told, bytes) else None
        is_plain = key == told and (not key or (key.isascii() and key.isalnum()))
        if is_oneway or form not in (Serialize.JSON, Serialize.ROCKETMQ) or not is_plain:
            frames.append(None)
            continue
        ids = b",".join([b"%s%016X" % (rules.host, physical) for physical, _ in places])
        if form == Serialize.JSON:
            known = b"" if key is None else b'","transactionId":"%s' % key
            header = b'%s%s","queueId":"%d","queueOffset":"%d%s"},"opaque":%d%s' % (
                rules.json_begin, ids, queue_id, places[0][1], known, opaque, rules.json_end,
            )  # fmt: skip
        else:
            ext = rules.binary_ext + b"".join(
                (
                    _entry(b"msgId", ids),
                    _entry(b"queueId", b"%d" % queue_id),
                    _entry(b"queueOffset", b"%d" % places[0][1]),
                    b"" if key is None else _entry(b"transactionId", key),
                )
            )
            fixed = struct.pack(">iiii", opaque, 1, 0, len(ext))
            header = rules.binary_begin + fixed + ext
        if len(header) > _HEADER_BYTES_MAX:
            frames.append(None)
        else:
            frames.append(_HEAD.pack(4 + len(header), form << 24 | len(header)) + header)
    return frames


def _entry(name: bytes, value: bytes) -> bytes:
    return len(name).to_bytes(2, "big") + name + _LENGTH.pack(len(value)) + value
