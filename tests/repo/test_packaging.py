"""What is installed: package list, typing files, names, and commands the README promises."""

from __future__ import annotations

import re
import runpy
import subprocess
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest

import motelog
from tests.support.repository import PACKAGES, ROOT, is_in_package, module_name, project_settings


def installed_names() -> dict[str, list[str]]:
    found = packages_distributions()
    if "motelog" not in found:
        pytest.skip("the project is not installed in this environment (make test installs it)")
    return dict(found)


def test_every_folder_with_modules_is_a_package() -> None:
    tree = {
        module_name(path.parent)
        for folder in PACKAGES
        for path in (ROOT / folder).rglob("__init__.py")
    }
    folders = {
        module_name(path.parent)
        for folder in PACKAGES
        for path in (ROOT / folder).rglob("*.py")
        if is_in_package(path)
    }
    assert folders <= tree


def test_each_folder_has_its_link_in_a_fresh_clone() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--stage", "src/motelog"], cwd=ROOT, capture_output=True, text=True
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    links = {line.split("\t")[1] for line in tracked.stdout.splitlines() if line[:6] == "120000"}
    assert links == {f"src/motelog/{folder}" for folder in PACKAGES if "/" not in folder}


def test_a_link_that_a_download_has_lost_is_made_anew(tmp_path: Path) -> None:
    pytest.importorskip("Cython", reason="needs the [dev] extra")
    setup = runpy.run_path(str(ROOT / "setup.py"))
    (tmp_path / "src" / "motelog").mkdir(parents=True)
    for folder in setup["FOLDERS"]:
        (tmp_path / folder).mkdir()
    (tmp_path / "src" / "motelog" / "core").write_text("../../core")
    setup["link_folders"].__globals__["ROOT"] = tmp_path
    setup["link_folders"]()
    for folder in setup["FOLDERS"]:
        assert (tmp_path / "src" / "motelog" / folder).resolve() == tmp_path / folder


def test_single_modules_are_the_ones_listed() -> None:
    listed = project_settings()["tool"]["setuptools"]["py-modules"]
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "src").glob("*.py"))


def test_our_names_belong_to_our_distribution_alone() -> None:
    names = installed_names()
    ours = {name for name, distributions in names.items() if "motelog" in distributions}
    assert ours == {"motelog", "pyspark_motelog"}
    for name in ours:
        assert set(names[name]) == {"motelog"}, name


def test_versions_agree() -> None:
    installed_names()
    assert version("motelog") == motelog.__version__
    assert project_settings()["project"]["version"] == motelog.__version__


def test_typing_files_and_sources_of_kernels_are_there_and_shipped() -> None:
    shipped = project_settings()["tool"]["setuptools"]["package-data"]["*"]
    assert {"py.typed", "*.pyi", "*.pyx", "*.pxd"} <= set(shipped)
    assert (ROOT / "src" / "motelog" / "py.typed").exists()


def test_a_source_distribution_holds_each_folder_once() -> None:
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    pruned = {line.removeprefix("prune ") for line in lines if line.startswith("prune ")}
    assert {folder for folder in PACKAGES if "/" not in folder} <= pruned


def test_lazy_names_are_all_there() -> None:
    for name in motelog.__all__:
        assert getattr(motelog, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        motelog.nothing  # noqa: B018  # the access is the test


def test_make_commands_that_the_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in ("README.md", "docs/quickstart.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        named = set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE))
        assert named <= targets, name
    assert {"run", "test"} <= set(
        re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    )


def test_readme_names_every_command() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    commands = set(re.findall(r"^## motelog ([a-z-]+)", page, re.MULTILINE))
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Commands\n")[2]
    quoted = " ".join(re.findall(r"`([a-z-]+(?: [a-z-]+)*)", table.partition("\n## ")[0]))
    assert {"pub", "up", "version"} <= commands
    assert commands <= set(quoted.split())


def test_every_toml_block_in_the_documents_parses() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for block in re.findall(r"```toml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            tomllib.loads(block)


def test_links_between_documents_lead_somewhere() -> None:
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} -> {target}"
