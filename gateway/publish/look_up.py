"""Looks for the message of a mark: does the log have what an earlier process may have appended?

Owns: LookUp. Must not touch: sessions, connections.
It reads the log from the place that the mark names, and continues as records come into memory. With
a remote log that place may be an old one, or one that the log has lost, and it reads from the time
at which the message was taken first. Neither is enough: a broker's clock may have been set.
"""

from __future__ import annotations

from typing import Final

from motelog.core.errors import MotelogError
from motelog.core.message import MQTT_CLIENT_ID, MQTT_PACKET_ID, decode_properties
from motelog.core.records.decode import decode_brief
from motelog.gateway.log.log_port import LogPort, LogRead, QueueHandle, Waiting
from motelog.gateway.log.reckoning import CLOCKS_MS_MAX
from motelog.gateway.mapping.message_properties import TOPIC_PROPERTY
from motelog.gateway.state.stored import Received

#: Records that are searched: more than one append holds, and more than come in CLOCKS_MS_MAX.
COUNT_MAX: Final = 1_048_576
#: Records that are searched from an old place: more than come while a gateway stores nothing in
#: their queue, unless others do; then the time is nearly always right.
OLD_COUNT_MAX: Final = 65_536
_READ_COUNT: Final = 2048
_READ_BYTES: Final = 1_048_576


class LookUp:
    """One search for the message of a mark.

    ``is_stored`` is None until the result is known, and stays None if the search fails. ``is_over``
    is set in both cases.
    """

    def __init__(
        self, log: LogPort, queue: QueueHandle, client_id: str, mark: Received, *, begun_ms: int
    ) -> None:
        self.begun_ms = begun_ms
        self.is_stored: bool | None = None
        self.is_over = False
        self._log = log
        self._queue = queue
        self._client_id = client_id
        self._exchange = exchange_name(mark.packet_id, mark.taken_ms)
        self._at = self._end = mark.queue_offset
        #: Where else to read, if there is no such message behind ``_at``; 0 is nowhere.
        self._old_at = 0
        self._waited: Waiting | None = None
        #: The search has failed only once everything below this offset has been read.
        self._tail = 0
        if mark.queue_offset and log.knows_tails:
            self._begin(mark.queue_offset)
            return
        self._from_ms = max(0, mark.taken_ms - CLOCKS_MS_MAX)
        log.newest_tail(queue, self._tail_known)

    def _tail_known(self, tail: int) -> None:
        self._tail = tail
        at = self._log.offset_at(self._queue, self._from_ms, self._begin)
        if at is not None:
            self._begin(at)

    def _begin(self, queue_offset: int) -> None:
        old_at, self._at = self._at, queue_offset
        self._end = queue_offset + COUNT_MAX
        if not self._at <= old_at < self._end:
            self._old_at = old_at
        self._go_on()

    def _go_on(self) -> None:
        try:
            self._read()
        except MotelogError:
            self.is_over = True  # the client sends the message again, which starts a new search

    def _read(self) -> None:
        while True:
            read = self._log.read(
                self._queue,
                self._at,
                count_max=_READ_COUNT,
                bytes_max=_READ_BYTES,
                waited=self._waited,
            )
            if not isinstance(read, LogRead):
                self._waited = read
                self.is_over = not self._log.when_at_hand(read, self._go_on)
                return
            self._waited = None
            if self._has_it(read.records):
                self.is_stored = self.is_over = True
                return
            self._at = read.next_offset
            if self._at < self._end and read.is_more:
                continue
            old_at, self._old_at = self._old_at, 0
            if not old_at or (old_at >= self._at and not read.is_more):
                self.is_over = True
                self.is_stored = None if self._at < min(self._tail, self._end) else False
                return
            self._at, self._end = old_at, old_at + OLD_COUNT_MAX

    def _has_it(self, records: bytes) -> bool:
        for record in decode_brief(records, TOPIC_PROPERTY):
            properties = decode_properties(record[3])
            if (
                properties.get(MQTT_PACKET_ID) == self._exchange
                and properties.get(MQTT_CLIENT_ID) == self._client_id
            ):
                return True
        return False


def exchange_name(packet_id: int, taken_ms: int) -> str:
    """Return a name for a QoS 2 exchange of one client, as packet identifiers are reused."""
    return f"{packet_id}@{taken_ms}"
