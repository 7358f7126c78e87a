"""``motelog store``: inspect a store folder, stopped or in use; cut the log of a stopped one.

Owns: the text and JSON output. Must not touch: files (core.store.tools). The next start repairs the
store.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motelog.cli.options import commands
from motelog.cli.output import CliError, agreed, stop, table, write, write_json
from motelog.cli.status import Status

if TYPE_CHECKING:
    from motelog.core.store.state.recovery_report import RecoveryReport
    from motelog.core.store.tools.cut import Cut
    from motelog.core.store.tools.inspection import Progress, StoreFolder

store = commands("Inspect a store folder, or cut its log.")

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Store folder (it contains commitlog).")
]
Json = Annotated[bool, typer.Option("--json", help="JSON, one object per line.")]


@store.callback()
def group() -> None:
    """Inspect a store folder, stopped or in use. Only `cut` changes it."""


@store.command(epilog="Example: motelog store inspect motelog-data")
def inspect(directory: Directory, json: Json = False) -> None:
    """Show files, queues, checkpoint and whether the store is open."""
    with _opened(directory) as folder:
        process_id = folder.process_id()
        queues = [
            {"topic": topic, "queue_id": queue_id, "begin": q.begin_offset, "max": q.max_offset}
            for (topic, queue_id), q in sorted(folder.queues.items())
            if (topic, queue_id) not in folder.queue_faults
        ]
        facts: dict[str, Any] = {
            "directory": str(directory),
            "process_id": process_id,
            "stopped_cleanly": not folder.has_abort,
            "commitlog_files": len(folder.log.files),
            "commitlog_file_bytes": folder.log.file_bytes,
            "begin_offset": folder.begin_offset,
            "flushed_offset": folder.flushed_offset,
            "checkpoint_ms": folder.checkpoint.safe_ms,
            "complete_offset": folder.checkpoint.complete_offset,
            "index_files": [
                {"name": f.name, "entries": f.count - 1, "entries_max": f.entries - 1}
                for f in folder.index_files()
            ],
            "left_alone": [{"name": name, "what": what} for name, what in folder.left_alone()],
            "queues": queues,
        }
        if json:
            write_json(facts)
            return
        if process_id is not None:
            state = f"open in process {process_id}"
        else:
            state = "stopped cleanly" if not folder.has_abort else "not stopped cleanly"
        write(f"{directory}: {state}")
        write(
            f"commitlog: {len(folder.log.files)} files of {folder.log.file_bytes} bytes, "
            f"from physical offset {folder.begin_offset}"
        )
        write(f"flushed: on disk up to physical offset {folder.flushed_offset}")
        write(f"checkpoint: on disk up to {_time(folder.checkpoint.safe_ms)}")
        for file in facts["index_files"]:
            write(f"index: {file['name']} has {file['entries']} of {file['entries_max']} entries")
        for other in facts["left_alone"]:
            write(f"ignored: {other['name']} ({other['what']})")
        if queues:
            rows: list[tuple[str, ...]] = [("topic", "queue", "first unit", "end")]
            rows += [tuple(str(value) for value in queue.values()) for queue in queues]
            write(table(rows, right=frozenset({1, 2, 3})))


@store.command(epilog="Example: motelog store verify motelog-data --json")
def verify(directory: Directory, json: Json = False) -> None:
    """Check every record, every ConsumeQueue unit and the small files.

    The exit status is 1 if there is damage.
    """
    from motelog.core.store.tools.inspection import verify as verify_folder

    with _opened(directory) as folder, progress_of("checking the log") as progress:
        result = verify_folder(folder, progress)
    if json:
        write_json({"ok": not result.faults, **asdict(result)})
    else:
        for fault in result.faults:
            write(f"{fault.path}, byte {fault.offset_bytes}: {fault.problem}")
            write(f"  cost: {fault.cost}")
        count = len(result.faults)
        found = "nothing wrong" if not count else f"{count} fault{'s' if count > 1 else ''}"
        write(
            f"{found}: {result.records} records and {result.units} units up to physical offset "
            f"{result.end_offset}"
        )
    stop(Status.FAILED if result.faults else 0)


@store.command(epilog="Example: motelog store dump motelog-data --topic telemetry --count 5")
def dump(
    directory: Directory,
    topic: Annotated[str | None, typer.Option(help="Records of this topic only.")] = None,
    queue: Annotated[int | None, typer.Option(help="Records of this queue id only.")] = None,
    begin: Annotated[int, typer.Option("--from", help="Physical offset to begin at.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="At most this many records.")] = 100,
    json: Json = False,
) -> None:
    """Print records in the order of the log; skip damage between them."""
    from motelog.core.store.tools.inspection import records

    with _opened(directory) as folder:
        left = count
        for message in records(folder, begin):
            if topic not in (None, message.topic) or queue not in (None, message.queue_id):
                continue
            _write_message(message, json)
            left -= 1
            if not left:
                return


def _write_message(message: Any, json: bool) -> None:
    if json:
        write_json(
            {
                "physical_offset": message.physical_offset,
                "topic": message.topic,
                "queue_id": message.queue_id,
                "queue_offset": message.queue_offset,
                "store_timestamp_ms": message.store_timestamp_ms,
                "born_timestamp_ms": message.born_timestamp_ms,
                "properties": message.properties,
                "stored_bytes": message.stored_bytes,
                "body": message.body.decode(errors="backslashreplace"),
            }
        )
        return
    body = message.body[:80].decode(errors="backslashreplace")
    write(
        f"{message.physical_offset} {message.topic}/{message.queue_id} {message.queue_offset} "
        f"{_time(message.store_timestamp_ms)} {_printable(body)}"
    )


@store.command(epilog="Example: motelog store repair motelog-data --dry-run")
def repair(
    directory: Directory,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Required: only the broker repairs a store, when it starts."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Print what the next start would find and do.

    The exit status is 1 if messages would be lost.
    """
    from motelog.core.store.tools.inspection import plan_repair

    if not dry_run:
        raise CliError(
            "the broker repairs the store at its next start; this command only says how",
            remedy="add --dry-run",
            status=Status.USAGE,
        )
    with _opened(directory) as folder:
        process_id = folder.process_id()
        report, steps = plan_repair(folder)
    if json:
        write_json({"process_id": process_id, **asdict(report), "steps": steps})
        stop(Status.FAILED if report.damage else 0)
    if process_id is not None:
        write(f"the store is open in process {process_id}; if that died, a start would do this")
    _write_repair(report, steps)
    stop(Status.FAILED if report.damage else 0)


def _write_repair(report: RecoveryReport, steps: list[tuple[str, str]]) -> None:
    kind = "the last CommitLog file" if report.was_clean else "the log since the checkpoint"
    write(f"reads {kind}, from physical offset {report.scanned_from}: {report.records} records")
    for damage in report.damage:
        write(
            f"{damage.path}, byte {damage.offset_bytes}: {damage.size} bytes are not records "
            f"({damage.reason}); their messages are lost, their queue offsets are not used again"
        )
    if report.given_up_records:
        write(
            f"gives up {report.given_up_records} records, {report.given_up_bytes} bytes, after "
            "the log's end: they were not on disk yet, and a record before them is lost"
        )
    if report.cut_bytes:
        write(f"zeroes {report.cut_bytes} bytes of an unfinished write at the log's end")
    for word, keys in (
        ("corrects units of", report.repaired_queues),
        ("rebuilds", report.rebuilt_queues),
    ):
        for topic, queue_id in keys:
            write(f"{word} {topic}/{queue_id}; no message is lost")
    if report.index_fault:
        write(f"rebuilds the index from physical offset {report.index_from}; no message is lost")
        write(f"  {report.index_fault}")
    for path in report.moved_aside:
        write(f"keeps the bytes in {path} for inspection")
    for step, path in steps:
        if step in ("remove", "move"):
            write(f"{step}s {path}")
    write(f"the log ends at physical offset {report.end_offset}")


@dataclass(slots=True)
class _Counts:
    records: int = 0
    bytes: int = 0
    body_bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0


@store.command(epilog="Example: motelog store stats motelog-data")
def stats(directory: Directory, json: Json = False) -> None:
    """Count records and bytes of each topic."""
    from motelog.core.store.tools.inspection import records

    topics: defaultdict[str, _Counts] = defaultdict(_Counts)
    with _opened(directory) as folder, progress_of("reading the log") as progress:
        for message in records(folder, 0, progress):
            counts = topics[message.topic]
            counts.first_ms = counts.first_ms or message.store_timestamp_ms
            counts.last_ms = message.store_timestamp_ms
            counts.records += 1
            counts.bytes += message.stored_bytes
            counts.body_bytes += len(message.body)
    if json:
        write_json({"topics": {topic: asdict(topics[topic]) for topic in sorted(topics)}})
        return
    rows = [("topic", "records", "bytes", "body bytes", "first", "last")]
    for topic in sorted(topics):
        counts = topics[topic]
        rows.append(
            (
                topic, str(counts.records), str(counts.bytes), str(counts.body_bytes),
                _time(counts.first_ms), _time(counts.last_ms),
            )
        )  # fmt: skip
    write(table(rows, right=frozenset({1, 2, 3})))


@store.command(epilog="Example: motelog store cut motelog-data --at 1073741824 --dry-run")
def cut(
    directory: Directory,
    at: Annotated[int, typer.Option("--at", min=0, help="Physical offset where the log will end.")],
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Cut nothing; print what would be cut.")
    ] = False,
    is_agreed: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Cut the end of a stopped store's log, so that it can follow a log that went on otherwise.

    The offset must be a place between two records. The bytes are kept in the folder's damaged
    directory; the next start takes their messages out of queues and index.
    """
    from motelog.core.errors import StoreCutError
    from motelog.core.store.tools import cut as tool

    try:
        with _opened(directory) as folder, progress_of("reading the log") as progress:
            found = tool.plan(folder, at, progress)
        is_done = not is_dry_run and found.end_offset > at
        if is_done:
            agreed(is_agreed, f"cut {found.records} records off the log of {directory}")
            found = tool.cut(str(directory), at)
    except StoreCutError as exc:
        raise CliError(str(exc), status=Status.USAGE) from exc
    except OSError as exc:
        raise CliError(f"{exc.filename or 'a file'} cannot be changed: {exc.strerror}") from exc
    if json:
        write_json({"is_done": is_done, **asdict(found), "bytes": found.end_offset - at})
    else:
        _write_cut(found, is_done)


def _write_cut(found: Cut, is_done: bool) -> None:
    size = found.end_offset - found.offset
    if not size:
        write(f"the log ends at physical offset {found.offset}: there is nothing to cut")
        return
    stored = f", stored from {_time(found.first_ms)} to {_time(found.last_ms)}"
    write(
        f"{'cut' if is_done else 'would cut'} {found.records} records, {size} bytes"
        f"{stored if found.records else ''}"
    )
    if found.topics:
        rows = [
            ("topic", "records"),
            *((topic, str(n)) for topic, n in sorted(found.topics.items())),
        ]
        write(table(rows, right=frozenset({1})))
    for path in found.kept_in:
        write(f"kept in {path}")
    if is_done:
        write(f"the log ends at physical offset {found.offset}")


@contextmanager
def _opened(directory: Path) -> Iterator[StoreFolder]:
    from motelog.core.errors import StoreError
    from motelog.core.store.tools.inspection import StoreFolder

    try:
        folder = StoreFolder(str(directory))
    except StoreError as exc:
        remedy = "`motelog dev` keeps its store in ./motelog-data, or where --data says"
        raise CliError(str(exc), remedy=remedy, status=Status.NOT_FOUND) from exc
    try:
        yield folder
    except BrokenPipeError:
        raise  # of the output: its reader has closed the pipe
    except OSError as exc:
        raise CliError(
            f"a file of the store cannot be read: {exc}",
            remedy="look for disk errors in the kernel's log (dmesg)",
            status=Status.FAILED,
        ) from exc
    finally:
        folder.close()


@contextmanager
def progress_of(text: str) -> Iterator[Progress]:
    """Show a progress bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _time(ms: int) -> str:
    if not 0 < ms < 253_402_300_800_000:
        return "an unknown time"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _printable(text: str) -> str:
    """Return the text with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
