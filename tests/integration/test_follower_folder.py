"""A follower that received only the end of its leader's log: its folder in every hand.

Its first CommitLog file begins above 0, and so do its queues.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.pull import PullConsumer
from motelog.core.clock import ManualClock
from motelog.core.errors import ReceivedOffsetError
from motelog.core.records.layout import UNIT
from motelog.core.remoting.frames import dumps
from motelog.core.store.message_store import MessageStore
from motelog.core.store.tools import backup as tool
from motelog.core.store.tools.inspection import StoreFolder, plan_repair, verify
from tests.support.cli import motelog_here
from tests.support.followers import answers, feed, fill, log_bytes, log_files, make_follower
from tests.support.java import COMMITLOG_FILE_BYTES, VERSION_4, VERSION_5, ApacheServer
from tests.support.stores import abandon, message, opened

FILE_BYTES = 16_384


def expected_from(leader: MessageStore, begin: int) -> dict[str, Any]:
    """Return the leader's answers as far as their records begin at ``begin`` or later."""
    found = answers(leader)
    kept: dict[str, Any] = {"units": {}, "bodies": {}, "keys": {}}
    for key, (low, high, units) in found["units"].items():
        removed = sum(at < begin for at, _, _ in UNIT.iter_unpack(units))
        if low + removed < high:
            kept["units"][key] = low + removed, high, units[removed * UNIT.size :]
            kept["bodies"][key] = found["bodies"][key][removed:]
    for topic, records in found["keys"].items():
        places = [int.from_bytes(record[28:36], "big") for record in records]
        kept["keys"][topic] = [r for r, at in zip(records, places, strict=True) if at >= begin]
    return kept


@pytest.fixture
def late(tmp_path: Path) -> tuple[Path, dict[str, Any], bytes]:
    """A closed folder that got its leader's last two files; what it must answer; bytes to come."""
    with opened(tmp_path / "leader", lmq=True) as leader:
        fill(leader, random.Random(3), 150)
        begin = leader._log.queue.files[-2].begin
        assert begin >= 4 * FILE_BYTES
        _, data = log_bytes(leader, begin)
        expected = expected_from(leader, begin)
        assert min(low for low, _, _ in expected["units"].values()) > 0
        fill(leader, random.Random(4), 40)
        _, whole = log_bytes(leader, begin)
    with opened(tmp_path / "late", is_follower=True) as store:
        feed(store, begin, data)
        assert (store.begin_offset, store.end_offset) == (begin, begin + len(data))
        assert answers(store) == expected
        store.unit_flusher._check()
    return tmp_path / "late", expected, whole[len(data) :]


def test_its_answers_are_the_leader_s_after_a_stop(late: tuple[Path, Any, bytes]) -> None:
    folder, expected, _ = late
    with opened(folder, is_follower=True) as store:
        assert answers(store) == expected
        assert store.reader.read("a", 0, 0).next_offset == expected["units"]["a", 0][0]
    leader_files = log_files(folder.with_name("leader"))
    assert set(log_files(folder)) < set(leader_files)


def test_it_goes_on_after_a_kill(late: tuple[Path, Any, bytes]) -> None:
    folder, expected, more = late
    store = make_follower(folder)
    store.open()
    assert answers(store) == expected
    feed(store, store.end_offset, more)
    after = answers(store)
    abandon(store)
    with opened(folder, is_follower=True) as store:
        assert answers(store) == after
        begin = store.begin_offset
    with opened(folder.with_name("leader"), lmq=True) as leader:
        assert after == expected_from(leader, begin)


@pytest.mark.parametrize("was_clean", [True, False])
def test_lost_queues_and_keys_are_rebuilt(late: tuple[Path, Any, bytes], was_clean: bool) -> None:
    folder, expected, _ = late
    shutil.rmtree(folder / "consumequeue")
    shutil.rmtree(folder / "index")
    if not was_clean:
        (folder / "abort").write_bytes(b"0")
        for name in ("queues.json", "index.json", "checkpoint"):
            (folder / name).unlink()
            (folder / f"{name}.bak").unlink(missing_ok=True)
    with opened(folder, is_follower=True) as store:
        assert answers(store) == expected


def test_a_queue_s_first_offsets_are_not_given_again_after_promotion(
    late: tuple[Path, Any, bytes],
) -> None:
    folder, expected, _ = late
    with opened(folder) as store:
        placed: list[tuple[int, int]] = []
        for key, (_, high, _) in expected["units"].items():
            if not key[0].startswith("%LMQ%"):
                store.append([message(store.queue_tail(*key))], placed)
                assert placed[-1][1] == high


async def test_cleaning_removes_its_oldest_file(late: tuple[Path, Any, bytes]) -> None:
    folder, _, more = late
    clock = ManualClock(1_700_000_000_000)
    store = make_follower(folder, clock=clock, retention_hours=1, cleanup_hours=list(range(24)))
    store.open()
    feed(store, store.end_offset, more)
    begin = store.begin_offset
    high = {key: store.reader.max_offset(*key) for key in store.queues()}
    clock.advance(4_000_000)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        while store.begin_offset == begin:
            store.cleaner.want()
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    with opened(folder, is_follower=True, clock=clock) as again:
        assert again.begin_offset > begin
        assert {key: again.reader.max_offset(*key) for key in again.queues()} == high
        assert again.end_offset == again.received_offset


def test_tools_find_nothing_wrong_with_it(late: tuple[Path, Any, bytes]) -> None:
    folder, _, _ = late
    inspected = StoreFolder(str(folder))
    try:
        result = verify(inspected)
        assert result.faults == []
        assert result.begin_offset == inspected.begin_offset > 0
        report, _ = plan_repair(inspected)
        assert (report.damage, report.repaired_queues, report.rebuilt_queues) == ([], [], [])
    finally:
        inspected.close()
    shown = motelog_here("store", "inspect", str(folder))
    assert f"from physical offset {result.begin_offset}" in shown.stdout
    assert motelog_here("store", "stats", str(folder)).returncode == 0


def test_a_backup_of_it_seeds_another(late: tuple[Path, Any, bytes]) -> None:
    folder, expected, more = late
    tool.create(str(folder), str(folder.with_name("copy")))
    assert tool.verify(str(folder.with_name("copy"))) == []
    tool.restore(str(folder.with_name("copy")), str(folder.with_name("restored")))
    with opened(folder.with_name("restored"), is_follower=True) as store:
        assert answers(store) == expected
        feed(store, store.received_offset, more)
        after = answers(store)
    with opened(folder, is_follower=True) as store:
        feed(store, store.received_offset, more)
        assert answers(store) == after


@pytest.mark.parametrize("offset", [1, FILE_BYTES - 512, -FILE_BYTES, 3 * FILE_BYTES + 8])
def test_a_log_begins_only_where_a_file_begins(tmp_path: Path, offset: int) -> None:
    with opened(tmp_path, is_follower=True) as store, pytest.raises(ReceivedOffsetError):
        store.append_raw(offset, b"x")


def test_a_log_with_a_record_begins_nowhere_else(late: tuple[Path, Any, bytes]) -> None:
    folder, _, more = late
    with opened(folder, is_follower=True) as store, pytest.raises(ReceivedOffsetError):
        store.append_raw(store._log.file_end, more)


def test_a_log_that_began_and_got_no_record_may_begin_again(tmp_path: Path) -> None:
    with opened(tmp_path, is_follower=True) as store:
        store.append_raw(5 * FILE_BYTES, b"\0\0")
        assert store.received_offset == 5 * FILE_BYTES + 2
    with opened(tmp_path, is_follower=True) as store:
        assert store.begin_offset == store.received_offset == 5 * FILE_BYTES
        store.append_raw(9 * FILE_BYTES, b"\0\0")
        names = [path.name for path in (tmp_path / "commitlog").iterdir()]
        assert names == [f"{9 * FILE_BYTES:020d}"]


@pytest.mark.java
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "version", [VERSION_5, pytest.param(VERSION_4, marks=pytest.mark.java_all)]
)
async def test_apache_s_broker_reads_it(tmp_path: Path, version: str) -> None:
    folder = tmp_path / "late"
    config = {
        "commitlog_file_bytes": COMMITLOG_FILE_BYTES,
        "consume_queue_file_units": 300_000,
        "index_slots": 5_000_000,
        "index_entries": 20_000_000,
    }
    with opened(tmp_path / "leader", **config) as leader:
        tails = [leader.queue_tail("T", queue_id) for queue_id in range(4)]
        while leader.end_offset < COMMITLOG_FILE_BYTES + 1_000_000:
            begin = leader.end_offset
            leader.append([message(tails[n % 4], b"%d" % (begin + n) * 30) for n in range(64)])
        _, data = log_bytes(leader, COMMITLOG_FILE_BYTES)
        high = {tail.queue_id: tail.next_offset for tail in tails}
    with opened(folder, is_follower=True, **config) as store:
        feed(store, COMMITLOG_FILE_BYTES, data, 32_768)
        low = {queue_id: store.reader.min_offset("T", queue_id) for queue_id in high}
        expected = answers(store)["bodies"]
    assert min(low.values()) > 0
    (folder / "config").mkdir()
    known = {
        "topicName": "T",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    (folder / "config/topics.json").write_bytes(
        dumps({"topicConfigTable": {"T": known}, "dataVersion": {"counter": 1}})
    )
    async with (
        ApacheServer(version, folder) as apache,
        PullConsumer(namesrv=apache.namesrv_address, group="G") as consumer,
    ):
        queues = await consumer.queues("T", wait_s=30)
        begins, ends = await consumer.begin_offsets(queues), await consumer.end_offsets(queues)
        assert {queue.queue_id: begins[queue] for queue in queues} == low
        assert {queue.queue_id: ends[queue] for queue in queues} == high
        for queue in queues:
            offset, bodies = begins[queue], []
            while offset < ends[queue]:
                result = await consumer.pull(queue, offset)
                offset = result.next_offset
                bodies += [found.body for found in result.messages()]
            assert bodies == expected["T", queue.queue_id]
