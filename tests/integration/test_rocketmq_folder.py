"""A store folder that Apache RocketMQ 4.9.8 left behind when it was killed opens here."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from motelog.core.records.decode import decode_messages
from motelog.core.topic_names import SCHEDULE_TOPIC
from tests.support.stores import opened, read_queue, vector_archive

RECORDS = 558


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(vector_archive()) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def queue_files(folder: Path) -> dict[str, bytes]:
    root = folder / "consumequeue"
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_every_message_reads_back_through_its_queue(folder: Path) -> None:
    before = queue_files(folder)
    with opened(folder, consume_queue_file_units=300_000) as store:
        total = 0
        for key in store.queues():
            messages = read_queue(store, *key)
            assert [(m.topic, m.queue_id) for m in messages] == [key] * len(messages)
            assert [m.queue_offset for m in messages] == list(range(len(messages)))
            total += len(messages)
        assert total == RECORDS
    assert queue_files(folder) == before


def test_consume_queues_made_from_its_log_alone_equal_its_own(folder: Path) -> None:
    before = queue_files(folder)
    shutil.rmtree(folder / "consumequeue")
    with opened(folder, consume_queue_file_units=300_000) as store:
        assert any(topic == SCHEDULE_TOPIC for topic, _ in store.queues())
    after = queue_files(folder)
    for name, data in before.items():
        # RocketMQ makes the file of a queue that never got a message.
        assert after.get(name, bytes(len(data))) == data, name


def test_the_size_of_its_commitlog_files_is_kept(folder: Path) -> None:
    with opened(folder, commitlog_file_bytes=8192, consume_queue_file_units=300_000) as store:
        assert decode_messages(store.reader.record_at(0))[0].physical_offset == 0
    sizes = {path.stat().st_size for path in (folder / "commitlog").iterdir()}
    assert sizes == {16 * 1024 * 1024}
