"""kill -9 of the whole stack under MQTT load: what was acknowledged is in the log afterwards."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from motelog import SyncPullConsumer
from motelog.testing import MotelogProcess
from tests.support.mqtt_wire import Wire

PUBLISHERS = 8
ROUNDS = 3
KILL_AFTER = 400


class Publisher(threading.Thread):
    """Publishes numbered QoS 1 messages, 10 in flight, until its connection breaks."""

    def __init__(
        self, address: tuple[str, int], name: str, first: int, reached: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self.wire = Wire(address)
        assert self.wire.connect(name).reason_code == 0
        self.device = name
        self.sent = self.first = first
        self.acknowledged: list[int] = []
        self._reached = reached

    def run(self) -> None:
        try:
            while True:
                while self.sent - self.first - len(self.acknowledged) < 10:
                    packet_id = self.sent % 60_000 + 1
                    payload = f"{self.device}:{self.sent}".encode()
                    self.wire.publish(f"kill/{self.device}/n", payload, packet_id=packet_id)
                    self.sent += 1
                first_byte, body = self.wire.packet()
                assert first_byte == 0x40
                number = self.first + len(self.acknowledged)
                assert int.from_bytes(body[:2], "big") == number % 60_000 + 1
                self.acknowledged.append(number)
                if len(self.acknowledged) > KILL_AFTER:
                    self._reached.set()
        except OSError:
            pass
        finally:
            self.wire.socket.close()


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_nothing_acknowledged_is_lost_or_reordered(tmp_path: Path, flush: str) -> None:
    acknowledged: dict[str, list[int]] = {f"dev{i}": [] for i in range(PUBLISHERS)}
    sent = dict.fromkeys(acknowledged, 0)
    for _ in range(ROUNDS):
        with MotelogProcess(data=tmp_path, options=["--flush", flush]) as motelog:
            reached = threading.Event()
            publishers = [
                Publisher(motelog.mqtt, device, sent[device], reached) for device in acknowledged
            ]
            for publisher in publishers:
                publisher.start()
            assert reached.wait(60)
            motelog.kill()
            for publisher in publishers:
                publisher.join(20)
                acknowledged[publisher.device] += publisher.acknowledged
                sent[publisher.device] = publisher.sent
    with MotelogProcess(data=tmp_path, options=["--flush", flush]) as motelog:
        stored = read_all(motelog)
    for device, numbers in acknowledged.items():
        got = stored[device]
        assert got == sorted(set(got)), f"{device}: out of order or doubled"
        assert set(numbers) <= set(got), f"{device}: acknowledged and lost"
        assert set(got) <= set(range(sent[device])), f"{device}: invented"


def read_all(motelog: MotelogProcess) -> dict[str, list[int]]:
    """Return the numbers of every device in the order of its queue."""
    host, port = motelog.namesrv
    stored: dict[str, list[int]] = {}
    with SyncPullConsumer(namesrv=f"{host}:{port}", group="after") as consumer:
        queues = consumer.queues("kill", wait_s=10)
        ends = consumer.end_offsets(queues)
        consumer.assign(queues)
        left = sum(ends.values())
        while left > 0:
            messages = consumer.poll(timeout_s=10)
            assert messages, f"{left} messages do not arrive"
            left -= len(messages)
            for message in messages:
                device, _, number = message.body.decode().partition(":")
                stored.setdefault(device, []).append(int(number))
    return stored
