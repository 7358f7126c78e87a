"""A turn's sends: parsed from their frames together, and answered together.

Owns: the kernel (_sends.pyx) and its reference (_sends_py.py), the definition of a plain send, the
contract of both. Must not touch: sockets, topics, the store.
A command object and a dictionary for each request cost more than everything else that a broker does
with a small message. So a plain send becomes a tuple; anything unusual is None here and is decoded
and checked like any other request (frames, the send processor).

A plain send is code 310 or 320 with the fields a to i (numbers not negative and in range), no
transaction bits, a topic that is not a group's, and properties without U+0000 and without those
that the broker interprets (``odd_names``). A single message has a UNIQ_KEY of letters and digits.
Spec: RocketMQ SendMessageRequestHeaderV2, MessageDecoder.decodeMessages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from motelog.core import kernels
from motelog.core.records.append import AppendMessage, QueueTail

if TYPE_CHECKING:
    from motelog.core.remoting import _sends as _kernel
else:
    _kernel = kernels.kernel_of(__name__)

__all__ = [
    "PlainSend",
    "SendRules",
    "answer_sends",
    "split_batch",
    "split_sends",
]

#: (request code, opaque, serialize type, is one-way, is batch, topic, queue id, sysFlag, born
#: timestamp in ms, flag, reconsume times, UNIQ_KEY or None, waits for the disk, properties to
#: store, tag hash, body)
PlainSend: TypeAlias = (
    "tuple[int, int, int, bool, bool, str, int, int, int, int, int, bytes | None, bool, bytes,"
    " int, bytes]"
)

SendRules = _kernel.SendRules

split_sends: Final[Callable[[Any, Any, int, SendRules], list[PlainSend | None]]] = (
    _kernel.split_sends
)
"""``split_sends(data, index, count, rules)``: for each of the first ``count`` frames of a Turn, the
plain send in it, or None. ValueError if the index points outside the data."""

split_batch: Final[
    Callable[[bytes, QueueTail, int, bytes, SendRules], list[AppendMessage] | None]
] = _kernel.split_batch
"""``split_batch(body, tail, born_ms, born_host, rules)``: the messages of a batch's body, ready to
append; None if the body is malformed or empty, or contains a message that is not plain."""

answer_sends: Final[Callable[[list[Any], list[tuple[int, int]], SendRules], list[bytes | None]]] = (
    _kernel.answer_sends
)
"""``answer_sends(staged, placed, rules)``: the answers with the messages' places.

``staged`` has for each send (connection, opaque, serialize type, is one-way, queue id, count of
messages, UNIQ_KEY or None, waits); ``placed`` (physical offset, queue offset) of each message. None
if nothing is answered, the key is not plain, or the place has more than that. ValueError if there
are fewer places."""
