"""The line of each key of a TOML text, which tomllib does not report.

Owns: a scan for table headers and keys. Must not touch: values; it expects text that tomllib has
accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

KeyPath = tuple[str | int, ...]


def find_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each table header and key by its path, with the numbers of ``[[x]]``.

    Keys inside inline tables are not found: their faults get its line.
    """
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    open_text = ""  # the delimiter of a multi-line string that is still open
    depth = 0  # brackets of a multi-line array that are still open
    for number, line in enumerate(text.splitlines(), start=1):
        if not open_text and depth == 0:
            stripped = line.strip()
            if stripped.startswith("[["):
                path = _with_elements(_split_key(stripped[2:].partition("]]")[0]), counts)
                counts[path] = counts.get(path, -1) + 1
                table = (*path, counts[path])
                lines.setdefault(path, number)
                lines[table] = number
                continue
            if stripped.startswith("["):
                table = _with_elements(_split_key(stripped[1:].partition("]")[0]), counts)
                lines[table] = number
                continue
            if stripped and not stripped.startswith("#"):
                path = (*table, *_split_key(stripped))
                for end in range(len(table) + 1, len(path) + 1):
                    lines.setdefault(path[:end], number)
        open_text, depth = _scan_value(line, open_text, depth)
    return lines


def _with_elements(path: KeyPath, counts: Mapping[KeyPath, int]) -> KeyPath:
    """Insert the current element's number after each array of tables on the way to ``path``."""
    placed: KeyPath = ()
    for index, part in enumerate(path):
        placed = (*placed, part)
        if placed in counts and index < len(path) - 1:
            placed = (*placed, counts[placed])
    return placed


def _split_key(text: str) -> KeyPath:
    """Return the parts of the dotted key that ``text`` begins with; it ends at ``=`` or the end."""
    parts: list[str] = []
    part = ""
    quote = ""
    for char in text:
        if quote:
            if char == quote:
                quote = ""
            else:
                part += char
        elif char in "\"'":
            quote = char
        elif char == ".":
            parts.append(part.strip())
            part = ""
        elif char == "=":
            break
        else:
            part += char
    return (*parts, part.strip())


def _scan_value(line: str, open_text: str, depth: int) -> tuple[str, int]:
    """Return which string delimiter and how many brackets are open at the end of ``line``."""
    for token in _tokens(line, open_text):
        if token in ('"""', "'''"):
            open_text = "" if open_text else token
        elif not open_text:
            depth += 1 if token in "[{" else -1
    return open_text, max(depth, 0)


def _tokens(line: str, open_text: str) -> Iterator[str]:
    """Yield the brackets outside strings and the delimiters of multi-line strings."""
    at = 0
    while at < len(line):
        char = line[at]
        if open_text:
            if char == "\\" and open_text == '"""':
                at += 2
                continue
            if line.startswith(open_text, at):
                yield open_text
                at += 3
                open_text = ""
                continue
        elif line.startswith(('"""', "'''"), at):
            open_text = line[at : at + 3]
            yield open_text
            at += 3
            continue
        elif char in "\"'":
            at = _end_of_string(line, at)
            continue
        elif char == "#":
            return
        elif char in "[]{}":
            yield char
        at += 1


def _end_of_string(line: str, begin: int) -> int:
    """Return the position after the one-line string that begins at ``begin``."""
    quote = line[begin]
    at = begin + 1
    while at < len(line) and line[at] != quote:
        at += 2 if line[at] == "\\" and quote == '"' else 1
    return at + 1
