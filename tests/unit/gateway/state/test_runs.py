"""Journals of several gateways on one log: which runs live, who holds a session, in all views."""

from __future__ import annotations

import pytest
import trio

from motelog.core.clock import ManualClock
from motelog.core.errors import StoreFullError
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.log.reckoning import LOST_TICKS
from motelog.gateway.state import session_rows
from motelog.gateway.state.journal import SILENCE_MS_MAX, SessionJournal
from motelog.gateway.state.retained import RetainedStore
from motelog.gateway.state.session_rows import ClaimHeard
from motelog.gateway.state.starting import read_back
from motelog.gateway.state.stored import Mark, MarkKind, Progress, StoredSession
from motelog.gateway.state.view import IN_MEMORY, View, ViewError
from tests.support.fake_log import FakeLog

QUEUE = "telemetry/3"
KEY = (MQTT_SESSION_TOPIC, 0)


class Journals:
    """Gateways' journals by name, each with its own view."""

    def __init__(self, *names: str) -> None:
        self.log = FakeLog()
        self.clock = ManualClock(1_000_000)
        self.all: dict[str, SessionJournal] = {}
        for name in names:
            self.start(name)
        self.read()

    def __getitem__(self, name: str) -> SessionJournal:
        return self.all[name]

    def start(self, name: str) -> SessionJournal:
        view = View(IN_MEMORY)
        view.open()
        journal = self.all[name] = SessionJournal(self.log, view, self.clock, gateway=name)
        journal.watch({"dev", "other", "third"})
        self.read(name)
        assert journal.is_current
        return journal

    def read(self, *names: str) -> None:
        self.log.now_ms = self.clock.now_ms()
        for name in names or self.all:
            while self.all[name].refresh(3):
                pass

    def tick(self, *names: str) -> None:
        """Let a second pass: the journals tick, then all of them read back."""
        self.clock.advance(1000)
        self.log.now_ms = self.clock.now_ms()
        for name in names or self.all:
            self.all[name].tick({}, [])
        self.read(*names)

    def seen(self, client_id: str = "dev") -> StoredSession | None:
        """Return a session, of which all views must say the same, also one that is made anew."""
        self.read()
        found = [journal.load(client_id) for journal in self.all.values()]
        view = View(IN_MEMORY)
        view.open()
        new = SessionJournal(self.log, view, self.clock, gateway="new")
        while new.refresh(100):
            pass
        found.append(new.load(client_id))
        new.stop()
        view.close()
        assert all(one == found[0] for one in found)
        return found[0]


def session(left_ms: int | None = None, at: int = 10) -> StoredSession:
    return StoredSession("dev", 3600, left_ms, (), {QUEUE: at})


def claims_of(journal: SessionJournal) -> list[ClaimHeard]:
    return [one for one in journal.take_heard() if isinstance(one, ClaimHeard)]


def claim(gateways: Journals, name: str) -> int:
    return gateways[name].claim(["dev"], [], [], [])[0]


# --- runs -------------------------------------------------------------------------------------


def test_gateway_knows_of_others_from_their_start_to_their_end() -> None:
    gateways = Journals("a")
    assert (gateways["a"].others_live, gateways["a"].is_first) == (False, True)
    gateways.start("b")
    gateways.read()
    assert [one.others_live for one in gateways.all.values()] == [True, True]
    assert [one.is_first for one in gateways.all.values()] == [True, False]
    gateways["a"].stop()
    gateways.read()
    assert (gateways["b"].others_live, gateways["b"].is_first) == (False, True)
    assert gateways["a"].is_over


def test_gateway_that_is_alone_ticks_as_before_and_with_others_each_second() -> None:
    gateways = Journals("a")
    records = gateways.log.records[KEY]
    before = len(records)
    for _ in range(SILENCE_MS_MAX // 1000 + 1):
        gateways.tick()
    assert len(records) == before
    gateways.start("b")
    gateways.read()
    before = len(records)
    gateways.tick()
    assert len(records) == before + 2


def test_silent_run_is_lost_when_it_wrote_last() -> None:
    gateways = Journals("a", "b")
    gateways["b"].save(session())
    gateways.tick()
    told_ms = gateways.clock.now_ms()
    for _ in range(LOST_TICKS):
        assert gateways["a"].others_live
        gateways.tick("a")
    gateways.tick("a")
    assert not gateways["a"].others_live
    found = gateways["a"].load("dev")
    assert found is not None
    assert found.left_ms == told_ms


def test_run_that_wrote_before_it_was_called_lost_lives() -> None:
    gateways = Journals("a", "b")
    for _ in range(LOST_TICKS):
        gateways.tick("a")
    gateways.clock.advance(1000)
    gateways["b"].tick({}, [])  # a has not read it
    gateways["a"].tick({}, [])
    gateways.read()
    assert not gateways["b"].is_over
    assert gateways["a"].others_live


def test_ticks_that_are_not_read_back_or_not_settled_count_nobody_out() -> None:
    gateways = Journals("a", "b")
    gateways.log.settles_at_once = False
    for _ in range(3 * LOST_TICKS):
        gateways.tick("a")
    gateways.log.settles_at_once = True
    gateways.log.settle()
    gateways.log.cold = set(range(1000))
    for _ in range(3 * LOST_TICKS):
        gateways.clock.advance(1000)
        gateways["a"].tick({}, [])
        gateways["a"].refresh(10)
    gateways.log.paged_in()
    gateways.tick()
    gateways.tick()
    assert not gateways["b"].is_over


def test_what_a_run_writes_after_its_end_is_nothing() -> None:
    gateways = Journals("a", "b")
    late = gateways["b"]
    late.save(session())
    late.tick({QUEUE: 12}, [])
    gateways.read()
    before = gateways.clock.now_ms()
    for _ in range(LOST_TICKS + 2):
        gateways.tick("a")
    late.tick({QUEUE: 90}, [Progress("dev", {QUEUE: 50}, ())])
    late.mark(Mark(MarkKind.SENT, "dev", 3, QUEUE, 60))
    late.commit()
    late.save(session(at=99))
    late.end("dev")
    late.claim(["dev"], [], [], [])
    gateways.read()
    assert gateways.all.pop("b").is_over
    assert gateways.seen() == session(before, at=12)
    assert not gateways["a"]._view.execute("SELECT * FROM claims").fetchall()


def test_run_that_is_forgotten_does_not_live_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_rows, "OVER_MAX", 2)
    gateways = Journals("a", "b")
    late = gateways["b"]
    gateways.start("b")
    gateways.read("a")
    assert late._run not in gateways["a"]._rows.runs
    late.save(session())
    assert gateways.seen() is None
    for _ in range(4):
        gateways.start("b")
    gateways.read("a")
    assert gateways["a"]._view.execute("SELECT count(*) FROM over").fetchone() == (2,)


def test_run_that_is_over_begins_again_under_its_name_or_another() -> None:
    gateways = Journals("a", "b")
    first = gateways["b"]
    gateways.start("b")
    gateways.read("a")
    while first.refresh(10):
        pass
    assert first.is_over
    first.begin_again()
    while first.refresh(10):
        pass
    assert first.is_current
    gateways.read()
    assert not any(one.is_over for one in (first, *gateways.all.values()))
    names = sorted(run.gateway.partition("~")[0] for run in first._rows.runs.values())
    assert names == ["a", "b", "b"]


async def test_gateway_that_reads_for_long_at_its_start_is_not_lost() -> None:
    gateways = Journals("a")
    gateways["a"].save(session())
    gateways.read()
    view = View(IN_MEMORY)
    view.open()
    journal = SessionJournal(gateways.log, view, gateways.clock, gateway="b")
    retained = RetainedStore(gateways.log, view, gateways.clock)
    journal.refresh(1)
    run = journal._run
    gateways.log.cold = {1}
    seconds = iter(range(3 * LOST_TICKS))

    def settle_soon() -> None:
        if next(seconds, None) is None:
            gateways.log.paged_in()
        else:
            gateways.tick()

    gateways.log.settle_soon = settle_soon  # type: ignore[method-assign]
    with trio.fail_after(10):
        await read_back(journal, retained, gateways.log, gateways.clock)
    gateways.read()
    assert gateways["a"].others_live
    assert journal.is_current
    assert not journal.is_over
    assert journal._run == run


def test_gateway_waits_until_those_that_live_know_of_it() -> None:
    gateways = Journals("a")
    assert gateways["a"].is_known
    new = gateways.start("b")
    gateways["a"].tick({QUEUE: 1}, [])  # it has not read that b has started
    gateways.read("b")
    assert not new.is_known
    gateways.read("a")
    gateways.read("b")
    assert new.is_known
    before = len(gateways.log.records[KEY])
    gateways.read()
    assert len(gateways.log.records[KEY]) == before


# --- claims -----------------------------------------------------------------------------------


def test_claims_have_their_turn_in_the_order_of_the_log() -> None:
    gateways = Journals("a", "b")
    numbers = {name: claim(gateways, name) for name in "ab"}
    gateways.read()
    heard = {name: claims_of(gateways[name]) for name in "ab"}
    assert [one.number for one in heard["a"]] == list(numbers.values())
    first, second = heard["b"]
    assert gateways["a"].may_have("dev", first.at)
    assert not gateways["b"].may_have("dev", second.at)
    gateways["a"].save(session(), claim=numbers["a"])
    gateways.read()
    assert not gateways["b"].may_have("dev", second.at)  # it is connected to a
    gateways["a"].save(session(1_000_001, at=30))
    gateways.read()
    assert gateways["b"].may_have("dev", second.at)
    found = gateways["b"].load("dev")
    assert found == session(1_000_001, at=30)
    gateways["b"].save(session(at=30), claim=numbers["b"])
    assert gateways.seen() == session(at=30)


def test_claim_of_a_session_that_passes_is_open_only_where_something_is_stored() -> None:
    gateways = Journals("a", "b")
    gateways["a"].claim([], ["dev"], [], [])
    gateways.read("b")
    assert [one.is_open for one in claims_of(gateways["b"])] == [False]
    gateways["a"].save(session(5))
    gateways["b"].claim([], ["dev"], [], [])
    gateways["a"].claim([], ["other"], ["third"], [])
    gateways.read("b")
    heard = claims_of(gateways["b"])
    assert [(one.client_id, one.is_open, one.takes) for one in heard] == [
        ("dev", True, True),
        ("other", False, True),
        ("third", True, False),
    ]


def test_claim_of_another_is_heard_where_it_concerns_somebody() -> None:
    gateways = Journals("a", "b", "c")
    gateways["b"].watch(set())
    gateways["b"].awaited.add("awaited")
    gateways["c"].watch({"present"})
    names = [*(f"new-{number}" for number in range(100)), "awaited", "present"]
    gateways["a"].claim([], names, [], [])
    gateways["c"].save(session())
    gateways.read()
    assert [one.client_id for one in claims_of(gateways["b"])] == ["awaited"]
    assert [one.client_id for one in claims_of(gateways["c"])] == ["present"]
    gateways["a"].claim([], [*names, "dev"], [], [])  # a stored session's, that c holds
    gateways.read()
    for name in "bc":
        (heard,) = [one for one in claims_of(gateways[name]) if one.client_id == "dev"]
        assert heard.is_open
        assert heard.holder == gateways["c"].run


def test_claims_of_a_view_that_is_opened_again_are_as_before() -> None:
    gateways = Journals("a", "b")
    numbers = {name: claim(gateways, name) for name in "ab"}
    gateways["b"].claim(["other"], [], [], [])
    gateways.read()
    rows = gateways["a"]._rows
    before = {name: rows.claimants(name) for name in ("dev", "other")}
    rows.rolled_back()
    assert {name: rows.claimants(name) for name in ("dev", "other")} == before
    assert [len(runs) for runs in before.values()] == [2, 1]
    gateways["a"].claim([], [], [], [("dev", numbers["a"])])
    gateways.read()
    rows.rolled_back()
    assert rows.claimants("dev") == before["dev"][1:]


def test_claim_ends_when_it_is_given_up_and_with_its_run() -> None:
    gateways = Journals("a", "b", "c")
    number = claim(gateways, "a")
    claim(gateways, "b")
    claim(gateways, "c")
    gateways.read()
    last = claims_of(gateways["c"])[-1]
    gateways["c"].awaited.add("dev")
    gateways["a"].claim([], [], [], [("dev", number)])
    gateways.read()
    assert gateways["c"].take_heard() == ["dev"]
    assert not gateways["c"].may_have("dev", last.at)
    gateways["b"].stop()
    gateways.read()
    assert gateways["c"].take_heard() == [None]
    assert gateways["c"].may_have("dev", last.at)


def test_record_without_a_claim_does_not_take_a_session_from_one_with() -> None:
    gateways = Journals("a", "b")
    number = claim(gateways, "b")
    gateways["a"].save(session(at=1))  # behind the claim, which it has not read
    gateways["b"].save(session(at=2), claim=number)
    gateways["a"].save(session(at=3))
    gateways["b"].save(session(at=4))  # as for each SUBSCRIBE
    gateways["a"].save(session(7, at=5))
    gateways["a"].end("dev")
    assert gateways.seen() == session(at=4)


def test_batch_that_fails_is_heard_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Journals("a", "b")
    claim(gateways, "a")
    journal = gateways["b"]

    def fail(*_: object) -> None:
        raise ViewError("for the test")

    with monkeypatch.context() as patch:
        patch.setattr(journal._view, "set_applied", fail)
        journal.refresh(10)
    assert journal.take_heard() == []
    gateways.read("b")
    assert len(claims_of(journal)) == 1


def test_session_that_seems_to_be_here_is_released() -> None:
    gateways = Journals("a", "b")
    number = claim(gateways, "a")
    gateways["a"].save(session(), claim=number)
    gateways.read()
    gateways["a"].take_heard()
    gateways.log.error = StoreFullError("full")
    gateways["a"].save(session(3))
    gateways.log.error = None
    claim(gateways, "b")
    gateways.read()
    [heard] = claims_of(gateways["a"])
    gateways["a"].release(heard)
    found = gateways.seen()
    assert found is not None
    assert found.left_ms == gateways.clock.now_ms()
