"""The answers of the admin API about a gateway.

Owns: their fields, which are those of the API. Must not touch: their sources (``operator``).
Times are in milliseconds since 1970, sizes in bytes. A list has pages: the next page begins after
``after``, which is null at the end.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all answers."""


class GatewayNode(Answer, frozen=True, kw_only=True):
    """A live gateway process; ``seen_ms`` is when it last wrote to the log.

    ``is_here``: it is part of this server, and gives this answer.
    """

    name: str
    seen_ms: int
    is_here: bool


class GatewayNodes(Answer, frozen=True, kw_only=True):
    """The gateways that share sessions with this one, by name."""

    gateways: list[GatewayNode]


class RetainedEntry(Answer, frozen=True, kw_only=True):
    """A retained message without its payload; ``client_id`` is its publisher."""

    topic: str
    payload_bytes: int
    qos: int
    client_id: str
    stored_ms: int
    expires_ms: int | None


class RetainedPage(Answer, frozen=True, kw_only=True):
    """Retained messages by topic name. A page may be empty though more follow."""

    messages: list[RetainedEntry]
    after: str | None


class RetainedMessage(RetainedEntry, frozen=True, kw_only=True):
    """A retained message; the payload is in base64."""

    payload: bytes


class SessionEntry(Answer, frozen=True, kw_only=True):
    """A session; ``since_ms`` is when its client connected or left, null if this is not known.

    ``expires_ms`` is null while its client is connected, and if the session never expires.
    """

    client_id: str
    is_connected: bool
    since_ms: int | None
    expiry_s: int
    expires_ms: int | None
    filters: int
    inflight: int


class SessionPage(Answer, frozen=True, kw_only=True):
    """Sessions by client identifier, connected and away. A page may be short though more follow."""

    sessions: list[SessionEntry]
    after: str | None


class Purged(Answer, frozen=True, kw_only=True):
    """Sessions of one page of client identifiers that were ended, or would be.

    ``kept`` are those that have come into use meanwhile.
    """

    ended: list[str]
    kept: list[str]
    after: str | None


class Subscription(Answer, frozen=True, kw_only=True):
    """One subscription; ``identifier`` was set by the client, null if it set none."""

    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int | None


class SessionQueue(Answer, frozen=True, kw_only=True):
    """How far a session has got in a queue, and how many messages the queue has after that.

    Some of these may be for other sessions. Null: the number is not known.
    """

    cursor: int
    messages_waiting: int | None


class Flight(Answer, frozen=True, kw_only=True):
    """A message in flight to a client: sent, or released (QoS 2)."""

    packet_id: int
    queue: str
    queue_offset: int
    qos: int
    state: Literal["sent", "released"]


class Will(Answer, frozen=True, kw_only=True):
    """The message that is published if the client disappears without DISCONNECT."""

    topic: str
    payload_bytes: int
    qos: int
    retain: bool
    delay_s: int


class Session(Answer, frozen=True, kw_only=True):
    """Everything about a session. ``user`` is its owner, null if clients do not log in.

    ``version`` (3, 4, 5) and ``peer`` are null while its client is away, or connected to another
    gateway. ``received`` has the packet identifiers of QoS 2 messages from the client that it has
    not released. ``dropped`` counts messages that the client has missed since it connected, by
    reason: slow (it did not read, QoS 0), too_large, quota (there were too many, or they were too
    old).
    """

    client_id: str
    is_connected: bool
    since_ms: int | None
    expiry_s: int
    expires_ms: int | None
    user: str | None
    version: int | None
    peer: str | None
    filters: list[Subscription]
    queues: dict[str, SessionQueue]
    inflight: list[Flight]
    received: list[int]
    dropped: dict[str, int]
    will: Will | None
    will_due_ms: int | None


#: How far a receiver has got with a message. waits: it is still to be sent. in flight: it was sent.
#: released: at QoS 2, the client has it. passed: the receiver got it, or did not want it then.
#: not wanted: it is older than the subscription, or there is no subscription. elsewhere: another
#: gateway hands it out.
Place = Literal["waits", "in flight", "released", "passed", "not wanted", "elsewhere"]


class MessageReceiver(Answer, frozen=True, kw_only=True):
    """A receiver of a message: a session with matching ``filters``, or a shared subscription.

    For a shared subscription (``share``), ``client_id`` is the client to which the message is in
    flight, or empty.
    """

    client_id: str
    is_connected: bool
    share: str | None
    filters: list[str]
    qos: int
    place: Place


class MessageReceivers(Answer, frozen=True, kw_only=True):
    """The receivers of a message; ``more`` further ones are not in the list."""

    receivers: list[MessageReceiver]
    more: int


class ClientEntry(Answer, frozen=True, kw_only=True):
    """A connected client. ``listener`` is tcp for ``gateway.listen``, else its table's name.

    ``since_ms`` is the time of its CONNECT; ``keep_alive_s`` 0: it may be silent forever.
    """

    client_id: str
    user: str | None
    protocol: Literal["3.1", "3.1.1", "5.0"]
    listener: str
    peer: str
    since_ms: int
    keep_alive_s: int
    filters: int
    inflight: int


class ClientPage(Answer, frozen=True, kw_only=True):
    """Connected clients by client identifier."""

    clients: list[ClientEntry]
    after: str | None


class TracedPacket(Answer, frozen=True, kw_only=True):
    """A packet that a client sent (in) or that was sent to it (out), without its payload.

    Long names and lists are cut. ``topic`` is "" for a topic alias whose name the trace has not
    seen.
    """

    number: int
    at_ms: int
    direction: Literal["in", "out"]
    type: str
    packet_bytes: int
    topic: str | None
    topic_alias: int | None
    qos: int | None
    retain: bool
    dup: bool
    packet_id: int | None
    filters: list[str]
    reason_codes: list[int]


class Trace(Answer, frozen=True, kw_only=True):
    """A trace of one client: some of the packets after the number in the request.

    ``over`` is the reason why the trace has ended; null as long as there is more to read.
    """

    trace: str
    client_id: str
    began_ms: int
    ends_ms: int
    packets_max: int
    packets: list[TracedPacket]
    over: str | None


class Client(ClientEntry, frozen=True, kw_only=True):
    """A connected client, the terms of its connection, and its session.

    ``inflight_max`` is its window of unacknowledged messages, ``output_bytes`` the output that it
    has not read yet. ``packet_bytes_max`` and ``topic_alias_max`` are the limits that it has set.
    """

    inflight_max: int
    packet_bytes_max: int
    topic_alias_max: int
    output_bytes: int
    session: Session
