"""``motelog backup``: back up a store while it runs, verify and restore backups.

Owns: the text and JSON output. Must not touch: what is copied (core.store.tools.backup).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motelog.cli.admin import Json, time_text
from motelog.cli.options import commands
from motelog.cli.output import CliError, stop, write, write_json
from motelog.cli.status import Status
from motelog.cli.store import progress_of

if TYPE_CHECKING:
    from motelog.core.store.tools.backup import Backup

backup = commands("Back up a store while it runs, verify and restore backups.")

Store = Annotated[Path, typer.Argument(metavar="DIR", help="Store folder (it contains commitlog).")]
Folder = Annotated[Path, typer.Argument(metavar="BACKUP", help="Folder of the backup.")]


@backup.callback()
def group() -> None:
    """Back up a store while it runs, verify and restore backups."""


@backup.command(epilog="Example: motelog backup create /var/lib/motelog /backup/2026-11-23")
def create(store: Store, folder: Folder, json: Json = False) -> None:
    """Copy a store, running or stopped, to a folder that is empty or does not exist.

    The backup contains every message that was acknowledged before it began.
    """
    from motelog.core.store.tools import backup as tool

    _find(store)
    with _errors(), progress_of("copying the log") as progress:
        made = tool.create(str(store), str(folder), progress)
    _tell(made, folder, json)


@backup.command(epilog="Example: motelog backup verify /backup/2026-11-23")
def verify(folder: Folder, json: Json = False) -> None:
    """Read a whole backup and say whether a store can be restored from it.

    The exit status is 1 if it cannot.
    """
    from motelog.core.store.tools import backup as tool

    _find(folder)
    with _errors(), progress_of("reading the backup") as progress:
        made = tool.read_list(str(folder))
        faults = tool.verify(str(folder), progress)
    if json:
        write_json({"ok": not faults, "faults": faults, **_values(made)})
    else:
        for fault in faults:
            write(fault)
        if not faults:
            _tell(made, folder, json=False)
    stop(Status.FAILED if faults else Status.DONE)


@backup.command(epilog="Example: motelog backup restore /backup/2026-11-23 /var/lib/motelog")
def restore(folder: Folder, store: Store, json: Json = False) -> None:
    """Restore a backup into a folder that is empty or does not exist.

    The next start recovers the store as after a crash; its log ends where the backup ends.
    """
    from motelog.core.store.tools import backup as tool

    _find(folder)
    with _errors(), progress_of("copying the backup") as progress:
        made = tool.restore(str(folder), str(store), progress)
    _tell(made, store, json)


def _values(made: Backup) -> dict[str, Any]:
    return {
        "store": made.store,
        "began_ms": made.began_ms,
        "ended_ms": made.ended_ms,
        "begin_offset": made.begin_offset,
        "end_offset": made.end_offset,
        "files": len(made.files),
    }


def _tell(made: Backup, folder: Path, json: bool) -> None:
    if json:
        write_json(_values(made))
        return
    write(
        f"{folder}: the log from physical offset {made.begin_offset} to {made.end_offset} of"
        f" {made.store}, as it was at {time_text(made.began_ms)}; {len(made.files)} files"
    )


def _find(folder: Path) -> None:
    """CliError if there is no such folder to read from."""
    if not folder.is_dir():
        raise CliError(f"there is no folder {folder}", status=Status.NOT_FOUND)


@contextmanager
def _errors() -> Iterator[None]:
    from motelog.core.errors import StoreError

    try:
        yield
    except StoreError as exc:
        raise CliError(str(exc), status=Status.FAILED) from exc
    except OSError as exc:
        raise CliError(f"{exc.filename or 'a file'} cannot be used: {exc.strerror}") from exc
