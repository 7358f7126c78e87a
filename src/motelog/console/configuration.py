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
    """One key; ``is_live`` says whether a reload takes it.

    ``origin`` is "default", FILE:LINE, a variable, an option or the runtime store. ``is_settable``:
    while the server runs; ``is_set_here``: that was done, and can be given up.
    """

    key: str
    value: Any
    origin: str
    is_live: bool
    is_settable: bool
    is_set_here: bool


class ConfigKeys(msgspec.Struct, frozen=True):
    """What the process runs with."""

    keys: list[ConfigKey]


class ConfigChanges(msgspec.Struct, frozen=True):
    """What differs from what runs; where there are ``faults``, nothing is changed."""

    changes: list[Change]
    faults: list[str]


class KeyQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: Annotated[str, msgspec.Meta(description="As in gateway.retained_count_max.")]


class SetQuery(KeyQuery, frozen=True, forbid_unknown_fields=True):
    value: Annotated[str, msgspec.Meta(description="Its text, as in an environment variable.")]


class ConfigApi:
    """Shows the configuration and has it read again."""

    def __init__(self, running: RunningConfig) -> None:
        self._running = running

    def endpoints(self) -> list[Endpoint]:
        none = NoParameters
        return [
            Endpoint("/config", "The configuration", none, ConfigKeys, self.get_config),
            Endpoint(
                "/config/changes",
                "What a reload would do",
                none,
                ConfigChanges,
                self.get_config_changes,
            ),
            Endpoint(
                "/config/reload",
                "Read the configuration again; all of it is checked before anything is applied",
                none,
                ConfigChanges,
                self.reload_config,
                method="POST",
                role=Role.ADMIN,
            ),
            Endpoint(
                "/config/key",
                "Set a key that neither file, environment nor option sets, and reload",
                SetQuery,
                ConfigChanges,
                self.set_config_key,
                method="POST",
                role=Role.ADMIN,
            ),
            Endpoint(
                "/config/key",
                "Give up a key that was set so, and reload",
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
        return self._told(self._running.changes)

    async def reload_config(self, query: NoParameters) -> ConfigChanges:
        told = self._told(self._running.reload)
        for one in told.changes:
            logger.info(
                "the configuration was read again key=%s before=%r after=%r outcome=%r",
                one.key,
                one.before,
                one.after,
                one.outcome,
            )
        return told

    async def set_config_key(self, query: SetQuery) -> ConfigChanges:
        return self._set(query.key, query.value)

    async def unset_config_key(self, query: KeyQuery) -> ConfigChanges:
        return self._set(query.key, None)

    def _set(self, key: str, value: str | None) -> ConfigChanges:
        try:
            return self._told(lambda: self._running.set_key(key, value))
        except KeyRefusedError as exc:
            raise RefusedError(str(exc), 404 if exc.is_unknown else 409) from exc
        except OSError as exc:
            raise RefusedError(f"the key cannot be stored: {exc.strerror or exc}") from exc

    def _told(self, ask: Callable[[], list[Change]]) -> ConfigChanges:
        if not self._running.can_reload:
            text = "this server has no configuration file: its options and variables were read once"
            raise RefusedError(text, 409)
        try:
            return ConfigChanges(ask(), [])
        except KeyRefusedError:
            raise
        except ConfigError as exc:
            return ConfigChanges([], str(exc).splitlines())
