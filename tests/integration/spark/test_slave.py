"""A stream goes on at the slave while its master is away, then at the master: each row once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from motelog.bridge.producer import SendStatus
from motelog.bridge.sync import SyncProducer
from motelog.core.message import Message
from tests.integration.spark.conftest import QUERY_S_MAX, send, written_keys
from tests.support.broker_process import BrokerProcess
from tests.support.namesrv_process import NamesrvProcess
from tests.support.ports import free_port

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TOPIC = "spark_slave"


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + QUERY_S_MAX
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_stream_writes_each_row_once_while_its_master_goes_and_comes_back(
    spark_session: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fast: dict[str, Any] = {"register_interval_s": 0.2}
    with NamesrvProcess() as namesrv:
        address = namesrv.address
        master = BrokerProcess(
            tmp_path / "master",
            namesrv=address,
            listen=f"127.0.0.1:{free_port()}",
            replicate="sync",
            **fast,
        )
        slave = BrokerProcess(tmp_path / "slave", namesrv=address, id=1, **fast)
        with master, slave:
            keys = send_copied(address, 0, 40)
            reader = spark_session.readStream.format("motelog").option("namesrv", address)
            reader = reader.option("topic", TOPIC).option("maxOffsetsPerTrigger", "10")
            writer = reader.load().writeStream.format("parquet")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.trigger(processingTime="500 milliseconds").start(str(out))
            try:
                until(lambda: bool(rows(query)))
                master.kill()
                until(lambda: rows(query) == len(keys))
                master.start()
                keys |= send_copied(address, 40, 80)
                until(lambda: rows(query) == len(keys))
            finally:
                query.stop()
    assert sorted(written_keys(spark_session, out)) == sorted(keys)


def rows(query: Any) -> int:
    assert query.exception() is None
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def send_copied(namesrv: str, begin: int, end: int) -> set[str]:
    """Send messages, and return when the slave has them: it may still have to connect."""
    with SyncProducer(namesrv=namesrv, timeout_s=QUERY_S_MAX) as producer:
        keys = send(producer, TOPIC, begin, end)
        # The slave that has a message has all before it.
        until(lambda: producer.send(Message("last", b"")).status is SendStatus.OK)
    return keys
