"""A pair of brokers loses nothing that was acknowledged, whatever happens to one of them.

A few rounds are in the suite; MOTELOG_REPLICA_ROUNDS sets how many. 200 are a command of their own:
python -m tests.fault.replica_rounds.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from tests.fault.replica_rounds import KINDS, kinds_of, rounds
from tests.support.ha_line import Direction, HaLine

ROUNDS = int(os.environ.get("MOTELOG_REPLICA_ROUNDS", "2"))
FIRST = {"sync": ("fork", "kill"), "async": ("hang", "line-byte")}
SEED = 5
WITHIN_S = 10


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.timeout(200 + 60 * ROUNDS)
def test_a_pair_outlives_the_faults_of_one(tmp_path: Path, mode: Literal["sync", "async"]) -> None:
    said: list[str] = []
    kinds = [*FIRST[mode], *kinds_of(SEED, ROUNDS)][:ROUNDS]
    with closing(rounds(tmp_path, SEED, kinds, mode, note=said.append)) as going:
        done = list(going)
    assert [one.kind for one in done] == kinds
    assert all(one.acknowledged > 0 for one in done)
    assert len(said) == 1


def test_every_kind_is_among_the_first_rounds() -> None:
    assert set(kinds_of(SEED, len(KINDS))) == set(KINDS)
    assert kinds_of(SEED, 30) == kinds_of(SEED, 30)


@pytest.fixture
def ends() -> Iterator[tuple[HaLine, socket.socket, socket.socket]]:
    """A line, the client's socket and the server's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with HaLine((host, port)) as line, socket.create_connection((host, line.port)) as client:
            server, _ = listener.accept()
            with server:
                for end in (client, server):
                    end.settimeout(WITHIN_S)
                yield line, client, server


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_line_swallows_one_direction(
    ends: tuple[HaLine, socket.socket, socket.socket], direction: Direction
) -> None:
    line, client, server = ends
    source, sink = (client, server) if direction == "up" else (server, client)
    line.muted.add(direction)
    source.sendall(b"lost")
    sink.sendall(b"there")
    assert source.recv(10) == b"there"
    sink.settimeout(0.2)
    with pytest.raises(TimeoutError):
        sink.recv(10)
    sink.settimeout(WITHIN_S)
    line.heal()
    assert sink.recv(10) == b""


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_line_is_cut_after_some_bytes(
    ends: tuple[HaLine, socket.socket, socket.socket], direction: Direction
) -> None:
    line, client, server = ends
    source, sink = (client, server) if direction == "up" else (server, client)
    line.cut_after(direction, 3)
    source.sendall(b"abcdef")
    threading.Timer(0.2, source.sendall, [b"more"]).start()
    got = b""
    while data := sink.recv(10):
        got += data
    assert got == b"abc"
