"""The numbered statements of the MQTT standards, and which tests prove them.

Owns: reading ``mqtt-3.1.1.txt`` and ``mqtt-5.0.txt``, the decorator ``proves``.
Must not touch: gateways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import pytest

FOLDER: Final = Path(__file__).resolve().parent
#: Protocol level -> the standard that defines it.
STANDARDS: Final = {4: "3.1.1", 5: "5.0"}

Test = TypeVar("Test", bound=Callable[..., None])


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
        _tested.update(found)
        params = [pytest.param(s.version, id=s.name) for s in found]
        decorated: Test = pytest.mark.parametrize("version", params)(test)
        return decorated

    return decorate


def has_test(statement: Statement) -> bool:
    """Return whether a test module that has been imported proves a statement."""
    return statement in _tested


def read(version: int) -> Iterator[Statement]:
    """Yield the statements of one standard in its order."""
    text = (FOLDER / f"mqtt-{STANDARDS[version]}.txt").read_text(encoding="utf-8")
    for paragraph in text.split("\n\n")[1:]:
        head, sentence, *reason = paragraph.strip().split("\n")
        number, binds = head.split()
        absent = reason[0].removeprefix("absent: ") if reason else ""
        yield Statement(version, number, binds, sentence, absent)


STATEMENTS: Final = {
    (version, statement.number): statement for version in STANDARDS for statement in read(version)
}
_tested: set[Statement] = set()
