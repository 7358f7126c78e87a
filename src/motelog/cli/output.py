"""Output of commands: text for people, one JSON object per line for scripts, helpful errors.

Owns: writing to standard output and error, CliError. Must not touch: what any command does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from motelog.core.errors import MotelogError


class CliError(MotelogError):
    """A command failed. Carries what happened, what to do about it, and the exit status."""

    def __init__(self, message: str, *, remedy: str | None = None, status: int = 1) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.status = status


def write(text: str = "") -> None:
    """Write one line of text; flushed, since a reader may be waiting for it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_json(value: Any) -> None:
    """Write one JSON object as one line."""
    write(json.dumps(value, ensure_ascii=False))


def write_done(value: dict[str, Any], text: str, *, json: bool) -> None:
    """Write what a command has done, as a JSON object or as text."""
    write_json(value) if json else write(text)


def write_bytes(data: bytes) -> None:
    """Write bytes as they are; flushed, since a reader may be waiting for them."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_note(text: str) -> None:
    """Write a note for a person to standard error, which a pipe does not read."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def write_error(message: str, remedy: str | None = None) -> None:
    """Write what went wrong and what to do to standard error."""
    sys.stderr.write(f"motelog: {message}\n")
    if remedy is not None:
        sys.stderr.write(f"  {remedy}\n")
    sys.stderr.flush()


def ready_text(faults: Mapping[str, str]) -> str:
    """Return the first lines that a server prints when it has started."""
    if not faults:
        return "Motelog is ready."
    return "\n".join(
        ["Motelog is running, but not ready:", *(f"  {fault}" for fault in faults.values())]
    )


def table(rows: Sequence[tuple[str, ...]], *, right: frozenset[int] = frozenset()) -> str:
    """Return rows as aligned columns; ``right`` are the columns to align to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def agreed(is_agreed: bool, what: str) -> None:
    """Return if the user agrees: at a prompt on a terminal, otherwise with ``--yes``."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise CliError(f"this would {what}", remedy="to confirm, add --yes", status=2)
    sys.stderr.write(f"This will {what}. Type yes to continue: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != "yes":
        raise CliError("nothing was changed")


def stop(status: int) -> NoReturn:
    """End the command with an exit status."""
    raise SystemExit(status)
