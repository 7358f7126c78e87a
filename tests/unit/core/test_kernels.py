"""A kernel that is missing is an error, never a silent fallback, for all kernels alike."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run_python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_missing_kernel_is_an_error_that_says_what_to_do() -> None:
    done = run_python(
        "import sys; sys.modules['motelog.core.net._reactor'] = None;"
        "import motelog.core.net.reactor",
    )
    assert done.returncode == 1
    assert "`pip install -e .`" in done.stderr


def test_a_zip_file_cannot_have_kernels(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "motelog.zip", "w") as packed:
        for name in ("__init__.py", "core/__init__.py", "core/net/__init__.py"):
            packed.writestr(f"motelog/{name}", "")
        packed.write(ROOT / "core" / "kernels.py", "motelog/core/kernels.py")
    done = run_python(
        f"import sys; sys.path.insert(0, {str(tmp_path / 'motelog.zip')!r})\n"
        "from motelog.core.kernels import kernel_of; kernel_of('motelog.core.net.reactor')",
    )
    assert "cannot be loaded from a zip file: install Motelog on every machine" in done.stderr
