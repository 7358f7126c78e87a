"""The log of a server process: which lines are written, and in which format.

Owns: LogConfig, setting up logging, JSON lines. Must not touch: what the lines say.
Lines go to standard error. A line is a constant text followed by key=value fields, which are
separate members in JSON:

    logger.info("role started role=%s port=%d", "broker", 10911)
    {"time": "2026-11-22T16:40:14.123Z", "level": "info", "logger": "motelog.roles",
     "event": "role started", "role": "broker", "port": 10911}
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]

_TEXT: Final = "%(asctime)s %(levelname)s {}%(name)s %(message)s"
_FIELD: Final = re.compile(r"(?:^|[ ,;:(]+)([a-z][a-z0-9_]*)=(?=\S*%)")
_SPECIFIER: Final = re.compile(r"%[-#0 +]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[a-zA-Z%]")
#: Members of every line; a field of the same name gets an underscore.
_COMMON: Final = frozenset({"time", "level", "logger", "process", "event", "traceback"})


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a server process writes to standard error."""

    level: Level = "info"
    """Lowest level that is written: debug, info, warning or error. Third-party libraries log
    nothing below warning."""

    format: Format = "text"
    """text: lines for people; json: one object per line, with the fields as members."""


def set_up(config: LogConfig, *, process: str = "") -> None:
    """Write this process's log lines to standard error as ``config`` says.

    ``process`` distinguishes its lines from those of other processes on the same stream.
    """
    formatter: logging.Formatter = JsonFormatter(process)
    if config.format == "text":
        formatter = logging.Formatter(_TEXT.format(process + " " if process else ""))
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    level = logging.getLevelName(config.level.upper())
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    logging.getLogger("motelog").setLevel(level)


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the member ``process`` if the process has a name."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if self._process:
            line["process"] = self._process
        line |= _event(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _event(record: logging.LogRecord) -> dict[str, Any]:
    """Return the event's text and fields; for a line of another form, its message."""
    message = record.getMessage()
    arguments = record.args
    if not isinstance(arguments, tuple) or not isinstance(record.msg, str):
        return {"event": message}
    event, fields = _parts(record.msg)
    counts = [len(_arguments_of(part)) for part in (event, *(value for _, value in fields))]
    if sum(counts) != len(arguments):
        return {"event": message}
    line: dict[str, Any] = {"event": event % arguments[: counts[0]]}
    at = counts[0]
    for (name, template), count in zip(fields, counts[1:], strict=True):
        values = arguments[at : at + count]
        at += count
        line[f"{name}_" if name in _COMMON else name] = _value(template, values)
    return line


def _value(template: str, values: tuple[object, ...]) -> object:
    """Return a field's single value as it is if JSON can express it, else as text."""
    if len(values) == 1 and _SPECIFIER.fullmatch(template):
        (value,) = values
        if value is None or isinstance(value, bool | int | float | str):
            return value
    return template % values


@lru_cache(maxsize=1024)
def _parts(template: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the text before the fields, and the name and template of each field."""
    found = list(_FIELD.finditer(template))
    if not found:
        return template, ()
    ends = [*(one.start() for one in found[1:]), len(template)]
    fields = tuple(
        (one[1], template[one.end() : end]) for one, end in zip(found, ends, strict=True)
    )
    return template[: found[0].start()], fields


def _arguments_of(template: str) -> list[str]:
    return [one for one in _SPECIFIER.findall(template) if one != "%%"]
