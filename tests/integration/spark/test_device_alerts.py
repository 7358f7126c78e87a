"""The job device-alerts on a running stack: each alert reaches a subscriber once, over a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from motelog.bridge.sync import SyncProducer
from motelog.core.message import Message
from tests.integration.spark.conftest import Subscriber, stored

# A session of its own is killed: most of a minute.
pytestmark = [pytest.mark.spark, pytest.mark.java_all, pytest.mark.timeout(600)]

TOPIC = "spark_watched"
ALERTS = "spark_alerts"
DEVICES = [f"dev{n}" for n in range(4)]
PAUSED = "paused"
SILENCE_S = 3


def speak(producer: SyncProducer, devices: list[str], peak: float | None = None) -> None:
    """Send 40 readings of each device, the last of them ``peak``."""
    drawn = random.Random(1)
    messages = []
    for n in range(40):
        for device in devices:
            value = peak if n == 39 and peak is not None else drawn.gauss(20, 1)
            messages.append(Message(TOPIC, b'{"value": %.3f}' % value, tags=device))
    producer.send_batch(messages)


@pytest.mark.usefixtures("spark_session")
def test_each_alert_is_heard_once_over_a_kill(
    producer: SyncProducer,
    namesrv: str,
    subscribe: Callable[[str], Subscriber],
    tmp_path: Path,
) -> None:
    pytest.importorskip("google.protobuf", reason="needs the [spark] extra")
    from motelog.spark.run import run

    conf = tmp_path / "alerts.toml"
    conf.write_text(
        f'namesrv = "{namesrv}"\ntopic = "{TOPIC}"\nalerts = "{ALERTS}"\nsilence = {SILENCE_S}\n'
        f'checkpoint = "{tmp_path}/checkpoint"\nmaster = "local[2]"\n'
    )
    subscriber = subscribe(f"{ALERTS}/#")
    # Its gap lies among the rows of one batch, where no timer can run out. Tags that no topic name
    # has are left out.
    producer.send_batch([Message(TOPIC, b"", tags=tag) for tag in (PAUSED, "a+b", "#")])
    time.sleep(SILENCE_S + 0.1)
    producer.send(Message(TOPIC, b"", tags=PAUSED))
    speak(producer, DEVICES, peak=99.0)
    command = [sys.executable, "-m", "motelog", "spark", "run", "device-alerts", f"--conf={conf}"]
    with open(tmp_path / "first.log", "wb") as log:
        first = subprocess.Popen([*command, "--interval=1"], stderr=log, start_new_session=True)
    try:
        # It is writing what it found in its first batch.
        subscriber.wait_for(1)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()

    stop, failed = threading.Event(), list[Exception]()

    def wait_for_timers() -> None:
        try:
            subscriber.wait_for(len(DEVICES) + 2 + len(DEVICES) + 1)
        except Exception as exc:
            failed.append(exc)
        finally:
            stop.set()

    waiter = threading.Thread(target=wait_for_timers)
    waiter.start()
    assert run("device-alerts", [f"--conf={conf}", "--interval=1"], stop) == 0
    waiter.join()
    assert not failed, failed
    speak(producer, DEVICES[:2])
    assert run("device-alerts", [f"--conf={conf}", "--once"]) == 0

    wanted = Counter({(PAUSED, "offline"): 2, (PAUSED, "online"): 1})
    wanted.update((device, kind) for device in DEVICES for kind in ("anomaly", "offline"))
    wanted.update((device, "online") for device in DEVICES[:2])
    heard = subscriber.wait_for(wanted.total())
    names = [tuple(topic.split("/")) for topic, _, _ in heard]
    assert Counter((device, kind) for _, device, kind in names) == wanted
    assert {qos for _, _, qos in heard} == {2}
    told = [json.loads(payload) for _, payload, _ in heard]
    assert [(ALERTS, one["device"], one["kind"]) for one in told] == names
    anomaly: dict[str, Any] = next(one for one in told if one["kind"] == "anomaly")
    assert (anomaly["value"], round(anomaly["mean"])) == (99.0, 20)
    assert len(stored(namesrv, ALERTS)) == wanted.total()
