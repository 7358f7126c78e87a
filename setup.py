"""Build the Cython kernels; everything else is declared in pyproject.toml."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNELS = (
    "core/_record.pyx",
    "core/store/_file_batch.pyx",
    "core/store/_index.pyx",
    "core/net/_reactor.pyx",
    "gateway/mqtt/_frames.pyx",
    "spark/_arrow.pyx",
)
PURE = os.environ.get("MOTELOG_PURE") == "1"

setup(
    ext_modules=[]
    if PURE
    else cythonize(
        [
            Extension(
                ".".join(Path(kernel).with_suffix("").parts), [kernel], extra_compile_args=["-O2"]
            )
            for kernel in KERNELS
        ],
        build_dir="build/cython",  # generated C stays out of the source tree
        compiler_directives={"language_level": 3, "embedsignature": True},
    ),
)
