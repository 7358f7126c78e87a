"""Lines of the log as JSON: every field a member, whatever its value holds."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from motelog.logs import JsonFormatter


def line(message: str, *values: object, **more: Any) -> dict[str, Any]:
    record = logging.LogRecord("motelog.x", logging.WARNING, "", 0, message, values, None)
    record.created = datetime(2026, 11, 22, 16, 40, 14, 123456, UTC).timestamp()
    vars(record).update(more)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    assert found.pop("time") == "2026-11-22T16:40:14.123Z"
    assert (found.pop("level"), found.pop("logger")) == ("warning", "motelog.x")
    return found


@pytest.mark.parametrize(
    ("message", "values", "expected"),
    [
        ("it starts", (), {"event": "it starts"}),
        ("it is 100 % full", (), {"event": "it is 100 % full"}),
        (
            "a client is refused client_id=%r why=%s acks=%d",
            ("a b=c", "no room; free=0", 3),
            {
                "event": "a client is refused",
                "client_id": "a b=c",
                "why": "no room; free=0",
                "acks": 3,
            },
        ),
        (
            "a role started role=%s address=%s:%d share=%.1f",
            ("broker", "::1", 5, 0.25),
            {"event": "a role started", "role": "broker", "address": "::1:5", "share": 0.25},
        ),
        ("lost %d of %d path=%s", (1, 2, "/x"), {"event": "lost 1 of 2", "path": "/x"}),
        ("it failed: %s", (ValueError("no"),), {"event": "it failed: no"}),
        ("it failed error=%s", (ValueError("no"),), {"event": "it failed", "error": "no"}),
        ("refused code=0x%02x", (7,), {"event": "refused", "code": "0x07"}),
        ("named event=%s", ("x",), {"event": "named", "event_": "x"}),
    ],
)
def test_fields_become_members(
    message: str, values: tuple[object, ...], expected: dict[str, Any]
) -> None:
    assert line(message, *values) == expected


def test_a_traceback_is_a_member_too() -> None:
    try:
        raise ValueError("no")
    except ValueError as exc:
        told = line("it failed peer=%s", "p", exc_info=(type(exc), exc, exc.__traceback__))
    assert told["peer"] == "p"
    assert told["traceback"].endswith("ValueError: no")
