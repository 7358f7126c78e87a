"""The rules by which members share queues: as Java's, and each queue with one owner."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.bridge.groups.allocation import (
    Allocate,
    average,
    by_circle,
    by_machine_room,
    consistent_hash,
    nearby,
)
from motelog.core.message import MessageQueue

VECTORS = Path(__file__).parents[3] / "vectors" / "rocketmq" / "allocation.json"


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def room_of_member(member: str) -> str:
    return f"room{member.split('.')[2]}"


RULES: dict[str, Allocate] = {
    "AVG": average,
    "AVG_BY_CIRCLE": by_circle,
    "CONSISTENT_HASH": consistent_hash(),
    "MACHINE_ROOM": by_machine_room({"room0", "room2"}),
    "MACHINE_ROOM_NEARBY-AVG": nearby(room_of_queue, room_of_member),
}


def queues_of(brokers: int, count: int) -> list[MessageQueue]:
    return [
        MessageQueue("telemetry", f"room{broker}@b{broker}", queue_id)
        for broker in range(brokers)
        for queue_id in range(count)
    ]


@pytest.mark.parametrize("name", RULES)
def test_rules_give_what_java_gives(name: str) -> None:
    vectors: list[dict[str, Any]] = json.loads(VECTORS.read_bytes())
    assert len(vectors) == 60
    for vector in vectors:
        queues, members = queues_of(vector["brokers"], vector["queues"]), vector["members"]
        owned = [
            [queues.index(queue) for queue in RULES[name](member, queues, members)]
            for member in members
        ]
        assert owned == vector["owned"][name], vector


@pytest.mark.parametrize("name", [name for name in RULES if name != "MACHINE_ROOM"])
@given(
    brokers=st.integers(1, 3),
    count=st.integers(1, 8),
    members=st.sets(
        st.builds("10.0.{}.{}@{}".format, st.integers(0, 3), st.integers(0, 255), st.integers(0)),
        min_size=1,
        max_size=12,
    ),
)
def test_each_queue_has_one_owner(name: str, brokers: int, count: int, members: set[str]) -> None:
    queues, everyone = queues_of(brokers, count), sorted(members)
    owners = Counter(q for member in everyone for q in RULES[name](member, queues, everyone))
    assert owners == Counter(queues)


@pytest.mark.parametrize("name", RULES)
def test_who_is_no_member_gets_nothing(name: str) -> None:
    assert RULES[name]("10.0.0.1@x", queues_of(1, 4), ["10.0.0.2@y"]) == []


def test_few_queues_move_with_a_new_member_by_consistent_hash() -> None:
    queues, rule = queues_of(3, 64), consistent_hash()
    members = [f"10.0.0.{n}@1" for n in range(8)]
    before = {q: m for m in members for q in rule(m, queues, members)}
    grown = sorted([*members, "10.0.0.9@1"])
    after = {q: m for m in grown for q in rule(m, queues, grown)}
    assert {after[q] for q in queues if after[q] != before[q]} == {"10.0.0.9@1"}


def test_queue_without_a_room_is_refused() -> None:
    with pytest.raises(ValueError, match="no machine room"):
        nearby(lambda queue: "", room_of_member)("10.0.0.1@x", queues_of(1, 1), ["10.0.0.1@x"])
    with pytest.raises(ValueError, match="virtual_nodes"):
        consistent_hash(0)
