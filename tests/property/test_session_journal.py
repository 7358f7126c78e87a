"""A gateway that keeps one session's truth in memory, against the journal reloaded after a crash.

The gateway delivers two queues through a window, as delivery does, and may die between any two
records. What it goes on with then must lack no message that the client has not got, and must send
no QoS 2 message again but as the same exchange, and have the same filters.

The session subscribes to a third queue now and then, from the tail on or from an earlier message.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from motelog.core.clock import ManualClock
from motelog.core.records.append import QueueTail
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.log.log_port import choose_queue
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import (
    FiltersChange,
    FlightState,
    Mark,
    MarkKind,
    Progress,
    StoredFilter,
    StoredFlight,
    StoredSession,
)
from motelog.gateway.state.view import IN_MEMORY, View
from tests.support.fake_log import FakeLog

ALWAYS = ("a/0", "b/1")
SOMETIMES = "c/2"
QUEUES = (*ALWAYS, SOMETIMES)
WINDOW = 3
KEY = (MQTT_SESSION_TOPIC, 0)

Place = tuple[str, int]


@dataclass(frozen=True)
class Truth:
    """What is so at one moment: messages by place, and what the client has got or may have."""

    qos: dict[Place, int]
    got: frozenset[Place]
    sent: dict[Place, int]
    completed: frozenset[Place]
    filters: dict[str, int]
    begin: int


@dataclass
class Gateway:
    """One gateway with one session, which delivers like the real one; ``truths`` by log length."""

    log: FakeLog = field(default_factory=FakeLog)
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_000_000))
    #: All messages, and those that are for the session.
    all_qos: dict[Place, int] = field(default_factory=dict)
    qos: dict[Place, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))
    got: set[Place] = field(default_factory=set)
    #: QoS 2 messages that may have left, by the identifier of their exchange.
    sent: dict[Place, int] = field(default_factory=dict)
    completed: set[Place] = field(default_factory=set)
    first: dict[int, Truth] = field(default_factory=dict)
    last: dict[int, Truth] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.live = dict(self.ends)
        #: Topic filter -> its options; SOMETIMES needs one of the same name.
        self.filters = dict.fromkeys(ALWAYS, 0)
        #: Where the last subscription to SOMETIMES began, and the one before ended.
        self.begin = self.unsubscribed_at = 0
        self.lagging: dict[str, int] = {}
        self.flights: dict[int, StoredFlight] = {}
        self.delivered: set[Place] = set()
        self.view = View(IN_MEMORY)
        self.view.open()
        self.start()
        self.save()

    def start(self) -> None:
        self.journal = SessionJournal(self.log, self.view, self.clock, gateway="gw")
        read_all(self.journal)
        self.told: object = None

    # --- what a gateway does -------------------------------------------------------------

    def publish(self, queue: str, qos: int) -> None:
        place = queue, self.ends[queue]
        self.all_qos[place] = qos
        self.ends[queue] += 1
        if queue in self.filters:
            self.qos[place] = qos
        else:
            self.live[queue] += 1

    def subscribe(self, topic_filter: str, options: int, back: int) -> None:
        """Add or replace a filter; a new one begins up to ``back`` messages before the tail."""
        is_new = topic_filter not in self.filters
        self.filters[topic_filter] = options
        if is_new:
            live = self.live[topic_filter]
            self.begin = start = max(live - back, self.unsubscribed_at)
            places = [(topic_filter, at) for at in range(start, live)]
            self.qos.update((place, self.all_qos[place]) for place in places)
            if places:
                self.lagging[topic_filter] = start
        cursors = {topic_filter: self.lagging.get(topic_filter, self.live[topic_filter])}
        self.change((StoredFilter(topic_filter, options),), (), cursors)

    def unsubscribe(self, queue: str) -> None:
        if self.filters.pop(queue, None) is None:
            return
        self.live[queue] = self.unsubscribed_at = self.ends[queue]
        self.lagging.pop(queue, None)
        self.qos = {place: qos for place, qos in self.qos.items() if place[0] != queue}
        self.change((), (queue,), {})

    def change(
        self, filters: tuple[StoredFilter, ...], removed: tuple[str, ...], cursors: dict[str, int]
    ) -> None:
        progress = Progress("dev", dict(self.lagging), tuple(self.flights.values()))
        change = FiltersChange(progress, filters, removed, cursors)
        self.journal.collect_filters(change, lambda _: None)
        self.note()

    def deliver(self, queue: str, *, fails: bool) -> None:
        while queue in self.filters and self.live[queue] < self.ends[queue]:
            at = self.live[queue]
            if queue not in self.lagging and not self.send(queue, at, fails=fails):
                self.lagging[queue] = at
            self.live[queue] += 1

    def catch_up(self, queue: str, *, fails: bool) -> None:
        while queue in self.lagging:
            at = self.lagging[queue]
            if at == self.live[queue]:
                del self.lagging[queue]
            elif self.send(queue, at, fails=fails):
                self.lagging[queue] = at + 1
            else:
                break

    def send(self, queue: str, at: int, *, fails: bool) -> bool:
        place = queue, at
        if place in self.delivered:
            return True
        if len(self.flights) >= WINDOW:
            return False
        packet_id = next(n for n in range(1, WINDOW + 1) if n not in self.flights)
        qos = self.qos[place]
        if qos == 2:
            self.mark(MarkKind.SENT, packet_id, place)
            self.commit()
            if fails:
                self.mark(MarkKind.UNSENT, packet_id, place)
                return False
            self.sent[place] = packet_id
            self.note()
        elif fails:
            return False
        self.flights[packet_id] = StoredFlight(packet_id, queue, at, qos)
        return True

    def acknowledge(self, number: int, *, is_lazy: bool) -> None:
        if not self.flights:
            return
        flight = self.flights[sorted(self.flights)[number % len(self.flights)]]
        packet_id, place = flight.packet_id, (flight.queue, flight.queue_offset)
        self.got.add(place)
        if flight.qos == 2 and flight.state == FlightState.SENT:
            self.mark(MarkKind.RELEASED, packet_id, ("", 0))
            self.commit()
            released = msgspec.structs.replace(flight, state=FlightState.RELEASED)
            self.flights[packet_id] = released
            return
        del self.flights[packet_id]
        if flight.qos == 2:
            self.completed.add(place)
            self.mark(MarkKind.COMPLETED, packet_id, ("", 0))
            if not is_lazy:
                self.commit()

    def tick(self) -> None:
        now = dict(self.lagging), tuple(self.flights.values())
        entries = [Progress("dev", *now)] if now != self.told else []
        self.told = now
        self.clock.advance(1000)
        self.journal.tick(self.live, entries)
        self.note()

    def save(self, *, left_ms: int | None = None) -> None:
        cursors = {queue: self.lagging.get(queue, self.live[queue]) for queue in self.filters}
        places = tuple(p for p in sorted(self.delivered) if p[1] >= cursors.get(p[0], 0))
        filters = tuple(StoredFilter(*one) for one in self.filters.items())
        session = StoredSession(
            "dev", 60, left_ms, filters, cursors, tuple(self.flights.values()), (), places
        )
        self.journal.save(session, lagging=self.lagging)
        self.told = dict(self.lagging), tuple(self.flights.values())
        self.note()

    def reconnect(self) -> None:
        """The client leaves and comes back: its exchanges go on, the rest is read again."""
        self.save(left_ms=self.clock.now_ms())
        self.resume()

    def crash(self) -> None:
        """The process is killed and started again, perhaps without its view."""
        self.start()
        self.resume()

    def resume(self) -> None:
        found = self.journal.load("dev")
        assert found is not None
        assert found.left_ms is not None
        self.live = dict(self.ends)
        self.flights = {flight.packet_id: flight for flight in found.inflight}
        self.delivered = set(found.delivered)
        cursors = {queue: found.cursors.get(queue, 0) for queue in self.filters}
        self.lagging = {q: at for q, at in cursors.items() if at < self.live[q]}
        self.save()

    def mark(self, kind: MarkKind, packet_id: int, place: Place) -> None:
        self.journal.mark(Mark(kind, "dev", packet_id, *place))

    def commit(self) -> None:
        self.journal.commit()
        self.note()

    def note(self) -> None:
        """Note what is so while the log is as long as it is."""
        self.last[len(self.log.records[KEY])] = truth = Truth(
            dict(self.qos),
            frozenset(self.got),
            dict(self.sent),
            frozenset(self.completed),
            dict(self.filters),
            self.begin,
        )
        self.first.setdefault(len(self.log.records[KEY]), truth)


def read_all(journal: SessionJournal) -> None:
    while journal.refresh(3):
        pass


def reloaded(gateway: Gateway, length: int) -> StoredSession:
    """Return the session as the gateway's next run finds it on the first records of the log."""
    log = FakeLog()
    log.create_topic(MQTT_SESSION_TOPIC, 1)
    assert choose_queue("", 1) == 0
    log._tails[KEY] = QueueTail(MQTT_SESSION_TOPIC.encode(), 0, length)
    log.records[KEY] = gateway.log.records[KEY][:length]
    view = View(IN_MEMORY)
    view.open()
    journal = SessionJournal(log, view, gateway.clock, gateway="gw")
    read_all(journal)
    found = journal.load("dev")
    view.close()
    assert found is not None
    return found


def check(found: StoredSession, before: Truth, after: Truth) -> None:
    """Compare what a session goes on with; the crash was between the two truths."""
    flights = {(f.queue, f.queue_offset): f for f in found.inflight}
    assert len({f.packet_id for f in found.inflight}) == len(found.inflight)
    delivered = set(found.delivered)
    assert {one.topic_filter: one.options for one in found.filters} == before.filters
    if SOMETIMES in before.filters:
        assert found.cursors.get(SOMETIMES, 0) >= before.begin, "it would get what is older"
    for place, qos in before.qos.items():
        is_read = place[1] >= found.cursors.get(place[0], 0) and place not in delivered
        if place not in before.got:
            assert is_read or place in flights, f"{place} is lost"
        if qos == 2 and place in after.sent:
            assert not is_read, f"{place} would be sent again as another message"
            if place in flights:
                assert flights[place].packet_id == after.sent[place]
            else:
                assert place in after.completed


queues = st.sampled_from(QUEUES)
steps = st.one_of(
    st.tuples(st.just("publish"), queues, st.sampled_from((1, 2, 2))),
    st.tuples(st.just("deliver"), queues, st.sampled_from((False, False, False, True))),
    st.tuples(st.just("catch_up"), queues, st.sampled_from((False, False, False, True))),
    st.tuples(st.just("acknowledge"), st.integers(0, WINDOW), st.booleans()),
    st.tuples(st.just("subscribe"), queues, st.integers(0, 2), st.integers(0, 3)),
    st.tuples(
        st.sampled_from(("tick", "tick", "save", "reconnect", "crash", "read", "unsubscribe"))
    ),
)


#: A change of filters says that a session lags beyond the positions of the last tick, and the next
#: one that it lags no more: what it had got meanwhile is not to be read again.
CAUGHT_UP = [
    *[("publish", "a/0", 2)] * 4,
    ("deliver", "a/0", False),
    *[("acknowledge", 0, False)] * 2,
    ("subscribe", "c/2", 1, 0),
    ("catch_up", "a/0", False),
    ("subscribe", "c/2", 2, 0),
]


@settings(max_examples=400, deadline=None)
@example(steps=CAUGHT_UP)
@given(steps=st.lists(steps, min_size=5, max_size=60))
def test_session_that_is_reloaded_lacks_nothing_and_repeats_no_qos2_message(
    steps: list[tuple[object, ...]],
) -> None:
    gateway = Gateway()
    for step in steps:
        match step:
            case "publish", str(queue), int(qos):
                gateway.publish(queue, qos)
            case "deliver", str(queue), bool(fails):
                gateway.deliver(queue, fails=fails)
            case "catch_up", str(queue), bool(fails):
                gateway.catch_up(queue, fails=fails)
            case "acknowledge", int(number), bool(is_lazy):
                gateway.acknowledge(number, is_lazy=is_lazy)
            case "subscribe", str(queue), int(options), int(back):
                gateway.subscribe(queue, options, back)
            case ("unsubscribe",):
                gateway.unsubscribe(SOMETIMES)
            case ("tick",):
                gateway.tick()
            case ("save",):
                gateway.save()
            case ("reconnect",):
                gateway.reconnect()
            case ("crash",):
                gateway.crash()
            case ("read",):
                gateway.journal.refresh(3)
        gateway.note()
    now = gateway.journal.load("dev")
    read_all(gateway.journal)
    assert gateway.journal.load("dev") == now, "read back, it is as it was"
    for length in sorted(gateway.first)[-12:]:
        check(reloaded(gateway, length), gateway.first[length], gateway.last[length])
