"""OpenTelemetry for programs that send and handle messages: spans, and context propagation.

Owns: what a span contains, where its context is carried.
Must not touch: how a message is sent, how a handled message is acknowledged.
It needs the extra ``otel``. Without a configured SDK spans are no-ops.
Spec: W3C Trace Context, also for MQTT; OpenTelemetry's semantic conventions for messaging.

    device     MQTT 5 user property traceparent  --+
    producer   property traceparent              --+--> log --> the handler's span is their child
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanKind
    from opentelemetry.util.types import AttributeValue
except ImportError as exc:
    text = "motelog.otel needs OpenTelemetry: pip install 'motelog[otel]'"
    raise ImportError(text) from exc

from motelog import __version__
from motelog.core.message import MQTT_PROPERTIES, Message
from motelog.core.records.decode import StoredMessage

_F = TypeVar("_F", bound=Callable[..., Any])

#: The name that OpenTelemetry's instrumentation of RocketMQ's clients uses.
SYSTEM: Final = "rocketmq"


class _MqttProperties(msgspec.Struct):
    """The part of the property ``mqttProperties`` that may hold a device's context."""

    user: list[tuple[str, str]] = []


@contextmanager
def sending(message: Message) -> Iterator[Message]:
    """Yield the message with the context of a span around its send, for any kind of producer.

    ``with sending(message) as traced: await producer.send(traced)``. The span records an error.
    """
    attributes = _attributes("send", message.topic, message.tags, message.keys)
    attributes["messaging.message.body.size"] = len(message.body)
    with _tracer().start_as_current_span(
        f"send {message.topic}", kind=SpanKind.PRODUCER, attributes=attributes
    ):
        context: dict[str, str] = {}
        propagate.inject(context)
        yield Message(
            message.topic,
            message.body,
            tags=message.tags,
            keys=message.keys,
            properties={**message.properties, **context},
            flag=message.flag,
        )


@contextmanager
def handling(messages: StoredMessage | Sequence[StoredMessage]) -> Iterator[None]:
    """Put a span around the handling of one message, or of several at once.

    The span of one message is a child of its sender's span; that of several has links to theirs.
    """
    some = [messages] if isinstance(messages, StoredMessage) else list(messages)
    if not some:
        yield
        return
    first = some[0]
    contexts = [propagate.extract(_carrier(message)) for message in some]
    attributes = _attributes("process", first.topic, None, ())
    attributes["messaging.destination.partition.id"] = str(first.queue_id)
    links: list[Link] = []
    if isinstance(messages, StoredMessage):
        attributes |= _attributes("process", first.topic, first.tags, first.keys)
        attributes["messaging.message.id"] = first.message_id
        attributes["messaging.message.body.size"] = len(first.body)
    else:
        attributes["messaging.batch.message_count"] = len(some)
        senders = (trace.get_current_span(one).get_span_context() for one in contexts)
        links = [Link(one) for one in senders if one.is_valid]
    with _tracer().start_as_current_span(
        f"process {first.topic}",
        context=contexts[0] if isinstance(messages, StoredMessage) else None,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=links,
    ):
        yield


def traced(handle: _F) -> _F:
    """Return ``handle``, a handler for ``PushConsumer.run`` or ``run_batches``, with spans."""
    if inspect.iscoroutinefunction(handle):

        @functools.wraps(handle)
        async def handle_in_span(messages: Any) -> Any:
            with handling(messages):
                return await handle(messages)

        return handle_in_span  # type: ignore[return-value]  # it takes and returns what handle does

    @functools.wraps(handle)
    def call_in_span(messages: Any) -> Any:
        with handling(messages):
            return handle(messages)

    return call_in_span  # type: ignore[return-value]  # likewise


def _tracer() -> trace.Tracer:
    return trace.get_tracer("motelog", __version__)


def _attributes(
    operation: str, topic: str, tag: str | None, keys: Sequence[str]
) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
    }
    if tag:
        found["messaging.rocketmq.message.tag"] = tag
    if keys:
        found["messaging.rocketmq.message.keys"] = list(keys)
    return found


def _carrier(message: StoredMessage) -> dict[str, str]:
    """Return the trace context fields of a message: a producer's, or those of a device."""
    fields = propagate.get_global_textmap().fields
    found = {name: value for name in fields if (value := message.value_of(name)) is not None}
    properties = message.value_of(MQTT_PROPERTIES)
    if found or properties is None:
        return found
    try:
        user = msgspec.json.decode(properties, type=_MqttProperties).user
    except msgspec.MsgspecError:
        return {}  # a property of this name that is not ours
    return {name: value for name, value in user if name in fields}
