"""SUBSCRIBE and UNSUBSCRIBE: a packet and a session in, decisions and the answer out.

Owns: which filters are granted and with which options, refusals and their codes.
Must not touch: sessions (it reads them), the subscription tree; ``clients`` applies the decisions.
Spec: MQTT 5.0 and 3.1.1 sections 3.8 to 3.11.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from motelog.gateway.access.rights import NONE, Authoriser, Who
from motelog.gateway.config import GatewayConfig
from motelog.gateway.mqtt.errors import TopicFilterError
from motelog.gateway.mqtt.packet_types import Properties, ReasonCode, SubscribeEntry
from motelog.gateway.mqtt.properties import reason_string
from motelog.gateway.mqtt.subscribe import (
    decode_subscribe,
    decode_unsubscribe,
    encode_suback,
    encode_unsuback,
)
from motelog.gateway.mqtt.topics import (
    FILTER_LEVELS_MAX,
    check_topic_filter,
    matched_filter,
    parse_shared,
)
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.stream import StreamStart, stream_start, unprefixed
from motelog.gateway.sessions.subscriptions import (
    HAS_IDENTIFIER,
    NO_LOCAL,
    QOS_MASK,
    RETAIN_AS_PUBLISHED,
)
from motelog.gateway.state.stored import StoredSession


class Granted(NamedTuple):
    """A filter to add, or whose options to replace [MQTT-3.8.4-3].

    ``options`` is the byte stored in the subscription tree; ``qos`` is SUBACK's code.
    ``identifier`` is 0 if the packet has none. ``replays``: send retained messages. ``start``: read
    the log from there, because the client asked for a stream.
    """

    topic_filter: str
    options: int
    qos: int
    identifier: int
    replays: bool
    start: StreamStart | None = None


class NotGranted(NamedTuple):
    """A filter that SUBACK refuses with ``reason_code``."""

    topic_filter: str
    reason_code: int
    why: str


class Subscribed(NamedTuple):
    """One decision per filter, in the packet's order, and the SUBACK.

    ``reasoned`` is the SUBACK with a Reason String, if there is something to explain.
    """

    decisions: tuple[Granted | NotGranted, ...]
    suback: bytes
    reasoned: bytes


class Unsubscribed(NamedTuple):
    """The filters to remove, and the UNSUBACK."""

    removed: tuple[str, ...]
    unsuback: bytes


def subscribe(
    config: GatewayConfig,
    session: Session,
    version: int,
    first_byte: int,
    body: bytes,
    rights: Authoriser | None = None,
) -> Subscribed:
    """Decide about a SUBSCRIBE of ``session``; a GatewayError ends the connection.

    ``rights`` is None if all clients may subscribe to everything.
    """
    packet = decode_subscribe(version, first_byte, body)
    added: set[str] = set()
    count = session.subscriptions_count
    decisions: list[Granted | NotGranted] = []
    codes: list[int] = []
    reasons: list[str] = []
    for entry in packet.entries:
        topic_filter = unprefixed(entry.topic_filter)
        is_new = topic_filter not in added and not session.subscribes(topic_filter)
        has_room = not is_new or count + len(added) < config.subscriptions_max
        decision = _decide(config, entry, topic_filter, packet.properties, is_new, has_room)
        if rights is not None and isinstance(decision, Granted):
            decision = _within(rights, session, entry, decision)
        if isinstance(decision, Granted):
            codes.append(decision.qos)
            if is_new:
                added.add(topic_filter)
        else:
            codes.append(decision.reason_code)
            reasons.append(f"{decision.topic_filter}: {decision.why}")
        decisions.append(decision)
    suback = reasoned = encode_suback(version, packet.packet_id, codes)
    if reasons:
        reason = reason_string("; ".join(reasons))
        reasoned = encode_suback(version, packet.packet_id, codes, reason)
    return Subscribed(tuple(decisions), suback, reasoned)


def _decide(
    config: GatewayConfig,
    entry: SubscribeEntry,
    topic_filter: str,
    properties: Properties,
    is_new: bool,
    has_room: bool,
) -> Granted | NotGranted:
    """Decide about one entry (section 3.9.3); ``topic_filter`` is its filter without "$stream/"."""
    start: StreamStart | None = None
    is_closed = False
    if entry.topic_filter.startswith("$"):
        if topic_filter != entry.topic_filter:
            try:
                check_topic_filter(topic_filter)
                start = stream_start(properties)
                if parse_shared(topic_filter) is not None:
                    raise ValueError("a shared subscription cannot be a stream")
            except (ValueError, TopicFilterError) as exc:
                return NotGranted(entry.topic_filter, ReasonCode.TOPIC_FILTER_INVALID, str(exc))
        is_system = topic_filter.startswith("$SYS/")
        is_closed = matched_filter(topic_filter).startswith("$") and not is_system
    if is_closed:
        code, why = (
            ReasonCode.NOT_AUTHORIZED,
            "filters that begin with '$' are reserved for the server",
        )
    elif len(topic_filter.encode()) > config.topic_bytes_max:
        code, why = ReasonCode.TOPIC_FILTER_INVALID, "the filter is too long"
    elif topic_filter.count("/") >= FILTER_LEVELS_MAX:
        code, why = ReasonCode.TOPIC_FILTER_INVALID, "the filter has too many levels"
    elif not has_room:
        code, why = ReasonCode.QUOTA_EXCEEDED, "the session has too many subscriptions"
    else:
        options = entry.qos
        options |= NO_LOCAL if entry.no_local else 0
        options |= RETAIN_AS_PUBLISHED if entry.retain_as_published else 0
        identifiers = properties.subscription_identifiers
        identifier = identifiers[0] if identifiers else 0
        options |= HAS_IDENTIFIER if identifier else 0
        # Retain Handling: 0 always, 1 if the subscription is new, 2 never. [MQTT-3.3.1-9..11]
        replays = entry.retain_handling == 0 or (entry.retain_handling == 1 and is_new)
        replays = replays and start is None  # the log contains what was retained since
        return Granted(topic_filter, options, entry.qos, identifier, replays, start)
    return NotGranted(entry.topic_filter, code, why)


def _within(
    rights: Authoriser, session: Session, entry: SubscribeEntry, granted: Granted
) -> Granted | NotGranted:
    """Return a subscription limited by the client's rights."""
    qos = rights.subscribe_qos(who(session), judged(granted.topic_filter))
    if qos == NONE:
        why = "the client has no right to subscribe to it"
        return NotGranted(entry.topic_filter, ReasonCode.NOT_AUTHORIZED, why)
    if qos >= granted.qos:
        return granted
    options = granted.options & ~QOS_MASK | qos
    return granted._replace(options=options, qos=qos)  # [MQTT-3.8.4-7]


def resumable(rights: Authoriser, session: Session, stored: StoredSession) -> StoredSession:
    """Return a stored session, reduced to what its client still has a right to."""
    filters = []
    for one in stored.filters:
        qos = rights.subscribe_qos(who(session), judged(one.topic_filter))
        if qos == NONE:
            continue
        options = one.options & ~QOS_MASK | min(qos, one.options & QOS_MASK)
        filters.append(msgspec.structs.replace(one, options=options))
    names = {one.topic_filter for one in filters}
    replays = tuple(one for one in stored.replays if one.topic_filter in names)
    return msgspec.structs.replace(stored, filters=tuple(filters), replays=replays)


def who(session: Session) -> Who:
    """Return the client whose rights apply to a session."""
    identity = session.identity
    if identity is None:
        return Who("", session.client_id)
    return Who(identity.owner or "", session.client_id, identity.rules, identity.certificate_name)


def judged(topic_filter: str) -> str:
    """Return the filter whose rights are checked: for a shared one that after the group."""
    shared = parse_shared(topic_filter)
    return topic_filter if shared is None else shared[1]


def unsubscribe(session: Session, version: int, first_byte: int, body: bytes) -> Unsubscribed:
    """Decide about an UNSUBSCRIBE of ``session``; a GatewayError ends the connection."""
    packet = decode_unsubscribe(version, first_byte, body)
    removed: dict[str, None] = {}
    codes: list[int] = []
    for topic_filter in map(unprefixed, packet.topic_filters):
        if session.subscribes(topic_filter) and topic_filter not in removed:
            removed[topic_filter] = None
            codes.append(ReasonCode.SUCCESS)
        else:
            codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
    return Unsubscribed(tuple(removed), encode_unsuback(version, packet.packet_id, codes))
