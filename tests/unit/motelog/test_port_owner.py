"""Who listens on a port: a made-up /proc, and this process in the real one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from motelog.cli.addresses import next_free
from motelog.cli.output import CliError
from motelog.cli.port_owner import port_owner

HEAD = "  sl  local_address rem_address st tx rx tr tm retrnsmt uid timeout inode"


def line(port: int, inode: int, *, state: str = "0A", user: int = 0, host: str = "0100007F") -> str:
    here = f"{host}:{port:04X}"
    return f"   0: {here} 00000000:0000 {state} 0:0 00:00 0 {user} 0 {inode} 1 0 100"


def make_proc(folder: Path, lines: list[str], lines6: list[str] | None = None) -> Path:
    (folder / "net").mkdir()
    (folder / "net" / "tcp").write_text("\n".join([HEAD, *lines]))
    if lines6 is not None:
        (folder / "net" / "tcp6").write_text("\n".join([HEAD, *lines6]))
    (folder / "self").mkdir()
    return folder


def make_process(proc: Path, number: int, command: str, inodes: list[int]) -> None:
    descriptors = proc / str(number) / "fd"
    descriptors.mkdir(parents=True)
    (proc / str(number) / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    for at, inode in enumerate(inodes):
        (descriptors / str(at)).symlink_to(f"socket:[{inode}]")


@pytest.mark.parametrize(
    ("command", "text", "ours"),
    [
        ("/usr/sbin/mosquitto -c m.conf", "mosquitto (process 7)", None),
        ("/v/bin/python /v/bin/motelog dev --json", "motelog dev (process 7)", "dev"),
        ("python3 -m motelog up --config f", "motelog up (process 7)", "up"),
        ("vi motelog", "vi (process 7)", None),
    ],
)
def test_process_is_named_and_ours_is_known(
    tmp_path: Path, command: str, text: str, ours: str | None
) -> None:
    proc = make_proc(tmp_path, [line(80, 1), line(1883, 55), line(1883, 56, state="01")])
    make_process(proc, 5, "other", [1, 56])
    make_process(proc, 7, command, [3, 55])
    make_process(proc, 30, "child of it", [55])
    owner = port_owner(1883, proc=proc)
    assert (str(owner), owner.motelog_command, owner.process_id) == (text, ours, 7)


def test_process_that_may_not_be_looked_into_has_a_user(tmp_path: Path) -> None:
    proc = make_proc(tmp_path, [], [line(1883, 55, user=4_000_000_000, host="0" * 32)])
    make_process(proc, 7, "hidden", [])
    owner = port_owner(1883, proc=proc)
    assert owner.process_id is None
    assert "the user 4000000000, which you are not permitted to see" in str(owner)


def test_nothing_to_be_seen(tmp_path: Path) -> None:
    assert str(port_owner(1883, proc=tmp_path)) == "a process that cannot be seen from here"
    proc = make_proc(tmp_path, [line(1883, 55, state="01")])
    assert str(port_owner(1883, proc=proc)) == "a process that cannot be seen from here"


def test_this_process_finds_itself_and_the_next_free_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert port_owner(port).process_id == os.getpid()
        text, free = next_free("--mqtt", f"127.0.0.1:{port}", avoid={port + 1})
        assert free > port + 1
        assert text == f"127.0.0.1:{free}"
        text, free = next_free("--broker", f"127.0.0.1:{free}", avoid={free - 2}, below=2)
        assert free not in (port, port + 1)


def test_port_0_stays_and_no_free_port_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert next_free("--mqtt", "127.0.0.1:0", avoid=set()) == ("127.0.0.1:0", 0)
    with pytest.raises(CliError, match="--mqtt: no port from 5000 to 5099 is free"):
        next_free("--mqtt", "127.0.0.1:5000", avoid=set(range(5000, 5200)))
