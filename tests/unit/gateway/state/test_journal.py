"""SessionJournal on a log in memory: what is saved is found, now and after every restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from motelog.core.clock import ManualClock
from motelog.core.errors import MotelogError, NoSlaveError, StoreFullError
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.log.log_port import SETTLED, Ticket
from motelog.gateway.state.journal import SessionJournal
from motelog.gateway.state.stored import (
    EXPIRY_NEVER,
    FiltersChange,
    FlightState,
    Mark,
    MarkKind,
    Progress,
    Received,
    StoredFilter,
    StoredFlight,
    StoredReplay,
    StoredSession,
    StoredWill,
)
from motelog.gateway.state.view import IN_MEMORY, View, ViewError
from tests.support.fake_log import FakeLog

QUEUE, OTHER = "telemetry/3", "commands/0"
WILL = StoredWill("state/dev", b"gone", 1, True, 5, b"", "user")
SESSION = StoredSession(
    "dev",
    3600,
    None,
    (StoredFilter("telemetry/#", 1), StoredFilter("commands/dev", 2, 7, {OTHER: 40})),
    {QUEUE: 10, OTHER: 30},
    will=WILL,
    begun_ms=999_000,
)


class Stage:
    """A log, and the journal of a gateway on it that can be started again."""

    def __init__(self, path: str = IN_MEMORY) -> None:
        self.log = FakeLog()
        self.clock = ManualClock(1_000_000)
        self.path = path
        self.view = View(path)
        self.journal = self.start()

    def start(self, gateway: str = "gw", *, keeps_view: bool = False) -> SessionJournal:
        """Return the journal of the gateway's next run, on an empty view or the one there was."""
        if not keeps_view or self.path != IN_MEMORY:
            self.view.close()
            self.view = View(self.path if keeps_view else IN_MEMORY)
            self.view.open()
        self.journal = SessionJournal(self.log, self.view, self.clock, gateway=gateway)
        self.read()
        assert self.journal.is_current
        return self.journal

    def read(self) -> None:
        """Read everything back."""
        self.log.now_ms = self.clock.now_ms()
        while self.journal.refresh(2):
            pass

    def later(self, ms: int = 1000) -> None:
        self.clock.advance(ms)
        self.log.now_ms = self.clock.now_ms()

    def load(self, client_id: str = "dev") -> StoredSession:
        """Return the session, which must be the same before and after it is read back."""
        before = self.journal.load(client_id)
        self.read()
        after = self.journal.load(client_id)
        assert before == after
        assert after is not None
        return after


def left(session: StoredSession, ms: int) -> StoredSession:
    return msgspec.structs.replace(session, left_ms=ms)


def test_saved_session_is_found_at_once_and_after_a_restart() -> None:
    stage = Stage()
    away = left(SESSION, 999_000)
    assert stage.journal.save(away).is_settled
    assert stage.load() == away
    assert stage.start().load("dev") == away
    assert stage.journal.load("nobody") is None
    assert stage.journal.count() == 1


def test_ended_session_is_gone_now_and_after_a_restart() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.read()
    stage.journal.end("dev")
    assert stage.journal.load("dev") is None
    stage.read()
    assert stage.journal.load("dev") is None
    assert stage.start().load("dev") is None
    assert stage.journal.count() == 0


def test_connected_session_left_when_its_gateway_wrote_last() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.later(1000)
    stage.journal.tick({QUEUE: 12}, [])
    told_ms = stage.clock.now_ms()
    stage.later(60_000)
    found = stage.start().load("dev")
    assert found is not None
    assert found.left_ms == told_ms
    assert found.cursors == {QUEUE: 12, OTHER: 30}


def test_another_gateways_start_leaves_its_sessions_connected() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.start("other")
    assert stage.load().left_ms is None


def test_positions_count_for_what_was_saved_before_them() -> None:
    stage = Stage()
    stage.journal.tick({QUEUE: 20, OTHER: 5}, [])
    stage.journal.save(SESSION)
    assert stage.load().cursors == {QUEUE: 10, OTHER: 30}
    stage.journal.tick({QUEUE: 21, OTHER: 5}, [])
    assert stage.load().cursors == {QUEUE: 21, OTHER: 30}


def test_queue_made_after_the_save_is_added_and_no_other() -> None:
    stage = Stage()
    stage.journal.tick({"older/0": 3}, [])
    stage.journal.save(SESSION)
    stage.journal.tick({"older/0": 4, "newer/0": 2}, [])
    assert stage.load().cursors == {QUEUE: 10, OTHER: 30, "newer/0": 2}


def test_lagging_session_is_pinned_until_it_has_caught_up() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    flights = (StoredFlight(1, QUEUE, 14, 1),)
    stage.journal.tick({QUEUE: 20, OTHER: 31}, [Progress("dev", {QUEUE: 15}, flights)])
    assert stage.load().cursors == {QUEUE: 15, OTHER: 31}
    assert stage.load().inflight == flights
    stage.journal.tick({QUEUE: 30}, [])
    assert stage.load().cursors == {QUEUE: 15, OTHER: 31}
    stage.journal.tick({}, [Progress("dev", {}, ())])
    assert stage.load().cursors == {QUEUE: 30, OTHER: 31}
    assert stage.load().inflight == ()


def test_first_tick_after_a_save_does_not_pass_what_the_save_lags_in() -> None:
    stage = Stage()
    stage.journal.save(SESSION, lagging=[QUEUE])
    stage.journal.tick({QUEUE: 90, OTHER: 91}, [])
    assert stage.load().cursors == {QUEUE: 10, OTHER: 91}


def test_entry_tells_of_positions_that_were_told_before_the_save() -> None:
    stage = Stage()
    stage.journal.tick({QUEUE: 50}, [])
    stage.journal.save(SESSION, lagging=[QUEUE])
    stage.journal.tick({}, [])
    stage.journal.tick({}, [Progress("dev", {}, ())])
    assert stage.load().cursors[QUEUE] == 50


def change(
    stage: Stage,
    *filters: StoredFilter,
    removed: tuple[str, ...] = (),
    cursors: dict[str, int] | None = None,
    progress: Progress | None = None,
) -> list[MotelogError | None]:
    """Append a change of filters; return with what its callback has been called."""
    called: list[MotelogError | None] = []
    told = progress or Progress("dev", {}, ())
    stage.journal.collect_filters(
        FiltersChange(told, filters, removed, cursors or {}), called.append
    )
    return called


def test_changes_of_filters_are_added_to_the_whole_record() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    new = StoredFilter("new/#", 1, 3, {"new/0": 9})
    replaced = StoredFilter("telemetry/#", 2)
    assert change(stage, new, replaced, cursors={"new/0": 5}) == [None]
    assert stage.load() == msgspec.structs.replace(
        SESSION,
        filters=(replaced, SESSION.filters[1], new),
        cursors={**SESSION.cursors, "new/0": 5},
    )
    change(stage, removed=("telemetry/#", "unknown"))
    assert stage.load().filters == (SESSION.filters[1], new)
    assert stage.start().load("dev") == left(stage.load(), 1_000_000)


def test_change_of_filters_says_where_the_session_is() -> None:
    stage = Stage()
    stage.journal.save(SESSION, lagging=[QUEUE])
    stage.journal.tick({QUEUE: 90, OTHER: 91, "new/0": 92}, [])
    flights = (StoredFlight(1, QUEUE, 70, 1),)
    replays = (StoredReplay("new/#", "new/a", 8),)
    progress = Progress("dev", {QUEUE: 71, "new/0": 80}, flights, replays)
    change(stage, StoredFilter("new/#", 1), cursors={"new/0": 80}, progress=progress)
    assert stage.load().cursors == {QUEUE: 71, OTHER: 91, "new/0": 80}
    assert stage.load().inflight == flights
    assert stage.load().replays == replays
    change(stage, StoredFilter("more", 1))
    assert stage.load().cursors == {QUEUE: 90, OTHER: 91, "new/0": 92}
    assert not stage.load().inflight
    assert not stage.load().replays


def test_tick_does_not_take_back_what_a_change_of_filters_has_said() -> None:
    stage = Stage()
    stage.journal.save(SESSION, lagging=[QUEUE])
    change(stage, StoredFilter("new", 1), progress=Progress("dev", {QUEUE: 20}, ()))
    stage.journal.tick({QUEUE: 90, OTHER: 91}, [])
    assert stage.load().cursors == {QUEUE: 20, OTHER: 91}
    change(stage, StoredFilter("more", 1))
    stage.journal.tick({QUEUE: 92}, [])
    assert stage.load().cursors == {QUEUE: 92, OTHER: 91}
    stage.journal.save(SESSION, lagging=[QUEUE])
    change(stage, StoredFilter("new", 1))
    assert stage.load().cursors == {QUEUE: 92, OTHER: 91}, "it has caught up since"


def test_change_of_filters_keeps_its_place_among_the_steps_of_exchanges() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.journal.mark(Mark(MarkKind.SENT, "dev", 1, QUEUE, 14))
    progress = Progress("dev", {}, (StoredFlight(1, QUEUE, 14, 2),))
    change(stage, StoredFilter("new", 1), progress=progress)
    stage.journal.mark(Mark(MarkKind.RELEASED, "dev", 1))
    stage.journal.commit()
    assert stage.load().inflight == (StoredFlight(1, QUEUE, 14, 2, FlightState.RELEASED),)
    assert stage.load().delivered == ((QUEUE, 14),)


@pytest.mark.parametrize("base", ["none", "ended", "left", "elsewhere"])
def test_change_of_filters_without_its_base_has_no_effect(base: str) -> None:
    stage = Stage()
    here = stage.journal
    there = SessionJournal(stage.log, stage.view, stage.clock, gateway="there")
    stage.journal = there
    stage.read()
    here.save(SESSION)
    if base == "none":
        here.end("other")
    elif base == "ended":
        here.end("dev")
    elif base == "left":
        here.save(left(SESSION, 5))
    else:
        there.save(SESSION)
    client_id = "other" if base == "none" else "dev"
    stage.journal = here
    change(stage, StoredFilter("new", 1), progress=Progress(client_id, {QUEUE: 3}, ()))
    stage.journal = there
    stage.read()
    expected = {"none": None, "ended": None, "left": left(SESSION, 5), "elsewhere": SESSION}[base]
    assert there.load(client_id) == expected


def test_change_of_filters_that_the_log_refuses_is_not_found() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.log.error = StoreFullError("full")
    (error,) = change(stage, StoredFilter("new", 1))
    stage.log.error = None
    assert isinstance(error, StoreFullError)
    assert stage.load() == SESSION


def test_old_record_is_written_again_with_the_changes_of_its_filters() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    change(stage, StoredFilter("new", 1), removed=("telemetry/#",), cursors={"new/0": 4})
    now = stage.load()
    stage.later()
    assert stage.journal.rewrite_older(stage.clock.now_ms(), 10) == 1
    assert stage.load() == now
    key = MQTT_SESSION_TOPIC, 0
    stage.log.begin_offsets[key] = len(stage.log.records[key]) - 1
    found = stage.start().load("dev")
    assert found is not None
    assert (found.filters, found.cursors) == (now.filters, now.cursors)


def test_exchange_towards_the_client_is_followed_step_by_step() -> None:
    stage = Stage()
    stage.journal.save(SESSION)

    def step(kind: MarkKind, packet_id: int, place: int = 0) -> StoredSession:
        stage.journal.mark(Mark(kind, "dev", packet_id, QUEUE, place))
        stage.journal.commit()
        return stage.load()

    found = step(MarkKind.SENT, 3, 11)
    assert found.inflight == (StoredFlight(3, QUEUE, 11, 2),)
    assert found.delivered == ((QUEUE, 11),)
    found = step(MarkKind.RELEASED, 3)
    assert found.inflight == (StoredFlight(3, QUEUE, 11, 2, FlightState.RELEASED),)
    found = step(MarkKind.COMPLETED, 3)
    assert found.inflight == ()
    assert found.delivered == ((QUEUE, 11),)
    found = step(MarkKind.SENT, 3, 12)
    found = step(MarkKind.UNSENT, 3, 12)
    assert (found.inflight, found.delivered) == ((), ((QUEUE, 11),))
    stage.journal.tick({QUEUE: 13}, [])
    assert stage.load().delivered == ()


def test_place_that_was_not_sent_after_all_is_not_passed() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.journal.mark(Mark(MarkKind.SENT, "dev", 3, QUEUE, 11))
    stage.journal.commit()
    stage.journal.tick({QUEUE: 20}, [])
    stage.journal.mark(Mark(MarkKind.UNSENT, "dev", 3, QUEUE, 11))
    stage.journal.commit()
    assert stage.load().cursors[QUEUE] == 11


def test_exchange_from_the_client_is_remembered_until_pubrel() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.log.append([stage.journal.received_marks([Mark(0, "dev", 9, QUEUE, 33)])])
    assert stage.load().received == (Received(9, QUEUE, 33),)
    stage.journal.mark(Mark(MarkKind.FORGOTTEN, "dev", 9))
    assert stage.journal.commit().is_settled
    assert stage.load().received == ()


def test_turn_without_marks_appends_nothing() -> None:
    stage = Stage()
    before = len(stage.log.records[MQTT_SESSION_TOPIC, 0])
    assert stage.journal.commit() is SETTLED
    assert len(stage.log.records[MQTT_SESSION_TOPIC, 0]) == before


def test_tick_with_nothing_new_is_left_out_but_not_for_long() -> None:
    stage = Stage()
    records = stage.log.records[MQTT_SESSION_TOPIC, 0]
    before = len(records)
    stage.later(60_000)
    stage.journal.tick({}, [])
    assert len(records) == before  # there are no sessions whose time it would tell
    stage.journal.save(SESSION)
    stage.journal.tick({QUEUE: 10}, [])
    before = len(records)
    for _ in range(9):
        stage.later()
        stage.journal.tick({QUEUE: 10}, [])
    assert len(records) == before
    stage.later()
    stage.journal.tick({QUEUE: 10}, [])
    assert len(records) == before + 1


def test_entries_of_a_tick_that_failed_come_with_the_next() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.log.error = StoreFullError("full")
    assert stage.journal.tick({QUEUE: 20}, [Progress("dev", {QUEUE: 15}, ())]).error is not None
    stage.log.error = None
    stage.journal.tick({QUEUE: 30}, [])
    assert stage.load().cursors[QUEUE] == 15


def test_tick_waits_for_the_one_before() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.log.settles_at_once = False
    first = stage.journal.tick({QUEUE: 20}, [])
    assert stage.journal.tick({QUEUE: 30}, [Progress("dev", {QUEUE: 25}, ())]) is first
    stage.log.settle(error=StoreFullError("full"))
    stage.log.settles_at_once = True
    stage.journal.tick({QUEUE: 40}, [])
    stage.read()
    found = stage.journal.load("dev")
    assert found is not None
    assert found.cursors[QUEUE] == 25


def test_save_that_failed_is_not_found() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.log.error = StoreFullError("full")
    assert stage.journal.save(left(SESSION, 5)).error is not None
    assert stage.load() == SESSION


def test_what_is_stored_but_at_no_slave_counts() -> None:
    """It will be read back, behind and before the records around it."""
    stage = Stage()
    stage.journal.save(SESSION)
    stage.log.settles_at_once = False
    stage.journal.tick({QUEUE: 20}, [Progress("dev", {QUEUE: 15}, ())])
    stage.journal.save(left(SESSION, 5))
    newer = stage.journal.load("dev")
    stage.log.settle(error=NoSlaveError("stored, but no slave is there"))
    stage.log.settles_at_once = True
    assert stage.journal.load("dev") == newer != SESSION
    stage.journal.tick({QUEUE: 30}, [])
    assert stage.journal.load("dev") == newer
    stage.read()
    assert stage.journal.load("dev") == newer


def appends(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of records of each append from now on."""
    counts: list[int] = []
    append = stage.log.append

    def counted(messages: list[Any]) -> Ticket:
        counts.append(len(messages))
        return append(messages)

    monkeypatch.setattr(stage.log, "append", counted)
    return counts


def test_what_a_turn_collects_is_one_append_and_is_found_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    counts = appends(stage, monkeypatch)
    heard: list[MotelogError | None] = []
    stage.journal.is_gathering = True
    for number in range(3):
        stage.journal.collect(StoredSession(f"dev{number}", 10), then=heard.append)
    assert (counts, heard) == ([], [])
    stage.journal.flush()
    assert (counts, heard) == ([3], [None] * 3)
    stage.journal.is_gathering = True
    stage.journal.collect(left(SESSION, 5))
    assert stage.journal.load("dev") == left(SESSION, 5)
    assert counts == [3, 1]
    stage.journal.flush()
    assert counts == [3, 1]
    assert stage.load() == left(SESSION, 5)
    stage.journal.collect(SESSION)  # outside of a turn nothing waits
    assert counts == [3, 1, 1]


def test_what_a_turn_collects_keeps_its_order_among_other_records() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.journal.is_gathering = True
    stage.journal.mark(Mark(MarkKind.SENT, "dev", 3, QUEUE, 11))
    stage.journal.collect(left(SESSION, 5))  # replaces what the mark tells
    stage.journal.collect(StoredSession("other", 10))
    stage.journal.end("other")
    stage.journal.collect(StoredSession("third", 10))
    stage.log.append([stage.journal.received_marks([Mark(0, "third", 9, QUEUE, 33)])])
    stage.journal.flush()
    assert stage.load().inflight == ()
    assert stage.journal.load("other") is None
    assert stage.load("third").received == (Received(9, QUEUE, 33),)


def test_collected_records_that_the_log_refuses_are_not_found() -> None:
    stage = Stage()
    heard: list[MotelogError | None] = []
    stage.journal.is_gathering = True
    stage.journal.collect(SESSION, then=heard.append)
    stage.log.error = StoreFullError("full")
    stage.journal.flush()
    assert [type(error) for error in heard] == [StoreFullError]
    assert stage.journal.load("dev") is None
    stage.log.error = None
    stage.read()
    assert stage.journal.load("dev") is None


def test_collected_records_are_appended_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    counts = appends(stage, monkeypatch)
    stage.journal.is_gathering = True
    stage.journal.collect(SESSION)
    stage.journal.collect(
        StoredSession("large", 10, will=StoredWill("state", b"x" * 70_000, 1, False, 0, b"", ""))
    )
    assert counts == [1, 1]  # a large one goes alone
    small = StoredWill("state", b"x" * 6_000, 1, False, 0, b"", "")
    for number in range(7):
        stage.journal.collect(StoredSession(f"dev{number}", 10, will=small))
    stage.journal.flush()
    assert counts == [1, 1, 6, 1]
    assert stage.journal.load("dev6") is not None


def test_much_that_waits_to_be_read_back_is_told_until_it_has_been(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("motelog.gateway.state.unread.UNREAD_MAX", 3)
    stage = Stage()
    for number in range(3):
        assert not stage.journal.is_far_behind
        stage.journal.save(msgspec.structs.replace(SESSION, client_id=f"dev{number}"))
    assert stage.journal.is_far_behind
    stage.read()
    assert not stage.journal.is_far_behind


def test_whole_state_stands_for_what_was_told_before_it() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.journal.mark(Mark(MarkKind.RECEIVED, "dev", 9, QUEUE, 11))
    stage.journal.commit()
    later = msgspec.structs.replace(SESSION, expiry_s=60, received=(Received(9, QUEUE, 11),))
    stage.journal.save(later)
    assert stage.load() == later
    stage.journal.save(SESSION)
    stage.journal.mark(Mark(MarkKind.RECEIVED, "dev", 3, QUEUE, 12))
    stage.journal.commit()
    assert stage.load().received == (Received(3, QUEUE, 12),)


def test_whole_state_that_fails_leaves_what_was_told_before_it() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.log.settles_at_once = False
    later = msgspec.structs.replace(SESSION, expiry_s=60)
    stage.journal.save(later)
    assert stage.journal.load("dev") == later
    stage.log.settle(error=StoreFullError("full"))
    assert stage.journal.load("dev") == SESSION


def test_fetched_sessions_are_found_until_the_turn_ends() -> None:
    stage = Stage()
    names = [f"dev{number}" for number in range(150)]
    for name in names[::2]:
        stage.journal.save(StoredSession(name, 10, 5))
    stage.read()
    stage.journal.save(StoredSession("dev1", 20, 5))  # not read back yet
    stage.journal.is_gathering = True
    stage.journal.fetch(names)
    found = [stage.journal.load(name) for name in names]
    stage.journal.flush()
    assert found == [stage.journal.load(name) for name in names]
    assert [one is not None for one in found[:4]] == [True, True, True, False]
    stage.journal.fetch(["dev0"])
    stage.journal.end("dev0")
    stage.read()
    assert stage.journal.load("dev0") is None


def test_what_is_due_is_told_in_bounded_parts() -> None:
    stage = Stage()
    journal = stage.journal
    for number in range(5):
        journal.save(StoredSession(f"dev{number}", 10 + number, 1_000_000))
    journal.save(StoredSession("never", EXPIRY_NEVER, 1_000_000))
    journal.save(StoredSession("here", 1, None))
    journal.save(StoredSession("will", EXPIRY_NEVER, 1_000_000, will=WILL))
    stage.read()
    assert journal.due(1_004_999, 10) == []
    assert [s.client_id for s in journal.due(1_005_000, 10)] == ["will"]
    journal.save(StoredSession("will", EXPIRY_NEVER, 1_000_000))
    assert [s.client_id for s in journal.due(1_012_000, 2)] == ["dev0", "dev1"]
    journal.end("dev0")
    assert [s.client_id for s in journal.due(1_012_000, 2)] == ["dev1", "dev2"]
    stage.read()
    assert [s.client_id for s in journal.due(1_012_000, 9)] == ["dev1", "dev2"]


def test_sessions_of_a_run_that_is_over_become_due() -> None:
    stage = Stage()
    stage.journal.save(StoredSession("dev", 10, None))
    stage.journal.save(StoredSession("long", 100, None))
    left_ms = stage.clock.now_ms()
    stage.later(60_000)
    stage.start()
    assert stage.journal.due(left_ms + 9_999, 10) == []
    found = stage.journal.due(left_ms + 10_000, 10)
    assert [(s.client_id, s.left_ms) for s in found] == [("dev", left_ms)]
    stage.journal.end("dev")
    stage.journal.end("long")
    stage.read()
    assert len(stage.journal._rows.runs) == 1  # a run without sessions is forgotten


def test_late_entries_of_another_gateway_do_not_change_a_session_that_has_moved() -> None:
    stage = Stage()
    here = stage.journal
    here.save(SESSION)
    there = SessionJournal(stage.log, stage.view, stage.clock, gateway="there")
    stage.journal = there
    stage.read()
    moved = msgspec.structs.replace(SESSION, cursors={QUEUE: 40})
    there.save(moved)
    here.tick({QUEUE: 99}, [Progress("dev", {QUEUE: 50}, (StoredFlight(1, QUEUE, 3, 1),))])
    here.end("dev")
    stage.read()
    assert there.load("dev") == moved


def test_old_records_are_written_again_with_all_that_was_told() -> None:
    stage = Stage()
    journal = stage.journal
    journal.save(StoredSession("away", 60, 1_000_000, cursors={QUEUE: 4}))
    journal.save(SESSION)
    flights = (StoredFlight(1, QUEUE, 14, 1),)
    journal.tick({QUEUE: 20, OTHER: 31}, [Progress("dev", {QUEUE: 15}, flights)])
    journal.mark(Mark(MarkKind.SENT, "dev", 3, QUEUE, 16))
    journal.commit()
    expected = {name: stage.load(name) for name in ("away", "dev")}
    stage.later(1000)
    assert journal.rewrite_older(stage.clock.now_ms() - 1000, 10) == 0
    assert journal.rewrite_older(stage.clock.now_ms(), 1) == 1
    stage.read()
    assert journal.rewrite_older(stage.clock.now_ms(), 10) == 1
    stage.read()
    assert journal.rewrite_older(stage.clock.now_ms(), 10) == 0
    assert {name: stage.load(name) for name in ("away", "dev")} == expected
    journal.tick({QUEUE: 40}, [])
    assert stage.load().cursors[QUEUE] == 15
    # Retention deletes what was written again; the rest is enough.
    stage.log.begin_offsets[MQTT_SESSION_TOPIC, 0] = (
        len(stage.log.records[MQTT_SESSION_TOPIC, 0]) - 4
    )
    stage.start()
    assert stage.journal.load("away") == expected["away"]
    found = stage.journal.load("dev")
    assert found is not None
    assert found.cursors == {QUEUE: 15, OTHER: 31}
    assert found.inflight == expected["dev"].inflight


def test_session_whose_record_is_gone_is_written_again() -> None:
    stage = Stage()
    stage.journal.save(left(SESSION, 5))
    stage.journal.save(StoredSession("other", 60, 1))
    stage.read()
    records = len(stage.log.records[MQTT_SESSION_TOPIC, 0])
    stage.log.begin_offsets[MQTT_SESSION_TOPIC, 0] = records - 1
    assert stage.journal.rewrite_older(0, 10) == 1
    stage.read()
    assert stage.journal.rewrite_older(0, 10) == 0
    stage.start()
    assert stage.journal.load("dev") == left(SESSION, 5)


def test_repeated_record_does_not_replace_a_newer_one() -> None:
    stage = Stage()
    here = stage.journal
    here.save(left(SESSION, 1))
    there = SessionJournal(stage.log, stage.view, stage.clock, gateway="there")
    stage.journal = there
    stage.read()
    stage.later()
    there.save(SESSION)
    there.save(StoredSession("ended", 60, 1))
    stage.journal = here
    here._rows.oldest = lambda key, limit: [(1, "dev", 0)]  # type: ignore[method-assign]  # not read back
    here.rewrite_older(stage.clock.now_ms(), 10)
    stage.journal = there
    stage.read()
    assert there.load("dev") == SESSION


def test_sessions_are_listed_by_prefix_in_order() -> None:
    stage = Stage()
    for name in ("b2", "a1", "b1", "c1", "b3"):
        stage.journal.save(StoredSession(name, 60, 1))
    stage.read()
    names = [s.client_id for s in stage.journal.list_sessions("b", limit=2)]
    assert names == ["b1", "b2"]
    names = [s.client_id for s in stage.journal.list_sessions("b", after="b2", limit=2)]
    assert names == ["b3"]


def test_log_that_is_not_at_hand_is_waited_for() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    stage.log.cold = set(range(10))
    assert not stage.journal.refresh(10)
    assert not stage.journal.refresh(10)
    stage.log.paged_in()
    stage.read()
    assert stage.journal._rows.count == 1


def test_nothing_is_found_before_the_view_is_current() -> None:
    stage = Stage()
    stage.journal.save(SESSION)
    view = View(IN_MEMORY)
    view.open()
    journal = SessionJournal(stage.log, view, stage.clock, gateway="gw")
    with pytest.raises(ViewError):
        journal.load("dev")


def test_view_goes_on_where_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(str(tmp_path / "view" / "gateway.db"))
    stage.start(keeps_view=True)
    stage.journal.save(left(SESSION, 5))
    stage.read()
    caplog.clear()
    stage.log.begin_offsets[MQTT_SESSION_TOPIC, 0] = len(stage.log.records[MQTT_SESSION_TOPIC, 0])
    stage.start(keeps_view=True)
    assert stage.journal.load("dev") == left(SESSION, 5)
    assert caplog.messages == []


@pytest.mark.parametrize("is_shorter", [False, True])
def test_view_of_another_log_is_rebuilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_shorter: bool
) -> None:
    stage = Stage(str(tmp_path / "gateway.db"))
    stage.start(keeps_view=True)
    stage.journal.save(left(SESSION, 5))
    stage.journal.save(StoredSession("lost", 60, 1))
    stage.read()
    # A power cut: the log has lost its last records, and perhaps others have come in their place.
    after = Stage()
    after.journal.save(left(SESSION, 5))
    if not is_shorter:
        after.journal.save(StoredSession("other", 60, 1))
    stage.log = after.log
    caplog.clear()
    stage.start(keeps_view=True)
    assert any("rebuilt" in message for message in caplog.messages)
    assert stage.journal.load("dev") == left(SESSION, 5)
    assert stage.journal.load("lost") is None
    assert (stage.journal.load("other") is None) == is_shorter


def test_damaged_view_is_put_aside_and_rebuilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gateway.db"
    stage = Stage(str(path))
    stage.start(keeps_view=True)
    stage.journal.save(left(SESSION, 5))
    stage.read()
    stage.view.close()
    path.write_bytes(b"no database" * 1000)
    stage.start(keeps_view=True)
    assert stage.journal.load("dev") == left(SESSION, 5)
    assert any("rebuilt" in message for message in caplog.messages)
    assert (tmp_path / "gateway.db.aside").exists()


def test_view_that_turns_out_damaged_is_rebuilt_by_the_next_refresh(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    stage = Stage(str(path))
    stage.start(keeps_view=True)
    for number in range(2000):
        stage.journal.save(StoredSession(f"dev{number}", 60, 1))
    stage.read()
    stage.view.checkpoint()
    stage.view.close()
    data = bytearray(path.read_bytes())
    for at in range(8 * 4096, len(data)):
        data[at] = 0xA5
    path.write_bytes(data)
    stage.view = View(str(path))
    stage.view.open()
    stage.journal = SessionJournal(stage.log, stage.view, stage.clock, gateway="gw")
    stage.read()
    for number in range(2000):
        assert stage.journal.load(f"dev{number}") is not None


def test_foreign_record_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    queue = stage.log.queue_of(MQTT_SESSION_TOPIC, "")
    stage.log.append([(queue, b"\xc1 no msgpack", b"", 0, 1, bytes(8), 0, 0, 0, 0)])
    stage.journal.save(SESSION)
    assert stage.load() == SESSION
    assert any("is ignored" in message for message in caplog.messages)
