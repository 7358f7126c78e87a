"""A session as the log keeps it: everything about a client that outlives its connection.

Owns: the values that records of ``MQTT_SESSION`` and rows of the view hold.
Must not touch: live sessions (``sessions``), the log, the view.
Spec: MQTT 5.0 sections 3.1.2.11.2 and 4.1.

Delivery progress is a cursor per queue, and the messages in flight. Every message before the cursor
that is not in flight has been delivered, or no filter matched it. Queues have the names that
``LogPort.describe`` gives them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

#: Session Expiry Interval of a session that never ends (section 3.1.2.11.2).
EXPIRY_NEVER: Final = 0xFFFFFFFF


class FlightState(IntEnum):
    """How far a message in flight to a client has got."""

    SENT = 0
    """It was sent, and neither PUBACK nor PUBREC has come: it is sent again with DUP."""

    RELEASED = 1
    """PUBREC has come, PUBCOMP has not: only PUBREL is sent again. [MQTT-4.3.3-5]"""


class StoredFilter(msgspec.Struct, frozen=True, array_like=True):
    """One subscription; ``options`` is the subscription tree's byte.

    ``since`` maps queues to offsets: records before the offset are older than the subscription,
    although the session's cursor is lower.
    """

    topic_filter: str
    options: int
    identifier: int = 0
    since: dict[str, int] = {}


class StoredFlight(msgspec.Struct, frozen=True, array_like=True):
    """One message in flight to the client, by its place in the log."""

    packet_id: int
    queue: str
    queue_offset: int
    qos: int
    state: int = FlightState.SENT


class StoredReplay(msgspec.Struct, frozen=True, array_like=True):
    """Retained messages that a subscription still has to get: those after topic name ``after``.

    Only records of ``MQTT_RETAINED`` before ``before`` are older than the subscription.
    """

    topic_filter: str
    after: str
    before: int


class StoredWill(msgspec.Struct, frozen=True, array_like=True):
    """The will that CONNECT brought; ``properties`` is the text of the record's own properties.

    ``is_granted``: the right to publish it came with the login, and is not checked again.
    ``certificate_name`` is the name in the certificate of the client.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    delay_s: int
    properties: bytes
    user_name: str
    is_granted: bool = False
    certificate_name: str = ""


class Received(msgspec.Struct, frozen=True, array_like=True):
    """A QoS 2 message from the client that the client has not released.

    The record is in ``queue``, at ``queue_offset`` or after it, unless the gateway died between the
    mark and the message. ``taken_ms`` is when the gateway took the message: it distinguishes the
    message from an older one with the same packet identifier.
    """

    packet_id: int
    queue: str
    queue_offset: int
    taken_ms: int = 0


class StoredSession(msgspec.Struct, frozen=True, array_like=True):
    """The whole state of one client identifier.

    ``left_ms`` is when its connection ended, None while it has one. ``cursors`` has each queue that
    its filters need; a queue that is not in it did not exist, or was closed. There, messages from
    before ``begun_ms``, when the session began, are not for it; 0: that is not known. ``delivered``
    has places at or after a cursor that must not be sent again: QoS 2 messages that the client has.

    ``owner`` is the user to whom the session belongs, empty for an anonymous client. None: it began
    when clients did not log in, so it belongs to the first user who connects to it.
    """

    client_id: str
    expiry_s: int
    left_ms: int | None = None
    filters: tuple[StoredFilter, ...] = ()
    cursors: dict[str, int] = {}
    inflight: tuple[StoredFlight, ...] = ()
    received: tuple[Received, ...] = ()
    delivered: tuple[tuple[str, int], ...] = ()
    will: StoredWill | None = None
    replays: tuple[StoredReplay, ...] = ()
    owner: str | None = None
    begun_ms: int = 0

    @property
    def expires_ms(self) -> int | None:
        """When the session ends; None while it has a connection or if it never ends."""
        if self.left_ms is None or self.expiry_s == EXPIRY_NEVER:
            return None
        return self.left_ms + self.expiry_s * 1000

    @property
    def will_due_ms(self) -> int | None:
        """When the will is to be published; None while there is a connection or without a will."""
        if self.left_ms is None or self.will is None:
            return None
        return self.due_ms(self.left_ms)

    def due_ms(self, left_ms: int) -> int | None:
        """When its expiry or will is due if its connection ends at ``left_ms``; None: never."""
        expires_ms = None if self.expiry_s == EXPIRY_NEVER else left_ms + self.expiry_s * 1000
        if self.will is None:
            return expires_ms
        will_due_ms = left_ms + self.will.delay_s * 1000
        return will_due_ms if expires_ms is None else min(will_due_ms, expires_ms)


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """What a tick says about one connected session: where it is not at the live position.

    ``cursors`` has only the queues in which it lags. Without a cursor and without a flight, it has
    everything up to the tick's positions. ``replays`` are the replays that are not finished.
    """

    client_id: str
    cursors: dict[str, int]
    inflight: tuple[StoredFlight, ...]
    replays: tuple[StoredReplay, ...] = ()


class FiltersChange(msgspec.Struct, frozen=True, array_like=True):
    """What SUBSCRIBE and UNSUBSCRIBE have changed in one connected session.

    ``filters`` are added, or replace those of the same name. ``cursors`` has the queues that they
    need. ``progress`` says where the session is in all queues.
    """

    progress: Progress
    filters: tuple[StoredFilter, ...]
    removed: tuple[str, ...]
    cursors: dict[str, int]


class MarkKind(IntEnum):
    """What a mark says about one QoS 2 exchange."""

    RECEIVED = 0
    """The client's message is about to be appended at the place, or after it."""

    FORGOTTEN = 1
    """The client has sent PUBREL: its identifier may be used again."""

    SENT = 2
    """The message at the place is about to be sent to the client."""

    UNSENT = 3
    """It was not sent after all: it is sent later, perhaps with another packet identifier."""

    RELEASED = 4
    """The client has sent PUBREC."""

    COMPLETED = 5
    """The client has sent PUBCOMP."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """One step of a QoS 2 exchange; the place is empty if the step does not need it."""

    kind: int
    client_id: str
    packet_id: int
    queue: str = ""
    queue_offset: int = 0
    taken_ms: int = 0
