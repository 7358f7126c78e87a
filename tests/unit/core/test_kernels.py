"""Kernel or reference: never a silent fallback, for all kernels alike."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run_python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_reference_is_used_on_request_only() -> None:
    script = (
        "from motelog.core.net.reactor import COMPILED, Reactor;print(COMPILED, Reactor.__module__)"
    )
    assert run_python(script, MOTELOG_PURE="1").stdout.split() == [
        "False",
        "motelog.core.net._reactor_py",
    ]
    assert run_python(script, MOTELOG_PURE="").stdout.split() == [
        "True",
        "motelog.core.net._reactor",
    ]


def test_a_missing_kernel_is_an_error_that_says_what_to_do() -> None:
    done = run_python(
        "import sys; sys.modules['motelog.core.net._reactor'] = None;"
        "import motelog.core.net.reactor",
        MOTELOG_PURE="",
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
        MOTELOG_PURE="",
    )
    assert "cannot be loaded from a zip file: install Motelog on every machine" in done.stderr


def test_a_build_without_kernels_uses_the_references_and_warns_once(tmp_path: Path) -> None:
    (tmp_path / "_pure.py").touch()
    script = (
        f"import motelog.core; motelog.core.__path__.append({str(tmp_path)!r})\n"
        "from motelog.core.net import reactor\n"
        "from motelog.core.records import scan\n"
        "from motelog.gateway.mqtt import frames\n"
        "print(reactor.COMPILED, scan.COMPILED, frames.COMPILED, reactor.Reactor.__module__)"
    )
    done = run_python(script, MOTELOG_PURE="")
    assert done.stdout.split() == ["False", "False", "False", "motelog.core.net._reactor_py"]
    assert done.stderr.count("built without compiled kernels") == 1
    # Who asks for the references is not warned.
    assert run_python(script, MOTELOG_PURE="1").stderr == ""
