"""The admin API's endpoints of a gateway: clients, sessions, retained messages.

Owns: their parameters. Must not touch: messages, sessions (it uses ``asking``).
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Annotated, Final, TypeVar

import msgspec

from motelog.console.api import Done, Endpoint
from motelog.console.asking import AskedGateway, RefusedError
from motelog.console.gate import Role
from motelog.gateway.operator.answers import (
    Client,
    ClientPage,
    Purged,
    RetainedMessage,
    RetainedPage,
    Session,
    SessionPage,
    Trace,
)
from motelog.gateway.operator.traces import PACKETS_MAX, SECONDS_MAX

LIMIT: Final = 100
NO_CLIENT: Final = "no client with this identifier is connected"
NO_TRACE: Final = "there is no such trace, or it ended long ago"
TRACE_S: Final = 60
TRACE_PACKETS: Final = 500
NO_SESSION: Final = "there is no session with this client identifier"
NO_MESSAGE: Final = "there is no retained message with this topic name"

_IN_USE: Final = 409
_GLOB: Final = re.compile(r"[*?\[]")
_T = TypeVar("_T")

_Prefix = Annotated[str, msgspec.Meta(description="Only client identifiers that begin with this.")]
After = Annotated[
    str, msgspec.Meta(description="The page begins after this name: `after` of the last page.")
]
Limit = Annotated[int, msgspec.Meta(ge=1, description="At most this many; a page may be shorter.")]


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: _Prefix = ""
    after: After = ""
    limit: Limit = LIMIT


class PurgeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: Annotated[
        str,
        msgspec.Meta(min_length=1, description="Client identifiers; * and ? as in a shell."),
    ]
    left_before_ms: Annotated[
        int | None,
        msgspec.Meta(
            description="Only clients that disconnected before this time, in ms since 1970."
        ),
    ] = None
    dry_run: Annotated[
        bool, msgspec.Meta(description="End nothing; return what would be ended.")
    ] = False
    after: After = ""


class RetainedQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    filter: Annotated[str, msgspec.Meta(description="Topic filter.")] = "#"
    after: After = ""
    limit: Limit = LIMIT


class TopicQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: Annotated[str, msgspec.Meta(description="Topic name.")]


class ClientQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    client_id: Annotated[str, msgspec.Meta(description="Client identifier.")]


class StartTraceQuery(ClientQuery, frozen=True, forbid_unknown_fields=True):
    seconds: Annotated[
        int, msgspec.Meta(ge=1, le=SECONDS_MAX, description="Seconds after which the trace ends.")
    ] = TRACE_S
    packets: Annotated[
        int, msgspec.Meta(ge=1, le=PACKETS_MAX, description="Packets after which it ends.")
    ] = TRACE_PACKETS


class EndTraceQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    trace: Annotated[str, msgspec.Meta(description="The identifier from the start of the trace.")]


class TraceQuery(EndTraceQuery, frozen=True, forbid_unknown_fields=True):
    after: Annotated[
        int, msgspec.Meta(ge=0, description="The answer begins after the packet of this number.")
    ] = 0


class GatewayApi:
    """``gateway`` is None until the gateway of this server has started."""

    def __init__(self) -> None:
        self.gateway: AskedGateway | None = None

    def endpoints(self) -> list[Endpoint]:
        return [*self._of_clients(), *self._of_sessions(), *self._of_retained()]

    def _of_clients(self) -> list[Endpoint]:
        client, trace = "/clients/client", "/clients/trace"
        return [
            Endpoint("/clients", "Connected clients", PageQuery, ClientPage, self.list_clients),
            Endpoint(client, "One connected client", ClientQuery, Client, self.get_client),
            Endpoint(
                client,
                "Disconnect a client; its session is kept",
                ClientQuery,
                Done,
                self.kick_client,
                method="DELETE",
                role=Role.OPERATE,
            ),
            Endpoint(
                trace,
                "Trace the packets of a client for a limited time, without their payloads",
                StartTraceQuery,
                Trace,
                self.start_trace,
                method="POST",
                role=Role.OPERATE,
            ),
            Endpoint(
                trace,
                "The packets of a trace; waits up to 1 s if there are none yet",
                TraceQuery,
                Trace,
                self.get_trace,
                role=Role.OPERATE,
            ),
            Endpoint(
                trace,
                "End a trace; its packets can be read for two more minutes",
                EndTraceQuery,
                Done,
                self.end_trace,
                method="DELETE",
                role=Role.OPERATE,
            ),
        ]

    def _of_sessions(self) -> list[Endpoint]:
        session = "/sessions/session"
        return [
            Endpoint("/sessions", "Sessions", PageQuery, SessionPage, self.list_sessions),
            Endpoint(session, "One session", ClientQuery, Session, self.get_session),
            Endpoint(
                session,
                "End a session; its client is disconnected and its will is published",
                ClientQuery,
                Done,
                self.end_session,
                method="DELETE",
                role=Role.OPERATE,
            ),
            Endpoint(
                "/sessions/purge",
                "End the sessions of disconnected clients, a page at a time",
                PurgeQuery,
                Purged,
                self.purge_sessions,
                method="POST",
                role=Role.OPERATE,
            ),
        ]

    def _of_retained(self) -> list[Endpoint]:
        message = "/retained/message"
        return [
            Endpoint(
                "/retained", "Retained messages", RetainedQuery, RetainedPage, self.list_retained
            ),
            Endpoint(
                message, "One retained message", TopicQuery, RetainedMessage, self.get_retained
            ),
            Endpoint(
                message,
                "Delete a retained message; nothing is sent to subscribers",
                TopicQuery,
                Done,
                self.delete_retained,
                method="DELETE",
                role=Role.OPERATE,
            ),
        ]

    @property
    def _asked(self) -> AskedGateway:
        if self.gateway is None:
            raise RefusedError("this process has no running gateway")
        return self.gateway

    async def list_clients(self, query: PageQuery) -> ClientPage:
        return await self._asked.list_clients(query.prefix, query.after, query.limit)

    async def get_client(self, query: ClientQuery) -> Client:
        return _found(await self._asked.get_client(query.client_id), NO_CLIENT)

    async def kick_client(self, query: ClientQuery) -> Done:
        return _done(await self._asked.kick(query.client_id), NO_CLIENT)

    async def start_trace(self, query: StartTraceQuery) -> Trace:
        asked = self._asked
        trace = await asked.start_trace(query.client_id, query.seconds, query.packets)
        return _found(trace, NO_CLIENT)

    async def get_trace(self, query: TraceQuery) -> Trace:
        return _found(await self._asked.read_trace(query.trace, query.after), NO_TRACE)

    async def end_trace(self, query: EndTraceQuery) -> Done:
        return _done(await self._asked.end_trace(query.trace), NO_TRACE)

    async def list_sessions(self, query: PageQuery) -> SessionPage:
        return await self._asked.list_sessions(query.prefix, query.after, query.limit)

    async def get_session(self, query: ClientQuery) -> Session:
        return _found(await self._asked.get_session(query.client_id), NO_SESSION)

    async def end_session(self, query: ClientQuery) -> Done:
        return _done(await self._asked.end_session(query.client_id), NO_SESSION)

    async def purge_sessions(self, query: PurgeQuery) -> Purged:
        prefix = _GLOB.split(query.pattern, 1)[0]
        page = await self._asked.list_sessions(prefix, query.after, LIMIT)
        ended, kept = [], []
        for one in page.sessions:
            if one.is_connected or not fnmatchcase(one.client_id, query.pattern):
                continue
            if query.left_before_ms is not None and (
                one.since_ms is None or one.since_ms >= query.left_before_ms
            ):
                continue
            if query.dry_run or await self._ended(one.client_id):
                ended.append(one.client_id)
            else:
                kept.append(one.client_id)
        return Purged(ended=ended, kept=kept, after=page.after)

    async def _ended(self, client_id: str) -> bool:
        try:
            return await self._asked.end_away_session(client_id)
        except RefusedError as exc:
            if exc.status != _IN_USE:
                raise
            return False

    async def list_retained(self, query: RetainedQuery) -> RetainedPage:
        return await self._asked.list_retained(query.filter, query.after, query.limit)

    async def get_retained(self, query: TopicQuery) -> RetainedMessage:
        return _found(await self._asked.get_retained(query.topic), NO_MESSAGE)

    async def delete_retained(self, query: TopicQuery) -> Done:
        return _done(await self._asked.delete_retained(query.topic), NO_MESSAGE)


def _found(answer: _T | None, none: str) -> _T:
    if answer is None:
        raise RefusedError(none, 404)
    return answer


def _done(is_done: bool, none: str) -> Done:
    if not is_done:
        raise RefusedError(none, 404)
    return Done()
