"""``motelog spark run``: the Spark jobs that are shipped."""

from __future__ import annotations

from typing import Annotated

import typer

from motelog.cli.output import CliError, stop, write

spark = typer.Typer(
    help="Run Spark jobs on messages.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@spark.callback()
def group() -> None:
    """Run Spark jobs on messages."""


@spark.command("jobs")
def list_jobs() -> None:
    """List the shipped jobs."""
    from motelog.spark.run import JOBS

    for name, (_, text) in JOBS.items():
        write(f"{name}  {text}")


@spark.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
)
def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from: motelog spark jobs")],
) -> None:
    """Run a job. Options after its name are the job's own (try --help)."""
    import difflib

    from motelog.cli.tools import find_java, has_pyspark
    from motelog.spark import run as jobs

    if name in ("-h", "--help"):
        write(context.get_help())
        stop(0)
    if name not in jobs.JOBS:
        close = difflib.get_close_matches(name, jobs.JOBS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(jobs.JOBS)}"
        raise CliError(f"no Spark job is called {name!r}", remedy=hint, status=2)
    if not has_pyspark():
        raise CliError("pyspark is not installed", remedy="pip install 'motelog[spark]'")
    if find_java() is None:
        raise CliError("Spark needs Java 17 or 21", remedy="apt install openjdk-17-jre-headless")
    stop(jobs.run(name, context.args))
