"""``motelog support-bundle``: one file with diagnostics for support, without secrets.

Owns: what the file contains. Must not touch: what is a secret (``secrets``).
"""

from __future__ import annotations

import io
import json as json_module
import os
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from motelog.cli.admin import ADMIN, Admin
from motelog.cli.output import CliError, write, write_json
from motelog.core.private_files import open_private

LOG_LINES = 5000
LOG_BYTES_MAX = 4 << 20
#: The admin API's answers: name in the bundle -> path.
ASKED = {
    "status.json": "/status",
    "ready.json": "/health/ready",
    "config-running.json": "/api/v1/config",
    "metrics.txt": "/metrics",
}


def support_bundle(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="[default: motelog-support-TIME.tar.gz here]"
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The server's TOML file.")
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A log file; its last 5000 lines are included. May be repeated."
        ),
    ] = None,
    admin: Admin = ADMIN,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Collect diagnostics for support in one file: versions, configuration, state, logs.

    Secrets are removed: values of secret keys, all that is in password, account, token and key
    files, and what looks like a secret. Messages are not included, but client identifiers and
    addresses are: review the file before you send it.

    If the server does not answer, the file says so and has the rest.
    """
    from motelog.cli.secrets import without_secrets

    path = out or Path(time.strftime("motelog-support-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    settings, known = _configuration(config)
    parts = _of_machine(settings)
    parts |= {name: _asking(admin, asked) for name, asked in ASKED.items()}
    for number, file in enumerate(log or ()):
        parts[f"log-{number}-{file.name}"] = lambda file=file: _tail(file)  # type: ignore[misc]  # bound now
    failed = {}
    with _archive(path) as add:
        for name, read in parts.items():
            try:
                text = read()
            except (CliError, OSError) as exc:
                failed[name] = without_secrets(str(exc), known)
                continue
            add(name, without_secrets(text, known))
        add("not-there.json", _dumps(failed))
    if json:
        write_json({"file": str(path), "not_there": failed})
        return
    write(f"{path}: {len(parts) - len(failed)} files; review it before you send it")
    for name, why in failed.items():
        write(f"  without {name}: {why.splitlines()[0]}")


def _of_machine(settings: list[dict[str, Any]]) -> dict[str, Callable[[], str]]:
    """Return functions that make the parts that do not come from the server."""
    parts: dict[str, Callable[[], str]] = {
        "versions.json": _versions,
        "machine.json": lambda: _machine(settings),
        "doctor.txt": _doctor,
    }
    if settings:
        parts["config.json"] = lambda: _dumps(settings)
        directory = next((s["value"] for s in settings if s["key"].endswith("directory")), None)
        if directory:
            parts["store.json"] = lambda: _store(directory)
    return parts


@contextmanager
def _archive(path: Path) -> Iterator[Callable[[str, str], None]]:
    """Yield a function that adds a file to the archive; CliError if it cannot be written."""
    root = path.name.removesuffix(".gz").removesuffix(".tar")
    try:
        with (
            open(path, "xb", opener=open_private) as raw,
            tarfile.open(fileobj=raw, mode="w:gz") as archive,
        ):

            def add(name: str, text: str) -> None:
                data = text.encode()
                info = tarfile.TarInfo(f"{root}/{name}")
                info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
                archive.addfile(info, io.BytesIO(data))

            yield add
    except OSError as exc:
        raise CliError(f"cannot write {path}: {exc.strerror or exc}") from exc


def _configuration(config: Path | None) -> tuple[list[dict[str, Any]], set[str]]:
    """Return each key without secrets, and the secrets in the files that the keys name."""
    from motelog.cli.secrets import is_secret_name, secrets_in_files, value_without
    from motelog.config import load_with_origins
    from motelog.core.config import settings

    known = {value for name, value in os.environ.items() if is_secret_name(name) and len(value) > 5}
    if config is None:
        return [], known
    found = settings(load_with_origins(config))
    files = [
        str(one.value)
        for one in found
        if one.value and one.key.endswith(("_file", "tls_key")) and isinstance(one.value, str)
    ]
    shown = [
        {"key": one.key, "value": value_without(one.key, one.shown), "origin": one.origin}
        for one in found
    ]
    return shown, known | secrets_in_files(files)


def _versions() -> str:
    import platform
    import sys
    from importlib.metadata import distributions

    from motelog import __version__
    from motelog.cli.kernels import kernel_states

    return _dumps(
        {
            "motelog": __version__,
            "kernels": kernel_states(),
            "python": sys.version,
            "platform": platform.platform(),
            "packages": {one.metadata["Name"]: one.version for one in distributions()},
        }
    )


def _machine(settings: list[dict[str, Any]]) -> str:
    import resource
    import shutil

    places = [s["value"] for s in settings if s["key"].endswith("directory") and s["value"]]
    disks = {place: shutil.disk_usage(place)._asdict() for place in places if os.path.isdir(place)}
    return _dumps(
        {
            "cpus": os.cpu_count(),
            "load": os.getloadavg(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
            "disks": disks,
            "variables": sorted(name for name in os.environ if name.startswith("MOTELOG")),
        }
    )


def _doctor() -> str:
    from motelog.cli.doctor import findings

    return "\n".join(f"{one.level} {one.name}: {one.text}" for one in findings(Path("."))) + "\n"


def _store(directory: str) -> str:
    from motelog.core.errors import StoreError
    from motelog.core.store.tools.inspection import StoreFolder

    try:
        folder = StoreFolder(directory)
    except StoreError as exc:
        raise CliError(str(exc)) from exc
    try:
        return _dumps(
            {
                "process_id": folder.process_id(),
                "stopped_cleanly": not folder.has_abort,
                "begin_offset": folder.begin_offset,
                "flushed_offset": folder.flushed_offset,
                "checkpoint": asdict(folder.checkpoint),
                "commitlog_files": [(file.begin, file.size) for file in folder.log.files],
                "queues": len(folder.queues),
                "left_alone": folder.left_alone(),
            }
        )
    finally:
        folder.close()


def _asking(admin: str, path: str) -> Callable[[], str]:
    def read() -> str:
        from motelog.cli.admin import send

        response, body = send(admin, "GET", path)
        if response.status not in (200, 503):  # 503: not ready, and why
            raise CliError(f"{path}: {response.status} {response.reason}")
        return body.decode(errors="replace")

    return read


def _tail(file: Path) -> str:
    with file.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - LOG_BYTES_MAX))
        text = stream.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-LOG_LINES:]) + "\n"


def _dumps(value: Any) -> str:
    return json_module.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
