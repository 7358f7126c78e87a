"""Plain messages to one receiver, as fast as they are read.

Its kernel is _runs.pyx; _runs_py.py is the reference, which says what is right.
Owns: which messages have nothing that is to be looked at, their packet identifiers and flights.
Must not touch: messages that are not plain, what a receiver without room loses (``sender``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from motelog.core import kernels
from motelog.gateway.deliver.outgoing import BriefRecord
from motelog.gateway.mqtt.frames import Publish
from motelog.gateway.sessions.session import Session

_kernel = kernels.kernel_of(__name__)

#: Topic name -> receiver -> options to deliver by; or the options of all.
Wants: TypeAlias = dict[bytes, dict[Session, int]] | int

take_run: Final[
    Callable[
        [
            Sequence[BriefRecord], int, Wants, Session, list[Publish], dict[int, int],
            int, int, int, int, int, int, int, int,
        ],
        tuple[int, int, int],
    ]
] = _kernel.take_run  # fmt: skip
"""``take_run(records, begin, wants, receiver, parts, flights, limit, last_packet_id, queue_number,
plain_qos, first_byte, aged_ms, bytes_taken, bytes_high)``: take messages from ``records[begin]``
on, as long as they are plain and there is room; what ``receiver`` does not want is passed over.

Each goes to ``parts`` and, above QoS 0, to ``flights`` under the next free packet identifier. Plain
is a message whose topic name is known to ``wants``, not stored before ``aged_ms``, with a QoS of at
most ``plain_qos`` (-1: none is), neither compressed nor with MQTT 5 properties, whose options are
not PARTICULAR. There is room while ``bytes_taken`` is at most ``bytes_high`` and, above QoS 0,
fewer than ``limit`` flights are there. ``first_byte`` is the PUBLISH's but for its QoS.

Returns (position of the first that is not taken, last packet identifier, bytes taken). TypeError or
ValueError if ``records`` has another form; what came before it is taken then.
"""
