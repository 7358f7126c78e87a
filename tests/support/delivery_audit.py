"""What publishers have sent and subscribers have got, compared message by message.

Owns: Audit, the numbers of every topic; Received, the number that must come next to a subscriber.
Must not touch: clients.

A payload is a number; each topic counts for itself, and its name ends with the QoS of its messages.
First copies come in the order in which they were published and without a gap, and at QoS 2 there is
no second copy. A subscription gets nothing that was acknowledged before SUBSCRIBE was sent, and all
that was published after SUBACK.
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

    def acknowledged(self, number: int) -> None:
        self.done.add(number)
        while self.done_to in self.done:
            self.done.remove(self.done_to)
            self.done_to += 1


class Audit:
    """What was published, and what each subscriber has got; called from several threads."""

    def __init__(self) -> None:
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
            elif number > highest:
                self._audit.fail(f"{where} comes first, {highest} is lost")
            expected = number
        if number > expected:
            self._audit.fail(f"{where} comes too early: {expected} is lost or out of order")
        elif number < expected:
            self.repeated += 1
            if qos == 2:
                self._audit.fail(f"{where} comes twice, {expected} is next")
        else:
            self.next[topic] = expected + 1

    def missing(self) -> list[str]:
        """Return what has been published and has not come."""
        found = []
        for topic, stream in self._audit.streams.items():
            if matches(self.filter, topic):
                at = self.next.get(topic, self._first.get(topic, self._first_of_new)[1])
                if at < stream.sent:
                    found.append(f"{self.name}: {topic} from {at} of {stream.sent}")
        return found
