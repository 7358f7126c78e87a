"""What the documents name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
# In docs/store.md names without a folder are short for files in these.
SHORT = {"test_": "tests/unit/core/store", "": "core/store"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_and_commands_that_a_document_names_are_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:core|gateway|bridge|spark|src|loadtest|tests)/[\w./-]+)`", text):
        # A kernel is named by the stem of its files.
        assert (ROOT / name).exists() or list(ROOT.glob(f"{name}.*")), name
    for module in re.findall(r"python -m (tests[\w.]+)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_short_names_of_the_store_s_document_are_there() -> None:
    text = (ROOT / "docs" / "store.md").read_text(encoding="utf-8")
    for name in re.findall(r"`(\w+\.py)`", text):
        prefix = "test_" if name.startswith("test_") else ""
        assert any((ROOT / SHORT[prefix]).rglob(name)), name


def test_links_inside_the_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", text):
            linked = (document.parent / target).read_text(encoding="utf-8") if target else text
            headings = re.findall(r"(?m)^#+ (.*)$", linked)
            anchors = {
                re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in headings
            }
            assert anchor in anchors, f"{document.name}: {target}#{anchor}"
