"""Figures of the store that have a command of their own: recovery, many queues, write buffer.

Each runs in a process of its own; its JSON output becomes figures here.
"""

from __future__ import annotations

from typing import Any

from motelog.loadtest.bench.report import run_json
from motelog.loadtest.bench.store.figures import Figure, Options

RECOVERY_GB = 2.0
RECOVERY_S = 2.0
RECOVERY_S_PER_GB = 1.0
DESCRIPTORS_MAX = 20_000
MEMORY_BYTES_MAX = 1e9


def run_recovery(options: Options) -> list[Figure]:
    gigabytes = 0.005 if options.quick else RECOVERY_GB
    report = run_json("recovery", f"--gb={gigabytes}", f"--folder={options.folder}")
    return [
        start(report[cache], f"start after a kill, {gigabytes:g} GB {where}")
        for cache, where in (("cached", "in the page cache"), ("cold", "on the disk alone"))
    ]


def start(found: dict[str, Any], name: str) -> Figure:
    """Return the figure of one start that ``motelog.loadtest.bench.recovery`` has measured."""
    return Figure(
        name,
        found["start_s"],
        "s",
        # A few megabytes may take less time than the two printed digits show.
        floor=found["read_s"] or None,
        floor_name="read() of the log",
        goal=RECOVERY_S + RECOVERY_S_PER_GB * found["bytes"] / 1e9,
        less_is_better=True,
        details={"cpu_s": found["start_cpu_s"], "records": found["records"]},
    )


def run_queues(options: Options) -> list[Figure]:
    """Return the cost of 50,000 queues beside 8, and the memory for all of them."""
    size = ("--queues=100", "--rounds=2") if options.quick else ("--queues=50000",)
    found = run_json("store.queues", *size, "--json", f"--folder={options.folder}")
    many, few, name = found["many"], found["few"], f"{found['queues']:,} queues"
    return [
        Figure(
            f"{name}, append",
            1e9 / many["ns_per_record"],
            "records per CPU second",
            floor=1e9 / few["ns_per_record"],
            floor_name="over 8 queues",
            details={
                "checkpoint_s": many["checkpoint_s"],
                "read_a_queue_us": found["read_queue_us"],
            },
        ),
        Figure(
            f"{name}, memory",
            found["memory_bytes"] / 1e6,
            "MB",
            goal=MEMORY_BYTES_MAX / 1e6,
            less_is_better=True,
            details={"bytes_of_an_idle_queue": found["idle_queue_bytes"]},
        ),
        Figure(
            f"{name}, descriptors",
            found["descriptors"],
            "at once",
            goal=DESCRIPTORS_MAX,
            less_is_better=True,
            details={"maps": found["maps"]},
        ),
        Figure(
            f"{name}, start after a kill",
            found["start_after_kill_s"],
            "s",
            less_is_better=True,
            details={"after_a_stop_s": found["start_after_stop_s"], "stop_s": found["stop_s"]},
        ),
    ]


def run_write_buffer(options: Options) -> list[Figure]:
    """Return how long appends delay the event loop, for each load and way of writing."""
    size = (
        ("--seconds=0.1", "--rounds=1", "--file-mb=4", "--mb-per-s=20")
        if options.quick
        else ("--seconds=5",)
    )
    report = run_json("write_buffer", *size, f"--folder={options.folder}")
    figures = []
    for load, found in report["loads"].items():
        floor, ways = found["floor"], ("mapped", "touched ahead", "write buffer")
        figures += [
            Figure(
                f"append of 20 KiB at {load}, {way}, p99.9",
                one["append_us_p99.9"],
                "us",
                floor=floor["append_us_p99.9"],
                floor_name="encoded into memory",
                less_is_better=True,
                details={
                    "p50_us": one["append_us_p50"],
                    "p99_us": one["append_us_p99"],
                    "max_us": one["append_us_max"],
                    "processor_share": one["processor_share"],
                },
            )
            for way, one in ((way, found[way]) for way in ways)
        ]
    return figures
