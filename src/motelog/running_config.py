"""The configuration of a running process: the origin of its values, and reloading it.

Owns: which keys take effect without a restart, what a reload changes or would change, which keys
may be set at runtime.
Must not touch: how a role applies its keys (``configure`` of broker and gateway).
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

#: Sections that only file, environment and options may set.
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
    """A key whose value differs from the running one, and what a reload does with it.

    User names and passwords in URLs are removed from the values.
    """

    key: str
    before: Any
    after: Any
    origin: str
    outcome: Outcome


class KeyRefusedError(ConfigError):
    """A key cannot be set at runtime; ``is_unknown``: there is no such key."""

    def __init__(self, message: str, *, is_unknown: bool = False) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown


class RunningConfig:
    """What a process runs with; ``read`` reads file, environment and options again.

    ``read`` takes the keys set at runtime, or None for those that are stored. Without ``read`` the
    configuration cannot be reloaded.
    """

    def __init__(
        self,
        loaded: Loaded[MotelogConfig],
        read: Callable[[Mapping[str, str] | None], Loaded[MotelogConfig]] | None = None,
    ) -> None:
        self._read = read
        self.started_with: Final = loaded.section
        self._roles = loaded.section.roles
        #: Workers receive their configuration when they start.
        self._has_workers = "gateway" in self._roles and loaded.section.gateway.workers > 1
        self._settings = {one.key: one for one in settings(loaded)}
        #: Called with the whole configuration; each applies its own live keys.
        self.configure: list[Callable[[MotelogConfig], None]] = []

    @property
    def can_reload(self) -> bool:
        return self._read is not None

    def settings(self) -> list[Setting]:
        """Return the values that the process runs with."""
        return list(self._settings.values())

    def is_live(self, key: str) -> bool:
        """Return whether a key takes effect without a restart."""
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
        """Return whether ``set_key`` may set a key, as far as that is known without reloading."""
        is_free = setting.origin == "default" or is_set_at_runtime(setting.origin)
        return self.can_reload and is_free and not _is_of_the_file(setting.key)

    def changes(self) -> list[Change]:
        """Return what a reload would do; ConfigError if the configuration is wrong."""
        return self._changes(self._reread())

    def reload(self) -> list[Change]:
        """Apply what can be applied live; if anything is wrong, ConfigError and no change."""
        return self._apply(self._reread())

    def set_key(self, key: str, text: str | None) -> list[Change]:
        """Store a key permanently and reload; None removes the stored key.

        KeyRefusedError; ConfigError, and no change, if the configuration would be wrong with it.
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
        """Return the file of keys and its content; KeyRefusedError if ``key`` may not be set."""
        found = {one.key: one for one in settings(loaded)}
        if key not in found:
            close = difflib.get_close_matches(key, found, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise KeyRefusedError(f"there is no key {key}{hint}", is_unknown=True)
        if _is_of_the_file(key):
            text = f"{key} can only be set in the file: it controls who may reach this server"
            raise KeyRefusedError(text)
        origin = found[key].origin
        place = loaded.section.runtime_path
        if origin != "default" and not is_set_at_runtime(origin):
            raise KeyRefusedError(f"{key} is set by {origin}: change it there")
        if place is None:
            text = "no file for keys set at runtime: set [admin] runtime_file in the configuration"
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
        assert self._read is not None, "there is a configuration to reload"
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
    """Return whether a value of this origin was set by ``set_key``."""
    return origin.startswith(RUNTIME_STORE)


def _is_of_the_file(key: str) -> bool:
    return key.partition(".")[0].partition("[")[0] in FILE_ONLY
