"""A client's description of itself: the body of HEART_BEAT.

Owns: HeartbeatData as values, tag expressions as sets of hashes. Must not touch: groups, sockets.
Spec: RocketMQ HeartbeatData, SubscriptionData, FilterAPI. C++ clients write the three enumerations
as ordinals, Java clients as names; both are accepted.

Clients of RocketMQ 5 with useHeartbeatV2 add a fingerprint of its content to a heartbeat, and leave
the subscriptions out of the next ones (withoutSub) while nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from motelog.core.errors import RemotingDecodeError
from motelog.core.message import string_hash
from motelog.core.remoting.codes import TAG_EXPRESSION_TYPE
from motelog.core.remoting.fields import Int64
from motelog.core.remoting.frames import loads

EXPRESSION_CHARACTERS_MAX: Final = 65_536
#: The types that mean a tag expression, the default without a type.
TAG_TYPES: Final = (None, "", TAG_EXPRESSION_TYPE)
_CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
_MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


class Subscription(msgspec.Struct, frozen=True, rename="camel"):
    """A group's subscription to one topic; the one with the largest ``sub_version`` applies."""

    topic: str
    sub_string: Annotated[str, msgspec.Meta(max_length=EXPRESSION_CHARACTERS_MAX)] | None = "*"
    sub_version: Int64 = 0
    expression_type: str | None = None
    tags_set: list[str] | None = None
    code_set: list[Int64] | None = None
    class_filter_mode: bool = False

    @property
    def is_tag_filter(self) -> bool:
        return self.expression_type in TAG_TYPES


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group as its member describes it.

    ``is_brief`` if its heartbeat leaves the subscriptions out; ``fingerprint`` 0 if it has none.
    """

    group: str
    consume_type: str
    message_model: str
    from_where: str
    subscriptions: dict[str, Subscription]
    fingerprint: int = 0
    is_brief: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One client's groups."""

    client_id: str
    producer_groups: tuple[str, ...]
    consumers: tuple[ConsumerData, ...]
    fingerprint: int = 0


class _ProducerJson(msgspec.Struct, rename="camel"):
    group_name: str


class _ConsumerJson(msgspec.Struct, rename="camel"):
    group_name: str
    consume_type: str | int | None = None
    message_model: str | int | None = None
    consume_from_where: str | int | None = None
    subscription_data_set: list[Subscription] | None = None


class _HeartbeatJson(msgspec.Struct):
    clientID: str
    producerDataSet: list[_ProducerJson] | None = None
    consumerDataSet: list[_ConsumerJson] | None = None
    heartbeatFingerprint: Int64 = 0
    withoutSub: bool = False


def decode_heartbeat(body: bytes) -> Heartbeat:
    """Return the heartbeat in ``body``; RemotingDecodeError if it is invalid."""
    value: Any = loads(body)
    try:
        # C++ clients write subVersion as text.
        json = msgspec.convert(value, _HeartbeatJson, strict=False)
        return Heartbeat(
            json.clientID,
            tuple(producer.group_name for producer in json.producerDataSet or ()),
            tuple(_consumer(consumer, json) for consumer in json.consumerDataSet or ()),
            json.heartbeatFingerprint,
        )
    except (msgspec.ValidationError, ValueError) as exc:
        raise RemotingDecodeError(f"heartbeat: {exc}") from exc


def decode_tag_expression(expression: str | None) -> frozenset[int] | None:
    """Return the hashes of the tags in ``A || B``, or None for an expression that matches all."""
    if expression is None or expression in ("", "*"):
        return None
    tags = {tag.strip() for tag in expression.split("||")}
    tags.discard("")
    if "*" in tags or not tags:
        return None
    return frozenset(map(string_hash, tags))


def _consumer(json: _ConsumerJson, beat: _HeartbeatJson) -> ConsumerData:
    return ConsumerData(
        json.group_name,
        _name(json.consume_type, _CONSUME_TYPES, "CONSUME_PASSIVELY"),
        _name(json.message_model, _MESSAGE_MODELS, "CLUSTERING"),
        _name(json.consume_from_where, _FROM_WHERE, "CONSUME_FROM_LAST_OFFSET"),
        {subscription.topic: subscription for subscription in json.subscription_data_set or ()},
        beat.heartbeatFingerprint,
        beat.withoutSub,
    )


def _name(value: str | int | None, names: tuple[str, ...], default: str) -> str:
    """Return an enumeration's name from its name or ordinal; ValueError if it is neither."""
    if value is None:
        return default
    if isinstance(value, int):
        if not 0 <= value < len(names):
            raise ValueError(f"{value} is not one of {', '.join(names)}")
        return names[value]
    if value not in names:
        raise ValueError(f"{value[:64]!a} is not one of {', '.join(names)}")
    return value
