"""``motelog up``: the roles that a configuration file names, in the foreground."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from motelog.cli.log_options import LogFormat, LogLevel, ServeJson, loaded_with_log
from motelog.cli.output import ready_text, write, write_json

if TYPE_CHECKING:
    from motelog.config import MotelogConfig
    from motelog.core.config import Loaded
    from motelog.roles import Roles

OPTION_OF_ROLE = {
    "namesrv": "namesrv.listen",
    "broker": "broker.listen",
    "gateway": "gateway.listen",
    "console": "admin.listen",
}


def up(
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="TOML file.")],
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    json: ServeJson = False,
) -> None:
    """Run the roles that a configuration file names."""
    from motelog.cli.config import warn_unread
    from motelog.cli.serve import serve
    from motelog.config import load_with_origins, unread_variables
    from motelog.core.addresses import format_address
    from motelog.running_config import RunningConfig

    warn_unread(unread_variables())

    def read(runtime: Mapping[str, str] | None = None) -> Loaded[MotelogConfig]:
        return loaded_with_log(load_with_origins(config, runtime), log_level, log_format)

    running = read()
    loaded = running.section

    def ready(roles: Roles) -> None:
        addresses = {role: format_address(*address) for role, address in roles.addresses.items()}
        if json:
            import os

            workers = {"workers": roles.workers} if "gateway" in addresses else {}
            listeners = {"listeners": roles.listeners} if roles.listeners else {}
            other = {role: at for role, at in roles.advertised.items() if at != addresses[role]}
            advertised = {"advertised": other} if other else {}
            more = {**workers, **listeners, **advertised, "faults": roles.faults()}
            write_json({"event": "ready", "pid": os.getpid(), **addresses, **more})
            return
        write(ready_text(roles.faults()))
        sections = {"console": loaded.admin, "namesrv": loaded.namesrv, "broker": loaded.broker}
        secure = {role for role, one in sections.items() if one and one.tls_certificate}
        width = max(map(len, [*addresses, *roles.listeners]))
        for role, address in addresses.items():
            is_several = role == "gateway" and roles.workers > 1
            more_text = f" ({roles.workers} processes)" if is_several else ""
            if roles.advertised[role] != address:
                more_text = f" (listens on {address})"
            tls = " with TLS" if role in secure else ""
            write(f"  {role:<{width}} {roles.advertised[role]}{tls}{more_text}")
        for name, address in roles.listeners.items():
            write(f"  {name:<{width}} {address}")
        if loaded.broker is not None:
            write(f"Messages are {loaded.broker.promise}.")

    serve(
        loaded,
        ready,
        OPTION_OF_ROLE,
        json=json,
        source=str(config.absolute()),
        running_config=RunningConfig(running, read),
    )
