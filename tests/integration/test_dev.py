"""``motelog dev`` as a process: start, addresses, stop, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest

from motelog import Message, SyncProducer, __version__
from motelog.core.addresses import parse_address
from motelog.testing import MotelogProcess, MotelogProcessError
from tests.support.cli import motelog, motelog_lines, started_motelog

ANY_PORTS = [f"--{name}=127.0.0.1:0" for name in ("mqtt", "namesrv", "broker", "admin")]


def test_every_address_of_the_ready_line_answers(motelog_stack: MotelogProcess) -> None:
    assert set(motelog_stack.ready) == {
        "event",
        "pid",
        "mqtt",
        "namesrv",
        "broker",
        "admin",
        "workers",
        "data",
        "data_bytes",
        "faults",
    }
    assert motelog_stack.ready["event"] == "ready"
    assert motelog_stack.ready["pid"] == motelog_stack.pid
    for address in (
        motelog_stack.mqtt,
        motelog_stack.namesrv,
        motelog_stack.broker,
        motelog_stack.admin,
    ):
        with socket.create_connection(address, timeout=5):
            pass


def test_health_and_metrics(motelog_stack: MotelogProcess) -> None:
    base = f"http://{motelog_stack.ready['admin']}"
    live = httpx.get(f"{base}/health/live")
    assert (live.status_code, live.text) == (200, "ok\n")
    ready = httpx.get(f"{base}/health/ready")
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "faults": {}})
    metrics = httpx.get(f"{base}/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "motelog_gateway_connections_opened_total" in metrics.text
    assert "motelog_broker_store_put_messages_total" in metrics.text
    assert 'motelog_broker_store_append_seconds_bucket{le="+Inf"}' in metrics.text
    assert 'motelog_event_loop_lag_seconds_bucket{le="+Inf"}' in metrics.text
    assert "motelog_build_info{" in metrics.text
    assert httpx.get(f"{base}/nothing").status_code == 404
    assert httpx.post(f"{base}/metrics").status_code == 405


def test_the_environment_sets_what_no_option_sets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOTELOG__BROKER__NAME", "broker-of-the-test")
    monkeypatch.setenv("MOTELOG__BROKER__STORE__DIRECTORY", str(tmp_path))
    monkeypatch.setenv("MOTELOG__GATEWAY__LISTEN", "127.0.0.1:1")  # the option wins
    monkeypatch.setenv("MOTELOG__ROLES", '["namesrv"]')
    with MotelogProcess() as stack:
        assert stack.ready["data"] != str(tmp_path)  # --ephemeral wins
        with SyncProducer(namesrv="{}:{}".format(*stack.namesrv)) as producer:
            assert producer.send(Message("T", b"")).queue.broker_name == "broker-of-the-test"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_it_cleanly(number: signal.Signals) -> None:
    command = ["dev", "--ephemeral", "--json", "--log-format=json", *ANY_PORTS]
    with started_motelog(*command) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        ready = json.loads(line)
        data = Path(ready["data"])
        assert data.is_dir()
        # A terminal that closes and timeout(1) send theirs more than once.
        while process.poll() is None:
            process.send_signal(number)
            time.sleep(0.005)
        output, errors = process.communicate(timeout=20)
        assert process.returncode == 0, errors
        assert output == "", "one JSON line and nothing else"
        assert not data.exists(), "an ephemeral folder goes with its process"
        lines = {line["event"]: line for line in map(json.loads, errors.splitlines())}
        started, stopped = lines["the server has started"], lines["the server has stopped"]
        assert (started["version"], started["config"]) == (__version__, "motelog dev")
        assert started["data"] == str(data)
        assert f"gateway@{ready['mqtt']}" in started["roles"].split(",")
        assert (stopped["reason"], stopped["level"]) == (number.name, "info")


def test_disk_over_its_limit_is_told_wherever_somebody_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # More than any disk has free, so that this one is over its limit.
    monkeypatch.setenv("MOTELOG__BROKER__STORE__DISK_FREE_BYTES_MIN", str(1 << 60))
    text = r"disk \d+\.\d % full, limit 0 %; \d+\.\d GiB free, 1073741824\.0 GiB needed"
    with started_motelog("dev", "--ephemeral", *ANY_PORTS) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while "Ctrl-C" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], process.communicate(timeout=20)
        assert lines[0] == "Motelog is running, but not ready:\n"
        assert re.match(f"  {text}: messages are refused until there is room; free ", lines[1])
        address = {line.split()[0]: line.split()[1] for line in lines[2:] if "  " in line}
        mqtt, base = address["MQTT"], address["admin"].rstrip("/")
        ready = httpx.get(f"{base}/health/ready")
        assert ready.status_code == 503
        assert re.match(text, ready.json()["faults"]["disk"])
        answer = _answers_to_publish(parse_address(mqtt))
        assert answer[:2] == b"\x40" + bytes([len(answer) - 2])
        assert answer[4] == 0x97, "quota exceeded"
        assert re.search(text.encode(), answer), "the Reason String"
        qos_0 = motelog("pub", "-t", "a/b", "-m", "x", "--qos", "0", "--to", mqtt)
        assert qos_0.returncode == 0, "nobody can tell it"
        metrics = httpx.get(f"{base}/metrics").text
        assert "motelog_broker_store_messages_refused_full_total 2.0" in metrics
        assert "motelog_broker_store_full 1.0" in metrics
        assert f"motelog_broker_store_disk_reserve_bytes {float(1 << 60)!r}" in metrics
        assert "motelog_gateway_publishes_refused_total 2.0" in metrics
        assert 'motelog_gateway_sent_packets_total{qos="",type="puback"} 1.0' in metrics
        assert 'motelog_gateway_sent_packets_total{qos="",type="connack"} 2.0' in metrics


def _answers_to_publish(address: tuple[str, int]) -> bytes:
    """Return the PUBACK that an MQTT 5 client gets."""
    connect = b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc"
    with socket.create_connection(address, timeout=20) as client, client.makefile("rb") as stream:
        client.sendall(connect + b"\x32\x09\x00\x03a/b\x00\x01\x00x")
        _, connack_bytes = stream.read(2)
        assert stream.read(connack_bytes)[1] == 0
        header = stream.read(2)
        return header + stream.read(header[1])


def test_text_names_the_addresses_and_what_to_try_next() -> None:
    with started_motelog("dev", "--ephemeral", *ANY_PORTS) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or "Ctrl-C" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], process.communicate(timeout=20)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        text = "".join(lines)
        assert text.startswith("Motelog is ready.\n  MQTT         127.0.0.1:")
        assert " MiB on disk)\n" in text
        assert "acknowledged when in the page cache, on the disk within 500 ms" in text
        assert "motelog pub -t telemetry/dev42/temp" in text
        assert "mosquitto_pub" in text


def test_messages_of_a_data_folder_are_there_after_a_restart(tmp_path: Path) -> None:
    with MotelogProcess(data=tmp_path / "data") as process:
        motelog_lines("pub", "-t", "room/1", "-m", "kept", "--json", "--to", process.ready["mqtt"])
    with MotelogProcess(data=tmp_path / "data") as process:
        (message,) = motelog_lines(
            "consume", "room", "--until-end", "--json", "--namesrv", process.ready["namesrv"]
        )
    assert (message["body"], message["tag"]) == ("kept", "1")


def test_a_new_folder_takes_little_of_the_disk_and_an_old_one_keeps_its_file_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def log_file_sizes(folder: Path) -> set[int]:
        return {path.stat().st_size for path in (folder / "commitlog").iterdir()}

    with MotelogProcess(data=tmp_path / "new") as process:
        assert log_file_sizes(tmp_path / "new") == {64 << 20}
        assert 64 << 20 <= process.ready["data_bytes"] < 70 << 20
    monkeypatch.setenv("MOTELOG__BROKER__STORE__COMMITLOG_FILE_BYTES", str(1 << 20))
    with MotelogProcess(data=tmp_path / "old") as process:
        motelog_lines("pub", "-t", "room/1", "-m", "kept", "--json", "--to", process.ready["mqtt"])
        assert log_file_sizes(tmp_path / "old") == {1 << 20}
    monkeypatch.delenv("MOTELOG__BROKER__STORE__COMMITLOG_FILE_BYTES")
    with MotelogProcess(data=tmp_path / "old") as process:
        # The second file follows the first one's size, not the configuration.
        with SyncProducer(namesrv=process.ready["namesrv"]) as producer:
            for _ in range(3):
                producer.send(Message("room", b"x" * 600_000))
        assert log_file_sizes(tmp_path / "old") == {1 << 20}
        messages = motelog_lines(
            "consume", "room", "--until-end", "--json", "--namesrv", process.ready["namesrv"]
        )
    assert "kept" in [message["body"] for message in messages]


def test_data_folder_in_use_is_refused(tmp_path: Path) -> None:
    with MotelogProcess(data=tmp_path):
        result = motelog("dev", "--data", str(tmp_path), *ANY_PORTS)
    assert result.returncode == 1
    # The log's lines of what had started come before it.
    assert re.search(r"^motelog: .* is open in another process$", result.stderr, re.MULTILINE)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("option", "role"),
    [
        ("--mqtt", "gateway"),
        ("--namesrv", "namesrv"),
        ("--broker", "broker"),
        ("--admin", "console"),
    ],
)
def test_taken_port_names_the_port_and_the_option(option: str, role: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = motelog("dev", "--ephemeral", *ANY_PORTS, f"{option}={address}")
    assert result.returncode == 1
    assert result.stdout == ""
    assert f"the {role} cannot listen on {address}: another process uses that port" in result.stderr
    assert option in result.stderr
    assert f"(process {os.getpid()}); stop that" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--mqtt=127.0.0.1:8080"], "--admin and --mqtt have the same port 8080"),
        (["--mqtt=localhost:10909"], "VIP = false) and --mqtt have the same port 10909"),
        (["--namesrv=127.0.0.1:10909"], "--namesrv and the VIP port two below --broker (none with"),
    ],
)
def test_one_port_for_two_listeners_names_the_options(options: list[str], text: str) -> None:
    result = motelog("dev", "--ephemeral", *options)
    assert text in result.stderr
    assert result.returncode == 2


def test_auto_port_takes_the_next_free_ones_and_says_which() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ["--auto-port", f"--mqtt=127.0.0.1:{port}", f"--admin=127.0.0.1:{port}"]
        with MotelogProcess(options=options) as stack:
            assert port < stack.mqtt[1] < stack.admin[1] <= port + 100
            for address in (stack.mqtt, stack.admin):
                socket.create_connection(address, timeout=10).close()
            said = stack.output()
    assert f"--mqtt: port {port} is taken by" in said
    assert f"(process {os.getpid()}); {stack.mqtt[1]} is used instead" in said


@pytest.mark.parametrize("option", ["--mqtt", "--namesrv", "--broker", "--admin"])
def test_anything_but_loopback_is_refused_with_the_reason(option: str) -> None:
    result = motelog("dev", "--ephemeral", f"{option}=0.0.0.0:0")
    assert result.returncode == 2
    assert f"{option}: 0.0.0.0:0 is not a loopback address" in result.stderr
    assert "this listener has no TLS" in result.stderr


def test_address_without_a_port_is_explained() -> None:
    result = motelog("dev", "--mqtt", "1883")
    assert result.returncode == 2
    assert "--mqtt: '1883' is not HOST:PORT, as in 127.0.0.1:1883" in result.stderr


def test_ephemeral_and_data_exclude_each_other(tmp_path: Path) -> None:
    result = motelog("dev", "--ephemeral", "--data", str(tmp_path))
    assert result.returncode == 2
    assert "cannot be combined" in result.stderr


def test_process_that_does_not_become_ready_shows_what_it_printed() -> None:
    process = MotelogProcess(options=["--mqtt=0.0.0.0:0"])
    with pytest.raises(MotelogProcessError, match="not a loopback address"):
        process.start()


def test_up_runs_the_roles_that_a_file_names(tmp_path: Path) -> None:
    path = tmp_path / "motelog.toml"
    path.write_text(
        'roles = ["namesrv", "console"]\n[namesrv]\nlisten = "127.0.0.1:0"\n'
        '[admin]\nlisten = "127.0.0.1:0"\n'
    )
    with started_motelog("up", "--config", str(path), "--json") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert set(ready) == {"event", "pid", "namesrv", "console", "faults"}
        assert httpx.get(f"http://{ready['console']}/health/ready").status_code == 200
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0, errors


def first_lines_of_up(path: Path) -> tuple[list[str], str]:
    """Start with a config file, and stop; return three lines of output, and the errors."""
    with started_motelog("up", "--config", str(path)) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    return lines, errors


def test_up_says_what_an_acknowledgement_promises(tmp_path: Path) -> None:
    path = tmp_path / "motelog.toml"
    path.write_text(
        'roles = ["broker"]\n[broker]\nlisten = "127.0.0.1:0"\n'
        f'[broker.store]\ndirectory = "{tmp_path}/store"\nwrite_buffer = true\n'
        "commitlog_file_bytes = 1048576\n"
    )
    lines, errors = first_lines_of_up(path)
    assert lines[0] == "Motelog is ready.\n", errors
    assert lines[2] == (
        "Messages are acknowledged when in this process's memory, in the page cache within "
        "200 ms, on the disk within 500 ms.\n"
    )


def test_up_keeps_long_names_of_listeners_and_their_addresses_apart(tmp_path: Path) -> None:
    path = tmp_path / "motelog.toml"
    path.write_text(
        'roles = ["namesrv"]\n[namesrv]\nlisten = "127.0.0.1:0"\n'
        '[[listener]]\nname = "behind-the-balancer"\nfor = "namesrv"\naddress = "127.0.0.1:0"\n'
    )
    lines, errors = first_lines_of_up(path)
    names, ats = zip(*(line.split() for line in lines[1:]), strict=True)
    assert names == ("namesrv", "behind-the-balancer"), errors
    assert lines[1].index(ats[0]) == lines[2].index(ats[1])


def test_up_with_a_wrong_file_ends_with_78(tmp_path: Path) -> None:
    path = tmp_path / "motelog.toml"
    path.write_text('roles = ["namesrv"]\n[namesrv]\nlistn = "127.0.0.1:0"\n')
    result = motelog("up", "--config", str(path))
    assert result.returncode == 78
    assert f"{path}:3: namesrv.listn: unknown key; did you mean namesrv.listen?" in result.stderr
