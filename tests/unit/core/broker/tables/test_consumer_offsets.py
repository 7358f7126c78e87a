"""Consume offsets in memory and as RocketMQ's file."""

from __future__ import annotations

import msgspec
import pytest

from motelog.core.broker.tables.consumer_offsets import ConsumerOffsets
from motelog.core.clock import ManualClock
from motelog.core.errors import BrokerError
from motelog.core.remoting.frames import loads


def make_offsets(entries_max: int = 100, *, has_lmq: bool = False) -> ConsumerOffsets:
    return ConsumerOffsets(entries_max=entries_max, clock=ManualClock(5), has_lmq=has_lmq)


def test_commit_and_query() -> None:
    offsets = make_offsets()
    assert offsets.query("G", "T", 0) is None
    offsets.commit("G", "T", 0, 5)
    offsets.commit("G", "T", 3, 7)
    offsets.commit("H", "T", 0, 1)
    assert [offsets.query("G", "T", queue) for queue in (0, 1, 3)] == [5, None, 7]
    # Going back is how a group reads again.
    offsets.commit("G", "T", 0, 2)
    assert offsets.query("G", "T", 0) == 2
    assert offsets.groups_of("T") == ["G", "H"]
    assert [(t, dict(q)) for t, q in offsets.topics_of("G")] == [("T", {0: 2, 3: 7})]
    offsets._check()


def test_only_changes_make_it_dirty() -> None:
    offsets = make_offsets()
    offsets.commit("G", "T", 0, 5)
    assert offsets.is_dirty
    offsets.is_dirty = False
    offsets.commit("G", "T", 0, 5)
    assert not offsets.is_dirty


def test_a_full_table_refuses_new_entries_only() -> None:
    offsets = make_offsets(entries_max=2)
    offsets.commit("G", "T", 0, 1)
    offsets.commit("G", "T", 1, 1)
    with pytest.raises(BrokerError):
        offsets.commit("G", "T", 2, 1)
    offsets.commit("G", "T", 0, 2)
    offsets.forget_group("G")
    offsets.commit("H", "T", 0, 1)
    offsets._check()
    assert offsets.query("G", "T", 0) is None


def test_saved_offsets_come_back() -> None:
    offsets = make_offsets()
    offsets.commit("G", "T", 0, 2**40)
    saved = loads(msgspec.json.encode(offsets.snapshot()))
    version = {"timestamp": 5, "counter": 1, "stateVersion": 0}
    assert saved == {"dataVersion": version, "offsetTable": {"T@G": {"0": 2**40}}}
    other = make_offsets()
    other.load(saved)
    assert other.query("G", "T", 0) == 2**40
    other._check()


def test_offsets_beyond_the_end_of_their_queue_are_lowered_to_it() -> None:
    offsets = make_offsets()
    for queue_id, offset in enumerate((4, 5, 6, 7)):
        offsets.commit("G", "T", queue_id, offset)
    offsets.is_dirty = False
    assert offsets.lower_to(lambda topic, queue_id: 7) == 0
    assert not offsets.is_dirty
    assert offsets.lower_to(lambda topic, queue_id: 5 if topic == "T" else 0) == 2
    assert [offsets.query("G", "T", queue_id) for queue_id in range(4)] == [4, 5, 5, 5]
    assert offsets.is_dirty
    offsets._check()


def test_a_file_of_rocketmq_with_bare_queue_ids_is_read() -> None:
    offsets = make_offsets()
    offsets.load(loads(b'{"offsetTable":{"%RETRY%G@G":{0:0},"T@G":{0:12,1:7}}}'))
    assert offsets.query("G", "T", 1) == 7
    offsets._check()


@pytest.mark.parametrize("table", [{"T@G": {"x": 1}}, {"T@G": [1]}, 7])
def test_wrong_saved_offsets_are_an_error(table: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        make_offsets().load({"offsetTable": table})


def test_each_change_that_is_shown_has_another_version() -> None:
    offsets = make_offsets()
    assert offsets.snapshot()["dataVersion"].counter == 0
    offsets.commit("G", "T", 0, 1)
    offsets.commit("G", "T", 0, 2)
    assert [offsets.snapshot()["dataVersion"].counter for _ in range(2)] == [1, 1]
    offsets.commit("G", "T", 0, 2)
    assert offsets.snapshot()["dataVersion"].counter == 1
    offsets.forget_group("G")
    saved = loads(msgspec.json.encode(offsets.snapshot()))
    other = make_offsets()
    other.load(saved)
    other.commit("G", "T", 0, 1)
    assert other.snapshot()["dataVersion"].counter == 3


def test_light_groups_have_a_table_of_their_own() -> None:
    offsets = make_offsets(has_lmq=True)
    offsets.commit("%LMQ%C", "%LMQ%a%b", 0, 7)
    offsets.commit("%LMQ%C", "T", 3, 8)
    offsets.commit("G", "%LMQ%a%b", 0, 9)
    saved = loads(msgspec.json.encode(offsets.snapshot()))
    assert saved["lmqOffsetTable"] == {"%LMQ%a%b@%LMQ%C": 7}
    assert saved["offsetTable"] == {"T@%LMQ%C": {"3": 8}, "%LMQ%a%b@G": {"0": 9}}
    for has_lmq in (True, False):
        other = make_offsets(has_lmq=has_lmq)
        other.load(saved)
        assert other.query("%LMQ%C", "%LMQ%a%b", 0) == 7
        assert other.query("%LMQ%C", "T", 3) == 8
        other._check()
    assert "lmqOffsetTable" not in other.snapshot()


@pytest.mark.parametrize("topic", ["%LMQ%a", "%LMQ%a@b", "%LMQ%a@b@c"])
@pytest.mark.parametrize("group", ["%LMQ%C", "%LMQ%me@host", "G"])
def test_names_of_light_queues_and_groups_may_have_the_separator(topic: str, group: str) -> None:
    offsets = make_offsets(has_lmq=True)
    offsets.commit(group, topic, 0, 7)
    assert offsets.groups_of(topic) == [group]
    assert [(t, dict(q)) for t, q in offsets.topics_of(group)] == [(topic, {0: 7})]
    assert offsets.lower_to(lambda name, _: 7 if name == topic else 0) == 0
    offsets.forget_topic(topic)
    assert offsets.query(group, topic, 0) is None
    offsets._check()


def test_the_file_that_was_saved_last_is_loaded() -> None:
    older, newer = (
        {"dataVersion": {"timestamp": time}, "offsetTable": {"T@G": {"0": time}}} for time in (3, 4)
    )
    for first, second in ((older, newer), (newer, older)):
        offsets = make_offsets()
        offsets.load(first)
        offsets.load_newer(second)
        assert offsets.query("G", "T", 0) == 4
        # It belongs into the file that is in use.
        assert offsets.is_dirty == (first is older)
    # RocketMQ 4 has no versions: what is there is better than nothing.
    offsets = make_offsets()
    offsets.load_newer({"offsetTable": {"T@G": {"0": 1}}})
    assert offsets.query("G", "T", 0) == 1
