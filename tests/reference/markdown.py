"""Tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table and an empty one."""
    yield _row(head)
    yield "|---" * len(head) + "|"
    yield from map(_row, rows)
    yield ""


def prose(docstring: str | None) -> str:
    """Return a docstring in one line, its literals as Markdown has them, and no HTML."""
    text = re.sub(r"``(.*?)``", r"`\1`", " ".join((docstring or "").split()))
    return re.sub(r"<(?=[a-z])", r"\<", text)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
