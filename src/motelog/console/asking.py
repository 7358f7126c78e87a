"""The console's questions to a gateway, in this process or another.

Owns: the questions, how long an answer may take. Must not touch: HTTP, producing the answers
(``gateway.operator`` does that).

The answers are those of ``gateway.operator_answers``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from motelog.core.errors import MotelogError
from motelog.core.net.listeners import CertificateFile
from motelog.gateway.mqtt.errors import TopicFilterError
from motelog.gateway.operator.answers import (
    Client,
    ClientPage,
    GatewayNodes,
    MessageReceivers,
    RetainedMessage,
    RetainedPage,
    Session,
    SessionPage,
    Trace,
)
from motelog.gateway.operator.operator import Operator
from motelog.gateway.operator.sessions import SessionInUseError
from motelog.gateway.operator.traces import TraceRefusedError
from motelog.gateway.state.view import ViewError

_T = TypeVar("_T")

ANSWER_WITHIN_S: Final = 10.0
#: How long to wait for packets of a trace, and how often to look for them meanwhile.
TRACE_WITHIN_S: Final = 1.0
_TRACE_EVERY_S: Final = 0.1


class RefusedError(MotelogError):
    """A question is refused; ``status`` is HTTP's: 400, 409, or 503 if there is no answer yet."""

    def __init__(self, why: str, status: int = 503) -> None:
        super().__init__(why)
        self.status = status


class AskedGateway(Protocol):
    """A gateway that answers questions. None and False mean "not found". RefusedError."""

    async def list_gateways(self) -> GatewayNodes: ...

    async def reload_certificates(self) -> list[CertificateFile]: ...

    async def list_retained(self, topic_filter: str, after: str, limit: int) -> RetainedPage: ...

    async def get_retained(self, topic: str) -> RetainedMessage | None: ...

    async def delete_retained(self, topic: str) -> bool: ...

    async def list_receivers(
        self, name: str, topic: str, queue_names: list[str], queue_offset: int, client_id: str
    ) -> MessageReceivers | None: ...

    async def list_clients(self, prefix: str, after: str, limit: int) -> ClientPage: ...

    async def get_client(self, client_id: str) -> Client | None: ...

    async def kick(self, client_id: str) -> bool: ...

    async def start_trace(self, client_id: str, seconds: int, packets: int) -> Trace | None: ...

    async def read_trace(self, trace: str, after: int) -> Trace | None: ...

    async def end_trace(self, trace: str) -> bool: ...

    async def list_sessions(self, prefix: str, after: str, limit: int) -> SessionPage: ...

    async def get_session(self, client_id: str) -> Session | None: ...

    async def end_session(self, client_id: str) -> bool: ...

    async def end_away_session(self, client_id: str) -> bool: ...


async def _no_certificates() -> list[CertificateFile]:
    return []


class GatewayHere:
    """The gateway of this process."""

    def __init__(
        self,
        operator: Operator,
        reload_certificates: Callable[[], Awaitable[list[CertificateFile]]] = _no_certificates,
    ) -> None:
        self._operator = operator
        self._reload_certificates = reload_certificates

    async def list_gateways(self) -> GatewayNodes:
        return self._operator.list_gateways()

    async def reload_certificates(self) -> list[CertificateFile]:
        return await self._reload_certificates()

    async def list_retained(self, topic_filter: str, after: str, limit: int) -> RetainedPage:
        return _answer(partial(self._operator.list_retained, topic_filter, after, limit))

    async def get_retained(self, topic: str) -> RetainedMessage | None:
        return _answer(partial(self._operator.get_retained, topic))

    async def delete_retained(self, topic: str) -> bool:
        return await _settled(partial(self._operator.delete_retained, topic))

    async def list_receivers(
        self, name: str, topic: str, queue_names: list[str], queue_offset: int, client_id: str
    ) -> MessageReceivers | None:
        ask = partial(self._operator.list_receivers, name, topic, queue_names, queue_offset)
        return _answer(partial(ask, client_id))

    async def list_clients(self, prefix: str, after: str, limit: int) -> ClientPage:
        return _answer(partial(self._operator.list_clients, prefix, after, limit))

    async def get_client(self, client_id: str) -> Client | None:
        return _answer(partial(self._operator.get_client, client_id))

    async def kick(self, client_id: str) -> bool:
        return _answer(partial(self._operator.kick, client_id))

    async def start_trace(self, client_id: str, seconds: int, packets: int) -> Trace | None:
        return _answer(partial(self._operator.start_trace, client_id, seconds, packets))

    async def read_trace(self, trace: str, after: int) -> Trace | None:
        """Return as soon as there is something new, or after a moment."""
        answer = self._operator.read_trace(trace, after)
        with trio.move_on_after(TRACE_WITHIN_S):
            while answer is not None and not answer.packets and answer.over is None:
                await trio.sleep(_TRACE_EVERY_S)
                answer = self._operator.read_trace(trace, after)
        return answer

    async def end_trace(self, trace: str) -> bool:
        return self._operator.end_trace(trace)

    async def list_sessions(self, prefix: str, after: str, limit: int) -> SessionPage:
        return _answer(partial(self._operator.list_sessions, prefix, after, limit))

    async def get_session(self, client_id: str) -> Session | None:
        return _answer(partial(self._operator.get_session, client_id))

    async def end_session(self, client_id: str) -> bool:
        return await _settled(partial(self._operator.end_session, client_id))

    async def end_away_session(self, client_id: str) -> bool:
        return await _settled(partial(self._operator.end_away_session, client_id))


def _answer(ask: Callable[[], _T]) -> _T:
    """Ask the gateway; its errors become refusals."""
    try:
        return ask()
    except TopicFilterError as exc:
        raise RefusedError(str(exc), 400) from exc
    except (SessionInUseError, TraceRefusedError) as exc:
        raise RefusedError(str(exc), 409) from exc
    except ViewError as exc:
        raise RefusedError(str(exc)) from exc


async def _settled(begin: Callable[[Callable[[MotelogError | None], None]], bool]) -> bool:
    """Wait until what ``begin`` appends is in the log; False if there is nothing to do."""
    done = trio.Event()
    failed: list[MotelogError] = []

    def settled(error: MotelogError | None) -> None:
        if error is not None:
            failed.append(error)
        done.set()

    if not _answer(partial(begin, settled)):
        return False
    with trio.move_on_after(ANSWER_WITHIN_S):
        await done.wait()
    if not done.is_set() or failed:
        raise RefusedError(str(failed[0]) if failed else "the log does not answer")
    return True
