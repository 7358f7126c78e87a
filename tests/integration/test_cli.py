"""The other commands, through processes, against a running stack."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import pytest

import motelog as package
from motelog.cli import doctor
from motelog.cli.main import COMMANDS
from motelog.cli.tools import install_command
from motelog.testing import MotelogProcess
from tests.support.cli import motelog, motelog_here, motelog_lines, started_motelog


@pytest.mark.parametrize("protocol", ["311", "5"])
@pytest.mark.parametrize("qos", ["0", "1"])
def test_what_pub_publishes_reaches_sub(
    motelog_stack: MotelogProcess, protocol: str, qos: str
) -> None:
    to = ["--to", motelog_stack.ready["mqtt"], "-V", protocol, "-q", qos]
    topic = f"pubsub{protocol}{qos}"
    with started_motelog(
        "sub", "-t", f"{topic}/+/x", "-t", f"{topic}/#", "--count=2", "--seconds=30", "--json", *to
    ) as subscriber:
        assert subscriber.stdout is not None
        assert json.loads(subscriber.stdout.readline())["event"] == "subscribed"
        published = motelog_lines(
            "pub", "-t", f"{topic}/a/x", "-m", "ünï", "--count=2", "--json", *to
        )
        acknowledged = 2 if qos == "1" else 0
        assert published == [{"published": 2, "acknowledged": acknowledged, "refused": 0}]
        output, errors = subscriber.communicate(timeout=40)
        assert subscriber.returncode == 0, errors
        messages = [json.loads(line) for line in output.splitlines()]
        message = {"topic": f"{topic}/a/x", "payload": "ünï", "qos": int(qos), "retain": False}
        assert messages == [message] * 2


@pytest.mark.parametrize("since", ["earliest", "1h"])
def test_sub_begins_in_the_past(motelog_stack: MotelogProcess, since: str) -> None:
    to = ["--to", motelog_stack.ready["mqtt"]]
    topic = f"since{since}/dev1"
    motelog_lines("pub", "-t", topic, "-m", "earlier", "--json", *to)
    what = ["sub", "-t", topic, "--since", since, "--count=1", "--seconds=30", "--json", *to]
    subscribed, message = motelog_lines(*what)
    assert subscribed["event"] == "subscribed"
    assert message == {"topic": topic, "payload": "earlier", "qos": 1, "retain": False}


def test_delayed_publish_arrives_when_it_is_due(motelog_stack: MotelogProcess) -> None:
    to = ["--to", motelog_stack.ready["mqtt"]]
    what = ["sub", "-t", "delayed/#", "--count=1", "--seconds=30", "--json", *to]
    with started_motelog(*what) as subscriber:
        assert subscriber.stdout is not None
        assert json.loads(subscriber.stdout.readline())["event"] == "subscribed"
        begin = time.monotonic()
        topic = ["-t", "$delayed/2/delayed/late", "-m", "m", "-q", "1"]
        assert motelog_lines("pub", *topic, "--json", *to)[0]["acknowledged"] == 1
        message = json.loads(subscriber.stdout.readline())
        assert time.monotonic() - begin >= 2
        subscriber.communicate(timeout=40)
    assert message == {"topic": "delayed/late", "payload": "m", "qos": 1, "retain": False}


def test_bodies_that_are_not_text_survive_scripts(motelog_stack: MotelogProcess) -> None:
    host, port = motelog_stack.mqtt
    server = ["-h", host, "-p", str(port)]
    what = ["-t", "binary/dev1", "--since", "earliest", "-C", "1", "-W", "30", *server]
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\x00\xff")
        file.flush()
        assert motelog_here("pub", "-t", "binary/dev1", "-f", file.name, *server).returncode == 0
    _, message = motelog_lines("sub", "--json", *what)
    assert (message["payload"], message["payload_base64"]) == (None, "AP8=")
    namesrv = ["--namesrv", motelog_stack.ready["namesrv"]]
    (stored,) = motelog_lines("consume", "binary", "--until-end", "--json", *namesrv)
    assert (stored["body"], stored["body_base64"]) == (None, "AP8=")
    result = motelog_here("consume", "binary", "--until-end", "--hex", *namesrv)
    assert result.stdout.endswith(" 00ff\n")
    result = motelog_here("sub", "-F", "%t %x", *what)
    assert result.stdout == "binary/dev1 00ff\n"
    assert result.stderr == "subscribed to binary/dev1 with QoS 1\n"


def test_lines_of_standard_input_reach_a_native_consumer(motelog_stack: MotelogProcess) -> None:
    to = motelog_stack.ready["mqtt"]
    motelog_lines("pub", "-t", "lines/dev1/temp", "--json", "--to", to, input="one\r\ntwo\n\nend")
    namesrv = motelog_stack.ready["namesrv"]
    messages = motelog_lines("consume", "lines", "--until-end", "--json", "--namesrv", namesrv)
    assert [message["body"] for message in messages] == ["one", "two", "", "end"]
    assert {message["tag"] for message in messages} == {"dev1"}
    assert {message["properties"]["mqttRealTopic"] for message in messages} == {"lines/dev1/temp"}


def test_what_produce_sends_reaches_consume_and_sub(motelog_stack: MotelogProcess) -> None:
    namesrv = ["--namesrv", motelog_stack.ready["namesrv"]]
    with started_motelog(
        "sub", "-t", "commands/#", "--count=1", "--seconds=30", "--json",
        "--to", motelog_stack.ready["mqtt"],
    ) as subscriber:  # fmt: skip
        assert subscriber.stdout is not None
        assert subscriber.stdout.readline()
        (sent,) = motelog_lines(
            "produce", "commands", "-m", "restart", "--tag", "dev9", "--key", "k1", "-p", "a=b=c",
            "--json", *namesrv,
        )  # fmt: skip
        assert sent["status"] == "OK"
        (message,) = motelog_lines("consume", "commands", "--count=1", "--json", *namesrv)
        assert message["message_id"] == sent["message_id"]
        assert (message["body"], message["tag"], message["keys"]) == ("restart", "dev9", ["k1"])
        assert message["properties"]["a"] == "b=c"
        output, errors = subscriber.communicate(timeout=40)
        assert subscriber.returncode == 0, errors
        assert json.loads(output)["topic"] == "commands/dev9"


def test_a_group_goes_on_where_it_committed(motelog_stack: MotelogProcess) -> None:
    namesrv = ["--namesrv", motelog_stack.ready["namesrv"]]
    motelog("produce", "batches", *namesrv, input="1\n2\n3\n")
    group = ["--group", "g1", "--from", "committed", "--until-end", "--json", *namesrv]
    first = motelog_lines("consume", "batches", "--commit", *group)
    assert sorted(message["body"] for message in first) == ["1", "2", "3"]
    motelog_here("produce", "batches", "-m", "4", *namesrv)
    second = motelog_lines("consume", "batches", *group)
    assert [message["body"] for message in second] == ["4"]


def test_consume_begins_at_a_time_or_an_offset(motelog_stack: MotelogProcess) -> None:
    namesrv = ["--namesrv", motelog_stack.ready["namesrv"]]

    def bodies(*options: str) -> list[str]:
        lines = motelog_lines("consume", "timed", "--until-end", "--json", *options, *namesrv)
        return sorted(message["body"] for message in lines)

    motelog("produce", "timed", *namesrv, input="1\n2\n3\n4\n")
    stored = motelog_lines("consume", "timed", "--until-end", "--json", *namesrv)
    between_ms = max(message["store_timestamp_ms"] for message in stored) + 1
    motelog_here("produce", "timed", "-m", "later", *namesrv)
    assert bodies("--from", "1h ago") == ["1", "2", "3", "4", "later"]
    assert bodies("--from", "7d") == ["1", "2", "3", "4", "later"]
    assert bodies("--from", str(between_ms)) == ["later"]
    when = datetime.fromtimestamp(between_ms / 1000, UTC).isoformat(timespec="milliseconds")
    assert bodies("--from", when) == ["later"]
    assert bodies("--from", "2100-01-01") == []
    assert bodies("--from", "offset:1") == ["later"]
    assert bodies("--from", "end") == []


def test_consume_filters_by_properties(motelog_stack: MotelogProcess) -> None:
    namesrv = ["--namesrv", motelog_stack.ready["namesrv"]]
    for degrees in (19, 21, 23):
        motelog_here(
            "produce", "filtered", "-m", str(degrees), "-p", f"degrees={degrees}", *namesrv
        )
    options = ["--sql", "degrees BETWEEN 20 AND 22", "--until-end", "--json", *namesrv]
    (found,) = motelog_lines("consume", "filtered", *options)
    assert found["body"] == "21"
    to = motelog_stack.ready["mqtt"]
    for device, qos in (("dev42", "1"), ("dev42", "0"), ("dev44", "1")):
        motelog_here(
            "pub", "-t", f"devices/{device}/x", "-m", device + qos, "--qos", qos, "--to", to
        )
    options = ["--sql", "TAGS IN ('dev42', 'dev43') AND qosLevel = 1", *options[2:]]
    (found,) = motelog_lines("consume", "devices", *options)
    assert found["body"] == "dev421"


def test_plain_output_is_for_people(motelog_stack: MotelogProcess) -> None:
    namesrv = ["--namesrv", motelog_stack.ready["namesrv"]]
    result = motelog_here("pub", "-t", "plain/a", "-m", "x", "--to", motelog_stack.ready["mqtt"])
    assert (result.stdout, result.stderr) == ("", "published 1, acknowledged 1\n")
    assert motelog_here("produce", "plain", "-m", "y", *namesrv).stdout == "sent 1\n"
    lines = motelog_here("consume", "plain", "--until-end", *namesrv).stdout.splitlines()
    assert sorted(line.rpartition(" ")[2] for line in lines) == ["x", "y"]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["pub", "-t", "a/#", "-m", "x"], 2, "--topic 'a/#'"),
        (["pub", "-t", "a", "-m", "x", "--to", "nowhere"], 2, "--to: 'nowhere' is not HOST:PORT"),
        (["pub", "-t", "a", "-m", "x", "--to", "127.0.0.1:1"], 4, "cannot connect to 127.0.0.1:1"),
        (["pub", "-m", "x"], 2, "name the topic: --topic NAME"),
        (["pub", "-t", "a", "-m", "x", "-n"], 2, "give only one of -m, -f, -l, -s and -n"),
        (["pub", "-t", "a", "-f", "nowhere"], 2, "--file nowhere: No such file or directory"),
        (["sub", "-t", "a/#/b"], 2, "--topic 'a/#/b'"),
        (["sub", "-t", "a", "-T", "#/a"], 2, "--filter-out '#/a'"),
        (["sub", "-t", "a", "-F", "%z"], 2, "--format: '%z' has no meaning"),
        (["sub", "-v"], 2, "name a topic filter: --topic FILTER"),
        (["sub", "-t", "$o/a", "--to", "{mqtt}"], 5, "'$o/a': not authorized (0x87): $o/a: filt"),
        (["sub", "-t", "a", "--since", "1y"], 2, "--since '1y': use 90s"),
        (["sub", "-t", "a", "--since", "1h", "-V", "311"], 2, "needs --protocol-version mqttv5"),
        (["consume", "never-written", "--namesrv", "{namesrv}"], 3, "'never-written'"),
        (["consume", "a", "--namesrv", "127.0.0.1:1"], 4, "no name server answered"),
        (["consume", "a", "--sql", "a > 5 AND"], 2, "wrong at column 10: it ends too early"),
        (["consume", "a", "--sql", "a > 5", "--tags", "b"], 2, "give tags or sql, not both"),
        (["consume", "a", "--from", "1y"], 2, "--from '1y': use begin, end, committed, 1h"),
        (["consume", "a", "--tags", "||"], 2, "'||' has no tag"),
        (["produce", "bad topic", "-m", "x", "--namesrv", "{namesrv}"], 2, "'bad topic'"),
        (["produce", "a", "-m", "x", "--namesrv", "nowhere"], 2, "'nowhere' is not HOST:PORT"),
        (["consume", "a", "--namesrv", "nowhere"], 2, "'nowhere' is not HOST:PORT"),
        (["produce", "a", "-m", "x", "--namesrv", "127.0.0.1:1"], 4, "is it running? `motelog d"),
        (["pub", "-t", "a", "-m", "x", "--to", "127.0.0.1:1"], 4, "is it running? `motelog dev`"),
        (["pub", "-t", "%a/b", "-m", "x", "-q", "x"], 2, "'x' is not a whole number"),
        (["produce", "a", "-m", "x", "-p", "novalue"], 2, "'novalue' is not NAME=VALUE"),
        (["pub", "-t", "a", "-m", "x", "--to", "{namesrv}"], 4, "is this MQTT?"),
        (["sub", "-t", "a", "--seconds=0.1", "--count=1", "--to", "{mqtt}"], 6, "0 of 1 messages"),
        (["spark", "run", "nothing"], 2, "there is no Spark job 'nothing'"),
        (["retained", "list", "--admin", "127.0.0.1:1"], 4, "is it running? `motelog dev`"),
        (["session", "list", "--admin", "127.0.0.1:1"], 4, "admin listener with HOST:PORT"),
        (["session", "list", "--admin", "{mqtt}"], 4, "does not answer"),
        (["retained", "get", "nothing", "--admin", "{admin}"], 3, "no retained message"),
        (["retained", "delete", "nothing", "--admin", "{admin}"], 3, "no retained message"),
        (["retained", "list", "--filter", "a/#/b", "--admin", "{admin}"], 2, "last level"),
        (["session", "describe", "nobody", "--admin", "{admin}"], 3, "no session"),
        (["session", "end", "nobody", "--admin", "{admin}"], 3, "no session"),
        (["store", "inspect", "/nowhere"], 3, "is not a store"),
        (["bench", "pub", "--to", "127.0.0.1:1"], 4, "is it running? `motelog dev`"),
        (["bench", "connect", "--seconds", "x"], 2, "'x' is not a number of at least 0.1"),
        (["dev", "--flush", "never"], 2, "'never' is not async or sync\n  see: motelog dev --h"),
        (["session", "lst"], 2, "Did you mean 'list'"),
        (["store", "verify"], 2, "missing argument 'DIR'"),
        (["verson"], 2, "Did you mean version?"),
        (["config", "check", "no-such-file"], 78, "no-such-file: cannot read: No such file"),
    ],
)
def test_errors_say_what_is_wrong(
    motelog_stack: MotelogProcess, arguments: list[str], status: int, text: str
) -> None:
    result = motelog_here(*(argument.format(**motelog_stack.ready) for argument in arguments))
    assert text in result.stderr
    assert result.returncode == status
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command: str) -> None:
    result = motelog(command, "--help")
    assert result.returncode == 0, result.stderr
    assert f"motelog {command}" in result.stdout


def test_help_lists_every_command_without_loading_the_runtime() -> None:
    result = motelog("--help", environment={"PYTHONPROFILEIMPORTTIME": "1"})
    assert result.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command} " in result.stdout
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"trio", "msgspec", "numpy", "pyspark", "rich", "starlette", "asyncio"}


def test_a_group_without_a_command_says_what_there_is() -> None:
    for arguments in ([], ["store"]):
        result = motelog_here(*arguments)
        assert result.returncode == 2
        assert result.stderr.startswith("Usage: motelog")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("motelog ver", ["version"]),
        ("motelog store ver", ["verify"]),
        ("motelog dev --fl", ["--flush"]),
        ("motelog dev --flush ", ["async", "sync"]),
    ],
)
def test_a_shell_can_complete(words: str, found: list[str]) -> None:
    environment = {
        "_MOTELOG_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    assert motelog(environment=environment).stdout.split() == found


def test_the_script_that_is_printed_completes_in_bash() -> None:
    script = motelog("completion", environment={"SHELL": "/bin/bash"}).stdout
    assert script == motelog("completion", "bash").stdout
    asked = """
        COMP_WORDS=(motelog store ver) COMP_CWORD=2
        function=$(complete -p motelog)
        function=${function##*-F }
        function=${function%% *}
        $function motelog ver store  # as bash calls it
        echo "${COMPREPLY[@]}"
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    found = subprocess.run(
        ["bash", "-c", script + asked],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        check=True,
        timeout=60,
    )
    assert found.stdout.split() == ["verify"]
    refused = motelog("completion", "tcsh")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "name one of bash, zsh, fish" in refused.stderr


def test_version() -> None:
    assert motelog_here("--version").stdout == f"motelog {package.__version__}\n"
    (found,) = motelog_lines("version", "--json")
    assert found["version"] == package.__version__
    assert set(found["kernels"].values()) <= {
        "compiled",
        f"not installed ({install_command('spark')})",
    }
    assert motelog_here("version").stdout.startswith(f"motelog {package.__version__}\n")


def test_doctor_reports_with_remedies() -> None:
    result = motelog_here("doctor", "--json")
    report = json.loads(result.stdout)
    assert result.returncode == (0 if report["ok"] else 1)
    names = {finding["name"] for finding in report["findings"]}
    assert {"python", "compiler", "java", "mosquitto", "port 1883", "disk", "descriptors"} <= names
    assert "kernel motelog.core.records.append" in names
    assert motelog_here("doctor").stdout


def test_doctor_looks_for_motelog_where_spark_s_workers_will(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert doctor._spark_workers().level == "ok"
    monkeypatch.setenv("PYSPARK_PYTHON", "/bin/false")
    found = doctor._spark_workers()
    assert (found.level, found.text) == (
        "note",
        "Motelog is not installed for /bin/false, which they run",
    )
    assert f"export PYSPARK_PYTHON={sys.executable}" in str(found.remedy)


def test_doctor_knows_a_stack_of_ours_and_names_who_has_a_port(
    motelog_stack: MotelogProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ours, foreign = motelog_stack.mqtt[1], other.getsockname()[1]
        monkeypatch.setattr(doctor, "PORTS", {ours: "--mqtt", foreign: "--broker"})
        monkeypatch.setattr(doctor, "ADMIN_PORT", motelog_stack.admin[1])
        first, second, stack = doctor._ports()
    name = f"motelog dev (process {motelog_stack.pid})"
    assert (first.level, first.text, first.remedy) == ("ok", f"used by {name}", None)
    assert (second.level, f"(process {os.getpid()})" in second.text) == ("note", True)
    assert "motelog dev --broker 127.0.0.1:0, or --auto-port" in str(second.remedy)
    assert (stack.name, stack.level, stack.text) == ("stack", "ok", f"{name} is running and ready")


def test_doctor_says_what_to_do_about_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = motelog_here("doctor", "--data", str(tmp_path / "file" / "data"))
    assert "choose a --data or broker.store.directory" in result.stdout
    assert result.returncode == 1


def test_config_check_reports_everything_for_scripts_too(tmp_path: Path) -> None:
    path = tmp_path / "motelog.toml"
    path.write_text('[broker.store]\ndirectory = "d"\nflush = "asinc"\n[gateway]\nlisten = 1\n')
    result = motelog_here("config", "check", str(path), "--json")
    assert result.returncode == 78
    report = json.loads(result.stdout)
    assert report["valid"] is False
    assert [fault["key"] for fault in report["faults"]] == ["broker.store.flush", "gateway.listen"]
    assert report["faults"][0]["nearest"] == '"async"'
    path.write_text('[broker.store]\ndirectory = "d"\n')
    assert motelog_here("config", "check", str(path)).stdout.startswith(f"{path}: valid; roles ")
    wrong = motelog("config", "check", str(path), environment={"MOTELOG__ADMIN__LISTEN": "x"})
    assert "environment variable MOTELOG__ADMIN__LISTEN: admin.listen" in wrong.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["sub", "-t", "interrupt/#", "--json", "--to", "{mqtt}"],
        ["consume", "interrupt", "--json", "--namesrv", "{namesrv}"],
    ],
    ids=["sub", "consume"],
)
def test_interrupt_ends_a_command_in_one_line(
    motelog_stack: MotelogProcess, arguments: list[str]
) -> None:
    motelog_here("produce", "interrupt", "-m", "x", "--namesrv", motelog_stack.ready["namesrv"])
    with started_motelog(
        *(argument.format(**motelog_stack.ready) for argument in arguments)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 130
        assert errors == "motelog: interrupted\n"


def test_interrupt_while_standard_input_is_open_ends_in_one_line(
    motelog_stack: MotelogProcess,
) -> None:
    to, namesrv = motelog_stack.ready["mqtt"], motelog_stack.ready["namesrv"]
    with (
        started_motelog("sub", "-t", "typed/#", "--json", "--to", to) as sub,
        started_motelog("pub", "-t", "typed/1", "--to", to, stdin=subprocess.PIPE) as pub,
    ):
        assert sub.stdout is not None
        assert "subscribed" in sub.stdout.readline()
        _interrupt_while_it_reads(pub, sub.stdout)
    produce = ["produce", "produced", "--json", "--namesrv", namesrv]
    with started_motelog(*produce, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        _interrupt_while_it_reads(process, process.stdout)


def _interrupt_while_it_reads(process: subprocess.Popen[str], shown: IO[str]) -> None:
    """Interrupt a command that has read one line, as ``shown`` tells, and waits for the next."""
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write("typed\n")
    process.stdin.flush()
    assert shown.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert process.stderr.read() == "motelog: interrupted\n"


def test_pipe_whose_reader_has_gone_is_no_traceback(motelog_stack: MotelogProcess) -> None:
    namesrv = motelog_stack.ready["namesrv"]
    motelog_here("produce", "piped", "-m", "x", "--count=50", "--namesrv", namesrv)
    with started_motelog("consume", "piped", "--json", "--namesrv", namesrv) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        motelog_here("produce", "piped", "-m", "x", "--count=50", "--namesrv", namesrv)
        assert process.wait(timeout=30) == 1
        assert "Traceback" not in process.stderr.read()
        process.stderr.close()


def test_bench_measures_a_stack_of_its_own() -> None:
    (report,) = motelog_lines("bench", "pub", "--connections=5", "--seconds=0.5", "--json")
    assert report["kind"] == "pub"
    assert report["messages"] > 0
    assert (report["lost"], report["errors"]) == (0, 0)
    assert report["server_cpu_us"] is not None


def test_bench_measures_a_given_server(motelog_stack: MotelogProcess) -> None:
    result = motelog_here(
        "bench", "fanout", "--subscribers=5", "--seconds=0.5", "--to", motelog_stack.ready["mqtt"]
    )
    assert result.returncode == 0, result.stderr
    assert "latency p99" in result.stdout
