"""``motelog group``: consumer groups, their progress, and resetting their offsets.

Owns: the text and JSON output, what a reset would do. Must not touch: requests (bridge.admin,
bridge.pull).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from motelog.cli.admin import Json
from motelog.cli.log_reading import BEGIN, start_of
from motelog.cli.native import Servers
from motelog.cli.options import commands, takes_options
from motelog.cli.output import CliError, agreed, stop, table, write, write_json
from motelog.cli.status import Status

if TYPE_CHECKING:
    from motelog.bridge.admin import Admin, ResetTo
    from motelog.bridge.admin_answers import ClientInfo, QueueProgress
    from motelog.bridge.pull import PullConsumer
    from motelog.core.message import MessageQueue

group = commands("Show consumer groups and reset their offsets.")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group.")]
OneTopic = Annotated[str | None, typer.Option(help="This queue topic only.")]
END: Final = "end"


@group.callback()
def root() -> None:
    """Show consumer groups and reset their offsets, on our brokers and Apache RocketMQ's."""


@dataclass(frozen=True, slots=True)
class _Lag:
    """How far a group is behind in one queue."""

    queue: MessageQueue
    end_offset: int
    committed_offset: int
    messages: int
    ms: int | None
    """Age of the first waiting message; RocketMQ's brokers do not always report it."""


@group.command("list", epilog="Example: motelog group list")
@takes_options
def list_groups(*, servers: Servers, json: Json = False) -> None:
    """List the consumer groups with their members and the number of waiting messages."""

    async def ask(admin: Admin) -> list[dict[str, Any]]:
        return [
            {
                "group": name,
                "members": len(await admin.consumers(name)),
                "topics": sorted({lag.queue.topic for lag in lags}),
                "waiting": sum(lag.messages for lag in lags),
                "behind_ms": _behind_ms(lags),
            }
            for name in sorted(await admin.groups())
            for lags in [await _lags(admin, name)]
        ]

    found = servers.with_admin(ask)
    if json:
        for one in found:
            write_json(one)
        return
    rows = [("group", "members", "waiting", "behind", "topics")]
    for one in found:
        topics = " ".join(one["topics"]) or "-"
        behind = _span(one["behind_ms"])
        rows.append((one["group"], str(one["members"]), str(one["waiting"]), behind, topics))
    write(table(rows, right=frozenset({1, 2, 3})) if found else "no groups")


@group.command(epilog="Example: motelog group describe billing --json")
@takes_options
def describe(name: Group, *, servers: Servers, json: Json = False) -> None:
    """Print a group's settings, its members, and its progress in each queue."""

    async def ask(admin: Admin) -> tuple[dict[str, Any] | None, list[ClientInfo], list[_Lag]]:
        settings = (await admin.groups()).get(name)
        return settings, await admin.consumers(name), await _lags(admin, name)

    settings, members, lags = servers.with_admin(ask)
    if settings is None and not members and not lags:
        _refuse_unknown(name)
    settings = settings or {}
    if json:
        values = [_lag_value(lag) for lag in lags]
        people = [asdict(one) for one in members]
        write_json({"group": name, "settings": settings, "members": people, "queues": values})
        return
    shown = [
        ("may consume", "yes" if settings.get("consumeEnable", True) else "no"),
        ("broadcast allowed", "yes" if settings.get("consumeBroadcastEnable", True) else "no"),
        ("maximum retries", str(settings.get("retryMaxTimes", "-"))),
        ("retry queues", str(settings.get("retryQueueNums", "-"))),
    ]
    write(table(shown))
    write()
    if members:
        rows = [(m.client_id, m.address, m.language) for m in members]
        write(table([("member", "address", "language"), *rows]))
    else:
        write("no members are connected")
    write()
    write(_lag_table(lags))


@group.command(epilog="Example: motelog group lag billing --max 10000 || page-somebody")
@takes_options
def lag(
    name: Group,
    topic: OneTopic = None,
    waiting_max: Annotated[
        int | None,
        typer.Option("--max", min=0, help="Exit with status 1 if more messages are waiting."),
    ] = None,
    *,
    servers: Servers,
    json: Json = False,
) -> None:
    """Print how far a group is behind in each queue, in messages and in time.

    The time is the age of the first waiting message; at RocketMQ's brokers that of the message
    consumed last, if there is one.
    """

    async def ask(admin: Admin) -> list[_Lag]:
        lags = await _lags(admin, name, topic)
        if not lags and name not in await admin.groups():
            _refuse_unknown(name)
        return lags

    lags = servers.with_admin(ask)
    waiting = sum(one.messages for one in lags)
    if json:
        values = [_lag_value(one) for one in lags]
        behind_ms = _behind_ms(lags)
        write_json({"group": name, "waiting": waiting, "behind_ms": behind_ms, "queues": values})
    else:
        write(_lag_table(lags))
        write(f"{waiting} messages are waiting")
    stop(Status.FAILED if waiting_max is not None and waiting > waiting_max else Status.DONE)


@group.command("reset-offsets", epilog="Example: motelog group reset-offsets billing orders 2h")
@takes_options
def reset_offsets(
    name: Group,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Queue topic.")],
    to: Annotated[
        str,
        typer.Argument(
            metavar="WHERE",
            help="begin, end, 15m, 1h or 7d ago, a time in ISO 8601 (UTC without an"
            " offset) or in milliseconds.",
        ),
    ],
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; print what would change.")
    ] = False,
    is_agreed: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    *,
    servers: Servers,
    json: Json = False,
) -> None:
    """Set a group's offsets in a topic; its members may be running.

    A later offset skips messages; after an earlier one, messages are consumed again.
    Apache's 4.x brokers refuse this for a group without members.
    """
    where = _reset_to(to)

    async def plan(admin: Admin, consumer: PullConsumer) -> list[tuple[MessageQueue, int, int]]:
        committed = {one.queue: one.committed_offset for one in await admin.progress(name, topic)}
        if not committed and name not in await admin.groups():
            _refuse_unknown(name)
        queues = await consumer.queues(topic, wait_s=0)
        if where == "first":
            target = await consumer.begin_offsets(queues)
        elif where == "last":
            target = await consumer.end_offsets(queues)
        else:
            assert isinstance(where, float)
            target = await consumer.offsets_for_time(queues, int(where * 1000))
        return [(queue, committed.get(queue, -1), target[queue]) for queue in queues]

    async def change(admin: Admin) -> dict[MessageQueue, int]:
        return await admin.reset_offsets(name, topic, where)

    steps = servers.with_both(plan)
    if not is_dry_run:
        again = sum(max(0, before - after) for _, before, after in steps if before >= 0)
        over = sum(max(0, after - before) for _, before, after in steps if before >= 0)
        what = f"reset {name} in {topic}: {again} messages again, {over} skipped"
        agreed(is_agreed, what)
        set_to = servers.with_admin(change)
        steps = [(queue, before, set_to.get(queue, after)) for queue, before, after in steps]
    if json:
        for step in steps:
            write_json(_step_value(*step) | {"is_set": not is_dry_run})
        return
    rows = [("broker", "queue", "from", "to", ""), *(_step_row(*step) for step in steps)]
    write(table(rows, right=frozenset({1, 2, 3})))
    write("nothing was changed" if is_dry_run else f"{name} continues there")


def _reset_to(text: str) -> ResetTo:
    if text in (BEGIN, END):
        return "first" if text == BEGIN else "last"
    start = start_of("WHERE", text, also=(END,))
    if start.queue_offset or text.startswith("offset:"):
        raise CliError(
            f"WHERE {text!r}: brokers reset groups to a time, not to an offset", status=Status.USAGE
        )
    return start.time_ms / 1000


def _step_value(queue: MessageQueue, before: int, after: int) -> dict[str, Any]:
    place = {"broker": queue.broker_name, "queue_id": queue.queue_id}
    return {**place, "from": before if before >= 0 else None, "to": after}


def _step_row(queue: MessageQueue, before: int, after: int) -> tuple[str, ...]:
    before_text = str(before) if before >= 0 else "-"
    change = _change_text(before, after)
    return queue.broker_name, str(queue.queue_id), before_text, str(after), change


def _change_text(before: int, after: int) -> str:
    if before < 0 or before == after:
        return "-"
    return f"{before - after} again" if after < before else f"{after - before} skipped"


async def _lags(admin: Admin, name: str, topic: str | None = None) -> list[_Lag]:
    now_ms = time.time_ns() // 1_000_000
    return [_lag_of(one, now_ms) for one in await admin.progress(name, topic)]


def _lag_of(one: QueueProgress, now_ms: int) -> _Lag:
    behind_ms = max(0, now_ms - one.waiting_ms) if one.waiting_ms else None
    return _Lag(one.queue, one.end_offset, one.committed_offset, max(0, one.lag), behind_ms)


def _behind_ms(lags: Iterable[_Lag]) -> int | None:
    return max((lag.ms for lag in lags if lag.ms is not None), default=None)


def _lag_value(one: _Lag) -> dict[str, Any]:
    return {
        "topic": one.queue.topic,
        "broker": one.queue.broker_name,
        "queue_id": one.queue.queue_id,
        "end_offset": one.end_offset,
        "committed_offset": one.committed_offset,
        "waiting": one.messages,
        "behind_ms": one.ms,
    }


def _lag_table(lags: list[_Lag]) -> str:
    if not lags:
        return "the group has not consumed anything yet"
    rows: list[tuple[str, ...]] = [
        ("topic", "broker", "queue", "committed", "end", "waiting", "behind")
    ]
    for one in lags:
        queue = one.queue
        numbers = (queue.queue_id, one.committed_offset, one.end_offset, one.messages)
        rows.append((queue.topic, queue.broker_name, *map(str, numbers), _span(one.ms)))
    return table(rows, right=frozenset({2, 3, 4, 5, 6}))


def _span(ms: int | None) -> str:
    if ms is None:
        return "-"
    seconds = ms // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _refuse_unknown(name: str) -> None:
    raise CliError(
        f"there is no consumer group {name!r}",
        remedy="motelog group list lists them",
        status=Status.NOT_FOUND,
    )
