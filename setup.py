"""Put the folders of the tree under one import name and build the Cython kernels.

The folders of the first level (core, gateway, ...) are packages of ``motelog``: installed they are
``motelog.core`` and so on. In a checkout ``src/motelog`` holds the package's own modules and one
link for each folder, so that the interpreter, Cython, mypy and editors all see the tree that is
installed. The links are under version control; they are made anew here where a zip download has
lost them. A source distribution holds ``src`` with the folders in it and needs no links. Everything
else is declared in pyproject.toml.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
FOLDERS = ("bridge", "core", "gateway", "loadtest", "spark")
KERNELS = (
    "core/net/_reactor.pyx",
    "core/net/_websocket_frames.pyx",
    "core/records/_append.pyx",
    "core/records/_decode.pyx",
    "core/records/_read.pyx",
    "core/records/_scan.pyx",
    "core/remoting/_pulls.pyx",
    "core/remoting/_sends.pyx",
    "core/store/disk/_file_batch.pyx",
    "core/store/index/_index.pyx",
    "gateway/deliver/_runs.pyx",
    "gateway/mqtt/_frames.pyx",
    "gateway/publish/_router.pyx",
    "spark/_arrow.pyx",
    "spark/_payload_columns.pyx",
)


def link_folders() -> None:
    """Make each ``src/motelog/FOLDER`` lead to ``FOLDER``, where it does not."""
    for folder in FOLDERS:
        link = ROOT / "src" / "motelog" / folder
        if (ROOT / folder).is_dir() and not link.is_dir():
            link.unlink(missing_ok=True)  # a zip download may have its target as text
            link.symlink_to(Path("..", "..", folder), target_is_directory=True)


def extension(kernel: str) -> Extension:
    path = Path("motelog", kernel)
    # Debug symbols are four fifths of a kernel's size: only where they are asked for.
    wants_symbols = "-g" in os.environ.get("CFLAGS", "").split()
    return Extension(
        ".".join(path.with_suffix("").parts),
        [f"src/{path}"],
        extra_compile_args=["-O2"] if wants_symbols else ["-O2", "-g0"],
    )


if __name__ == "__main__":  # processes that translate kernels may import this file
    jobs = os.cpu_count() or 1
    link_folders()
    setup(
        ext_modules=cythonize(
            [extension(kernel) for kernel in KERNELS],
            include_path=["src"],
            build_dir="build/cython",  # generated C stays out of the source tree
            compiler_directives={"language_level": 3, "embedsignature": True},
            nthreads=jobs,
        ),
        options={"build_ext": {"parallel": jobs}},
    )
