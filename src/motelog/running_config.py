"""The configuration of a running process: where its values are from, and reading it again.

Owns: which keys take effect without a restart, what a reload would change and does change.
Must not touch: how a role takes its keys (``configure`` of broker and gateway).
Invariants: a reload reads and checks the whole configuration before anything is applied, and what
is applied cannot fail. A key that needs a restart keeps its value until there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from motelog.config import MotelogConfig
from motelog.core.broker.config import LIVE as BROKER_LIVE
from motelog.core.config import Loaded, Setting, settings
from motelog.core.store.config import LIVE as STORE_LIVE
from motelog.gateway.config import LIVE as GATEWAY_LIVE

Outcome = Literal["applied", "needs restart", "not used"]

_ROLE_OF: Final = {
    "namesrv": "namesrv",
    "broker": "broker",
    "gateway": "gateway",
    "access": "gateway",
    "listener": "gateway",
    "admin": "console",
}


class Change(msgspec.Struct, frozen=True):
    """A key whose value is not what the process runs with, and what a reload makes of it."""

    key: str
    before: Any
    after: Any
    origin: str
    outcome: Outcome


class RunningConfig:
    """What a process runs with; ``read`` reads file, environment and options again.

    Without ``read`` there is nothing to read again.
    """

    def __init__(
        self,
        loaded: Loaded[MotelogConfig],
        read: Callable[[], Loaded[MotelogConfig]] | None = None,
    ) -> None:
        self._read = read
        self._roles = loaded.section.roles
        #: Workers are told their configuration when they start.
        self._has_workers = "gateway" in self._roles and loaded.section.gateway.workers > 1
        self._settings = {one.key: one for one in settings(loaded)}
        #: Called with the whole configuration; each takes the keys that are its own, and live.
        self.configure: list[Callable[[MotelogConfig], None]] = []

    @property
    def can_reload(self) -> bool:
        return self._read is not None

    def settings(self) -> list[Setting]:
        """Return what the process runs with."""
        return list(self._settings.values())

    def is_live(self, key: str) -> bool:
        """Say whether a key takes effect without a restart."""
        section, _, name = key.rpartition(".")
        match section:
            case "log":
                return not self._has_workers
            case "gateway":
                return name in GATEWAY_LIVE and not self._has_workers
            case "broker":
                return name in BROKER_LIVE
            case "broker.store":
                return name in STORE_LIVE
            case _:
                return False

    def changes(self) -> list[Change]:
        """Return what a reload would do; ConfigError if the configuration is wrong."""
        return self._changes(self._reread())

    def reload(self) -> list[Change]:
        """Apply what can be applied; ConfigError, and nothing is changed, if anything is wrong."""
        loaded = self._reread()
        changes = self._changes(loaded)
        if any(change.outcome == "applied" for change in changes):
            for configure in self.configure:
                configure(loaded.section)
        wanted = {one.key: one for one in settings(loaded)}
        for change in changes:
            if change.outcome == "applied":
                self._settings[change.key] = wanted[change.key]
        return changes

    def _reread(self) -> Loaded[MotelogConfig]:
        assert self._read is not None, "there is a configuration to read again"
        return self._read()

    def _changes(self, loaded: Loaded[MotelogConfig]) -> list[Change]:
        wanted = {one.key: one for one in settings(loaded)}
        changes = []
        for key in {**self._settings, **wanted}:
            before, after = self._settings.get(key), wanted.get(key)
            old = None if before is None else before.value
            new = None if after is None else after.value
            if old != new:
                origin = "" if after is None else after.origin
                changes.append(Change(key, old, new, origin, self._outcome(key)))
        return changes

    def _outcome(self, key: str) -> Outcome:
        role = _ROLE_OF.get(key.partition(".")[0].partition("[")[0])
        if role is not None and role not in self._roles:
            return "not used"
        return "applied" if self.is_live(key) else "needs restart"
