"""HTTP/1.1 on one connection: h11 between a trio stream and an ASGI application.

Owns: heads and bodies of requests, answers, how the peer's close and reset are handled, timeouts.
Must not touch: routes, the number of connections (``connections``).
Concurrency: one task reads, calls the application and writes, so requests are answered in the order
of their arrival, and the stream is never used by two calls at once.
Spec: RFC 9110, RFC 9112; ASGI 3 without lifespan, WebSocket and extensions.

    next_request: head -> answer: body -> application -> answer -> next_request ... -> close
                  HEAD_S          BODY_S                 SEND_S                        LINGER_S

A peer that has closed its sending side still gets the answers to its complete requests. Nothing is
sent to a peer that is gone, and the application learns of it when it receives next. A truncated
body ends the application: 400, or 408 after a timeout.
"""

from __future__ import annotations

import logging
from collections import deque
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import unquote

import h11
import trio
from starlette.types import ASGIApp, Message

from motelog.core.limited_log import LimitedLog

logger = logging.getLogger(__name__)

HEAD_S: Final = 10.0  # also how long a connection stays open after an answer; pages ask every 2 s
BODY_S: Final = 10.0
SEND_S: Final = 30.0  # to send one part of an answer
LINGER_S: Final = 2.0
HEAD_BYTES_MAX: Final = 16_384
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)
_REFUSED: Final = [(b"content-length", b"0"), (b"connection", b"close")]
_BODILESS: Final = frozenset({204, 304})


class HttpConnection:
    """The server's side of one connection; ``scope`` is common to the scopes of all requests."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        scope: dict[str, Any],
        faults: LimitedLog,
        received: bytes = b"",
    ) -> None:
        """``received`` has already been read from the stream."""
        self._stream = stream
        self._scope = scope
        self._faults = faults
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        if received:
            self._h11.receive_data(received)
        self._is_ended = False  # the peer sends nothing more
        self._is_gone = False  # the peer takes nothing more
        self._answer: _Answer | None = None

    async def next_request(self) -> h11.Request | None:
        """Return the head of a request; None if none arrives in time, or it cannot be parsed."""
        with trio.move_on_after(HEAD_S):
            try:
                event = await self._next_event()
            except h11.RemoteProtocolError as exc:
                await self._refuse(exc.error_status_hint)
                await self._linger()
                return None
            return event if isinstance(event, h11.Request) else None
        return None

    async def answer(self, app: ASGIApp, request: h11.Request) -> bool:
        """Answer a request; return whether another may follow."""
        answer = _Answer(request.method == b"HEAD")
        self._answer = answer
        path, _, query = request.target.partition(b"?")
        scope = {
            **self._scope,
            "type": "http",
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode("ascii").upper(),
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "extensions": {},
        }
        text = "a request to the console failed path=%r"
        with self._faults.boundary(text, scope["path"]), answer.cut:
            await app(scope, self._receive_message, self._send_message)
        if self._h11.our_state is h11.SEND_RESPONSE:
            await self._refuse(answer.cut_status or 500)
        if self._may_follow():
            return True
        await self._linger()
        return False

    # --- the application's side ----------------------------------------------------------

    async def _receive_message(self) -> Message:
        answer = self._answer
        assert answer is not None
        if answer.parts:
            return {"type": "http.request", "body": answer.parts.popleft(), "more_body": True}
        if self._h11.their_state is not h11.SEND_BODY:
            if not answer.is_body_received:
                answer.is_body_received = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await self._wait_ended()
            return {"type": "http.disconnect"}
        if self._h11.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        with trio.move_on_at(answer.body_by_s):
            try:
                event = await self._next_event()
            except h11.RemoteProtocolError as exc:
                return await answer.end(exc.error_status_hint)
            if isinstance(event, h11.Data):
                answer.parts.append(bytes(event.data))
            return await self._receive_message()
        return await answer.end(408)

    async def _send_message(self, message: Message) -> None:
        answer = self._answer
        assert answer is not None
        if message["type"] == "http.response.start":
            answer.start = message
            return
        assert message["type"] == "http.response.body", message["type"]
        events: list[h11.Event] = []
        if answer.start is not None:
            events.append(self._head(answer, answer.start))
            answer.start = None
        body = message.get("body", b"")
        if body and not answer.is_bodiless:
            events.append(h11.Data(data=body))
        if not message.get("more_body", False):
            events.append(h11.EndOfMessage())
        await self._send(*events)

    def _head(self, answer: _Answer, start: Message) -> h11.Response:
        status: int = start["status"]
        answer.is_bodiless |= status in _BODILESS
        headers = [(bytes(name), bytes(value)) for name, value in start.get("headers", ())]
        if self._is_body_missing():
            headers.append((b"connection", b"close"))
        return h11.Response(status_code=status, headers=[*headers, _date()])

    def _is_body_missing(self) -> bool:
        """Read what has arrived of the body; return whether more is to come."""
        assert self._answer is not None
        while self._h11.their_state is h11.SEND_BODY:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError:
                return True
            if event is h11.NEED_DATA:
                return True
            if isinstance(event, h11.Data):
                self._answer.parts.append(bytes(event.data))
        return self._h11.their_state is h11.ERROR

    # --- the stream ----------------------------------------------------------------------

    async def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            event = self._h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._h11.receive_data(await self._receive())

    async def _receive(self) -> bytes:
        """Return the bytes received; b"" at the end and after a reset."""
        data = b""
        if not self._is_ended:
            try:
                data = bytes(await self._stream.receive_some(HEAD_BYTES_MAX))
            except _GONE:
                self._is_gone = True
            self._is_ended = not data
        return data

    async def _wait_ended(self) -> None:
        while not self._is_ended:
            if len(self._h11.trailing_data[0]) > HEAD_BYTES_MAX:
                await trio.sleep_forever()  # the next request waits for this one
            self._h11.receive_data(await self._receive())

    async def _send(self, *events: h11.Event) -> None:
        """Send the bytes of events, all or none; nothing to a peer that is gone."""
        data = b"".join(self._h11.send(event) or b"" for event in events)
        if self._is_gone or not data:
            return
        # Shielded: a part of an answer is sent completely once it is begun.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + SEND_S) as scope:
            try:
                await self._stream.send_all(data)
            except _GONE:
                self._is_gone = True
        if scope.cancelled_caught:
            self._is_gone = True

    async def _refuse(self, status: int) -> None:
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = h11.Response(status_code=status, headers=[*_REFUSED, _date()])
            await self._send(head, h11.EndOfMessage())

    def _may_follow(self) -> bool:
        """Prepare for another request, unless one of the sides has ended."""
        if self._is_gone or self._is_body_missing():
            return False
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True

    async def _linger(self) -> None:
        """Read on for a while: closing with unread bytes would reset the connection."""
        if isinstance(self._stream, trio.SocketStream) and not self._is_gone:
            try:
                await self._stream.send_eof()
            except _GONE:
                return
        if self._h11.their_state in (h11.SEND_BODY, h11.ERROR):
            with trio.move_on_after(LINGER_S):
                while not (self._is_ended or self._is_gone):
                    await self._receive()


class _Answer:
    """The state of the answer to one request."""

    def __init__(self, is_bodiless: bool) -> None:
        self.is_bodiless = is_bodiless
        self.body_by_s = trio.current_time() + BODY_S
        self.parts: deque[bytes] = deque()  # of the body, not yet received by the application
        self.is_body_received = False
        self.start: Message | None = None  # sent with the first part of the body
        self.cut = trio.CancelScope()
        self.cut_status = 0

    async def end(self, status: int) -> Message:
        """End the application that waits for a body that will not be completed."""
        self.cut_status = status
        self.cut.cancel()
        await trio.sleep_forever()
        raise AssertionError("the application is cancelled")


def _date() -> tuple[bytes, bytes]:
    return b"date", formatdate(usegmt=True).encode()
