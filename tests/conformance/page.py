"""Writes ``docs/reference/mqtt-conformance.md`` from the statements and their tests.

Owns: that page. Must not touch: whether tests pass; the test run shows that.

    python -m tests.conformance.page
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from tests.conformance.statements import FOLDER, STANDARDS, STATEMENTS, Statement, has_test

PAGE: Final = FOLDER.parent.parent / "docs" / "reference" / "mqtt-conformance.md"

_HEAD: Final = """\
# MQTT conformance

Each numbered statement of the two OASIS standards, in our own words. The gateway passes a
statement unless a remark in italics says otherwise: tests in `tests/conformance` have its number in
their names (`MQTT-3.1.4-3`). Statements that bind clients have a test if it matters what the server
does with a client that ignores them.

This page is written by `python -m tests.conformance.page`.
"""


def main() -> None:
    Path(PAGE).write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the page as the tests have it now."""
    for path in sorted(FOLDER.glob("test_*.py")):
        import_module(f"tests.conformance.{path.stem}")
    return "\n".join([_HEAD, *(line for version in STANDARDS for line in _standard(version))])


def untested() -> list[str]:
    """Return the statements that bind a server and have neither a test nor a reason; after page."""
    return [
        statement.name
        for statement in STATEMENTS.values()
        if statement.binds != "client" and not statement.absent and not has_test(statement)
    ]


def answer(statement: Statement) -> str:
    """Return what the page says of a statement."""
    if has_test(statement):
        return "pass"
    return statement.absent or ("binds clients" if statement.binds == "client" else "no test")


def _standard(version: int) -> Iterator[str]:
    statements = [s for s in STATEMENTS.values() if s.version == version]
    passed = sum(answer(statement) == "pass" for statement in statements)
    yield f"## MQTT {STANDARDS[version]}"
    yield ""
    yield f"{len(statements)} statements, {passed} pass."
    yield ""
    for statement in statements:
        found = answer(statement)
        remark = "" if found == "pass" else f" *{found}*"
        yield f"- {statement.number}: {statement.text}{remark}"
    yield ""


if __name__ == "__main__":
    main()
