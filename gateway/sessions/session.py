"""One connected client: who it is, what it asked for, what it has in flight.

Owns: its topic filters' names, its inflight window, its topic aliases. Must not touch: sockets, the
subscription tree (which holds the options), the log.
Invariants: nothing here grows with the number of messages; aliases and window are bounded by what
was agreed at CONNECT. A session lives as long as its connection (session expiry 0).
Spec: MQTT 5.0 sections 3.1, 3.3.2.3.4 and 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from motelog.gateway.errors import ProtocolViolationError, TopicAliasError
from motelog.gateway.sessions.inflight import InflightWindow

_NONE: Final[tuple[str, ...]] = ()
#: No MQTT packet can be larger (section 2.1.4).
PACKET_BYTES_LIMIT: Final = 268_435_460


class Session:
    """Small when idle, as a process holds a million: what most never use is made on demand.

    ``version`` is 3, 4 or 5; ``keep_alive_s`` the one in force, 0 for none; ``topic_alias_maximum``
    what we granted the client; ``packet_bytes_max`` the largest packet the client takes.
    """

    __slots__ = (
        "_aliases",
        "_filters",
        "_inflight",
        "_inflight_limit",
        "client_id",
        "connection",
        "host",
        "keep_alive_s",
        "lagging",
        "origin",
        "packet_bytes_max",
        "topic_alias_maximum",
        "unacknowledged",
        "user_name",
        "version",
    )

    def __init__(
        self,
        client_id: str,
        connection: int,
        version: int,
        *,
        keep_alive_s: int,
        inflight_limit: int,
        user_name: str | None = None,
        topic_alias_maximum: int = 0,
        packet_bytes_max: int = PACKET_BYTES_LIMIT,
        host: bytes = b"",
    ) -> None:
        self.client_id = client_id
        self.connection = connection
        self.version = version
        self.keep_alive_s = keep_alive_s
        self.user_name = user_name
        self.topic_alias_maximum = topic_alias_maximum
        self.packet_bytes_max = packet_bytes_max
        #: The peer's address as records hold it, and the property text that its publishes end with.
        self.host = host
        self.origin = b""
        #: Queue -> queue offset to go on from, for the queues in which this receiver lags.
        self.lagging: dict[Any, int] | None = None
        #: Its QoS 1 publishes that wait for the log before they are acknowledged.
        self.unacknowledged = 0
        self._inflight_limit = inflight_limit
        self._inflight: InflightWindow[Any] | None = None
        # None, one filter, or several: a dict for one would double the session.
        self._filters: str | dict[str, None] | None = None
        self._aliases: dict[int, bytes] | None = None

    @property
    def filters(self) -> Iterable[str]:
        """The topic filters, oldest first; do not keep it across a change."""
        if self._filters is None:
            return _NONE
        return (self._filters,) if isinstance(self._filters, str) else self._filters

    @property
    def filters_count(self) -> int:
        if self._filters is None:
            return 0
        return 1 if isinstance(self._filters, str) else len(self._filters)

    def add_filter(self, topic_filter: str) -> None:
        """Remember a topic filter; give the tree the same string object, it is then held once."""
        if self._filters is None:
            self._filters = topic_filter
        elif isinstance(self._filters, str):
            if self._filters != topic_filter:
                self._filters = {self._filters: None, topic_filter: None}
        else:
            self._filters[topic_filter] = None

    def remove_filter(self, topic_filter: str) -> bool:
        """Forget a topic filter; return whether it was there."""
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

    @property
    def inflight(self) -> InflightWindow[Any]:
        """The window of QoS 1 messages towards the client."""
        window = self._inflight
        if window is None:
            window = self._inflight = InflightWindow(self._inflight_limit)
        return window

    def resolve_alias(self, topic: bytes, alias: int) -> bytes:
        """Return the topic name of a PUBLISH with a topic alias, and remember or replace that.

        ``topic`` is empty when the alias stands for it. Raises TopicAliasError or
        ProtocolViolationError.
        """
        if not 1 <= alias <= self.topic_alias_maximum:  # [MQTT-3.3.2-8] [MQTT-3.3.2-9]
            raise TopicAliasError(f"topic alias {alias}, at most {self.topic_alias_maximum}")
        if topic:
            if self._aliases is None:
                self._aliases = {}
            self._aliases[alias] = topic
            return topic
        known = None if self._aliases is None else self._aliases.get(alias)
        if known is None:  # section 3.3.4
            raise ProtocolViolationError(f"topic alias {alias} has no topic name yet")
        return known
