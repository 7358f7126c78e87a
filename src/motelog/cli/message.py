"""``motelog message``: single messages of the log, by id, key, time or offset.

Owns: the output, where an id is looked up. Must not touch: requests (bridge.admin, bridge.pull).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from motelog.cli.admin import Json
from motelog.cli.log_reading import BEGIN, begins_of, read_queue, start_of
from motelog.cli.native import Servers, kind_of_topic
from motelog.cli.options import commands, takes_options
from motelog.cli.output import CliError
from motelog.cli.status import Status
from motelog.cli.stored_message import IsHex, show, show_all

if TYPE_CHECKING:
    from motelog.bridge.admin import Admin
    from motelog.bridge.pull import PullConsumer
    from motelog.core.records.decode import StoredMessage

message = commands("Show single messages of the log.")


@message.callback()
def group() -> None:
    """Show single messages of the log, on our brokers and Apache RocketMQ's."""


@message.command(epilog="Example: motelog message get 7F000001000078BF000000000000012C")
@takes_options
def get(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Offset id, or the producer's unique id.")
    ],
    topic: Annotated[
        str | None,
        typer.Option(help="Search this queue topic. [default: all topics that have messages]"),
    ] = None,
    *,
    servers: Servers,
    is_hex: IsHex = False,
    json: Json = False,
) -> None:
    """Print everything that is known about one message."""

    async def look(admin: Admin, consumer: PullConsumer) -> StoredMessage | None:
        brokers = await admin.brokers()
        if topic is None and _broker_of(message_id) in {one.address for one in brokers}:
            return await _viewed(consumer, message_id)
        topics = [topic] if topic else await admin.topics()
        for name in topics:
            if topic or kind_of_topic(name, brokers) == "messages":
                for found in await consumer.query_by_key(name, message_id):
                    if message_id in (found.message_id, found.offset_id):
                        return found
        return None

    found = servers.with_both(look)
    if found is None:
        raise CliError(
            f"there is no message with the id {message_id}",
            remedy="to search by the words of KEYS: motelog message query TOPIC --key KEY",
            status=Status.NOT_FOUND,
        )
    show_all(found, json=json, is_hex=is_hex)


@dataclass(frozen=True, slots=True)
class Criteria:
    """Which messages of a topic are printed."""

    key: Annotated[
        str | None,
        typer.Option(help="Only messages with this word in KEYS, or with this unique id."),
    ] = None
    begin: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="begin, 15m, 1h or 7d ago, a time, or offset:N."
        ),
    ] = BEGIN
    until: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Only messages stored before: 15m ago, or a time."),
    ] = None
    queue_id: Annotated[int | None, typer.Option("--queue", min=0, help="Only this queue.")] = None
    broker: Annotated[str | None, typer.Option(metavar="NAME", help="Only this broker.")] = None
    tags: Annotated[str, typer.Option(help="Only messages with one of these tags: 'a || b'.")] = "*"
    count: Annotated[int, typer.Option(min=1, help="At most this many messages.")] = 32


@message.command(epilog="Example: motelog message query telemetry --from 1h --count 10")
@takes_options
def query(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Queue topic.")],
    *,
    criteria: Criteria,
    servers: Servers,
    is_hex: IsHex = False,
    json: Json = False,
) -> None:
    """Print the messages of a topic that have a key, or that follow a time or an offset.

    By key the newest come first and a broker returns at most 64; otherwise the oldest come first.
    The exit status is 3 if there is no such message.
    """
    key, queue_id, count = criteria.key, criteria.queue_id, criteria.count
    start = start_of("--from", criteria.begin)
    end_ms = None if criteria.until is None else start_of("--until", criteria.until).time_ms
    tags = None if criteria.tags == "*" else {tag.strip() for tag in criteria.tags.split("||")}

    def is_meant(one: StoredMessage) -> bool:
        return (
            queue_id in (None, one.queue_id)
            and (end_ms is None or one.store_timestamp_ms < end_ms)
            and (tags is None or one.tags in tags)
        )

    async def by_key(admin: Admin, consumer: PullConsumer) -> list[StoredMessage]:
        assert key is not None
        latest = {} if end_ms is None else {"end_ms": end_ms}
        found = await consumer.query_by_key(topic, key, start.time_ms, **latest, count_max=count)
        return [one for one in found if is_meant(one)]

    async def by_place(admin: Admin, consumer: PullConsumer) -> list[StoredMessage]:
        queues = [
            queue
            for queue in await consumer.queues(topic, wait_s=0)
            if queue_id in (None, queue.queue_id) and criteria.broker in (None, queue.broker_name)
        ]
        ends = await consumer.end_offsets(queues)
        all_found: list[StoredMessage] = []
        for queue, offset in (await begins_of(consumer, queues, start)).items():
            found: list[StoredMessage] = []

            def take(one: StoredMessage, found: list[StoredMessage] = found) -> bool:
                if is_meant(one):
                    found.append(one)
                is_over = end_ms is not None and one.store_timestamp_ms >= end_ms
                return not is_over and len(found) < count

            await read_queue(consumer, queue, offset, ends[queue], take)
            all_found += found
        all_found.sort(key=lambda one: (one.store_timestamp_ms, one.queue_id, one.queue_offset))
        return all_found[:count]

    look = by_place if key is None else by_key
    found = servers.with_both(look)
    for one in found:
        show(one, json=json, is_hex=is_hex)
    if not found:
        raise CliError(f"no message in {topic} matches these options", status=Status.NOT_FOUND)


def _broker_of(message_id: str) -> str | None:
    """Return the address that an offset id names; None for other texts.

    A unique id looks the same, so the address may be that of any machine.
    """
    from motelog.bridge.query import view_command

    try:
        return view_command(message_id)[0]
    except ValueError:
        return None


async def _viewed(consumer: PullConsumer, message_id: str) -> StoredMessage | None:
    from motelog.core.errors import BrokerError

    try:
        return await consumer.view(message_id)
    except BrokerError:
        return None  # a broker's answer if there is no record at that offset
