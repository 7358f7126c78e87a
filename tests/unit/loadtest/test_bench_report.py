"""Options that are refused, percentiles, and reading a process."""

from __future__ import annotations

import os

import pytest

from motelog.loadtest.bench_client import Latency, resolve
from motelog.loadtest.bench_process import UsageMeter, cpu_seconds, rss_bytes
from motelog.loadtest.bench_run import BenchError, BenchOptions, run

NO_SUCH_PID = 2**30


def test_every_bad_option_is_named() -> None:
    with pytest.raises(BenchError) as caught:
        BenchOptions(qos=3, window=0, payload_bytes=8, version=3, port=0)
    for name in ("qos is 3", "window is 0", "payload_bytes is 8", "version is 3", "port is 0"):
        assert name in str(caught.value)


def test_an_unknown_bench_is_refused() -> None:
    with pytest.raises(BenchError, match="'pubsub' is not one of pub, pipe, fanout, connect"):
        run("pubsub", BenchOptions())


def test_a_host_becomes_a_numeric_address() -> None:
    assert resolve("127.0.0.1", 7) == ("127.0.0.1", 7)
    assert resolve("localhost", 7)[0] in ("127.0.0.1", "::1")
    with pytest.raises(BenchError, match="no such host"):
        resolve("no such host", 7)


def test_percentiles_are_of_messages() -> None:
    latency = Latency()
    assert latency.percentiles_us((0.5, 0.999)) == [0, 0]
    latency.add_all([us * 1024 for us in range(1, 901)])
    latency.add(5_000 * 1024, 100)
    p50, p90, p99 = latency.percentiles_us((0.5, 0.9, 0.99))
    assert p50 == pytest.approx(500 * 1.024)
    assert p90 == pytest.approx(900 * 1.024)
    assert p99 == pytest.approx(5_000 * 1.024)


def test_a_process_is_measured_while_it_is_there() -> None:
    meter = UsageMeter(os.getpid())
    usage = meter.read()
    assert usage.client_cpu_s >= 0
    assert usage.server_cpu_s is not None
    assert usage.server_rss_bytes is not None
    assert usage.server_rss_bytes > 1_000_000
    assert cpu_seconds(NO_SUCH_PID) is None
    assert rss_bytes(NO_SUCH_PID) is None
    assert UsageMeter(NO_SUCH_PID).read().server_cpu_s is None
    assert UsageMeter(None).read().server_rss_bytes is None
