"""The configuration of a running process: where its values are from, and reading it again.

Owns: which keys take effect without a restart, what a reload would change and does change, who may
own a key.
Must not touch: how a role takes its keys (``configure`` of broker and gateway).
Invariants: a reload reads and checks the whole configuration before anything is applied, and what
is applied cannot fail. A key that needs a restart keeps its value until there is one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from motelog import runtime_store
from motelog.config import RUNTIME_STORE, MotelogConfig
from motelog.core.addresses import without_logins
from motelog.core.broker.config import LIVE as BROKER_LIVE
from motelog.core.config import Loaded, Setting, settings
from motelog.core.errors import ConfigError
from motelog.core.store.config import LIVE as STORE_LIVE
from motelog.gateway.config import LIVE as GATEWAY_LIVE

Outcome = Literal["applied", "needs restart", "not used"]

#: Sections that the file, environment and options alone may set.
FILE_ONLY: Final = frozenset({"roles", "admin", "access", "listener"})

_ROLE_OF: Final = {
    "namesrv": "namesrv",
    "broker": "broker",
    "gateway": "gateway",
    "access": "gateway",
    "listener": "gateway",
    "admin": "console",
}


class Change(msgspec.Struct, frozen=True):
    """A key whose value is not what the process runs with, and what a reload makes of it.

    The values have no user and password of a URL.
    """

    key: str
    before: Any
    after: Any
    origin: str
    outcome: Outcome


class KeyRefusedError(ConfigError):
    """A key cannot be set at runtime; ``is_unknown``: there is none of this name."""

    def __init__(self, message: str, *, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown


class RunningConfig:
    """What a process runs with; ``read`` reads file, environment and options again.

    It takes keys set at runtime in place of those that are stored, None for those. Without
    ``read`` there is nothing to read again.
    """

    def __init__(
        self,
        loaded: Loaded[MotelogConfig],
        read: Callable[[Mapping[str, str] | None], Loaded[MotelogConfig]] | None = None,
    ) -> None:
        self._read = read
        self.started_with: Final = loaded.section
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

    def is_settable(self, setting: Setting) -> bool:
        """Say whether ``set_key`` may have a key, as far as that is known without reading again."""
        is_free = setting.origin == "default" or is_set_at_runtime(setting.origin)
        return self.can_reload and is_free and not _is_of_the_file(setting.key)

    def changes(self) -> list[Change]:
        """Return what a reload would do; ConfigError if the configuration is wrong."""
        return self._changes(self._reread())

    def reload(self) -> list[Change]:
        """Apply what can be applied; ConfigError, and nothing is changed, if anything is wrong."""
        return self._apply(self._reread())

    def set_key(self, key: str, text: str | None) -> list[Change]:
        """Store a key for all starts to come, and reload; None gives it up.

        KeyRefusedError; ConfigError, and nothing is changed, if the configuration is wrong with it.
        OSError if it cannot be stored.
        """
        place, entries = self._runtime(self._reread(), key, is_given_up=text is None)
        if text is None:
            del entries[key]
        else:
            entries[key] = text
        loaded = self._reread(entries)
        runtime_store.save(place, entries)
        return self._apply(loaded)

    def _runtime(
        self, loaded: Loaded[MotelogConfig], key: str, *, is_given_up: bool
    ) -> tuple[str, dict[str, str]]:
        """Return where keys are stored and those that are; KeyRefusedError if this one may not."""
        found = {one.key: one for one in settings(loaded)}
        if key not in found:
            close = difflib.get_close_matches(key, found, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise KeyRefusedError(f"there is no key {key}{hint}", is_unknown=True)
        if _is_of_the_file(key):
            raise KeyRefusedError(f"{key} is set in the file: it says who may reach this server")
        origin = found[key].origin
        place = loaded.section.runtime_path
        if origin != "default" and not is_set_at_runtime(origin):
            raise KeyRefusedError(f"{key} is set by {origin}: change it there")
        if place is None:
            text = "there is no place for keys: set runtime_file in [admin], in the file"
            raise KeyRefusedError(text)
        entries = runtime_store.load(place)
        if is_given_up and key not in entries:
            raise KeyRefusedError(f"{key} was not set at runtime", is_unknown=True)
        return place, entries

    def _apply(self, loaded: Loaded[MotelogConfig]) -> list[Change]:
        changes = self._changes(loaded)
        if any(change.outcome == "applied" for change in changes):
            for configure in self.configure:
                configure(loaded.section)
        wanted = {one.key: one for one in settings(loaded)}
        for change in changes:
            if change.outcome == "applied":
                self._settings[change.key] = wanted[change.key]
        return changes

    def _reread(self, entries: Mapping[str, str] | None = None) -> Loaded[MotelogConfig]:
        assert self._read is not None, "there is a configuration to read again"
        return self._read(entries)

    def _changes(self, loaded: Loaded[MotelogConfig]) -> list[Change]:
        wanted = {one.key: one for one in settings(loaded)}
        changes = []
        for key in {**self._settings, **wanted}:
            before, after = self._settings.get(key), wanted.get(key)
            old = None if before is None else before.value
            new = None if after is None else after.value
            if old != new:
                origin = "" if after is None else after.origin
                shown = without_logins(old), without_logins(new)
                changes.append(Change(key, *shown, origin, self._outcome(key)))
        return changes

    def _outcome(self, key: str) -> Outcome:
        role = _ROLE_OF.get(key.partition(".")[0].partition("[")[0])
        if role is not None and role not in self._roles:
            return "not used"
        return "applied" if self.is_live(key) else "needs restart"


def is_set_at_runtime(origin: str) -> bool:
    """Say whether a value of this origin was set by ``set_key``."""
    return origin.startswith(RUNTIME_STORE)


def _is_of_the_file(key: str) -> bool:
    return key.partition(".")[0].partition("[")[0] in FILE_ONLY
