"""SQL92 filters: what expressions say, what is unknown, what is refused and how fast."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from motelog.core.errors import BrokerError
from motelog.core.filter import sql_compiler, sql_filter
from motelog.core.filter.sql_filter import (
    EXPRESSIONS_CHARACTERS,
    SqlFilterError,
    SqlFilters,
    compile_sql,
)
from motelog.core.filter.sql_terms import SQL_CHARACTERS_MAX, SQL_DEPTH_MAX, SQL_WORDS_MAX
from motelog.core.remoting.codes import ResponseCode


def matches(expression: str, **values: Any) -> bool:
    return compile_sql(expression).matches({name: str(value) for name, value in values.items()})


@pytest.mark.parametrize(
    ("expression", "matching", "others"),
    [
        ("a = 'x'", ["x"], ["X", "xx", None]),
        ("a = 'it''s'", ["it's"], ["it''s"]),
        ("a <> 'x'", ["y"], ["x", None]),
        ("a = 5", ["5", "+5", "05", "5.0"], ["6", "-5", "", None]),
        ("5 = a", ["5"], ["6"]),
        ("a = 5L", ["5"], ["6"]),
        ("a <> 5", ["6"], ["5", None]),
        ("a = -5", ["-5"], ["5"]),
        ("a = +5 AND a = --comment\n5", ["5"], ["-5"]),
        ("a = .5 AND a = 5E-1 AND a = 0.5", ["0.5", " .5 ", "5e-1", "0.5f"], ["0.05"]),
        ("a = 5.", ["5", "5.0d"], ["5.5"]),
        ("a > 5", ["6", "5.5", "3000000000", "1e3"], ["5", "4.9", "-7", None]),
        ("a >= 5", ["5", "6"], ["4"]),
        ("a < 5", ["4", "4.9"], ["5", "6", None]),
        ("a <= 5", ["5", "4"], ["5.1"]),
        ("5 < a", ["6"], ["5", None]),
        ("a > 9007199254740992", ["9007199254740993"], ["9007199254740992"]),
        ("a > 0.0", ["0.1"], ["0"]),
        ("a BETWEEN 2 AND 4", ["2", "3", "4", "2.5"], ["1", "5", None]),
        ("a BETWEEN -4 AND -2", ["-3"], ["3"]),
        ("a NOT BETWEEN 2 AND 4", ["1", "5"], ["2", "4", None]),
        ("a IN ('x', 'y')", ["x", "y"], ["z", None]),
        ("a NOT IN ('x', 'y')", ["z"], ["x", None]),
        ("a IS NULL", [None], ["", "x"]),
        ("a IS NOT NULL", ["x", ""], [None]),
        ("a CONTAINS 'b'", ["abc", "b"], ["ac", None]),
        ("a NOT CONTAINS 'b'", ["ac"], ["abc", None]),
        ("a STARTSWITH 'b'", ["bc"], ["ab", None]),
        ("a NOT STARTSWITH 'b'", ["ab"], ["bc", None]),
        ("a ENDSWITH 'b'", ["ab"], ["bc", None]),
        ("a NOT ENDSWITH 'b'", ["bc"], ["ab", None]),
        ("a CONTAINS ''", [], ["", "x", None]),
        ("a NOT CONTAINS ''", [], ["", "x", None]),
        ("a = TRUE", ["true", "TRUE"], ["false", "yes", None]),
        ("a = false", ["false", "no"], ["true", None]),
        ("TRUE = a", ["true"], ["false"]),
        ("a", [], ["true", "x", None]),
        ("NOT a", ["true", "x"], [None]),
        ("TRUE", ["x", None], []),
        ("FALSE OR NULL", [], ["x", None]),
        ("a is not null and a in('x')", ["x"], ["y", None]),
        ("(((a = 'x')))", ["x"], ["y"]),
        ("a = 'x' /* not\n'y' */ OR\ta = 'z' -- 'q'", ["x", "z"], ["y", "q"]),
        ("(a = 'x') = TRUE", ["x"], ["y", None]),
        ("a = 'x' IS NULL", [None], ["x", "y"]),
        ("-a IS NULL", ["5", None], []),
        ("- -5 = 5 AND 5 = 5.0 AND '5' = 5 AND 5 < 6 AND 'x' <> 'y'", ["x"], []),
    ],
)
def test_an_expression_matches(
    expression: str, matching: list[str | None], others: list[str | None]
) -> None:
    wanted = compile_sql(expression)
    for value in matching + others:
        values = {} if value is None else {"a": value}
        assert wanted.matches(values) is (value in matching), value


T, F, U = ("1 = 1", "1 = 2", "none = 1")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (f"{T} AND {T}", True),
        (f"{T} AND {F}", False),
        (f"{T} AND {U}", None),
        (f"{U} AND {T}", None),
        (f"{U} AND {F}", False),
        (f"{F} AND {U}", False),
        (f"{U} AND {U}", None),
        (f"{T} OR {U}", True),
        (f"{U} OR {T}", True),
        (f"{F} OR {U}", None),
        (f"{U} OR {F}", None),
        (f"{F} OR {F}", False),
        (f"NOT ({T})", False),
        (f"NOT ({F})", True),
        (f"NOT ({U})", None),
        # AND binds more than OR, NOT more than both.
        (f"{T} OR {T} AND {F}", True),
        (f"NOT ({T}) OR {T}", True),
        ("none = other", True),
        ("a = none", False),
        ("a <> none", True),
        ("none = a", None),
        ("a > none", None),
        ("none > a", None),
        ("NOT (none CONTAINS 'x')", True),
        ("none NOT CONTAINS 'x'", False),
    ],
)
def test_logic_has_three_values(expression: str, value: bool | None) -> None:
    names, evaluate = sql_compiler.compile_expression(expression)
    assert set(names) <= {"none", "other", "a"}
    assert evaluate({"a": "1"}) is value


def test_two_properties_are_equal_as_texts_and_in_order_as_numbers() -> None:
    assert matches("a = b", a="x", b="x")
    assert not matches("a = b", a="5", b="5.0")
    assert matches("a <= b", a="5", b="5.0")
    assert matches("a > b", a="10", b="9")
    assert not matches("a > b", a="y", b="x")
    assert not matches("a < b", a="y", b="x")


@pytest.mark.parametrize(
    "text", ["x", "", "5x", "1_000", "\u0665", "NaN", "Infinity", "0x10", "1" * 600]
)
@pytest.mark.parametrize("literal", ["5", "5.0"])
def test_a_text_that_is_no_number_does_not_match_whatever_else_is_said(
    text: str, literal: str
) -> None:
    for sign in ("=", "<>", "<", ">", "<=", ">="):
        for expression in (f"a {sign} {literal}", f"NOT (a {sign} {literal})"):
            assert not matches(expression, a=text)
    assert not matches(f"a > {literal} OR TRUE", a=text)
    # But what comes first may decide.
    assert matches(f"TRUE OR a > {literal}", a=text)
    assert matches("a = 'x' OR a > 5", a="x")


def test_keywords_are_of_any_case_and_names_are_not() -> None:
    assert matches("a iN ('x') aNd Not (a Is nULL) Or FALSE", a="x")
    assert not matches("A = 'x'", a="x")
    assert matches(
        "order = 1 AND nota = 2 AND in_ = 3 AND _$ = 4", order=1, nota=2, in_=3, **{"_$": 4}
    )


def test_a_filter_knows_what_it_needs() -> None:
    assert compile_sql("b > 1 AND (a = 'c' OR b IS NULL) OR c IN ('d')").names == ("a", "b", "c")
    assert compile_sql("TRUE").names == ()


@pytest.mark.parametrize(
    ("expression", "column", "reason"),
    [
        ("", 1, "ends too early"),
        ("a >", 4, "ends too early"),
        ("(a = 1", 7, "ends too early"),
        ("a = 'x", 5, "has no end"),
        ("a ! b", 3, "'!' is not part"),
        ("a\n= \x00", 5, r"'\x00' is not part"),
        ("a = é", 5, r"'\xe9' is not part"),
        ("a = 5 b = 3", 7, "'b' makes no sense"),
        ("a = 1)", 6, "')' makes no sense"),
        ("a and between 2 and 10", 7, "'between' makes no sense"),
        ("in = 1", 1, "'in' makes no sense"),
        ("a LIKE 'x'", 3, "'LIKE' makes no sense"),
        ("a IN ()", 7, "')' makes no sense"),
        ("a IN (5)", 7, "'5' makes no sense"),
        ("a = 007", 6, "'0' makes no sense"),
        ("a == 1", 4, "'=' makes no sense"),
        ("a CONTAINS b", 12, "'b' makes no sense"),
        ("'x' IN ('x')", 1, "IN belongs after"),
        ("NOT a IN ('x')", 5, "NOT before brackets"),
        ("NOT a = 1", 9, "NOT belongs before brackets"),
        ("NOT a > 1", 5, "NOT belongs before brackets"),
        ("a > 'x'", 5, "have an order"),
        ("a > TRUE", 5, "have an order"),
        ("a BETWEEN 'a' AND 'b'", 11, "have an order"),
        ("a BETWEEN 10 AND 0", 11, "the larger"),
        ("a BETWEEN NULL AND 0", 11, "have an order"),
        ("1 < a < 5", 1, "have an order"),
        ("a = NULL", 5, "IS NULL"),
        ("TRUE = 'x'", 8, "cannot be compared"),
        ("5", 1, "a condition belongs here"),
        ("a = 1 AND 'x'", 11, "a condition belongs here"),
        ("-a", 1, "a condition belongs here"),
        ("a > 9223372036854775808", 5, "greater than 9223372036854775807"),
        ("a > " + "9" * 4000, 5, "greater than 9223372036854775807"),
        ("a > 1e999", 5, "too large"),
    ],
)
def test_what_is_no_filter_is_refused_with_the_place(
    expression: str, column: int, reason: str
) -> None:
    with pytest.raises(SqlFilterError) as caught:
        compile_sql(expression)
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert reason in caught.value.remark
    assert f"at column {column}:" in caught.value.remark
    assert caught.value.column == column


HOSTILE = {
    "brackets": "(" * 200 + "a = 1" + ")" * 200,
    "brackets only": "(" * SQL_CHARACTERS_MAX,
    "nots": "NOT " * 400 + "a",
    "signs": "-" * SQL_CHARACTERS_MAX,
    "spaced signs": "- " * 500 + "1 = 1",
    "chain": "a" + " = TRUE" * 200,
    "nulls": "a" + " IS NULL" * 150,
    "terms": " OR ".join(["a = 1"] * 400),
    "list": "a IN (" + ",".join(["''"] * 1300) + ")",
    "quotes": "'" * (SQL_CHARACTERS_MAX - 1),
    "pairs of quotes": "a = '" + "''" * 2000,
    "comments": "/*" * 2000,
    "line comments": "--\n" * 1300,
    "digits": "a = " + "1" * 4000,
    "points": "." * SQL_CHARACTERS_MAX,
    "floats": ".5" * 2000,
    "exponents": "a = 1e" + "9" * 4000,
    "spaces": " " * SQL_CHARACTERS_MAX,
    "long": "a = 1 OR " * 10_000 + "a = 1",
    "long text": "a = '" + "x" * 1_000_000 + "'",
}


@pytest.mark.parametrize("expression", HOSTILE.values(), ids=HOSTILE)
def test_hostile_expressions_are_refused_at_once(expression: str) -> None:
    def refused() -> None:
        with pytest.raises(SqlFilterError):
            compile_sql(expression)

    assert cpu_s(refused) < 0.1


def cpu_s(call: Callable[[], object]) -> float:
    """Return the CPU time of a call: of three, as the collector may run in one."""
    times = []
    for _ in range(3):
        began = time.thread_time()
        call()
        times.append(time.thread_time() - began)
    return min(times)


def test_what_the_limits_leave_is_ready_soon_and_evaluated_soon() -> None:
    widest = " OR ".join(["ab > 1"] * (SQL_WORDS_MAX // 4))
    longest = "a CONTAINS '" + "x" * (SQL_CHARACTERS_MAX - 13) + "'"
    deepest = "(" * (SQL_DEPTH_MAX - 2) + "a = 1" + ")" * (SQL_DEPTH_MAX - 2)
    for expression in (widest, longest, deepest):
        assert cpu_s(lambda: compile_sql(expression)) < 0.1  # noqa: B023  # it is called at once
        wanted = compile_sql(expression)
        assert cpu_s(lambda: wanted.matches({"a": "0" * 30_000, "ab": "0"})) < 0.1  # noqa: B023
        assert not wanted.matches({"a": "0" * 30_000, "ab": "0"})
    with pytest.raises(SqlFilterError, match=f"nested more than {SQL_DEPTH_MAX}"):
        compile_sql(f"({deepest})")


def test_filters_are_remembered_and_so_are_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def counted(expression: str) -> Any:
        compiled.append(expression)
        return compile_sql(expression)

    monkeypatch.setattr(sql_filter, "compile_sql", counted)
    filters = SqlFilters()
    assert filters.get("SQL92", "a = 1") is filters.get("SQL92", "a = 1")
    for _ in range(2):
        with pytest.raises(SqlFilterError, match="column 4"):
            filters.get("SQL92", "a =")
    assert compiled == ["a = 1", "a ="]
    filters._check()


def test_what_is_remembered_is_bounded_and_the_oldest_goes() -> None:
    filters = SqlFilters()
    kept = filters.get("SQL92", "kept = 1")
    text = "x" * 4000
    for number in range(2 * EXPRESSIONS_CHARACTERS // 4000):
        filters.get("SQL92", f"a = '{text}{number}'")
        assert filters.get("SQL92", "kept = 1") is kept
        filters._check()
    assert len(filters._known) <= EXPRESSIONS_CHARACTERS // 4000 + 1
    with pytest.raises(SqlFilterError, match="5000 characters"):
        filters.get("SQL92", "a" * 5000)
    filters._check()


@pytest.mark.parametrize(("is_enabled", "kind"), [(False, "SQL92"), (True, "JS"), (True, "\n")])
def test_other_types_and_disabled_filters_are_not_supported(is_enabled: bool, kind: str) -> None:
    with pytest.raises(BrokerError, match="does not support consumer to filter") as caught:
        SqlFilters(is_enabled=is_enabled).get(kind, "a = 1")
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert "\n" not in caught.value.remark


def test_the_parser_is_loaded_with_the_first_expression_only() -> None:
    program = (
        "import sys, motelog.bridge.pull, motelog.core.broker.server;"
        "from motelog.core.filter.sql_filter import SqlFilters;"
        "filters = SqlFilters(); assert 'lark' not in sys.modules;"
        "filters.get('SQL92', 'a = 1'); assert 'lark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
