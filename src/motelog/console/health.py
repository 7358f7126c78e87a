"""The health of the process: which roles have started, and whether it is ready.

Owns: Health. Must not touch: HTTP, sockets.
"""

from __future__ import annotations

from collections.abc import Callable


class Health:
    """The readiness of the process, set by motelog.roles and read at each request.

    ``checks`` are called each time: name -> what is wrong, or None. ``doing`` returns what a
    starting role is doing, or None. ``warnings`` are like ``checks``, of what does not make the
    process unready.
    """

    def __init__(self) -> None:
        self.is_ready = False
        self.roles: dict[str, bool] = {}
        self.checks: dict[str, Callable[[], str | None]] = {}
        self.warnings: dict[str, Callable[[], str | None]] = {}
        self.doing: dict[str, Callable[[], str | None]] = {}

    def starting(self, role: str) -> None:
        self.roles[role] = False

    def started(self, role: str) -> None:
        self.roles[role] = True

    def faults(self) -> dict[str, str]:
        """Return why the process is not ready, by role or check; empty when it is ready."""
        faults = {}
        for role, has_started in self.roles.items():
            if not has_started:
                doing = self.doing[role]() if role in self.doing else None
                faults[role] = f"starting: {doing}" if doing else "starting"
        faults |= _found(self.checks)
        if not faults and not self.is_ready:
            faults["process"] = "starting or stopping"
        return faults

    def warned(self) -> dict[str, str]:
        """Return what an operator should know although the process may be ready."""
        return _found(self.warnings)


def _found(checks: dict[str, Callable[[], str | None]]) -> dict[str, str]:
    results = ((name, check()) for name, check in checks.items())
    return {name: fault for name, fault in results if fault is not None}
