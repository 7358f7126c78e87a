"""Delivery over a log in memory: plans, windows, receivers that lag and come back."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from motelog.core.clock import SystemClock
from motelog.core.message import encode_properties, tags_code
from motelog.gateway.deliver.catch_up import Quota
from motelog.gateway.deliver.delivery import Delivery
from motelog.gateway.deliver.marking import Marking
from motelog.gateway.deliver.offers import Offers
from motelog.gateway.deliver.sender import Sender
from motelog.gateway.deliver.watched import WatchedQueues
from motelog.gateway.mapping.message_properties import publish_properties, publisher_properties
from motelog.gateway.mapping.topic_mapping import TopicMapping
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.packet_types import Properties
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.groups import Receiver
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import (
    HAS_IDENTIFIER,
    NO_LOCAL,
    RETAIN_AS_PUBLISHED,
    SubscriptionTree,
)
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.stored import StoredFilter, StoredSession
from motelog.gateway.state.view import IN_MEMORY, View
from motelog.gateway.turn import Turn
from tests.support.fake_log import HOST, FakeLog
from tests.support.memory_output import MemoryOutput
from tests.support.mqtt_wire import published


class Stage:
    """One Delivery with its surroundings."""

    def __init__(self, log: FakeLog | None = None) -> None:
        self.log = log or FakeLog()
        self.output = MemoryOutput()
        self.tree: SubscriptionTree[Receiver] = SubscriptionTree()
        self.metrics = GatewayMetrics()
        self.wakes = 0
        self.connections: list[Connection | None] = [None] * 1000
        view = View(IN_MEMORY)
        view.open()
        self.journal = SessionJournal(self.log, view, SystemClock(), gateway="stage")
        self.journal.after = lambda ticket, then: then(ticket.error)
        self.log.create_topic("MQTT_DEFAULT", 1)
        self.log.create_topic("t", 2)
        self.turn = Turn(self.connections, wake=self._wake)
        mapping = TopicMapping((), default_topic="MQTT_DEFAULT")
        queues = WatchedQueues(self.log, mapping)
        marking = Marking(
            self.turn,
            queues,
            self.journal,
            self.metrics,
            output_bytes_high=262_144,
            random_skip=lambda: 0,
        )
        sender = Sender(self.tree, marking, self.metrics)
        self.delivery = Delivery(
            self.turn,
            self.log,
            queues,
            Offers(self.tree, mapping, sender, self.metrics),
            self.tree,
            self.journal,
            RetainedStore(self.log, view, SystemClock()),
            quota=Quota(0, 0),
        )

    def _wake(self) -> None:
        self.wakes += 1

    def session(
        self,
        number: int,
        topic_filter: str,
        options: int,
        *,
        inflight_max: int = 100,
        version: int = 4,
        output: MemoryOutput | None = None,
        **how: Any,
    ) -> Session:
        output = output or self.output
        output.open(number)
        connection = Connection(output, number, version=version, **how)
        self.connections[number] = connection
        session = Session(f"c{number}")
        session.attach(connection, inflight_max=inflight_max)
        self.subscribe(session, topic_filter, options)
        return session

    def subscribe(self, session: Session, topic_filter: str, options: int) -> None:
        self.tree.add(topic_filter, session, options)
        session.add_filter(topic_filter)
        self.delivery.subscribe(session, topic_filter)

    def unsubscribe(self, session: Session, topic_filter: str) -> None:
        self.tree.remove(topic_filter, session)
        session.remove_filter(topic_filter)
        self.delivery.unsubscribe(session, topic_filter)

    def publish(
        self, name: str, payload: bytes, qos: int = 1, *, queue_id: int = 0, extra: bytes = b""
    ) -> None:
        text = encode_properties({"mqttRealTopic": name, "qosLevel": str(qos)}) + extra
        self.append(name.split("/")[0], payload, text, queue_id=queue_id)

    def append(
        self, topic: str, payload: bytes, text: bytes, *, queue_id: int = 0, sys_flag: int = 0
    ) -> None:
        tail = self.log.queue_tail(topic, queue_id)
        message = (tail, payload, text, tags_code("x"), 0, HOST, sys_flag, 0, 0, 0)
        self.log.append([message])

    def deliver(self) -> None:
        while self.delivery.deliver(self.log.now_ms):
            pass

    def got(self, number: int, output: MemoryOutput | None = None) -> list[tuple[str, int, bytes]]:
        sent = (output or self.output).sent.get(number, [])
        return [published(packet[0], packet[2:]) for packet in sent]


def test_only_what_a_turn_leaves_over_wakes_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motelog.gateway.deliver.delivery.LIVE_COUNT_MAX", 2)
    stage = Stage()
    stage.session(1, "t/+", 0)
    for count, left in ((1, 0), (2, 0), (3, 1)):
        stage.wakes = 0
        stage.turn.is_open = True
        for number in range(count):
            stage.publish("t/a", b"%d" % number)
        assert stage.wakes == 0
        assert stage.delivery.deliver(stage.log.now_ms) == bool(left)
        assert stage.wakes == left
        stage.turn.is_open = False
        stage.deliver()
        stage.wakes = 0
        stage.publish("t/a", b"of another gateway")
        assert stage.wakes == 1
        stage.deliver()
    assert len(stage.got(1)) == 9


def test_only_what_is_appended_after_subscribing_arrives() -> None:
    stage = Stage()
    stage.publish("t/a", b"before")
    stage.session(1, "t/+", 0)
    stage.publish("t/a", b"after")
    stage.deliver()
    assert stage.got(1) == [("t/a", 0, b"after")]
    assert stage.wakes == 1


@pytest.mark.parametrize(("published_qos", "granted_qos"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_receiver_gets_the_lower_qos(published_qos: int, granted_qos: int) -> None:
    stage = Stage()
    stage.session(1, "t/a", granted_qos)
    stage.publish("t/a", b"x", published_qos)
    stage.deliver()
    [(_, packet_id, _)] = stage.got(1)
    assert bool(packet_id) == bool(published_qos and granted_qos)


def test_queue_that_nobody_needs_is_not_read() -> None:
    stage = Stage()
    session = stage.session(1, "t/a", 0)
    stage.unsubscribe(session, "t/a")
    stage.publish("t/a", b"x")
    assert stage.wakes == 0


def test_wildcard_reads_topics_that_are_created_later() -> None:
    stage = Stage()
    stage.session(1, "#", 0)
    stage.log.create_topic("later", 1)
    stage.publish("later/a", b"x")
    stage.deliver()
    assert stage.got(1) == [("later/a", 0, b"x")]


def test_named_topic_is_read_once_it_is_created() -> None:
    stage = Stage()
    stage.session(1, "later/+", 0)
    stage.log.create_topic("later", 1)
    stage.publish("later/a", b"x")
    stage.deliver()
    assert stage.got(1) == [("later/a", 0, b"x")]


@pytest.mark.parametrize("topic_filter", ["t/a", "t/+", "#"])
def test_plans_follow_subscriptions(topic_filter: str) -> None:
    stage = Stage()
    stage.session(2, "t/#", 0)
    for number in range(2):
        stage.publish("t/a", b"alone")
        stage.deliver()
        session = stage.session(3 + number, topic_filter, 0)
        stage.publish("t/a", b"%d" % number)
        stage.deliver()
        stage.unsubscribe(session, topic_filter)
        assert [body for _, _, body in stage.got(3 + number)] == [b"%d" % number]
    assert len(stage.got(2)) == 4


def test_what_a_lagging_receiver_takes_of_a_slice_is_sent_in_one_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    session = stage.session(1, "t/+", 1, inflight_max=3)
    for number in range(6):
        stage.publish("t/a", b"%d" % number)
    stage.deliver()
    for _, packet_id, _ in stage.got(1):
        session.inflight.ack(packet_id)
    pieces: list[bytes] = []
    monkeypatch.setattr(stage.output, "send", lambda _, data: pieces.append(data))
    stage.delivery.acknowledged(session)
    stage.deliver()
    assert len(pieces) == 1
    assert [pieces[0].count(body) for body in (b"t/a", b"3", b"4", b"5")] == [3, 1, 1, 1]


def test_receiver_of_plain_and_particular_messages_gets_them_in_order() -> None:
    stage = Stage()
    session = stage.session(1, "t/a", 1, inflight_max=5)
    stage.subscribe(session, "t/b", 1 | RETAIN_AS_PUBLISHED)
    for number in range(12):
        stage.publish("t/a" if number % 3 else "t/b", b"%d" % number)
    stage.deliver()
    got: list[bytes] = []
    while stage.output.sent.get(1):
        for _, packet_id, payload in stage.got(1):
            got.append(payload)
            assert session.inflight.ack(packet_id)
        stage.output.sent.clear()
        stage.delivery.acknowledged(session)
        stage.deliver()
    assert got == [b"%d" % number for number in range(12)]


def test_full_window_lags_and_goes_on_in_order_as_it_empties() -> None:
    stage = Stage()
    session = stage.session(1, "t/+", 1, inflight_max=2)
    for number in range(7):
        stage.publish("t/a", b"%d" % number)
    stage.deliver()
    got: list[bytes] = []
    while stage.output.sent.get(1):
        batch = stage.got(1)
        assert len(batch) <= 2
        stage.output.sent.clear()
        for _, packet_id, payload in batch:
            got.append(payload)
            assert session.inflight.ack(packet_id)
        stage.delivery.acknowledged(session)
        stage.deliver()
    assert got == [b"%d" % number for number in range(7)]
    assert session.lagging is None
    assert stage.metrics.receivers_lagging_now == 0


def test_lagging_receiver_gets_later_qos_0_messages_in_the_queue_s_order() -> None:
    stage = Stage()
    session = stage.session(1, "t/+", 1, inflight_max=1)
    stage.publish("t/a", b"1")
    stage.publish("t/a", b"2")
    stage.deliver()
    stage.publish("t/a", b"3", 0)
    stage.deliver()
    assert [payload for _, _, payload in stage.got(1)] == [b"1"]
    session.inflight.ack(1)
    stage.delivery.acknowledged(session)
    stage.deliver()
    assert [payload for _, _, payload in stage.got(1)] == [b"1", b"2", b"3"]


def test_full_socket_drops_qos_0_and_keeps_qos_1_for_later() -> None:
    stage = Stage()
    stage.session(1, "t/+", 0)
    windowed = stage.session(2, "t/+", 1)
    stage.output.fill(1)
    stage.output.fill(2)
    stage.publish("t/a", b"1")
    stage.deliver()
    assert stage.metrics.messages_dropped_qos0 == 1
    assert len(windowed.inflight) == 0
    stage.output.read_on(1)
    stage.output.read_on(2)
    stage.delivery.acknowledged(windowed)
    stage.deliver()
    assert stage.got(1) == []
    assert [payload for _, _, payload in stage.got(2)] == [b"1"]


@pytest.mark.parametrize("options", [0, 1, 1 | NO_LOCAL])
def test_receivers_are_reached_through_the_output_of_their_connection(options: int) -> None:
    stage = Stage()
    other = MemoryOutput()
    stage.session(1, "t/a", options)
    stage.session(2, "t/a", options, output=other)
    full = stage.session(3, "t/a", 1, output=other)
    other.fill(3)
    stage.publish("t/a", b"x")
    stage.deliver()
    for number, output in ((1, stage.output), (2, other)):
        [(_, packet_id, body)] = stage.got(number, output)
        assert (bool(packet_id), body) == (bool(options & 1), b"x")
    assert (stage.got(2), stage.got(1, other), stage.got(3, other)) == ([], [], [])
    other.read_on(3)
    stage.delivery.acknowledged(full)
    stage.deliver()
    assert [body for _, _, body in stage.got(3, other)] == [b"x"]


def test_session_without_a_connection_is_sent_nothing_and_goes_on_with_the_next() -> None:
    stage = Stage()
    session = stage.session(1, "t/a", 1, inflight_max=1)
    stage.session(2, "t/a", 1)
    stage.publish("t/a", b"1")
    stage.publish("t/a", b"2")
    stage.deliver()
    assert session.lagging
    session.detach()
    stage.delivery._plans.replan("t/a")
    session.acknowledge([1])
    stage.delivery.acknowledged(session)
    stage.publish("t/a", b"3")
    stage.deliver()
    assert [body for _, _, body in stage.got(1)] == [b"1"]
    assert [body for _, _, body in stage.got(2)] == [b"1", b"2", b"3"]
    stage.output.open(3)
    session.attach(Connection(stage.output, 3, version=4), inflight_max=10)
    stage.delivery._plans.replan("t/a")
    stage.delivery.acknowledged(session)
    stage.deliver()
    assert [body for _, _, body in stage.got(3)] == [b"2", b"3"]


def test_lagging_receiver_whose_slice_ends_is_not_left_waiting_for_other_traffic() -> None:
    stage = Stage()
    session = stage.session(1, "t/a", 1, inflight_max=1)
    stage.publish("t/a", b"1")
    for _ in range(300):
        stage.publish("t/b", b"of no interest")
    stage.publish("t/a", b"2")
    stage.publish("t/a", b"3")
    stage.deliver()
    assert session.lagging
    for _ in range(3):  # the window is free, but what it may get is far behind its cursor
        session.inflight.ack(len(stage.got(1)))
        stage.delivery.acknowledged(session)
        stage.wakes = 0
        while stage.delivery.deliver(stage.log.now_ms):
            assert stage.wakes
            stage.wakes = 0
    assert [payload for _, _, payload in stage.got(1)] == [b"1", b"2", b"3"]


def test_lagging_in_one_queue_does_not_hold_up_another() -> None:
    stage = Stage()
    session = stage.session(1, "t/#", 1, inflight_max=1)
    stage.publish("t/a", b"a1")
    stage.publish("t/a", b"a2")
    stage.deliver()
    session.inflight.ack(1)
    stage.publish("t/b", b"b1", queue_id=1)
    stage.deliver()
    assert [payload for _, _, payload in stage.got(1)] == [b"a1", b"b1"]


def test_receiver_that_lags_in_many_queues_reads_about_what_it_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    stage.log.create_topic("wide", 8)
    session = stage.session(1, "wide/#", 1, inflight_max=20)
    for number in range(1600):
        stage.publish(f"wide/{number % 5}", b"%d" % number, queue_id=number % 8)
    read, looked_at = stage.log.read, 0

    def counted(*args: Any, **how: Any) -> Any:
        nonlocal looked_at
        found = read(*args, **how)
        looked_at += getattr(found, "next_offset", 0) - getattr(found, "begin_offset", 0)
        return found

    stage.deliver()
    monkeypatch.setattr(stage.log, "read", counted)
    while session.has_inflight:
        for packet_id, _ in list(session.inflight):
            session.inflight.ack(packet_id)
        stage.delivery.acknowledged(session)
        stage.deliver()
    got = [int(payload) for _, _, payload in stage.got(1)]
    assert sorted(got) == list(range(1600))
    for queue_id in range(8):
        assert [n for n in got if n % 8 == queue_id] == list(range(queue_id, 1600, 8))
    assert looked_at < 2.5 * 1600


def test_receiver_that_lags_gets_what_its_subscriptions_want_by_then() -> None:
    stage = Stage()
    session = stage.session(1, "t/#", 1, inflight_max=1)
    stage.subscribe(session, "t/a", 0)
    for number in range(8):
        stage.publish("t/ab"[: 3 + number % 2], b"%d" % number)
    stage.deliver()
    for packet_id in range(1, 4):
        session.inflight.ack(packet_id)
        stage.delivery.acknowledged(session)
        stage.deliver()
    assert [payload for _, _, payload in stage.got(1)] == [b"0", b"1", b"2", b"3"]
    stage.unsubscribe(session, "t/#")
    session.inflight.ack(4)
    stage.delivery.acknowledged(session)
    stage.deliver()
    assert stage.got(1)[4:] == [("t/a", 0, b"4"), ("t/a", 0, b"6")]


def test_receiver_alone_gets_each_kind_of_message_in_order_and_within_its_window() -> None:
    stage = Stage()
    session = stage.session(1, "t/#", 1, inflight_max=3)
    kinds: list[dict[str, Any]] = [{}, {"qos": 0}, {"extra": b"mqttRetain\x011\x02"}, {}]
    kinds.append({"extra": encode_properties({"mqttProperties": ""})})
    names = ["t/a", "t/b", "t/c"]
    for number in range(40):
        stage.publish(names[number % 3], b"%d" % number, **kinds[number % len(kinds)])
        if number % 7 == 3:
            stage.append("t", b"zip", encode_properties({"mqttRealTopic": "t/z"}), sys_flag=1)
    while session.has_inflight or not stage.got(1):
        stage.deliver()
        assert len(session.inflight) <= 3
        for packet_id, _ in list(session.inflight):
            session.inflight.ack(packet_id)
        stage.delivery.acknowledged(session)
        stage.deliver()
    got = stage.got(1)
    assert [int(payload) for _, _, payload in got] == list(range(40))
    assert [name for name, _, _ in got] == [names[number % 3] for number in range(40)]
    assert [not packet_id for _, packet_id, _ in got] == [n % 5 == 1 for n in range(40)]
    assert session.lagging is None
    assert not stage.delivery._catch_up._idle


def test_retention_that_passes_a_cursor_is_counted() -> None:
    stage = Stage()
    session = stage.session(1, "t/a", 1, inflight_max=1)
    for number in range(10):
        stage.publish("t/a", b"%d" % number)
    stage.deliver()
    stage.log.begin_offsets[("t", 0)] = 6
    session.inflight.ack(1)
    stage.delivery.acknowledged(session)
    stage.deliver()
    assert [payload for _, _, payload in stage.got(1)] == [b"0", b"6"]
    assert stage.metrics.messages_lost_to_retention == 5


def test_queue_whose_records_are_on_the_disk_holds_up_no_other() -> None:
    stage = Stage()
    stage.session(1, "t/#", 1)
    stage.log.cold = {0}
    for number in range(3):
        stage.publish("t/a", b"a%d" % number)
    stage.deliver()
    assert stage.got(1) == []
    stage.log.cold = set()  # of that queue alone
    stage.publish("t/b", b"b", queue_id=1)
    stage.publish("t/a", b"a3")
    stage.deliver()
    assert [payload for _, _, payload in stage.got(1)] == [b"b"]
    # Asked for once, however often the queue has grown.
    assert len(stage.log.paging_in) == 1
    stage.wakes = 0
    stage.log.paged_in()
    assert stage.wakes == 1
    stage.deliver()
    assert [payload for _, _, payload in stage.got(1)] == [b"b", b"a0", b"a1", b"a2", b"a3"]


def test_what_cannot_be_kept_in_memory_is_read_all_the_same() -> None:
    stage = Stage()
    stage.session(1, "t/a", 1)
    stage.log.cold = {0}
    stage.publish("t/a", b"1")
    page_ins = 0
    while not stage.got(1):
        stage.deliver()
        page_ins += len(stage.log.paging_in)
        stage.log.paged_in(is_warm=False)
    assert page_ins == 3


def test_lagging_receiver_waits_for_the_disk_and_others_do_not() -> None:
    stage = Stage()
    session = stage.session(1, "t/a", 1, inflight_max=1)
    stage.session(2, "t/a", 1)
    for number in range(4):
        stage.publish("t/a", b"%d" % number)
    stage.deliver()
    stage.log.cold = {1}
    session.inflight.ack(1)
    for _ in range(3):
        stage.delivery.acknowledged(session)
        stage.deliver()
    assert len(stage.log.paging_in) == 1
    stage.publish("t/a", b"4")
    stage.deliver()
    assert [payload for _, _, payload in stage.got(2)] == [b"%d" % n for n in range(5)]
    assert [payload for _, _, payload in stage.got(1)] == [b"0"]
    stage.log.paged_in()
    stage.deliver()
    assert [payload for _, _, payload in stage.got(1)] == [b"0", b"1"]
    assert not stage.delivery._catch_up._resending._reads._attempts


def lagging_session(stage: Stage) -> Session:
    """Return a session that can receive a second message, which is not in memory."""
    session = stage.session(1, "t/a", 1, inflight_max=1)
    stage.publish("t/a", b"1")
    stage.publish("t/a", b"2")
    stage.deliver()
    stage.log.cold = {1}
    session.inflight.ack(1)
    stage.delivery.acknowledged(session)
    return session


def test_session_that_ends_while_its_records_are_paged_in_is_forgotten() -> None:
    stage = Stage()
    session = lagging_session(stage)
    stage.deliver()
    stage.delivery.forget(session)
    session.detach()
    stage.unsubscribe(session, "t/a")
    stage.log.paged_in()
    stage.deliver()
    assert not stage.delivery._catch_up._resending._reads._attempts
    assert len(stage.got(1)) == 1


def test_session_that_ends_before_it_reads_again_is_forgotten() -> None:
    stage = Stage()
    session = lagging_session(stage)
    stage.deliver()
    stage.log.paged_in()
    stage.delivery.forget(session)
    assert not stage.delivery._catch_up._resending._reads._attempts


def test_lagging_receiver_reads_what_cannot_be_kept_in_memory_all_the_same() -> None:
    stage = Stage()
    lagging_session(stage)
    page_ins = 0
    while len(stage.got(1)) < 2:
        stage.deliver()
        page_ins += len(stage.log.paging_in)
        stage.log.paged_in(is_warm=False)
    assert page_ins == 3


def test_closed_session_is_forgotten_while_it_lags() -> None:
    stage = Stage()
    session = stage.session(1, "t/a", 1, inflight_max=1)
    stage.publish("t/a", b"1")
    stage.publish("t/a", b"2")
    stage.deliver()
    stage.delivery.acknowledged(session)
    stage.delivery.forget(session)
    session.detach()
    stage.unsubscribe(session, "t/a")
    stage.deliver()
    assert stage.metrics.receivers_lagging_now == 0
    assert len(stage.got(1)) == 1


@pytest.mark.parametrize("options", [0, 1, 1 | NO_LOCAL])
def test_properties_go_to_version_5_receivers_alone(options: int) -> None:
    stage = Stage()
    stage.session(1, "t/a", options, version=5)
    stage.session(2, "t/a", options)
    stage.publish("t/a", b"x", extra=publish_properties(Properties(payload_format_indicator=1)))
    stage.deliver()
    assert stage.got(1)[0][2] == b"\x02\x01\x01x"
    assert stage.got(2)[0][2] == b"x"


def test_no_local_skips_the_publisher_alone() -> None:
    stage = Stage()
    stage.session(1, "t/a", 1 | NO_LOCAL, version=5)
    stage.session(2, "t/a", 1 | NO_LOCAL, version=5)
    stage.publish("t/a", b"x", extra=publisher_properties("c1"))
    stage.deliver()
    assert stage.got(1) == []
    assert len(stage.got(2)) == 1


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_lagging", [False, True])
def test_own_message_comes_by_the_subscriptions_without_no_local_alone(
    is_first: bool, is_lagging: bool
) -> None:
    stage = Stage()
    session = stage.session(1, "t/b", 1, version=5, inflight_max=1)
    filters = [("t/a", 2 | NO_LOCAL | HAS_IDENTIFIER), ("t/+", 0)]
    for topic_filter, options in filters if is_first else reversed(filters):
        stage.subscribe(session, topic_filter, options)
    session.particulars.identifiers["t/a"] = 9
    if is_lagging:
        for payload in (b"in flight", b"waits"):
            stage.publish("t/b", payload)
        stage.deliver()
        assert len(stage.got(1)) == 1
    stage.publish("t/a", b"own", extra=publisher_properties("c1"))
    stage.publish("t/a", b"own", qos=0, extra=publisher_properties("c1"))
    stage.publish("t/a", b"other", extra=publisher_properties("c2"))
    stage.deliver()
    while session.has_inflight and len(session.inflight):
        session.inflight.ack(next(packet_id for packet_id, _ in session.inflight))
        stage.delivery.acknowledged(session)
        stage.deliver()
    packets = [packet for packet in stage.output.sent[1] if b"t/a" in packet]
    own = bytes.fromhex("30 09 0003 742f61 00") + b"own"
    assert packets[:2] == [own, own]
    [other] = packets[2:]
    assert other[0] == 0x32
    assert other.endswith(b"\x02\x0b\x09other")


def test_packet_larger_than_the_receiver_takes_is_dropped_for_it_alone() -> None:
    stage = Stage()
    stage.session(1, "t/a", 1, version=5, packet_bytes_max=20)
    stage.session(2, "t/a", 1, version=5)
    stage.publish("t/a", bytes(50))
    stage.publish("t/a", b"small")
    stage.deliver()
    assert [rest for _, _, rest in stage.got(1)] == [b"\x00small"]
    assert len(stage.got(2)) == 2
    assert stage.metrics.messages_dropped_too_large == 1


def test_expired_message_is_not_delivered() -> None:
    stage = Stage()
    stage.session(1, "t/a", 1)
    text = publish_properties(Properties(message_expiry_interval_s=5))
    stage.publish("t/a", b"old", extra=text)
    stage.log.now_ms += 5_000
    stage.deliver()
    assert stage.got(1) == []
    assert stage.metrics.messages_expired == 1


def test_native_message_arrives_under_queue_topic_and_tag() -> None:
    stage = Stage()
    stage.session(1, "t/#", 1)
    stage.append("t", b"tagged", encode_properties({"TAGS": "dev7"}))
    stage.append("t", b"plain", b"")
    stage.deliver()
    assert [(name, body) for name, _, body in stage.got(1)] == [
        ("t/dev7", b"tagged"),
        ("t", b"plain"),
    ]


def test_native_names_that_no_device_may_use_are_counted_and_skipped() -> None:
    stage = Stage()
    stage.session(1, "#", 1)
    stage.append("t", b"x", encode_properties({"mqttRealTopic": "a/+/b"}))
    stage.append("t", b"y", b"mqttRealTopic\x01\xff\xfe\x02")
    stage.append("t", b"fine", b"")
    stage.deliver()
    assert [body for _, _, body in stage.got(1)] == [b"fine"]
    assert stage.metrics.messages_undeliverable == 2


@pytest.mark.parametrize("options", [1, 1 | RETAIN_AS_PUBLISHED])
@pytest.mark.parametrize(
    "properties", ['{"payloadFormat":7}', '{"x":' + "[" * 15_000 + "]" * 15_000 + "}"]
)
def test_native_properties_that_no_device_may_send_are_left_out(
    properties: str, options: int
) -> None:
    stage = Stage()
    stage.session(1, "t", options, version=5)
    stage.session(2, "t", 1)
    stage.append("t", b"odd", b"mqttProperties\x01" + properties.encode() + b"\x02")
    stage.append("t", b"fine", b"")
    stage.deliver()
    assert [rest for _, _, rest in stage.got(1)] == [b"\0odd", b"\0fine"]
    assert stage.metrics.properties_left_out == 1


def test_compressed_native_body_is_inflated_within_its_limit() -> None:
    stage = Stage()
    stage.session(1, "t", 0)
    stage.append("t", zlib.compress(b"hello"), b"", sys_flag=1)
    stage.append("t", zlib.compress(bytes(5_000_000)), b"", sys_flag=1)
    stage.append("t", b"not zlib", b"", sys_flag=1)
    stage.deliver()
    assert [body for _, _, body in stage.got(1)] == [b"hello"]
    assert stage.metrics.messages_undeliverable == 2


def test_many_messages_take_several_slices() -> None:
    stage = Stage()
    stage.session(1, "t/a", 0)
    for number in range(5000):
        stage.publish("t/a", b"%d" % number, 0)
    stage.deliver()
    assert [int(body) for _, _, body in stage.got(1)] == list(range(5000))


def test_a_queue_whose_tail_is_not_known_is_read_from_there_as_soon_as_it_is() -> None:
    stage = Stage()
    stage.publish("t/a", b"before")
    stage.log.knows_tails = False
    stage.session(1, "t/a", 1)
    stage.publish("t/a", b"meanwhile")
    stage.deliver()
    assert stage.got(1) == []
    stage.log.tell_tails()
    stage.publish("t/a", b"after")
    stage.deliver()
    assert [payload for _, _, payload in stage.got(1)] == [b"after"]


@pytest.mark.parametrize(("missed", "wakes"), [(0, 0), (3, 1)])
def test_session_that_comes_back_wakes_delivery_if_something_waits(missed: int, wakes: int) -> None:
    stage = Stage()
    stage.session(1, "t/a", 1)  # so that the queue is read
    tail = stage.log.tail(stage.log.queue_tail("t", 0))
    for _ in range(missed):
        stage.publish("t/a", b"x")
    stage.deliver()
    session = stage.session(2, "t/b", 1)
    stage.wakes = 0
    filters = (StoredFilter("t/a", 1),)
    cursors = {"t/0": tail or 0, "t/1": 0}
    stored = StoredSession(session.client_id, 60, 1, filters, cursors)
    stage.tree.add("t/a", session, 1)
    stage.delivery.resume(session, stored)
    assert stage.wakes == wakes
    stage.deliver()
    assert len(stage.got(2)) == missed
