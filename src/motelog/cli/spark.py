"""``motelog spark``: the included Spark jobs, and reports on their runs.

Owns: the commands' options, output and exit statuses. Must not touch: what a job does, what a
report contains (spark).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from motelog.cli.options import commands
from motelog.cli.output import CliError, stop, table, write, write_error, write_json

if TYPE_CHECKING:
    import threading

# A job that takes longer to stop after Ctrl-C is abandoned. Its checkpoint holds its progress.
STOP_WITHIN_S = 10.0

spark = commands("Run Spark jobs on messages.")


@spark.callback()
def group() -> None:
    """Run Spark jobs on messages."""


@spark.command("list", epilog="Example: motelog spark list")
def list_jobs(
    json: Annotated[bool, typer.Option("--json", help="JSON, one object per line.")] = False,
) -> None:
    """List the included jobs."""
    from motelog.spark.run import JOBS

    if json:
        for name, (_, text) in JOBS.items():
            write_json({"job": name, "does": text})
        return
    write(table([(name, text) for name, (_, text) in JOBS.items()]))


@spark.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    },
    epilog="Example: motelog spark run device-minutes --help",
)
def run(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of a job, from: motelog spark list")
    ],
) -> None:
    """Run a job. Options after its name belong to the job (try --help)."""
    import difflib

    from motelog.cli.tools import find_java, has_pyspark, install_command
    from motelog.spark import run as jobs
    from motelog.spark.errors import JobUsageError

    if name in ("-h", "--help"):
        write(context.get_help())
        stop(0)
    if name not in jobs.JOBS:
        close = difflib.get_close_matches(name, jobs.JOBS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the jobs are: {', '.join(jobs.JOBS)}"
        raise CliError(f"there is no Spark job {name!r}", remedy=hint, status=2)
    # --help and wrong options end here, whether or not Spark is installed.
    try:
        jobs.parser(name).parse(context.args)
    except JobUsageError as exc:
        see = f"see: motelog spark run {name} --help"
        raise CliError(str(exc), remedy=see, status=2) from exc
    if not has_pyspark():
        raise CliError("pyspark is not installed", remedy=install_command("spark"))
    if find_java() is None:
        raise CliError("Spark needs Java 17 or 21", remedy="apt install openjdk-17-jre-headless")
    stop(run_until_interrupt(lambda wanted: jobs.run(name, context.args, wanted), name))


@spark.command(epilog="Example: motelog spark report checkpoints --output report.html")
def report(
    folder: Annotated[
        Path, typer.Argument(help="A job's --checkpoint folder, or a file of progress events.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The HTML page; an existing one is replaced.")
    ] = Path("report.html"),
    json: Annotated[bool, typer.Option("--json", help="One JSON object, and no page.")] = False,
) -> None:
    """Write an HTML page with rates, lag and devices of a job's runs; it works offline."""
    from motelog.spark.report import NoRecordError, read_report
    from motelog.spark.report_page import page

    try:
        found = read_report(folder)
    except NoRecordError as exc:
        remedy = "name the --checkpoint folder of: motelog spark run NAME"
        raise CliError(str(exc), remedy=remedy) from exc
    if json:
        write_json(found.as_json())
        return
    try:
        output.write_text(page(found), encoding="utf-8")
    except OSError as exc:
        raise CliError(f"{output}: {exc.strerror}") from exc
    write(f"{output}: {len(found.batches):,} batches of {found.job}")


def run_until_interrupt(
    job: Callable[[threading.Event], int], name: str, *, stop_within_s: float = STOP_WITHIN_S
) -> int:
    """Return the exit status of a job; at Ctrl-C print a line, set the job's event, and wait.

    The job runs in its own thread. In the main thread pyspark would handle SIGINT and raise
    KeyboardInterrupt in the middle of calls to the JVM, which log it and do not survive it.
    """
    import os
    import threading

    from motelog.cli.status import Status

    statuses: list[int] = []
    errors: list[BaseException] = []
    wanted, done = threading.Event(), threading.Event()

    def work() -> None:
        try:
            statuses.append(job(wanted))
        except BaseException as exc:  # raised again below, in the caller's thread
            errors.append(exc)
        finally:
            done.set()

    try:
        threading.Thread(target=work, name=name, daemon=True).start()
        done.wait()
    except KeyboardInterrupt:
        write_error(f"{name} is interrupted and stops")
        wanted.set()
        if not done.wait(stop_within_s):
            # A normal exit would wait for what pyspark does in that thread. The JVM ends by itself
            # when this process is gone.
            os._exit(Status.INTERRUPTED)
        return Status.INTERRUPTED
    if errors:
        raise errors[0]
    return statuses[0]
