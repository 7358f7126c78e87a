"""The generic loader: what it accepts, every kind of fault, and where it says they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from motelog.core.config import ConfigFaultsError, find_lines, load, load_file


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

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")


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
        "MOTELOG_PURE": "1",
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
        "f.toml:3: disk.file_bytes: 1 is not accepted; expected an integer of at least 4096",
        'f.toml:4: disk.flush: "asynk" is not accepted; expected "async" or "sync"; '
        'did you mean "async"?',
    ]


def test_missing_key_is_reported_at_its_table() -> None:
    assert faults('# nothing\n\n[disk]\nflush = "sync"\n') == [
        "f.toml:3: disk.directory: missing; expected a text"
    ]
    assert faults("") == ["f.toml: disk: missing; expected a table"]


def test_fields_that_do_not_go_together() -> None:
    assert faults("low = 9\n" + GOOD) == ["f.toml: low 9 is above high 2"]


def test_faults_in_arrays_of_tables_name_element_and_line() -> None:
    text = GOOD + (
        '[[rules]]\nfilter = "a"\n\n[[rules]]\nfilter = "b"\nqueues = 65\n\n'
        '[[rules]]\nfiltr = "c"\n'
    )
    assert faults(text) == [
        "f.toml:8: rules[1].queues: 65 is not accepted; expected an integer from 1 to 64",
        "f.toml:11: rules[2].filtr: unknown key; did you mean rules[2].filter?",
        "f.toml:10: rules[2].filter: missing; expected a text",
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


def test_lines_are_found_through_multi_line_values() -> None:
    text = '''a = """
[not.a.table]
b = 1
"""
c = [
  "x = 1", # ]
  { d = 2 },
]
"e.f".g = 1 # comment = 1
[h]
i.j = """one line"""
k = \'\'\'
l = 1\'\'\'
m = "[["
[[n.o]]
p = 1
[[n.o]]
[n.o.q]
r = 1
'''
    lines = find_lines(text)
    assert lines[("a",)] == 1
    assert ("not", "a", "table") not in lines
    assert lines[("c",)] == 5
    assert lines[("e.f", "g")] == 9
    assert lines[("h", "i")] == lines[("h", "i", "j")] == 11
    assert lines[("h", "k")] == 12
    assert lines[("h", "m")] == 14
    assert lines[("n", "o", 0, "p")] == 16
    assert lines[("n", "o", 1)] == 17
    assert lines[("n", "o", 1, "q", "r")] == 19
    assert not any("l" in path or "x" in path for path in lines)


def test_the_callers_own_check_is_reported_with_the_rest() -> None:
    def refuse_x(path: tuple[str | int, ...], value: object) -> str | None:
        return f"{value} is not for {path[-1]}" if value == "x" else None

    with pytest.raises(ConfigFaultsError) as caught:
        load(Server, 'listen = "x"\nlow = ""\n' + GOOD, {}, name="f.toml", check=refuse_x)
    assert [str(fault) for fault in caught.value.faults] == [
        "f.toml:1: listen: x is not for listen",
        'f.toml:2: low: "" is not accepted; expected an integer',
    ]
