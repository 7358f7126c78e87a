"""Whether clients reach what they are told: each advertised address is dialled, TLS included.

Owns: which addresses those are, what is said of each. Must not touch: machines (doctor), settings.

    name server ---> the brokers' addresses        what a client is told by it
    configuration ---> the listeners' addresses    what people are told

That an address cannot be reached from here does not say that it cannot from elsewhere: run it
where clients are.
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
LOOPBACK = "it tells clients {address}, which on each of their machines is that machine"
ADVERTISE = (
    'clients are told {address}: open that port to them, or set [broker] advertise = "IP:PORT" to'
    " one that they reach (RocketMQ's brokerIP1)"
)


def cluster_findings(
    namesrv: str,
    *,
    credentials: Credentials | None,
    tls: Tls | None,
    is_for_others: bool | None = None,
) -> list[Finding]:
    """Return what is to say of name servers and of the brokers that they tell clients of.

    ``is_for_others`` says whether clients are on other machines; None: unless it is on loopback.
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
            remedy = "is it running, and are --tls and --credentials what it wants?"
            return [Finding("name server", "fault", str(exc), remedy)]
    found = [Finding("name server", "ok", f"{namesrv} answers")]
    if not brokers:
        remedy = "a broker names it: [broker] namesrv"
        return [*found, Finding("brokers", "note", f"{namesrv} knows of none", remedy)]
    looked = [await _look_at_broker(one.name, one.address, tls, is_for_others) for one in brokers]
    return [*found, *looked]


async def _look_at_broker(name: str, address: str, tls: Tls | None, is_for_others: bool) -> Finding:
    title = f"broker {name}"
    try:
        host, port = parse_address(address, port_min=1)
    except ValueError as exc:
        return Finding(
            title, "fault", f"it has registered {exc}", ADVERTISE.format(address=address)
        )
    if is_for_others and is_loopback(host):
        remedy = f'set [broker] advertise = "IP:{port}" to the address that they reach it at'
        return Finding(title, "fault", LOOPBACK.format(address=address), remedy)
    try:
        await _greet(address, tls)
    except RemotingError as exc:
        return Finding(title, "fault", str(exc), ADVERTISE.format(address=address))
    how = "by TLS" if tls is not None else "without TLS"
    return Finding(title, "ok", f"{address} answers {how}")


async def _greet(address: str, tls: Tls | None) -> None:
    """Return when a broker has answered, whatever it says; RemotingError if it does not."""
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
    """Return what is to say of the listeners of a configuration that is running.

    ``tls`` is what clients know; None: only a listener's own certificate will do.
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
            remedy = "set its advertise to the balancer's address, to have that tried"
            return Finding(title, "note", "it is behind a balancer", remedy)
        if host in ("0.0.0.0", "::") or not port:
            remedy = 'set its advertise = "HOST:PORT", which people are told, to have that tried'
            return Finding(title, "note", f"{text} is no address that clients use", remedy)
    tls = (known or Tls(ca=listener.tls_certificate)) if listener.tls_certificate else None
    address = format_address(host, port)
    try:
        await trio.aclose_forcefully(await connect(address, timeout_s=WITHIN_S, tls=tls))
    except ConfigError as exc:
        remedy = "its certificate first (TLS of that listener), then ask again"
        return Finding(title, "fault", f"{text} is not tried: {exc}", remedy)
    except RemotingError as exc:
        certificate = f", with a certificate for {host}" if tls is not None else ""
        remedy = f"open that port to clients{certificate}, or set another advertise of the listener"
        return Finding(title, "fault", f"{text}: {str(exc).removeprefix(f'{address}: ')}", remedy)
    return Finding(title, "ok", f"{text} answers")


def own_namesrv(config: MotelogConfig) -> str | None:
    """Return where clients of a configuration ask for brokers; None if it names no such place.

    A name server that takes any free port has none.
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
