"""Spans of sends and of handled messages, and the context between them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from motelog.core.message import MQTT_PROPERTIES, Message
from motelog.core.records.decode import StoredMessage
from motelog.otel import handling, sending, traced
from tests.support.spans import exporter

DEVICE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    found = exporter()
    found.clear()
    yield found
    found.clear()


def stored(properties: dict[str, str], topic: str = "telemetry") -> StoredMessage:
    host = ("127.0.0.1", 1)
    return StoredMessage(topic, 3, 7, 0, b"21.5", properties, 0, 0, 0, host, 0, host, 0, 0, 100)


def kept(message: Message) -> StoredMessage:
    """Return what a consumer gets of a message."""
    return stored({**message.properties, "TAGS": message.tags or "", "UNIQ_KEY": "AB"})


def only(spans: InMemorySpanExporter) -> ReadableSpan:
    [span] = spans.get_finished_spans()
    return span


def test_the_span_of_a_handler_is_the_child_of_the_send(spans: InMemorySpanExporter) -> None:
    message = Message("telemetry", b"21.5", tags="dev42", keys=("a", "b"), properties={"p": "v"})
    with sending(message) as told:
        assert (told.topic, told.body, told.tags, told.keys) == (
            "telemetry", b"21.5", "dev42", ("a", "b"),
        )  # fmt: skip
        assert told.properties["p"] == "v"
    assert "traceparent" not in message.properties
    with handling(kept(told)):
        pass
    send, process = spans.get_finished_spans()
    assert (send.name, send.kind) == ("send telemetry", SpanKind.PRODUCER)
    assert (process.name, process.kind) == ("process telemetry", SpanKind.CONSUMER)
    assert process.parent is not None
    assert send.context is not None
    assert process.parent.span_id == send.context.span_id
    assert dict(send.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": "telemetry",
        "messaging.message.body.size": 4,
        "messaging.rocketmq.message.tag": "dev42",
        "messaging.rocketmq.message.keys": ("a", "b"),
    }
    attributes = dict(process.attributes or {})
    assert attributes["messaging.message.id"] == "AB"
    assert attributes["messaging.destination.partition.id"] == "3"
    assert attributes["messaging.rocketmq.message.tag"] == "dev42"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        (json.dumps({"user": [["a", "b"], ["traceparent", DEVICE]]}), True),
        (json.dumps({"user": [["traceparent", "nonsense"]]}), False),
        (json.dumps({"user": "traceparent"}), False),
        (json.dumps({"contentType": "x"}), False),
        ("{", False),
    ],
)
def test_a_device_s_context_is_in_its_user_properties(
    spans: InMemorySpanExporter, text: str, is_found: bool
) -> None:
    with handling(stored({MQTT_PROPERTIES: text})):
        pass
    parent = only(spans).parent
    assert (parent is not None) == is_found
    if parent is not None:
        assert f"{parent.trace_id:032x}-{parent.span_id:016x}" == DEVICE[3:-3]


def test_several_messages_have_one_span_with_links(spans: InMemorySpanExporter) -> None:
    some = [stored({"traceparent": DEVICE}), stored({}), stored({"traceparent": "x"})]
    with handling(some):
        pass
    with handling([]):
        pass
    span = only(spans)
    assert span.parent is None
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [DEVICE[3:35]]
    assert (span.attributes or {})["messaging.batch.message_count"] == 3


async def test_a_handler_keeps_its_kind_and_its_errors(spans: InMemorySpanExporter) -> None:
    seen: list[object] = []

    def plain(message: StoredMessage) -> str:
        seen.append(trace.get_current_span().get_span_context().is_valid)
        raise ValueError("it fails")

    async def waiting(messages: list[StoredMessage]) -> str:
        seen.append(len(messages))
        return "done"

    with pytest.raises(ValueError, match="it fails"):
        traced(plain)(stored({}))
    span = only(spans)
    assert span.status.status_code is StatusCode.ERROR
    assert span.events[0].name == "exception"
    assert await traced(waiting)([stored({})]) == "done"
    assert seen == [True, 1]
    assert traced(plain).__name__ == "plain"


def test_an_error_of_a_send_is_its_span_s(spans: InMemorySpanExporter) -> None:
    with pytest.raises(OSError, match="away"), sending(Message("t", b"")):
        raise OSError("away")
    assert only(spans).status.status_code is StatusCode.ERROR
