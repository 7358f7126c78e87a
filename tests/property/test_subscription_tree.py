"""The subscription tree against a list of subscriptions and ``matches``, after any operations."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from motelog.gateway.mqtt.topics import matches
from motelog.gateway.sessions import subscriptions
from motelog.gateway.sessions.subscriptions import SOME_NO_LOCAL, SubscriptionTree

LEVELS = st.sampled_from(["a", "b", "", "$S"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).map(lambda name: name or "/")
FILTERS = st.builds(
    lambda levels, tail: "/".join(levels + tail) or "/",
    st.lists(LEVELS | st.just("+"), max_size=4),
    st.sampled_from([[], ["#"]]),
)
SUBSCRIBERS = st.integers(0, 4)
OPTIONS = st.sampled_from([0, 1, 2, 0x04, 0x05, 0x09, 0x21])


class TreeMachine(RuleBasedStateMachine):
    SHAPES_MAX = 16

    def __init__(self) -> None:
        super().__init__()
        subscriptions.SHAPES_MAX = self.SHAPES_MAX  # type: ignore[misc]  # a constant otherwise
        self.tree: SubscriptionTree[int] = SubscriptionTree()
        self.model: dict[tuple[str, int], int] = {}

    @rule(topic_filter=FILTERS, subscriber=SUBSCRIBERS, options=OPTIONS)
    def add(self, topic_filter: str, subscriber: int, options: int) -> None:
        is_new = (topic_filter, subscriber) not in self.model
        assert self.tree.add(topic_filter, subscriber, options) == is_new
        self.model[topic_filter, subscriber] = options

    @rule(topic_filter=FILTERS, subscriber=SUBSCRIBERS)
    def remove(self, topic_filter: str, subscriber: int) -> None:
        was_there = self.model.pop((topic_filter, subscriber), None) is not None
        assert self.tree.remove(topic_filter, subscriber) == was_there

    @rule(subscriber=SUBSCRIBERS)
    def remove_all(self, subscriber: int) -> None:
        filters = [topic_filter for topic_filter, other in self.model if other == subscriber]
        for topic_filter in filters:
            assert self.tree.remove(topic_filter, subscriber)
            del self.model[topic_filter, subscriber]

    @rule(topic_filter=FILTERS, subscriber=SUBSCRIBERS)
    def options(self, topic_filter: str, subscriber: int) -> None:
        expected = self.model.get((topic_filter, subscriber))
        assert self.tree.options(topic_filter, subscriber) == expected

    @rule(name=NAMES)
    def match(self, name: str) -> None:
        assert self.tree.match(name) == brute_force(self.model, name)

    @rule(name=NAMES, subscriber=SUBSCRIBERS)
    def own(self, name: str, subscriber: int) -> None:
        assert self.tree.own(name, subscriber) == {
            topic_filter: options
            for (topic_filter, other), options in self.model.items()
            if other == subscriber and matches(topic_filter, name) and not options & 4
        }

    def teardown(self) -> None:
        subscriptions.SHAPES_MAX = TreeMachine.SHAPES_MAX  # type: ignore[misc]

    @invariant()
    def is_consistent(self) -> None:
        self.tree._check()
        for (topic_filter, subscriber), options in self.model.items():
            assert self.tree.options(topic_filter, subscriber) == options
        assert len(self.tree) == len(self.model)
        for (topic_filter, subscriber), options in self.model.items():
            assert self.tree.options(topic_filter, subscriber) == options


class FewShapesMachine(TreeMachine):
    """Filters come into tables and tries, and from these into tables."""

    SHAPES_MAX = 2


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTreeOfFewShapes = FewShapesMachine.TestCase
TestTreeOfFewShapes.settings = TestTree.settings


@settings(max_examples=200)
@given(
    filters=st.dictionaries(st.tuples(FILTERS, SUBSCRIBERS), OPTIONS, max_size=30),
    names=st.lists(NAMES, max_size=10),
)
def test_match_answers_like_trying_each_filter(
    filters: dict[tuple[str, int], int], names: list[str]
) -> None:
    tree: SubscriptionTree[int] = SubscriptionTree()
    for (topic_filter, subscriber), options in filters.items():
        tree.add(topic_filter, subscriber, options)
    for name in names:
        assert tree.match(name) == brute_force(filters, name)


def brute_force(model: dict[tuple[str, int], int], name: str) -> dict[int, int]:
    found: dict[int, list[int]] = {}
    for (topic_filter, subscriber), options in model.items():
        if matches(topic_filter, name):
            found.setdefault(subscriber, []).append(options)
    return {subscriber: merged(several) for subscriber, several in found.items()}


def merged(several: list[int]) -> int:
    qos = max(options & 3 for options in several)
    no_local = all(options & 4 for options in several)
    other = 0 if no_local or not any(options & 4 for options in several) else SOME_NO_LOCAL
    for options in several:
        other |= options & ~7
    return qos | no_local << 2 | other
