"""Runs of plain messages to one receiver, as fast as they are read.

Its kernel is _runs.pyx; _runs_py.py is the reference, which defines the right answers.
Owns: which messages need no closer look, their packet identifiers and flights.
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

#: Topic name -> receiver -> options to deliver by; or the same options for all.
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
on, as long as they are plain and there is room; messages that ``receiver`` does not want are
skipped.

Each is added to ``parts`` and, above QoS 0, to ``flights`` under the next free packet identifier. A
message is plain if ``wants`` has its topic name, it was not stored before ``aged_ms``, its QoS is
at most ``plain_qos`` (-1: no message is plain), it is not compressed and has no MQTT 5 properties,
and its options are not PARTICULAR. There is room while ``bytes_taken`` is at most ``bytes_high``
and, above QoS 0, there are fewer than ``limit`` flights. ``first_byte`` is the PUBLISH's without
the QoS.

Returns (position of the first that is not taken, last packet identifier, bytes taken). TypeError or
ValueError if ``records`` is malformed; the messages before the fault have been taken then.
"""
