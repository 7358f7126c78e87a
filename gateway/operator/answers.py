"""What an operator is told of a gateway: the values that the admin API answers with.

Owns: their members, which are the API's. Must not touch: where they come from (``operator``).
Times are in milliseconds since 1970, sizes in bytes. A list has pages: ``after`` is what the next
page begins behind, null at the end.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One of the below."""


class GatewayNode(Answer, frozen=True, kw_only=True):
    """A gateway process that lives; ``seen_ms`` is when it has last written to the log.

    ``is_here``: it is of this server, and answers.
    """

    name: str
    seen_ms: int
    is_here: bool


class GatewayNodes(Answer, frozen=True, kw_only=True):
    """The gateways that share sessions with this one, by name."""

    gateways: list[GatewayNode]


class RetainedEntry(Answer, frozen=True, kw_only=True):
    """A retained message without its payload; ``client_id`` has published it."""

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
    """A session; ``since_ms`` is when its client has connected or left, null if that is not known.

    ``expires_ms`` is null while its client is connected, and if it never expires.
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
    """Sessions that were ended, or would be, of those behind one page of client identifiers.

    ``kept`` are those that are in use by then.
    """

    ended: list[str]
    kept: list[str]
    after: str | None


class Subscription(Answer, frozen=True, kw_only=True):
    """One subscription; ``identifier`` is the client's, null if it gave none."""

    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int | None


class SessionQueue(Answer, frozen=True, kw_only=True):
    """How far a session has got in a queue, and how many messages that has beyond.

    Some of them may be for others. Null: it is not known.
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
    """What is published for a client that goes without a word."""

    topic: str
    payload_bytes: int
    qos: int
    retain: bool
    delay_s: int


class Session(Answer, frozen=True, kw_only=True):
    """All there is to know of a session. ``user`` is its owner, null where nobody logs in.

    ``version`` (3, 4, 5) and ``peer`` are null while its client is away, or connected to another
    gateway. ``received`` has the packet identifiers of QoS 2 messages that it has not released.
    ``dropped`` counts messages that its client did not get since it connected, by why: slow (it did
    not read, QoS 0), too_large, quota (they were too many or too old).
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


#: How far a message has got to a receiver: it waits for it; is in flight, or at QoS 2 released and
#: so with the client; the receiver has passed it, as it got it or did not want it then; it is older
#: than the subscription, or there is none (not wanted); another gateway hands it out (elsewhere).
Place = Literal["waits", "in flight", "released", "passed", "not wanted", "elsewhere"]


class MessageReceiver(Answer, frozen=True, kw_only=True):
    """A session that a message is for, by its own ``filters``, or a shared subscription.

    Of a shared one (``share``) ``client_id`` is who has the message in flight, else empty.
    """

    client_id: str
    is_connected: bool
    share: str | None
    filters: list[str]
    qos: int
    place: Place


class MessageReceivers(Answer, frozen=True, kw_only=True):
    """Those that a message is for; ``more`` further ones are not in the list."""

    receivers: list[MessageReceiver]
    more: int


class ClientEntry(Answer, frozen=True, kw_only=True):
    """A connected client. ``listener`` is tcp for ``gateway.listen``, else its table's name.

    ``since_ms`` is the time of its CONNECT; ``keep_alive_s`` 0: it may be silent for ever.
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
    """A packet that a client has sent (in) or that was sent to it (out), without its payload.

    Names and lists are cut if they are long. ``topic`` is "" for a topic alias whose name the trace
    has not seen.
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
    """A trace of one client: the packets behind the one that was asked for, not all at once.

    ``over`` says why it has ended, when there is nothing more to read; null before.
    """

    trace: str
    client_id: str
    began_ms: int
    ends_ms: int
    packets_max: int
    packets: list[TracedPacket]
    over: str | None


class Client(ClientEntry, frozen=True, kw_only=True):
    """A connected client, what was agreed with it, and its session.

    ``inflight_max`` is its window of unacknowledged messages, ``output_bytes`` what it has not read
    yet. ``packet_bytes_max`` and ``topic_alias_max`` are what it takes.
    """

    inflight_max: int
    packet_bytes_max: int
    topic_alias_max: int
    output_bytes: int
    session: Session
