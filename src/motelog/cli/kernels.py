"""The kernels, and whether each is compiled.

Owns: the list of chooser modules. Must not touch: the kernels.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from motelog.cli.tools import install_command

# Chooser module -> the package extra that it needs, or None.
KERNELS: Final = {
    "motelog.core.net.reactor": None,
    "motelog.core.net.websocket_frames": None,
    "motelog.core.records.append": None,
    "motelog.core.records.decode": None,
    "motelog.core.records.read": None,
    "motelog.core.records.scan": None,
    "motelog.core.remoting.pulls": None,
    "motelog.core.remoting.sends": None,
    "motelog.core.store.disk.file_batch": None,
    "motelog.core.store.index.index": None,
    "motelog.gateway.deliver.runs": None,
    "motelog.gateway.mqtt.frames": None,
    "motelog.gateway.publish.router": None,
    "motelog.spark.arrow": "spark",
    "motelog.spark.payload_columns": "spark",
}
COMPILED: Final = "compiled"


def kernel_states() -> dict[str, str]:
    """Return chooser -> "compiled", or why it cannot be imported."""
    return {name: _state(name, extra) for name, extra in KERNELS.items()}


def _state(name: str, extra: str | None) -> str:
    try:
        import_module(name)
    except ModuleNotFoundError as exc:
        missing = (exc.name or "").partition(".")[0]
        if extra is not None and missing != "motelog":
            return f"not installed ({install_command(extra)})"
        return f"missing: {exc}"
    except ImportError as exc:
        return f"missing: {exc}"
    return COMPILED
