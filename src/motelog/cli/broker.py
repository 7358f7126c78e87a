"""``motelog broker``: the brokers that a name server knows, and which of them is the master.

Owns: the text and JSON output. Must not touch: requests (bridge.admin).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motelog.cli.admin import Json
from motelog.cli.native import Servers
from motelog.cli.options import commands, takes_options
from motelog.cli.output import CliError, agreed, table, write, write_done, write_json
from motelog.core.units import span_text

if TYPE_CHECKING:
    from motelog.bridge.admin import Admin
    from motelog.bridge.admin_answers import BrokerInfo, Replication

broker = commands("Show brokers and their slaves, and promote a slave.")


@broker.callback()
def group() -> None:
    """Show masters and slaves, ours and Apache RocketMQ's, and promote a slave of ours."""


@dataclass(frozen=True)
class _Member:
    """A broker, and its copies; None if it does not say."""

    info: BrokerInfo
    state: Replication | None
    fault: str | None = None


async def _look(admin: Admin, info: BrokerInfo) -> _Member:
    from motelog.core.errors import MotelogError

    try:
        return _Member(info, await admin.replication(info.name, broker_id=info.broker_id))
    except MotelogError as exc:  # it is away, or RocketMQ 4, which does not say
        return _Member(info, None, str(exc))


@broker.command("list", epilog="Example: motelog broker list --json")
@takes_options
def list_brokers(*, servers: Servers, json: Json = False) -> None:
    """List the brokers that are registered, and how far slaves have copied their master's log."""

    async def ask(admin: Admin) -> list[_Member]:
        return [await _look(admin, info) for info in await admin.brokers()]

    rows: list[tuple[str, ...]] = [("broker", "id", "address", "role", "log end", "copies")]
    for one in servers.with_admin(ask):
        value = _value(one)
        if json:
            write_json(value)
            continue
        end = "-" if one.state is None else str(one.state.end_offset)
        name, number = one.info.name, str(one.info.broker_id)
        rows.append((name, number, one.info.address, value["role"], end, _copies(one)))
    if not json:
        write(table(rows, right=frozenset({1, 4})) if len(rows) > 1 else "no brokers")


def _value(one: _Member) -> dict[str, Any]:
    state = one.state
    copying = None if state is None else state.copying
    return {
        "broker": one.info.name,
        "id": one.info.broker_id,
        "cluster": one.info.cluster,
        "address": one.info.address,
        "role": "slave" if one.info.broker_id else "master",
        "end_offset": None if state is None else state.end_offset,
        "slaves": [] if state is None else [each.address for each in state.replicas],
        "behind_bytes": None if copying is None else copying.behind_bytes,
        "fault": one.fault or (None if copying is None else copying.fault) or None,
    }


def _copies(one: _Member) -> str:
    if one.state is None:
        return one.fault or "-"
    copying = one.state.copying
    if copying is None:
        behind = [f"{each.address} lacks {each.behind_bytes} bytes" for each in one.state.replicas]
        return "; ".join(behind) or "no slave"
    lacks = "" if copying.behind_bytes is None else f"lacks {copying.behind_bytes} bytes"
    return "; ".join(filter(None, (lacks, copying.fault))) or "-"


@broker.command(epilog="Example: motelog broker promote broker-a --yes")
@takes_options
def promote(
    name: Annotated[str, typer.Argument(metavar="BROKER", help="Name of master and slaves.")],
    broker_id: Annotated[int, typer.Option("--id", min=1, help="Number of the slave.")] = 1,
    is_forced: Annotated[
        bool, typer.Option("--force", help="Even while the master sends it the log.")
    ] = False,
    is_agreed: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    *,
    servers: Servers,
    json: Json = False,
) -> None:
    """Make a slave the master, in its running process, and say what is lost by that.

    Stop the old master first. When it comes back with id = 0, it does not serve. It may come back
    as a slave: set id = 1 for it, and if its log is longer, cut that with motelog store cut.
    """
    state = servers.with_admin(lambda admin: admin.replication(name, broker_id=broker_id))
    copying = state.copying
    if copying is None:
        raise CliError(
            f"{name} {broker_id} is not a slave", remedy="motelog broker list shows the roles"
        )
    loss = _loss(copying.behind_bytes, copying.heard_ms)
    agreed(is_agreed, f"make slave {broker_id} the master of {name}, and {loss}")
    began_s = time.monotonic()
    address = servers.with_admin(lambda admin: admin.promote(name, broker_id, is_forced=is_forced))
    took_s = time.monotonic() - began_s
    write_done(
        {
            "broker": name,
            "address": address,
            "behind_bytes": copying.behind_bytes,
            "heard_ms": copying.heard_ms,
            "end_offset": state.end_offset,
            "took_s": round(took_s, 3),
        },
        f"{address} is the master of {name}, after {took_s:.1f} s. Its log goes on at offset"
        f" {state.end_offset}: cut that of the old master there before it comes back. Set id = 0 in"
        " the [broker] of the new one, id = 1 in that of the old one",
        json=json,
    )


def _loss(behind_bytes: int | None, heard_ms: int) -> str:
    """Return what a promotion loses, as far as the slave knows."""
    if not heard_ms:
        return (
            "lose an unknown part of the log: the slave has not heard its master since it started"
        )
    ago = span_text(max(time.time() - heard_ms / 1000, 0))
    lacked = "an unknown number of" if behind_bytes is None else str(behind_bytes)
    return f"lose {lacked} bytes that the slave lacked when it last heard its master, {ago} ago"
