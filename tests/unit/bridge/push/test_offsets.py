"""Where a push consumer keeps its offsets: Java's file, and how brokers write those of a reset."""

from __future__ import annotations

from pathlib import Path

import pytest

from motelog.bridge.errors import OffsetStoreError
from motelog.bridge.push.offsets import FileOffsets, StoredOffsets, decode_offset_table
from motelog.core.errors import RemotingDecodeError
from motelog.core.message import MessageQueue

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)
JAVA = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"b",
\t\t\t"queueId":0,
\t\t\t"topic":"T"
\t\t}:42
\t}
}"""


def test_file_is_java_s_and_keeps_what_it_has(tmp_path: Path) -> None:
    store = FileOffsets(tmp_path)
    assert store.load("G", Q0) is None
    (tmp_path / "G").mkdir()
    (tmp_path / "G" / "offsets.json").write_bytes(JAVA)
    assert store.load("G", Q0) == 42
    store.save("G", {Q1: 7})
    written = (tmp_path / "G" / "offsets.json").read_bytes()
    assert b'{"brokerName":"b","queueId":0,"topic":"T"}:42' in written
    assert (store.load("G", Q0), store.load("G", Q1), store.load("H", Q1)) == (42, 7, None)


def test_damaged_file_is_replaced_by_its_copy_or_said(tmp_path: Path) -> None:
    store = FileOffsets(tmp_path)
    store.save("G", {Q0: 1})
    store.save("G", {Q0: 2})
    (tmp_path / "G" / "offsets.json").write_bytes(b"{")
    assert store.load("G", Q0) == 1
    (tmp_path / "G" / "offsets.json.bak").write_bytes(b"[]")
    with pytest.raises(OffsetStoreError, match="damaged"):
        store.load("G", Q0)


async def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = StoredOffsets(FileOffsets(tmp_path / "file"), group="G")
    told = rf"{tmp_path}/file/G/offsets\.json: Not a directory: give FileOffsets a folder"
    with pytest.raises(OffsetStoreError, match=f"^the offsets cannot be read: {told}"):
        await store.load(Q0)
    with pytest.raises(OffsetStoreError, match=f"^the offsets cannot be written: {told}"):
        await store.save({Q0: 1}, lambda queue, offset: None, ())


def test_a_folder_that_cannot_be_made_is_named() -> None:
    store = FileOffsets("/proc/offsets")
    assert store.load("G", Q0) is None
    with pytest.raises(OffsetStoreError, match="cannot be written: /proc/offsets: No such file"):
        store.save("G", {Q0: 1})


async def test_whatever_a_store_raises_is_one_error() -> None:
    class Broken:
        def load(self, group: str, queue: MessageQueue) -> int | None:
            raise ZeroDivisionError

        def save(self, group: str, offsets: object) -> None:
            raise KeyError(group)

    store = StoredOffsets(Broken(), group="G")
    with pytest.raises(OffsetStoreError, match="ZeroDivisionError"):
        await store.load(Q0)
    with pytest.raises(OffsetStoreError, match="KeyError"):
        await store.save({Q0: 1}, lambda queue, offset: None, ())


@pytest.mark.parametrize(
    "body",
    [
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:5}}',
        b'{"offsetTable":[{"brokerName":"b","queueId":1,"topic":"T","offset":5}]}',
    ],
)
def test_both_forms_of_a_reset(body: bytes) -> None:
    assert decode_offset_table(body) == {Q1: 5}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"offsetTable":{"x":1}}', b'{"offsetTable":[1]}'])
def test_what_is_no_reset(body: bytes) -> None:
    with pytest.raises(RemotingDecodeError):
        decode_offset_table(body)
