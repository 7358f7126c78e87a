"""``motelog demo``: runs the whole path once and says whether any message was lost.

Owns: its options, the table, the verdict. Must not touch: the counting (motelog.cli.demo_run).
"""

from __future__ import annotations

from typing import Annotated

import typer

from motelog.cli.output import stop, table, write, write_json


def demo(
    devices: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of simulated devices.")
    ] = 50,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long they publish.")] = 10.0,
    rate: Annotated[
        float, typer.Option(min=0.1, help="Messages per second of each device.")
    ] = 20.0,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Read with Spark too, if Java is installed.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="One JSON object at the end.")] = False,
) -> None:
    """Run devices, broker, consumer and Spark briefly and compare what each has seen.

    The exit status is 0 only if every message was acknowledged, stored and read by each reader.
    """
    from motelog.cli.demo_run import DemoOptions, run_demo

    say = (lambda text: None) if json else write
    report = run_demo(DemoOptions(devices, seconds, rate, spark), say)
    if json:
        write_json(report.as_json())
        stop(0 if report.agrees else 1)
    rows = [
        (step.name, f"{step.messages:,}", f"{step.devices:,}", step.verdict)
        for step in report.steps
    ]
    rows.insert(0, ("step", "messages", "devices", "checksums"))
    write()
    write(table(rows, right=frozenset({1, 2})))
    if report.spark_skipped is not None:
        write(f"Spark was not run: {report.spark_skipped}")
    write()
    if report.agrees:
        write("Every message that was sent was acknowledged, stored and read. No message was lost.")
    else:
        for difference in report.differences:
            write(difference)
        write("The counts differ.")
    stop(0 if report.agrees else 1)
