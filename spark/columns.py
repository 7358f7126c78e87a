"""The columns of the source, and the origin of each.

Owns: Column, the column names in schema order, their Spark types as DDL, limits shared by the
decoder and its callers. Must not touch: pyspark, pyarrow.

    topic         the MQTT topic name: property mqttRealTopic, else queue topic "/" tag, else the
                  queue topic
    queue_topic   the RocketMQ topic
    device        the tag; null without one
    key           the KEYS property (words separated by spaces); null without one
    payload       the body, inflated if it was stored compressed
    store_time, born_time   when the broker stored, and the producer created, the message; null if
                  the milliseconds are outside 1970..9999
    broker, queue_id, queue_offset   where the record is: a message's identity in its topic
    properties    every property by its name, as stored in the log
    qos, retain, client_id   those of the MQTT publisher; null if no MQTT client published it
    mqtt_properties   the MQTT 5 properties of the PUBLISH as JSON; null without any
    content_type, response_topic   two of these
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Column(IntEnum):
    """The columns in the order of the schema; the kernel uses the numbers of those it decodes."""

    TOPIC = 0
    QUEUE_TOPIC = 1
    DEVICE = 2
    KEY = 3
    PAYLOAD = 4
    STORE_TIME = 5
    BORN_TIME = 6
    BROKER = 7
    QUEUE_ID = 8
    QUEUE_OFFSET = 9
    PROPERTIES = 10
    QOS = 11
    RETAIN = 12
    CLIENT_ID = 13
    MQTT_PROPERTIES = 14
    # Derived from the kernel's columns.
    CONTENT_TYPE = 15
    RESPONSE_TOPIC = 16

    @property
    def label(self) -> str:
        return self.name.lower()


COLUMN_TYPES: Final[dict[Column, str]] = {
    Column.TOPIC: "string",
    Column.QUEUE_TOPIC: "string",
    Column.DEVICE: "string",
    Column.KEY: "string",
    Column.PAYLOAD: "binary",
    Column.STORE_TIME: "timestamp",
    Column.BORN_TIME: "timestamp",
    Column.BROKER: "string",
    Column.QUEUE_ID: "int",
    Column.QUEUE_OFFSET: "bigint",
    Column.PROPERTIES: "map<string,string>",
    Column.QOS: "int",
    Column.RETAIN: "boolean",
    Column.CLIENT_ID: "string",
    Column.MQTT_PROPERTIES: "string",
    Column.CONTENT_TYPE: "string",
    Column.RESPONSE_TOPIC: "string",
}

#: The default columns. The others cost more, and fewer queries need them.
DEFAULT: Final = tuple(column for column in Column if column < Column.PROPERTIES)
#: The columns that the kernel decodes.
DECODED: Final = tuple(column for column in Column if column <= Column.MQTT_PROPERTIES)

# 9999-12-31T23:59:59.999Z, the last time that Spark can show.
TIME_MS_MAX: Final = 253_402_300_799_999
# Arrow's string and binary offsets have 32 bits. The bytes of a batch plus one more message must
# stay below that.
BYTES_MAX: Final = 1 << 29


def column_named(name: str) -> Column | None:
    """Return the column of this name, None if there is none."""
    try:
        return Column[name.upper()]
    except KeyError:
        return None


def schema_ddl(columns: tuple[Column, ...]) -> str:
    """Return the Spark schema of these columns."""
    return ", ".join(f"{column.label} {COLUMN_TYPES[column]}" for column in columns)
