"""``motelog dlq``: dead letters, the messages that a consumer group gave up after its retries.

Owns: the text and JSON output. Must not touch: sending again (bridge.dead_letters), requests.
"""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar

import typer

from motelog.cli.admin import Json, time_text
from motelog.cli.log_reading import begins_of, read_queue, start_of
from motelog.cli.native import Servers
from motelog.cli.options import commands, takes_options
from motelog.cli.output import CliError, table, write, write_done, write_json
from motelog.cli.status import Status
from motelog.cli.stored_message import body_text, message_value
from motelog.core.private_files import open_private

if TYPE_CHECKING:
    from motelog.bridge.admin import Admin
    from motelog.bridge.pull import PullConsumer
    from motelog.core.records.decode import StoredMessage

T = TypeVar("T")

dlq = commands("List, export and resend dead letters.")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group.")]
Since = Annotated[
    str, typer.Option("--from", metavar="WHERE", help="begin, 1h or 7d ago, a time, or offset:N.")
]


@dlq.callback()
def root() -> None:
    """List, export and resend dead letters, on our brokers and Apache RocketMQ's."""


@dlq.command("list", epilog="Example: motelog dlq list billing --from 1d")
@takes_options
def list_letters(
    group: Annotated[
        str | None,
        typer.Argument(metavar="GROUP", help="Consumer group. [default: count those of all]"),
    ] = None,
    begin: Since = "begin",
    count: Annotated[int, typer.Option(min=1, help="At most this many messages.")] = 100,
    *,
    servers: Servers,
    json: Json = False,
) -> None:
    """List a group's dead letters, oldest first; without a group, the groups that have any."""
    if group is None:
        _list_groups(servers, json=json)
        return
    rows: list[tuple[str, ...]] = [("place", "stored", "topic", "message id", "body")]

    def take(one: StoredMessage) -> None:
        if json:
            write_json(_letter_value(one))
            return
        body = " ".join(body_text(one, is_hex=False).split())
        body = body if len(body) <= 40 else body[:37] + "..."
        at = f"{one.queue_id}@{one.queue_offset}"
        rows.append((at, time_text(one.store_timestamp_ms), _origin(one), one.message_id, body))

    _for_each(group, begin, count, servers, take)
    if not json:
        write(table(rows) if len(rows) > 1 else f"no dead letters of {group}")


def _list_groups(servers: Servers, *, json: bool) -> None:
    from motelog.core.topic_names import DLQ_PREFIX

    async def ask(admin: Admin) -> list[dict[str, Any]]:
        found = []
        for name in await admin.topics():
            if not name.startswith(DLQ_PREFIX):
                continue
            stats = await admin.topic_stats(name)
            group = name.removeprefix(DLQ_PREFIX)
            kept = sum(one.end_offset - one.begin_offset for one in stats)
            done = {p.queue: p.committed_offset for p in await admin.progress(group, name)}
            again = sum(
                min(max(one.end_offset - max(done.get(one.queue, 0), one.begin_offset), 0), kept)
                for one in stats
            )
            last_ms = max((one.last_ms for one in stats), default=0)
            found.append(
                {"group": group, "messages": kept, "not_resent": again, "last_ms": last_ms or None}
            )
        return [one for one in found if one["messages"]]

    found = servers.with_admin(ask)
    rows = [("group", "dead letters", "not resent", "last")]
    for one in found:
        if json:
            write_json(one)
        last = time_text(one["last_ms"])
        rows.append((one["group"], str(one["messages"]), str(one["not_resent"]), last))
    if not json:
        write(table(rows, right=frozenset({1, 2})) if found else "no dead letters")


@dlq.command(epilog="Example: motelog dlq resend billing --count 100 --per-second 10")
@takes_options
def resend(
    group: Group,
    count: Annotated[int | None, typer.Option(min=1, help="Resend at most this many.")] = None,
    per_second: Annotated[float, typer.Option(min=0.001, help="Messages a second.")] = 100.0,
    to_all_groups: Annotated[
        bool,
        typer.Option(
            "--to-all-groups",
            help="Send to the original topic, where every group receives them again.",
        ),
    ] = False,
    *,
    servers: Servers,
    json: Json = False,
) -> None:
    """Resend a group's dead letters to the group, oldest first, each once.

    The next call continues where this one ends. The messages stay in the log.
    """

    async def send(admin: Admin) -> int:
        return await admin.resend_dead_letters(
            group, to_all_groups=to_all_groups, count_max=count, per_second=per_second
        )

    sent = _found(group, lambda: servers.with_admin(send))
    write_done({"group": group, "sent": sent}, f"sent {sent} again", json=json)


@dlq.command(epilog="Example: motelog dlq export billing --out billing.jsonl")
@takes_options
def export(
    group: Group,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="[default: standard output]")
    ] = None,
    begin: Since = "begin",
    count: Annotated[int | None, typer.Option(min=1, help="At most this many messages.")] = None,
    *,
    servers: Servers,
    json: Annotated[
        bool, typer.Option("--json", help="With --out: print as JSON how many were written.")
    ] = False,
) -> None:
    """Write a group's dead letters as JSON, one object per line.

    Bodies that are not UTF-8 are in base64.
    """
    written = 0

    def put(stream: TextIO) -> Callable[[StoredMessage], None]:
        def write_line(one: StoredMessage) -> None:
            nonlocal written
            stream.write(json_module.dumps(_letter_value(one), ensure_ascii=False) + "\n")
            written += 1

        return write_line

    if out is None:
        _for_each(group, begin, count, servers, put(sys.stdout))
        sys.stdout.flush()
        return
    try:
        with open(out, "w", encoding="utf-8", opener=open_private) as file:
            _for_each(group, begin, count, servers, put(file))
    except OSError as exc:
        raise CliError(f"cannot write {out}: {exc.strerror or exc}") from exc
    value = {"group": group, "file": str(out), "messages": written}
    write_done(value, f"{out}: {written} messages", json=json)


def _for_each(
    group: str,
    begin: str,
    count: int | None,
    servers: Servers,
    take: Callable[[StoredMessage], None],
) -> None:
    """Pass the dead letters of a group to ``take``, at most ``count``."""
    from motelog.bridge.dead_letters import dead_letter_queues

    start = start_of("--from", begin)

    left = sys.maxsize if count is None else count

    def take_one(one: StoredMessage) -> bool:
        nonlocal left
        take(one)
        left -= 1
        return left > 0

    async def walk(admin: Admin, consumer: PullConsumer) -> None:
        queues = await dead_letter_queues(consumer, group, wait_s=0)
        ends = await consumer.end_offsets(queues)
        for queue, offset in (await begins_of(consumer, queues, start)).items():
            await read_queue(consumer, queue, offset, min(ends[queue], offset + left), take_one)

    _found(group, lambda: servers.with_both(walk))


def _found(group: str, work: Callable[[], T]) -> T:
    """Return what ``work`` returns; CliError if the group has no dead letters to read."""
    from motelog.bridge.errors import RouteError

    try:
        return work()
    except* RouteError as exc:
        raise CliError(
            f"there are no readable dead letters of a group {group!r}",
            remedy="`motelog dlq list` lists the groups that have some; on RocketMQ 4, first make"
            f" their topic readable: motelog topic create '%DLQ%{group}' --change --queues 1",
            status=Status.NOT_FOUND,
        ) from exc


def _letter_value(one: StoredMessage) -> dict[str, Any]:
    return message_value(one) | {"origin_topic": _origin(one)}


def _origin(one: StoredMessage) -> str:
    """Return the topic that the message was in before its group gave it up."""
    from motelog.core.message import RETRY_TOPIC

    return one.properties.get(RETRY_TOPIC, "-")
