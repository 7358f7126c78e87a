"""The subscription tree: topic filters -> subscribers, matched by topic name.

Owns: the filters of all sessions of this process and their options. Must not touch: sessions; a
subscriber is any hashable value. A group of a shared subscription is one subscriber.
Invariants (``_check``): each (filter, subscriber) pair exists once; no node or table is empty.
Spec: MQTT 5.0 section 4.7; overlapping subscriptions 3.3.4.

    nearly all filters:  options -> { filter: subscriber, or _Several when there are more }
    of rare shapes:      text to the first "+" -> a trie of the levels after it, in which
                         "+" and "#" are levels like others

Nearly all filters of a fleet are exact, or one device's ("dev42/#", "dev/42/+/set"), and have one
subscriber. Such a filter costs its slot in a dict (some 50 bytes) and no object of its own. There
is a dict for each value of the options; a process sees a handful of them. A topic name is looked up
there as it is, and as each filter that it could match: its branches with "/#" appended, and one
text for each shape of filters with "+". A shape is where the "+" are and how many levels there are;
the million filters "dev/{id}/+/set" have one. A client that invents shapes must not make each match
more expensive, so there are at most SHAPES_MAX. Filters of further shapes are in tries: these cost
more memory, and cost time only if they match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, Generic, TypeAlias, TypeVar

from motelog.gateway.mqtt.topics import FILTER_LEVELS_MAX

S = TypeVar("S", bound=Hashable)

QOS_MASK: Final = 0x03
NO_LOCAL: Final = 0x04
RETAIN_AS_PUBLISHED: Final = 0x08
#: Our own bit: the subscription has an identifier, which the session keeps.
HAS_IDENTIFIER: Final = 0x40

#: Our own bit, only in merged options: some of the subscriptions have No Local, and some do not.
SOME_NO_LOCAL: Final = 0x80

#: Shapes of filters with "+" that are looked up like exact filters.
SHAPES_MAX: Final = 16

#: Options for which each message is encoded and checked for the receiver alone.
PARTICULAR: Final = NO_LOCAL | SOME_NO_LOCAL | RETAIN_AS_PUBLISHED | HAS_IDENTIFIER

#: In place of a table's options, for a filter in a trie, whose subscribers have their own.
VARIOUS: Final = -1

#: (options, filter) of the subscribers that have both in common; they come and go, it stays.
Entry: TypeAlias = tuple[int, str]

#: Levels of a filter before its "#" if it has one, positions of "+", whether it has a "#".
Shape: TypeAlias = tuple[int, tuple[int, ...], bool]

_EMPTY: Final[dict[Any, Any]] = {}


class SubscriptionTree(Generic[S]):
    """Topic filters with their subscribers; a subscriber is any hashable value."""

    __slots__ = (
        "_branches_count",
        "_count",
        "_shapes",
        "_tables",
        "_tries",
        "changes",
        "on_change",
        "on_entry",
    )

    def __init__(self) -> None:
        #: Called with the filter of each entry that is new, or has gone with its last subscriber.
        self.on_entry: Callable[[str], None] = _ignore
        #: Called with the filter of each other entry whose subscribers or options have changed.
        self.on_change: Callable[[str], None] = _ignore
        #: How many subscriptions were added, replaced or removed; a match holds until this changes.
        self.changes = 0
        self._tables: dict[int, dict[str, S | _Several[S]]] = {}
        self._branches_count = 0  # pairs in the tables whose filter has a "#" and no "+"
        self._shapes: dict[Shape, int] = {}  # pairs in the tables whose filter has a "+"
        self._tries: dict[str, _Node[S]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many (filter, subscriber) pairs there are."""
        return self._count

    def add(self, topic_filter: str, subscriber: S, options: int) -> bool:
        """Subscribe, or replace the options [MQTT-3.8.4-3]; return whether the pair is new.

        ``topic_filter`` has passed ``topics.check_topic_filter``; ``options`` is the byte of
        SUBSCRIBE, the QoS in its bits 0 and 1.
        """
        is_new = not self._take_out(topic_filter, subscriber)
        if "+" in topic_filter and not self._has_room_for(_shape(topic_filter)):
            self._add_to_trie(topic_filter, subscriber, options)
        else:
            self._add_to_table(topic_filter, subscriber, options)
        self._count += is_new
        self.changes += 1
        return is_new

    def remove(self, topic_filter: str, subscriber: S) -> bool:
        """Unsubscribe; return whether there was such a subscription."""
        removed = self._take_out(topic_filter, subscriber)
        self._count -= removed
        self.changes += 1
        return removed

    def options(self, topic_filter: str, subscriber: S) -> int | None:
        """Return the options of one subscription, None if there is none."""
        for options, filters in self._tables.items():
            entry = filters.get(topic_filter)
            if entry == subscriber or (isinstance(entry, _Several) and subscriber in entry):
                return options
        if "+" not in topic_filter:
            return None
        node = self._node(topic_filter)
        return None if node is None else node.subscribers.get(subscriber)

    def match(self, topic_name: str) -> dict[S, int]:
        """Return each subscriber that wants ``topic_name``, with the options to deliver by.

        A subscriber with several matching filters is in it once. Its QoS is the highest of them
        [MQTT-3.3.4-2]. No local is set if it is set for all of them, another option if for one.
        With SOME_NO_LOCAL, ``own`` has the options for what the subscriber has published itself.
        """
        return self.merged(self.entries(topic_name))

    def own(self, topic_name: str, subscriber: S) -> dict[str, int]:
        """Return the filters by which a subscriber gets its own messages, with their options.

        Those without No Local. [MQTT-3.8.3-3]
        """
        found = {}
        for _, topic_filter in self.entries(topic_name):
            options = self.options(topic_filter, subscriber)
            if options is not None and not options & NO_LOCAL:
                found[topic_filter] = options
        return found

    def entries(self, topic_name: str) -> tuple[Entry, ...]:
        """Return the entries whose filters match ``topic_name``; see ``merged``."""
        keys = [topic_name]
        if self._branches_count:
            keys += _branches(topic_name)
        if self._shapes:
            keys += _of_shapes(topic_name, self._shapes)
        found = [
            (options, key)
            for options, filters in self._tables.items()
            for key in keys
            if key in filters
        ]
        if self._tries:
            found += [
                (VARIOUS, node.topic_filter)
                for node in self._matching_nodes(topic_name)
                if node.subscribers
            ]
        return tuple(found)

    def merged(self, entries: Iterable[Entry]) -> dict[S, int]:
        """Return the subscribers of entries that match one topic name, as ``match`` does."""
        matched: dict[S, int] = {}
        for options, topic_filter in entries:
            if options == VARIOUS:
                node = self._node(topic_filter)
                if node is not None:
                    for subscriber, own in node.subscribers.items():
                        _merge(matched, (subscriber,), own)
                continue
            entry = self._tables.get(options, {}).get(topic_filter)
            if entry is not None:
                _merge(matched, entry if isinstance(entry, _Several) else (entry,), options)
        return matched

    def _node(self, topic_filter: str) -> _Node[S] | None:
        head, levels = _head_and_levels(topic_filter)
        node = self._tries.get(head)
        for level in levels:
            if node is None:
                break
            node = node.children.get(level)
        return node

    def _matching_nodes(self, topic_name: str) -> Iterator[_Node[S]]:
        # Levels deeper than any filter are kept as one level, which matches nothing.
        levels = topic_name.split("/", FILTER_LEVELS_MAX)
        level_begin = 0
        for i, level in enumerate(levels):
            trie = self._tries.get(topic_name[:level_begin] + "+")
            # [MQTT-4.7.2-1]: a wildcard as first level does not match a "$" name.
            if trie is not None and (i > 0 or not topic_name.startswith("$")):
                yield from trie.walk(levels[i + 1 :])
            level_begin += len(level) + 1

    def _has_room_for(self, shape: Shape) -> bool:
        return shape in self._shapes or len(self._shapes) < SHAPES_MAX

    def _take_out(self, topic_filter: str, subscriber: S) -> bool:
        if self._remove_from_tables(topic_filter, subscriber):
            return True
        # Even if there is room for its shape now: the room may be newer than the filter.
        return "+" in topic_filter and self._remove_from_trie(topic_filter, subscriber)

    def _add_to_table(self, topic_filter: str, subscriber: S, options: int) -> None:
        self._count_in_tables(topic_filter, 1)
        filters = self._tables.setdefault(options, {})
        entry = filters.get(topic_filter)
        if entry is None:
            filters[topic_filter] = subscriber
            self.on_entry(topic_filter)
            return
        if isinstance(entry, _Several):
            entry[subscriber] = None
        else:
            filters[topic_filter] = _Several(((entry, None), (subscriber, None)))
        self.on_change(topic_filter)

    def _remove_from_tables(self, topic_filter: str, subscriber: S) -> bool:
        for options, filters in self._tables.items():
            entry = filters.get(topic_filter)
            if isinstance(entry, _Several):
                if subscriber not in entry:
                    continue
                del entry[subscriber]
                if len(entry) == 1:
                    filters[topic_filter] = next(iter(entry))
                self.on_change(topic_filter)
            elif entry is not None and entry == subscriber:
                del filters[topic_filter]
                if not filters:
                    del self._tables[options]
                self.on_entry(topic_filter)
            else:
                continue
            self._count_in_tables(topic_filter, -1)
            return True
        return False

    def _count_in_tables(self, topic_filter: str, change: int) -> None:
        if "+" in topic_filter:
            shape = _shape(topic_filter)
            count = self._shapes.get(shape, 0) + change
            if count:
                self._shapes[shape] = count
            else:
                del self._shapes[shape]
        elif topic_filter.endswith("#"):
            self._branches_count += change

    def _add_to_trie(self, topic_filter: str, subscriber: S, options: int) -> None:
        head, levels = _head_and_levels(topic_filter)
        node = self._tries.setdefault(head, _Node())
        for level in levels:
            node = node.child(level)
        is_entry = not node.subscribers
        node.topic_filter = topic_filter
        node.subscribe(subscriber, options)
        (self.on_entry if is_entry else self.on_change)(topic_filter)

    def _remove_from_trie(self, topic_filter: str, subscriber: S) -> bool:
        head, levels = _head_and_levels(topic_filter)
        trie = self._tries.get(head)
        if trie is None:
            return False
        path = [trie]
        for level in levels:
            node = path[-1].children.get(level)
            if node is None:
                return False
            path.append(node)
        if subscriber not in path[-1].subscribers:
            return False
        del path[-1].subscribers[subscriber]
        (self.on_change if path[-1].subscribers else self.on_entry)(topic_filter)
        while levels and path[-1].is_empty:
            path.pop()
            del path[-1].children[levels.pop()]
        if trie.is_empty:
            del self._tries[head]
        return True

    def _check(self) -> None:
        """Assert the invariants; for tests."""
        pairs = set()
        count = branches_count = 0
        shapes: Counter[Shape] = Counter()
        for filters in self._tables.values():
            assert filters
            for topic_filter, entry in filters.items():
                subscribers = list(entry) if isinstance(entry, _Several) else [entry]
                assert not isinstance(entry, _Several) or len(entry) > 1
                pairs |= {(topic_filter, subscriber) for subscriber in subscribers}
                count += len(subscribers)
                if "+" in topic_filter:
                    shapes[_shape(topic_filter)] += len(subscribers)
                else:
                    branches_count += len(subscribers) * topic_filter.endswith("#")
        assert branches_count == self._branches_count
        assert shapes == self._shapes
        assert len(shapes) <= SHAPES_MAX
        nodes = list(self._tries.items())
        while nodes:
            path, node = nodes.pop()
            assert "+" in path
            assert not node.is_empty
            count += len(node.subscribers)
            pairs |= {(path, subscriber) for subscriber in node.subscribers}
            nodes += [(f"{path}/{level}", child) for level, child in node.children.items()]
        assert count == len(pairs) == self._count


class _Several(dict[S, None]):
    """The subscribers of one exact filter, in a type that is never a subscriber itself."""

    __slots__ = ()


class _Node(Generic[S]):
    """One level of the filters that have a "+" at this level or before."""

    __slots__ = ("children", "subscribers", "topic_filter")

    def __init__(self) -> None:
        self.topic_filter = ""  # as long as it has no subscribers
        # Most nodes need only one of the two, so both begin as a shared, immutable table.
        self.children: dict[str, _Node[S]] = _EMPTY
        self.subscribers: dict[S, int] = _EMPTY

    @property
    def is_empty(self) -> bool:
        return not self.children and not self.subscribers

    def child(self, level: str) -> _Node[S]:
        if self.children is _EMPTY:
            self.children = {}
        node = self.children.get(level)
        if node is None:
            node = self.children[level] = _Node()
        return node

    def subscribe(self, subscriber: S, options: int) -> None:
        if self.subscribers is _EMPTY:
            self.subscribers = {}
        self.subscribers[subscriber] = options

    def walk(self, levels: list[str]) -> Iterator[_Node[S]]:
        """Yield the nodes whose filters match, given the levels after this node.

        It walks all branches level by level: a deep topic name costs time but no stack.
        """
        nodes = [self]
        for level in levels:
            below = []
            for node in nodes:
                children = node.children
                if "#" in children:
                    yield children["#"]
                if "+" in children:
                    below.append(children["+"])
                if level in children:
                    below.append(children[level])
            if not below:
                return
            nodes = below
        for node in nodes:
            yield node
            if "#" in node.children:  # "#" matches the parent level too (section 4.7.1.2)
                yield node.children["#"]


def _ignore(topic_filter: str) -> None:
    """The default listener, which does nothing."""


def _head_and_levels(topic_filter: str) -> tuple[str, list[str]]:
    """Split a filter after its first "+"."""
    before, plus, behind = topic_filter.partition("+")
    return before + plus, behind[1:].split("/") if behind else []


def _branches(topic_name: str) -> list[str]:
    """Return the filters without "+" that end in "#" and match the topic name."""
    # "#" matches the parent level too (section 4.7.1.2), but no "$" name [MQTT-4.7.2-1].
    found = [] if topic_name.startswith("$") else ["#"]
    end = topic_name.find("/")
    while end >= 0 and len(found) < FILTER_LEVELS_MAX:
        found.append(topic_name[: end + 1] + "#")
        end = topic_name.find("/", end + 1)
    if end < 0:
        found.append(topic_name + "/#")
    return found


def _shape(topic_filter: str) -> Shape:
    levels = topic_filter.split("/")
    is_branch = levels[-1] == "#"
    positions = tuple([i for i, level in enumerate(levels) if level == "+"])
    return len(levels) - is_branch, positions, is_branch


def _of_shapes(topic_name: str, shapes: Iterable[Shape]) -> list[str]:
    """Return the one possible filter of each shape that matches the topic name."""
    # Levels deeper than any filter are kept as one level, which no filter reaches.
    levels = topic_name.split("/", FILTER_LEVELS_MAX)
    is_system = topic_name.startswith("$")
    found = []
    for count, positions, is_branch in shapes:
        # "#" matches the parent level too (section 4.7.1.2).
        if len(levels) < count or (len(levels) > count and not is_branch):
            continue
        if is_system and positions[0] == 0:  # [MQTT-4.7.2-1]
            continue
        key = levels[:count]
        for position in positions:
            key[position] = "+"
        if is_branch:
            key.append("#")
        found.append("/".join(key))
    return found


def _merge(matched: dict[S, int], subscribers: Iterable[S], options: int) -> None:
    for subscriber in subscribers:
        other = matched.get(subscriber)
        matched[subscriber] = options if other is None else merge_options(options, other)


def merge_options(one: int, other: int) -> int:
    """Return the options for a message that matches two subscriptions of one session."""
    qos = max(one & QOS_MASK, other & QOS_MASK)
    no_local = one & other & NO_LOCAL
    if (one ^ other) & NO_LOCAL:
        no_local = SOME_NO_LOCAL
    return qos | no_local | ((one | other) & ~(QOS_MASK | NO_LOCAL))
