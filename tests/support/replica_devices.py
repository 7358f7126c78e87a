"""MQTT clients at a gateway that stays while the brokers behind it come and go.

Owns: Devices, the clients of tests.fault.session_kills at one gateway; TimedAudit, when each
message was acknowledged. Must not touch: servers.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.fault.session_kills import Publisher, SessionKills, Subscriber
from tests.support.delivery_audit import Audit, AuditError

DRAINED_WITHIN_S: Final = 90.0


class TimedAudit(Audit):
    """An Audit that has the time of each acknowledgement, and may forgive."""

    def __init__(self, *, forgives: bool) -> None:
        super().__init__()
        self._forgives = forgives
        self.acked: dict[str, float] = {}

    def done(self, topic: str, payload: bytes) -> None:
        super().done(topic, payload)
        self.acked.setdefault(f"{topic} {payload.decode()}", time.monotonic())

    def fail(self, what: str) -> None:
        if not self._forgives:
            super().fail(what)


class Careful(Publisher):
    """A publisher of MQTT 5 with one message under way, which it sends again if it is refused."""

    _refusals = 0

    def publish(self, chance: random.Random, generation: int) -> None:
        session = self.client.session
        if session.refusals.total() != self._refusals:
            self._refusals = session.refusals.total()
            self.client.break_off()
        elif not session.sending:
            super().publish(chance, generation)


class Devices(SessionKills):
    """MQTT clients at one gateway, which stays."""

    def __init__(self, port: int, seed: int, audit: TimedAudit) -> None:
        super().__init__(Path(), seed, audit=audit)
        self._port = port
        # A gateway refuses clients while its broker is away.
        self._is_paused = True
        self._publishers = [Publisher(0, 4, audit), Publisher(1, 4, audit), Careful(2, 5, audit)]
        for publisher in self._publishers:
            publisher.client.session.refusal_is_fault = False

    def first(self) -> None:
        for one in (
            Subscriber("all-2", 4, self._audit, "+/+/+", 2, None),
            Subscriber("all-1", 5, self._audit, "+/+/+", 1, None),
            Subscriber("narrow", 5, self._audit, "+/+/2", 2, 5),
        ):
            self._join(one)
        for publisher in self._publishers:
            self._connect(publisher.client)

    def close(self) -> None:
        for client in self._clients():
            client.break_off()

    def next_round(self) -> None:
        self._number += 1

    def play(self, seconds: float) -> None:
        self._play(seconds, is_coming_back=True)

    @property
    def got(self) -> Counter[str]:
        return Counter(
            {one.received.name: sum(one.received.next.values()) for one in self._subscribers}
        )

    @property
    def refusals(self) -> Counter[int]:
        """Return how often publishes were refused, by reason code."""
        return sum((one.client.session.refusals for one in self._publishers), Counter[int]())

    @property
    def endings(self) -> Counter[int]:
        """Return how often publishers were disconnected, by reason code."""
        return sum((one.client.session.endings for one in self._publishers), Counter[int]())

    def drain(self) -> None:
        """Have all delivered that was published."""
        deadline, before = time.monotonic() + DRAINED_WITHIN_S, list[str]()
        while missing := self._missing():
            if missing != before:
                before, deadline = missing, time.monotonic() + DRAINED_WITHIN_S
            elif time.monotonic() > deadline:
                raise AuditError("lost: " + "; ".join(missing))
            self._bring_on()

    def _missing(self) -> list[str]:
        waiting = [
            f"{one.client.session.client_id} waits for {len(one.client.session.sending)}"
            for one in self._publishers
            if one.client.session.sending
        ]
        return waiting + [line for one in self._subscribers for line in one.received.missing()]

    def _paho_come_back(self) -> None:
        """There is no paho here."""
