"""What the gateway keeps for a client identifier: its filters, and how far delivery to it has got.

Owns: its topic filters, its inflight window, its cursors. Must not touch: the outputs of
connections, the subscription tree (which holds the options), the log.
Invariants: nothing here grows with the number of messages; the window is bounded by what was agreed
at CONNECT. A session and its connection refer to each other, or neither does (``attach``,
``detach``).
Spec: MQTT 5.0 sections 3.1 and 4.1.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.inflight import InflightWindow

_NONE: Final[tuple[str, ...]] = ()


class Session:
    """Small when idle, as a process holds a million: parts that few use are made on demand.

    ``connection`` is None while the client is away. Today a session ends with its connection
    (session expiry 0).
    """

    __slots__ = ("_filters", "_inflight", "_inflight_max", "client_id", "connection", "lagging")

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.connection: Connection | None = None
        #: Queue -> queue offset to go on from, for the queues in which this receiver lags.
        self.lagging: dict[Any, int] | None = None
        self._inflight_max = 1
        self._inflight: InflightWindow[Any] | None = None
        # None, one filter, or several: a dict for one filter would double the session's size.
        self._filters: str | dict[str, None] | None = None

    # --- connection ----------------------------------------------------------------------

    def attach(self, connection: Connection, *, inflight_max: int) -> None:
        """Go on with ``connection``, whose client takes ``inflight_max`` QoS 1 messages at once."""
        assert self.connection is None
        assert connection.session is None
        self.connection = connection
        connection.session = self
        self._inflight_max = inflight_max
        if self._inflight is not None:
            self._inflight.limit = inflight_max

    def detach(self) -> None:
        """Go on without a connection."""
        if self.connection is not None:
            self.connection.session = None
            self.connection = None

    # --- topic filters -------------------------------------------------------------------

    @property
    def filters(self) -> Collection[str]:
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
        """Remember a topic filter; give the tree the same str object, so that it is held once."""
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

    # --- messages in flight --------------------------------------------------------------

    @property
    def inflight(self) -> InflightWindow[Any]:
        """The window of QoS 1 messages towards the client."""
        window = self._inflight
        if window is None:
            window = self._inflight = InflightWindow(self._inflight_max)
        return window

    def acknowledge(self, packet_id: int) -> bool:
        """Take a PUBACK; return whether that makes room for a receiver that lags.

        An identifier that is not in flight is ignored: there is nothing to tell the client.
        """
        window = self._inflight
        return window is not None and window.ack(packet_id) and bool(self.lagging)
