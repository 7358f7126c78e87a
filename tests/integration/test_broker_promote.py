"""A pair as its operator has it: a killed master, ``motelog broker``, the old one back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import motelog, motelog_lines
from tests.support.ports import free_ports
from tests.support.role_process import RoleProcess

WITHIN_S = 30


def until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not is_true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)


class Pair:
    """A name server and two brokers of one name; 0 and 1 are folders, whatever their roles."""

    def __init__(self, folder: Path) -> None:
        namesrv, *ports = free_ports(3)
        self.folder = folder
        self.namesrv = f"127.0.0.1:{namesrv}"
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        self.processes = [
            RoleProcess(folder, "namesrv", f'[namesrv]\nlisten = "{self.namesrv}"'),
        ]
        self.processes[0].start()

    def store(self, number: int) -> Path:
        return self.folder / f"store-{number}"

    def broker(self, number: int, broker_id: int) -> RoleProcess:
        """Return a broker of the pair that has not started."""
        folder = self.folder / f"process-{number}-{broker_id}"
        folder.mkdir(exist_ok=True)
        process = RoleProcess(
            folder,
            "broker",
            f'[broker]\nid = {broker_id}\nreplicate = "async"\nvip = false\n'
            f'listen = "{self.addresses[number]}"\nnamesrv = ["{self.namesrv}"]\n'
            f'[broker.store]\ndirectory = "{self.store(number)}"\n'
            "commitlog_file_bytes = 4194304",
        )
        self.processes.append(process)
        return process

    def produce(self, count: int) -> None:
        for _ in range(count):
            sent = motelog("produce", "T", "-m", "x" * 100, "--namesrv", self.namesrv)
            assert sent.returncode == 0, sent.stderr

    def members(self) -> dict[int, dict[str, Any]]:
        """Return what ``motelog broker list`` says, by the brokers' numbers."""
        lines = motelog_lines("broker", "list", "--json", "--namesrv", self.namesrv)
        return {one["id"]: one for one in lines}

    def has_copied(self) -> bool:
        members = self.members()
        slave = members.get(1)
        return (
            slave is not None
            and slave["fault"] is None
            and slave["end_offset"] == members[0]["end_offset"] > 0
        )


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    for process in made.processes:
        process.kill()


def test_a_slave_is_promoted_and_the_old_master_comes_back_as_a_slave(pair: Pair) -> None:
    first, second = pair.broker(0, 0), pair.broker(1, 1)
    first.start()
    second.start()
    pair.produce(3)
    until(pair.has_copied)
    end = pair.members()[0]["end_offset"]
    refused = motelog("broker", "promote", "broker-a", "--yes", "--namesrv", pair.namesrv)
    assert refused.returncode != 0
    assert "stop the master first" in refused.stderr
    # What the slave never got is lost by the promotion.
    second.stop()
    pair.produce(2)
    first.kill()
    second.start()
    promoted = motelog(
        "broker", "promote", "broker-a", "--yes", "--json", "--namesrv", pair.namesrv
    )
    assert promoted.returncode == 0, promoted.stderr
    told = json.loads(promoted.stdout)
    assert (told["address"], told["end_offset"]) == (pair.addresses[1], end)
    pair.produce(4)
    # The old master does not serve as one any more.
    with pytest.raises(AssertionError, match="is the master of broker-a"):
        pair.broker(0, 0).start()
    third = pair.broker(0, 1)
    third.start()
    until(lambda: f"store cut --at {end}" in (pair.members()[1]["fault"] or ""))
    third.stop()
    cut = motelog("store", "cut", str(pair.store(0)), "--at", str(end), "--yes")
    assert cut.returncode == 0, cut.stderr
    third.start()
    until(pair.has_copied)
    ours, theirs = (sorted((pair.store(n) / "commitlog").iterdir()) for n in (0, 1))
    new_end = pair.members()[0]["end_offset"]
    assert ours[0].read_bytes()[:new_end] == theirs[0].read_bytes()[:new_end]
