"""Brokers and name servers that are killed under our clients and others': nothing is lost.

A few rounds are in the suite; MOTELOG_BROKER_KILLS sets how many. 50 are a command of their own:
python -m tests.fault.broker_kills.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fault.broker_kills import KINDS, Round, rounds
from tests.support.java import VERSION_4, VERSION_5, JavaDriver
from tests.support.lasting_programs import lasting_programs, proxied_programs
from tests.support.wire_ledger import Ledger, LedgerError, OffsetWatch, Reader

ROUNDS = int(os.environ.get("MOTELOG_BROKER_KILLS", "2"))
SEED = 4


@pytest.fixture(autouse=True)
def _offsets_are_committed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what a kill has taken back committed again within seconds."""
    monkeypatch.setattr("motelog.bridge.push.consumer.COMMIT_S", 1.0)
    monkeypatch.setattr("motelog.bridge.read_ahead.COMMIT_AGAIN_S", 3.0)


def check(done: list[Round], said: str) -> None:
    assert [one.kind for one in done][: len(KINDS)] == list(KINDS[:ROUNDS])
    assert sum(one.acknowledged for one in done) > 0
    assert said.startswith("came again: ")


@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_our_clients_lose_nothing_when_servers_are_killed(tmp_path: Path) -> None:
    done: list[Round] = []
    check(done, rounds(tmp_path, SEED, ROUNDS, done.append))


def test_a_fault_is_told_with_its_circumstances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that throws its first message away stands for a broker that has lost it."""
    got = Reader.got
    lost: list[str] = []

    def forget(reader: Reader, body: str) -> None:
        if reader.name == "pull" and not lost and body.startswith("plain/single/"):
            lost.append(body)
        elif reader.name != "pull" or body not in lost:
            got(reader, body)

    def fail(_: Round) -> None:
        raise LedgerError("a fault", *lost)

    monkeypatch.setattr(Reader, "got", forget)
    with pytest.raises(LedgerError) as caught:
        rounds(tmp_path, SEED, 1, fail)
    told = str(caught.value)
    assert told.startswith("a fault\n")
    known = re.search(
        rf"\n  {lost[0]}: acknowledged [0-9.]+ s at (broker-[01] [0-3] \d+); "
        r"how often it came: push \d+, pull 0, simple \d+\n",
        told,
    )
    assert known is not None, told
    stored = rf"\n  {lost[0]}: in the log: {known[1]}(, \w+ at \w+)*?, pull at \d+"
    assert re.search(stored, told), told
    assert re.search(r"\n  [0-9.]+ s broker-[01] is killed\n", told), told


@pytest.mark.java
@pytest.mark.java_all
@pytest.mark.parametrize("version", [VERSION_5, VERSION_4])
@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_java_s_clients_lose_nothing_when_servers_are_killed(tmp_path: Path, version: str) -> None:
    java = JavaDriver(errors=subprocess.DEVNULL)
    done: list[Round] = []
    try:
        said = rounds(tmp_path, SEED, ROUNDS, done.append, java=java, version=version)
    finally:
        java.close()
    check(done, said)


@pytest.mark.node
@pytest.mark.cpp
@pytest.mark.java_all
@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_other_clients_lose_nothing_when_servers_are_killed(tmp_path: Path) -> None:
    done: list[Round] = []
    programs = lasting_programs(tmp_path / "home")
    check(done, rounds(tmp_path / "servers", SEED, ROUNDS, done.append, programs=programs))


@pytest.mark.java
@pytest.mark.java_all
@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_a_client_behind_the_proxy_loses_nothing_when_servers_are_killed(tmp_path: Path) -> None:
    done: list[Round] = []
    programs = proxied_programs(tmp_path / "home")
    check(done, rounds(tmp_path / "servers", SEED, ROUNDS, done.append, programs=programs))


# -- the ledger finds each fault ------------------------------------------------------------


def ledger_of(count: int) -> Ledger:
    """Return the ledger of a writer that has sent messages, of which number 2 is in doubt."""
    ledger = Ledger()
    for _ in range(count):
        body = ledger.next("t", "w")
        if body != "t/w/2":
            ledger.acknowledge(body)
    return ledger


def test_what_was_acknowledged_is_missing_until_it_comes() -> None:
    ledger = ledger_of(4)
    reader = Reader("r", ledger, ["t"])
    other = Reader("other", ledger, ["u"])
    for number in (3, 0, 3):
        reader.got(f"t/w/{number}")
    assert reader.missing() == {"t/w/1"}
    assert other.missing() == set()
    assert reader.repeated == 1


@pytest.mark.parametrize(
    ("numbers", "fault"), [([0, 1, 0, 1, 3], ""), ([0, 1, 2, 3], ""), ([0, 3], "1 has not come")]
)
def test_first_copies_come_in_order(numbers: list[int], fault: str) -> None:
    reader = Reader("r", ledger_of(4), ["t"], in_order=True)

    def read() -> None:
        for number in numbers:
            reader.got(f"t/w/{number}")

    if fault:
        with pytest.raises(LedgerError, match=fault):
            read()
    else:
        read()


def roll_back_first(ledger: Ledger, reader: Reader) -> None:
    ledger.roll_back("t/w/2")
    reader.got("t/w/2")


def roll_back_last(ledger: Ledger, reader: Reader) -> None:
    reader.got("t/w/2")
    ledger.roll_back("t/w/2")


def invent(ledger: Ledger, reader: Reader) -> None:
    reader.got("t/w/4")
    ledger.check()


@pytest.mark.parametrize(
    ("do", "fault"),
    [(roll_back_first, "rolled back"), (roll_back_last, "rolled back"), (invent, "never sent")],
)
def test_what_nobody_may_get_is_found(do: Callable[[Ledger, Reader], None], fault: str) -> None:
    ledger = ledger_of(4)
    with pytest.raises(LedgerError, match=fault):
        do(ledger, Reader("r", ledger, ["t"]))


def offsets(offset: int) -> dict[str, dict[str, int]]:
    return {"T@G": {"0": offset}}


def test_an_offset_does_not_go_back_while_the_broker_runs() -> None:
    watch = OffsetWatch("b", saved_within_s=2)
    for at_s, offset in enumerate((1, 5, 5, 9)):
        watch.saw(at_s, offsets(offset))
    with pytest.raises(LedgerError, match=r"9 of T@G 0 has gone back: 8"):
        watch.saw(4, offsets(8))
    with pytest.raises(LedgerError, match="has gone back: -1"):
        watch.saw(5, {})


def test_a_group_that_goes_back_itself_hides_no_other() -> None:
    watch = OffsetWatch("b", saved_within_s=2, free=["G"])
    watch.saw(0, {"T@G": {"0": 9}, "T@H": {"0": 9}})
    watch.saw(1, {"T@G": {"0": 1}, "T@H": {"0": 9}})
    with pytest.raises(LedgerError, match="9 of T@H 0 has gone back: 8"):
        watch.saw(2, {"T@G": {"0": 1}, "T@H": {"0": 8}})


@pytest.mark.parametrize(("found", "is_lost"), [(10, False), (9, False), (8, True)])
def test_a_start_finds_what_was_saved(found: int, is_lost: bool) -> None:
    watch = OffsetWatch("b", saved_within_s=2)
    for at_s, offset in enumerate((1, 9, 10, 12)):
        watch.saw(at_s, offsets(offset))
    watch.ended(3.5)
    if is_lost:
        with pytest.raises(LedgerError, match="9 of T@G 0 is lost by a restart: 8"):
            watch.saw(5, offsets(found))
    else:
        watch.saw(5, offsets(found))
