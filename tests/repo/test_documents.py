"""What the documents name is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.repository import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# The names of this page are put together of the prefixes and families that the sources have.
QUOTING = [path for path in DOCUMENTS if path != ROOT / "docs" / "reference" / "metrics.md"]
FOLDERS = ("core", "gateway", "bridge", "spark", "loadtest")
# In the store's documents names without a folder are short for files in these.
SHORT = {"test_": "tests/unit/core/store", "": "core/store"}


def title(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=title)
def test_files_and_commands_that_a_document_names_are_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    folders = "|".join((*FOLDERS, "src", "tests", "docs"))
    for name in re.findall(rf"`((?:{folders}|\.ci)/[\w./-]*)`", text):
        # A kernel is named by the stem of its files.
        assert (ROOT / name).exists() or list(ROOT.glob(f"{name}.*")), name
    for module in re.findall(r"python -m (tests[\w.]+)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


@pytest.mark.parametrize("document", DOCUMENTS, ids=title)
def test_tests_that_a_document_names_are_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for path, test in re.findall(r"`(tests/[\w./-]+\.py)::(\w+)`", text):
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(?:async )?def {test}\(", source, re.MULTILINE), f"{path}::{test}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=title)
def test_make_commands_that_a_document_names_are_there(document: Path) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = document.read_text(encoding="utf-8")
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)) <= set(targets)


@pytest.fixture(scope="module")
def words() -> set[str]:
    """Every name that the sources, the tests and the build have, those of modules among them."""
    found: set[str] = set()
    suffixes = (".py", ".pyx", ".pxd", "")
    for folder in (*FOLDERS, "src", "tests", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in suffixes and path.is_file() and "__pycache__" not in path.parts:
                found.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
                found.add(path.stem)
    for name in ("Makefile", "setup.py", "pyproject.toml"):
        found.update(re.findall(r"\w+", (ROOT / name).read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("document", QUOTING, ids=title)
def test_names_that_a_document_quotes_are_in_the_tree(document: Path, words: set[str]) -> None:
    text = document.read_text(encoding="utf-8")
    quoted = re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", text)
    assert [name for name in quoted if name not in words] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=title)
def test_programs_import_what_is_installed(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    # An excerpt of a file names it and is no program.
    for block in re.findall(r"```python\n((?!# \S+\.py\n).*?)```", text, re.DOTALL):
        for module in imports(block):
            assert module.partition(".")[0] not in FOLDERS, f"{module} is motelog.{module}"
            if module.startswith("motelog"):
                assert find_spec(module) is not None, module


def imports(program: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("name", ["store.md", "store-internals.md"])
def test_short_names_of_the_store_s_documents_are_there(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    for short in re.findall(r"`([\w/]+\.py)`", text):
        if not short.startswith(tuple(f"{folder}/" for folder in (*FOLDERS, "tests"))):
            prefix = "test_" if short.startswith("test_") else ""
            assert any((ROOT / SHORT[prefix]).rglob(short)), short


def test_links_inside_the_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", text):
            linked = (document.parent / target).read_text(encoding="utf-8") if target else text
            headings = re.findall(r"(?m)^#+ (.*)$", linked)
            anchors = {
                re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in headings
            }
            assert anchor in anchors, f"{title(document)}: {target}#{anchor}"


def test_each_page_is_reached_from_the_index() -> None:
    waiting, reached = [ROOT / "docs" / "index.md"], set[Path]()
    while waiting:
        page = waiting.pop().resolve()
        if page not in reached:
            reached.add(page)
            links = re.findall(r"\]\(([\w./-]+\.md)[#)]", page.read_text(encoding="utf-8"))
            waiting += [page.parent / link for link in links]
    assert [title(path) for path in DOCUMENTS if path not in reached] == []


def test_excerpts_in_the_style_guide_are_what_the_tree_has() -> None:
    text = (ROOT / "docs" / "style.md").read_text(encoding="utf-8")
    excerpts = re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL)
    assert len(excerpts) == text.count("```python")
    for path, excerpt in excerpts:
        assert excerpt in (ROOT / path).read_text(encoding="utf-8"), path


def test_the_architecture_s_tree_has_every_room_and_no_other() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = text.partition("## Rooms")[2].partition("```text\n")[2].partition("```")[0]
    named: set[str] = set()
    path: list[str] = []
    for line in tree.splitlines():
        name = line.split("/ ")[0].strip()
        path[(len(line) - len(line.lstrip())) // 2 :] = [name]
        named.add("/".join(path))
    rooms = {
        str(init.parent.relative_to(ROOT))
        for folder in ("core", "gateway", "bridge")
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert named == rooms | {"spark", "loadtest", "src/motelog"}
