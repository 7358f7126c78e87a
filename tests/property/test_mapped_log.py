"""A client that reads the broker's files gets what a pull would have sent it, byte for byte."""

from __future__ import annotations

import shutil
import tempfile
import zlib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from motelog.bridge.mapped_log import MappedLog
from motelog.core.message import SYS_FLAG_COMPRESSED, MessageQueue, tags_code
from motelog.core.reader_key import write_key
from motelog.core.records.append import AppendMessage
from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadResult
from tests.support.stores import abandon, make_store, message

TOPICS = ("A", "B-long_name%x")
messages = st.tuples(
    st.sampled_from(TOPICS),
    st.integers(0, 2),
    st.integers(0, 1500),
    st.integers(0, 3),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.lists(messages, min_size=1, max_size=12), min_size=1, max_size=12),
    removed=st.integers(0, 3),
    restarts=st.booleans(),
    limits=st.tuples(st.integers(1, 40), st.integers(1, 6000)),
    tags=st.none() | st.frozensets(st.integers(0, 3).map(lambda tag: tags_code(str(tag)))),
)
def test_what_units_name_is_what_a_pull_answers(
    batches: list[list[tuple[str, int, int, int, bool]]],
    removed: int,
    restarts: bool,
    limits: tuple[int, int],
    tags: frozenset[int] | None,
) -> None:
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
    store = make_store(folder, commitlog_file_bytes=4096)
    try:
        store.open()
        for number, batch in enumerate(batches):
            store.append([_message(store, number, *one) for one in batch])
        if restarts:
            abandon(store)
            store = make_store(folder, commitlog_file_bytes=4096)
            store.open()
        for file in store._log.queue.files[:-1][:removed]:
            store._log.queue.drop_first(file)
            Path(file.path).unlink()
        found = {"broker": (str(folder), write_key(str(folder)))}
        for topic in TOPICS:
            for queue_id in range(3):
                _compare(store, MessageQueue(topic, "broker", queue_id), found, limits, tags)
    finally:
        abandon(store)
        shutil.rmtree(folder)


def _message(
    store: MessageStore, number: int, topic: str, queue_id: int, size: int, tag: int, small: bool
) -> AppendMessage:
    body = b"%d" % number * size
    return message(
        store.queue_tail(topic, queue_id),
        zlib.compress(body) if small else body[:size],
        properties=b"TAGS\x01%d\x02" % tag,
        tags_code=tags_code(str(tag)),
        sys_flag=SYS_FLAG_COMPRESSED if small else 0,
    )


def _compare(
    store: MessageStore,
    queue: MessageQueue,
    found: dict[str, tuple[str, str]],
    limits: tuple[int, int],
    tags: frozenset[int] | None,
) -> None:
    """Read the queue to its end in both ways."""
    log = MappedLog(queue, found)
    at, end = 0, store.reader.max_offset(queue.topic, queue.queue_id)
    while at < end:
        sent, named = (
            store.reader.read(
                queue.topic,
                queue.queue_id,
                at,
                count_max=limits[0],
                bytes_max=limits[1],
                tag_codes=tags,
                as_units=as_units,
            )
            for as_units in (False, True)
        )
        assert replace(named, records=b"") == replace(sent, records=b"")
        assert b"".join(_pieces(log, named, at, store)) == sent.records
        assert sent.next_offset > at
        at = sent.next_offset
    log.close()


def _pieces(log: MappedLog, named: ReadResult, at: int, store: MessageStore) -> list[bytes]:
    verified_from = store.reader.verified_from
    return list(log.pieces(named.records, at, named.next_offset, verified_from=verified_from))
