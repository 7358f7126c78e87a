"""The pages of docs/reference, each with the function that returns its text.

Owns: which pages there are. Must not touch: the files; ``python -m tests.reference`` writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.reference import api, commands, configuration, metrics, reason_codes, rocketmq
from tests.support.repository import ROOT

FOLDER: Final = ROOT / "docs" / "reference"

PAGES: Final[dict[str, Callable[[], str]]] = {
    "configuration.md": configuration.page,
    "motelog.schema.json": configuration.schema,
    "commands.md": commands.page,
    "metrics.md": metrics.page,
    "api.md": api.page,
    "openapi.json": api.document,
    "reason-codes.md": reason_codes.page,
    "rocketmq.md": rocketmq.page,
}
