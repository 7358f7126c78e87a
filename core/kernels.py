"""How a module gets its kernel: the extension beside it, or an error that says what to do.

Owns: that error. Must not touch: the work of a kernel.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any
from zipimport import zipimporter


def kernel_of(chooser: str) -> Any:
    """Return the kernel behind a module: ``_name`` beside it; ImportError if it is not built."""
    package, _, name = chooser.rpartition(".")
    kernel = f"{package}._{name}"
    try:
        return import_module(kernel)
    except ModuleNotFoundError as exc:
        if exc.name != kernel:
            raise
        why = "is not built: run `pip install -e .`, with a C compiler"
        if isinstance(getattr(__spec__, "loader", None), zipimporter):
            # As `spark-submit --py-files` ships it.
            why = "cannot be loaded from a zip file: install Motelog on every machine that runs it"
        raise ImportError(f"the kernel {kernel} {why}", name=kernel) from exc
