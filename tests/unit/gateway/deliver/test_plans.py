"""Plans follow the subscriptions, and a change costs only the plans that it touches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.gateway.deliver import plans as module
from motelog.gateway.deliver.plans import Plan, Plans
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import SubscriptionTree
from tests.support.memory_output import MemoryOutput


class Stage:
    def __init__(self) -> None:
        self.output = MemoryOutput()
        self.tree: SubscriptionTree[Receiver] = SubscriptionTree()
        self.metrics = GatewayMetrics()
        self.plans = Plans(self.tree, self.metrics)
        self.sessions = [Session(f"c{number}") for number in range(4)]
        for number in range(4):
            self.attach(number)

    def attach(self, number: int) -> None:
        connection = Connection(self.output, number, version=4)
        self.sessions[number].attach(connection, inflight_max=10)

    def add(self, topic_filter: str, number: int = 0, options: int = 1) -> None:
        self.tree.add(topic_filter, self.sessions[number], options)

    def remove(self, topic_filter: str, number: int = 0) -> None:
        self.tree.remove(topic_filter, self.sessions[number])

    def plan(self, name: str) -> Plan | None:
        """Return the plan of a name as the live path finds it."""
        plans = self.plans
        key = name.encode()
        plan = plans.by_name[key] if key in plans.by_name else plans.make(key)
        if plan is not None and plan.version < plans.version:
            plans.refresh(plan)
        return plan


def receivers(plan: Plan | None) -> dict[int, int]:
    """Return by connection what the groups of a plan say; -1 is one served by itself."""
    if plan is None:
        return {}
    found = {number: 0 for *_, numbers in plan.direct for number in numbers}
    for _, _, qos, _, numbers in plan.windowed:
        found |= dict.fromkeys(numbers, qos)
    particular = {s.connection.number for s in plan.particular if s.connection is not None}
    assert not particular & found.keys()
    return found | dict.fromkeys(particular, -1)


def test_names_under_the_same_filters_share_their_plan() -> None:
    stage = Stage()
    stage.add("t/#")
    stage.add("t/+/x", 1)
    plans = {id(stage.plan(f"t/{number}/x")) for number in range(50)}
    others = {id(stage.plan(f"t/{number}/y")) for number in range(50)}
    assert (len(plans), len(others)) == (1, 1)
    assert plans != others


@pytest.mark.parametrize(
    ("topic_filter", "kept"),
    [("t/7/x", 49), ("t/7/#", 49), ("t/7/+", 49), ("u/7/#", 50), ("other", 50)],
)
def test_an_exact_or_narrow_filter_leaves_the_plans_of_others(topic_filter: str, kept: int) -> None:
    stage = Stage()
    stage.add("t/#")
    for number in range(50):
        stage.plan(f"t/{number}/x")
    for change in (stage.add, stage.remove):
        change(topic_filter, 1)
        assert len(stage.plans.by_name) >= kept - 2  # another name's hash may be the same
        for number in range(50):
            stage.plan(f"t/{number}/x")


def test_one_more_subscriber_of_a_wide_filter_leaves_all_plans() -> None:
    stage = Stage()
    stage.add("t/#")
    before = [stage.plan(f"t/{number}/x") for number in range(50)]
    stage.add("t/#", 1)
    assert [stage.plan(f"t/{number}/x") for number in range(50)] == before
    assert receivers(before[0]) == {0: 1, 1: 1}
    stage.remove("t/#", 1)
    assert receivers(stage.plan("t/0/x")) == {0: 1}


@given(count=st.integers(1, 300))
@settings(max_examples=5, deadline=None)
def test_names_are_bounded(count: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "NAMES_MAX", 50)
        stage = Stage()
        stage.add("t/#")
        for number in range(count):
            stage.plan(f"t/{number}/x")
            stage.plans._check()
        assert len(stage.plans.by_name) <= 50
