"""The admin API's nodes: name servers, brokers and gateways of this cluster, and their state.

Owns: which nodes are asked. Must not touch: the wire (it uses bridge and ``asking``).
Invariant: a node that does not answer is listed with its fault, and does not hide the others.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.admin_answers import BrokerInfo, Replication
from motelog.console.api import Endpoint, NoParameters
from motelog.console.asking import RefusedError
from motelog.console.gateway import GatewayApi
from motelog.console.queues import Brokers, QueueApi
from motelog.core.errors import BrokerError, MotelogError, leaves
from motelog.gateway.operator.answers import GatewayNode

#: How long one node may take to answer.
ANSWER_WITHIN_S: Final = 3.0


class NamesrvNode(msgspec.Struct, frozen=True, kw_only=True):
    """A name server; ``fault`` says why it does not answer, null if it does."""

    address: str
    brokers: int
    fault: str | None


class BrokerNode(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that is registered with a name server; ``id`` 0 is the master.

    What it does not report is null. ``behind_bytes`` is the log that a slave lacks; at a master,
    the nearest of its ``slaves``. ``copy_fault`` says why a slave does not copy, null if it does.
    """

    cluster: str
    name: str
    id: int
    address: str
    version: str | None
    started_ms: int | None
    put_per_second: float | None
    disk_used_percent: float | None
    slaves: int | None
    behind_bytes: int | None
    copy_fault: str | None
    fault: str | None


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes; ``gateways_fault`` says why the gateways are not known, null if they are."""

    namesrvs: list[NamesrvNode]
    brokers: list[BrokerNode]
    gateways: list[GatewayNode]
    gateways_fault: str | None


class NodesApi:
    """Asks the name servers and brokers, and this server's gateway for the other gateways."""

    def __init__(self, gateway: GatewayApi, queues: QueueApi) -> None:
        self._gateway = gateway
        self._queues = queues

    def endpoints(self) -> list[Endpoint]:
        text = "Name servers, brokers and gateways"
        return [Endpoint("/nodes", text, NoParameters, Nodes, self.list_nodes)]

    async def list_nodes(self, query: NoParameters) -> Nodes:
        known = self._queues.brokers
        namesrvs: list[NamesrvNode] = []
        brokers: dict[tuple[str, str, int], BrokerNode] = {}
        if known is not None:
            async with trio.open_nursery() as nursery:
                for address in sorted(known.namesrv):
                    nursery.start_soon(_ask_namesrv, known, address, namesrvs, brokers)
        gateways: list[GatewayNode] = []
        fault: str | None = "this process has no running gateway"
        if self._gateway.gateway is not None:
            try:
                gateways = (await self._gateway.gateway.list_gateways()).gateways
                fault = None
            except RefusedError as exc:
                fault = str(exc)
        return Nodes(
            namesrvs=sorted(namesrvs, key=lambda one: one.address),
            brokers=[brokers[key] for key in sorted(brokers)],
            gateways=gateways,
            gateways_fault=fault,
        )


async def _ask_namesrv(
    known: Brokers,
    address: str,
    namesrvs: list[NamesrvNode],
    brokers: dict[tuple[str, str, int], BrokerNode],
) -> None:
    """Add a name server, and the brokers registered with it."""
    count, fault = 0, None
    try:
        async with Admin(namesrv=(address,), credentials=known.credentials) as admin:
            with trio.fail_after(ANSWER_WITHIN_S):
                found = await admin.brokers()
            count = len(found)
            for one in found:
                key = one.cluster, one.name, one.broker_id
                if key not in brokers:  # another name server may know it as well
                    brokers[key] = await _broker(admin, one)
    except (trio.TooSlowError, MotelogError, OSError, BaseExceptionGroup) as exc:
        fault = _fault(exc)
    namesrvs.append(NamesrvNode(address=address, brokers=count, fault=fault))


async def _broker(admin: Admin, one: BrokerInfo) -> BrokerNode:
    status: dict[str, str] = {}
    copies: Replication | None = None
    fault = None
    try:
        with trio.fail_after(ANSWER_WITHIN_S):
            status = await admin.broker_status(one.name, broker_id=one.broker_id)
            with suppress(BrokerError):  # RocketMQ 4 does not report them
                copies = await admin.replication(one.name, broker_id=one.broker_id)
    except (trio.TooSlowError, MotelogError, OSError, BaseExceptionGroup) as exc:
        fault = _fault(exc)
    copying = None if copies is None else copies.copying
    behind = [] if copies is None else [replica.behind_bytes for replica in copies.replicas]
    started_ms = _number(status.get("bootTimestamp"))
    used = _number(status.get("commitLogDiskRatio"))
    return BrokerNode(
        cluster=one.cluster,
        name=one.name,
        id=one.broker_id,
        address=one.address,
        version=status.get("brokerVersionDesc"),
        started_ms=None if started_ms is None else int(started_ms),
        put_per_second=_number(status.get("putTps", "").partition(" ")[0]),
        disk_used_percent=None if used is None else round(used * 100, 1),
        slaves=None if copies is None or copying is not None else len(behind),
        behind_bytes=min(behind, default=None) if copying is None else copying.behind_bytes,
        copy_fault=None if copying is None else copying.fault or None,
        fault=fault,
    )


def _number(text: str | None) -> float | None:
    """Return a number that a broker reports; brokers other than ours may not report it."""
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _fault(exc: BaseException) -> str:
    """Return why a node does not answer; raise other errors."""
    for leaf in leaves(exc):
        if isinstance(leaf, trio.TooSlowError):
            return f"it does not answer in {ANSWER_WITHIN_S:g} s"
        if isinstance(leaf, MotelogError | OSError):
            return str(leaf)
    raise exc
