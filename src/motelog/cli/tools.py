"""Which other software is installed, for ``doctor``, ``demo`` and ``spark``.

Owns: finding Java and pyspark, the command that would install what is missing.
Must not touch: installing anything.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parents[1]


def install_command(extra: str | None = None, *, package: Path = PACKAGE) -> str:
    """Return the command that installs Motelog with an extra into the Python that runs it.

    From a checkout, whose ``src/motelog`` is the ``package``, it installs that checkout again.
    """
    pip = "pip"
    found = shutil.which("pip")
    if found is None or Path(found).parent != Path(sys.executable).parent:
        pip = f"{shlex.quote(sys.executable)} -m pip"
    bracket = f"[{extra}]" if extra else ""
    root = package.parents[1]
    if not (package.parent.name == "src" and (root / "pyproject.toml").is_file()):
        return f"{pip} install {shlex.quote(f'motelog{bracket}')}"
    where = "." if Path.cwd() == root else str(root)
    return f"{pip} install -e {shlex.quote(where + bracket)}"


def has_pyspark() -> bool:
    return find_spec("pyspark") is not None and find_spec("pyarrow") is not None


def find_java() -> str | None:
    """Return the path of the java that Spark would start, or None."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return shutil.which(os.path.join(home, "bin", "java"))
    return shutil.which("java")


def java_version(java: str) -> int | None:
    """Return the major version that a java reports, or None if it does not run."""
    try:
        result = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', result.stderr + result.stdout)
    return int(found[1]) if found else None
