"""Options that commands share stand among a command's own, and arrive as what is made of them."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer
from typer.testing import CliRunner

from motelog.cli.options import commands, taking

Host = Annotated[str, typer.Option(metavar="HOST")]


def place(host: Host = "here", port: int = 1) -> str:
    return f"{host}:{port}"


@taking(place)
def ask(name: str, loud: bool = False, *, place: str, json: bool = False) -> None:
    """Ask."""
    typer.echo(f"{name} {loud} {place} {json}")


def test_they_stand_where_the_command_takes_them() -> None:
    assert list(inspect.signature(ask).parameters) == ["name", "loud", "host", "port", "json"]
    assert ask.__doc__ == "Ask."


def test_the_command_gets_what_is_made_of_them() -> None:
    group = commands("Ask and answer.")
    group.command()(ask)
    group.command("other")(lambda: None)
    told = CliRunner().invoke(group, ["ask", "who", "--port", "2", "--json"])
    assert (told.exit_code, told.stdout) == (0, "who False here:2 True\n")
    assert "Ask and answer." in CliRunner().invoke(group, []).output
