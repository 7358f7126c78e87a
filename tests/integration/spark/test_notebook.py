"""The cells of docs/telemetry.ipynb, in order, show what their text says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

NOTEBOOK = Path(__file__).resolve().parents[3] / "docs/telemetry.ipynb"


@pytest.mark.usefixtures("spark_session")
def test_the_notebook_shows_what_was_sent(
    namesrv: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert len(cells) == 10
    assert not any(cell.get("outputs") for cell in cells), "outputs are not kept"
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] == "code":
            text = "".join(cell["source"]).replace("127.0.0.1:9876", namesrv)
            exec(compile(text, f"docs/telemetry.ipynb, cell {number}", "exec"), names)
    shown = capsys.readouterr().out
    assert len(re.findall(r"\| *dev[0-4]\| +200\|", shown)) == 5
    assert re.search(r"\|dev4 +\|.*\|\[7B 22 76", shown), "the body that is cut short"
    ((name, body),) = re.findall(r"\|(fleet-alerts/\w+/high) *\|(.*?) *\|", shown)
    assert (name, json.loads(body)["value"]) == ("fleet-alerts/dev3/high", 99.0)
    assert re.search(r"\|\d{4}-\d\d-\d\d\| *1000\|", shown), "the lake"
    assert names["report"]["messages"] == 1000
