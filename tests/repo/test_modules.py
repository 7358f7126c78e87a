"""How modules open, and that kernels come in fours."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec
from pathlib import Path

import pytest

from motelog.cli.kernels import KERNELS
from tests.support.repository import (
    PACKAGES,
    ROOT,
    is_in_package,
    module_name,
    source,
    source_files,
)

# A module with fewer statements than this explains itself in a sentence.
STATEMENTS_FOR_OWNS = 60
#: A kernel over sockets, not over buffers, and how its tests say what is right instead: in plain
#: Python it would be a second product.
WITHOUT_REFERENCE = {"_reactor": "expected(framing"}
KERNEL_SOURCES = sorted(path for folder in PACKAGES for path in (ROOT / folder).rglob("*.pyx"))


def test_every_module_opens_with_a_docstring() -> None:
    missing = [
        str(path.relative_to(ROOT)) for path in source_files() if not source(path).docstring.strip()
    ]
    assert missing == []


def test_larger_modules_say_what_they_own_and_must_not_touch() -> None:
    missing = []
    for path in source_files():
        if not is_in_package(path):
            continue
        text, statements, _ = source(path)
        if statements >= STATEMENTS_FOR_OWNS and not ("Owns:" in text and "Must not" in text):
            missing.append(str(path.relative_to(ROOT)))
    assert missing == []


def test_there_are_kernels() -> None:
    assert KERNEL_SOURCES


@pytest.mark.parametrize("kernel", KERNEL_SOURCES, ids=lambda path: path.stem)
def test_kernel_has_reference_stub_chooser_property_test_and_fuzz_program(kernel: Path) -> None:
    stem = kernel.stem.removeprefix("_")
    assert kernel.stem.startswith("_")
    names = {f"_{stem}_py.py", f"_{stem}.pyi", f"{stem}.py"}
    oracle = WITHOUT_REFERENCE.get(kernel.stem, f"_{stem}_py")
    if kernel.stem in WITHOUT_REFERENCE:
        names.remove(f"_{stem}_py.py")
    for name in names:
        assert (kernel.parent / name).exists(), f"{kernel.parent.name}/{name} is missing"
    fuzz = {path.stem for path in (ROOT / "tests" / "fuzz").glob("fuzz_*.py")}
    assert f"fuzz_{stem}" in fuzz
    assert any(
        "@given" in text and oracle in text
        for text in map(with_support, (ROOT / "tests").rglob("test_*.py"))
    ), f"no Hypothesis test compares _{stem} with {oracle}"


def with_support(path: Path) -> str:
    """Return a test's text and that of the tests.support modules that it imports."""
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"^from tests\.support\.(\w+) import", text, re.MULTILINE):
        text += (ROOT / "tests" / "support" / f"{name}.py").read_text(encoding="utf-8")
    return text


def test_every_kernel_is_built_and_listed() -> None:
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    built = set(re.findall(r'"([\w/]+\.pyx)"', setup))
    assert built == {path.relative_to(ROOT).as_posix() for path in KERNEL_SOURCES}
    choosers = {
        module_name(path.with_name(path.stem.removeprefix("_") + path.suffix))
        for path in KERNEL_SOURCES
    }
    assert choosers == set(KERNELS)


@pytest.mark.parametrize("chooser", sorted(KERNELS))
def test_compiled_kernel_is_the_one_in_use(chooser: str) -> None:
    extra = KERNELS[chooser]
    if extra == "spark" and find_spec("pyarrow") is None:
        pytest.skip("needs the [spark] extra")
    package, _, name = chooser.rpartition(".")
    kernel = import_module(f"{package}._{name}")
    assert isinstance(kernel.__loader__, ExtensionFileLoader)
