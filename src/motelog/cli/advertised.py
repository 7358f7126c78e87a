"""Whether clients can reach the advertised addresses: each is dialled, TLS included.

Owns: which addresses those are, the finding for each. Must not touch: the machine (doctor),
settings.

    name server ---> the brokers' addresses        what it answers to clients
    configuration ---> the listeners' addresses    what people configure in clients

An address that cannot be reached from here may be reachable from elsewhere: run this where the
clients are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import trio

from motelog.cli.finding import Finding
from motelog.core.addresses import format_address, parse_address
from motelog.core.errors import ConfigError, MotelogError, RemotingError
from motelog.core.net.config import ListenerConfig, is_loopback
from motelog.core.remoting.client import RemotingClient, connect
from motelog.core.remoting.frames import RemotingCommand, RequestCode
from motelog.core.remoting.tls import Tls

if TYPE_CHECKING:
    from motelog.config import MotelogConfig
    from motelog.core.remoting.credentials import Credentials

WITHIN_S = 5.0
LOOPBACK = "it advertises {address}, which on a client's machine means that machine itself"
ADVERTISE = (
    'clients connect to {address}: open that port to them, or set [broker] advertise = "IP:PORT"'
    " to an address that they can reach (RocketMQ's brokerIP1)"
)


def cluster_findings(
    namesrv: str,
    *,
    credentials: Credentials | None,
    tls: Tls | None,
    is_for_others: bool | None = None,
) -> list[Finding]:
    """Return the findings on name servers and on the brokers that they name to clients.

    ``is_for_others`` says whether clients are on other machines; None: they are, unless the name
    server is on loopback.
    """
    if is_for_others is None:
        hosts = [parse_address(one)[0] for one in namesrv.split(";")]
        is_for_others = not all(map(is_loopback, hosts))
    return trio.run(_ask_cluster, namesrv, credentials, tls, is_for_others)


async def _ask_cluster(
    namesrv: str, credentials: Credentials | None, tls: Tls | None, is_for_others: bool
) -> list[Finding]:
    from motelog.bridge.admin import Admin

    async with Admin(namesrv=namesrv, credentials=credentials, tls=tls) as admin:
        try:
            brokers = await admin.brokers()
        except MotelogError as exc:
            remedy = "check that it is running, and that --tls and --credentials are right"
            return [Finding("name server", "fault", str(exc), remedy)]
    found = [Finding("name server", "ok", f"{namesrv} answers")]
    if not brokers:
        remedy = "a broker registers with the name servers of [broker] namesrv"
        return [
            *found,
            Finding("brokers", "note", f"no broker is registered with {namesrv}", remedy),
        ]
    looked = [await _look_at_broker(one.name, one.address, tls, is_for_others) for one in brokers]
    return [*found, *looked]


async def _look_at_broker(name: str, address: str, tls: Tls | None, is_for_others: bool) -> Finding:
    title = f"broker {name}"
    try:
        host, port = parse_address(address, port_min=1)
    except ValueError as exc:
        return Finding(
            title, "fault", f"its registered address: {exc}", ADVERTISE.format(address=address)
        )
    if is_for_others and is_loopback(host):
        remedy = f'set [broker] advertise = "IP:{port}" to the address at which clients reach it'
        return Finding(title, "fault", LOOPBACK.format(address=address), remedy)
    try:
        await _greet(address, tls)
    except RemotingError as exc:
        return Finding(title, "fault", str(exc), ADVERTISE.format(address=address))
    how = "over TLS" if tls is not None else "without TLS"
    return Finding(title, "ok", f"{address} answers {how}")


async def _greet(address: str, tls: Tls | None) -> None:
    """Return when the broker has sent any answer; RemotingError if it does not."""
    client = RemotingClient(await connect(address, timeout_s=WITHIN_S, tls=tls), peer=address)
    failed: RemotingError | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        try:
            request = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
            await client.request(request, timeout_s=WITHIN_S)
        except RemotingError as exc:
            failed = exc
        await client.aclose()
    if failed is not None:
        raise failed


def listener_findings(config: MotelogConfig, tls: Tls | None) -> list[Finding]:
    """Return the findings on the listeners of a configuration that is running.

    ``tls`` is what clients trust; None: only the listener's own certificate is accepted.
    """
    listeners = [one for one in config.listeners if one.unix_path is None]
    return trio.run(_dial_listeners, listeners, tls)


async def _dial_listeners(listeners: Iterable[ListenerConfig], tls: Tls | None) -> list[Finding]:
    return [await _dial(one, tls) for one in listeners]


async def _dial(listener: ListenerConfig, known: Tls | None) -> Finding:
    title = f"listener {listener.name}"
    host, port = parse_address(listener.advertise or listener.address)
    text = listener.text_of(listener.address)
    if not listener.advertise:
        if listener.proxy_protocol:
            remedy = "to have it checked, set advertise to the balancer's address"
            return Finding(title, "note", "it is behind a balancer", remedy)
        if host in ("0.0.0.0", "::") or not port:
            remedy = 'to have it checked, set advertise = "HOST:PORT" to what clients connect to'
            return Finding(title, "note", f"{text} is not an address that clients use", remedy)
    tls = (known or Tls(ca=listener.tls_certificate)) if listener.tls_certificate else None
    address = format_address(host, port)
    try:
        await trio.aclose_forcefully(await connect(address, timeout_s=WITHIN_S, tls=tls))
    except ConfigError as exc:
        remedy = "fix the certificate first (TLS of that listener), then check again"
        return Finding(title, "fault", f"{text} was not tried: {exc}", remedy)
    except RemotingError as exc:
        certificate = f", with a certificate for {host}" if tls is not None else ""
        remedy = f"open that port to clients{certificate}, or change the listener's advertise"
        return Finding(title, "fault", f"{text}: {str(exc).removeprefix(f'{address}: ')}", remedy)
    return Finding(title, "ok", f"{text} answers")


def own_namesrv(config: MotelogConfig) -> str | None:
    """Return the name server that a configuration gives to clients; None if there is none.

    A name server on any free port (port 0) counts as none.
    """
    if "namesrv" in config.roles:
        host, port = parse_address(config.namesrv.advertise or config.namesrv.listen)
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return format_address(here.get(host, host), port) if port else None
    of_broker = config.broker.namesrv if config.broker is not None else ()
    return ";".join(config.gateway.namesrv or of_broker) or None


def is_for_others(config: MotelogConfig) -> bool | None:
    """Return whether other machines reach the name server of a configuration; None: not known."""
    if "namesrv" not in config.roles:
        return None
    hosts = [parse_address(config.namesrv.listen)[0]]
    if config.namesrv.advertise:
        hosts.append(parse_address(config.namesrv.advertise)[0])
    return not all(map(is_loopback, hosts))
