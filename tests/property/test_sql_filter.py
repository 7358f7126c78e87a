"""SQL92 filters evaluate as a plain interpreter does, and refuse whatever is no filter."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from motelog.core.filter.sql_filter import SqlFilterError, compile_sql

# A tree is a tuple: an operator, then its operands. Values are texts that are numbers and texts
# that are none; some properties are never there.
NAMES: Final = ("a", "b", "none", "Order")
TEXTS: Final = ("", "x", "it's", "xyz", "true", "5", "5.0", "-7", "31", "2e1")
ORDERS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
SEARCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda value, text: text in value,
    "STARTSWITH": lambda value, text: value[: len(text)] == text,
    "ENDSWITH": lambda value, text: value[len(value) - len(text) :] == text,
}

Tree = tuple[Any, ...]


class GaveUpError(Exception):
    """A text that is no number was compared with one."""


properties: Final = st.sampled_from(NAMES).map(lambda name: ("property", name))
texts: Final = st.sampled_from(TEXTS).map(lambda text: ("literal", text))
numbers: Final = st.sampled_from((0, 5, 31, 7.0, 5.0, 20.5)).map(lambda n: ("literal", n))
booleans: Final = st.sampled_from((True, False)).map(lambda value: ("literal", value))
negatives: Final = numbers.map(lambda number: ("negate", number))
in_order: Final = properties | numbers | negatives
comparisons: Final = st.one_of(
    st.tuples(st.sampled_from(("=", "<>")), properties, properties | texts | numbers | booleans),
    st.tuples(st.sampled_from(("=", "<>")), texts | numbers | negatives, properties),
    st.tuples(st.sampled_from(tuple(ORDERS)), in_order, in_order),
    st.tuples(st.sampled_from(("BETWEEN", "NOT BETWEEN")), properties, in_order, negatives),
    st.tuples(
        st.sampled_from(("IN", "NOT IN")), properties, st.lists(texts, min_size=1, max_size=4)
    ),
    st.tuples(
        st.sampled_from([f"{no}{word}" for word in SEARCHES for no in ("", "NOT ")]),
        properties | texts | numbers,
        texts,
    ),
    st.tuples(st.sampled_from(("IS NULL", "IS NOT NULL")), properties | numbers | negatives),
)
conditions: Final = st.recursive(
    comparisons | booleans,
    lambda inner: st.one_of(
        st.tuples(st.just("NOT"), inner),
        st.tuples(st.sampled_from(("AND", "OR")), inner, inner),
        st.tuples(st.sampled_from(("=", "<>")), inner, inner),
        st.tuples(st.just("IS NULL"), inner),
    ),
    max_leaves=8,
)


def rendered(tree: Tree, case: int) -> str:
    """Return the text of a tree, each operand in brackets that could be misread without."""
    kind, *operands = tree
    if kind == "property":
        return str(operands[0])
    if kind == "literal":
        value = operands[0]
        return "'{}'".format(value.replace("'", "''")) if isinstance(value, str) else str(value)
    word = (kind.lower(), kind, kind.title())[case % 3]
    if kind in ("IN", "NOT IN"):
        elements = ",".join(rendered(element, case) for element in operands[1])
        return f"{operands[0][1]} {word}({elements})"
    parts = [
        rendered(part, case) if part[0] in ("property", "literal") else f"({rendered(part, case)})"
        for part in operands
    ]
    if kind == "negate":
        return f"- {parts[0]}"
    if kind == "NOT":
        return f"{word}({parts[0]})"
    if kind.endswith("BETWEEN"):
        return f"{parts[0]} {word} {parts[1]}\tAND {parts[2]}"
    return f"{parts[0]} {word} " + (parts[1] if len(parts) > 1 else "")


def value_of(tree: Tree, values: dict[str, str]) -> Any:
    """Return what a tree says: True, False, None for unknown, or a value; may give up."""
    kind, *operands = tree
    if kind == "property":
        return values.get(operands[0])
    if kind == "literal":
        return operands[0]
    if kind in ("AND", "OR"):
        decides = kind == "OR"
        first = value_of(operands[0], values)
        if first is decides:
            return decides
        second = value_of(operands[1], values)
        if second is decides:
            return decides
        return None if None in (first, second) else not decides
    if kind.endswith("BETWEEN"):
        value, low, high = operands
        if kind == "BETWEEN":
            return value_of(("AND", (">=", value, low), ("<=", value, high)), values)
        return value_of(("OR", ("<", value, low), (">", value, high)), values)
    if kind == "IN":
        value = value_of(operands[0], values)
        return None if value is None else ("literal", value) in operands[1]
    if kind == "IS NULL":
        return value_of(operands[0], values) is None
    if kind in SEARCHES or kind.removeprefix("NOT ") in SEARCHES:
        value, text = value_of(operands[0], values), operands[1][1]
        if not isinstance(value, str) or not text:
            return False
        return SEARCHES[kind.removeprefix("NOT ")](value, text) is (kind in SEARCHES)
    if kind in ("NOT", "<>", "NOT IN", "IS NOT NULL"):
        plain = {"<>": "=", "NOT IN": "IN", "IS NOT NULL": "IS NULL"}.get(kind)
        value = value_of((plain, *operands) if plain else operands[0], values)
        return None if value is None else not value
    if kind == "negate":
        return -value_of(operands[0], values)
    return compared(kind, *(value_of(operand, values) for operand in operands))


def compared(kind: str, left: Any, right: Any) -> bool | None:
    if kind == "=":
        if left is None or right is None:
            return None if left is None and right is not None else left is right
        if type(left) is type(right):
            return bool(left == right)
    elif left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        pair = [text.lower() == "true" if isinstance(text, str) else text for text in (left, right)]
        return bool(pair[0] == pair[1])
    return bool({"=": operator.eq, **ORDERS}[kind](number(left), number(right)))


def number(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        raise GaveUpError from None


values_of_messages: Final = st.dictionaries(
    st.sampled_from([name for name in NAMES if name != "none"]), st.sampled_from(TEXTS)
)


@given(tree=conditions, values=values_of_messages, case=st.integers(0, 2))
def test_filters_evaluate_like_an_interpreter(
    tree: Tree, values: dict[str, str], case: int
) -> None:
    try:
        expected = value_of(tree, values) is True
    except GaveUpError:
        expected = False
    wanted = compile_sql(rendered(tree, case))
    assert wanted.matches({n: v for n, v in values.items() if n in wanted.names}) is expected


WORDS: Final = (
    *("a", "b", "AND", "or", "NOT", "is", "NULL", "between", "IN", "contains", "true", "5", "1.5"),
    *("'x'", "''", "'", ".", "\n", "(", ")", ",", "=", "<>", ">", ">=", "-", "+", "--", "/*", "*/"),
)


@given(
    words=st.lists(st.sampled_from(WORDS), max_size=20),
    values=values_of_messages,
)
def test_any_words_are_a_filter_or_refused_with_the_place(
    words: list[str], values: dict[str, str]
) -> None:
    expression = " ".join(words)
    column = 1
    try:
        compile_sql(expression).matches(values)
    except SqlFilterError as exc:
        column = exc.column
    assert 1 <= column <= len(expression) + 1


@given(text=st.text(max_size=40), values=values_of_messages)
def test_any_characters_are_a_filter_or_refused(text: str, values: dict[str, str]) -> None:
    with suppress(SqlFilterError):
        compile_sql(text).matches(values)
