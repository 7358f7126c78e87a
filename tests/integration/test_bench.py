"""The benches against a server that behaves, one that does not, and mosquitto."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from motelog.cli.bench import _say_what_it_said
from motelog.cli.output import CliError
from motelog.loadtest import bench_client
from motelog.loadtest.bench_run import KINDS, BenchError, BenchOptions, BenchReport, run
from motelog.testing import MotelogProcess
from tests.support.bench_server import Faults, bench_server
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/opt/homebrew/sbin")


def options(port: int, **changes: object) -> BenchOptions:
    """A run of a fraction of a second."""
    short: dict[str, object] = {
        "connections": 4,
        "subscribers": 3,
        "window": 5,
        "duration_s": 0.2,
        "warm_up_s": 0.05,
        "drain_s": 0.3,
    }
    return BenchOptions(port=port, **{**short, **changes})  # type: ignore[arg-type]  # by name


def is_clean(report: BenchReport) -> bool:
    return not (report.lost or report.duplicates or report.errors)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_faultless_server_gives_a_clean_report(kind: str, qos: int, version: int) -> None:
    with bench_server(version) as server:
        report = run(kind, options(server.port, qos=qos, version=version))
    assert is_clean(report), report
    assert report.messages > 0
    assert report.rate == pytest.approx(report.messages / report.seconds)
    assert 0 <= report.latency_us_p50 <= report.latency_us_p90
    assert report.latency_us_p90 <= report.latency_us_p99 <= report.latency_us_p99_9
    if kind == "connect":
        assert report.messages == 4
    if kind == "fanout":
        assert (report.publishers, report.subscribers) == (1, 3)


def test_each_subscriber_of_a_fan_out_gets_the_messages_of_all_publishers() -> None:
    with bench_server() as server:
        report = run("fanout", options(server.port, publishers=3, window=2))
        assert report.publishers == 3
        assert report.messages <= 3 * server.publishes  # three subscribers
    assert is_clean(report), report
    assert report.messages > 0


@pytest.mark.parametrize("names", [2, 37])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publishers_go_through_all_topic_names_together(qos: int, names: int) -> None:
    with bench_server() as server:
        report = run("pub", options(server.port, qos=qos, names=names))
    assert is_clean(report), report
    assert report.messages > names
    assert server.topic_names == {b"bench/%d/telemetry" % number for number in range(names)}


@pytest.mark.parametrize(("kind", "qos"), [("pub", 1), ("pub", 2), ("pipe", 0), ("pipe", 1)])
def test_publishers_keep_to_a_rate(kind: str, qos: int) -> None:
    begun = time.monotonic()
    with bench_server() as server:
        report = run(kind, options(server.port, qos=qos, rate=50, duration_s=0.5))
        assert 0 < server.publishes <= 50 * (time.monotonic() - begun) + 1
    assert is_clean(report), report
    assert 0 < report.messages <= server.publishes
    assert report.rate_asked == 50


@pytest.mark.parametrize(("kind", "qos"), [("pub", 0), ("connect", 1)])
def test_a_rate_is_refused_where_nothing_could_keep_it(kind: str, qos: int) -> None:
    with pytest.raises(BenchError, match="a rate is only for pub at QoS 1 or 2, pipe and fanout"):
        run(kind, options(1, qos=qos, rate=50))


def test_missing_acknowledgements_are_lost() -> None:
    with bench_server(faults=Faults(acknowledgement_lost=50)) as server:
        report = run("pub", options(server.port))
    assert 1 <= report.lost <= 4 * 5  # then every window is stuck
    assert not report.duplicates


def test_missing_pings_are_lost_batches() -> None:
    with bench_server(faults=Faults(ignores_pings=True)) as server:
        report = run("pub", options(server.port, qos=0))
    assert report.messages == 0
    assert report.lost == 4 * 2 * 5


def test_doubled_acknowledgements_are_counted() -> None:
    with bench_server(faults=Faults(acknowledgement_doubled=10)) as server:
        report = run("pub", options(server.port, window=1, connections=1))
    assert report.duplicates > 0


@pytest.mark.parametrize("kind", ["pipe", "fanout"])
@pytest.mark.parametrize("qos", [0, 1])
def test_missing_and_doubled_deliveries_are_counted(kind: str, qos: int) -> None:
    with bench_server(faults=Faults(delivery_lost=40, delivery_doubled=30)) as server:
        report = run(kind, options(server.port, qos=qos, window=100))
    assert report.lost > 0
    assert report.duplicates > 0
    assert not report.errors


def test_a_stalled_window_is_opened_again() -> None:
    # Every delivery is lost, so without that only the first windows would ever be published.
    with bench_server(faults=Faults(delivery_lost=1)) as server:
        report = run("pipe", options(server.port, qos=0, duration_s=2.2))
        assert server.publishes > 4 * 5
        assert report.lost == server.publishes
    assert report.messages == 0


def test_a_connection_that_ends_is_an_error() -> None:
    with bench_server(faults=Faults(closes_after=100)) as server:
        report = run("pub", options(server.port))
    assert report.errors == 1
    assert "the connection ended" in report.error_examples[0]
    assert report.lost > 0


def test_those_who_are_connected_ping_while_others_still_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_client, "PING_SHARE", 0.001)  # some of them every 1.3 ms
    with bench_server() as server:
        assert is_clean(run("connect", options(server.port, connections=300, duration_s=0)))
        assert server.pings > 0


def test_keep_alives_come_before_their_time_is_over() -> None:
    with bench_server() as server:
        held = options(server.port, connections=90, duration_s=1.8, keep_alive_s=2)
        assert is_clean(run("connect", held))
        assert server.pings >= 90


def test_a_refusal_ends_the_bench() -> None:
    with (
        bench_server(faults=Faults(connack=0x88)) as server,
        pytest.raises(BenchError, match="CONNECT was refused with code 0x03"),
    ):
        run("pub", options(server.port))
    with (
        bench_server(faults=Faults(granted_qos=0)) as server,
        pytest.raises(BenchError, match="SUBSCRIBE was refused with code 0x00"),
    ):
        run("pipe", options(server.port, qos=1))


def test_without_a_server_the_bench_says_so() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        with pytest.raises(BenchError, match="connect failed"):
            run("connect", options(reserved.getsockname()[1]))


def test_a_server_of_our_own_is_heard_when_the_bench_has_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = MotelogProcess()
    own._output = [f"line {number}\n" for number in range(100)]
    for error in (None, KeyboardInterrupt(), CliError("no")):
        _say_what_it_said(own, type(error), error, None)
    _, said = capsys.readouterr()
    assert said.splitlines()[1:] == [
        "The server's last lines:",
        *(f"line {number}" for number in range(80, 100)),
    ]


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(BenchError, match=r"0 of 4 clients were connected after 0\.2 s"):
            run("pub", options(silent.getsockname()[1], connect_timeout_s=0.2))


def test_the_limit_of_open_files_is_raised_and_said() -> None:
    script = """
import resource
from motelog.loadtest.bench_run import BenchError, BenchOptions, run
from tests.support.bench_server import bench_server

with bench_server() as server:
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 500))
    assert run("connect", BenchOptions(port=server.port, connections=60, duration_s=0)).errors == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    try:
        run("connect", BenchOptions(port=server.port, connections=60, duration_s=0))
    except BenchError as exc:
        print(exc)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "cannot open more than" in done.stdout
    assert "Too many open files" in done.stdout


def test_progress_is_said_about_once_a_second() -> None:
    lines: list[str] = []
    with bench_server() as server:
        run("pub", options(server.port, duration_s=1.1, progress=lines.append))
    assert len(lines) == 1
    assert "messages/s" in lines[0]


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Port and process id of a mosquitto of its own."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    port = free_port()
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    with subprocess.Popen([MOSQUITTO, "-c", config], stderr=subprocess.DEVNULL) as process:
        give_up = time.monotonic() + 20
        while time.monotonic() < give_up:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        yield port, process.pid
        process.terminate()


@pytest.mark.mosquitto
def test_mosquitto_is_measured(mosquitto: tuple[int, int]) -> None:
    port, pid = mosquitto
    for kind in KINDS:
        report = run(kind, options(port, server_pid=pid))
        assert is_clean(report), report
        assert report.messages > 0
        assert report.server_cpu_us is not None
        assert report.server_rss_bytes is not None
