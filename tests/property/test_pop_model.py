"""POP against a model: a message is given out until it is acknowledged, and is invisible between.

The broker is restarted in between, and has then of its tables what it had saved at some earlier
moment; the log is all there.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from motelog.core.broker.pop.state import REVIVE_GROUP
from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.clock import ManualClock
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.codes import RequestCode, ResponseCode
from tests.support.broker_stack import send_ext
from tests.support.broker_stage import BrokerStage, broker_stage
from tests.support.popping import ack_ext, pop_messages, receipt_of_change

QUEUES = 2
INVISIBLE_MS = st.sampled_from([0, 500, 2_000, 5_000])


class PopModel(RuleBasedStateMachine):
    """``visible_at`` has each message that is not acknowledged; ``held`` its last receipt."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = ExitStack()
        self.folder = Path(self.ends.enter_context(tempfile.TemporaryDirectory()))
        self.sent = 0
        self.visible_at: dict[bytes, int] = {}
        self.held: dict[bytes, tuple[StoredMessage, str]] = {}
        self.now_ms = ManualClock().now_ms()
        self.saved: dict[str, Any] = {}
        self.open()

    def open(self) -> None:
        self.stores = ExitStack()
        limits = {"offset_entries_max": 1000}
        # An append behind a file's end waits for a task that makes the next; none runs here.
        stage = broker_stage(self.folder, limits, commitlog_file_bytes=1 << 20)
        self.stage: BrokerStage = self.stores.enter_context(stage)
        self.stage.clock.advance(self.now_ms - self.stage.clock.now_ms())
        self.stage.topic("T", QUEUES)
        self.stage.topic("%RETRY%G_T", 1)
        self.stage.tables.groups.put(SubscriptionGroup(group_name="G", retry_max_times=1000))
        self.stage.tables.offsets.load(self.saved)
        self.stage.pop_state.load()
        self.service = self.stage.processors.pop_service

    @initialize(count=st.integers(1, 6))
    def send_first(self, count: int) -> None:
        self.send(count, 0)

    @rule(count=st.integers(1, 6), queue_id=st.integers(0, QUEUES - 1))
    def send(self, count: int, queue_id: int) -> None:
        for _ in range(count):
            body = b"%d" % self.sent
            self.sent += 1
            ext = send_ext("T", queue_id=queue_id)
            answer = self.stage.ask(RequestCode.SEND_MESSAGE_V2, ext, body)
            assert answer.code == ResponseCode.SUCCESS
            self.visible_at[body] = self.now_ms

    @rule(count=st.integers(1, 8), invisible_ms=INVISIBLE_MS)
    def pop(self, count: int, invisible_ms: int) -> None:
        """Only what is visible is given out; if anything is, the pop finds some."""
        found = pop_messages(self.stage, maxMsgNums=count, invisibleTime=invisible_ms)
        visible = {body for body, at in self.visible_at.items() if at <= self.now_ms}
        assert {message.body for message, _ in found} <= visible
        assert len(found) == len({message.body for message, _ in found})
        assert bool(found) == bool(visible)
        for message, receipt in found:
            self.visible_at[message.body] = self.now_ms + invisible_ms
            self.held[message.body] = message, receipt
        if not invisible_ms:
            self.pass_time(0)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        body = data.draw(st.sampled_from(sorted(self.held)))
        message, receipt = self.held.pop(body)
        code = self.stage.code(RequestCode.ACK_MESSAGE, ack_ext(message, receipt))
        assert code == ResponseCode.SUCCESS
        # After its time, the receipt is void, and the message is there again.
        if self.visible_at.get(body, 0) > self.now_ms:
            del self.visible_at[body]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), invisible_ms=INVISIBLE_MS)
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        body = data.draw(st.sampled_from(sorted(self.held)))
        message, receipt = self.held[body]
        ext = ack_ext(message, receipt, invisibleTime=invisible_ms)
        answer = self.stage.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        if self.visible_at.get(body, 0) > self.now_ms:
            assert answer.code == ResponseCode.SUCCESS
            self.visible_at[body] = self.now_ms + invisible_ms
            self.held[body] = message, receipt_of_change(receipt, message, answer)
            self.pass_time(0)
        else:
            assert answer.code == ResponseCode.NO_MESSAGE

    @rule(ms=st.sampled_from([1, 499, 2_000, 10_000]))
    def pass_time(self, ms: int) -> None:
        self.stage.clock.advance(ms)
        self.now_ms += ms
        trio.run(self.service.revive)

    @rule()
    def save(self) -> None:
        """Note for good what may be, and save the table."""
        self.service.progress.commit(self.stage.store.end_offset)
        topic = self.stage.pop_state.revive_topic
        for queue, last in enumerate(self.service.checkpoints.done_with()):
            if last >= 0:
                self.stage.tables.offsets.commit(REVIVE_GROUP, topic, queue, last)
        self.saved = self.stage.tables.offsets.snapshot()

    @rule()
    def kill(self) -> None:
        """Start again with the log, and with the table as it was saved."""
        self.stores.close()
        self.open()

    @invariant()
    def counts_agree(self) -> None:
        self.service.checkpoints._check()
        in_work = sum(at > self.now_ms for at in self.visible_at.values())
        assert self.service.checkpoints.open_count == in_work

    def teardown(self) -> None:
        """In the end each message that was not acknowledged can be had."""
        self.kill()
        self.pass_time(10_000)
        left: set[bytes] = set()
        while found := pop_messages(self.stage, maxMsgNums=32, invisibleTime=60_000):
            left |= {message.body for message, _ in found}
        assert left == set(self.visible_at)
        self.stores.close()
        self.ends.close()


PopModel.TestCase.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, print_blob=True
)
TestPop = PopModel.TestCase
