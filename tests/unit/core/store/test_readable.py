"""How far the log may be read: no reader sees beyond, and all are woken when there is more."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from motelog.core.clock import ManualClock
from motelog.core.errors import RecordError
from motelog.core.message import KEYS, UNIQ_KEY
from motelog.core.records.decode import decode_messages
from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadStatus
from tests.support.stores import make_store, message, opened, read_bodies

FOREVER_MS = (1 << 63) - 1


def append(store: MessageStore, body: bytes, topic: str = "T", queue_id: int = 0) -> int:
    """Append one message that has its body as keys; return where it ends."""
    text = f"{KEYS}\x01{body.decode()}\x02{UNIQ_KEY}\x01U{body.decode()}\x02".encode()
    return store.append([message(store.queue_tail(topic, queue_id), body, properties=text)])


def found(store: MessageStore, key: str) -> list[bytes]:
    result = store.reader.query("T", key, begin_ms=0, end_ms=FOREVER_MS)
    return [decode_messages(record)[0].body for record in result.records]


def test_without_a_limit_the_log_is_read_to_its_end(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for body in (b"a", b"b"):
            end = append(store, body)
            assert store.readable_offset == store.end_offset == end
        assert read_bodies(store) == {("T", 0): [b"a", b"b"]}
        store.readable._check()


def test_no_read_sees_beyond_the_limit(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        limit = append(store, b"seen")
        store.readable.set_limit(limit)
        clock.advance(1_000)
        late_ms = clock.now_ms()
        end = append(store, b"hidden")
        append(store, b"other", topic="T", queue_id=1)
        reader = store.reader
        assert store.readable_offset == limit < end
        assert reader.max_offset("T", 0) == 1
        assert reader.max_offset("T", 1) == 0
        # By offset, whatever the filter.
        result = reader.read("T", 0, 0, count_max=10)
        assert (result.count, result.next_offset, result.max_offset) == (1, 1, 1)
        assert reader.read("T", 0, 0, count_max=10, tag_codes={0}).max_offset == 1
        at_end = reader.read("T", 0, 1)
        assert (at_end.status, at_end.max_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 1)
        assert reader.read("T", 0, 2).status is ReadStatus.OFFSET_OVERFLOW_BADLY
        assert reader.read("T", 1, 0).status is ReadStatus.NO_MESSAGE_IN_QUEUE
        assert len(reader.units("T", 0, 0, 10)) == 20
        assert reader.units("T", 0, 1, 10) == b""
        # By time.
        assert reader.offset_by_time("T", 0, late_ms) == 1
        assert reader.offset_by_time("T", 1, 0) == 0
        assert reader.store_timestamp("T", 0, 0) > 0
        assert reader.store_timestamp("T", 0, 1) == -1
        # By key, by unique key and by physical offset.
        assert found(store, "seen") == found(store, "Useen") == [b"seen"]
        assert found(store, "hidden") == found(store, "Uhidden") == []
        assert decode_messages(reader.record_at(0))[0].body == b"seen"
        with pytest.raises(RecordError, match="outside the log"):
            reader.record_at(limit)
        store.readable._check()

        store.readable.set_limit(end)
        assert [m.body for m in decode_messages(reader.read("T", 0, 0).records)] == [
            b"seen",
            b"hidden",
        ]
        assert reader.max_offset("T", 1) == 0
        assert reader.offset_by_time("T", 0, late_ms) == 1
        assert reader.store_timestamp("T", 0, 1) == late_ms
        assert found(store, "hidden") == [b"hidden"]
        assert decode_messages(reader.record_at(limit))[0].body == b"hidden"
        with pytest.raises(RecordError):
            reader.record_at(end)


def test_readers_hear_of_what_they_may_read_and_of_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        heard: list[list[bytes]] = []
        growth = store.readable.follow(
            wake=lambda: heard.append(sorted(tail.topic for tail in growth.take()))
        )
        append(store, b"1", topic="A")
        assert heard == [[b"A"]]
        store.readable.set_limit(store.end_offset)
        first = append(store, b"2", topic="A")
        second = append(store, b"3", topic="B")
        last = append(store, b"4", topic="A")
        assert heard == [[b"A"]]
        store.readable.set_limit(first)
        assert b"A" in heard[-1]
        assert store.reader.max_offset("A", 0) == 2
        assert store.reader.max_offset("B", 0) == 0
        store.readable.set_limit(second)
        assert b"B" in heard[-1]
        assert store.reader.max_offset("B", 0) == 1
        heard.clear()
        store.readable.set_limit(last)
        assert heard == [[b"A"]]
        # Nothing is hidden any more, so there is nothing to tell.
        store.readable.set_limit(last + 1_000_000)
        assert heard == [[b"A"]]
        append(store, b"5", topic="B")
        assert heard == [[b"A"], [b"B"]]


def test_a_limit_below_what_was_readable_hides_it_until_it_rises(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first = append(store, b"1", topic="A")
        append(store, b"2", topic="B")
        growth = store.readable.follow()
        store.readable.set_limit(first)
        assert read_bodies(store) == {("A", 0): [b"1"]}
        assert growth.take() == []
        store.readable.set_limit(store.end_offset)
        assert [tail.topic for tail in growth.take()] == [b"B"]
        assert read_bodies(store) == {("A", 0): [b"1"], ("B", 0): [b"2"]}


async def test_a_file_that_nobody_could_read_to_its_end_is_not_cleaned_away(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, cleanup_hours=tuple(range(24)), retention_hours=1) as store:
        limit = 0
        while store.begin_offset == 0 and store.end_offset < 5 * 16_384:
            end = append(store, b"x" * 1_000)
            limit = limit or end
        store._clock._clock.advance(7_200_000)  # type: ignore[attr-defined]
        store._flusher.start_at(store.end_offset)
        store.readable.set_limit(limit)
        assert await store.cleaner.clean() == 0
        store.readable.set_limit(store.end_offset)
        assert await store.cleaner.clean() > 0


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 2)),
            st.tuples(st.just("limit"), st.integers(0, 30)),
        ),
        max_size=30,
    )
)
@example(steps=[("append", 0), ("append", 0), ("append", 1), ("limit", 0), ("limit", 2)])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_is_read_is_what_lies_below_the_limit(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = make_store(tmp_path_factory.mktemp("readable"))
    store.open()
    ends = [0]
    appended: list[tuple[int, bytes]] = []
    known: dict[int, int] = {}

    def look() -> None:
        for tail in growth.take():
            known[tail.queue_id] = store.reader.max_offset("T", tail.queue_id)

    growth = store.readable.follow(wake=look)
    limit = FOREVER_MS
    for number, (step, value) in enumerate(steps):
        if step == "append":
            body = b"%d" % number
            appended.append((value, body))
            ends.append(append(store, body, queue_id=value))
        elif ends[min(value, len(ends) - 1)] >= min(limit, ends[-1]) or limit == FOREVER_MS:
            limit = ends[min(value, len(ends) - 1)]
            store.readable.set_limit(limit)
            if limit < ends[-1]:
                for queue_id in known:
                    known[queue_id] = min(known[queue_id], store.reader.max_offset("T", queue_id))
        expected: dict[tuple[str, int], list[bytes]] = {}
        for (queue_id, body), end in zip(appended, ends[1:], strict=True):
            if end <= limit:
                expected.setdefault(("T", queue_id), []).append(body)
        assert read_bodies(store) == expected
        # Whoever listens knows of all of it.
        assert {("T", q): n for q, n in known.items() if n} == {
            key: len(bodies) for key, bodies in expected.items()
        }
        store.readable._check()
    store.close()


def test_an_append_wakes_who_waits_for_its_queues_once_until_these_are_taken(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        woken: list[int] = []
        waits: dict[object, None] = {(b"T", 1): None, b"A": None}
        growth = store.readable.follow(waits, lambda: woken.append(store.end_offset))
        append(store, b"another queue", topic="T", queue_id=0)
        assert (woken, growth.take()) == ([], [])
        first = append(store, b"a queue", topic="T", queue_id=1)
        append(store, b"the same queue", topic="T", queue_id=1)
        append(store, b"a topic", topic="A", queue_id=3)
        # Woken within the append, when all of it could be read, and not again.
        assert woken == [first]
        assert [(tail.topic, tail.queue_id) for tail in growth.take()] == [(b"T", 1), (b"A", 3)]
        assert growth.take() == []
        last = append(store, b"again", topic="T", queue_id=1)
        assert woken == [first, last]
        waits.clear()
        growth.take()
        append(store, b"nobody waits", topic="T", queue_id=1)
        store.readable.unfollow(growth)
        waits[b"T"] = None
        append(store, b"nobody follows", topic="T", queue_id=1)
        assert (woken, growth.take()) == ([first, last], [])
