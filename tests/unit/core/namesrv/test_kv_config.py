"""The key-value table: entries, limits, and RocketMQ's file."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.errors import BrokerError
from motelog.core.namesrv.kv_config import KvConfig


def make_table(
    *, entries_max: int = 10, entry_characters_max: int = 100, characters_max: int = 200
) -> KvConfig:
    return KvConfig(
        entries_max=entries_max,
        entry_characters_max=entry_characters_max,
        characters_max=characters_max,
    )


def test_a_namespace_lasts_as_long_as_its_entries() -> None:
    table = make_table()
    assert table.namespace("n") is None
    table.put("n", "k", "v")
    table.put("n", "k", "w")
    assert (table.get("n", "k"), table.namespace("n"), len(table)) == ("w", {"k": "w"}, 1)
    table.delete("n", "other")
    table.delete("m", "k")
    table.delete("n", "k")
    assert (table.get("n", "k"), table.namespace("n"), len(table)) == (None, None, 0)


@pytest.mark.parametrize(
    "limits", [{"entries_max": 1}, {"entry_characters_max": 3}, {"characters_max": 5}]
)
def test_what_is_above_a_limit_is_refused_and_changes_nothing(limits: dict[str, int]) -> None:
    table = make_table(**limits)
    table.put("n", "k", "v")
    with pytest.raises(BrokerError):
        table.put("n", "k2", "v2")
    assert (table.namespace("n"), len(table)) == ({"k": "v"}, 1)


def test_room_that_an_entry_gives_back_can_be_used() -> None:
    table = make_table(characters_max=12)
    table.put("n", "k", "0123456789")
    with pytest.raises(BrokerError):
        table.put("n", "k", "0123456789+")
    table.put("n", "k", "")
    table.put("n", "l", "01234567")
    table.delete("n", "l")
    table.put("n", "k", "0123456789")


def test_rocketmqs_file_is_read_and_written_as_it_is() -> None:
    content = {"configTable": {"ORDER_TOPIC_CONFIG": {"T": "a:4;b:4"}, "empty": {}}}
    table = make_table()
    table.load(content)
    assert table.get("ORDER_TOPIC_CONFIG", "T") == "a:4;b:4"
    del content["configTable"]["empty"]
    assert table.snapshot() == content
    with pytest.raises(msgspec.ValidationError):
        table.load({"configTable": {"n": {"k": 1}}})
    assert table.snapshot() == content


_WORD = st.sampled_from(["", "a", "bb", "ccc"])


@given(steps=st.lists(st.tuples(st.booleans(), _WORD, _WORD, st.text(max_size=9)), max_size=40))
def test_counts_stay_true_and_it_does_what_a_dictionary_does(
    steps: list[tuple[bool, str, str, str]],
) -> None:
    table = make_table(entries_max=4, entry_characters_max=12, characters_max=30)
    model: dict[tuple[str, str], str] = {}
    for is_put, namespace, key, value in steps:
        if is_put:
            try:
                table.put(namespace, key, value)
            except BrokerError:
                pass
            else:
                model[namespace, key] = value
        else:
            table.delete(namespace, key)
            model.pop((namespace, key), None)
        table._check()
        assert len(table) == len(model) <= 4
        for (namespace_, key_), value_ in model.items():
            assert table.get(namespace_, key_) == value_
