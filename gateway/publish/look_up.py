"""Looks for the message of a mark: does the log have what an earlier process may have appended?

Owns: LookUp. Must not touch: sessions, connections.
It reads the log from the time at which the message was taken, and continues as records come into
memory.
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
        self._at = mark.queue_offset
        self._end = 0
        self._waited: Waiting | None = None
        if mark.queue_offset:
            self._begin(mark.queue_offset)
            return
        # A gateway with a remote log does not ask for the queue's end at each message.
        at = log.offset_at(queue, max(0, mark.taken_ms - CLOCKS_MS_MAX), self._begin)
        if at is not None:
            self._begin(at)

    def _begin(self, queue_offset: int) -> None:
        self._at = queue_offset
        self._end = queue_offset + COUNT_MAX
        self._go_on()

    def _go_on(self) -> None:
        try:
            self._read()
        except MotelogError:
            self.is_over = True  # the client sends the message again, which starts a new search

    def _read(self) -> None:
        while self._at < self._end:
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
            if not read.is_more:
                break
            self._at = read.next_offset
        self.is_stored, self.is_over = False, True

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
