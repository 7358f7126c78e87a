"""The inflight window against an ordered list, after any operations."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from motelog.gateway.sessions.inflight import PACKET_ID_MAX, InflightWindow


class WindowMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.window = InflightWindow(1)
        self.model: list[tuple[int, int]] = []
        self.given = 0
        self.released: list[int] = []

    @initialize(limit=st.integers(1, 5), last=st.sampled_from([0, PACKET_ID_MAX - 3]))
    def begin(self, limit: int, last: int) -> None:
        self.window = InflightWindow(limit)
        self.window.last_packet_id = last  # the way round is too long to walk

    @rule()
    def allocate(self) -> None:
        self.given += 1
        packet_id = self.window.allocate(self.given)
        if len(self.model) == self.window.limit:
            assert packet_id == 0
            return
        assert 1 <= packet_id <= PACKET_ID_MAX
        assert packet_id not in dict(self.model)
        assert packet_id not in self.released[-100:]
        self.model.append((packet_id, self.given))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.model) - 1))
        packet_id, _ = self.model.pop(at)
        self.released.append(packet_id)
        assert self.window.ack(packet_id)
        assert not self.window.ack(packet_id)

    @rule(packet_id=st.integers(0, 70000))
    def ack_of_nothing(self, packet_id: int) -> None:
        if packet_id not in dict(self.model):
            assert not self.window.ack(packet_id)

    @invariant()
    def is_like_the_model(self) -> None:
        self.window._check()
        assert len(self.window) == len(self.model)
        assert list(self.window) == self.model


TestWindow = WindowMachine.TestCase
TestWindow.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
