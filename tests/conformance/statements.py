"""The numbered statements of the MQTT standards, and which tests prove them.

Owns: reading ``mqtt-3.1.1.txt`` and ``mqtt-5.0.txt``, the decorator ``proves``, the marker
``not_offered_yet``. Must not touch: gateways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

FOLDER: Final = Path(__file__).resolve().parent
#: Protocol level -> the standard that defines it.
STANDARDS: Final = {4: "3.1.1", 5: "5.0"}

Test = TypeVar("Test", bound=Callable[..., None])

#: For tests of what the gateway does not offer yet; whoever makes them pass removes it.
not_offered_yet: Final = pytest.mark.xfail(
    raises=(AssertionError, ValueError), reason="the gateway does not offer this yet"
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement; ``binds`` is server, client or both, ``absent`` why it needs no test."""

    version: int
    number: str
    binds: str
    text: str
    absent: str = ""

    @property
    def name(self) -> str:
        """As tests are named after it: ``5.0-MQTT-3.1.0-2``."""
        return f"{STANDARDS[self.version]}-MQTT-{self.number}"


def proves(*, mqtt3: str = "", mqtt5: str = "") -> Callable[[Test], Test]:
    """Run a test once for each statement, with its number in the test's name.

    ``mqtt3`` and ``mqtt5`` have the statements of the two standards, such as
    ``"MQTT-3.1.0-2 MQTT-4.8.0-1"``. The test takes ``version``, the protocol level: 4 or 5.
    """
    found = [
        STATEMENTS[version, tag.removeprefix("MQTT-")]
        for version, tags in ((4, mqtt3), (5, mqtt5))
        for tag in tags.split()
    ]

    def decorate(test: Test) -> Test:
        for statement in found:
            _tests.setdefault(statement.name, {})[f"{test.__module__}.{test.__name__}"] = test
        params = [pytest.param(s.version, id=s.name) for s in found]
        decorated: Test = pytest.mark.parametrize("version", params)(test)
        return decorated

    return decorate


def passing(statement: Statement) -> set[bool]:
    """Return whether a statement's tests have to pass; empty if it has none."""
    return {not _is_expected_to_fail(test) for test in _tests.get(statement.name, {}).values()}


def read(version: int) -> Iterator[Statement]:
    """Yield the statements of one standard in its order."""
    text = (FOLDER / f"mqtt-{STANDARDS[version]}.txt").read_text(encoding="utf-8")
    for paragraph in text.split("\n\n")[1:]:
        head, sentence, *reason = paragraph.strip().split("\n")
        number, binds = head.split()
        absent = reason[0].removeprefix("absent: ") if reason else ""
        yield Statement(version, number, binds, sentence, absent)


def _is_expected_to_fail(test: Callable[..., None]) -> bool:
    marks: list[pytest.Mark] = getattr(test, "pytestmark", [])
    return any(mark.name == "xfail" for mark in marks)


STATEMENTS: Final = {
    (version, statement.number): statement for version in STANDARDS for statement in read(version)
}
#: Name of a statement -> its tests, by their names.
_tests: dict[str, dict[str, Any]] = {}
