"""``--log-level``, ``--log-format`` and ``--json`` of the commands that serve.

Owns: these options. Must not touch: the log (motelog.logs).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from motelog.config import MotelogConfig
    from motelog.core.config import Loaded
    from motelog.core.toml_lines import KeyPath


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


LogLevel = Annotated[
    Level | None, typer.Option(help="Lowest level that is logged. [default: log.level, or info]")
]
LogFormat = Annotated[
    Format | None,
    typer.Option(help="Format of log lines (on standard error). [default: log.format, or text]"),
]
ServeJson = Annotated[
    bool,
    typer.Option("--json", help="Print JSON: how far a long start is, then one line when ready."),
]


def loaded_with_log(
    loaded: Loaded[MotelogConfig], level: Level | None, form: Format | None
) -> Loaded[MotelogConfig]:
    """Do as ``with_log``, and record the options as the values' origins."""
    from motelog.core.config import Loaded

    given = {"level": level, "format": form}
    options: dict[KeyPath, str] = {
        ("log", key): f"option --log-{key}" for key, value in given.items() if value
    }
    return Loaded(with_log(loaded.section, level, form), {**loaded.origins, **options})


def with_log(config: MotelogConfig, level: Level | None, form: Format | None) -> MotelogConfig:
    """Return the configuration with the options for the log applied."""
    from msgspec.structs import replace

    given = {"level": level, "format": form}
    log = replace(config.log, **{key: value.value for key, value in given.items() if value})
    return replace(config, log=log)
