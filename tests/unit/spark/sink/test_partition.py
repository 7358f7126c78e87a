"""Attempts at one partition: each row is in the log once, whatever became of those before."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from motelog.core.message import UNIQ_KEY, decode_properties
from motelog.spark.errors import LedgerGapError, OutageError, ReplacedError
from motelog.spark.sink.ledger import Ledger, Part
from motelog.spark.sink.partition import PartitionWriter, Written, content_digits
from motelog.spark.sink.rows import OutgoingRow
from tests.support.sink_log import Killed, SinkLog
from tests.support.spark_broker import ManualTime

LEASE_S = 9.0
PART = Part("query-1", 4, 0)


def rows(numbers: Iterable[int], topic: str = "alerts") -> Iterator[OutgoingRow]:
    for n in numbers:
        yield OutgoingRow(topic, b"row %d" % n, f"dev{n % 5}", (), {"n": str(n)}, f"dev{n % 5}")


def writer(log: SinkLog, part: Part = PART, *, may_be_gone: bool = False) -> PartitionWriter:
    """Return the writer of a process that has just started."""
    ledger = Ledger(log, log, topic="LEDGER", query=part.query)
    return PartitionWriter(
        part,
        log,
        log,
        ledger,
        lease_s=LEASE_S,
        outage_seconds_max=30,
        may_be_gone=may_be_gone,
        clock_s=log.time.clock_s,
        sleep=log.time.sleep,
    )


def bodies(log: SinkLog, topic: str = "alerts") -> Counter[bytes]:
    return Counter(record.body for record in log.rows(topic))


def ids(log: SinkLog, topic: str = "alerts") -> list[str]:
    return [decode_properties(record.properties)[UNIQ_KEY] for record in log.rows(topic)]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motelog.spark.sink.partition.CHUNK_ROWS", 3)


@pytest.fixture
def log() -> SinkLog:
    return SinkLog(ManualTime())


def test_rows_are_stored_once_with_ids_of_their_own(log: SinkLog) -> None:
    assert writer(log).write(rows(range(20))) == Written(sent=20)
    assert bodies(log) == Counter(b"row %d" % n for n in range(20))
    assert len(set(ids(log))) == 20
    assert {len(one) for one in ids(log)} == {32}
    # A device has its rows in one queue, in order.
    for queue, stored in log.stored.items():
        if queue.topic == "alerts":
            numbers = [int(record.body[4:]) for record in stored.records]
            for device in range(5):
                of_device = [n for n in numbers if n % 5 == device]
                assert of_device in ([], [n for n in range(20) if n % 5 == device])


def test_a_batch_that_comes_again_adds_nothing(log: SinkLog) -> None:
    writer(log).write(rows(range(20)))
    began_s = log.time.now_s
    assert writer(log).write(rows(range(20))) == Written(found=20)
    assert log.time.now_s == began_s, "an attempt that is over is not waited for"
    assert bodies(log) == Counter(b"row %d" % n for n in range(20))


def test_without_rows_nothing_is_asked_or_stored(log: SinkLog) -> None:
    assert writer(log).write(()) == Written()
    assert not log.stored


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("end", ["killed", "killed after"])
@pytest.mark.parametrize("queue_count", [1, 2])
def test_killed_at_any_send_the_next_attempt_completes_the_rows(end: str, queue_count: int) -> None:
    for sends_before in itertools.count():
        log = SinkLog(ManualTime(), brokers=("a", "b"), queue_count=queue_count)
        log.ends.extend(["ok"] * sends_before + [end])
        try:
            writer(log).write(rows(range(20)))
        except Killed:
            # After a shuffle rows come in another order.
            written = writer(log).write(rows(reversed(range(20))))
            assert written.sent + written.found == 20
            assert bodies(log) == Counter(b"row %d" % n for n in range(20)), sends_before
            assert len(set(ids(log))) == 20
        else:
            break
    assert sends_before > 8


@pytest.mark.usefixtures("small_chunks")
def test_killed_again_and_again_it_is_still_once(log: SinkLog) -> None:
    for sends_before in (2, 3, 4, 5):
        log.ends.clear()
        log.ends.extend(["ok"] * sends_before + ["killed after"])
        with pytest.raises(Killed):
            writer(log).write(rows(range(60)))
    log.ends.clear()
    writer(log).write(rows(range(60)))
    assert bodies(log) == Counter(b"row %d" % n for n in range(60))


def test_rows_that_say_the_same_are_as_many_as_they_are(log: SinkLog) -> None:
    same = [OutgoingRow("alerts", b"same", "d", (), {}, "d") for _ in range(7)]
    log.ends.extend(["ok", "killed after"])
    with pytest.raises(Killed):
        writer(log).write(one._replace(properties={}) for one in same[:4])
    assert writer(log).write(one._replace(properties={}) for one in same) == Written(3, 4)
    assert bodies(log)[b"same"] == 7
    assert len(set(ids(log))) == 7


@pytest.mark.usefixtures("small_chunks")
def test_a_send_without_an_answer_is_looked_for_before_it_is_repeated(log: SinkLog) -> None:
    log.ends.extend(["ok", "lost", "unheard", "ok", "unheard", "lost", "lost"])
    assert writer(log).write(rows(range(20))) == Written(sent=20)
    assert bodies(log) == Counter(b"row %d" % n for n in range(20))


def test_another_partition_batch_or_query_is_another_matter(log: SinkLog) -> None:
    parts = [PART, PART._replace(partition=1), PART._replace(batch=5), Part("query-2", 4, 0)]
    for part in parts:
        assert writer(log, part).write(rows(range(5))) == Written(sent=5)
    assert set(bodies(log).values()) == {4}


def test_an_attempt_waits_for_the_lease_of_one_that_was_killed(log: SinkLog) -> None:
    log.ends.extend(["ok", "killed"])
    with pytest.raises(Killed):
        writer(log).write(rows(range(5)))
    log.time.sleep(4)
    began_s = log.time.now_s
    writer(log).write(rows(range(5)))
    assert log.time.now_s - began_s == pytest.approx(LEASE_S - 4, abs=0.1)


def test_an_attempt_that_paused_too_long_stops_when_another_has_begun(log: SinkLog) -> None:
    def paused() -> Iterator[OutgoingRow]:
        yield from rows(range(3000))
        log.time.sleep(100)
        writer(log).write(rows(range(6000)))
        yield from rows(range(3000, 6000))

    with pytest.raises(ReplacedError, match="paused for 100 s"):
        writer(log).write(paused())
    assert bodies(log) == Counter(b"row %d" % n for n in range(6000))


def test_an_attempt_that_paused_goes_on_when_no_other_has_begun(log: SinkLog) -> None:
    def paused() -> Iterator[OutgoingRow]:
        yield from rows(range(3000))
        log.time.sleep(100)
        yield from rows(range(3000, 6000))

    assert writer(log).write(paused()) == Written(sent=6000)
    assert set(bodies(log).values()) == {1}


def test_an_outage_that_does_not_end_is_an_error_and_the_next_attempt_completes(
    log: SinkLog,
) -> None:
    log.ends.extend(["ok"] + ["unheard"] + ["lost"] * 100)
    with pytest.raises(OutageError, match="no answer for 30 s"):
        writer(log).write(rows(range(20)))
    log.ends.clear()
    writer(log).write(rows(range(20)))
    assert bodies(log) == Counter(b"row %d" % n for n in range(20))


def test_rows_that_do_not_come_again_are_told(
    log: SinkLog, caplog: pytest.LogCaptureFixture
) -> None:
    writer(log).write(rows(range(5)))
    assert writer(log).write(rows(range(2, 7))) == Written(sent=2, found=3, strange=2)
    assert "rows of an earlier attempt are missing" in caplog.text


def test_what_retention_took_is_an_error_unless_loss_is_allowed(log: SinkLog) -> None:
    log.ends.extend(["ok", "ok", "ok", "killed"])
    with pytest.raises(Killed):
        writer(log).write([*rows(range(5)), *rows(range(5), "other")])
    for queue, stored in log.stored.items():
        if queue.topic == "alerts":
            stored.expire(len(stored.records))
    with pytest.raises(LedgerGapError, match="failOnDataLoss"):
        writer(log).write(rows(range(5)))
    assert writer(log, may_be_gone=True).write(rows(range(5))).sent == 5


def test_a_later_process_reads_the_ledger_from_its_batch_on(log: SinkLog) -> None:
    for batch in range(30):
        writer(log, PART._replace(batch=batch)).write(rows(range(2)))
    (position,) = log.offsets.values()
    assert position == 2 * 29, "the records of batch 29 begin here"


def test_queues_that_come_later_are_not_used_by_a_batch_that_has_begun(log: SinkLog) -> None:
    log.ends.extend(["ok", "ok", "killed"])
    with pytest.raises(Killed):
        writer(log).write(rows(range(20)))
    log.queue_ids += [("a", n) for n in range(2, 8)]
    writer(log).write(rows(range(20)))
    assert bodies(log) == Counter(b"row %d" % n for n in range(20))
    assert {queue.queue_id for queue, q in log.stored.items() if queue.topic == "alerts"
            and q.records} == {0, 1}  # fmt: skip


def test_a_content_has_the_digits_that_it_always_had() -> None:
    # An attempt of a newer release must find the rows of one that was killed before it.
    properties = {"qosLevel": "1", "n": "\u00e9"}
    row = OutgoingRow("alerts", b"\0body", "dev1", ("a", "b"), properties, "dev1")
    assert content_digits(row) == "4C080A723D78"
    assert content_digits(OutgoingRow("alerts", b"", None, (), {}, "")) == "8B7F68D533EE"
