"""The wall clock of one process, which a test sets while the process runs.

Owns: the library that is preloaded (stepped_clock.c), SteppedClock: how far the clock is ahead.
Must not touch: monotonic clocks, the machine's clock.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_suffix(".c")
_OFFSETS: Final = struct.Struct("=qq")
_NS: Final = 1_000_000_000
_BUILT_WITHIN_S: Final = 60
_SEEN_WITHIN_S: Final = 10.0


class NoCompilerError(Exception):
    """The library cannot be built here."""


def build_clock(folder: Path) -> Path:
    """Compile the library into ``folder``; NoCompilerError says why that does not work."""
    library = folder / "stepped_clock.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NoCompilerError("there is no C compiler here")
    command = [compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    done = subprocess.run(
        [*command, str(_SOURCE), "-ldl"], capture_output=True, text=True, timeout=_BUILT_WITHIN_S
    )
    if done.returncode:
        raise NoCompilerError(f"{compiler}: {done.stderr.strip()[-300:]}")
    return library


class SteppedClock:
    """The clock of every process that is started with ``environment``; right at first."""

    def __init__(self, library: Path, file: Path) -> None:
        file.write_bytes(bytes(_OFFSETS.size))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), _OFFSETS.size)
        self.environment = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(file)}

    @property
    def ahead_s(self) -> int:
        """How far it is ahead of the machine's clock; negative if it is behind."""
        wanted: int = _OFFSETS.unpack_from(self._shared)[0]
        return wanted // _NS

    def set(self, ahead_s: int) -> None:
        """Set it, and return when a process has read the new time."""
        struct.pack_into("=q", self._shared, 0, ahead_s * _NS)
        deadline = time.monotonic() + _SEEN_WITHIN_S
        while len(set(_OFFSETS.unpack_from(self._shared))) > 1:
            assert time.monotonic() < deadline, "no process has read the clock since it was set"
            time.sleep(0.001)
