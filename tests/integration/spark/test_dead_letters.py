"""The job dead-letters on a running stack: good and bad together are what was sent."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from motelog.bridge.sync import SyncProducer
from motelog.core.message import Message
from tests.integration.spark.conftest import forget_last_commit, stored

pytestmark = pytest.mark.spark

TOPIC = "spark_sorted"


def speak(producer: SyncProducer, numbers: range) -> Counter[tuple[str | None, bytes]]:
    """Send readings of five devices, every fourth of them damaged in some way."""
    drawn = random.Random(numbers.start)
    said: Counter[tuple[str | None, bytes]] = Counter()
    messages = []
    for n in numbers:
        body = b'{"n": %d, "value": %.2f}' % (n, drawn.gauss(20, 3))
        if n % 4 == 0:
            cut = drawn.randrange(len(body))
            body = drawn.choice([body[:cut], drawn.randbytes(20), b'{"value": "high"}'])
        messages.append(Message(TOPIC, body, tags=f"dev{n % 5}", keys=(f"k{n}",)))
        said[f"dev{n % 5}", body] += 1
    producer.send_batch(messages)
    return said


@pytest.mark.usefixtures("spark_session")
def test_good_and_bad_are_what_was_sent_over_a_crash(
    producer: SyncProducer, namesrv: str, tmp_path: Path
) -> None:
    from motelog.spark.run import run

    argv = ["--namesrv", namesrv, "--topic", TOPIC, "--good", f"{TOPIC}_good", "--once"]
    argv += ["--checkpoint", str(tmp_path), "--require", "value:number"]
    said = speak(producer, range(200))
    assert run("dead-letters", argv) == 0
    forget_last_commit(tmp_path)
    said += speak(producer, range(200, 300))
    assert run("dead-letters", argv) == 0

    good, dead = (stored(namesrv, f"{TOPIC}_{kind}") for kind in ("good", "dead"))
    assert Counter((one.device, one.body) for one in [*good, *dead]) == said
    assert len(dead) == 75
    assert not any("reason" in one.properties for one in good)
    origins: dict[tuple[str, ...], Any] = {
        (f"{one.queue_id}", f"{one.queue_offset}"): one for one in stored(namesrv, TOPIC)
    }
    for one in dead:
        pairs = one.properties
        origin = origins[pairs["originQueue"].rpartition("/")[2], pairs["originOffset"]]
        assert (origin.body, origin.keys, pairs["originTopic"]) == (one.body, one.keys, TOPIC)
        assert pairs["reason"].startswith(("not JSON", "field 'value' is"))
