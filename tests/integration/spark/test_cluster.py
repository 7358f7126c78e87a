"""A job on a standalone cluster of two workers, one of which is killed, and then the job itself."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from motelog.bridge.sync import SyncProducer
from motelog.core.message import UNIQ_KEY, Message
from motelog.testing import MotelogProcess
from tests.support.spark_cluster import SparkCluster

# It starts seven JVMs: with the pairings, outside the suite.
pytestmark = [pytest.mark.spark, pytest.mark.java_all, pytest.mark.timeout(400)]

TOPIC = "cluster_lake"
WAIT_S = 150


def send(producer: SyncProducer, begin: int, end: int) -> None:
    """Send messages, each with an id of its own, and the last ten of them twice."""
    for at in range(begin, end, 50):
        numbers = range(at, min(at + 50, end))
        producer.send_batch([message(n) for n in numbers])
    producer.send_batch([message(n) for n in range(end - 10, end)])


def message(n: int) -> Message:
    return Message(TOPIC, b"%d" % n, tags=f"dev{n % 7}", properties={UNIQ_KEY: f"{n:032X}"})


class Job:
    """``motelog spark run telemetry-lake`` as a process, with what its driver starts."""

    def __init__(self, cluster: SparkCluster, conf: Path, *options: str) -> None:
        self._said = conf.with_suffix(".log")
        command = ["motelog", "spark", "run", "telemetry-lake", f"--conf={conf}", *options]
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=cluster.environment,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not is_so():
            assert self._process.poll() is None, self._said.read_text()
            assert time.monotonic() < end, self._said.read_text()
            time.sleep(0.2)

    def kill(self) -> None:
        """SIGKILL the driver: its Python process and its JVM."""
        if self._process.poll() is None:
            mine = psutil.Process(self._process.pid)
            for process in [mine, *mine.children(recursive=True)]:
                process.kill()
            self._process.wait()

    def finish(self) -> None:
        try:
            assert self._process.wait(WAIT_S) == 0, self._said.read_text()
        finally:
            self.kill()


def test_each_message_is_in_the_lake_once_whoever_is_killed(
    spark_session: Any,
    motelog_stack: MotelogProcess,
    producer: SyncProducer,
    namesrv: str,
    tmp_path: Path,
) -> None:
    lake = tmp_path / "lake"
    conf = tmp_path / "lake.toml"
    with SparkCluster(tmp_path / "cluster", workers=2) as cluster:
        conf.write_text(
            f'namesrv = "{namesrv}"\ntopic = "{TOPIC}"\noutput = "{lake}"\n'
            f'checkpoint = "{tmp_path}/checkpoint"\nmaster = "{cluster.url}"\n'
        )

        def bodies() -> Counter[bytes]:
            rows = spark_session.read.parquet(str(lake)).select("payload").collect()
            return Counter(bytes(row["payload"]) for row in rows)

        def has(count: int) -> Callable[[], bool]:
            return lambda: (lake / "_spark_metadata" / "0").exists() and len(bodies()) >= count

        send(producer, 0, 1000)
        job = Job(cluster, conf, "--interval=1")
        try:
            job.wait_for(has(1000))
            assert cluster.has_executor(0)
            assert cluster.has_executor(1)
            cluster.kill_worker(0)
            send(producer, 1000, 2000)
            job.wait_for(has(2000))
            cluster.add_worker()
            send(producer, 2000, 3000)
        finally:
            job.kill()
        Job(cluster, conf, "--once").finish()
        assert bodies() == Counter(b"%d" % n for n in range(3000))
