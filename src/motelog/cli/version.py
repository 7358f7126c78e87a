"""``motelog version``: the release, and whether its kernels are compiled."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

from motelog import __version__
from motelog.cli.output import write, write_json


def version(json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """Show the version, Python, and whether the kernels are compiled."""
    from motelog.cli.kernels import kernel_states

    kernels = kernel_states()
    if json:
        write_json(
            {"version": __version__, "python": platform.python_version(), "kernels": kernels}
        )
        return
    write(f"motelog {__version__}")
    write(f"python {platform.python_version()}")
    for name, state in kernels.items():
        write(f"kernel {name}: {state}")
