"""What an operator does with queue topics, groups, messages and dead letters, by command."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from motelog.bridge.sync import SyncAdmin, SyncProducer, SyncPullConsumer
from motelog.core.message import Message
from motelog.testing import MotelogProcess
from tests.support.cli import motelog_here


@pytest.fixture
def at(motelog_stack: MotelogProcess) -> list[str]:
    return ["--namesrv", motelog_stack.ready["namesrv"]]


def lines(*arguments: str) -> list[dict[str, Any]]:
    result = motelog_here(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def send(at: list[str], topic: str, *bodies: str, **fields: Any) -> None:
    with SyncProducer(namesrv=at[1]) as producer:
        for body in bodies:
            producer.send(Message(topic, body.encode(), **fields))


def consume(at: list[str], group: str, topic: str, count: int) -> None:
    """Have a group consume the first messages of a topic with one queue."""
    with SyncPullConsumer(namesrv=at[1], group=group) as consumer:
        (queue,) = consumer.queues(topic)
        consumer.commit({queue: count})


def test_topics_are_created_described_and_deleted(at: list[str]) -> None:
    assert lines("topic", "create", "op-topic", "--queues", "3", *at)[0]["created"] == "op-topic"
    again = motelog_here("topic", "create", "op-topic", *at)
    assert (again.returncode, "--change" in again.stderr) == (5, True)
    changed = motelog_here(
        "topic", "create", "op-topic", "--queues", "2", "--type", "fifo", "--change", *at
    )
    assert changed.stdout == "created op-topic\n"
    send(at, "op-topic", "a", tags="dev42")
    assert {"topic": "op-topic", "kind": "messages"} in lines("topic", "list", *at)
    assert "TBW102" not in motelog_here("topic", "list", *at).stdout
    assert {"topic": "TBW102", "kind": "system"} in lines("topic", "list", "--all", *at)
    (told,) = lines("topic", "describe", "op-topic", *at)
    assert [one["read_queues"] for one in told["brokers"]] == [2]
    assert told["brokers"][0]["attributes"] == {"message.type": "FIFO"}
    assert sum(one["end_offset"] for one in told["queues"]) == 1
    assert "message.type=FIFO" in motelog_here("topic", "describe", "op-topic", *at).stdout
    unsure = motelog_here("topic", "delete", "op-topic", *at)
    assert (unsure.returncode, "1 messages" in unsure.stderr) == (2, True)
    assert lines("topic", "delete", "op-topic", "--yes", *at)[0]["deleted"] == "op-topic"
    assert motelog_here("topic", "describe", "op-topic", *at).returncode == 3
    assert motelog_here("topic", "delete", "TBW102", "--yes", *at).returncode == 5


def test_a_topic_shrinks_without_closing_queues_that_hold_messages(at: list[str]) -> None:
    def counts() -> tuple[int, int]:
        (told,) = lines("topic", "describe", "op-small", *at)
        (one,) = told["brokers"]
        return one["read_queues"], one["write_queues"]

    def change(*options: str) -> subprocess.CompletedProcess[str]:
        return motelog_here("topic", "create", "op-small", "--change", *options, *at)

    lines("topic", "create", "op-small", "--queues", "4", *at)
    with SyncProducer(namesrv=at[1]) as producer:
        for queue in producer.queues("op-small"):
            producer.send(Message("op-small", b"waits"), queue=queue)
    assert change("--write-queues", "3").returncode == 0
    assert counts() == (4, 3)
    # Both: what holds messages stays open to readers, and it is said.
    done = change("--queues", "2")
    assert "queues 2, 3 with 2 messages" in done.stdout
    assert counts() == (4, 2)
    assert change("--permission", "rw").returncode == 0
    assert counts() == (4, 2)  # what is not named stays
    # Reading alone: only if somebody wants it.
    refused = change("--read-queues", "2")
    assert (refused.returncode, "queues 2, 3 with 2 messages" in refused.stderr) == (2, True)
    assert counts() == (4, 2)
    assert change("--write-queues", "5").returncode == 2
    assert change("--read-queues", "2", "--yes").returncode == 0
    assert counts() == (2, 2)
    assert change("--queues", "4").returncode == 0
    assert counts() == (4, 4)


def test_mqtt_topic_names_are_a_tree(at: list[str]) -> None:
    for tag in ("dev1", "dev1", "dev2"):
        send(at, "op-tree", "x", tags=tag)
    found = lines("topic", "tree", "op-tree/", *at)
    assert [(one["topic"], one["messages"]) for one in found] == [
        ("op-tree/dev1", 2), ("op-tree/dev2", 1),
    ]  # fmt: skip
    shown = motelog_here("topic", "tree", "op-tree/dev", "--queue-topic", "op-tree", *at).stdout
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [
        ["op-tree", "3"], ["dev1", "2"], ["dev2", "1"],
    ]  # fmt: skip
    assert "no messages" in motelog_here("topic", "tree", "op-nothing", *at).stdout


def test_the_tree_has_retained_values_and_rates(
    motelog_stack: MotelogProcess, at: list[str]
) -> None:
    mqtt, admin = (":".join(map(str, one)) for one in (motelog_stack.mqtt, motelog_stack.admin))
    for name, value in (("op-kept/a", "21.5"), ("op-kept/b", "\x1b[2J")):
        options = ["-t", name, "-m", value, "-q", "1", "-r", "--to", mqtt]
        assert motelog_here("pub", *options).returncode == 0
    once = pytest.approx(1 / 600, rel=0.1)
    tree = ("topic", "tree", "op-kept/", *at, "--since", "10m", "--retained", "--admin", admin)
    assert [
        (one["topic"], one["messages"], one["per_second"], one["retained"]) for one in lines(*tree)
    ] == [("op-kept/a", 1, once, "21.5"), ("op-kept/b", 1, once, ".[2J")]
    shown = motelog_here(*tree).stdout.splitlines()
    assert shown[2].split()[:2] == ["a", "1"]
    assert float(shown[2].split()[2]) == once
    assert shown[2].endswith("21.5")


def test_groups_tell_how_far_they_are_and_are_set_elsewhere(at: list[str]) -> None:
    motelog_here("topic", "create", "op-group", "--queues", "1", *at)
    send(at, "op-group", "1", "2", "3", "4")
    consume(at, "op-billing", "op-group", 3)
    listed = {one["group"]: one for one in lines("group", "list", *at)}
    assert listed["op-billing"]["waiting"] == 1
    (told,) = lines("group", "describe", "op-billing", *at)
    assert told["queues"][0]["committed_offset"] == 3
    assert told["members"] == []
    (behind,) = lines("group", "lag", "op-billing", *at)
    assert (behind["waiting"], behind["behind_ms"] >= 0) == (1, True)
    too_many = motelog_here("group", "lag", "op-billing", "--max", "0", *at)
    assert (too_many.returncode, "1 messages are waiting" in too_many.stdout) == (1, True)
    assert motelog_here("group", "lag", "op-billing", "--max", "1", *at).returncode == 0
    reset = ["group", "reset-offsets", "op-billing", "op-group"]
    (step,) = lines(*reset, "begin", "--dry-run", *at)
    assert (step["from"], step["to"], step["is_set"]) == (3, 0, False)
    assert "3 again" in motelog_here(*reset, "1h", "--dry-run", *at).stdout
    unsure = motelog_here(*reset, "end", *at)
    assert (unsure.returncode, "1 skipped" in unsure.stderr) == (2, True)
    assert lines("group", "lag", "op-billing", *at)[0]["waiting"] == 1
    assert lines(*reset, "begin", "--yes", *at)[0]["to"] == 0
    (behind,) = lines("group", "lag", "op-billing", *at)
    assert behind["waiting"] == 4
    assert behind["behind_ms"] is not None, "it has consumed nothing, and much waits"
    for command in ("describe", "lag"):
        assert motelog_here("group", command, "op-nobody", *at).returncode == 3
    assert motelog_here(*reset, "offset:1", "--dry-run", *at).returncode == 2
    assert motelog_here(*reset, "someday", "--dry-run", *at).returncode == 2


def test_messages_are_found_by_id_key_time_and_offset(at: list[str]) -> None:
    motelog_here("topic", "create", "op-find", "--queues", "1", *at)
    send(at, "op-find", "first", keys="order-1", tags="blue")
    between_ms = time.time_ns() // 1_000_000 + 1
    while time.time_ns() // 1_000_000 <= between_ms:
        pass
    send(at, "op-find", "second", keys="order-2", tags="red")
    everything = lines("message", "query", "op-find", *at)
    assert [one["body"] for one in everything] == ["first", "second"]
    assert [m["body"] for m in lines("message", "query", "op-find", "--tags", "red", *at)] == [
        "second"
    ]
    for option, expected in (
        (["--key", "order-1"], "first"),
        (["--from", "offset:1"], "second"),
        (["--from", str(between_ms)], "second"),
        (["--until", str(between_ms)], "first"),
        (["--count", "1"], "first"),
    ):
        found = lines("message", "query", "op-find", *option, *at)
        assert [one["body"] for one in found] == [expected], option
    unique_id = everything[1]["message_id"]
    for more in ([], ["--topic", "op-find"]):
        assert lines("message", "get", unique_id, *more, *at)[0]["body"] == "second"
    shown = motelog_here("message", "get", unique_id, *at).stdout
    (offset_id,) = [row.split()[2] for row in shown.splitlines() if row.startswith("offset id")]
    assert lines("message", "get", offset_id, *at)[0]["body"] == "second"
    assert "KEYS" in shown
    for command in (
        ["get", "0" * 32],
        ["get", "no id at all"],
        ["query", "op-find", "--key", "order-3"],
        ["query", "op-no-topic"],
    ):
        assert motelog_here("message", *command, *at).returncode == 3, command


def test_dead_letters_are_listed_exported_and_sent_again(at: list[str], tmp_path: Path) -> None:
    with SyncAdmin(namesrv=at[1]) as admin:
        admin.put_group("op-dead")
        for topic in ("op-work", "%RETRY%op-dead", "%DLQ%op-dead"):
            admin.put_topic(topic, queues=1)
    send(at, "%DLQ%op-dead", "bad 1", "bad 2", "bad 3", properties={"RETRY_TOPIC": "op-work"})
    listed = {one["group"]: one for one in lines("dlq", "list", *at)}
    assert (listed["op-dead"]["messages"], listed["op-dead"]["not_resent"]) == (3, 3)
    letters = lines("dlq", "list", "op-dead", "--count", "2", *at)
    assert [(one["body"], one["origin_topic"]) for one in letters] == [
        ("bad 1", "op-work"), ("bad 2", "op-work"),
    ]  # fmt: skip
    assert "bad 3" in motelog_here("dlq", "list", "op-dead", "--from", "offset:2", *at).stdout
    file = tmp_path / "letters.jsonl"
    assert lines("dlq", "export", "op-dead", "--out", str(file), *at)[0]["messages"] == 3
    exported = [json.loads(line)["body"] for line in file.read_text().splitlines()]
    assert exported == ["bad 1", "bad 2", "bad 3"]
    assert motelog_here("dlq", "export", "op-dead", "--count", "1", *at).stdout.count("\n") == 1
    assert lines("dlq", "resend", "op-dead", "--count", "2", *at)[0]["sent"] == 2
    listed = {one["group"]: one for one in lines("dlq", "list", *at)}
    assert (listed["op-dead"]["messages"], listed["op-dead"]["not_resent"]) == (3, 1)
    sent = motelog_here("dlq", "resend", "op-dead", "--to-all-groups", *at)
    assert sent.stdout == "sent 1 again\n"
    assert lines("message", "query", "op-work", *at)[0]["body"] == "bad 3"
    for command in (["list", "op-nobody"], ["export", "op-nobody"], ["resend", "op-nobody"]):
        assert motelog_here("dlq", *command, *at).returncode == 3, command


def test_without_a_server_it_says_so() -> None:
    for command in (
        ["topic", "list"],
        ["group", "list"],
        ["message", "query", "T"],
        ["dlq", "list"],
    ):
        result = motelog_here(*command, "--namesrv", "127.0.0.1:1")
        assert (result.returncode, "is it running" in result.stderr) == (4, True), command
