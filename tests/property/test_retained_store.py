"""Retained messages against a dictionary: published, removed, rewritten, read back, reloaded."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.core.clock import ManualClock
from motelog.core.message import MQTT_TOPIC, encode_host, encode_properties
from motelog.gateway.mqtt.topics import matches
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.view import IN_MEMORY, View
from tests.support.fake_log import FakeLog

HOST = encode_host("127.0.0.1", 1883)

levels = st.sampled_from(["a", "b", "$s", "a!", "å", "[*?]"])
names = st.lists(levels, min_size=1, max_size=3).map("/".join)
filters = st.one_of(
    names,
    st.tuples(
        st.lists(st.one_of(levels, st.just("+")), max_size=3), st.sampled_from(["#", "+"])
    ).map(lambda parts: "/".join([*parts[0], parts[1]])),
)
steps = st.one_of(
    st.tuples(st.just("publish"), names, st.sampled_from([b"", b"on", b"off", b"on"])),
    st.tuples(st.just("scan"), filters, st.integers(1, 3)),
    st.tuples(st.sampled_from(["read", "rewrite", "reload"])),
)


def opened(log: FakeLog, clock: ManualClock) -> RetainedStore:
    view = View(IN_MEMORY)
    view.open()
    store = RetainedStore(log, view, clock)
    read_all(store)
    return store


def read_all(store: RetainedStore) -> None:
    while store.refresh(3):
        pass


def scan(store: RetainedStore, topic_filter: str, limit: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    before, after = store.now(), ""
    while True:
        part = store.scan(topic_filter, after, limit, before)
        found |= {message.name: message.payload for message in part.messages}
        if part.after is None:
            return found
        after = part.after


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(steps, max_size=40), last=filters)
def test_what_is_found_is_the_last_message_of_each_name(
    steps: Sequence[tuple[object, ...]], last: str
) -> None:
    log, clock = FakeLog(), ManualClock(1_000_000)
    log.create_topic("t", 1)
    store = opened(log, clock)
    model: dict[str, bytes] = {}

    def check(topic_filter: str, limit: int) -> None:
        expected = {name: model[name] for name in sorted(model) if matches(topic_filter, name)}
        found = scan(store, topic_filter, limit)
        assert found == expected
        assert list(found) == list(expected)

    for step in [*steps, ("scan", last, 2), ("reload",), ("scan", last, 2)]:
        clock.advance(1000)
        log.now_ms = clock.now_ms()
        match step:
            case "publish", str(name), bytes(payload):
                text = encode_properties({MQTT_TOPIC: name})
                queue = log.queue_of("t", "")
                published = (queue, payload, text, 0, clock.now_ms(), HOST, 0, 0, 0, 0)
                written = store.write(name, published)
                written.ticket = log.append([published, written.record])
                model.pop(name, None)
                if payload:
                    model[name] = payload
            case "scan", str(topic_filter), int(limit):
                check(topic_filter, limit)
            case ("read",):
                store.refresh(3)
            case ("rewrite",):
                store.rewrite_older(clock.now_ms() - 3000, 2)
            case ("reload",):
                store = opened(log, clock)
    assert store.count == len(model)
