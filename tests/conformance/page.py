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

The gateway passes all numbered statements of the two OASIS standards except those listed here,
with the reason. [mqtt-3.1.1.txt](../../tests/conformance/mqtt-3.1.1.txt) and
[mqtt-5.0.txt](../../tests/conformance/mqtt-5.0.txt) state each of them in our own words. A
statement passes if tests in `tests/conformance` have its number in their names
(`pytest tests/conformance -k MQTT-3.1.4-3`) and succeed. Statements that bind clients have a test
if it matters what the server does with a client that ignores them.

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
    yield f"{len(statements)} statements, {passed} pass. Not tested:"
    yield ""
    others: dict[str, list[str]] = {}
    for statement in statements:
        if answer(statement) != "pass":
            others.setdefault(answer(statement), []).append(f"MQTT-{statement.number}")
    yield from (f"- {reason}: {', '.join(names)}" for reason, names in others.items())
    yield ""


if __name__ == "__main__":
    main()
