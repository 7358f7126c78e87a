"""``motelog config``: check, show and compare configurations; reload and set keys of a server.

Owns: the text and JSON output. Must not touch: how files are read (motelog.config).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from motelog.cli.admin import ADMIN, Admin, ask
from motelog.cli.options import commands
from motelog.cli.output import CliError, stop, table, write, write_error, write_json
from motelog.cli.status import Status

if TYPE_CHECKING:
    from motelog.config import MotelogConfig
    from motelog.core.config import ConfigFault, Loaded, Setting

config = commands("Show, check and change the configuration.")


Key = Annotated[str, typer.Argument(metavar="KEY", help="Dotted name: gateway.retained_count_max.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="TOML file.")]
Json = Annotated[bool, typer.Option("--json", help="JSON, one object per line.")]


@config.callback()
def group() -> None:
    """Show, check and change the configuration."""


@config.command(epilog="Example: motelog config check motelog.toml")
def check(
    file: File,
    has_no_files: Annotated[
        bool,
        typer.Option(
            "--no-files", help="Skip the files that it names, which this machine may not have."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Report everything that is wrong in a file, the environment and the files that it names.

    Those files are the certificates, keys, passwords, rules, tokens and accounts of its roles. They
    are read with your rights: run this as the server's user. `motelog up` checks the same first.
    The exit status is 78 if anything is wrong.
    """
    from motelog.config import load_with_origins, unread_variables
    from motelog.core.config import ConfigFaultsError

    unread = unread_variables()
    faults: list[dict[str, object]] = []
    try:
        loaded = load_with_origins(file)
        found = [] if has_no_files else _file_faults(loaded)
        if found:
            raise ConfigFaultsError(found)
    except ConfigFaultsError as exc:
        if not json:
            warn_unread(unread)
            raise
        faults = [asdict(fault) for fault in exc.faults]
    if json:
        write_json({"valid": not faults, "faults": faults, "unread_variables": unread})
        stop(Status.CONFIG if faults else Status.DONE)
    warn_unread(unread)
    write(f"{file}: valid; roles {', '.join(loaded.section.roles)}")


@config.command(epilog="Example: motelog config show motelog.toml --origin --under gateway")
def show(
    file: File,
    has_origin: Annotated[
        bool, typer.Option("--origin", help="Show where each value comes from.")
    ] = False,
    under: Annotated[
        str, typer.Option(metavar="SECTION", help="Only the keys of this section.")
    ] = "",
    json: Json = False,
) -> None:
    """Print every key with the value that `motelog up` would use.

    User names and passwords in URLs are hidden.
    """
    found = [one for one in _settings(file) if _is_under(one.key, under)]
    if not found:
        raise CliError(f"there is no section {under!r}", status=Status.NOT_FOUND)
    if json:
        for one in found:
            write_json({"key": one.key, "value": one.shown, "origin": one.origin})
    elif has_origin:
        write(table([(one.key, "=", _toml(one.shown), f"# {one.origin}") for one in found]))
    else:
        for one in found:
            write(f"{one.key} = {_toml(one.shown)}")


@config.command(epilog="Example: motelog config diff motelog.toml staging.toml")
def diff(
    file: File,
    other: Annotated[
        Path | None,
        typer.Argument(metavar="OTHER", help="TOML file to compare with. [default: the defaults]"),
    ] = None,
    json: Json = False,
) -> None:
    """Print the keys whose values differ from the defaults, or from those in another file.

    The exit status is 0 also if there is a difference.
    """
    from motelog.core.addresses import without_logins

    found = _settings(file)
    if other is None:
        before = {one.key: one.default for one in found}
    else:
        before = {one.key: one.value for one in _settings(other)}
    after = {one.key: one for one in found}
    lines: list[tuple[str, ...]] = []
    for key in sorted({**before, **after}):
        new = after[key].value if key in after else None
        origin = after[key].origin if key in after else ""
        old = before.get(key)
        if old == new:
            continue
        old, new = without_logins(old), without_logins(new)
        if json:
            write_json({"key": key, "before": old, "after": new, "origin": origin})
            continue
        old_text, new_text = _toml(old), _toml(new)
        lines.append((key, old_text, "->", new_text, f"# {origin}" if origin else ""))
    if not json:
        write(table(lines) if lines else "no difference")


@config.command(epilog="Example: motelog config schema > motelog.schema.json")
def schema() -> None:
    """Print the JSON Schema of configuration files, for editors to complete and check them."""
    import json

    from motelog.config_schema import json_schema

    write(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@config.command(epilog="Example: motelog config reload --dry-run")
def reload(
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; print what would change.")
    ] = False,
    admin: Admin = ADMIN,
    json: Json = False,
) -> None:
    """Have a running server reload its configuration.

    If anything is wrong, nothing is applied and the exit status is 78. For each changed key it says
    whether it was applied or needs a restart.
    """
    method, path = ("GET", "changes") if is_dry_run else ("POST", "reload")
    _write_changes(ask(admin, method, f"/api/v1/config/{path}", {}), json)
    if is_dry_run and not json:
        write("nothing was changed")


@config.command("set", epilog="Example: motelog config set gateway.retained_count_max 50000")
def set_key(
    key: Key,
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE", help="As in an environment variable: 8, true, 64MiB, [1, 2]."
        ),
    ],
    admin: Admin = ADMIN,
    json: Json = False,
) -> None:
    """Set a key of a running server that no file, variable or option sets.

    The value is checked with all others and survives a restart; `config show --origin` lists it
    under the runtime store. The output says whether it was applied or needs a restart.
    """
    answer = ask(admin, "POST", "/api/v1/config/key", {"key": key, "value": value})
    _write_changes(answer, json)


@config.command("unset", epilog="Example: motelog config unset gateway.retained_count_max")
def unset_key(key: Key, admin: Admin = ADMIN, json: Json = False) -> None:
    """Undo `config set`: the key has its default again."""
    _write_changes(ask(admin, "DELETE", "/api/v1/config/key", {"key": key}), json)


def _write_changes(answer: dict[str, Any], json: bool) -> None:
    """Print what a reload changed or would change; CliError if the configuration is wrong."""
    if answer["faults"]:
        text = "\n".join(answer["faults"])
        raise CliError(f"nothing was changed: the configuration cannot be used\n{text}", status=78)
    rows = []
    for one in answer["changes"]:
        if json:
            write_json(one)
        before, after = _toml(one["before"]), _toml(one["after"])
        rows.append((one["key"], before, "->", after, one["outcome"]))
    if not json:
        write(table(rows) if rows else "no difference")


def _file_faults(loaded: Loaded[MotelogConfig]) -> list[ConfigFault]:
    """Return the fault, with its key, of each named file that a start could not use."""
    from motelog.cli.certificates import certificate_faults
    from motelog.cli.named_files import file_findings
    from motelog.core.config import ConfigFault, settings

    origins = {one.key: one.origin for one in settings(loaded)}
    logins = ((one.name, one.text) for one in file_findings(loaded.section) if one.level == "fault")
    faults = [*logins, *certificate_faults(loaded.section)]
    return [ConfigFault(origins[key], key, text) for key, text in faults]


def _settings(file: Path) -> list[Setting]:
    from motelog.config import load_with_origins, unread_variables
    from motelog.core.config import settings

    warn_unread(unread_variables())
    return settings(load_with_origins(file))


def _is_under(key: str, section: str) -> bool:
    return not section or key == section or key.startswith((f"{section}.", f"{section}["))


def _toml(value: Any) -> str:
    """Return a value as TOML; None, which TOML cannot express, is shown as -."""
    return "-" if value is None else dumps(value, ensure_ascii=False)


def warn_unread(variables: Mapping[str, str | None]) -> None:
    """Warn of variables that look like ours and have no effect."""
    for name, nearest in variables.items():
        hint = (
            f"did you mean {nearest}?"
            if nearest
            else "a variable that sets a key is named MOTELOG__SECTION__KEY"
        )
        write_error(f"environment variable {name} has no effect; {hint}")
