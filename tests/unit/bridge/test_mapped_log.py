"""Reading a broker's own files: what units name, and nothing that is not theirs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from motelog.bridge.errors import UnreadableLogError
from motelog.bridge.mapped_log import FoundLogs, MappedLog
from motelog.core.message import MessageQueue
from motelog.core.reader_key import write_key
from motelog.core.store.message_store import MessageStore
from tests.support.stores import message, opened, unit

QUEUE = MessageQueue("T", "broker-a", 0)


def fill(store: MessageStore, count: int = 300) -> None:
    """Append so that the queue's records lie in several files, another's between them."""
    for number in range(count):
        tails = (store.queue_tail("T", 0), store.queue_tail("T", 1))
        store.append([message(tail, b"%d" % number * 40) for tail in tails])


def found(folder: Path) -> FoundLogs:
    return {"broker-a": (str(folder), write_key(str(folder)))}


def units_of(store: MessageStore, begin: int, count: int) -> bytes:
    read = store.reader.read("T", 0, begin, count_max=count, bytes_max=1 << 30, as_units=True)
    return read.records


def gathered(log: MappedLog, units: bytes, begin: int = 0, end: int = 300) -> bytes:
    return b"".join(log.pieces(units, begin, end, verified_from=0))


def test_records_are_those_that_the_broker_would_send(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
        assert len(os.listdir(tmp_path / "commitlog")) > 3
        log = MappedLog(QUEUE, found(tmp_path))
        for begin, count in ((0, 300), (299, 9), (17, 250), (3, 1)):
            sent = store.reader.read("T", 0, begin, count_max=count, bytes_max=1 << 30)
            assert gathered(log, units_of(store, begin, count)) == sent.records
        assert gathered(log, b"") == b""


@pytest.mark.parametrize("verified_from", [0, 1 << 62])
def test_a_changed_body_is_seen_where_a_start_has_left_that_to_readers(
    tmp_path: Path, verified_from: int
) -> None:
    with opened(tmp_path) as store:
        fill(store, 3)
        path = tmp_path / "commitlog" / ("0" * 20)
        at = path.read_bytes().index(b"1" * 40)
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(b"?")
        units = units_of(store, 0, 3)
        pieces = MappedLog(QUEUE, found(tmp_path)).pieces(units, 0, 3, verified_from=verified_from)
        if verified_from:
            with pytest.raises(UnreadableLogError, match="CRC"):
                list(pieces)
        else:
            assert b"?111" in b"".join(pieces)


def test_a_file_that_is_removed_stays_while_it_is_mapped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
        log, late = MappedLog(QUEUE, found(tmp_path)), MappedLog(QUEUE, found(tmp_path))
        units = units_of(store, 0, 9)
        records = gathered(log, units)
        (tmp_path / "commitlog" / ("0" * 20)).unlink()
        assert gathered(log, units) == records
        with pytest.raises(UnreadableLogError):
            gathered(late, units)
        assert (late.key, log.key is None) == (None, False)


def test_a_file_that_is_cut_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
        log = MappedLog(QUEUE, found(tmp_path))
        units = units_of(store, 0, 90)
        assert gathered(log, units)
        os.truncate(tmp_path / "commitlog" / ("0" * 20), 0)
        with pytest.raises(UnreadableLogError):
            gathered(log, units)


def test_what_is_not_the_queue_s_own_is_not_handed_out(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 9)
        units = units_of(store, 0, 9)
        other = store.reader.read("T", 1, 0, as_units=True).records
        backwards = units[20:40] + units[:20]
        behind = unit(store.end_offset, 200, 0)
        wrong = (other, backwards, behind, unit(-1, 99, 0), unit(1 << 62, 99, 0), b"\0" * 20)
        for named in wrong:
            log = MappedLog(QUEUE, found(tmp_path))
            with pytest.raises(UnreadableLogError):
                gathered(log, named)
            assert log.key is None
        for begin, end in ((1, 9), (0, 8)):
            with pytest.raises(UnreadableLogError):
                gathered(MappedLog(QUEUE, found(tmp_path)), units, begin, end)


def test_the_key_is_learnt_once_and_again_after_a_restart(tmp_path: Path) -> None:
    known: FoundLogs = {}
    key = write_key(str(tmp_path))
    log = MappedLog(QUEUE, known)
    assert log.key == ""
    log.offered(str(tmp_path), "")
    log.offered(str(tmp_path), "")  # of a pull that was under way
    assert (log.key, MappedLog(QUEUE, known).key) == (key, key)
    assert MappedLog(MessageQueue("T", "broker-b", 0), known).key == ""
    restarted = write_key(str(tmp_path))
    log.offered(str(tmp_path), key)
    assert (log.key, MappedLog(QUEUE, known).key) == (restarted, restarted)


def test_a_key_that_the_broker_refuses_is_that_of_another_folder(tmp_path: Path) -> None:
    log = MappedLog(QUEUE, found(tmp_path))
    log.offered(str(tmp_path), log.key)
    assert log.key is None
    log.offered(str(tmp_path), "")
    assert log.key is None


@pytest.mark.parametrize("folder", ["", ".", "/nowhere", "/proc/self/fd/\0"])
def test_a_folder_without_a_key_is_not_asked_about_again(folder: str) -> None:
    known: FoundLogs = {}
    log = MappedLog(QUEUE, known)
    log.offered(folder, "")
    assert (log.key, known) == (None, {})
