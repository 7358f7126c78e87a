"""One step costs the same however much its client, or all clients, have open: bytecodes counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from motelog.gateway.mqtt.acks import encode_ack
from motelog.gateway.mqtt.packet_types import PacketType
from motelog.gateway.subscribe import storing
from tests.conformance.peers import Gateway, Peer, publish_packet
from tests.support.counted import executed

PUBACK, PUBREC, PUBREL = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL
PUBCOMP = PacketType.PUBCOMP

#: What is open; then twice as much.
OPEN = 300
#: By how much two counts of the same work may differ, as tables grow now and then.
TOLERANCE = 1.1

Step = Callable[[], object]


def roomy(**config: Any) -> Gateway:
    return Gateway(receive_maximum=10_000, inflight_max=10_000, **config)


def with_in_flight(count: int, qos: int) -> tuple[Gateway, Peer, list[int]]:
    """Return a client with so many messages in flight to it."""
    gateway = roomy()
    reader = gateway.connect_persistent(5, "reader")
    reader.subscribe("t", qos=qos)
    writer = gateway.connect(5)
    writer.send(b"".join(publish_packet(5, "t", b"x", qos, packet_id=n + 1) for n in range(count)))
    gateway.deliver()
    return gateway, reader, [message.packet_id for message in reader.messages()]


def pubrec(count: int) -> Step:
    _, reader, packet_ids = with_in_flight(count, 2)
    return lambda: reader.answer(PUBREC, packet_ids[count // 2])


def pubcomp(count: int) -> Step:
    _, reader, packet_ids = with_in_flight(count, 2)
    reader.answer(PUBREC, packet_ids[count // 2])
    return lambda: reader.answer(PUBCOMP, packet_ids[count // 2])


def puback(count: int) -> Step:
    _, reader, packet_ids = with_in_flight(count, 1)
    return lambda: reader.answer(PUBACK, packet_ids[count // 2])


def puback_beside_groups(count: int, *, waiting: int = 1) -> Step:
    """Return the step after which the first of ``waiting`` groups gets its second message."""
    gateway = roomy(subscriptions_max=10_000)
    reader = gateway.connect(5, "reader", receive_maximum=1)
    for n in range(count):
        reader.subscribe(f"$share/g/t/{n}", qos=1)
    writer = gateway.connect(5)
    writer.put("t/7", b"x", 1)
    for n in range(7, 7 + waiting):
        writer.put(f"t/{n % count}", b"y", 1)
    gateway.deliver()
    (message,) = reader.messages()

    def acknowledge() -> None:
        reader.answer(PUBACK, message.packet_id)
        (waited,) = reader.messages()
        assert waited.payload == b"y"

    return acknowledge


def puback_beside_groups_that_wait(count: int) -> Step:
    return puback_beside_groups(count, waiting=count)


def one_more_message(count: int) -> Step:
    gateway, _, _ = with_in_flight(count, 2)
    writer = gateway.connect(5)
    return lambda: writer.put("t", b"x", 1)


def with_unreleased(count: int) -> Peer:
    gateway = roomy()
    writer = gateway.connect_persistent(5, "writer")
    writer.send(b"".join(publish_packet(5, "t", b"x", 2, packet_id=n + 1) for n in range(count)))
    return writer


def publish_beside_unreleased(count: int) -> Step:
    writer = with_unreleased(count)
    return lambda: writer.put("t", b"x", 2, packet_id=count + 1)


def pubrel_beside_unreleased(count: int) -> Step:
    writer = with_unreleased(count)
    return lambda: writer.answer(PUBREL, count // 2)


def message_to_many_identifiers(count: int) -> Step:
    gateway = roomy(subscriptions_max=10_000)
    reader = gateway.connect(5)
    for n in range(count):
        reader.subscribe(f"t/{n}", identifier=n + 1)
    writer = gateway.connect(5)
    return lambda: writer.put("t/7", b"x", 1)


def with_filters(count: int) -> Peer:
    """Return a client that has subscribed so often, to one filter at a time."""
    gateway = roomy(subscriptions_max=10_000)
    reader = gateway.connect_persistent(5, "reader")
    for n in range(count):
        reader.subscribe(f"t/{n}")
    gateway.pass_s(1)
    return reader


def subscribe_beside_filters(count: int) -> Step:
    reader = with_filters(count)
    return lambda: reader.subscribe("one/more")


def unsubscribe_beside_filters(count: int) -> Step:
    reader = with_filters(count)
    return lambda: reader.unsubscribe("t/7")


def message_to_many_filters(count: int) -> Step:
    gateway = roomy(subscriptions_max=10_000)
    reader = gateway.connect_persistent(5, "reader")
    for n in range(count):
        reader.subscribe(f"t/{n}")
    writer = gateway.connect(5)
    return lambda: writer.put("t/7", b"x", 1)


def retained_by_one_client(count: int) -> Step:
    gateway = roomy()
    writer = gateway.connect(5)
    for n in range(count):
        writer.put(f"t/{n}", b"x", 1, retain=True)
    return lambda: writer.put("t/7", b"y", 1, retain=True)


def subscribe_beside_retained(count: int) -> Step:
    gateway = roomy()
    writer = gateway.connect(5)
    for n in range(count):
        writer.put(f"t/{n}", b"x", 1, retain=True)
    while gateway.stage.delivery.refresh_retained(1000):
        pass
    reader = gateway.connect(5)
    return lambda: reader.subscribe("t/7")


def connect_beside_sessions(count: int) -> Step:
    gateway = roomy()
    for n in range(count // 4):  # a gateway in memory does not use a number again
        gateway.connect_persistent(5, f"away-{n}").drop()
    gateway.pass_s(1)
    return lambda: gateway.connect_persistent(5, "away-7")


def tick_beside_expiries(count: int) -> Step:
    gateway = roomy()
    for n in range(count // 4):
        gateway.connect_persistent(5, f"away-{n}").drop()
    gateway.connect_persistent(5, "first", session_expiry_interval_s=2).drop()
    gateway.pass_s(1)

    def expire() -> None:
        before = gateway.stage.journal.count()
        gateway.pass_s(2)
        assert gateway.stage.journal.count() == before - 1

    return expire


@pytest.mark.parametrize(
    "prepare",
    [
        pubrec,
        pubcomp,
        puback,
        puback_beside_groups,
        puback_beside_groups_that_wait,
        one_more_message,
        publish_beside_unreleased,
        pubrel_beside_unreleased,
        message_to_many_identifiers,
        message_to_many_filters,
        subscribe_beside_filters,
        unsubscribe_beside_filters,
        retained_by_one_client,
        subscribe_beside_retained,
        connect_beside_sessions,
        tick_beside_expiries,
    ],
)
def test_a_step_costs_the_same_beside_twice_as_much(prepare: Callable[[int], Step]) -> None:
    once, twice = executed(prepare(OPEN)), executed(prepare(2 * OPEN))
    assert twice <= once * TOLERANCE


def test_a_whole_record_costs_little_for_each_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "WHOLE_FILTERS_MAX", 10 * OPEN)
    once, twice = (executed(subscribe_beside_filters(count)) for count in (OPEN, 2 * OPEN))
    assert twice - once <= 70 * OPEN


def drained(count: int, qos: int) -> int:
    """Return what it costs a client to acknowledge a backlog, and to read that back."""
    gateway, reader, packet_ids = with_in_flight(count, qos)
    gateway.pass_s(1)

    def drain() -> None:
        for packet_id in packet_ids:
            for kind in (PUBREC, PUBCOMP) if qos == 2 else (PUBACK,):
                reader.answer(kind, packet_id)
        while gateway.stage.journal.refresh(50):
            pass

    return executed(drain)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_backlog_costs_the_same_a_message_whatever_its_length(qos: int) -> None:
    assert drained(2 * OPEN, qos) <= 2 * drained(OPEN, qos) * TOLERANCE


def found(count: int) -> int:
    """Return what it costs to find a session that has so many changes which are not read back."""
    gateway, reader, packet_ids = with_in_flight(count, 2)
    reader.send(b"".join(encode_ack(PUBREC, 5, packet_id) for packet_id in packet_ids))
    for _ in range(count):
        gateway.stage.tick()
    return executed(lambda: gateway.stage.journal.load("reader"))


def test_a_change_costs_the_same_to_find_whatever_else_is_not_read_back() -> None:
    assert found(2 * OPEN) <= 2 * found(OPEN) * TOLERANCE
