"""Sessions from several load processes, beside a canary."""

from __future__ import annotations

import pytest

from motelog.loadtest import bench_client, bench_fleet
from motelog.loadtest.bench_fleet import run_fleet, sources_of
from motelog.loadtest.bench_run import BenchError, BenchOptions, run
from motelog.testing import MotelogProcess
from tests.support.bench_server import BenchServer, Faults, bench_server
from tests.support.cli import motelog_lines
from tests.support.worker_processes import clients_of, workers_of


def test_two_processes_hold_their_sessions_at_two_workers_and_the_canary_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_fleet, "SESSIONS_OF_ADDRESS_MAX", 100)
    lines: list[str] = []
    addresses: set[str] = set()

    def progress(line: str) -> None:
        lines.append(line)
        if "are held" in line:
            # More than once: the system's table of connections is not read in one moment.
            for worker in workers_of(motelog.pid).values():
                addresses.update(host for host, _ in clients_of(worker))

    with MotelogProcess(options=["--workers=2"]) as motelog:
        host, port = motelog.mqtt
        options = BenchOptions(
            host=host,
            port=port,
            connections=301,
            duration_s=2.5,
            server_pid=motelog.pid,
            progress=progress,
        )
        report = run_fleet(options, processes=2)
    assert not report.errors, report.error_examples
    assert {f"127.0.1.{number}" for number in range(1, 5)} <= addresses
    assert (report.sessions, report.processes) == (301, 2)
    assert report.server_processes == 3
    # Each second a part of the sessions has its turn.
    assert report.pings > 0
    assert report.pings_missing == 0
    assert report.canary_messages > 5
    assert report.canary_lost == 0
    assert 0 < report.canary_held_us_p50 <= report.canary_held_us_p99
    assert report.server_bytes is not None
    assert report.server_bytes > 50_000_000
    assert report.client_bytes > 20_000_000
    assert report.client_cpu_us > 0
    assert report.client_held_cores > 0
    assert report.server_cpu_us is not None
    assert report.server_cpu_us > 0
    assert report.server_held_cores is not None
    assert report.server_held_cores > 0
    assert any("301 of 301 sessions are held; canary p50" in line for line in lines)


def test_a_server_elsewhere_has_no_memory_here() -> None:
    with bench_server() as server:
        report = run_fleet(BenchOptions(port=server.port, connections=20, duration_s=0.2))
    assert (report.server_bytes, report.server_base_bytes) == (None, None)
    assert (report.server_cpu_us, report.server_held_cores) == (None, None)
    assert not report.errors


def test_keep_alives_without_an_answer_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_client, "PING_SHARE", 0)
    options = {"connections": 50, "duration_s": 0.2, "drain_s": 0.1}
    with bench_server(faults=Faults(ignores_pings=True)) as server:
        report = run("connect", BenchOptions(port=server.port, **options))  # type: ignore[arg-type]  # by name
    assert report.messages == 50
    assert report.errors > 0
    assert "a keep alive was not answered" in report.error_examples[0]


def test_a_canary_that_is_not_served_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_fleet, "CANARY_LOST_NS", 200_000_000)
    with bench_server(faults=Faults(delivery_lost=1)) as server:
        options = BenchOptions(port=server.port, connections=10, duration_s=1)
        report = run_fleet(options, processes=1)
    assert report.canary_lost > 0
    assert "the canary's message" in report.error_examples[0]


def refuse_behind_the_canary(
    monkeypatch: pytest.MonkeyPatch, server: BenchServer, code: int
) -> None:
    monkeypatch.setattr(
        bench_fleet.Canary, "begin", lambda _: setattr(server.faults, "connack", code)
    )


def test_a_refusal_in_a_load_process_ends_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench_server() as server:
        refuse_behind_the_canary(monkeypatch, server, 0x87)
        with pytest.raises(BenchError, match="CONNECT was refused with code 0x05"):
            run_fleet(BenchOptions(port=server.port, connections=10, duration_s=1), processes=2)


def test_whom_the_server_cannot_take_now_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench_server(faults=Faults(connack_times=7)) as server:
        refuse_behind_the_canary(monkeypatch, server, 0x88)
        options = BenchOptions(port=server.port, connections=10, duration_s=0.2)
        report = run_fleet(options, processes=2)
    assert (report.sessions, report.tried_again, report.errors) == (10, 7, 0)


def test_a_server_that_never_takes_them_is_told_with_the_refusals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_fleet, "STALL_S", 2.0)
    with bench_server() as server:
        refuse_behind_the_canary(monkeypatch, server, 0x88)
        with pytest.raises(
            BenchError, match=r"0 sessions were connected, .* \d+ times the busy server refused"
        ):
            run_fleet(BenchOptions(port=server.port, connections=2, duration_s=1), processes=1)


def test_the_command_chooses_how_many_processes() -> None:
    (report,) = motelog_lines("bench", "connect", "--sessions=200", "--seconds=0.5", "--json")
    assert (report["sessions"], report["processes"], report["errors"]) == (200, 1, 0)
    assert report["server_bytes"] > 0


def test_each_process_has_addresses_of_its_own_on_loopback_alone() -> None:
    assert sources_of(0, 10_000, "127.0.0.1") == ("127.0.1.1",)
    assert sources_of(1, 18_000, "127.0.0.1") == ("127.0.1.3", "127.0.1.4")
    of_all = [one for number in range(56) for one in sources_of(number, 17_857, "127.0.0.1")]
    assert len(set(of_all)) == len(of_all) == 112
    assert sources_of(0, 10_000, "192.0.2.1") == ()
    assert sources_of(0, 10_000, "::1") == ()
