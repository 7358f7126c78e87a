"""How errors end the command line: message, exit status, and what stays a traceback."""

from __future__ import annotations

import re

import pytest

from motelog.bridge.errors import (
    FilterError,
    MessageRefusedError,
    NoNameServerError,
    RouteError,
    SendFailedError,
)
from motelog.cli import main as main_module
from motelog.cli.output import CliError, table
from motelog.cli.status import Status, status_of
from motelog.core.errors import (
    BrokerError,
    ConfigError,
    MotelogError,
    RemotingConnectError,
    RemotingTimeoutError,
    StoreError,
    StoreFolderError,
    StoreHalfRestoredError,
    StoreLockedError,
)
from tests.support.repository import ROOT


def end(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def fail(prog_name: str, *, standalone_mode: bool) -> None:
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
        (StoreError("broken"), 1, "motelog: broken\n"),
        (
            StoreLockedError("in use"),
            1,
            "motelog: in use\n"
            "  stop that process, or keep messages elsewhere: motelog dev --data DIR\n",
        ),
        (ExceptionGroup("n", [ExceptionGroup("m", [CliError("deep")])]), 1, "motelog: deep\n"),
        (KeyboardInterrupt(), 130, "motelog: interrupted\n"),
        (
            BaseExceptionGroup("n", [CliError("then"), KeyboardInterrupt()]),
            130,
            "motelog: interrupted\n",
        ),
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


def lost(cause: Exception) -> SendFailedError:
    error = SendFailedError("m", attempts=("a",))
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MessageRefusedError("m"), Status.USAGE),
        (FilterError("m"), Status.USAGE),
        (RouteError("m", topic="t"), Status.NOT_FOUND),
        (NoNameServerError("m"), Status.UNREACHABLE),
        (RemotingConnectError("m"), Status.UNREACHABLE),
        (RemotingTimeoutError("m"), Status.TIME),
        (BrokerError(2, "busy"), Status.REFUSED),
        (lost(BrokerError(2, "busy")), Status.REFUSED),
        (lost(NoNameServerError("m")), Status.UNREACHABLE),
        (SendFailedError("m", attempts=()), Status.TIME),
        (StoreFolderError("m"), Status.CONFIG),
        (StoreHalfRestoredError("m"), Status.CONFIG),
        (StoreError("m"), Status.FAILED),
    ],
)
def test_errors_that_no_command_translates_have_a_status(
    error: MotelogError, status: Status
) -> None:
    assert status_of(error)[0] == status


def test_the_table_for_users_is_the_one_in_the_code() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([a-z ]+) \|", text, re.MULTILINE)
    assert [(int(number), name) for number, name in rows] == [
        (status.value, status.name.lower().replace("_", " ")) for status in Status
    ]


def test_unexpected_error_stays_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(prog_name: str, *, standalone_mode: bool) -> None:
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
