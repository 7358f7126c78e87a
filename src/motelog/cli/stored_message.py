"""How commands show a message of the log: as one line, as one JSON object, or in full.

Owns: those forms, the option ``--hex``. Must not touch: where messages come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from motelog.cli.admin import time_text
from motelog.cli.output import table, write, write_json

if TYPE_CHECKING:
    from motelog.core.records.decode import StoredMessage

IsHex = Annotated[bool, typer.Option("--hex", help="Print bodies in hexadecimal.")]


def show(message: StoredMessage, *, json: bool, is_hex: bool) -> None:
    """Write one message as one line."""
    if json:
        write_json(message_value(message))
        return
    write(f"{place_of(message)} {body_text(message, is_hex=is_hex)}")


def show_all(message: StoredMessage, *, json: bool, is_hex: bool) -> None:
    """Write everything that is known about one message."""
    if json:
        write_json(message_value(message))
        return
    host, port = message.born_host
    rows = [
        ("message id", message.message_id),
        ("offset id", message.offset_id),
        ("place", place_of(message)),
        ("MQTT topic", message.mqtt_topic),
        ("tag", message.tags or "-"),
        ("keys", " ".join(message.keys) or "-"),
        ("born", f"{_ms_text(message.born_timestamp_ms)} at {host}:{port}"),
        ("stored", _ms_text(message.store_timestamp_ms)),
        ("retries", str(message.reconsume_times)),
        ("bytes", f"{len(message.body)} of body, {message.stored_bytes} stored"),
    ]
    write(table(rows))
    if message.properties:
        write()
        write(table([("property", "value"), *sorted(message.properties.items())]))
    write()
    write(body_text(message, is_hex=is_hex))


def place_of(message: StoredMessage) -> str:
    return f"{message.topic}/{message.queue_id}@{message.queue_offset}"


def body_text(message: StoredMessage, *, is_hex: bool) -> str:
    return message.body.hex() if is_hex else message.body.decode(errors="replace")


def message_value(message: StoredMessage) -> dict[str, Any]:
    """Return a message as a JSON value; bodies that are not UTF-8 are in base64."""
    from motelog.cli.message_format import payload_fields

    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "tag": message.tags,
        "keys": list(message.keys),
        "message_id": message.message_id,
        "store_timestamp_ms": message.store_timestamp_ms,
        "properties": message.properties,
        **payload_fields("body", message.body),
    }


def _ms_text(ms: int) -> str:
    return f"{time_text(ms)} ({ms} ms)"
