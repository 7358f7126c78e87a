"""``motelog context``: the clusters that the command line knows.

Owns: the words and the JSON. Must not touch: the file of contexts (``contexts``), servers.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from motelog.cli import contexts
from motelog.cli.addresses import address
from motelog.cli.admin import Json
from motelog.cli.options import commands
from motelog.cli.output import CliError, table, write, write_json
from motelog.cli.status import Status

context = commands("Keep the clusters that commands ask.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@context.callback()
def group() -> None:
    """Keep the clusters that commands ask: addresses, and the files with what opens them.

    --context NAME before a command, or MOTELOG_CONTEXT, means one of them; `motelog context use`
    sets the one that is meant without either. An option of a command goes before its context.
    """


@context.command(
    epilog="Example: motelog context add site-a --admin https://motelog.example.com:8443"
    " --ca-file ca.pem --token-file alice.token --use"
)
def add(
    name: Name,
    admin: Annotated[
        str, typer.Option(metavar="URL", help="Admin listener: https://HOST:PORT, or HOST:PORT.")
    ] = "",
    namesrv: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Name server; more separated by ';'.")
    ] = "",
    mqtt: Annotated[
        str, typer.Option(metavar="URL", help="MQTT: mqtts://HOST[:PORT], or mqtt:// without TLS.")
    ] = "",
    ca_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Trust the certificates in this file, for admin, MQTT."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the admin listener's token.")
    ] = None,
    credentials_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with accessKey and secretKey, for name servers."),
    ] = None,
    tls_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Speak TLS to name servers and brokers: as --tls of the commands; a"
            " tls.properties names the client's certificate and key too.",
        ),
    ] = None,
    user_name: Annotated[str, typer.Option(metavar="NAME", help="MQTT login.")] = "",
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with its password.")
    ] = None,
    is_used: Annotated[
        bool, typer.Option("--use", help="Mean this one where no context is named.")
    ] = False,
    is_replaced: Annotated[
        bool, typer.Option("--replace", help="Take the place of one of this name.")
    ] = False,
    json: Json = False,
) -> None:
    """Add a context: the addresses of a cluster, and the files with what opens it.

    Of secrets the names of their files are kept; only you may read those (mode 600).
    """
    known = contexts.load()
    if not name or name.startswith("-"):
        raise CliError("a context needs a name", status=Status.USAGE)
    if name in known.by_name and not is_replaced:
        raise CliError(
            f"there is a context {name!r} already",
            remedy="--replace puts this one in its place",
            status=Status.REFUSED,
        )
    made = contexts.Context(
        admin=_admin(admin),
        namesrv=";".join(_checked("--namesrv", one) for one in namesrv.split(";") if one),
        mqtt=_mqtt(mqtt),
        ca_file=_file(ca_file),
        token_file=_secret(token_file),
        credentials_file=_secret(credentials_file),
        tls_file=_file(tls_file),
        user_name=user_name,
        password_file=_secret(password_file),
    )
    if not (made.admin or made.namesrv or made.mqtt):
        text = "a context needs an address: --admin, --namesrv or --mqtt"
        raise CliError(text, status=Status.USAGE)
    if made.password_file and not made.user_name:
        raise CliError("--password-file needs --user-name", status=Status.USAGE)
    used = name if is_used else known.used
    contexts.save(contexts.Contexts({**known.by_name, name: made}, used))
    if json:
        write_json({"context": name, "is_used": used == name, **asdict(made)})
    else:
        write(f"added {name}" + (", which is used" if used == name else ""))


@context.command("list", epilog="Example: motelog context list")
def list_contexts(json: Json = False) -> None:
    """List the contexts; * is the one that commands mean now. Secrets are not read."""
    known = contexts.load()
    meant = os.environ.get(contexts.VARIABLE, known.used)
    rows: list[tuple[str, ...]] = [("", "context", "admin", "name server", "MQTT")]
    for name, one in sorted(known.by_name.items()):
        if json:
            write_json({"context": name, "is_used": name == meant, **asdict(one)})
        sign = "*" if name == meant else ""
        rows.append((sign, name, one.admin or "-", one.namesrv or "-", one.mqtt or "-"))
    if not json:
        write(table(rows) if len(rows) > 1 else "no contexts")


@context.command(epilog="Example: motelog context use site-a")
def use(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the context; '' for none.")],
    json: Json = False,
) -> None:
    """Have commands mean this context unless they name another; '' for none."""
    known = contexts.load()
    if name:
        known.get(name)
    contexts.save(replace(known, used=name))
    if json:
        write_json({"context": name, "is_used": bool(name)})
    else:
        write(f"{name} is used" if name else "no context is used")


@context.command(epilog="Example: motelog context remove site-a")
def remove(name: Name, json: Json = False) -> None:
    """Remove a context; the files that it names stay."""
    contexts.save(contexts.load().without(name))
    if json:
        write_json({"context": name, "is_removed": True})
    else:
        write(f"removed {name}")


def _checked(option: str, text: str) -> str:
    address(option, text)
    return text


def _admin(text: str) -> str:
    text = text.removeprefix("http://").rstrip("/")
    if text:
        _checked("--admin", text.removeprefix("https://"))
    return text


def _mqtt(text: str) -> str:
    from motelog.cli.mqtt_options import check_url

    if text:
        check_url("--mqtt", text)
    return text


def _file(file: Path | None) -> str:
    """Return a file's name that means the same from every folder."""
    if file is None:
        return ""
    if not file.is_file():
        raise CliError(f"there is no file {file}", status=Status.NOT_FOUND)
    return str(file.absolute())


def _secret(file: Path | None) -> str:
    name = _file(file)
    if name:
        contexts.secret_in(name)
    return name
