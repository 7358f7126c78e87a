"""The audit log: a line for each change that is requested at the admin listener.

Owns: its lines, its file. Must not touch: who may make a change.
Invariant: with a file, no change is made without a line in it.

    {"time": "2026-11-23T03:10:00.123Z", "who": "alice", "role": "operate", "from": "192.0.2.7",
     "action": "kick_client", "what": {"client_id": "dev42"}, "outcome": "done"}

The outcome is "done", "cancelled", or why it was not done. The file is opened for each line, so
that it may be moved away at any time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from motelog.console.asking import RefusedError
from motelog.console.gate import Caller
from motelog.core.addresses import without_logins
from motelog.core.errors import ConfigError

logger = logging.getLogger(__name__)

_MODE: Final = 0o600


class AuditFileError(ConfigError):
    """The audit file cannot be written."""


class Audit:
    """Writes to a file, or to the process's log if there is none."""

    def __init__(self, path: str) -> None:
        """AuditFileError if the file cannot be written."""
        self._path = path
        if path:
            try:
                os.close(self._open())
            except OSError as exc:
                why = exc.strerror or str(exc)
                raise AuditFileError(f"cannot write the audit file {path}: {why}") from exc

    @contextmanager
    def change(self, caller: Caller, action: str, what: dict[str, Any]) -> Iterator[None]:
        """Write a line for the change made in the block, with its outcome.

        RefusedError if the line cannot be written.
        """
        file: int | None = None
        if self._path:
            try:
                file = self._open()
            except OSError as exc:
                why = exc.strerror or str(exc)
                raise RefusedError(f"the audit file cannot be written: {why}") from exc
        outcome = "cancelled"
        try:
            yield
            outcome = "done"
        except RefusedError as exc:
            outcome = str(exc)
            raise
        finally:
            self._note(file, caller, action, what, outcome)

    def _note(
        self, file: int | None, caller: Caller, action: str, what: dict[str, Any], outcome: str
    ) -> None:
        role = caller.role.name.lower()
        what = without_logins(what)
        if file is None:
            logger.info(
                "an operator requested a change who=%r role=%s from=%s action=%s what=%r"
                " outcome=%r",
                caller.name,
                role,
                caller.host,
                action,
                what,
                outcome,
            )
            return
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": at, "who": caller.name, "role": role, "from": caller.host}
        text = msgspec.json.encode(line | {"action": action, "what": what, "outcome": outcome})
        try:
            os.write(file, text + b"\n")
        except OSError as exc:
            logger.error("the audit file cannot be written: %s line=%r", exc, text)
        finally:
            os.close(file)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
