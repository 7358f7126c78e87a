"""The job device-alerts on a running stack: each alert reaches a subscriber once, over a crash."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from motelog.bridge.sync import SyncProducer
from motelog.core.message import Message
from tests.integration.spark.conftest import Subscriber, forget_last_commit, stored

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TOPIC = "spark_watched"
ALERTS = "spark_alerts"
DEVICES = [f"dev{n}" for n in range(4)]


def speak(producer: SyncProducer, devices: list[str], peak: float | None = None) -> None:
    """Send 40 readings of each device, the last of them ``peak``."""
    drawn = random.Random(1)
    messages = []
    for n in range(40):
        for device in devices:
            value = peak if n == 39 and peak is not None else drawn.gauss(20, 1)
            messages.append(Message(TOPIC, b'{"value": %.3f}' % value, tags=device))
    producer.send_batch(messages)


def kinds(heard: list[tuple[str, bytes, int]]) -> Counter[tuple[str, str]]:
    return Counter((topic.split("/")[1], topic.split("/")[2]) for topic, _, _ in heard)


@pytest.mark.usefixtures("spark_session")
def test_each_alert_is_heard_once_over_a_crash(
    producer: SyncProducer,
    namesrv: str,
    subscribe: Callable[[str], Subscriber],
    tmp_path: Path,
) -> None:
    pytest.importorskip("google.protobuf", reason="needs the [spark] extra")
    from motelog.spark.run import run

    argv = ["--namesrv", namesrv, "--topic", TOPIC, "--checkpoint", str(tmp_path)]
    argv += ["--alerts", ALERTS, "--silence", "5"]
    subscriber = subscribe(f"{ALERTS}/#")
    stop, failed = threading.Event(), list[Exception]()

    def drive() -> None:
        try:
            speak(producer, DEVICES, peak=99.0)
            # Four anomalies by rows, then four silent devices by timers.
            subscriber.wait_for(8)
        except Exception as exc:
            failed.append(exc)
        finally:
            stop.set()

    driver = threading.Thread(target=drive)
    driver.start()
    assert run("device-alerts", [*argv, "--interval", "1"], stop) == 0
    driver.join()
    assert not failed, failed
    forget_last_commit(tmp_path)
    speak(producer, DEVICES[:2])
    assert run("device-alerts", [*argv, "--once"]) == 0

    wanted: dict[tuple[str, str], int] = {}
    for device in DEVICES:
        wanted |= {(device, "anomaly"): 1, (device, "offline"): 1}
    wanted |= {(device, "online"): 1 for device in DEVICES[:2]}
    heard = subscriber.wait_for(10)
    assert kinds(heard) == wanted
    assert {qos for _, _, qos in heard} == {2}
    told = [json.loads(payload) for _, payload, _ in heard]
    anomaly: dict[str, Any] = next(one for one in told if one["kind"] == "anomaly")
    assert (anomaly["value"], round(anomaly["mean"])) == (99.0, 20)
    assert len(stored(namesrv, ALERTS)) == 10
