"""A gateway with persistent sessions that is killed loses nothing that it has acknowledged.

Some rounds are in the suite; MOTELOG_SESSION_KILLS sets how many, MOTELOG_WORKER_KILLS how many are
with several gateway processes. 200 are a command of their own: python -m tests.fault.session_kills.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fault.session_kills import KINDS, POWER, WORKER_KINDS, power_rounds, rounds
from tests.support.delivery_audit import Audit, AuditError, Received
from tests.support.loop_disk import NotPermittedError

WORKER_ROUNDS = int(os.environ.get("MOTELOG_WORKER_KILLS", "1"))
ROUNDS = int(os.environ.get("MOTELOG_SESSION_KILLS", "8"))
SEED = 3


@pytest.mark.timeout(300 + 20 * ROUNDS)
def test_sessions_outlive_kills_of_the_gateway(tmp_path: Path) -> None:
    said: list[str] = []
    done = list(rounds(tmp_path, SEED, ROUNDS, note=said.append))
    assert len(said) == 1
    assert {one.kind for one in done} == set(KINDS[:ROUNDS])
    assert sum(one.acknowledged for one in done) > 0


def test_sessions_outlive_a_power_cut_where_acknowledgements_wait_for_the_disk(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    try:
        done = list(power_rounds(tmp_path, SEED, 1, note=said.append))
    except NotPermittedError as exc:
        pytest.skip(f"no loop-mounted ext4 here: {exc}")
    assert [one.kind for one in done] == [POWER]
    assert len(said) == 1
    assert done[0].acknowledged > 0


@pytest.mark.timeout(300 + 40 * WORKER_ROUNDS)
def test_sessions_outlive_kills_of_single_gateway_processes(tmp_path: Path) -> None:
    said: list[str] = []
    done = list(rounds(tmp_path, SEED, WORKER_ROUNDS, note=said.append, workers=2))
    assert len(said) == 1
    assert {one.kind for one in done} == set(WORKER_KINDS[:WORKER_ROUNDS])
    assert sum(one.acknowledged for one in done) > 0


def received(qos: int, *, joined_at: tuple[int, int] | None = None) -> tuple[Received, Audit]:
    """Return a subscriber to 10 messages; it may join at (before SUBSCRIBE, before SUBACK)."""
    audit = Audit()
    subscriber = Received("s", audit, "#", 2)
    before, until = joined_at or (0, 0)
    for number in range(10):
        if joined_at and number == before:
            subscriber.subscribing()
        if joined_at and number == until:
            subscriber.subscribed()
        audit.done(f"t/{qos}", audit.publish(f"t/{qos}"))
    return subscriber, audit


@pytest.mark.parametrize(
    ("qos", "numbers", "fault"),
    [
        (1, [0, 1, 3], "t/1 3 .* too early: 2 is lost"),
        (1, [1, 2], "t/1 1 .* comes first, 0 is lost"),
        (2, [0, 1, 1], "t/2 1 .* comes twice"),
        (2, [0, 2, 1], "too early"),
    ],
)
def test_a_fault_is_found(qos: int, numbers: list[int], fault: str) -> None:
    subscriber, audit = received(qos)
    for number in numbers:
        subscriber.arrived(f"t/{qos}", str(number).encode(), qos, False)
    with pytest.raises(AuditError, match=fault):
        audit.check()


def test_messages_at_qos_1_may_come_again() -> None:
    subscriber, audit = received(1)
    for number in (0, 1, 2, 1, 2, 3):
        subscriber.arrived("t/1", str(number).encode(), 1, False)
    audit.check()
    assert subscriber.repeated == 2
    assert subscriber.missing() == ["s: t/1 from 4 of 10"]


@pytest.mark.parametrize(
    ("first", "fault"), [(3, "older than the subscription"), (4, ""), (6, ""), (7, "6 is lost")]
)
def test_a_subscription_begins_between_subscribe_and_suback(first: int, fault: str) -> None:
    subscriber, audit = received(1, joined_at=(4, 6))
    subscriber.arrived("t/1", str(first).encode(), 1, False)
    assert fault in (audit.failure or "")
    assert bool(fault) == bool(audit.failure)


@pytest.mark.parametrize(
    ("numbers", "refused", "gaps"),
    [
        ([0, 1, 4, 5], [2, 3], []),
        ([2, 3], [0, 1], []),
        ([0, 1, 4], [2], ["s: t/1 lacks [3]"]),
        ([1], [], ["s: t/1 lacks [0]"]),
        ([0, 1, 2, 3], [2], ["s: t/1 has [2], which were refused"]),
    ],
)
def test_exactly_what_was_refused_is_missing(
    numbers: list[int], refused: list[int], gaps: list[str]
) -> None:
    audit = Audit(may_refuse=True)
    subscriber = Received("s", audit, "#", 1)
    payloads = [audit.publish("t/1") for _ in range(6)]
    for number in numbers:
        subscriber.arrived("t/1", payloads[number], 1, False)
    for number in refused:
        audit.refused("t/1", payloads[number])
    audit.check()
    assert subscriber.gaps() == gaps
    assert bool(subscriber.missing()) == (max(numbers) < 5)


def test_what_comes_behind_a_later_message_is_out_of_order() -> None:
    audit = Audit(may_refuse=True)
    subscriber = Received("s", audit, "#", 1)
    for number in (0, 2, 1):
        subscriber.arrived("t/1", str(number).encode(), 1, False)
    with pytest.raises(AuditError, match="out of order"):
        audit.check()


def test_a_message_in_doubt_may_come_or_not_until_it_is_expected() -> None:
    audit = Audit(may_refuse=True)
    subscriber = Received("s", audit, "#", 1)
    for _ in range(2):
        payload = audit.doubt("w/1")
    assert subscriber.missing() == []
    audit.expect("w/1", payload)
    assert subscriber.missing() == ["s: w/1 from 1 of 2"]
    subscriber.arrived("w/1", payload, 1, False)
    assert (subscriber.missing(), subscriber.gaps()) == ([], [])


def test_a_wrong_qos_is_found() -> None:
    subscriber, audit = received(2)
    subscriber.arrived("t/2", b"0", 1, False)
    with pytest.raises(AuditError, match="wrong QoS"):
        audit.check()
