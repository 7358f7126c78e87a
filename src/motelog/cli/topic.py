"""``motelog topic``: queue topics of the brokers that a name server knows.

Owns: the text and JSON output. Must not touch: requests (bridge.admin, bridge.pull).
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motelog.cli.admin import ADMIN, Json, ask, ask_pages, time_text
from motelog.cli.admin import Admin as AdminListener
from motelog.cli.log_reading import begins_of, read_queue, start_of
from motelog.cli.native import Servers, kind_of_topic
from motelog.cli.options import commands, takes_options
from motelog.cli.output import CliError, agreed, table, write, write_done, write_json
from motelog.cli.running import run_interruptibly
from motelog.cli.status import Status

if TYPE_CHECKING:
    from motelog.bridge.admin import Admin
    from motelog.bridge.admin_answers import BrokerInfo, QueueStats, TopicSettings
    from motelog.bridge.pull import PullConsumer
    from motelog.core.records.decode import StoredMessage

topic = commands("Show, create, change and delete queue topics.")

#: Of a new topic, by default.
_QUEUES = 8
#: The retained messages that a tree shows, and the bytes of each.
RETAINED_MAX = 1000
VALUE_BYTES_MAX = 60

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Queue topic.")]
Broker = Annotated[str, typer.Argument(metavar="BROKER", help="Name of the broker.")]


class Permission(StrEnum):
    """What clients may do; in RocketMQ the sum of 4 (read) and 2 (write)."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"


_PERMISSION_BITS = {Permission.READ_WRITE: 6, Permission.READ: 4, Permission.WRITE: 2}


class Kind(StrEnum):
    """RocketMQ 5's message types."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"


@topic.callback()
def group() -> None:
    """Show, create, change and delete queue topics, on our brokers and Apache RocketMQ's."""


@topic.command("list", epilog="Example: motelog topic list --all --json")
@takes_options
def list_topics(
    is_all: Annotated[
        bool, typer.Option("--all", help="Include the topics of the system and of groups.")
    ] = False,
    broker: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only topics that have queues at this broker."),
    ] = None,
    *,
    servers: Servers,
    json: Json = False,
) -> None:
    """List the queue topics that are registered with the name server."""

    async def ask(admin: Admin) -> tuple[list[str], list[BrokerInfo]]:
        return await admin.topics(broker), await admin.brokers()

    names, brokers = servers.with_admin(ask)
    rows = [(name, kind_of_topic(name, brokers)) for name in names]
    rows = [(name, kind) for name, kind in rows if is_all or kind == "messages"]
    if json:
        for name, kind in rows:
            write_json({"topic": name, "kind": kind})
    elif is_all:
        write(table([("topic", "kind"), *rows]))
    else:
        write("\n".join(name for name, _ in rows) or "no topics")


@topic.command(epilog="Example: motelog topic describe telemetry")
@takes_options
def describe(name: Topic, *, servers: Servers, json: Json = False) -> None:
    """Print a topic's settings, the ends of its queues, and its consumer groups."""

    async def ask(admin: Admin) -> tuple[list[TopicSettings], list[QueueStats], list[str]]:
        settings = await admin.topic(name)
        return settings, await admin.topic_stats(name), await admin.groups_of(name)

    settings, stats, groups = servers.with_admin(ask)
    if json:
        write_json(
            {
                "topic": name,
                "brokers": [asdict(one) for one in settings],
                "queues": [_queue_value(one) for one in stats],
                "groups": groups,
            }
        )
        return
    rows: list[tuple[str, ...]] = [("broker", "queues", "permission", "ordered", "attributes")]
    for one in settings:
        queues = str(one.read_queues)
        if one.read_queues != one.write_queues:
            queues = f"{one.read_queues} to read, {one.write_queues} to write"
        pairs = " ".join(f"{key}={value}" for key, value in sorted(one.attributes.items()))
        ordered = "yes" if one.is_ordered else "no"
        rows.append(
            (one.broker_name, queues, _permission_text(one.permission), ordered, pairs or "-")
        )
    write(table(rows))
    write()
    rows = [("broker", "queue", "begin", "end", "messages", "last stored")]
    for queue in stats:
        rows.append(
            (
                queue.queue.broker_name,
                str(queue.queue.queue_id),
                str(queue.begin_offset),
                str(queue.end_offset),
                str(queue.end_offset - queue.begin_offset),
                time_text(queue.last_ms or None),
            )
        )
    write(table(rows, right=frozenset({1, 2, 3, 4})))
    write()
    write(f"consumer groups: {', '.join(groups) or 'none'}")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that a topic gets."""

    queues: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Queues on each broker. With --change, those that hold messages stay readable."
            " [default: 8, or as they are]",
            show_default=False,
        ),
    ] = None
    write_queues: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="How many of the queues are written to. [default: all]"),
    ] = None
    read_queues: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="How many of the queues are read. Messages in others wait until they are opened"
            " again. [default: all]",
        ),
    ] = None
    permission: Annotated[
        Permission,
        typer.Option(help="What clients may do: read, write."),
    ] = Permission.READ_WRITE
    kind: Annotated[
        Kind | None,
        typer.Option("--type", help="Type of the messages, which RocketMQ 5's clients check."),
    ] = None
    is_ordered: Annotated[
        bool,
        typer.Option("--ordered", help="Keep the order of the queues when a broker goes away."),
    ] = False
    broker: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only on this broker. May be repeated. [default: all]"),
    ] = None

    def queue_counts(
        self, known: Iterable[TopicSettings], stats: Iterable[QueueStats]
    ) -> tuple[int, int, str]:
        """Return how many queues are read and written to, and which others contain messages.

        Without --read-queues the others stay readable. CliError if too few are read.
        """
        known = [one for one in known if not self.broker or one.broker_name in self.broker]
        had = max((one.read_queues for one in known), default=0)
        read = self.read_queues or self.queues or had or _QUEUES
        had_write = max((one.write_queues for one in known), default=0)
        write_to = self.write_queues or self.queues or min(had_write or read, read)
        waiting = _waiting(stats, {one.broker_name for one in known}, from_queue=read)
        if waiting and not self.read_queues:
            read = had
        if write_to > read:
            raise CliError(
                f"{write_to} queues would be written to, but only {read} read",
                remedy="make --write-queues at most --read-queues",
                status=Status.USAGE,
            )
        return read, write_to, waiting


@topic.command(epilog="Example: motelog topic create telemetry --queues 16")
@takes_options
def create(
    name: Topic,
    *,
    settings: Settings,
    is_change: Annotated[
        bool, typer.Option("--change", help="Change the topic if it exists.")
    ] = False,
    is_agreed: Annotated[
        bool, typer.Option("--yes", help="Close queues to readers even if they contain messages.")
    ] = False,
    servers: Servers,
    json: Json = False,
) -> None:
    """Create a topic.

    Publishing and producing create topics too, if auto_create_topics is on. To have fewer queues,
    lower --write-queues first, and --read-queues when consumers have read the others.
    """

    async def look(admin: Admin) -> tuple[list[TopicSettings], list[QueueStats]]:
        if name not in await admin.topics():
            return [], []
        if not is_change:
            raise CliError(
                f"the topic {name!r} already exists",
                remedy="change its settings with --change",
                status=Status.REFUSED,
            )
        return await admin.topic(name), await admin.topic_stats(name)

    read, write_to, waiting = settings.queue_counts(*servers.with_admin(look))

    async def put(admin: Admin) -> None:
        await admin.put_topic(
            name,
            queues=read,
            write_queues=write_to,
            permission=_PERMISSION_BITS[settings.permission],
            is_ordered=settings.is_ordered,
            attributes=None if settings.kind is None else {"message.type": settings.kind.name},
            brokers=settings.broker or None,
        )

    if waiting and settings.read_queues:
        agreed(is_agreed, f"close queues {waiting} to readers: unread messages wait there")
    servers.with_admin(put)
    text = f"created {name}"
    if waiting and not settings.read_queues:
        text += f"; queues up to {read - 1} stay readable, as queues {waiting}"
    counts = {"queues": read, "write_queues": write_to}
    value = {"created": name, **counts, "permission": settings.permission.value}
    write_done(value, text, json=json)


def _waiting(stats: Iterable[QueueStats], brokers: set[str], *, from_queue: int) -> str:
    """Return which queues from ``from_queue`` on hold messages, and how many; "" if none do."""
    counts = [
        (one.queue.queue_id, one.end_offset - one.begin_offset)
        for one in stats
        if one.queue.broker_name in brokers and one.queue.queue_id >= from_queue
    ]
    holding = sorted({queue_id for queue_id, count in counts if count})
    if not holding:
        return ""
    total = sum(count for _, count in counts)
    return f"{', '.join(map(str, holding))} with {total} messages"


@topic.command(epilog="Example: motelog topic delete telemetry --yes")
@takes_options
def delete(
    name: Topic,
    is_agreed: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    *,
    servers: Servers,
    json: Json = False,
) -> None:
    """Delete a topic and its messages on all brokers."""

    async def count(admin: Admin) -> int:
        if kind_of_topic(name, await admin.brokers()) == "system":
            raise CliError(f"{name} is a topic of the system", status=Status.REFUSED)
        stats = await admin.topic_stats(name)
        return sum(one.end_offset - one.begin_offset for one in stats)

    async def remove(admin: Admin) -> None:
        await admin.delete_topic(name)

    messages = servers.with_admin(count)
    agreed(is_agreed, f"delete the topic {name} with {messages} messages")
    servers.with_admin(remove)
    text = f"deleted {name}, {messages} messages"
    write_done({"deleted": name, "messages": messages}, text, json=json)


@topic.command(epilog="Example: motelog topic extend broker-c")
@takes_options
def extend(
    broker: Broker,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...", help="Queue topics. [default: all that gateways publish to]"
        ),
    ] = None,
    *,
    servers: Servers,
    json: Json = False,
) -> None:
    """Create the queue topics of MQTT at a broker that has joined the cluster.

    They get the settings that they have at the other brokers. Running gateways move a share of the
    devices to the new queues within a minute, and each device keeps its order.
    """
    from motelog.gateway.operator import spreading

    made = run_interruptibly(partial(spreading.extend, broker, topics or (), **servers.options))
    text = f"created {', '.join(made)} at {broker}" if made else f"{broker} has all of them"
    write_done({"broker": broker, "topics": made}, text, json=json)


@topic.command(epilog="Example: motelog topic retire broker-c --yes")
@takes_options
def retire(
    broker: Broker,
    is_agreed: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    *,
    servers: Servers,
    json: Json = False,
) -> None:
    """Let gateways do without a broker that does not come back.

    Until then the publishes of its devices are refused. For a broker that runs, close its topics to
    writers instead (mqadmin wipeWritePerm).
    """
    from motelog.gateway.operator import spreading

    agreed(is_agreed, f"no longer use the queues of {broker}: messages in them are not delivered")
    changed = run_interruptibly(partial(spreading.retire, broker, **servers.options))
    text = f"{broker} is no longer used by {', '.join(changed) or 'any topic'}"
    write_done({"broker": broker, "topics": changed}, text, json=json)


@topic.command(epilog="Example: motelog topic tree telemetry/dev42 --since 1d")
@takes_options
def tree(
    prefix: Annotated[
        str,
        typer.Argument(
            metavar="PREFIX", help="Only MQTT topic names that begin with this; '' for all."
        ),
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="WHERE", help="Count messages from here on: begin, 1h, a time.")
    ] = "1h",
    count: Annotated[
        int,
        typer.Option(min=1, help="Read at most this many of each queue's newest messages."),
    ] = 10_000,
    queue_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Read this queue topic. [default: all]")
    ] = None,
    is_retained: Annotated[
        bool,
        typer.Option("--retained", help="Show retained values too, from the server at --admin."),
    ] = False,
    admin: AdminListener = ADMIN,
    *,
    servers: Servers,
    json: Json = False,
) -> None:
    """Print the MQTT topic names of the log's messages as a tree.

    Each line has the number of messages of that level and those below it, their rate, and when the
    last one was stored.
    """
    start = start_of("--since", since)
    found: dict[str, _Seen] = {}

    async def look(admin: Admin, consumer: PullConsumer) -> None:
        for name in [queue_topic] if queue_topic else await _message_topics(admin):
            queues = await consumer.queues(name, wait_s=0)
            ends = await consumer.end_offsets(queues)
            for queue, begin in (await begins_of(consumer, queues, start)).items():
                read = _Read(0 if begin < ends[queue] - count else start.time_ms)
                begin = max(begin, ends[queue] - count)
                await read_queue(consumer, queue, begin, ends[queue], read.take)
                read.add_to(found, prefix)

    servers.with_both(look)
    values = _retained_values(admin, prefix) if is_retained else {}
    for name in values:
        found.setdefault(name, _Seen())
    if json:
        for name in sorted(found):
            line = _seen_value(name, found[name])
            write_json(line | ({"retained": values.get(name)} if is_retained else {}))
        return
    rows = list(_tree_rows(found, values))
    head: tuple[str, ...] = ("topic", "messages", "a second", "last stored", "retained")
    columns = 5 if is_retained else 4
    shown = [row[:columns] for row in (head, *rows)]
    write(table(shown, right=frozenset({1, 2})) if rows else f"no messages since {since}")


class _Read:
    """What was read from one queue; if ``since_ms`` is 0, time counts from its first message."""

    def __init__(self, since_ms: int) -> None:
        self._since_ms = since_ms
        self._messages: dict[str, tuple[int, int]] = {}

    def take(self, message: StoredMessage) -> bool:
        stored_ms = message.store_timestamp_ms
        self._since_ms = self._since_ms or stored_ms
        count, last_ms = self._messages.get(message.mqtt_topic, (0, 0))
        self._messages[message.mqtt_topic] = count + 1, max(last_ms, stored_ms)
        return True

    def add_to(self, found: dict[str, _Seen], prefix: str) -> None:
        seconds = max(1.0, time.time() - self._since_ms / 1000)
        for name, (count, last_ms) in self._messages.items():
            if name.startswith(prefix):
                found.setdefault(name, _Seen()).add(count, last_ms, count / seconds)


def _retained_values(admin: str, prefix: str) -> dict[str, str]:
    """Return the retained values below a prefix, each as one short line."""
    path = "/api/v1/retained"
    levels, is_below, _ = prefix.rpartition("/")
    query = {"filter": f"{levels}/#" if is_below else "#"}
    values: dict[str, str] = {}
    for one in ask_pages(admin, path, "messages", query, count=RETAINED_MAX, page_count=1000):
        if one["topic"].startswith(prefix):
            message = ask(admin, "GET", f"{path}/message", {"topic": one["topic"]})
            text = b64decode(message["payload"])[:VALUE_BYTES_MAX].decode(errors="replace")
            values[one["topic"]] = "".join(c if c.isprintable() else "." for c in text)
    return values


class _Seen:
    """The messages seen of a topic name and of those below it."""

    def __init__(self) -> None:
        self.messages = 0
        self.last_ms = 0
        self.per_second = 0.0

    def add(self, messages: int, last_ms: int, per_second: float) -> None:
        self.messages += messages
        self.per_second += per_second
        self.last_ms = max(self.last_ms, last_ms)


def _tree_rows(found: dict[str, _Seen], values: dict[str, str]) -> Iterable[tuple[str, ...]]:
    sums: dict[tuple[str, ...], _Seen] = {}
    for name, seen in found.items():
        levels = tuple(name.split("/"))
        for depth in range(1, len(levels) + 1):
            sums.setdefault(levels[:depth], _Seen()).add(
                seen.messages, seen.last_ms, seen.per_second
            )
    for levels in sorted(sums):
        seen = sums[levels]
        name = "  " * (len(levels) - 1) + (levels[-1] or "(empty)")
        rate, last = _rate_text(seen.per_second), time_text(seen.last_ms or None)
        yield name, str(seen.messages), rate, last, values.get("/".join(levels), "")


def _seen_value(name: str, seen: _Seen) -> dict[str, Any]:
    # Devices that publish once an hour have a rate too.
    rates = {"per_second": float(_rate_text(seen.per_second)), "last_ms": seen.last_ms or None}
    return {"topic": name, "messages": seen.messages, **rates}


def _rate_text(per_second: float) -> str:
    return f"{per_second:.3g}"


async def _message_topics(admin: Admin) -> list[str]:
    brokers = await admin.brokers()
    return [name for name in await admin.topics() if kind_of_topic(name, brokers) == "messages"]


def _queue_value(one: QueueStats) -> dict[str, Any]:
    return {
        "broker": one.queue.broker_name,
        "queue_id": one.queue.queue_id,
        "begin_offset": one.begin_offset,
        "end_offset": one.end_offset,
        "last_ms": one.last_ms or None,
    }


def _permission_text(bits: int) -> str:
    return "".join(letter for letter, bit in (("r", 4), ("w", 2)) if bits & bit) or "none"
