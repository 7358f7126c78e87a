"""Finding single messages: by key and time on every broker of a topic, or by offset id.

Owns: the requests, checking and merging the answers of several brokers. Must not touch: connections
and routes (bridge.client).
Spec: RocketMQ MQAdminImpl.queryMessage, QueryMessageRequestHeader, ViewMessageRequestHeader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from motelog.bridge.client import check
from motelog.core.addresses import format_address
from motelog.core.message import KEYS, UNIQ_KEY, decode_host, decode_offset_id
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode

TIME_MAX: Final = (1 << 63) - 1
QUERY_COUNT: Final = 32


def query_command(
    topic: str, key: str, begin_ms: int, end_ms: int, count_max: int
) -> RemotingCommand:
    """Return the request for messages by key; ValueError if its arguments are not valid."""
    if not key or count_max < 1 or not 0 <= begin_ms <= end_ms <= TIME_MAX:
        raise ValueError("a query needs a key, a count and a range of times")
    ext = {
        "topic": topic,
        "key": key,
        "maxNum": str(count_max),
        "beginTimestamp": str(begin_ms),
        "endTimestamp": str(end_ms),
    }
    return RemotingCommand(RequestCode.QUERY_MESSAGE, ext=ext)


def query_result(
    answers: Iterable[RemotingCommand], topic: str, key: str, count_max: int
) -> list[StoredMessage]:
    """Return the messages that have the key, newest first; BrokerError if a broker refused."""
    found: list[StoredMessage] = []
    for answer in answers:
        if answer.code != ResponseCode.QUERY_NOT_FOUND:
            # RocketMQ's broker compares only hashes, and sorts by offset.
            found += [m for m in decode_messages(check(answer).body) if _has_key(m, topic, key)]
    found.sort(key=lambda m: (m.store_timestamp_ms, m.physical_offset), reverse=True)
    return found[:count_max]


def _has_key(message: StoredMessage, topic: str, key: str) -> bool:
    properties = message.properties
    return message.topic == topic and (
        properties.get(UNIQ_KEY) == key or key in properties.get(KEYS, "").split(" ")
    )


def view_command(message_id: str) -> tuple[str, RemotingCommand]:
    """Return the address of the broker in an offset id, and the request to it.

    ValueError if it is not an offset id.
    """
    store_host, physical_offset = decode_offset_id(message_id)
    host, port = decode_host(store_host)
    address = format_address(host, port)
    ext = {"offset": str(physical_offset)}
    return address, RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, ext=ext)
