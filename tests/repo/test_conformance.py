"""The page about the standards' statements is what the tests say, and none is forgotten."""

from __future__ import annotations

from collections import Counter

from tests.conformance import page
from tests.conformance.statements import STATEMENTS, has_test

#: Protocol level -> how many statements appendix B of its standard lists.
COUNTS = {4: 141, 5: 251}


def test_the_page_is_what_the_tests_say() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "python -m tests.conformance.page"


def test_each_statement_that_binds_a_server_has_a_test_or_a_reason() -> None:
    page.page()
    assert page.untested() == []


def test_no_statement_has_both_a_test_and_a_reason() -> None:
    page.page()
    assert [s.name for s in STATEMENTS.values() if s.absent and has_test(s)] == []


def test_all_statements_are_there() -> None:
    last: dict[tuple[int, str], int] = {}
    for statement in STATEMENTS.values():
        section, _, number = statement.number.partition("-")
        key = statement.version, section
        # MQTT 5.0 has no MQTT-2.2.1-1.
        first = 2 if key == (5, "2.2.1") else 1
        assert int(number) == last.get(key, first - 1) + 1, statement.name
        assert statement.binds in ("server", "client", "both"), statement.name
        last[key] = int(number)
    assert Counter(statement.version for statement in STATEMENTS.values()) == COUNTS
