"""A standalone Spark cluster on loopback: a master and workers, each a JVM of its own.

Owns: SparkCluster, its processes, what is set for all of them. Must not touch: jobs, their files.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Final, Self

import psutil

STARTED_WITHIN_S: Final = 60.0
_MASTER: Final = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")

_DEFAULTS = """
spark.executor.memory 512m
spark.driver.memory 1g
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.sql.shuffle.partitions 2
spark.sql.codegen.wholeStage false
"""


class SparkCluster:
    """``workers`` of one core each; ends with the block."""

    def __init__(self, folder: Path, *, workers: int) -> None:
        from pyspark.find_spark_home import _find_spark_home

        self._command = str(Path(_find_spark_home()) / "bin" / "spark-class")
        self._folder = folder
        self._count = workers
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self.url = ""
        (folder / "conf").mkdir(parents=True)
        (folder / "conf" / "spark-defaults.conf").write_text(_DEFAULTS)
        #: For whoever runs a job on it, too. Web interfaces listen there as well.
        self.environment = {
            **os.environ,
            "SPARK_CONF_DIR": str(folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
        }

    @property
    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))

    def __enter__(self) -> Self:
        try:
            self._master = self._start("master", "master.Master", "--port", "0")
            self.url = self._wait_for(_MASTER)
            for _ in range(self._count):
                self.add_worker()
        except BaseException:
            self.stop()
            raise
        return self

    def add_worker(self) -> None:
        number = len(self._workers)
        work = self._folder / f"work{number}"
        options = ["--cores", "1", "--memory", "768m", "--work-dir", str(work), self.url]
        name = f"worker{number}"
        self._workers.append(self._start(name, "worker.Worker", *options))
        self._wait_for(re.compile("Successfully registered (with) master"), name)

    def kill_worker(self, number: int) -> None:
        """SIGKILL a worker, its executor and that one's Python processes."""
        victim = psutil.Process(self._workers[number].pid)
        for process in [victim, *victim.children(recursive=True)]:
            process.kill()
        self._workers[number].wait()

    def has_executor(self, number: int) -> bool:
        return bool(psutil.Process(self._workers[number].pid).children())

    def stop(self) -> None:
        for number, worker in enumerate(self._workers):
            if worker.poll() is None:
                self.kill_worker(number)
        if self._master is not None:
            self._master.kill()
            self._master.wait()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _start(self, name: str, what: str, *options: str) -> subprocess.Popen[bytes]:
        command = [self._command, f"org.apache.spark.deploy.{what}", "--host", "127.0.0.1"]
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, "--webui-port", "0", *options],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _wait_for(self, line: re.Pattern[str], name: str = "master") -> str:
        end = time.monotonic() + STARTED_WITHIN_S
        while time.monotonic() < end:
            found = line.search((self._folder / f"{name}.log").read_text())
            if found:
                return found[1]
            time.sleep(0.1)
        raise AssertionError(self.said)
