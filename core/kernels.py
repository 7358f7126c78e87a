"""Which kernels run: the compiled ones or their references in Python.

Owns: that choice, made once for the whole process, and the error for a kernel that is missing.
Must not touch: the work of a kernel.

    MOTELOG_PURE=1 in the environment    the references, as asked for
    built with MOTELOG_PURE=1            the references, with one warning
    else                                 the kernels; a missing one is an error

A build without kernels has the module ``motelog.core._pure``, which setup.py writes.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final
from zipimport import zipimporter

_IS_ASKED_FOR: Final = os.environ.get("MOTELOG_PURE") == "1"
_IS_BUILT_PURE: Final = find_spec("motelog.core._pure") is not None

COMPILED: Final = not (_IS_ASKED_FOR or _IS_BUILT_PURE)

if _IS_BUILT_PURE and not _IS_ASKED_FOR:
    logging.getLogger(__name__).warning(
        "Motelog was built without compiled kernels and is many times slower: "
        "install it again with a C compiler and without MOTELOG_PURE"
    )


def kernel_of(chooser: str) -> Any:
    """Return the kernel or the reference behind a module: ``_name`` or ``_name_py`` beside it."""
    package, _, name = chooser.rpartition(".")
    if not COMPILED:
        return import_module(f"{package}._{name}_py")
    kernel = f"{package}._{name}"
    try:
        return import_module(kernel)
    except ModuleNotFoundError as exc:
        if exc.name != kernel:
            raise
        why = (
            "is not built: run `pip install -e .`, or set MOTELOG_PURE=1 to use the slow reference"
        )
        if isinstance(getattr(__spec__, "loader", None), zipimporter):
            # As `spark-submit --py-files` hands it out.
            why = "cannot be loaded from a zip file: install Motelog on every machine that runs it"
        raise ImportError(f"the kernel {kernel} {why}", name=kernel) from exc
