"""What producers have sent, what consumers have got, and what groups have committed.

Owns: Ledger, what was tried and acknowledged; Reader, what one consumer group has got; OffsetWatch,
what a broker says of committed offsets. Must not touch: clients, sockets, clocks.

A body is "TOPIC/WRITER/NUMBER"; each writer of a topic counts for itself. A reader gets all that
was acknowledged, at least once; nothing that nobody has sent, and nothing that was rolled back. One
that reads in order gets the first copies of a writer's messages in their order.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping

#: Offsets as request GET_ALL_CONSUMER_OFFSET tells them.
Offsets = Mapping[str, Mapping[str, int]]


class LedgerError(Exception):
    """A promise of the servers is broken; ``bodies`` are some of the messages that show it."""

    def __init__(self, text: str, *bodies: str) -> None:
        super().__init__(text)
        self.bodies = bodies


class Ledger:
    """All messages of one run."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._acknowledged: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._bodies: defaultdict[str, set[str]] = defaultdict(set)
        self._rolled_back: set[str] = set()
        # What any reader has got.
        self._got: set[str] = set()
        self.acknowledged_count = 0

    def next(self, topic: str, writer: str) -> str:
        """Return the body of a message that is about to be sent."""
        name = f"{topic}/{writer}"
        self._counts[name] += 1
        return f"{name}/{self._counts[name] - 1}"

    def tried(self, body: str) -> None:
        """Note a message that somebody else has numbered; it may have come before."""
        name, number = _split(body)
        self._counts[name] = max(self._counts[name], number + 1)

    def acknowledge(self, body: str) -> None:
        name, number = _split(body)
        if number not in self._acknowledged[name]:
            self._acknowledged[name][number] = None
            self._bodies[name.partition("/")[0]].add(body)
            self.acknowledged_count += 1

    def roll_back(self, body: str) -> None:
        """Note that nobody may ever get this."""
        self._rolled_back.add(body)
        if body in self._got:
            raise LedgerError(f"{body} was rolled back and has come", body)

    def got(self, body: str) -> None:
        self._got.add(body)
        if body in self._rolled_back:
            raise LedgerError(f"{body} was rolled back and comes", body)

    def check(self) -> None:
        """Raise LedgerError for what has come and was never sent, once all sends are known."""
        for body in self._got:
            name, number = _split(body)
            if number >= self._counts[name]:
                raise LedgerError(f"{body} was never sent", body)

    def acknowledged(self, name: str) -> Collection[int]:
        """Return the numbers of a writer, "TOPIC/WRITER", as they were acknowledged."""
        return self._acknowledged[name].keys()

    def expected(self, topics: Collection[str]) -> set[str]:
        """Return the bodies that must come to who reads these topics."""
        return set().union(*(self._bodies[topic] for topic in topics))


class Reader:
    """What one group has got, over all its members."""

    def __init__(
        self, name: str, ledger: Ledger, topics: Collection[str], *, in_order: bool = False
    ) -> None:
        self.name = name
        self._ledger = ledger
        self.topics = topics
        self._in_order = in_order
        self._seen: Counter[str] = Counter()
        # Writer -> below it all that was acknowledged when it was looked at has come.
        self._looked_to: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """How much has come, repeated messages included."""
        return self._seen.total()

    @property
    def repeated(self) -> int:
        return self._seen.total() - len(self._seen)

    def got(self, body: str) -> None:
        self._ledger.got(body)
        if self._in_order and body not in self._seen:
            self._check_order(body)
        self._seen[body] += 1

    def count(self, body: str) -> int:
        """Return how often this has come."""
        return self._seen[body]

    def missing(self) -> set[str]:
        return self._ledger.expected(self.topics) - self._seen.keys()

    def _check_order(self, body: str) -> None:
        name, number = _split(body)
        acknowledged = self._ledger.acknowledged(name)
        for before in range(self._looked_to[name], number):
            missed = f"{name}/{before}"
            if before in acknowledged and missed not in self._seen:
                text = f"{self.name}: {body} comes too early: {before} has not come"
                raise LedgerError(text, missed, body)
        if number > self._looked_to[name]:
            self._looked_to[name] = number


class OffsetWatch:
    """The committed offsets of one broker: none goes back while it runs.

    A start finds all that was committed ``saved_within_s`` before the end of the last run. Groups
    that are ``free`` go back themselves.
    """

    def __init__(self, broker: str, *, saved_within_s: float, free: Collection[str] = ()) -> None:
        self._broker = broker
        self._free = free
        self._saved_within_s = saved_within_s
        self._now: Offsets = {}
        # Of this run: what was known at which time.
        self._past: deque[tuple[float, Offsets]] = deque()
        self._saved: Offsets = {}

    def saw(self, at_s: float, offsets: Offsets) -> None:
        """Compare with what was seen before; LedgerError if an offset has gone back."""
        if not self._past:
            self._compare(self._saved, offsets, "is lost by a restart")
        self._compare(self._now, offsets, "has gone back")
        self._now = offsets
        self._past.append((at_s, offsets))
        # The newest one that is old enough stays.
        while len(self._past) > 1 and self._past[1][0] <= at_s - self._saved_within_s:
            self._past.popleft()

    def ended(self, at_s: float) -> None:
        """Note that the broker has been killed, and was not before ``at_s``."""
        for seen_s, offsets in self._past:
            if seen_s <= at_s - self._saved_within_s:
                self._saved = offsets
        self._now = {}
        self._past.clear()

    def _compare(self, before: Offsets, after: Offsets, what: str) -> None:
        for key, queues in before.items():
            if key.rpartition("@")[2] in self._free:
                continue
            for queue, offset in queues.items():
                now = after.get(key, {}).get(queue, -1)
                if now < offset:
                    text = f"{self._broker}: the offset {offset} of {key} {queue} {what}: {now}"
                    raise LedgerError(text)


def _split(body: str) -> tuple[str, int]:
    name, _, number = body.rpartition("/")
    return name, int(number)
