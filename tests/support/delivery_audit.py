"""What publishers have sent and subscribers have got, compared message by message.

Owns: Audit, the numbers of every topic; Received, the number that must come next to a subscriber.
Must not touch: clients.

A payload is a number; each topic counts for itself, and its name ends with the QoS of its messages.
First copies come in the order in which they were published and without a gap, and at QoS 2 there is
no second copy. A subscription gets nothing that was acknowledged before SUBSCRIBE was sent, and all
that was published after SUBACK.

A publish that is refused and not sent again leaves a gap. Whether a gap is one is decided at the
end, as subscribers may see it before its publisher hears of the refusal: exactly what was refused
must be missing.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field

from motelog.gateway.mqtt.topics import matches

#: A number that is higher than all others.
ANY = 1 << 62


class AuditError(Exception):
    """The gateway has broken a promise."""


@dataclass(slots=True)
class Stream:
    """The messages of one topic: ``sent`` numbers were given, ``done`` has those acknowledged."""

    sent: int = 0
    done: set[int] = field(default_factory=set)
    #: All numbers below are acknowledged.
    done_to: int = 0
    #: What must not come, and what may come or not.
    refused: set[int] = field(default_factory=set)
    doubted: set[int] = field(default_factory=set)

    def acknowledged(self, number: int) -> None:
        self.done.add(number)
        while self.done_to in self.done:
            self.done.remove(self.done_to)
            self.done_to += 1


class Audit:
    """What was published, and what each subscriber has got; called from several threads.

    With ``may_refuse``, publishers do not send again what is refused.
    """

    def __init__(self, *, may_refuse: bool = False) -> None:
        self.may_refuse = may_refuse
        self.streams: dict[str, Stream] = defaultdict(Stream)
        self.acknowledged = 0
        self.failure: str | None = None
        self._lock = threading.Lock()

    def publish(self, topic: str) -> bytes:
        """Return the next payload of a topic."""
        with self._lock:
            stream = self.streams[topic]
            stream.sent += 1
            return str(stream.sent - 1).encode()

    def done(self, topic: str, payload: bytes) -> None:
        with self._lock:
            self.acknowledged += 1
            self.streams[topic].acknowledged(int(payload))

    def refused(self, topic: str, payload: bytes) -> None:
        """Note a publish that was refused and is not sent again."""
        self.streams[topic].refused.add(int(payload))

    def doubt(self, topic: str) -> bytes:
        """Return the next payload of a topic, of a message that may come or not: a will."""
        payload = self.publish(topic)
        self.streams[topic].doubted.add(int(payload))
        return payload

    def expect(self, topic: str, payload: bytes) -> None:
        """Note that a message which was in doubt must come."""
        self.streams[topic].doubted.discard(int(payload))

    def fail(self, what: str) -> None:
        """Keep the first failure; ``check`` raises it in the program's own thread."""
        self.failure = self.failure or what

    def check(self) -> None:
        if self.failure is not None:
            raise AuditError(self.failure)


class Received:
    """What one subscriber has got: for each topic the number that must come next."""

    def __init__(self, name: str, audit: Audit, topic_filter: str, qos: int) -> None:
        self.name = name
        self.filter = topic_filter
        self.qos = qos
        self._audit = audit
        self.next: dict[str, int] = {}
        #: For topics that existed when it subscribed: the least and the highest first number.
        self._first: dict[str, tuple[int, int]] = {}
        #: The same for topics that were new since: all of them, unless SUBACK has not come yet.
        self._first_of_new = 0, 0
        self.repeated = 0
        #: For each topic: the first number that came, and those that later ones have passed.
        self._began: dict[str, int] = {}
        self._passed: dict[str, set[int]] = defaultdict(set)

    def subscribing(self) -> None:
        """SUBSCRIBE is about to be sent: nothing that is acknowledged now may come."""
        streams = self._audit.streams
        self._first = {topic: (streams[topic].done_to, ANY) for topic in list(streams)}
        self._first_of_new = 0, ANY

    def subscribed(self) -> None:
        """SUBACK has come: all that is published from now on must come."""
        for topic, stream in list(self._audit.streams.items()):
            self._first[topic] = self._first.get(topic, (0, 0))[0], stream.sent
        self._first_of_new = 0, 0

    def arrived(self, topic: str, payload: bytes, qos: int, is_dup: bool) -> None:
        number = int(payload)
        where = f"{self.name}: {topic} {number} (QoS {qos}{', DUP' if is_dup else ''})"
        if qos != min(int(topic[-1]), self.qos):
            self._audit.fail(f"{where} has the wrong QoS")
        expected = self.next.get(topic)
        if expected is None:
            least, highest = self._first.get(topic, self._first_of_new)
            if number < least:
                self._audit.fail(f"{where} is older than the subscription, which began at {least}")
            elif number > highest and not self._audit.may_refuse:
                self._audit.fail(f"{where} comes first, {highest} is lost")
            expected = self._began[topic] = min(number, highest)
        if number > expected and self._audit.may_refuse:
            self._passed[topic].update(range(expected, number))
            self.next[topic] = number + 1
        elif number > expected:
            self._audit.fail(f"{where} comes too early: {expected} is lost or out of order")
        elif number < expected:
            self.repeated += 1
            if number in self._passed[topic]:
                self._audit.fail(f"{where} is out of order, {expected} is next")
            elif qos == 2:
                self._audit.fail(f"{where} comes twice, {expected} is next")
        else:
            self.next[topic] = expected + 1

    def missing(self) -> list[str]:
        """Return what has been published and has not come."""
        found = []
        for topic, stream in self._audit.streams.items():
            if matches(self.filter, topic):
                at = self.next.get(topic, self._first.get(topic, self._first_of_new)[1])
                rest = set(range(at, stream.sent)) - stream.refused - stream.doubted
                if rest:
                    found.append(f"{self.name}: {topic} from {min(rest)} of {stream.sent}")
        return found

    def gaps(self) -> list[str]:
        """Return what has not come although it was not refused, and what has come although."""
        found = []
        for topic, at in self.next.items():
            stream, passed = self._audit.streams[topic], self._passed[topic]
            refused = {number for number in stream.refused if self._began[topic] <= number < at}
            lost, kept = (sorted(one) for one in (passed - refused, refused - passed))
            if set(lost) - stream.doubted:
                found.append(f"{self.name}: {topic} lacks {lost}")
            if kept:
                found.append(f"{self.name}: {topic} has {kept}, which were refused")
        return found
