"""Keys of the configuration that an operator has set while the server runs.

Owns: their file. Must not touch: where it is (motelog.config), how they are laid below those of the
configuration file (core.config), who may set them.
Invariants: a key has one owner. One that is here counts only where file, environment and options
say nothing of it. The file is replaced as a whole, and the one before is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from motelog.core.config import ConfigFault, ConfigFaultsError
from motelog.core.errors import StoreDamagedError
from motelog.core.state_file import StateFile


def load(path: str) -> dict[str, str]:
    """Return each key with its text, as a variable would have it; ConfigFaultsError."""
    try:
        return _file(path).load(_texts) or {}
    except (StoreDamagedError, OSError) as exc:
        raise ConfigFaultsError([ConfigFault(path, "", f"cannot be read: {exc}")]) from exc


def save(path: str, entries: Mapping[str, str]) -> None:
    """Replace the keys; durable when this returns. OSError leaves those that were there."""
    _file(path).save({"keys": dict(sorted(entries.items()))})


def _file(path: str) -> StateFile:
    return StateFile(path, holds="keys of the configuration that were set at runtime")


def _texts(content: dict[str, Any]) -> dict[str, str]:
    keys = content.get("keys")
    if not isinstance(keys, dict) or not all(isinstance(text, str) for text in keys.values()):
        raise ValueError("it has no keys with texts")
    return keys
