"""How errors end the command line: message, exit status, and what stays a traceback."""

from __future__ import annotations

import pytest

from motelog.cli import main as main_module
from motelog.cli.output import CliError, table
from motelog.core.errors import ConfigError, StoreLockedError


def end(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def fail(prog_name: str) -> None:
        raise error

    monkeypatch.setattr(main_module, "app", fail)
    with pytest.raises(SystemExit) as caught:
        main_module.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (
            ConfigError("f.toml:1: a"),
            78,
            "motelog: the configuration cannot be used\nf.toml:1: a\n",
        ),
        (CliError("what", remedy="do this", status=2), 2, "motelog: what\n  do this\n"),
        (StoreLockedError("in use"), 1, "motelog: in use\n"),
        (ExceptionGroup("n", [ExceptionGroup("m", [CliError("deep")])]), 1, "motelog: deep\n"),
        (KeyboardInterrupt(), 130, ""),
        (BaseExceptionGroup("n", [CliError("then"), KeyboardInterrupt()]), 130, ""),
    ],
)
def test_error_raised_on_purpose_ends_in_one_message(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    text: str,
) -> None:
    assert end(monkeypatch, error) == status
    assert capsys.readouterr().err == text


def test_unexpected_error_stays_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(prog_name: str) -> None:
        raise ExceptionGroup("n", [ZeroDivisionError()])

    monkeypatch.setattr(main_module, "app", fail)
    with pytest.raises(ExceptionGroup):
        main_module.main()


def test_every_command_has_its_file() -> None:
    group = main_module.LazyGroup()
    for name in main_module.COMMANDS:
        assert group.get_command(None, name) is not None  # type: ignore[arg-type]  # not looked at


def test_table_aligns_columns() -> None:
    rows = [("name", "count"), ("a", "1"), ("longer", "10")]
    assert table(rows, right=frozenset({1})) == "name    count\na           1\nlonger     10"
