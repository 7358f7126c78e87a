"""The session of a client identifier: its filters, and the progress of delivery to it.

Owns: its topic filters, its inflight window, its cursors, the QoS 2 messages it has not released,
its will. Must not touch: the outputs of connections, the subscription tree (which has the options),
the log.
Invariants: nothing here grows with the number of messages; the window is bounded by the terms of
CONNECT. A session and its connection refer to each other, or neither does (``attach``,
``detach``). A Session exists only while its client is connected: the session of a disconnected
client is a row of the view (``state``).
Spec: MQTT 5.0 sections 3.1 and 4.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from motelog.gateway.access.login import Identity
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.inflight import InflightWindow
from motelog.gateway.state.stored import Received, StoredWill

if TYPE_CHECKING:
    from motelog.gateway.sessions.groups import Group

#: In ``Particulars.since``: for all filters of the session.
ALL_FILTERS: Final = ""

_NONE: Final[tuple[str, ...]] = ()
#: In place of an empty set for each session; never changed.
NO_QUEUES: Final[set[Any]] = set()
_NO_SHARES: Final[Mapping[str, Group]] = {}


class Particulars:
    """The rarely used parts of a session."""

    __slots__ = (
        "awaiting",
        "away",
        "delivered",
        "dropped",
        "has_base",
        "has_sent_again",
        "identifiers",
        "is_claimed",
        "is_unsure",
        "received",
        "replays",
        "resend",
        "shares",
        "since",
        "stores",
        "unplaced",
        "will",
        "withdrawn",
    )

    def __init__(self) -> None:
        self.will: StoredWill | None = None
        #: QoS 2 messages from the client that it has not released: packet identifier -> None if the
        #: message is in the log, else where to look for it.
        self.received: dict[int, Received | None] = {}
        #: Whether the client has sent a QoS 1 message again: an earlier connection may have had it
        #: stored.
        self.has_sent_again = False
        #: Topic filter -> subscription identifier, for the filters that have one.
        self.identifiers: dict[str, int] = {}
        #: Topic filter -> queue -> the queue offset at which the subscription begins, for queues in
        #: which the session's cursor was lower when it was created; or ALL_FILTERS.
        self.since: dict[str, dict[Any, int]] = {}
        #: Queues in which it is not known yet where the session begins.
        self.unplaced = NO_QUEUES
        #: Places after the cursors that must not be sent again: QoS 2 messages that the client has.
        self.delivered: set[tuple[Any, int]] = set()
        #: Queue -> the queue offset before which QoS 0 messages are skipped: they arrived while the
        #: client was disconnected, and do not wait for it.
        self.away: dict[Any, int] = {}
        #: The number of messages dropped for the client since it connected, by reason: "slow" (its
        #: output was full), "too_large", or "quota" (too many or too old).
        self.dropped: dict[str, int] = {}
        #: Packet identifiers to send again after a reconnect, in order, before anything else.
        self.resend: deque[int] = deque()
        #: Whether they wait until their state has been appended to the log again.
        self.is_unsure = False
        #: Topic filter -> the retained messages still to be sent to its subscription, a
        #: ``deliver.replay.Replay``.
        self.replays: dict[str, Any] = {}
        #: "$share/{group}/{filter}" -> the group that the session is a member of.
        self.shares: dict[str, Group] = {}
        #: Those of them in which no member has had room since this one last had some.
        self.awaiting: dict[Group, None] = {}
        #: Whether subscriptions were dropped at a reconnect because the client lost the right.
        self.withdrawn = False
        #: How many whole records of it were appended; whether the log certainly has the last one,
        #: and whether this gateway has got the session by a claim.
        self.stores = 0
        self.has_base = self.is_claimed = False


class Session:
    """Small when idle, since a process has a million: rarely used parts are created on demand.

    ``expiry_s`` is how long it outlives its connection; 0: it ends with it and is never stored.
    ``identity`` is its client's, None if there is no authentication. ``begun_ms`` is when it began,
    0 if that is not known.
    """

    __slots__ = (
        "_filters",
        "_inflight",
        "_particulars",
        "begun_ms",
        "client_id",
        "connection",
        "expiry_s",
        "identity",
        "lagging",
    )

    def __init__(
        self,
        client_id: str,
        *,
        expiry_s: int = 0,
        identity: Identity | None = None,
        begun_ms: int = 0,
    ) -> None:
        self.client_id = client_id
        self.begun_ms = begun_ms
        self.identity = identity
        self.expiry_s = expiry_s
        self.connection: Connection | None = None
        #: Queue -> queue offset to continue from, for the queues in which this receiver lags.
        self.lagging: dict[Any, int] | None = None
        # How many messages may be in flight until there is a window: two slots would be too many.
        self._inflight: InflightWindow | int = 1
        # None, one filter, or several: a dict for one filter would double the session's size.
        self._filters: str | dict[str, None] | None = None
        self._particulars: Particulars | None = None

    @property
    def user_name(self) -> str:
        """The user's name, empty if it has none."""
        return "" if self.identity is None else self.identity.user_name

    @property
    def owner(self) -> str | None:
        """The owner of the session, as in ``StoredSession``."""
        return None if self.identity is None else self.identity.owner

    # --- connection ----------------------------------------------------------------------

    def attach(self, connection: Connection, *, inflight_max: int) -> None:
        """Continue with ``connection``, whose client takes ``inflight_max`` messages at once."""
        assert self.connection is None
        assert connection.session is None
        self.connection = connection
        connection.session = self
        if isinstance(self._inflight, int):
            self._inflight = inflight_max
        else:
            self._inflight.limit = inflight_max

    def detach(self) -> None:
        """Continue without a connection."""
        if self.connection is not None:
            self.connection.session = None
            self.connection = None

    # --- rarely used parts ---------------------------------------------------------------

    @property
    def particulars(self) -> Particulars:
        """The rare parts, created at first use; ``has_particulars`` does not create them."""
        found = self._particulars
        if found is None:
            found = self._particulars = Particulars()
        return found

    def note_dropped(self, why: str, count: int = 1) -> None:
        """Count messages dropped for the client."""
        dropped = self.particulars.dropped
        dropped[why] = dropped.get(why, 0) + count

    @property
    def has_particulars(self) -> bool:
        return self._particulars is not None

    @property
    def has_replays(self) -> bool:
        """Whether retained messages must still be sent to a subscription."""
        return self._particulars is not None and bool(self._particulars.replays)

    # --- topic filters -------------------------------------------------------------------

    @property
    def filters(self) -> Collection[str]:
        """The topic filters except shared ones, oldest first; do not keep it across a change."""
        if self._filters is None:
            return _NONE
        return (self._filters,) if isinstance(self._filters, str) else self._filters

    @property
    def subscriptions_count(self) -> int:
        """The number of its subscriptions, shared or not."""
        return self._filters_count + len(self.shares)

    @property
    def _filters_count(self) -> int:
        if self._filters is None:
            return 0
        return 1 if isinstance(self._filters, str) else len(self._filters)

    def add_filter(self, topic_filter: str) -> None:
        """Add a topic filter; pass the tree the same str object, so that it is stored once."""
        if self._filters is None:
            self._filters = topic_filter
        elif isinstance(self._filters, str):
            if self._filters != topic_filter:
                self._filters = {self._filters: None, topic_filter: None}
        else:
            self._filters[topic_filter] = None

    def remove_filter(self, topic_filter: str) -> bool:
        """Remove a topic filter and its data; return whether it existed."""
        if self._particulars is not None:
            self._particulars.identifiers.pop(topic_filter, None)
            self._particulars.since.pop(topic_filter, None)
            self._particulars.replays.pop(topic_filter, None)
        if isinstance(self._filters, dict):
            if topic_filter not in self._filters:
                return False
            del self._filters[topic_filter]
            if len(self._filters) == 1:
                self._filters = next(iter(self._filters))
            return True
        if self._filters is None or self._filters != topic_filter:
            return False
        self._filters = None
        return True

    # --- shared subscriptions ------------------------------------------------------------

    @property
    def shares(self) -> Mapping[str, Group]:
        """The groups of which it is a member, by "$share/{group}/{filter}"."""
        return _NO_SHARES if self._particulars is None else self._particulars.shares

    def subscribes(self, topic_filter: str) -> bool:
        """Whether it has this subscription, shared or not."""
        return topic_filter in self.filters or topic_filter in self.shares

    # --- messages in flight --------------------------------------------------------------

    @property
    def inflight(self) -> InflightWindow:
        """The window of QoS 1 and 2 messages towards the client."""
        window = self._inflight
        if isinstance(window, int):
            window = self._inflight = InflightWindow(window)
        return window

    @property
    def inflight_max(self) -> int:
        """How many messages may be in flight to the client."""
        window = self._inflight
        return window if isinstance(window, int) else window.limit

    @property
    def has_inflight(self) -> bool:
        return not isinstance(self._inflight, int) and len(self._inflight) > 0

    def acknowledge(self, packet_ids: Iterable[int]) -> bool:
        """Process PUBACKs; return whether that makes room for waiting messages.

        An identifier that is not in flight is ignored, since PUBACK has no answer.
        ProtocolViolationError if one is that of a QoS 2 message; those before it are processed.
        """
        window = self._inflight
        if isinstance(window, int) or not window.acknowledge(packet_ids):
            return False
        if self.lagging:
            return True
        particulars = self._particulars
        if particulars is None:
            return False
        return bool(particulars.awaiting or particulars.replays or particulars.resend)
