"""One trace from a device, or a producer, to the function that handles its message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from opentelemetry import trace
from opentelemetry.trace import SpanKind
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from motelog.bridge.producer import Producer
from motelog.bridge.push.consumer import PushConsumer
from motelog.core.message import Message
from motelog.core.records.decode import StoredMessage
from motelog.otel import sending, traced
from motelog.testing import MotelogProcess
from tests.integration.test_mqtt_clients import DEADLINE_S, PahoClient
from tests.support.spans import exporter

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_trace_goes_from_device_and_producer_to_the_handler(
    motelog_stack: MotelogProcess, is_async: bool
) -> None:
    topic = f"otel{int(is_async)}"
    namesrv = "{}:{}".format(*motelog_stack.namesrv)
    spans = exporter()
    spans.clear()
    inside: dict[bytes, int] = {}

    def plain(message: StoredMessage) -> None:
        # The user's own spans, and log lines, belong to this one.
        inside[message.body] = trace.get_current_span().get_span_context().span_id

    async def waiting(message: StoredMessage) -> None:
        plain(message)

    handle: Callable[[StoredMessage], Any] = waiting if is_async else plain
    device = PahoClient(motelog_stack.mqtt, MQTTProtocolVersion.MQTTv5, f"{topic}-device")
    try:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho's
        properties.UserProperty = ("traceparent", TRACEPARENT)
        published = device.client.publish(f"{topic}/d", b"device", 1, properties=properties)
        published.wait_for_publish(DEADLINE_S)
    finally:
        device.stop()
    async with Producer(namesrv=namesrv) as producer:
        with sending(Message(topic, b"producer")) as message:
            await producer.send(message)
    async with PushConsumer(namesrv=namesrv, group=topic, start="first") as consumer:
        consumer.subscribe(topic)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, traced(handle))
            with trio.fail_after(DEADLINE_S):
                while len(spans.get_finished_spans()) < 3:  # noqa: ASYNC110  # threads end them
                    await trio.sleep(0.05)
            consumer.stop()
    found = spans.get_finished_spans()
    [sent] = [span for span in found if span.kind is SpanKind.PRODUCER]
    handled = {
        span.parent.span_id if span.parent else 0: span
        for span in found
        if span.kind is SpanKind.CONSUMER
    }
    assert sent.context is not None
    of_device, of_producer = int(TRACEPARENT[36:52], 16), sent.context.span_id
    assert handled.keys() == {of_device, of_producer}
    for body, parent in ((b"device", of_device), (b"producer", of_producer)):
        context = handled[parent].context
        assert context is not None
        assert context.span_id == inside[body]
