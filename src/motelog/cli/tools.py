"""What other software this machine has, for ``doctor``, ``demo`` and ``spark``.

Owns: finding Java and pyspark. Must not touch: installing anything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec


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
