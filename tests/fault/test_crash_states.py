"""Crash states in the default suite: a bounded number, and what the simulation has to find.

The full run is a command of its own: python -m tests.fault.crash_states --states 20000.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from motelog.core.records.append import QueueTail, encode_batch
from motelog.core.records.layout import ScanStop
from motelog.core.records.scan import scan
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.message_store import MessageStore
from tests.fault.crash_states import CrashStateError, FollowerScenario, Scenario, explore
from tests.support.simulated_disk import SECTOR_BYTES, SimulatedDisk
from tests.support.stores import STORE_HOST, message

STATES = 1_000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Keep recovery's reports of damage, thousands of them, out of the captured log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def check_states(seed: int, count: int, scenario: type[Scenario] = Scenario) -> int:
    distinct = 0
    for _, distinct in explore(seed, count, scenario):  # noqa: B007  # the last one counts
        pass
    return distinct


def test_crash_states_recover_to_what_was_promised() -> None:
    assert check_states(20_000, STATES) == STATES


def test_crash_states_of_a_follower_recover_to_what_was_promised() -> None:
    assert check_states(30_000, STATES, FollowerScenario) == STATES


def forget_syncs_of_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MessageStore, "_sync_log", lambda self, begin, end: None)


def forget_syncs_of_directories(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedDisk, "sync_directory", lambda self, path: None)


def forget_syncs_of_units(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint then speaks of units that are not on disk, and nobody looks for them."""
    patch.setattr(SimulatedDisk, "sync_file", lambda self, path: None)
    patch.setattr(
        "motelog.core.store.start.queue_recovery.QueueRecovery.compare_with",
        lambda self, table: None,
    )


def forget_the_durable_offset(patch: pytest.MonkeyPatch) -> None:
    """A hole that a power cut left is then taken for damage, and what is behind it is kept."""
    patch.setattr("motelog.core.store.state.durable_file.DurableFile.read", lambda self: None)


def forget_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "motelog.core.store.log.write_buffer.BufferedFile.commit", lambda self, begin, end: None
    )


@pytest.mark.parametrize(
    "forget",
    [
        forget_commits,
        forget_syncs_of_the_log,
        forget_syncs_of_directories,
        forget_syncs_of_units,
        forget_the_durable_offset,
    ],
)
def test_a_store_that_forgets_something_is_found_out(
    monkeypatch: pytest.MonkeyPatch, forget: Any
) -> None:
    forget(monkeypatch)
    with pytest.raises(CrashStateError):
        check_states(20_000, 2 * STATES)


@pytest.mark.parametrize("body_bytes", [0, 300, 400, 409, 415, 416, 417])
def test_a_record_torn_in_its_properties_is_none(body_bytes: int) -> None:
    """No CRC covers properties: zeros up to the end of a sector reveal a tear."""
    properties = b"k\x01" + b"v" * 1_500 + b"\x02"
    log = bytearray(8_192)
    tail = QueueTail(b"T", 0, 0)
    messages = [message(tail, b"b" * body_bytes, properties=properties), message(tail, b"next")]
    encode_batch(log, 0, len(log), 0, messages, 0, 1, STORE_HOST, [], None)
    records, _, stop = scan(log, 0, len(log), 0, 10)
    assert (len(records), stop) == (2, ScanStop.EMPTY)
    record_end = records[1][3]
    for sector in range(0, record_end, SECTOR_BYTES):
        for keep in (0, 1, 100, 511):
            torn = bytearray(log)
            torn[sector + keep : sector + SECTOR_BYTES] = bytes(SECTOR_BYTES - keep)
            if torn[:record_end] != log[:record_end]:
                found, at, _ = scan(torn, 0, len(torn), 0, 10)
                assert (found, at) == ([], 0)


def test_a_property_text_with_a_zero_byte_is_refused() -> None:
    tail = QueueTail(b"T", 0, 0)
    with pytest.raises(ValueError, match="zero byte"):
        encode_batch(
            bytearray(512), 0, 512, 0, [message(tail, properties=b"k\x01\0v\x02")], 0, 1,
            STORE_HOST, [], None,
        )  # fmt: skip


def test_the_way_to_a_new_folder_is_synced(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(OsStorage, "sync_directory", lambda self, path: synced.append(path))
    OsStorage().make_directory(f"{tmp_path}/a/b/store", durable=True)
    assert synced == [f"{tmp_path}/a/b", f"{tmp_path}/a", f"{tmp_path}"]
