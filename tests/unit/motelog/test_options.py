"""A command gets the options of its dataclasses, among its own, and is called with the values."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from motelog.cli.options import commands, takes_options

Host = Annotated[str, typer.Option(metavar="HOST")]


@dataclass(frozen=True, slots=True)
class Place:
    host: Host = "here"
    port: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answerer:
    place: Place
    is_deaf: bool = False


@takes_options
def ask(name: str, loud: bool = False, *, who: Answerer, json: bool = False) -> None:
    """Ask."""
    typer.echo(f"{name} {loud} {who.place.host}:{who.place.port} {who.is_deaf} {json}")


def test_they_stand_where_the_command_takes_them() -> None:
    names = ["name", "loud", "host", "port", "is_deaf", "json"]
    assert list(inspect.signature(ask).parameters) == names
    assert ask.__doc__ == "Ask."


def test_the_command_gets_their_values() -> None:
    group = commands("Ask and answer.")
    group.command()(ask)
    group.command("other")(lambda: None)
    told = CliRunner().invoke(group, ["ask", "who", "--port", "2", "--json"])
    assert (told.exit_code, told.stdout) == (0, "who False here:2 False True\n")
    assert "Ask and answer." in CliRunner().invoke(group, []).output
