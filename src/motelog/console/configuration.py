"""The admin API's endpoints for the configuration of this process.

Owns: their answers. Must not touch: what a reload does (``motelog.running_config``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from motelog.console.api import Endpoint, NoParameters
from motelog.console.asking import RefusedError
from motelog.console.gate import Role
from motelog.core.errors import ConfigError
from motelog.running_config import Change, KeyRefusedError, RunningConfig, is_set_at_runtime

logger = logging.getLogger(__name__)


class ConfigKey(msgspec.Struct, frozen=True):
    """One key; ``is_live`` says whether a reload applies it.

    ``origin`` is "default", FILE:LINE, a variable, an option or the runtime store. ``is_settable``:
    it can be set while the server runs; ``is_set_here``: it was set so, and can be unset.
    """

    key: str
    value: Any
    origin: str
    is_live: bool
    is_settable: bool
    is_set_here: bool


class ConfigKeys(msgspec.Struct, frozen=True):
    """The configuration that the process runs with."""

    keys: list[ConfigKey]


class ConfigChanges(msgspec.Struct, frozen=True):
    """The differences from the running configuration; with ``faults``, nothing is changed."""

    changes: list[Change]
    faults: list[str]


class KeyQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: Annotated[str, msgspec.Meta(description="Dotted name: gateway.retained_count_max.")]


class SetQuery(KeyQuery, frozen=True, forbid_unknown_fields=True):
    value: Annotated[str, msgspec.Meta(description="The value as in an environment variable.")]


class ConfigApi:
    """Shows and reloads the configuration."""

    def __init__(self, running: RunningConfig) -> None:
        self._running = running

    def endpoints(self) -> list[Endpoint]:
        none = NoParameters
        return [
            Endpoint("/config", "The configuration", none, ConfigKeys, self.get_config),
            Endpoint(
                "/config/changes",
                "What a reload would change",
                none,
                ConfigChanges,
                self.get_config_changes,
            ),
            Endpoint(
                "/config/reload",
                "Reload the configuration; all of it is checked before anything is applied",
                none,
                ConfigChanges,
                self.reload_config,
                method="POST",
                role=Role.ADMIN,
            ),
            Endpoint(
                "/config/key",
                "Set a key that no file, variable or option sets, and reload",
                SetQuery,
                ConfigChanges,
                self.set_config_key,
                method="POST",
                role=Role.ADMIN,
            ),
            Endpoint(
                "/config/key",
                "Unset a key that was set at runtime, and reload",
                KeyQuery,
                ConfigChanges,
                self.unset_config_key,
                method="DELETE",
                role=Role.ADMIN,
            ),
        ]

    async def get_config(self, query: NoParameters) -> ConfigKeys:
        running = self._running
        return ConfigKeys(
            [
                ConfigKey(
                    one.key,
                    one.shown,
                    one.origin,
                    is_live=running.is_live(one.key),
                    is_settable=running.is_settable(one),
                    is_set_here=is_set_at_runtime(one.origin),
                )
                for one in running.settings()
            ]
        )

    async def get_config_changes(self, query: NoParameters) -> ConfigChanges:
        return self._answer(self._running.changes)

    async def reload_config(self, query: NoParameters) -> ConfigChanges:
        answer = self._answer(self._running.reload)
        for one in answer.changes:
            logger.info(
                "the configuration was reloaded key=%s before=%r after=%r outcome=%r",
                one.key,
                one.before,
                one.after,
                one.outcome,
            )
        return answer

    async def set_config_key(self, query: SetQuery) -> ConfigChanges:
        return self._set(query.key, query.value)

    async def unset_config_key(self, query: KeyQuery) -> ConfigChanges:
        return self._set(query.key, None)

    def _set(self, key: str, value: str | None) -> ConfigChanges:
        try:
            return self._answer(lambda: self._running.set_key(key, value))
        except KeyRefusedError as exc:
            raise RefusedError(str(exc), 404 if exc.is_unknown else 409) from exc
        except OSError as exc:
            raise RefusedError(f"the key cannot be stored: {exc.strerror or exc}") from exc

    def _answer(self, ask: Callable[[], list[Change]]) -> ConfigChanges:
        if not self._running.can_reload:
            text = (
                "this server has no configuration file, and reads options and variables only once"
            )
            raise RefusedError(text, 409)
        try:
            return ConfigChanges(ask(), [])
        except KeyRefusedError:
            raise
        except ConfigError as exc:
            return ConfigChanges([], str(exc).splitlines())
