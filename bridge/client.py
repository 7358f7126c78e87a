"""What producers and consumers share: name servers, routes, connections, heartbeats.

Owns: one RemotingClient per address, heartbeats, the client's identity at brokers. Must not touch:
when a route is fetched (route_cache), sending and pulling messages (bridge.producer, bridge.pull).
Invariants: every wait on a peer has a deadline; background tasks live in nurseries that ``enter``
opens and ``leave`` closes. State changes between two awaits on trio's thread, or under the lock of
an address or topic.
Spec: RocketMQ MQClientInstance; docs of the wire in core.remoting.frames.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import trio

from motelog.bridge.errors import ClientClosedError, NoNameServerError
from motelog.bridge.route_cache import RouteCache
from motelog.bridge.routes import MASTER_ID, TopicRoute, decode_route
from motelog.core.addresses import format_address, parse_address
from motelog.core.errors import (
    BrokerError,
    RemotingConnectError,
    RemotingDecodeError,
    RemotingError,
    RemotingTimeoutError,
)
from motelog.core.flag import Flag
from motelog.core.lasting import run_again, run_lasting
from motelog.core.remoting.client import RemotingClient, RequestHandler, connect
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode, dumps
from motelog.core.remoting.tls import Tls
from motelog.core.topic_names import (
    group_name_fault,
    is_topic_name,
    topic_name_fault,
)

logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 30.0
# If a request misses its deadline and the peer has sent nothing for this long, the connection is
# closed.
SILENCE_S_MAX: Final = 1.0
REQUEST_TIMEOUT_S: Final = 3.0
LEAVE_GRACE_S: Final = 1.0

_CODE_NAMES: Final = {int(code): code.name for code in ResponseCode}
# Advice for a broker's refusals.
_ADVICE: Final[dict[int, str]] = {
    ResponseCode.SYSTEM_BUSY: "the broker is overloaded, send more slowly",
    ResponseCode.FLOW_CONTROL: "the broker is overloaded, send more slowly",
    ResponseCode.NO_PERMISSION: "check the permissions of the topic, the group and the account",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic, for example with `motelog topic create`",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group, as `Admin.put_group` does",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the server may be of another kind or too old",
}

# The heartbeat's fields for the groups that this client belongs to.
GroupsOf = Callable[[], Mapping[str, list[dict[str, Any]]]]

# "host:port", several separated by ";", one (host, port), or a list of both forms.
NameServers: TypeAlias = str | tuple[str, int] | Sequence[str | tuple[str, int]]

_instances = itertools.count(1)


class Client:
    """Requests to name servers and brokers by address; usable between ``enter`` and ``leave``."""

    def __init__(
        self,
        *,
        namesrv: NameServers,
        groups: GroupsOf,
        unregister: Mapping[str, str],
        on_request: RequestHandler | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        for name, value, kind in (("tls", tls, Tls), ("credentials", credentials, Credentials)):
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name} is {kind.__name__}(...), not {type(value).__name__}")
        if tls is not None:
            tls.context()  # raises now if a file cannot be used
        self.tls = tls
        self.credentials = credentials
        self.namesrv_addresses = parse_namesrv(namesrv)
        self.address = "127.0.0.1"  # our own address as brokers see it; known after enter
        self.client_id = ""
        self._groups = groups
        self._unregister = dict(unregister)
        self._on_request = on_request
        # Clients spread their load over the name servers.
        self._namesrv_index = random.randrange(len(self.namesrv_addresses))
        self._connections: dict[str, RemotingClient] = {}
        self._connecting: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        self._routes = RouteCache(self._ask_route, self._learned)
        self.route = self._routes.find
        self.known_route = self._routes.known
        self._heartbeat_wanted = Flag()
        # The connection on which each broker has accepted a heartbeat.
        self._introduced: dict[str, RemotingClient] = {}
        self._running: _Running | None = None

    async def enter(self) -> None:
        """Start the background tasks; no connection is opened yet."""
        if self.client_id:
            raise ClientClosedError("already used: create a new one")
        self.address = await _own_address(self.namesrv_addresses[0])
        # Unique per process and client: the broker distinguishes the members of a group by it.
        instance = f"{os.getpid()}#{time.time_ns()}#{next(_instances)}"
        self.client_id = f"{self.address}@{instance}"
        self._running = await _Running.enter()
        self.start_soon(self._routes.refresh)
        self.start_soon(self._keep_alive)

    async def leave(self) -> None:
        """Stop background work, unregister within LEAVE_GRACE_S, close the connections."""
        running = self._running
        if running is None:
            return
        try:
            await running.end_work()
        finally:
            self._running = None
            try:
                with trio.move_on_after(LEAVE_GRACE_S, shield=True):
                    await self._say_goodbye()
            finally:
                await running.end_connections()

    def start_soon(self, task: Callable[..., Any], *args: object) -> None:
        """Run ``task`` until ``leave``; restart it if it ends with a MemoryError."""
        self._open().work.start_soon(run_again, task, *args)

    async def request(
        self, address: str, command: RemotingCommand, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> RemotingCommand:
        """Return the answer of the server at ``address``; connect first if there is no connection.

        Raises RemotingError as RemotingClient.request does. The caller checks the answer's code.
        """
        deadline = trio.current_time() + timeout_s
        connection = await self._connection(address, timeout_s)
        asked_at = trio.current_time()
        try:
            answer = await connection.request(command, timeout_s=max(0.0, deadline - asked_at))
            answer.peer = address
            return answer
        except RemotingTimeoutError:
            silence_s = trio.current_time() - max(asked_at, connection.received_at)
            if silence_s >= SILENCE_S_MAX:
                # TCP may take minutes to notice that the peer is gone. The requests that wait here
                # fail now, and the next one opens a new connection.
                logger.warning(
                    "a peer does not answer and its connection is closed; the next request opens "
                    "a new one peer=%s silence_s=%.1f",
                    address,
                    silence_s,
                )
                await connection.aclose(grace_s=0)
            raise

    async def send_oneway(
        self, address: str, command: RemotingCommand, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        """Send a request without an answer."""
        connection = await self._connection(address, timeout_s)
        await connection.send_oneway(command, timeout_s=timeout_s)

    async def request_namesrv(
        self, command: RemotingCommand, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> RemotingCommand:
        """Return the first answer of a name server; each is tried, the last good one first."""
        count = len(self.namesrv_addresses)
        failures = []
        for attempt in range(count):
            index = (self._namesrv_index + attempt) % count
            address = self.namesrv_addresses[index]
            try:
                answer = await self.request(address, command, timeout_s=timeout_s / count)
            except RemotingError as exc:
                failures.append(str(exc))
                continue
            self._namesrv_index = index
            return answer
        raise NoNameServerError(
            f"no name server answered; check that one is running at the given address: "
            f"{'; '.join(failures)}"
        )

    def want_heartbeat(self) -> None:
        """Send a heartbeat soon, because the groups or subscriptions have changed."""
        self._heartbeat_wanted.set()

    async def send_heartbeats(self) -> None:
        """Send a heartbeat to the brokers in use; return when each has answered or failed."""
        async with trio.open_nursery() as nursery:
            for address in self._broker_addresses():
                nursery.start_soon(self._try_heartbeat, address)

    async def send_heartbeat(self, address: str) -> None:
        """Send a heartbeat to one broker; RemotingError or BrokerError if it is not accepted."""
        body = dumps({"clientID": self.client_id, **self._groups()})
        check(await self.request(address, RemotingCommand(RequestCode.HEART_BEAT, body=body)))
        self._introduced[address] = self._connections[address]

    async def introduce(self) -> None:
        """Send a heartbeat to the masters in use that have not had one on this connection."""
        async with trio.open_nursery() as nursery:
            for address in self._broker_addresses():
                connection = self._connections.get(address)
                is_open = connection is not None and connection.is_open
                if not is_open or self._introduced.get(address) is not connection:
                    nursery.start_soon(self._try_heartbeat, address)

    async def unregister(self) -> None:
        """Unregister from the brokers; those that cannot be reached forget this client later."""
        async with trio.open_nursery() as nursery:
            for address in self._broker_addresses():
                connection = self._connections.get(address)
                if connection is not None and connection.is_open:
                    nursery.start_soon(_unregister, connection, self._goodbye())

    def _open(self) -> _Running:
        if self._running is None:
            raise ClientClosedError("not open: use it inside `async with`")
        return self._running

    async def _connection(self, address: str, timeout_s: float) -> RemotingClient:
        running = self._open()
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        # A task that waits here for another's attempt to connect has less time for its own.
        deadline = trio.current_time() + timeout_s
        lock = self._connecting[address]
        with trio.move_on_at(deadline) as waiting:
            await lock.acquire()
        if waiting.cancelled_caught:
            raise RemotingConnectError(f"{address}: no connection within {max(0, timeout_s):.3g} s")
        try:
            connection = self._connections.get(address)
            if connection is not None and connection.is_open:
                return connection
            left_s = max(0.0, deadline - trio.current_time())
            stream = await connect(address, timeout_s=left_s, tls=self.tls)
            connection = RemotingClient(
                stream,
                peer=address,
                on_request=self._on_request,
                credentials=self.credentials,
            )
            self._connections[address] = connection
            await running.start(connection)
            if address in self._broker_addresses():
                # The broker may have restarted, and then knows none of its clients.
                self._heartbeat_wanted.set()
            return connection
        finally:
            lock.release()

    async def _ask_route(self, topic: str, asked_topic: str) -> TopicRoute | None:
        answer = await self.request_namesrv(
            RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": asked_topic})
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NoNameServerError(
                f"{answer.peer} is not a name server: is it a broker's address?"
            )
        check(answer, asked_topic)
        return decode_route(topic, answer.body, is_stand_in=asked_topic != topic)

    def _learned(self, route: TopicRoute) -> None:
        """Introduce this client to brokers that it has not used before."""
        if not self._broker_addresses().issuperset(self._broker_addresses([route])):
            self._heartbeat_wanted.set()

    async def _keep_alive(self) -> None:
        while True:
            await self._heartbeat_wanted.take(HEARTBEAT_S)
            await self.send_heartbeats()

    async def _try_heartbeat(self, address: str) -> None:
        try:
            await self.send_heartbeat(address)
        except RemotingError as exc:
            logger.info("a heartbeat failed; it is sent again broker=%s error=%s", address, exc)
        except BrokerError as exc:
            # The cause may be this client's identity, and then its group receives nothing.
            logger.warning(
                "a broker refuses a heartbeat; it is sent again broker=%s error=%s", address, exc
            )

    async def _say_goodbye(self) -> None:
        await self.unregister()
        async with trio.open_nursery() as nursery:
            for connection in self._connections.values():
                nursery.start_soon(connection.aclose)

    def _goodbye(self) -> dict[str, str]:
        return {"clientID": self.client_id, **self._unregister}

    def _broker_addresses(self, routes: Iterable[TopicRoute] | None = None) -> set[str]:
        """Return the addresses that get heartbeats: those of the masters in use.

        Consumers send heartbeats to slaves too, since they may read from them, as Java's do.
        """
        reads = bool(self._groups().get("consumerDataSet"))
        return {
            address
            for route in (self._routes if routes is None else routes)
            for members in route.addresses.values()
            for broker_id, address in members.items()
            if reads or broker_id == MASTER_ID
        }


class _Running:
    """The two nurseries of an entered client: connections outlive the work, to unregister.

    They also outlive a cancelled caller, until ``end_connections``: it saves offsets and
    unregisters while it exits.

    They are exited explicitly, without the caller's exception, so that this exception propagates
    as itself and not inside an exception group.
    """

    @classmethod
    async def enter(cls) -> _Running:
        running = cls()
        running.connections = await running._connections_manager.__aenter__()
        running.work = await running._work_manager.__aenter__()
        return running

    def __init__(self) -> None:
        self.connections: trio.Nursery
        self.work: trio.Nursery
        self._connection_scopes: set[trio.CancelScope] = set()
        self._connections_manager = trio.open_nursery()
        self._work_manager = trio.open_nursery()

    async def end_work(self) -> None:
        self.work.cancel_scope.cancel()
        await self._work_manager.__aexit__(None, None, None)

    async def start(self, connection: RemotingClient) -> None:
        """Start a connection; return when it can be used."""
        await self.connections.start(self._run_connection, connection)

    async def _run_connection(
        self,
        connection: RemotingClient,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        scope = trio.CancelScope()
        self._connection_scopes.add(scope)
        try:
            await run_lasting(connection.run, scope, task_status=task_status)
        finally:
            self._connection_scopes.remove(scope)

    async def end_connections(self) -> None:
        for scope in self._connection_scopes:
            scope.cancel()
        self.connections.cancel_scope.cancel()
        await self._connections_manager.__aexit__(None, None, None)


async def _unregister(connection: RemotingClient, ext: dict[str, str]) -> None:
    command = RemotingCommand(RequestCode.UNREGISTER_CLIENT, ext=ext)
    try:
        await connection.request(command, timeout_s=LEAVE_GRACE_S / 2)
    except RemotingError as exc:
        logger.info(
            "unregistering from a broker failed; the broker forgets this client by itself "
            "broker=%s error=%s",
            connection.peer,
            exc,
        )


def check(answer: RemotingCommand, topic: str = "") -> RemotingCommand:
    """Return ``answer`` if it reports success; otherwise raise its ``refusal``."""
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, topic)
    return answer


def refusal(answer: RemotingCommand, topic: str = "") -> BrokerError:
    """Return the error for a refused request on ``topic``, with the server and some advice."""
    code = f"code {answer.code} {_CODE_NAMES.get(answer.code, '')}".rstrip()
    place = (f"from {answer.peer}" if answer.peer else "", f"topic {topic!r}" if topic else "")
    where = ", ".join(filter(None, (code, *place)))
    if (advice := _ADVICE.get(answer.code)) is not None:
        where += f": {advice}"
    return BrokerError(answer.code, answer.remark or "the request was refused", where=where)


def int_field(answer: RemotingCommand, name: str) -> int:
    """Return a number from the answer's header; RemotingDecodeError if there is none."""
    text = answer.ext.get(name)
    try:
        return int(text) if text is not None and len(text) <= 20 else int("")
    except ValueError:
        raise RemotingDecodeError(f"the answer's field {name} is {text!r}, not a number") from None


def parse_namesrv(namesrv: NameServers) -> tuple[str, ...]:
    """Return the addresses as HOST:PORT; ValueError if there is none or one is malformed."""
    addresses: list[str] = []
    for server in (namesrv,) if isinstance(namesrv, str) or _is_pair(namesrv) else namesrv:
        if isinstance(server, str):
            addresses += [part.strip() for part in server.split(";") if part.strip()]
        elif _is_pair(server):
            addresses.append(format_address(*cast("tuple[str, int]", server)))
        else:
            raise ValueError(f"namesrv: {server!r} is neither HOST:PORT nor (host, port)")
    if not addresses:
        raise ValueError("namesrv is empty; expected HOST:PORT, several separated by ';'")
    for address in addresses:
        parse_address(address, port_min=1)
    return tuple(addresses)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], int)


def check_text(name: str, value: str) -> str:
    """Return ``value``; TypeError if it is not a str, ValueError if it is empty."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} is empty")
    return value


def check_group(group: str) -> str:
    """Return a group's name; ValueError if brokers do not accept it, TypeError if not a str."""
    return _check_name(check_text("group", group), group_name_fault(group))


def check_subscribed(topic: str) -> str:
    """Do as ``check_group``, for the name of a topic to read."""
    check_text("topic", topic)
    return _check_name(topic, None if is_topic_name(topic) else topic_name_fault(topic))


def _check_name(name: str, fault: str | None) -> str:
    if fault is not None:
        raise ValueError(fault)
    return name


async def _own_address(peer: str) -> str:
    """Return the local address that reaches ``peer``. Connecting a UDP socket sends nothing."""
    host, port = parse_address(peer, port_min=1)
    try:
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with trio.socket.socket(family, kind, protocol) as probe:
            await probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
