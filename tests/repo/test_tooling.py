"""What editors, forges and commits are told about this tree fits it."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import yaml

from tests.support.repository import ROOT

GO_MOD = ROOT / "tests" / "integration" / "clients" / "go" / "go.mod"


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_forge_runs_what_we_run() -> None:
    steps = read_yaml(".github/workflows/ci.yml")["jobs"]["run"]["steps"]
    assert steps[-1] == {"run": ".ci/run"}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_forge_and_container_have_the_go_that_our_clients_need() -> None:
    (needed,) = re.findall(r"^go (\d+\.\d+)", GO_MOD.read_text(encoding="utf-8"), re.MULTILINE)
    steps = read_yaml(".github/workflows/ci.yml")["jobs"]["run"]["steps"]
    assert needed in [step.get("with", {}).get("go-version") for step in steps]
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8"))
    features = container["features"]
    assert features["ghcr.io/devcontainers/features/go:1"]["version"] == needed


def test_a_commit_is_checked_as_make_does() -> None:
    (repository,) = read_yaml(".pre-commit-config.yaml")["repos"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hook in repository["hooks"]:
        command = hook["entry"].removesuffix(" --force-exclude").replace(".venv/bin", "$(BIN)")
        assert f"@{command}" in makefile
