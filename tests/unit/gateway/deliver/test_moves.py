"""Publishers move to a queue that was added to a topic: receivers get their messages in order."""

from __future__ import annotations

import pytest

from motelog.gateway.log.log_port import Moved
from motelog.gateway.sessions.session import Session
from motelog.gateway.state.stored import StoredFilter, StoredSession
from tests.support.fake_log import FakeLog
from tests.unit.gateway.deliver.test_delivery import Stage

OLD, NEW = 0, 1


class MoveStage(Stage):
    """Publishers of the topic "t" move from its first queue to its second one."""

    def __init__(self, log: FakeLog | None = None) -> None:
        super().__init__(log)
        self.old, self.new = (self.log.queue_tail("t", number) for number in (OLD, NEW))

    def begin_move(self) -> None:
        self.log.moved[self.new] = Moved(0, [self.old])
        self.log.report("t")
        self.deliver()

    def end_move(self) -> None:
        self.log.now_ms += 10
        self.log.moved[self.new] = Moved(self.log.now_ms, [self.old])
        self.log.report("t")
        self.deliver()

    def move(self) -> None:
        self.begin_move()
        self.end_move()

    def take(self, number: int) -> list[bytes]:
        """Return what a client has got; it acknowledges nothing."""
        got = [payload for _, _, payload in self.got(number)]
        self.output.sent.pop(number, None)
        return got

    def take_all(self, number: int, session: Session) -> list[bytes]:
        """Acknowledge whatever comes until nothing comes; return it."""
        found: list[bytes] = []
        while batch := self.got(number):
            self.output.sent.pop(number)
            for _, packet_id, payload in batch:
                found.append(payload)
                assert not packet_id or session.inflight.ack(packet_id)
            self.delivery.acknowledged(session)
            self.deliver()
        return found

    def come_back(self, number: int, cursors: dict[str, int]) -> Session:
        """Resume a session that was away."""
        session = self.session(number, "none/x", 1)
        self.unsubscribe(session, "none/x")
        stored = StoredSession(session.client_id, 60, 1, (StoredFilter("t/#", 1),), cursors)
        self.tree.add("t/#", session, 1)
        session.add_filter("t/#")
        self.delivery.resume(session, stored)
        self.deliver()
        return session


def test_the_live_path_rests_until_it_has_read_what_is_older() -> None:
    stage = MoveStage()
    stage.session(1, "t/#", 1)
    stage.log.cold.add(0)
    stage.publish("t/a", b"older", queue_id=OLD)
    stage.deliver()  # it waits for the log
    stage.begin_move()
    stage.publish("t/a", b"younger", queue_id=NEW)  # by a gateway where the move is over
    stage.deliver()
    assert stage.take(1) == []
    stage.end_move()
    assert stage.take(1) == []
    stage.log.paged_in()
    stage.deliver()
    assert stage.take(1) == [b"older", b"younger"]
    stage.publish("t/a", b"next", queue_id=NEW)
    stage.deliver()
    assert stage.take(1) == [b"next"]


def test_a_live_path_that_has_read_everything_goes_on_by_itself() -> None:
    stage = MoveStage()
    stage.session(1, "t/#", 1)
    stage.begin_move()
    stage.publish("t/a", b"1", queue_id=NEW)
    stage.deliver()
    assert stage.take(1) == []
    stage.end_move()
    assert stage.take(1) == [b"1"]


@pytest.mark.parametrize("qos", [0, 1])
def test_a_receiver_that_lags_gets_what_is_older_first(qos: int) -> None:
    stage = MoveStage()
    slow = stage.session(1, "t/#", 1, inflight_max=1)
    stage.session(2, "t/#", 1)
    for number in range(3):
        stage.publish("t/a", b"older %d" % number, queue_id=OLD)
    stage.deliver()
    stage.move()
    for number in range(3):
        stage.publish("t/a", b"younger %d" % number, qos, queue_id=NEW)
    stage.publish("t/b", b"of one that stays", queue_id=OLD)
    stage.deliver()
    expected = [b"%s %d" % (age, number) for age in (b"older", b"younger") for number in range(3)]
    assert sorted(stage.take(2)) == sorted([*expected, b"of one that stays"])
    assert [body for body in stage.take_all(1, slow) if body in expected] == expected
    assert slow.lagging is None


def test_a_receiver_that_lags_in_both_queues_reads_on_in_the_old_one_first() -> None:
    stage = MoveStage()
    slow = stage.session(1, "t/#", 1, inflight_max=2)
    for _ in range(4):  # a native producer has written to both
        for queue_id in (NEW, OLD):
            stage.publish("t/n", b"native", queue_id=queue_id)
    for number in range(3):
        stage.publish("t/a", b"older %d" % number, queue_id=OLD)
    stage.deliver()
    stage.move()
    stage.publish("t/a", b"younger", queue_id=NEW)
    stage.deliver()
    got = [body for body in stage.take_all(1, slow) if body != b"native"]
    assert got == [b"older 0", b"older 1", b"older 2", b"younger"]


@pytest.mark.parametrize("cursors", [{"t/0": 1}, {"t/0": 1, "t/1": 0}, {"t/0": 1, "t/1": 1}])
def test_a_session_that_comes_back_gets_what_is_older_first(cursors: dict[str, int]) -> None:
    stage = MoveStage()
    stage.session(1, "t/#", 1)
    stage.publish("t/n", b"native", queue_id=NEW)
    for number in range(4):
        stage.publish("t/a", b"older %d" % number, queue_id=OLD)
    stage.move()
    if cursors.get("t/1") != 1:  # else it is at the live position there
        stage.publish("t/a", b"younger", queue_id=NEW)
    stage.deliver()
    stage.log.cold.add(1)  # what is older has to be fetched
    session = stage.come_back(2, cursors)
    stage.publish("t/a", b"youngest", queue_id=NEW)
    stage.deliver()
    assert stage.take(2) == []
    stage.log.paged_in()
    stage.deliver()
    got = [body for body in stage.take_all(2, session) if body != b"native"]
    assert got[:3] == [b"older 1", b"older 2", b"older 3"]
    assert got[-1] == b"youngest"


def test_a_session_that_has_read_on_since_the_move_does_not_wait_for_the_old_queue() -> None:
    stage = MoveStage()
    stage.session(1, "t/#", 1)
    stage.publish("t/a", b"older", queue_id=OLD)
    stage.move()
    for number in range(3):
        stage.publish("t/a", b"younger %d" % number, queue_id=NEW)
    stage.deliver()
    log = stage.log
    log.knows_tails = False
    later = MoveStage(log)  # after a restart
    first = later.come_back(3, {"t/0": 1, "t/1": 1})
    other = later.come_back(4, {"t/0": 0, "t/1": 0})
    for _ in range(2):  # the tail, and then where the move was
        log.tell_tails(but=stage.old)  # its broker is away
        later.deliver()
    assert later.take_all(3, first) == [b"younger 1", b"younger 2"]
    assert later.take_all(4, other) == []
    log.tell_tails()
    later.deliver()
    assert later.take_all(4, other) == [b"older", b"younger 0", b"younger 1", b"younger 2"]
