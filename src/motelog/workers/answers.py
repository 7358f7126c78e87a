"""The answers of several gateway processes as those of one gateway.

Owns: who is asked, what several answers come to. Must not touch: how a process is asked.

Retained messages are the same at every process. A session is known to all of them from the log; the
process that its client is connected to knows it best, and one that ends with its connection is
known to that process alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import trio

from motelog.console.asking import AskedGateway, RefusedError

_T = TypeVar("_T")
_UNAVAILABLE = 503


class GatewayOfWorkers:
    """``running`` returns the processes that run at the moment."""

    def __init__(self, running: Callable[[], Sequence[AskedGateway]]) -> None:
        self._running = running

    async def list_retained(self, topic_filter: str, after: str, limit: int) -> dict[str, Any]:
        return await self._any(lambda one: one.list_retained(topic_filter, after, limit))

    async def get_retained(self, topic: str) -> dict[str, Any] | None:
        return await self._any(lambda one: one.get_retained(topic))

    async def delete_retained(self, topic: str) -> bool:
        return await self._any(lambda one: one.delete_retained(topic))

    async def list_sessions(self, prefix: str, after: str, limit: int) -> dict[str, Any]:
        limit = max(limit, 1)
        running = self._known()
        pages = await _all([partial(one.list_sessions, prefix, after, limit) for one in running])
        return merged(pages, limit)

    async def get_session(self, client_id: str) -> dict[str, Any] | None:
        found = await self._find(client_id)
        return None if found is None else found[1]

    async def end_session(self, client_id: str) -> bool:
        found = await self._find(client_id)
        return found is not None and await found[0].end_session(client_id)

    async def _find(self, client_id: str) -> tuple[AskedGateway, dict[str, Any]] | None:
        """Return who knows a session best, and what that is."""
        running = self._known()
        answers = await _all([partial(one.get_session, client_id) for one in running])
        found = [
            (one, answer)
            for one, answer in zip(running, answers, strict=True)
            if answer is not None
        ]
        return max(found, key=lambda one: _rank(one[1]), default=None)

    async def _any(self, ask: Callable[[AskedGateway], Awaitable[_T]]) -> _T:
        """Return the answer of the first that has one."""
        refusal = RefusedError("no gateway process runs at the moment")
        for one in self._running():
            try:
                return await ask(one)
            except RefusedError as exc:
                if exc.status != _UNAVAILABLE:
                    raise
                refusal = exc
        raise refusal

    def _known(self) -> Sequence[AskedGateway]:
        running = self._running()
        if not running:
            raise RefusedError("no gateway process runs at the moment")
        return running


def merged(pages: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return one page of ``limit`` sessions from the same page of each process."""
    # Behind the end of a page that goes on, its process may know sessions that the others do not.
    ends = [page["after"] for page in pages if page["after"] is not None]
    end = min(ends, default=None)
    best: dict[str, dict[str, Any]] = {}
    for page in pages:
        for session in page["sessions"]:
            name = session["client_id"]
            if (end is None or name <= end) and (
                name not in best or _rank(session) > _rank(best[name])
            ):
                best[name] = session
    sessions = [best[name] for name in sorted(best)]
    if len(sessions) > limit:
        sessions = sessions[:limit]
        end = sessions[-1]["client_id"]
    return {"sessions": sessions, "after": end}


def _rank(session: dict[str, Any]) -> int:
    """Return how well its process knows a session: 2 here, 1 away, 0 elsewhere as far as known."""
    if not session["is_connected"]:
        return 1
    return 2 if session["since_ms"] is not None else 0


async def _all(asks: Sequence[Callable[[], Awaitable[_T]]]) -> list[_T]:
    """Return all answers; the first refusal, if there is one."""
    answers: dict[int, _T] = {}
    refusals: list[RefusedError] = []

    async def ask_one(number: int, ask: Callable[[], Awaitable[_T]]) -> None:
        try:
            answers[number] = await ask()
        except RefusedError as exc:
            refusals.append(exc)

    async with trio.open_nursery() as nursery:
        for number, ask in enumerate(asks):
            nursery.start_soon(ask_one, number, ask)
    if refusals:
        raise refusals[0]
    return [answers[number] for number in range(len(asks))]
