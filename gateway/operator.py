"""What an operator sees and changes of a gateway while it runs; the console asks here.

Owns: pages of retained messages, their removal by an operator.
Must not touch: HTTP, the view's rows.
Invariant: a page is one slice of a scan, so that no request keeps the clients waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from motelog.core.clock import Clock
from motelog.core.errors import MotelogError
from motelog.core.message import MQTT_TOPIC, encode_host, encode_properties
from motelog.gateway.deliver.outgoing import message_qos
from motelog.gateway.log.log_port import LogPort, Ticket
from motelog.gateway.mapping.message_properties import client_id_property
from motelog.gateway.mqtt.topics import check_topic_filter
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.retained_rows import Retained

#: Most messages of one page.
PAGE_MAX: Final = 1000
_HOST: Final = encode_host("127.0.0.1", 0)


class Page(NamedTuple):
    """Some messages; ``after`` is what the next page begins behind, None at the end."""

    messages: list[dict[str, Any]]
    after: str | None


class Operator:
    """One gateway as its operator sees it. Methods raise ViewError while the view is not usable."""

    def __init__(
        self,
        log: LogPort,
        retained: RetainedStore,
        *,
        clock: Clock,
        after: Callable[[Ticket, Callable[[MotelogError | None], None]], None],
    ) -> None:
        self._log_port = log
        self._retained = retained
        self._clock = clock
        self._after = after

    def list_retained(self, topic_filter: str, after: str, limit: int) -> Page:
        """Return a page by topic name; TopicFilterError. It may be empty though more follow."""
        check_topic_filter(topic_filter)
        limit = min(max(limit, 1), PAGE_MAX)
        found = self._retained.scan(topic_filter, after, limit, self._retained.now())
        return Page([_brief(message) for message in found.messages], found.after)

    def get_retained(self, name: str) -> tuple[dict[str, Any], bytes] | None:
        """Return one message and its payload, None if there is none."""
        message = self._retained.get(name)
        return None if message is None else (_brief(message), message.payload)

    def delete_retained(self, name: str, then: Callable[[MotelogError | None], None]) -> bool:
        """Remove one message; return False if there is none.

        Its subscribers are not told, as nothing is published. ``then`` is called when it is sure,
        or with the reason why it failed.
        """
        if self._retained.get(name) is None:
            return False
        text = encode_properties({MQTT_TOPIC: name})
        now_ms = self._clock.now_ms()
        written = self._retained.write(name, (None, b"", text, 0, now_ms, _HOST, 0, 0, 0, 0))
        written.ticket = self._log_port.append([written.record])
        self._log_port.settle_soon()
        self._after(written.ticket, then)
        return True


def _brief(message: Retained) -> dict[str, Any]:
    return {
        "topic": message.name,
        "payload_bytes": len(message.payload),
        "qos": message_qos(message.properties),
        "client_id": client_id_property(message.properties),
        "stored_ms": message.store_ms,
        "expires_ms": message.expires_ms,
    }
