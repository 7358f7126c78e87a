"""Settings of consumer groups."""

from __future__ import annotations

import msgspec
import pytest

from motelog.core.broker.tables.subscription_groups import SubscriptionGroup, SubscriptionGroups
from motelog.core.clock import Clock, ManualClock
from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import ResponseCode


def make_groups(
    *, auto_create: bool = True, groups_max: int = 10, clock: Clock | None = None
) -> SubscriptionGroups:
    return SubscriptionGroups(
        auto_create=auto_create, groups_max=groups_max, clock=clock or ManualClock()
    )


def test_a_group_is_created_at_first_use() -> None:
    clock = ManualClock()
    clock.advance(5)
    groups = make_groups(clock=clock)
    group = groups.find("G")
    assert (group.retry_max_times, group.retry_queue_nums) == (16, 1)
    made_ms = clock.now_ms()
    clock.advance(1)
    assert groups.find("G") is group
    assert (groups.version.counter, groups.is_dirty) == (1, True)
    assert groups.version.timestamp == made_ms


def test_without_auto_creation_an_unknown_group_is_refused() -> None:
    groups = make_groups(auto_create=False)
    with pytest.raises(BrokerError) as refused:
        groups.find("G")
    assert refused.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 249])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(BrokerError):
        make_groups().find(name)


def test_the_number_of_groups_is_bounded() -> None:
    groups = make_groups(groups_max=1)
    groups.find("G")
    with pytest.raises(BrokerError):
        groups.find("H")
    groups.delete("G")
    groups.delete("G")
    groups.find("H")
    assert len(groups) == 1


def test_a_topic_is_closed_to_a_group_and_opened() -> None:
    groups = make_groups()
    groups.put(SubscriptionGroup(group_name="G"))
    version = groups.version
    groups.set_readable("G", "T", True)
    assert groups.version == version
    groups.set_readable("G", "T", False)
    assert groups.version != version
    assert [groups.may_read(*pair) for pair in (("G", "T"), ("G", "U"), ("H", "T"))] == [
        False, True, True,
    ]  # fmt: skip
    other = make_groups()
    other.load(msgspec.json.decode(msgspec.json.encode(groups.snapshot())))
    assert groups.snapshot()["forbiddenTable"] == {"G": {"T": 4}}
    assert not other.may_read("G", "T")
    other.set_readable("G", "T", True)
    assert other.may_read("G", "T")
    assert other.snapshot()["forbiddenTable"] == {}
    groups.delete("G")
    assert groups.may_read("G", "T")


def test_other_bits_of_rocketmqs_table_are_kept() -> None:
    groups = make_groups()
    groups.load({"forbiddenTable": {"G": {"T": 2}}})
    assert groups.may_read("G", "T")
    groups.set_readable("G", "T", False)
    assert groups.snapshot()["forbiddenTable"] == {"G": {"T": 6}}
    groups.set_readable("G", "T", True)
    assert groups.snapshot()["forbiddenTable"] == {"G": {"T": 2}}


def test_there_is_a_most_of_closed_topics() -> None:
    groups = make_groups(groups_max=2)
    for topic in ("T", "U"):
        groups.set_readable("G", topic, False)
    with pytest.raises(BrokerError, match="closed to groups, the maximum"):
        groups.set_readable("G", "V", False)
    groups.set_readable("G", "T", True)
    groups.set_readable("G", "V", False)


def test_saved_groups_come_back_in_rocketmqs_shape() -> None:
    groups = make_groups()
    groups.put(SubscriptionGroup(group_name="G", retry_max_times=3, consume_enable=False))
    saved = msgspec.json.decode(msgspec.json.encode(groups.snapshot()))
    assert saved["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 3
    other = make_groups()
    other.load(saved)
    assert other.get("G") == groups.get("G")
    assert other.version == groups.version
