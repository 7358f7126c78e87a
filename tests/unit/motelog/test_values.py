"""How the command line reads values: what they become, and the words for those that are wrong."""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from motelog.cli.values import Reader, read_plainly


class Colour(StrEnum):
    RED = "red"
    DARK_BLUE = "dark-blue"


app = typer.Typer(rich_markup_mode=None)
taken: dict[str, Any] = {}


@app.callback()
def root() -> None:
    """Have commands below."""


@app.command()
def paint(
    place: Annotated[Path, typer.Argument(help="Where.")],
    colour: Annotated[Colour, typer.Option(help="Which.")] = Colour.RED,
    count: Annotated[int, typer.Option(min=1, max=9, help="How often.")] = 1,
    width: Annotated[float | None, typer.Option(help="How wide.")] = None,
    word: Annotated[list[str] | None, typer.Option(help="Words.")] = None,
    number: Annotated[list[int] | None, typer.Option(help="Numbers.")] = None,
    envied: Annotated[int, typer.Option(envvar="TEST_ENVIED", help="From outside.")] = 3,
    is_wet: Annotated[bool, typer.Option("--wet/--dry", help="Wet.")] = True,
) -> None:
    """Paint."""
    taken.update(locals())


def run(*arguments: str) -> dict[str, Any]:
    command = typer.main.get_command(app)
    read_plainly(command)
    taken.clear()
    command(["paint", *arguments], prog_name="test", standalone_mode=False)
    return dict(taken)


def test_defaults_are_what_the_function_says() -> None:
    assert run("here") == {
        "place": Path("here"), "colour": Colour.RED, "count": 1, "width": None, "word": None,
        "number": None, "envied": 3, "is_wet": True,
    }  # fmt: skip


def test_texts_become_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ENVIED", "17")
    found = run(
        "here", "--colour", "dark-blue", "--count", "9", "--width", "1e3", "--word", "a", "--word",
        "", "--number", "5", "--dry",
    )  # fmt: skip
    assert found == {
        "place": Path("here"), "colour": Colour.DARK_BLUE, "count": 9, "width": 1000.0,
        "word": ["a", ""], "number": [5], "envied": 17, "is_wet": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["here", "--colour", "Red"], "'Red' is not red or dark-blue"),
        (["here", "--count", "0"], "'0' is not a whole number from 1 to 9"),
        (["here", "--count", "1.5"], "'1.5' is not a whole number from 1 to 9"),
        (["here", "--width", "wide"], "'wide' is not a number"),
        (["here", "--width", "nan"], "'nan' is not a number"),
        (["here", "--number", "1", "--number", "x"], "'x' is not a whole number"),
        ([], "Missing argument 'PLACE'"),
        (["here", "--colur", "red"], "--colour"),
    ],
)
def test_wrong_values_are_refused_in_plain_words(arguments: list[str], text: str) -> None:
    with pytest.raises(typer.BadParameter.__bases__[0]) as caught:
        run(*arguments)
    assert text in caught.value.format_message()  # type: ignore[attr-defined]  # no public type
    assert not taken


def test_bounds_are_said_as_they_are() -> None:
    for low, high, text in (
        (None, None, "a number"),
        (0.5, None, "a number of at least 0.5"),
        (None, 4294967295, "a number of at most 4294967295"),
        (-1, 65535, "a number from -1 to 65535"),
    ):
        with pytest.raises(ValueError, match=f"'x' is not {text}$"):
            Reader(float, low, high).read("x")


def test_help_says_bounds_in_plain_words() -> None:
    command = typer.main.get_command(app)
    read_plainly(command)
    text = command.commands["paint"].get_help(  # type: ignore[attr-defined]  # a group has them
        command.make_context("test", ["paint"], resilient_parsing=True)
    )
    assert "How often.  [default: 1; from 1 to 9]" in text
    assert "  PLACE  Where." in text
    assert Reader(float, 0.5).range_text() == "at least 0.5"
    assert Reader(float, None, 5).range_text() == "at most 5"
    assert Reader(float).range_text() == ""


def test_a_command_starts_without_what_typer_would_import_for_its_values() -> None:
    program = (
        "import sys; sys.argv[1:] = ['config', 'check', 'none.toml', '--json']\n"
        "from motelog.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    heavy = {'pydantic', 'rich', 'trio', 'numpy', 'asyncio'} & set(sys.modules)\n"
        "    print('heavy:', *sorted(heavy))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 78
    assert result.stdout.splitlines()[-1] == "heavy:"
