"""Light queues: messages of a topic that are in further queues, kept over starts of any kind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from motelog.core.clock import ManualClock
from motelog.core.records.decode import decode_messages
from motelog.core.records.dispatch import MULTI_OFFSET, Dispatched, dispatched
from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadStatus
from tests.support.stores import make_store, message, opened

A, B, ODD = "%LMQ%a", "%LMQ%b", "%LMQ%ü.x %+"


def put(store: MessageStore, body: bytes, *names: str, topic: str = "T", tags_code: int = 0) -> Any:
    """Append a message that asks for light queues; without names an ordinary one."""
    value = ",".join(names).encode()
    properties = b"INNER_MULTI_DISPATCH\x01" + value + b"\x02" if names else b"K\x01v\x02"
    one = message(store.queue_tail(topic, 1), body, properties=properties, tags_code=tags_code)
    placed: list[tuple[int, int]] = []
    store.append([message(store.queue_tail("other", 0)), dispatched(one)], placed)
    return placed


def bodies(store: MessageStore, name: str, offset: int = 0) -> list[bytes]:
    result = store.reader.read(name, 0, offset, count_max=1000, bytes_max=1 << 20)
    return [found.body for found in decode_messages(result.records)]


def fill(store: MessageStore) -> None:
    put(store, b"0", A)
    put(store, b"1")
    put(store, b"2", A, B)
    put(store, b"3", B, ODD)


def check(store: MessageStore) -> None:
    assert bodies(store, A) == [b"0", b"2"]
    assert bodies(store, B) == [b"2", b"3"]
    assert bodies(store, ODD) == [b"3"]
    assert store.reader.read("T", 1, 0, count_max=10).count == 4


def test_messages_are_read_from_each_queue_and_say_where_they_are(tmp_path: Path) -> None:
    grown: list[bytes] = []

    def hear() -> None:
        grown.extend(tail.topic for tail in growth.take())

    with opened(tmp_path, lmq=True) as store:
        growth = store.readable.follow(wake=hear)
        fill(store)
        check(store)
        # Once for each append that had something for a queue.
        assert grown.count(A.encode()) == 2
        found = decode_messages(store.reader.read(B, 0, 0, count_max=10).records)
        assert [one.properties[MULTI_OFFSET] for one in found] == ["1,0", "1,0"]
        # The record's own place stays its own.
        assert [(one.topic, one.queue_id, one.queue_offset) for one in found] == [
            ("T", 1, 2),
            ("T", 1, 3),
        ]
        assert store.reader.max_offset(A, 0) == 2


def test_a_batch_gives_offsets_out_in_its_order(tmp_path: Path) -> None:
    with opened(tmp_path, lmq=True) as store:
        tail = store.queue_tail("T", 0)
        text = f"INNER_MULTI_DISPATCH\x01{A},{B}\x02".encode()
        batch = [dispatched(message(tail, b"%d" % i, properties=text)) for i in range(300)]
        placed: list[tuple[int, int]] = [(7, 7)]
        # Over several log files, and behind what the caller has in its list.
        store.append(batch, placed)
        assert len(placed) == 301
        assert bodies(store, A) == bodies(store, B) == [b"%d" % i for i in range(300)]


def test_nothing_is_dispatched_unless_it_is_wanted_and_allowed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, b"0", A)
        assert store.reader.read(A, 0, 0).status is ReadStatus.NO_QUEUE
    with opened(tmp_path, lmq=True) as store:
        for topic in ("%RETRY%G", "%DLQ%G", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x"):
            put(store, b"0", A, topic=topic)
        # Lists that no producer of ours may send.
        for names in (("T",), (A, A), ("%LMQ%a/b",)):
            put(store, b"0", *names)
        assert [topic for topic, _ in store.queues() if topic.startswith("%LMQ%")] == []


def test_only_messages_that_ask_are_marked(tmp_path: Path) -> None:
    with opened(tmp_path, lmq=True) as store:
        tail = store.queue_tail("T", 0)
        plain = message(tail, properties=b"K\x01v\x02")
        assert dispatched(plain) is plain
        text = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
        assert type(dispatched(message(tail, properties=text))) is Dispatched
        prepared = message(tail, properties=text, sys_flag=4)
        assert dispatched(prepared) is prepared


@pytest.mark.parametrize("lost", ["nothing", "light", "all", "checkpoint"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_light_queues_survive_any_stop(tmp_path: Path, lost: str, is_clean: bool) -> None:
    directory = tmp_path / "store"
    store = make_store(directory, lmq=True)
    store.open()
    fill(store)
    if is_clean:
        store.close()
    else:
        killed = tmp_path / "killed"
        shutil.copytree(directory, killed)
        directory = killed
        (killed / "lock").unlink()
        store.close()
    if lost == "light":
        for name in os.listdir(directory / "consumequeue"):
            if name.startswith("%LMQ%"):
                shutil.rmtree(directory / "consumequeue" / name)
    elif lost == "all":
        shutil.rmtree(directory / "consumequeue")
    elif lost == "checkpoint":
        for file in ("checkpoint", "queues.json"):
            (directory / file).unlink(missing_ok=True)
    for number in range(2):
        with opened(directory, lmq=True) as again:
            report_of = again.reader
            check_further(again, number)
            assert report_of.max_offset(A, 0) == 2 + number + 1


def check_further(store: MessageStore, number: int) -> None:
    found = bodies(store, A)
    assert found == [b"0", b"2", *(b"more%d" % i for i in range(number))]
    assert bodies(store, B) == [b"2", b"3"]
    assert bodies(store, ODD) == [b"3"]
    put(store, b"more%d" % number, A)


def test_a_start_finds_no_damage_and_repairs_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, lmq=True) as store:
        fill(store)
    store = make_store(tmp_path, lmq=True)
    report = store.open()
    assert (report.damage, report.repaired_queues, report.rebuilt_queues) == ([], [], [])
    check(store)
    store.close()
    # Whoever turns it off keeps what there is.
    with opened(tmp_path) as store:
        check(store)


async def test_cleaning_the_log_moves_the_begin_of_light_queues(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    hours = tuple(range(24))
    with opened(tmp_path, clock=clock, lmq=True, retention_hours=1, cleanup_hours=hours) as store:
        for number in range(120):
            put(store, b"%d" % number + b"x" * 400, A)
        assert store.reader.min_offset(A, 0) == 0
        clock.advance(3 * 3_600_000)
        put(store, b"last", A)
        store.unit_flusher.write_now()
        assert await store.cleaner.clean() > 1
        begin = store.reader.min_offset(A, 0)
        assert 0 < begin < 120
        assert bodies(store, A, begin)[0].startswith(b"%dx" % begin)
    shutil.rmtree(tmp_path / "consumequeue")
    with opened(tmp_path, clock=clock, lmq=True) as store:
        assert store.reader.min_offset(A, 0) == begin
        assert bodies(store, A, begin)[-1] == b"last"
        assert store.reader.max_offset(A, 0) == 121
