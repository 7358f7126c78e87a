"""Combines the answers of several gateway processes into those of one gateway.

Owns: which processes are asked, merging answers. Must not touch: how a process is asked.

Retained messages are the same in every process. All processes know a stored session from the log,
and the process to which its client is connected knows it best. A session that ends with its
connection is known only to that process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import trio

from motelog.console.asking import AskedGateway, RefusedError
from motelog.core.net.listeners import CertificateFile
from motelog.gateway.operator.answers import (
    Client,
    ClientEntry,
    ClientPage,
    GatewayNode,
    GatewayNodes,
    MessageReceiver,
    MessageReceivers,
    RetainedMessage,
    RetainedPage,
    Session,
    SessionEntry,
    SessionPage,
    Trace,
)

_T = TypeVar("_T")
_E = TypeVar("_E", ClientEntry, SessionEntry)
_UNAVAILABLE = 503


class GatewayOfWorkers:
    """``running`` returns the processes that are currently running."""

    def __init__(self, running: Callable[[], Sequence[AskedGateway]]) -> None:
        self._running = running

    async def list_gateways(self) -> GatewayNodes:
        best: dict[str, GatewayNode] = {}
        for answer in await _all([one.list_gateways for one in self._known()]):
            for node in answer.gateways:
                if node.is_here or node.name not in best:
                    best[node.name] = node
        return GatewayNodes(gateways=[best[name] for name in sorted(best)])

    async def reload_certificates(self) -> list[CertificateFile]:
        """Return each file once, with its fault if any process found one."""
        found: dict[tuple[str, str], CertificateFile] = {}
        for files in await _all([one.reload_certificates for one in self._known()]):
            for file in files:
                if file.fault or (file.listener, file.path) not in found:
                    found[file.listener, file.path] = file
        return list(found.values())

    async def list_retained(self, topic_filter: str, after: str, limit: int) -> RetainedPage:
        return await self._any(lambda one: one.list_retained(topic_filter, after, limit))

    async def get_retained(self, topic: str) -> RetainedMessage | None:
        return await self._any(lambda one: one.get_retained(topic))

    async def delete_retained(self, topic: str) -> bool:
        return await self._any(lambda one: one.delete_retained(topic))

    async def list_receivers(
        self, name: str, topic: str, queue_names: list[str], queue_offset: int, client_id: str
    ) -> MessageReceivers | None:
        place = name, topic, queue_names, queue_offset, client_id
        answers = await _all([partial(one.list_receivers, *place) for one in self._known()])
        found = [one for one in answers if one is not None]
        return joined(found) if found else None

    async def list_clients(self, prefix: str, after: str, limit: int) -> ClientPage:
        limit = max(limit, 1)
        running = self._known()
        pages = await _all([partial(one.list_clients, prefix, after, limit) for one in running])
        found, end = merged(
            [(page.clients, page.after) for page in pages], limit, lambda one: one.since_ms
        )
        return ClientPage(clients=found, after=end)

    async def get_client(self, client_id: str) -> Client | None:
        found = await self._clients(client_id)
        return found[1] if found is not None else None

    async def kick(self, client_id: str) -> bool:
        found = await self._clients(client_id)
        return found is not None and await found[0].kick(client_id)

    async def start_trace(self, client_id: str, seconds: int, packets: int) -> Trace | None:
        found = await self._clients(client_id)
        return None if found is None else await found[0].start_trace(client_id, seconds, packets)

    async def read_trace(self, trace: str, after: int) -> Trace | None:
        asks = [(one, partial(one.read_trace, trace, after)) for one in self._known()]
        found = await _best(asks, lambda _: 0)
        return None if found is None else found[1]

    async def end_trace(self, trace: str) -> bool:
        return any(await _all([partial(one.end_trace, trace) for one in self._known()]))

    async def list_sessions(self, prefix: str, after: str, limit: int) -> SessionPage:
        limit = max(limit, 1)
        running = self._known()
        pages = await _all([partial(one.list_sessions, prefix, after, limit) for one in running])
        found, end = merged([(page.sessions, page.after) for page in pages], limit, _rank)
        return SessionPage(sessions=found, after=end)

    async def get_session(self, client_id: str) -> Session | None:
        found = await self._sessions(client_id)
        return found[1] if found is not None else None

    async def end_session(self, client_id: str) -> bool:
        found = await self._sessions(client_id)
        return found is not None and await found[0].end_session(client_id)

    async def end_away_session(self, client_id: str) -> bool:
        found = await self._sessions(client_id)
        return found is not None and await found[0].end_away_session(client_id)

    async def _clients(self, client_id: str) -> tuple[AskedGateway, Client] | None:
        """Return the process that has the client, and what it knows of the client."""
        answers = [(one, partial(one.get_client, client_id)) for one in self._known()]
        return await _best(answers, lambda client: client.since_ms)

    async def _sessions(self, client_id: str) -> tuple[AskedGateway, Session] | None:
        """Return the process that knows a session best, and what it knows."""
        answers = [(one, partial(one.get_session, client_id)) for one in self._known()]
        return await _best(answers, _rank)

    async def _any(self, ask: Callable[[AskedGateway], Awaitable[_T]]) -> _T:
        """Return the first process's answer that is not a refusal."""
        refusal = RefusedError("no gateway process is running")
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
            raise RefusedError("no gateway process is running")
        return running


def merged(
    pages: Sequence[tuple[Sequence[_E], str | None]], limit: int, rank: Callable[[_E], int]
) -> tuple[list[_E], str | None]:
    """Return one page of ``limit`` entries, and where it ends, from the same page of each process.

    If several processes have an entry, the one with the highest ``rank`` wins.
    """
    # Beyond the end of an incomplete page, its process may know entries that the others do not.
    end = min((after for _, after in pages if after is not None), default=None)
    best: dict[str, _E] = {}
    for entries, _ in pages:
        for entry in entries:
            name = entry.client_id
            if (end is None or name <= end) and (
                name not in best or rank(entry) > rank(best[name])
            ):
                best[name] = entry
    found = [best[name] for name in sorted(best)]
    if len(found) > limit:
        found = found[:limit]
        end = found[-1].client_id
    return found, end


def joined(answers: Sequence[MessageReceivers]) -> MessageReceivers:
    """Return the receivers that any process knows, each as seen by the one that knows it best."""
    best: dict[tuple[str | None, str], MessageReceiver] = {}
    for answer in answers:
        for one in answer.receivers:
            key = (one.share, "" if one.share else one.client_id)
            known = best.get(key)
            if known is None or _knows(one) > _knows(known):
                best[key] = one
    return MessageReceivers(receivers=list(best.values()), more=sum(one.more for one in answers))


def _knows(receiver: MessageReceiver) -> tuple[bool, bool, bool]:
    """Return how well a process knows a receiver: best if it has its connection or queues."""
    place = receiver.place
    return receiver.is_connected, place in ("in flight", "released"), place != "elsewhere"


def _rank(session: SessionEntry | Session) -> int:
    """Return how well a process knows a session: 2 connected here, 1 away, 0 perhaps elsewhere."""
    if not session.is_connected:
        return 1
    return 2 if session.since_ms is not None else 0


async def _best(
    asks: Sequence[tuple[AskedGateway, Callable[[], Awaitable[_T | None]]]],
    rank: Callable[[_T], int],
) -> tuple[AskedGateway, _T] | None:
    """Return the process whose answer ranks highest, and the answer; None if there is none."""
    answers = await _all([ask for _, ask in asks])
    found = [
        (one, answer) for (one, _), answer in zip(asks, answers, strict=True) if answer is not None
    ]
    return max(found, key=lambda one: rank(one[1]), default=None)


async def _all(asks: Sequence[Callable[[], Awaitable[_T]]]) -> list[_T]:
    """Return all answers; raises the first refusal, if there is one."""
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
