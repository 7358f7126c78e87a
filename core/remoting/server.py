"""The remoting server on the reactor: requests and answers in turns, no task per connection.

Owns: the listening sockets and connections of one server, choosing a processor by request code,
answers to unsupported requests, back pressure. Must not touch: the meaning of requests.

A processor returns the answer, or None if it answers later through ``connection.reply``. Processors
that collect requests (one store append for a turn's sends) finish in ``end_turn``, which is called
once after the last request of a turn, and by ``flush`` for requests processed later.
``after_turns`` is called once after all turns that were ready. A frame that cannot be parsed closes
only its own connection.

No request ends the process. If a processor fails, the client gets SYSTEM_ERROR, and the request's
code and peer are logged. The same applies to an answer that does not fit into a frame.

A client that requests more than it reads has to wait: above OUTPUT_BYTES_HIGH its requests wait
until the reactor reports that its output is drained. Meanwhile nothing is read from it, so at most
the requests of one turn wait.

``Connection.ask`` is a request to the client, which the client answers. The callback for its
outcome may queue output, but must not stage anything that only ``end_turn`` finishes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import time
from typing import Any, Final, Protocol

import trio

from motelog.core.errors import (
    BrokerError,
    RemotingConnectionError,
    RemotingDecodeError,
    StoreError,
)
from motelog.core.lasting import run_again
from motelog.core.limited_log import LimitedLog
from motelog.core.message import encode_host
from motelog.core.net.driver import drive
from motelog.core.net.endings import Endings
from motelog.core.net.listeners import OpenListener
from motelog.core.net.reactor import Fault, Framing, Reactor, Turn
from motelog.core.remoting.asked import Answered, Asked
from motelog.core.remoting.frames import RemotingCommand, ResponseCode, decode, encode_head
from motelog.core.spare_memory import NO_MEMORY

logger = logging.getLogger(__name__)

Processor = Callable[["RemotingCommand", "Connection"], RemotingCommand | None]


class Plain(Protocol):
    """Requests without command objects: those of a turn are parsed from their frames together.

    Each is a tuple that begins with its request code. If ``split`` returns None for a frame, or the
    taker returns False, the frame is decoded and passed to the processor of its code.
    """

    #: Request code -> function that processes and answers a request; it returns False, without any
    #: effect, if it does not handle it.
    takers: Mapping[int, Callable[[Any, Connection], bool]]

    def split(self, data: Any, index: Any, count: int) -> list[Any]:
        """Return a plain request or None for each of the first ``count`` frames of a Turn."""
        ...


class Lateness(Protocol):
    """Decides about requests that waited in their sockets because the server was delayed."""

    def turn_begins(self) -> bool:
        """Record that a turn begins; return whether its requests may have waited."""
        ...

    def is_late(self, waited_ms: int) -> bool:
        """Return whether a request of any kind that waited so long may be too late."""
        ...

    def refusal(self, request: RemotingCommand, waited_ms: int, behind: int) -> str | None:
        """Return why a request that waited is refused, or None; ``behind`` more follow it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections there may be, and what each is closed for: a long frame, or silence."""

    connections_max: int
    frame_bytes_max: int
    idle_s_max: int
    #: Until its first request, in place of ``idle_s_max``.
    first_frame_s: int = 10


OUTPUT_BYTES_HIGH: Final = 1_048_576
OUTPUT_BYTES_MAX: Final = 16_777_216


class Connection:
    """One client's connection; hashable by identity, so it can own the client's registrations."""

    __slots__ = (
        "_asked",
        "_faults",
        "_reactor",
        "access_keys",
        "connection_id",
        "deferred",
        "has_spoken",
        "host",
        "is_open",
        "peer",
    )

    def __init__(
        self,
        reactor: Reactor,
        connection_id: int,
        peer: tuple[str, int],
        faults: LimitedLog,
        asked: Asked[Connection],
    ) -> None:
        self._reactor = reactor
        self._faults = faults
        self._asked = asked
        self.connection_id = connection_id
        self.peer = peer
        self.host = encode_host(*peer)
        self.is_open = True
        self.has_spoken = False  # before its first request first_frame_s applies, not idle_s_max
        #: The accounts that have signed requests here, if there is access control.
        self.access_keys: frozenset[str] = frozenset()
        self.deferred: deque[RemotingCommand] = deque()

    def begin(self, peer: tuple[str, int]) -> None:
        """Record that the first request has arrived, and the peer, perhaps as a balancer says."""
        self.has_spoken = True
        self.peer = peer
        self.host = encode_host(*peer)

    @property
    def is_congested(self) -> bool:
        """Return whether the client reads its answers slowly; do not queue large output for it."""
        return self.is_open and self._reactor.output_bytes(self.connection_id) > OUTPUT_BYTES_HIGH

    def reply(self, command: RemotingCommand) -> None:
        """Queue an answer or a request to the client; no effect after the connection is closed.

        The body is not copied into the frame. An answer that is too large becomes an error.
        """
        try:
            head = encode_head(command)
        except ValueError as exc:
            if not command.is_response:
                raise
            command = _too_large(command, str(exc))
            head = encode_head(command)
        self.send(head, command.body)

    def ask(self, command: RemotingCommand, answered: Answered, *, timeout_s: float) -> None:
        """Queue a request to the client, and call ``answered`` once with the outcome.

        The outcome is the client's answer, or the error; ``answered`` may be called before this
        returns, and must not wait.
        """
        refusal = None
        if not self.is_open:
            refusal = "the client's connection is closed"
        elif self.is_congested:
            refusal = "the client reads its output too slowly"
        if refusal is not None:
            answered(RemotingConnectionError(refusal))
            return
        opaque = self._asked.add(self, answered, timeout_s=timeout_s)
        if opaque is None:
            return
        command.opaque = opaque
        try:
            self.reply(command)
        except ValueError as exc:
            self._asked.end(self, opaque, RemotingConnectionError(f"cannot be sent: {exc}"))

    def fail(self, request: RemotingCommand) -> None:
        """Answer a request whose processor has failed, and log the exception being handled."""
        self._faults.fault(
            "a request failed and was refused, a fault of this server; others are served"
            " code=%d peer=%s:%d",
            request.code,
            *self.peer,
        )
        if not request.is_oneway:
            text = "the server failed to process this request; see its log"
            self.reply(request.answer(ResponseCode.SYSTEM_ERROR, text))

    def send(self, frame: bytes, body: bytes = b"") -> None:
        """Queue one whole frame that ends with ``body``; no effect on a closed connection."""
        # The reactor reuses the number for another connection: a late answer must not reach that.
        if self.is_open:
            self._reactor.send(self.connection_id, frame, body)


class RemotingServer:
    """The connections of one server; state changes only between two awaits of ``run``."""

    def __init__(
        self,
        processors: Mapping[int, Processor],
        limits: ConnectionLimits,
        *,
        plain: Plain | None = None,
        lateness: Lateness | None = None,
        end_turn: Callable[[], None] = lambda: None,
        after_turns: Callable[[], None] = lambda: None,
        on_closed: Callable[[Connection], None] | None = None,
        now_s: Callable[[], float] = time,
    ) -> None:
        self.reactor = Reactor(
            connections_max=limits.connections_max,
            output_bytes_high=OUTPUT_BYTES_HIGH,
            output_bytes_max=OUTPUT_BYTES_MAX,
        )
        self._processors = processors
        self._limits = limits
        self._plain = plain
        self._lateness = lateness
        self._end_turn = end_turn
        self._after_turns = after_turns
        self._on_closed = on_closed
        self._now_s = now_s
        self._endings = Endings()
        self._connections: dict[int, Connection] = {}
        self._faults = LimitedLog(logger)
        self._closings = LimitedLog(logger)
        self._asked: Asked[Connection] = Asked(self._faults)
        self._has_ended = False

    @property
    def connections_count(self) -> int:
        return len(self._connections)

    def listen(self, listener: OpenListener) -> None:
        """Accept connections from a listener; the reactor owns its socket from now on."""
        self.reactor.listen(
            listener.sock,
            Framing.REMOTING,
            frame_bytes_max=self._limits.frame_bytes_max,
            first_frame_s=self._limits.first_frame_s,
            codec=listener.codec(),
            connections_max=listener.config.connections_max,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; then close every connection."""
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_again, self._asked.run, self.flush)
                nursery.start_soon(run_again, self._end_expired)
                await drive(
                    self.reactor,
                    self.handle_turn,
                    clock_s=lambda: int(trio.current_time()),
                    after_turns=self._after_turns,
                )
        finally:
            self._has_ended = True
            for connection in self._connections.values():
                connection.is_open = False
            self.reactor.shut_down()

    def flush(self) -> None:
        """Finish requests processed outside a turn (woken pulls, delayed requests), and send.

        No effect after the server has ended: its callers may end a little later.
        """
        if not self._has_ended:
            self._finish_turn()
            self._after_turns()
            self.send_queued()

    def send_queued(self) -> None:
        """Send output queued outside a turn; no effect after the server has ended."""
        if not self._has_ended:
            self.reactor.flush()

    def close_where(self, is_over: Callable[[Connection], bool], reason: str) -> None:
        """Close the connections for which ``is_over`` is true; no effect after the end."""
        if self._has_ended:
            return
        for connection in [one for one in self._connections.values() if is_over(one)]:
            self._close(connection, reason)
        self.send_queued()

    def handle_turn(self, turn: Turn) -> None:
        """Process one batch of the reactor."""
        for connection_id, _listener, peer in turn.opened:
            self._connections[connection_id] = Connection(
                self.reactor, connection_id, peer, self._faults, self._asked
            )
        for connection_id in turn.drained:
            drained = self._connections.get(connection_id)
            if drained is not None:
                self._handle_deferred(drained)
        broken: dict[Connection, str] = {}
        if turn.frames:
            try:
                broken = self._handle_frames(turn)
            except NO_MEMORY:
                self._faults.fault("there is no memory for a turn, and its connections are closed")
                broken = self._lost(turn)
        self._finish_turn()
        # Closed last, so that requests before the malformed frame are answered.
        for connection, reason in broken.items():
            self._close(connection, reason)
        for connection_id, fault in turn.faults:
            faulty = self._connections.get(connection_id)
            if faulty is not None:
                what = self.reactor.codec_fault(connection_id)
                self._close(faulty, what if fault is Fault.TRANSPORT else fault.name)
        for connection_id, _reason in turn.closed:
            closed = self._connections.get(connection_id)
            if closed is not None:
                self._forget(closed)

    def _lost(self, turn: Turn) -> dict[Connection, str]:
        """Return the connections of a turn some of whose requests will not be answered."""
        of_turn = (self._connections.get(turn.index[i]) for i in range(0, 4 * turn.frames, 4))
        return {one: "there is no memory for its request" for one in of_turn if one is not None}

    def _handle_frames(self, turn: Turn) -> dict[Connection, str]:
        """Process the requests of a turn; return the connections that sent something else."""
        data = turn.data
        broken: dict[Connection, str] = {}
        plain = self._plain
        items = plain.split(data, turn.index, turn.frames) if plain else [None] * turn.frames
        # Each number is used several times, and a view would create it each time.
        index = turn.index.tolist()
        lateness = self._lateness
        late = {} if lateness is None or not lateness.turn_begins() else self._find_late(turn)
        for i, item in zip(range(0, 4 * turn.frames, 4), items, strict=True):
            connection = self._connections.get(index[i])
            if connection is None or connection in broken:
                continue
            if not connection.has_spoken:
                self._begin(connection)
                limits = self._limits
                self.reactor.set_limits(
                    index[i], frame_bytes_max=limits.frame_bytes_max, idle_s_max=limits.idle_s_max
                )
            if (
                item is not None
                and plain is not None
                and index[i] not in late
                and not (connection.deferred or connection.is_congested)
            ):
                try:
                    if plain.takers[item[0]](item, connection):
                        continue
                except Exception:
                    connection.fail(decode(data[index[i + 2] : index[i + 3]]))
                    continue
            try:
                request = decode(data[index[i + 2] : index[i + 3]])
            except RemotingDecodeError as exc:
                broken[connection] = str(exc)
                continue
            if request.is_response:
                self._asked.end(connection, request.opaque, request)
                continue
            if index[i] in late and self._refuse_late(
                request, connection, late[index[i]], turn.frames - i // 4 - 1
            ):
                continue
            if connection.deferred or connection.is_congested:
                connection.deferred.append(request)
            else:
                self.process(request, connection)
        return broken

    def _begin(self, connection: Connection) -> None:
        """Store what is known about a client when its first request has arrived."""
        number = connection.connection_id
        connection.begin(self.reactor.peer(number))
        certificate = self.reactor.identity(number)
        self._endings.begin(number, certificate.expires_s if certificate is not None else None)

    async def _end_expired(self) -> None:
        """Close connections as the certificates of their clients expire."""
        while True:
            await trio.sleep(1)
            for number in self._endings.due(self._now_s()):
                connection = self._connections.get(number)
                if connection is not None and connection.has_spoken:
                    self._close(connection, "the client's certificate has expired")
            self.reactor.flush()

    def _find_late(self, turn: Turn) -> dict[int, int]:
        """Return the connections of a turn whose requests may be late -> their delay in ms."""
        lateness, index = self._lateness, turn.index
        assert lateness is not None
        waited = {
            connection_id: self.reactor.silent_ms(connection_id)
            for connection_id in {index[i] for i in range(0, 4 * turn.frames, 4)}
        }
        return {
            connection_id: waited_ms
            for connection_id, waited_ms in waited.items()
            if lateness.is_late(waited_ms)
        }

    def _refuse_late(
        self, request: RemotingCommand, connection: Connection, waited_ms: int, behind: int
    ) -> bool:
        """Refuse a request if it waited too long; return whether it was refused."""
        assert self._lateness is not None
        reason = self._lateness.refusal(request, waited_ms, behind)
        if reason is None:
            return False
        if not request.is_oneway:
            connection.reply(request.answer(ResponseCode.SYSTEM_BUSY, reason))
        return True

    def _handle_deferred(self, connection: Connection) -> None:
        while connection.deferred and not connection.is_congested:
            self.process(connection.deferred.popleft(), connection)

    def process(self, request: RemotingCommand, connection: Connection) -> None:
        """Process one request, and queue its answer unless it is answered later."""
        processor = self._processors.get(request.code, _not_supported)
        answer_with(processor, request, connection)

    def _finish_turn(self) -> None:
        # A processor that collects requests answers them itself, even if it fails.
        try:
            self._end_turn()
        except Exception:
            self._faults.fault("the end of a turn failed, a fault of this server")

    def _close(self, connection: Connection, reason: str) -> None:
        """Close a connection; output queued for it is still sent."""
        host, port = self.reactor.peer(connection.connection_id)
        self._closings.info("connection refused peer=%s:%d reason=%s", host, port, ascii(reason))
        self.reactor.close(connection.connection_id)
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        connection.is_open = False
        del self._connections[connection.connection_id]
        self._asked.close(connection)
        if self._on_closed is not None:
            text = "forgetting a closed connection failed, a fault of this server peer=%s:%d"
            with self._faults.boundary(text, *connection.peer):
                self._on_closed(connection)


def answer_with(processor: Processor, request: RemotingCommand, connection: Connection) -> None:
    """Process a request, now or later; queue the answer, or the error, if one is expected."""
    try:
        answer = processor(request, connection)
    except BrokerError as exc:
        answer = request.answer(exc.code, exc.remark)
    except (StoreError, RemotingDecodeError) as exc:
        answer = request.answer(ResponseCode.SYSTEM_ERROR, str(exc))
    except Exception:
        # A failing request must not end the server, which serves others too. A store that cannot
        # continue has fenced itself, and each answer says so.
        connection.fail(request)
        return
    if answer is not None and not request.is_oneway:
        try:
            connection.reply(answer)
        except Exception:
            connection.fail(request)


def _too_large(answer: RemotingCommand, reason: str) -> RemotingCommand:
    return RemotingCommand(
        ResponseCode.SYSTEM_ERROR,
        opaque=answer.opaque,
        flag=answer.flag,
        remark=f"the answer cannot be sent: {reason}",
        serialize=answer.serialize,
    )


def _not_supported(request: RemotingCommand, _: Connection) -> RemotingCommand:
    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return request.answer(code, f"request code {request.code} is not supported")
