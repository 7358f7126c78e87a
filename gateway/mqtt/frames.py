"""Whole MQTT frames -> plain tuples, and one PUBLISH -> bytes for many receivers.

Owns: the kernel (_frames.pyx) and its reference (_frames_py.py), and the contract of both.
Must not touch: sessions, topic aliases, the meaning of properties; callers handle those.

One uniform 6-tuple per frame, in the order of the index:

    PUBLISH             (connection, first byte, topic, payload, packet id or 0, properties or None)
    PUBACK .. PUBCOMP   (connection, first byte, None, None, packet id, reason code)
    PUBACKs, joined     (connection, first byte, None, None, the first's, list of packet ids)
    any other           (connection, first byte, None, body, 0, None)
    malformed           (connection, 0, None, None, reason code, offset of the fault in the body)

Topic, payload, body and properties are bytes; properties are the raw MQTT 5 block without its
length. A topic is checked: UTF-8, no U+0000, no control character, no wildcard. It is empty only in
MQTT 5 together with properties, in which the caller must find a topic alias.

A frame of version 0 comes from a connection without a version when the batch was read. Only a
CONNECT may be the first of these; later frames of the same batch are returned unparsed, as
``(connection, first byte, None, body, 0, None)``, for ``split_one`` once the version is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from motelog.core import kernels

Frame = tuple[int, int, Any, Any, int, Any]

_kernel = kernels.kernel_of(__name__)

split: Final[Callable[..., list[Frame]]] = _kernel.split
"""``split(data, index, counts=None, joins_acks=False)``: the frames of one Turn.

``index`` holds four native u32 per frame: connection, MQTT version (0, 3, 4, 5), begin and end in
``data``, the fixed header included.
``counts``, 256 native u64, counts each frame with a valid fixed header at its first byte. With
``joins_acks``, consecutive PUBACKs of one connection are one tuple, whose last part is a list of
their packet identifiers instead of a reason code.

ValueError, and no frames at all, if the index has another form or points outside the data.
"""

split_one: Final[Callable[[int, bytes, int, int], Frame]] = _kernel.split_one
"""``split_one(first_byte, body, version, connection)``: one frame whose version is known."""

encode_publish: Final[Callable[[bytes, bytes, int, int, bytes | None], tuple[bytes, int]]] = (
    _kernel.encode_publish
)
"""``encode_publish(topic, payload, first_byte, version, properties)``: (packet, where its id is).

The packet identifier is 0; the caller sets it for each receiver at that position. For QoS 0 the
position is 0. The topic is not checked. ValueError if ``first_byte`` is not that of a PUBLISH, or
something is too long.
"""

#: Most bytes of a PUBLISH besides its topic name, properties and payload.
PUBLISH_OVERHEAD_BYTES: Final = 13

#: (topic, payload, first byte, packet identifier, properties or None)
Publish = tuple[bytes, bytes, int, int, bytes | None]

encode_publishes: Final[Callable[[list[Publish], int], bytes]] = _kernel.encode_publishes
"""``encode_publishes(messages, version)``: many messages as by ``encode_publish``, concatenated.

The packet identifier is used above QoS 0. ValueError, and no result, if one cannot be encoded.
"""
