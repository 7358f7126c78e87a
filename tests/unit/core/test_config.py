"""The generic loader: what it accepts, every kind of fault, and where it says they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from motelog.core.config import (
    ConfigFaultsError,
    SectionFault,
    load,
    load_file,
    refuse,
    unread_variables,
)


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    filter: str
    queues: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8


class Disk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    directory: str
    flush: Literal["async", "sync"] = "async"
    file_bytes: Annotated[int, msgspec.Meta(ge=4096)] = 1 << 30


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    disk: Disk
    listen: str = "127.0.0.1:1"
    peers: list[str] = []
    rules: list[Rule] = []
    ratio: float = 0.5
    enabled: bool = True
    low: int = 1
    high: int = 2
    wait_ms: int = 5
    pause_s: float = 0.5
    keep_hours: int = 1

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def _faults(self) -> Iterator[SectionFault]:
        if self.low > self.high:
            yield SectionFault(f"low {self.low} is above high {self.high}", ("low", "high"))
        if self.listen == self.disk.directory:
            text = f"listen and disk.directory are both {self.listen}"
            yield SectionFault(text, ("listen", "disk.directory"))


def faults(text: str, environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigFaultsError) as caught:
        load(Server, text, environment or {}, name="f.toml")
    return [str(fault) for fault in caught.value.faults]


GOOD = '[disk]\ndirectory = "d"\n'


def test_defaults_fill_what_the_file_leaves_out() -> None:
    server = load(Server, GOOD, {}, name="f.toml")
    assert server == Server(disk=Disk(directory="d"))


def test_environment_overrides_the_file_and_converts_its_text() -> None:
    environment = {
        "MOTELOG__DISK__FLUSH": "sync",
        "MOTELOG__DISK__FILE_BYTES": "8192",
        "MOTELOG__ENABLED": "false",
        "MOTELOG__RATIO": "0.25",
        "MOTELOG__PEERS": '["a", "b"]',
        "MOTELOG__LISTEN": "[::1]:5",
        "MOTELOG_TOKEN": "1",
        "HOME": "/",
    }
    server = load(Server, GOOD, environment, name="f.toml")
    assert server.disk == Disk(directory="d", flush="sync", file_bytes=8192)
    assert (server.enabled, server.ratio, server.peers) == (False, 0.25, ["a", "b"])
    assert server.listen == "[::1]:5"


def test_environment_alone_may_supply_a_required_section() -> None:
    server = load(Server, "", {"MOTELOG__DISK__DIRECTORY": "x"}, name="f.toml")
    assert server.disk.directory == "x"


def test_unknown_key_names_line_and_nearest_key() -> None:
    text = 'lisen = "x"\n[disk]\ndirectory = "d"\nflsh = "sync"\n'
    assert faults(text) == [
        "f.toml:1: lisen: unknown key; did you mean listen?",
        "f.toml:4: disk.flsh: unknown key; did you mean disk.flush?",
    ]


def test_unknown_key_with_no_neighbour_lists_the_keys_there_are() -> None:
    assert faults(GOOD + "zzzz = 1\n") == [
        "f.toml:3: disk.zzzz: unknown key; expected one of directory, file_bytes, flush"
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('low = "one"', 'low: "one" is not accepted; expected an integer'),
        ("enabled = 1", "enabled: 1 is not accepted; expected true or false"),
        ("listen = 5", "listen: 5 is not accepted; expected a text"),
        ('ratio = "x"', 'ratio: "x" is not accepted; expected a number'),
        ("peers = [1]", "peers: [1] is not accepted; expected an array, each element a text"),
        ("disk = 3", "disk: 3 is not accepted; expected a table"),
        ("rules = {}", "rules: {} is not accepted; expected an array, each element a table"),
    ],
)
def test_wrong_type_says_what_was_expected(line: str, expected: str) -> None:
    text = line + "\n" + ("" if line.startswith("disk") else GOOD)
    assert faults(text) == [f"f.toml:1: {expected}"]


def test_value_outside_its_bounds_or_choices() -> None:
    text = '[disk]\ndirectory = "d"\nfile_bytes = 1\nflush = "asynk"\n'
    assert faults(text) == [
        "f.toml:3: disk.file_bytes: 1 is not accepted; "
        'expected bytes: an integer of at least 4096, or a text such as "64MiB"',
        'f.toml:4: disk.flush: "asynk" is not accepted; expected "async" or "sync"; '
        'did you mean "async"?',
    ]


def test_missing_key_is_reported_at_its_table() -> None:
    assert faults('# nothing\n\n[disk]\nflush = "sync"\n') == [
        "f.toml:3: disk.directory: missing; expected a text"
    ]
    assert faults("") == ["f.toml: disk: missing; expected a table"]


def test_fields_that_do_not_go_together() -> None:
    assert faults("low = 9\n" + GOOD) == ["f.toml:1: low: low 9 is above high 2"]
    assert faults("low = 9\nhigh = 8\n" + GOOD) == ["f.toml:2: high: low 9 is above high 8"]
    assert faults('listen = "d"\n' + GOOD) == [
        "f.toml:3: disk.directory: listen and disk.directory are both d"
    ]
    with pytest.raises(ValueError, match="low: low 5 is above high 2"):
        Server(disk=Disk(directory="d"), low=5)


def test_relations_are_checked_beside_other_faults_but_not_what_follows_from_these() -> None:
    assert faults('low = 9\nratio = "x"\n[disk]\nflush = 1\n') == [
        "f.toml:1: low: low 9 is above high 2",
        'f.toml:2: ratio: "x" is not accepted; expected a number',
        "f.toml:3: disk.directory: missing; expected a text",
        'f.toml:4: disk.flush: 1 is not accepted; expected "async" or "sync"',
    ]
    # What stands in for the wrong directory is not compared.
    assert faults('listen = ""\n[disk]\ndirectory = 5\n') == [
        "f.toml:3: disk.directory: 5 is not accepted; expected a text"
    ]
    assert faults('low = 9\nhigh = "x"\n' + GOOD) == [
        'f.toml:2: high: "x" is not accepted; expected an integer'
    ]


def test_sizes_and_times_may_have_units_in_file_and_environment() -> None:
    text = 'wait_ms = "1.5s"\npause_s = "20ms"\nkeep_hours = "3d"\n' + GOOD
    server = load(Server, text, {"MOTELOG__DISK__FILE_BYTES": "64MiB"}, name="f.toml")
    assert (server.wait_ms, server.pause_s, server.keep_hours) == (1500, 0.02, 72)
    assert server.disk.file_bytes == 64 * 1024 * 1024
    server = load(Server, "pause_s = 2\n" + GOOD, {"MOTELOG__WAIT_MS": "7"}, name="f.toml")
    assert (server.pause_s, server.wait_ms) == (2.0, 7)


@pytest.mark.parametrize(
    "line", ['keep_hours = "90m"', 'keep_hours = "1GB"', 'keep_hours = "72"', 'keep_hours = "h"']
)
def test_text_that_says_no_such_number(line: str) -> None:
    value = line.partition("= ")[2]
    assert faults(f"{line}\n{GOOD}") == [
        f"f.toml:1: keep_hours: {value} is not accepted; "
        'expected hours: an integer, or a text such as "72h"'
    ]


def test_a_count_takes_no_unit() -> None:
    assert faults('low = "1kB"\n' + GOOD) == [
        'f.toml:1: low: "1kB" is not accepted; expected an integer'
    ]


def test_variables_that_nothing_reads_are_named_with_what_they_may_mean() -> None:
    environment = {
        "MOTELOG_DISK_FLUSH": "sync",
        "motelog__disk__flush": "sync",
        "MOTELOG_TOKNE": "1",
        "MOTELOG_TOKEN": "1",
        "MOTELOG_SERVICE_HOST": "10.0.0.1",
        "MOTELOG__ANYTHING": "is a fault instead",
        "PATH": "/",
    }
    assert unread_variables(Server, environment, prefix="MOTELOG_", known=["MOTELOG_TOKEN"]) == {
        "MOTELOG_DISK_FLUSH": "MOTELOG__DISK__FLUSH",
        "motelog__disk__flush": "MOTELOG__DISK__FLUSH",
        "MOTELOG_TOKNE": "MOTELOG_TOKEN",
        "MOTELOG_SERVICE_HOST": None,
    }


def test_faults_in_arrays_of_tables_name_element_and_line() -> None:
    text = GOOD + (
        '[[rules]]\nfilter = "a"\n\n[[rules]]\nfilter = "b"\nqueues = 65\n\n'
        '[[rules]]\nfiltr = "c"\n'
    )
    assert faults(text) == [
        "f.toml:8: rules[1].queues: 65 is not accepted; expected an integer from 1 to 64",
        "f.toml:10: rules[2].filter: missing; expected a text",
        "f.toml:11: rules[2].filtr: unknown key; did you mean rules[2].filter?",
    ]


def test_faults_of_file_and_environment_come_together() -> None:
    environment = {"MOTELOG__DISK__FLUSH": "never", "MOTELOG__DISKK__X": "1"}
    assert faults('ratio = "x"\n' + GOOD, environment) == [
        'f.toml:1: ratio: "x" is not accepted; expected a number',
        'environment variable MOTELOG__DISK__FLUSH: disk.flush: "never" is not accepted; '
        'expected "async" or "sync"',
        "environment variable MOTELOG__DISKK__X: diskk: unknown key; did you mean disk?",
    ]


def test_environment_below_a_value_that_is_no_table_leaves_the_file_fault() -> None:
    assert faults("disk = 3\n", {"MOTELOG__DISK__FLUSH": "sync"}) == [
        "f.toml:1: disk: 3 is not accepted; expected a table"
    ]


def test_text_that_is_not_toml_names_the_line() -> None:
    (fault,) = faults("[disk]\ndirectory = \n")
    assert fault.startswith("f.toml:2: not valid TOML: ")


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigFaultsError, match=r"none\.toml: cannot read: No such file"):
        load_file(Server, tmp_path / "none.toml", {})


def test_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b'listen = "\xe9"\n')
    with pytest.raises(ConfigFaultsError, match="not UTF-8 at byte 10"):
        load_file(Server, path, {})


def test_the_callers_own_check_is_reported_with_the_rest() -> None:
    def refuse_x(path: tuple[str | int, ...], value: object) -> str | None:
        return f"{value} is not for {path[-1]}" if value == "x" else None

    with pytest.raises(ConfigFaultsError) as caught:
        load(Server, 'listen = "x"\nlow = ""\n' + GOOD, {}, name="f.toml", check=refuse_x)
    assert [str(fault) for fault in caught.value.faults] == [
        "f.toml:1: listen: x is not for listen",
        'f.toml:2: low: "" is not accepted; expected an integer',
    ]
