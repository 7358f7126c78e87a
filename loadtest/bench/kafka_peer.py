"""A Kafka broker from Maven Central, the peer of Spark's benches: one KRaft node on loopback.

Owns: the build folder build/kafka, one KafkaServer process per object with its folder.
Must not touch: Spark sessions, fixed ports. Nothing of Kafka is in the repository: kafka/pom.xml
names what Maven fetches, of the release that Spark's connector was built with.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.lock_file import file_lock

PROJECT = Path(__file__).with_name("kafka")
BUILD = Path(__file__).resolve().parents[2] / "build" / "kafka"
LIBRARIES = BUILD / "lib"
BUILT_WITHIN_S = 240
READY_WITHIN_S = 90
STOPPED_WITHIN_S = 30
#: The packages that Spark needs for Kafka and does not have itself.
CONNECTOR = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")


class NoKafkaError(Exception):
    """Kafka is not available here; the text is a sentence with the reason."""


def fetch() -> None:
    """Fetch broker and connector with Maven, once; NoKafkaError if that fails."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise NoKafkaError("a JDK and Maven are not installed")
    with file_lock(BUILD.parent / "kafka-lock"):
        stamp = BUILD / "built"
        if stamp.exists() and stamp.stat().st_mtime >= (PROJECT / "pom.xml").stat().st_mtime:
            return
        shutil.rmtree(LIBRARIES, ignore_errors=True)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(
                [*command, f"-DoutputDirectory={LIBRARIES}"],
                cwd=PROJECT,
                capture_output=True,
                text=True,
                timeout=BUILT_WITHIN_S,
            )
        except subprocess.TimeoutExpired:
            raise NoKafkaError(f"Maven took more than {BUILT_WITHIN_S} s") from None
        if done.returncode:
            raise NoKafkaError(f"Maven cannot fetch it: {done.stdout.strip()[-300:]}")
        stamp.touch()


def session_settings() -> dict[str, str]:
    """Return the settings by which a Spark session has format("kafka")."""
    jars = [path for path in LIBRARIES.iterdir() if path.name.startswith(CONNECTOR)]
    return {"spark.jars": ",".join(map(str, sorted(jars)))}


class KafkaServer:
    """One node that is broker and controller; runs within the block, and its folder ends with it.

    Topics are created with ``partitions`` partitions when they are first used. Messages have the
    time of their append, as in a RocketMQ store.
    """

    def __init__(self, *, partitions: int, heap: str = "1g") -> None:
        self._partitions = partitions
        self._heap = heap
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> KafkaServer:
        fetch()
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-"))
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()

    def _start(self) -> None:
        port, controller_port = _free_ports()
        self.address = f"127.0.0.1:{port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self._folder / "log",
            "log.message.timestamp.type": "LogAppendTime",
            "num.partitions": self._partitions,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
        }
        file = self._folder / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        output = self._folder / "output"
        with output.open("wb") as stream:
            formatted = subprocess.run(
                self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(file)),
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=READY_WITHIN_S,
            )
            if formatted.returncode == 0:
                self._process = subprocess.Popen(
                    self._java("kafka.Kafka", str(file)),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                )
        deadline = time.monotonic() + READY_WITHIN_S
        # The listener of the broker opens when the controller has admitted it.
        while self._process is None or not _answers(port):
            has_ended = self._process is None or self._process.poll() is not None
            if has_ended or time.monotonic() > deadline:
                raise NoKafkaError(f"it does not start: {output.read_text()[-2000:]}")
            time.sleep(0.1)

    def _java(self, *arguments: str) -> list[str]:
        return ["java", f"-Xmx{self._heap}", "-cp", f"{LIBRARIES}/*", *arguments]

    def _end(self) -> None:
        process, self._process = self._process, None
        try:
            if process is not None:
                process.terminate()
                try:
                    process.wait(STOPPED_WITHIN_S)
                finally:
                    process.kill()
                    process.wait()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


#: Any 16 bytes in Kafka's form of a UUID.
_CLUSTER = "bW90ZWxvZy1iZW5jaC0tLQ"


def _answers(port: int) -> bool:
    with socket.socket() as peer:
        return peer.connect_ex(("127.0.0.1", port)) == 0


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for holder in (one, other):
            holder.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
