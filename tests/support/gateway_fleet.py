"""Several gateways on one log in memory, played turn by turn.

Owns: Fleet. Must not touch: expectations; those are the tests'.
"""

from __future__ import annotations

from typing import Any

from motelog.core.clock import ManualClock
from motelog.core.net.reactor_types import CloseReason
from motelog.gateway.config import GatewayConfig
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import NO_PROPERTIES, Connect, Properties
from tests.support.fake_log import FakeLog
from tests.support.gateway_stage import Stage

HOUR = Properties(session_expiry_interval_s=3600)


class Fleet:
    """Gateways by name; ``settle`` lets all of them read back whatever there is."""

    def __init__(
        self, *names: str, config: GatewayConfig | None = None, connections_max: int = 16
    ) -> None:
        self.log = FakeLog()
        self.clock = ManualClock(self.log.now_ms)
        self._config = config
        self._connections_max = connections_max
        self.stages: dict[str, Stage] = {}
        for name in names:
            self.start(name)
        self.settle()

    def __getitem__(self, name: str) -> Stage:
        return self.stages[name]

    def start(self, name: str) -> Stage:
        """Start a gateway; one of the same name has been killed."""
        stage = self.stages[name] = Stage(
            self._config,
            log=self.log,
            name=name,
            clock=self.clock,
            connections_max=self._connections_max,
        )
        return stage

    def kill(self, name: str) -> Stage:
        """Have a gateway do nothing any more; what it has sent is still there."""
        return self.stages.pop(name)

    def settle(self) -> None:
        """Have all gateways read back and deliver until nothing happens any more."""
        before = -1
        while before != self.log.end_offset:
            before = self.log.end_offset
            for stage in list(self.stages.values()):
                self.read_back(stage)

    def read_back(self, stage: Stage) -> None:
        while stage.read_back(2):
            pass
        while stage.delivery.refresh_retained(100):
            pass
        while stage.delivery.deliver(self.clock.now_ms()):
            pass

    def tick(self, *names: str) -> None:
        """Let a second pass for these gateways, or for all; then all read back."""
        self.clock.advance(1000)
        self.log.now_ms = self.clock.now_ms()
        for name in names or list(self.stages):
            while self.stages[name].tick():
                pass
        self.settle()

    def jump(self, ms: int) -> None:
        """Let time pass at once for gateways that have not stood still meanwhile."""
        self.clock.advance(ms)
        for stage in self.stages.values():
            stage.journal.ticked_ms = self.clock.monotonic_ms()

    def connect(
        self, name: str, number: int, client_id: str = "dev", *, version: int = 5, **how: Any
    ) -> None:
        """Send a CONNECT to a gateway, by default for a session of an hour."""
        how.setdefault("clean_start", False)
        how.setdefault("properties", HOUR if version == 5 else NO_PROPERTIES)
        packet = Connect(version=version, keep_alive_s=60, client_id=client_id, **how)
        self.stages[name].turn((number, encode_connect(packet)), opened=[number])
        self.stages[name].clients._claims.commit()  # in the order of the CONNECTs

    def connected(self, name: str, number: int, client_id: str = "dev", **how: Any) -> bool:
        """Connect at a gateway; return session present."""
        self.connect(name, number, client_id, **how)
        self.settle()
        connack = self.stages[name].output.sent[number].pop(0)
        assert (connack[0], connack[3]) == (0x20, 0), connack
        return bool(connack[2])

    def lose(self, name: str, number: int) -> None:
        self.stages[name].turn(closed=[(number, CloseReason.PEER)])
