"""Registration: sends this broker's topics to the name servers, at intervals and on changes.

Owns: one connection per name server, the registration body. Must not touch: the topic table beyond
reading it. Spec: RocketMQ BrokerOuterAPI.registerBrokerAll, RegisterBrokerBody.

An unreachable name server is retried soon, and does not delay the others. A broker that stops
unregisters, so that clients go elsewhere at once.
"""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import trio

from motelog.core.broker.tables.topics import TopicTable
from motelog.core.errors import RemotingError
from motelog.core.flag import Flag
from motelog.core.remoting.client import RemotingClient, connect
from motelog.core.remoting.codes import Permission
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.tls import Tls
from motelog.core.remoting.topic_config import TopicConfig

logger = logging.getLogger(__name__)

# Changes within this time share one registration.
_GATHER_S: Final = 0.01
_RETRY_S: Final = 2.0
_GOODBYE_S: Final = 1.0
_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The names and the address under which this broker registers, and what it allows."""

    cluster: str
    name: str
    address: str
    broker_id: int = 0
    #: Where slaves copy its log; empty: nowhere.
    ha_address: str = ""
    permission: int = _READ_WRITE


class Registrar:
    """Keeps this broker registered with one name server."""

    def __init__(
        self,
        namesrv: str,
        broker: BrokerAddress,
        topics: TopicTable,
        *,
        interval_s: float,
        timeout_s: float,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        check: Callable[[RemotingClient], Awaitable[None]] | None = None,
    ) -> None:
        # Before each registration; a RemotingError keeps it from being sent.
        self._check = check

        self._tls = tls
        self._credentials = credentials
        self._namesrv = namesrv
        self._broker = broker
        self._topics = topics
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._wanted = Flag()
        self._client: RemotingClient | None = None
        self._is_registered = False
        self._was_told_unreachable = False
        self._registered_version = -1
        self._round_over = Flag()
        self.first_round_over = trio.Event()
        #: A slave's master, and where it sends its log, as the name server last said.
        self.master_address = ""
        self.master_ha_address = ""
        topics.listeners.append(lambda _topic: self._wanted.set())

    @property
    def is_registered(self) -> bool:
        """Return whether the last registration was accepted."""
        return self._is_registered

    def register_soon(self) -> None:
        """Register again now; before that, a master asks whether it is still one."""
        self._wanted.set()

    async def wait_registered(self, version: int) -> None:
        """Return when the name server has this state of the topic table, or is unreachable."""
        while self._is_registered and self._registered_version < version:
            await self._round_over.wait()

    async def ask(self, request: RemotingCommand) -> RemotingCommand:
        """Return the name server's answer; RemotingError if it is unreachable or too slow."""
        if self._client is None:
            raise RemotingError(f"the name server {self._namesrv} is not connected")
        return await self._client.request(request, timeout_s=self._timeout_s)

    async def run(self) -> None:
        """Register until cancelled."""
        while True:
            try:
                stream = await connect(self._namesrv, timeout_s=self._timeout_s, tls=self._tls)
            except RemotingError as exc:
                self._lose(exc)
            else:
                await self._serve(stream)
            await trio.sleep(_RETRY_S)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        client = RemotingClient(stream, peer=self._namesrv, credentials=self._credentials)
        # If the task is cancelled, the connection stays open for one more request.
        scope = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_client, client, scope)
            self._client = client
            try:
                while True:
                    await self._register(client)
                    await self._pause()
            except RemotingError as exc:
                self._lose(exc)
            finally:
                self._client = None
                if self._is_registered:
                    with trio.move_on_after(_GOODBYE_S, shield=True):
                        await self._unregister(client)
                scope.cancel()

    async def _run_client(self, client: RemotingClient, scope: trio.CancelScope) -> None:
        with scope:
            await client.run()
            # The name server has closed the connection: the next registration will notice.
            self._wanted.set()

    async def _pause(self) -> None:
        """Wait for a change or for the time to register again."""
        with trio.move_on_after(self._interval_s):
            await self._wanted.wait()
            await trio.sleep(_GATHER_S)
        self._wanted.clear()

    def _names(self) -> dict[str, str]:
        return {
            "brokerName": self._broker.name,
            "brokerAddr": self._broker.address,
            "clusterName": self._broker.cluster,
            "brokerId": str(self._broker.broker_id),
        }

    async def _unregister(self, client: RemotingClient) -> None:
        """Unregister at the name server, so that it sends no more clients here."""
        self._is_registered = False
        request = RemotingCommand(RequestCode.UNREGISTER_BROKER, ext=self._names())
        with contextlib.suppress(RemotingError):  # it will notice the end of the connection
            await client.request(request, timeout_s=_GOODBYE_S)

    async def _register(self, client: RemotingClient) -> None:
        if self._check is not None:
            await self._check(client)
        version = self._topics.version.counter
        body = encode_registration(self._topics, self._broker.permission)
        request = RemotingCommand(
            RequestCode.REGISTER_BROKER,
            ext={
                **self._names(),
                # RocketMQ's name server requires the field.
                "haServerAddr": self._broker.ha_address,
                "compressed": "false",
                "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            },
            body=body,
        )
        try:
            answer = await client.request(request, timeout_s=self._timeout_s)
        except ValueError as exc:
            raise RemotingError(f"registration cannot be sent: {exc}") from exc
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingError(f"registration refused: {answer.code} {answer.remark}")
        if not self._is_registered:
            topics_count = len(self._topics)
            logger.info(
                "the broker is registered namesrv=%s topics=%d", self._namesrv, topics_count
            )
        self._is_registered = True
        self.master_address = answer.ext.get("masterAddr", "")
        self.master_ha_address = answer.ext.get("haServerAddr", "")
        self._registered_version = version
        self._was_told_unreachable = False
        self._end_round()

    def _lose(self, exc: RemotingError) -> None:
        self._is_registered = False
        self._end_round()
        if not self._was_told_unreachable:
            logger.warning(
                "a name server does not accept the registration: clients that ask it may not find"
                " this broker; it is retried every %d s namesrv=%s error=%s",
                _RETRY_S,
                self._namesrv,
                exc,
            )
        self._was_told_unreachable = True

    def _end_round(self) -> None:
        self.first_round_over.set()
        self._round_over.pulse()


def encode_registration(topics: TopicTable, permission: int) -> bytes:
    """Return the registration body in its uncompressed form.

    A topic has the permissions that both it and its broker allow.
    """
    table: Mapping[str, TopicConfig] = topics.table()
    if permission & _READ_WRITE != _READ_WRITE:
        table = {
            name: msgspec.structs.replace(config, perm=config.perm & permission)
            for name, config in table.items()
        }
    wrapper = {"dataVersion": topics.version, "topicConfigTable": table}
    return msgspec.json.encode({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
