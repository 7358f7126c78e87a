"""A log of several brokers in memory: each topic is at one of its own, which may be away.

Owns: ApartLog, the ``append_apart`` of a FakeLog. Must not touch: expectations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from motelog.core.errors import MotelogError
from motelog.gateway.log.log_port import QueueHandle, Ticket
from tests.support.fake_log import FakeLog, topic_of


class ApartLog(FakeLog):
    """Appends to a topic in ``away`` wait until ``answer``; tickets settle in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()
        #: Topics whose brokers have been away for long.
        self.refused: dict[str, MotelogError] = {}
        self._parts: list[tuple[Ticket, str, list[Any], tuple[Ticket, ...]]] = []
        self.append_apart = self._append_apart

    def append(self, messages: list[Any]) -> Ticket:
        [ticket] = set(self._append_apart(messages, {}))
        return ticket

    def _append_apart(
        self, messages: Sequence[Any], behind: Mapping[int, Sequence[Ticket]]
    ) -> Sequence[Ticket]:
        parts: dict[object, tuple[Ticket, str, list[Any], tuple[Ticket, ...]]] = {}
        tickets = []
        for number, message in enumerate(messages):
            topic, after = topic_of(message[0]), tuple(behind.get(number, ()))
            part = parts.setdefault((topic, after), (Ticket(), topic, [], after))
            part[2].append(message)
            tickets.append(part[0])
        self._parts += parts.values()
        self._go_on()
        return tickets

    def refusal(self, queue: QueueHandle) -> MotelogError | None:
        return self.refused.get(topic_of(queue))

    def answer(self, topic: str, error: MotelogError | None = None) -> None:
        """Have the broker of a topic store what waits, or refuse it, and be back."""
        self.away.discard(topic)
        settled = self._go_on({topic: error} if error is not None else {})
        for listener in self._settled:
            listener([(ticket, ticket.error) for ticket in settled])

    def _go_on(self, errors: Mapping[str, MotelogError] | None = None) -> list[Ticket]:
        settled: list[Ticket] = []
        is_over = False
        while not is_over:
            is_over = True
            for part in self._parts.copy():
                ticket, topic, messages, after = part
                if topic in self.away or not all(one.is_settled for one in after):
                    continue
                refused = [one.error for one in after if one.error is not None]
                ticket.error = refused[0] if refused else (errors or {}).get(topic)
                if ticket.error is None:
                    self._write(messages)
                ticket.is_settled = True
                self._parts.remove(part)
                settled.append(ticket)
                is_over = False
        return settled
