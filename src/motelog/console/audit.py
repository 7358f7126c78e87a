"""The audit log: a line for each change that somebody has asked for over the admin API.

Owns: its lines. Must not touch: who may make a change.
"""

from __future__ import annotations

import logging

import msgspec

from motelog.console.gate import Caller

logger = logging.getLogger(__name__)


class Audit:
    """Writes to the process's log."""

    def note(self, caller: Caller, action: str, query: msgspec.Struct, outcome: str) -> None:
        logger.info(
            "an operator has made a change who=%r role=%s from=%s action=%s what=%r outcome=%r",
            caller.name,
            caller.role.name.lower(),
            caller.host,
            action,
            msgspec.structs.asdict(query),
            outcome,
        )
