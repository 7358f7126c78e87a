"""Configuration keys that an operator has set while the server runs.

Owns: their file. Must not touch: where the file is (motelog.config), how the configuration file
overrides them (core.config), which keys may be set.
Invariants: a stored key counts only if file, environment and options do not set it. The file is
replaced as a whole, and the previous one is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from motelog.core.config import ConfigFault, ConfigFaultsError
from motelog.core.errors import StoreDamagedError
from motelog.core.state_file import StateFile


def load(path: str) -> dict[str, str]:
    """Return each key with its text, as in an environment variable; ConfigFaultsError."""
    try:
        return _file(path).load(_texts) or {}
    except (StoreDamagedError, OSError) as exc:
        raise ConfigFaultsError([ConfigFault(path, "", f"cannot be read: {exc}")]) from exc


def save(path: str, entries: Mapping[str, str]) -> None:
    """Replace the keys; durable when this returns. On OSError the previous keys remain."""
    _file(path).save({"keys": dict(sorted(entries.items()))})


def _file(path: str) -> StateFile:
    return StateFile(path, holds="keys of the configuration that were set at runtime")


def _texts(content: dict[str, Any]) -> dict[str, str]:
    keys = content.get("keys")
    if not isinstance(keys, dict) or not all(isinstance(text, str) for text in keys.values()):
        raise ValueError("it does not map keys to strings")
    return keys
