"""Plans follow the subscriptions, whatever came before: a state machine against the tree."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from motelog.gateway.deliver import plans as module
from motelog.gateway.sessions import subscriptions
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import NO_LOCAL, PARTICULAR, QOS_MASK
from tests.unit.gateway.deliver.test_plans import Stage, receivers

LEVELS = st.sampled_from(["a", "b", "c"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)
FILTERS = st.builds(
    lambda levels, tail: "/".join(levels + tail),
    st.lists(LEVELS | st.just("+"), min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
)
SESSIONS = st.integers(0, 3)
OPTIONS = st.sampled_from([0, 1, 2, 1 | NO_LOCAL])


class PlansMachine(RuleBasedStateMachine):
    """Every name's plan is what the tree says, whatever was subscribed and asked for before."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.filters: list[set[str]] = [set() for _ in range(4)]

    @rule(topic_filter=FILTERS, number=SESSIONS, options=OPTIONS)
    def add(self, topic_filter: str, number: int, options: int) -> None:
        self.stage.add(topic_filter, number, options)
        self.filters[number].add(topic_filter)

    @rule(number=SESSIONS, data=st.data())
    def remove(self, number: int, data: st.DataObject) -> None:
        if self.filters[number]:
            topic_filter = data.draw(st.sampled_from(sorted(self.filters[number])))
            self.stage.remove(topic_filter, number)
            self.filters[number].remove(topic_filter)

    @rule(number=SESSIONS)
    def reconnect(self, number: int) -> None:
        session = self.stage.sessions[number]
        if session.connection is None:
            self.stage.attach(number)
        else:
            session.detach()
        for topic_filter in self.filters[number]:
            self.stage.plans.replan(topic_filter)

    @rule(names=st.lists(NAMES, max_size=20))
    def ask(self, names: list[str]) -> None:
        for name in names:
            self.check(name)

    @invariant()
    def names_known_have_their_plan(self) -> None:
        for name in list(self.stage.plans.by_name):
            self.check(name.decode())
        self.stage.plans._check()

    def check(self, name: str) -> None:
        plan = self.stage.plan(name)
        matches = self.stage.tree.match(name)
        assert (plan.matches if plan is not None else {}) == matches
        assert receivers(plan) == {
            session.connection.number: -1 if options & PARTICULAR else options & QOS_MASK
            for session, options in matches.items()
            if isinstance(session, Session) and session.connection is not None
        }


class SmallPlansMachine(PlansMachine):
    """The same where the tables overflow, and filters come into tries."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(module, "NAMES_MAX", 6)
        self.patch.setattr(module, "SHARED_MAX", 2)
        self.patch.setattr(subscriptions, "SHAPES_MAX", 1)

    def teardown(self) -> None:
        self.patch.undo()


TestPlans = PlansMachine.TestCase
TestPlans.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSmallPlans = SmallPlansMachine.TestCase
TestSmallPlans.settings = TestPlans.settings
