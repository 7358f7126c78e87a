"""Names of topics and groups: which are valid, and which have a special meaning.

Owns: the rules for names, the names that the system keeps for itself. Must not touch: anything;
pure functions and constants. Spec: RocketMQ TopicValidator, MixAll.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

TOPIC_BYTES_MAX: Final = 127
# Retry and dead-letter topics have a group name after their prefix.
GROUP_TOPIC_BYTES_MAX: Final = 255
GROUP_BYTES_MAX: Final = 255

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
# Light queues, to which messages of other topics are dispatched.
LMQ_PREFIX: Final = "%LMQ%"
DEFAULT_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_motelog_timer"
# RocketMQ 5 keeps its timers here; read in folders that it wrote, never written.
ROCKETMQ_TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
# Half messages whose producers never committed them or rolled them back.
TRANS_CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
# RocketMQ's monitor reads events here about consumers whose offsets are outside their queues.
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
# The consumer group whose offset is a broker's own progress with half messages.
TRANS_GROUP: Final = "CID_RMQ_SYS_TRANS"
# POP's deliveries and acknowledgements; the name of the cluster follows.
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
# The state of MQTT gateways: sessions, and the retained message of each topic name.
MQTT_SESSION_TOPIC: Final = "MQTT_SESSION"
MQTT_RETAINED_TOPIC: Final = "MQTT_RETAINED"

# Only a gateway creates these and appends to them.
GATEWAY_TOPICS: Final = frozenset({MQTT_SESSION_TOPIC, MQTT_RETAINED_TOPIC})
# The producer group of gateways in other processes. Without logins it keeps out mistakes, but not
# attackers.
GATEWAY_GROUP: Final = "motelog-gateway"
# The console's consumer group. Messages that operators look at do not count as traffic.
CONSOLE_GROUP: Final = "motelog-console"

# Only the broker itself, or a gateway, appends to these.
TOPICS_CLOSED_TO_SENDERS: Final = GATEWAY_TOPICS | frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TOPIC,
        "SELF_TEST_TOPIC",
        OFFSET_MOVED_TOPIC,
    }
)

# Topics that a broker keeps for itself, including the template of users' topics.
SYSTEM_TOPICS: Final = TOPICS_CLOSED_TO_SENDERS | {DEFAULT_TOPIC, "BenchmarkTest"}

# This many checked names are cached: each SUBSCRIBE and UNSUBSCRIBE checks one.
TOPICS_KEPT: Final = 1024
_NOT_FOR_DEVICES: Final = frozenset("%|")
_SYSTEM_PREFIXES: Final = ("RMQ_SYS_", "rmq_sys_")
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
# RocketMQ may join group and topic with a plus sign in the name of POP's retries.
_RETRY_NAME: Final = re.compile(r"%RETRY%[%|a-zA-Z0-9_-]*\+?[%|a-zA-Z0-9_-]+")


def topic_name_fault(name: str) -> str | None:
    """Return the fault of a topic name, or None."""
    if not name:
        return "the topic name is empty"
    bytes_max = GROUP_TOPIC_BYTES_MAX if is_group_topic(name) else TOPIC_BYTES_MAX
    if len(name) > bytes_max:
        return f"the topic name has {len(name)} characters, at most {bytes_max} are allowed"
    if not _NAME.fullmatch(name) and not _RETRY_NAME.fullmatch(name):
        return f"the topic name {shown(name)} holds characters other than %|a-zA-Z0-9_-"
    return None


def group_name_fault(name: str) -> str | None:
    """Return the fault of a consumer or producer group name, or None."""
    if not name:
        return "the group name is empty"
    # The retry topic of the group must fit too.
    bytes_max = GROUP_BYTES_MAX - len(RETRY_PREFIX)
    if len(name) > bytes_max:
        return f"the group name has {len(name)} characters, at most {bytes_max} are allowed"
    if not _NAME.fullmatch(name):
        return f"the group name {shown(name)} holds characters other than %|a-zA-Z0-9_-"
    return None


def is_topic_name(name: str) -> bool:
    """Return whether ``name`` is valid for a topic, and so for its directory: no slash."""
    return topic_name_fault(name) is None or is_lmq(name)


def is_lmq(name: str) -> bool:
    """Return whether ``name`` is valid for a light queue: from an MQTT topic, so nearly any text.

    It names a directory and is not in the header of any record.
    """
    return (
        name.startswith(LMQ_PREFIX)
        and name.isprintable()
        and "/" not in name
        and "," not in name
        and len(name.encode()) <= GROUP_TOPIC_BYTES_MAX
    )


@lru_cache(TOPICS_KEPT)
def is_device_topic(name: str) -> bool:
    """Return whether devices may read and write the topic of this name.

    Narrower than a broker's own rule: '%' names retry and dead-letter topics.
    """
    return (
        is_topic_name(name)
        and _NOT_FOR_DEVICES.isdisjoint(name)
        and name not in SYSTEM_TOPICS
        and not name.startswith(_SYSTEM_PREFIXES)
    )


def is_group_topic(name: str) -> bool:
    """Return whether the topic belongs to a consumer group: its retries or its dead letters."""
    return name.startswith((RETRY_PREFIX, DLQ_PREFIX))


def shown(name: str) -> str:
    """Return a peer's text for a log line or a remark: escaped and cut."""
    return ascii(name if len(name) <= 64 else name[:64] + "...")
