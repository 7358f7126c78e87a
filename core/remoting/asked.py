"""A server's requests to its clients that wait for an answer.

Owns: which request waits for which client's answer, and until when. Must not touch: connections'
bytes, what a request means.

A client may never answer, so the number of waiting requests is limited for each connection and in
total, and each request has a deadline. One task looks for expired requests, not one task for each.

Invariant: each request's ``answered`` is called exactly once, unless the server ends first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import trio

from motelog.core.errors import RemotingConnectionError, RemotingError, RemotingTimeoutError
from motelog.core.flag import Flag
from motelog.core.limited_log import LimitedLog
from motelog.core.remoting.frames import RemotingCommand

OwnerT = TypeVar("OwnerT", bound=Hashable)

#: Called with a client's answer, or why there is none: too late, connection lost, too many waiting.
Answered = Callable[[RemotingCommand | RemotingError], None]

WAITING_MAX: Final = 10_000
WAITING_OF_ONE_MAX: Final = 1_000
#: A request may wait this much longer than its timeout.
LOOK_INTERVAL_S: Final = 0.25
_OPAQUE_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Waiting:
    deadline: float
    timeout_s: float
    answered: Answered


class Asked(Generic[OwnerT]):
    """The requests of one server, by the connection that owes the answer."""

    def __init__(self, faults: LimitedLog) -> None:
        self._faults = faults
        self._waiting: dict[OwnerT, dict[int, _Waiting]] = {}
        self._waiting_count = 0
        self._opaque = 0
        self._is_wanted = Flag()

    @property
    def waiting_count(self) -> int:
        return self._waiting_count

    def add(self, owner: OwnerT, answered: Answered, *, timeout_s: float) -> int | None:
        """Return the opaque number for the request; None if too many wait, after ``answered``."""
        of_owner = self._waiting.get(owner, {})
        if self._waiting_count >= WAITING_MAX or len(of_owner) >= WAITING_OF_ONE_MAX:
            text = "too many requests to clients are already waiting for an answer"
            self._tell(answered, RemotingConnectionError(text))
            return None
        self._opaque = self._opaque % _OPAQUE_MAX + 1
        while self._opaque in of_owner:
            self._opaque = self._opaque % _OPAQUE_MAX + 1
        deadline = trio.current_time() + timeout_s
        self._waiting[owner] = of_owner
        of_owner[self._opaque] = _Waiting(deadline, timeout_s, answered)
        self._waiting_count += 1
        self._is_wanted.set()
        return self._opaque

    def end(self, owner: OwnerT, opaque: int, outcome: RemotingCommand | RemotingError) -> None:
        """Report how a request ended; no effect if it is not (or no longer) waiting."""
        of_owner = self._waiting.get(owner, {})
        waiting = of_owner.pop(opaque, None)
        if waiting is None:
            return
        self._waiting_count -= 1
        if not of_owner:
            del self._waiting[owner]
        self._tell(waiting.answered, outcome)

    def close(self, owner: OwnerT) -> None:
        """End all requests to a lost connection."""
        for opaque in list(self._waiting.get(owner, ())):
            text = "the client's connection ended before it answered"
            self.end(owner, opaque, RemotingConnectionError(text))

    async def run(self, flush: Callable[[], None]) -> None:
        """End expired requests until cancelled; ``flush`` then sends output."""
        while True:
            await self._is_wanted.take()
            while self._waiting:
                await trio.sleep(LOOK_INTERVAL_S)
                if self._expire(trio.current_time()):
                    flush()

    def _expire(self, now_s: float) -> bool:
        late = [
            (owner, opaque, waiting.timeout_s)
            for owner, of_owner in self._waiting.items()
            for opaque, waiting in of_owner.items()
            if waiting.deadline <= now_s
        ]
        for owner, opaque, timeout_s in late:
            text = f"the client did not answer within {timeout_s:.3g} s"
            self.end(owner, opaque, RemotingTimeoutError(text))
        return bool(late)

    def _tell(self, answered: Answered, outcome: RemotingCommand | RemotingError) -> None:
        # A client's answer must not end the server.
        with self._faults.boundary("a client's answer could not be used, a fault of this server"):
            answered(outcome)

    def _check(self) -> None:
        """Assert that the count is right, and that each connection has a waiting request."""
        assert self._waiting_count == sum(map(len, self._waiting.values()))
        assert all(self._waiting.values())
