"""``motelog dev``: the whole stack in one process on loopback.

Owns: its options, what it prints when ready. Must not touch: how roles run (motelog.roles).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motelog.cli.log_options import LogFormat, LogLevel, ServeJson, with_log
from motelog.cli.options import takes_options
from motelog.cli.output import CliError, ready_text, write, write_error, write_json

if TYPE_CHECKING:
    from motelog.config import MotelogConfig
    from motelog.roles import Roles

# Small, so that the first message does not fill a developer's disk. A folder that already has files
# keeps their size.
COMMITLOG_FILE_BYTES = 64 * 1024 * 1024
# For a temporary folder. Elsewhere ConsumeQueue files have the usual size.
EPHEMERAL_QUEUE_UNITS = 10_000

# The variables behind the options below: an option overrides its variable.
LISTEN_VARIABLES = {
    "--mqtt": "MOTELOG__GATEWAY__LISTEN",
    "--namesrv": "MOTELOG__NAMESRV__LISTEN",
    "--broker": "MOTELOG__BROKER__LISTEN",
    "--admin": "MOTELOG__ADMIN__LISTEN",
}
DIRECTORY_VARIABLE = "MOTELOG__BROKER__STORE__DIRECTORY"
FLUSH_VARIABLE = "MOTELOG__BROKER__STORE__FLUSH"
WORKERS_VARIABLE = "MOTELOG__GATEWAY__WORKERS"
# All roles run here, whatever a variable says.
ROLES_VARIABLE = "MOTELOG__ROLES"

# A listener's name in configuration faults -> its option here.
OPTION_OF_KEY = {
    "gateway.listen": "--mqtt",
    "namesrv.listen": "--namesrv",
    "broker.listen": "--broker",
    "admin.listen": "--admin",
    "broker.vip": "MOTELOG__BROKER__VIP",
}
OPTION_OF_ROLE = {
    "namesrv": "--namesrv",
    "broker": "--broker",
    "gateway": "--mqtt",
    "console": "--admin",
}


class Flush(StrEnum):
    ASYNC = "async"
    SYNC = "sync"


def _listener(option: str, what: str) -> Any:
    """Return the option for the address of one listener."""
    return typer.Option(
        metavar="HOST:PORT", help=what, envvar=LISTEN_VARIABLES[option], show_envvar=False
    )


@dataclass(frozen=True, slots=True)
class Listeners:
    """The addresses of all listeners."""

    mqtt: Annotated[
        str,
        _listener("--mqtt", "MQTT listener; port 0 takes any free port."),
    ] = "127.0.0.1:1883"
    namesrv: Annotated[str, _listener("--namesrv", "Name server.")] = "127.0.0.1:9876"
    broker: Annotated[str, _listener("--broker", "Broker.")] = "127.0.0.1:10911"
    admin: Annotated[str, _listener("--admin", "Health and metrics over HTTP.")] = "127.0.0.1:8080"

    def by_option(self) -> dict[str, str]:
        """Return the addresses; CliError if one of them is not an address."""
        from motelog.config import check_listen

        listen = {f"--{name}": address for name, address in asdict(self).items()}
        for option, text in listen.items():
            try:
                check_listen(text)
            except ValueError as exc:
                raise CliError(f"{option}: {exc}", status=2) from exc
        return listen


@takes_options
def dev(
    *,
    listeners: Listeners,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Gateway processes that share the MQTT listener; 1: run it in this process.",
            envvar=WORKERS_VARIABLE,
            show_envvar=False,
        ),
    ] = 1,
    auto_port: Annotated[
        bool, typer.Option("--auto-port", help="If a port is taken, use the next free one.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for messages. [default: ./motelog-data]"),
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep messages in a temporary folder.")
    ] = False,
    flush: Annotated[
        Flush,
        typer.Option(
            help="Acknowledge a message when it is in the page cache (async) or on disk (sync).",
            envvar=FLUSH_VARIABLE,
            show_envvar=False,
        ),
    ] = Flush.ASYNC,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    json: ServeJson = False,
) -> None:
    """Run the whole stack in one process on loopback.

    Variables named MOTELOG__SECTION__KEY set the keys that have no option here.
    """
    # Imported now, so that little time passes between creating the folder and handling signals.
    import motelog.cli.serve  # noqa: F401  # imports what takes longest
    from motelog.cli.config import warn_unread
    from motelog.config import unread_variables

    warn_unread(unread_variables())
    if ephemeral and data is not None:
        raise CliError("--data and --ephemeral cannot be combined", status=2)
    listen = listeners.by_option()
    if auto_port:
        listen = _free_addresses(listen)
    with _folder(data, ephemeral=ephemeral) as directory:
        config = _config(listen, directory, ephemeral=ephemeral, flush=flush, workers=workers)
        _serve(with_log(config, log_level, log_format), directory, json=json)


@contextmanager
def _folder(data: Path | None, *, ephemeral: bool) -> Iterator[Path]:
    """Yield the folder for messages; one that is ephemeral is deleted at the end."""
    import shutil
    import tempfile

    if not ephemeral:
        yield data or Path(os.environ.get(DIRECTORY_VARIABLE) or "motelog-data")
        return
    directory = Path(tempfile.mkdtemp(prefix="motelog-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _free_addresses(listen: dict[str, str]) -> dict[str, str]:
    """Return addresses whose ports are free; print which ones differ from the requested ones."""
    from motelog.cli.addresses import next_free
    from motelog.cli.port_owner import port_owner
    from motelog.core.addresses import parse_address
    from motelog.core.broker.config import VIP_PORT_DISTANCE

    free: dict[str, str] = {}
    taken: set[int] = set()
    for option, text in listen.items():
        below = VIP_PORT_DISTANCE if option == "--broker" else 0
        free[option], port = next_free(option, text, avoid=taken, below=below)
        if free[option] != text:
            meant = parse_address(text)[1]
            who = "by another listener" if meant in taken else f"by {port_owner(meant)}"
            write_error(f"{option}: port {meant} is taken {who}; {port} is used instead")
        taken |= {port, port - below}
    return free


def _config(
    listen: dict[str, str], directory: Path, *, ephemeral: bool, flush: Flush, workers: int
) -> MotelogConfig:
    from motelog.config import config_of
    from motelog.core.config import ConfigFaultsError

    store: dict[str, object] = {
        "directory": str(directory),
        "flush": flush.value,
        "commitlog_file_bytes": COMMITLOG_FILE_BYTES,
    }
    if ephemeral:
        store["consume_queue_file_units"] = EPHEMERAL_QUEUE_UNITS
    table: dict[str, object] = {
        "namesrv": {"listen": listen["--namesrv"]},
        "broker": {"listen": listen["--broker"], "store": store},
        "gateway": {"listen": listen["--mqtt"], "workers": workers},
        "admin": {"listen": listen["--admin"]},
    }
    settled = {*LISTEN_VARIABLES.values(), DIRECTORY_VARIABLE}
    settled |= {FLUSH_VARIABLE, WORKERS_VARIABLE, ROLES_VARIABLE}
    try:
        return config_of(table, name="motelog dev", fixed=settled)
    except ConfigFaultsError as exc:
        if not all(OPTION_OF_KEY.get(fault.key, "").startswith("--") for fault in exc.faults):
            raise
        text = "; ".join(fault.message for fault in exc.faults)
        for key, option in OPTION_OF_KEY.items():
            text = text.replace(key, option)
        raise CliError(text, status=2) from exc


def _serve(config: MotelogConfig, directory: Path, *, json: bool) -> None:
    from motelog.cli.serve import serve

    broker = config.broker
    assert broker is not None, "the whole stack has a broker"

    def ready(roles: Roles) -> None:
        if json:
            write_json(ready_line(roles, directory))
        else:
            write(_ready_text(roles, directory, broker.promise))

    serve(config, ready, OPTION_OF_ROLE, json=json, source="motelog dev")


def ready_line(roles: Roles, directory: Path) -> dict[str, object]:
    """Return the line that a script gets when the stack is ready."""
    from motelog.core.addresses import format_address

    text = {role: format_address(*address) for role, address in roles.addresses.items()}
    return {
        "event": "ready",
        "pid": os.getpid(),
        "mqtt": text["gateway"],
        "namesrv": text["namesrv"],
        "broker": text["broker"],
        "admin": text["console"],
        "workers": roles.workers,
        "data": str(directory.absolute()),
        "data_bytes": _used_bytes(directory),
        "faults": roles.faults(),
    }


def _used_bytes(directory: Path) -> int:
    """Return the disk space that the files below a folder take, not counting holes."""
    used = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):  # the store removes files meanwhile
                used += 512 * os.stat(os.path.join(folder, name)).st_blocks
    return used


def _ready_text(roles: Roles, directory: Path, promise: str) -> str:
    line = ready_line(roles, directory)
    host, port = roles.addresses["gateway"]
    to = "" if line["mqtt"] == "127.0.0.1:1883" else f" --to {line['mqtt']}"
    used_bytes = line["data_bytes"]
    assert isinstance(used_bytes, int)
    used = f"{used_bytes / 1024**2:,.0f} MiB on disk"
    processes = f" ({roles.workers} processes)" if roles.workers > 1 else ""
    namesrv = "" if line["namesrv"] == "127.0.0.1:9876" else f" --namesrv {line['namesrv']}"
    return f"""{ready_text(roles.faults())}
  MQTT         {line["mqtt"]}{processes}
  name server  {line["namesrv"]}
  broker       {line["broker"]}
  admin        http://{line["admin"]}/  /health/ready  /metrics
  messages     {line["data"]} ({used})
               {promise}

Try, in other terminals:
  motelog sub -v -t 'telemetry/#'{to}
  motelog pub -t telemetry/dev42/temp -m 21.5{to}
  mosquitto_pub -h {host} -p {port} -q 1 -t telemetry/dev42/temp -m 21.5
  motelog consume telemetry{namesrv}
Ctrl-C stops it."""
