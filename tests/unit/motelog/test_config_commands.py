"""``motelog config``: what a file says, where each value is from, what it may say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from motelog.config import MotelogConfig
from motelog.config_schema import json_schema, sections
from tests.support.cli import motelog_here

FILE = """\
roles = ["namesrv", "broker", "gateway"]
[broker]
listen = "127.0.0.1:20911"
[broker.store]
directory = "/tmp/x"
retention_hours = "7d"
[gateway]
topic_map = [{filter = "site/+/#", queue_topic = "site"}]
[[listener]]
name = "second"
address = "127.0.0.1:1884"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "m.toml"
    path.write_text(FILE)
    return str(path)


def lines(*arguments: str, environment: dict[str, str] | None = None) -> list[dict[str, Any]]:
    result = motelog_here("config", *arguments, "--json", environment=environment)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_value_has_its_origin(file: str) -> None:
    variable = "MOTELOG__GATEWAY__TOPIC_BYTES_MAX"
    shown = {one["key"]: one for one in lines("show", file, environment={variable: "2KiB"})}
    for key, value, origin in (
        ("broker.listen", "127.0.0.1:20911", f"{file}:3"),
        ("broker.store.retention_hours", 168, f"{file}:6"),
        ("broker.store.flush", "async", "default"),
        ("gateway.topic_bytes_max", 2048, f"environment variable {variable}"),
        ("gateway.topic_map[0].queue_topic", "site", f"{file}:8"),
        ("gateway.topic_map[0].tag", "{2}", "default"),
        ("listener[0].name", "second", f"{file}:10"),
        ("listener[0].for", "mqtt", "default"),
        ("admin.listen", "127.0.0.1:8080", "default"),
    ):
        assert (shown[key]["value"], shown[key]["origin"]) == (value, origin)
    text = motelog_here("config", "show", file, "--origin", "--under", "broker").stdout
    assert re.search(rf'broker\.listen += +"127\.0\.0\.1:20911" +# {re.escape(file)}:3\n', text)
    assert "gateway" not in text
    assert motelog_here("config", "show", file, "--under", "brokers").returncode == 3


def test_what_is_shown_can_be_read_again(file: str, tmp_path: Path) -> None:
    again = tmp_path / "again.toml"
    again.write_text(motelog_here("config", "show", file, "--under", "broker.store").stdout)
    assert lines("show", str(again), "--under", "broker")[-1]["key"].startswith("broker.")


def test_differences_from_the_defaults_and_from_another_file(file: str, tmp_path: Path) -> None:
    changed = {one["key"]: one for one in lines("diff", file)}
    assert changed["broker.store.retention_hours"]["before"] == 72
    assert changed["broker.store.retention_hours"]["after"] == 168
    assert "broker.store.flush" not in changed
    other = tmp_path / "other.toml"
    other.write_text(FILE.replace("7d", "8d"))
    (one,) = lines("diff", file, str(other))
    assert (one["key"], one["before"], one["after"]) == ("broker.store.retention_hours", 192, 168)
    assert motelog_here("config", "diff", file, file).stdout == "no difference\n"


def test_logins_in_urls_are_not_shown(tmp_path: Path) -> None:
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    text = FILE + '[access]\nhttp_url = "http://user:hunter2@127.0.0.1/"\n'
    one.write_text(text)
    other.write_text(text.replace("hunter2", "hunter3"))
    shown = '"http://[removed]@127.0.0.1/"'
    for command in (("show",), ("show", "--origin"), ("show", "--json"), ("diff",)):
        result = motelog_here("config", *command, str(one))
        assert shown in result.stdout, command
        assert "hunter" not in result.stdout + result.stderr
    for more in ((), ("--json",)):
        result = motelog_here("config", "diff", str(one), str(other), *more)
        assert result.stdout.count(shown) == 2  # it differs
        assert "hunter" not in result.stdout


def test_a_wrong_file_is_told_as_by_check(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("[gateway]\nlisten = 7\n")
    for command in ("show", "diff", "check"):
        result = motelog_here("config", command, str(path))
        assert (result.returncode, "wrong.toml:2" in result.stderr) == (78, True), command


def keys(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for section in schema["$defs"].values():
        yield from section["properties"].items()


def test_the_schema_has_every_key_with_its_words_and_units() -> None:
    schema = json.loads(motelog_here("config", "schema").stdout)
    assert schema == json.loads(json.dumps(json_schema()))
    names = {kind.__name__ for kind in sections(MotelogConfig)}
    assert schema["$defs"].keys() == names
    assert all(one["additionalProperties"] is False for one in schema["$defs"].values())
    assert [name for name, one in keys(schema) if not one.get("description")] == []
    number, text = schema["$defs"]["StoreConfig"]["properties"]["retention_hours"]["anyOf"]
    assert (number["type"], number["minimum"]) == ("integer", 1)
    for spelled, is_accepted in (("72h", True), ("3 D", True), ("1.5h", True), ("7w", False)):
        assert bool(re.search(text["pattern"], spelled)) is is_accepted
    assert "anyOf" not in schema["$defs"]["GatewayConfig"]["properties"]["workers"]
