"""``motelog context``: manage named clusters for the command line.

Owns: the text and JSON output. Must not touch: the file of contexts (``contexts``), servers.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from motelog.cli import contexts
from motelog.cli.addresses import address
from motelog.cli.admin import Json
from motelog.cli.options import commands, takes_options
from motelog.cli.output import CliError, table, write, write_done, write_json
from motelog.cli.status import Status

context = commands("Manage named clusters for the commands.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@context.callback()
def group() -> None:
    """Manage named clusters: their addresses, and the files with their credentials.

    --context NAME before a command, or MOTELOG_CONTEXT, selects one; `motelog context use` sets the
    default. An option of the command overrides its context.
    """


@dataclass(frozen=True, slots=True)
class Cluster:
    """The addresses of a cluster, and the files with its credentials."""

    admin: Annotated[
        str, typer.Option(metavar="URL", help="Admin listener: https://HOST:PORT, or HOST:PORT.")
    ] = ""
    namesrv: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Name server; separate several by ';'.")
    ] = ""
    mqtt: Annotated[
        str, typer.Option(metavar="URL", help="MQTT: mqtts://HOST[:PORT], or mqtt:// without TLS.")
    ] = ""
    ca_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Trust the certificates in this file (admin listener, MQTT)."
        ),
    ] = None
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the admin listener's token.")
    ] = None
    credentials_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with accessKey and secretKey, for name servers."),
    ] = None
    tls_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Use TLS to name servers and brokers, like --tls of the commands; a"
            " tls.properties file names the client's certificate and key too.",
        ),
    ] = None
    user_name: Annotated[str, typer.Option(metavar="NAME", help="MQTT user name.")] = ""
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the user's password.")
    ] = None

    def context(self) -> contexts.Context:
        """Return the context that this makes; CliError if it cannot be used."""
        made = contexts.Context(
            admin=_admin(self.admin),
            namesrv=";".join(_checked("--namesrv", one) for one in self.namesrv.split(";") if one),
            mqtt=_mqtt(self.mqtt),
            ca_file=_file(self.ca_file),
            token_file=_secret(self.token_file),
            credentials_file=_secret(self.credentials_file),
            tls_file=_file(self.tls_file),
            user_name=self.user_name,
            password_file=_secret(self.password_file),
        )
        if not (made.admin or made.namesrv or made.mqtt):
            text = "a context needs an address: --admin, --namesrv or --mqtt"
            raise CliError(text, status=Status.USAGE)
        if made.password_file and not made.user_name:
            raise CliError("--password-file needs --user-name", status=Status.USAGE)
        return made


@context.command(
    epilog="Example: motelog context add site-a --admin https://motelog.example.com:8443"
    " --ca-file ca.pem --token-file alice.token --use"
)
@takes_options
def add(
    name: Name,
    *,
    cluster: Cluster,
    is_used: Annotated[bool, typer.Option("--use", help="Make this the default context.")] = False,
    is_replaced: Annotated[
        bool, typer.Option("--replace", help="Replace an existing context of this name.")
    ] = False,
    json: Json = False,
) -> None:
    """Add a context: the addresses of a cluster, and the files with its credentials.

    Files with secrets are stored by name; only you may be able to read them (mode 600).
    """
    known = contexts.load()
    if not name or name.startswith("-"):
        raise CliError("a context needs a name", status=Status.USAGE)
    if name in known.by_name and not is_replaced:
        raise CliError(
            f"the context {name!r} already exists",
            remedy="replace it with --replace",
            status=Status.REFUSED,
        )
    made = cluster.context()
    used = name if is_used else known.used
    contexts.save(contexts.Contexts({**known.by_name, name: made}, used))
    text = f"added {name}" + (", the default context" if used == name else "")
    write_done({"context": name, "is_used": used == name, **asdict(made)}, text, json=json)


@context.command("list", epilog="Example: motelog context list")
def list_contexts(json: Json = False) -> None:
    """List the contexts; * marks the one that commands use now. Secrets are not read."""
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
    """Make a context the default for commands that name no other; '' for none."""
    known = contexts.load()
    if name:
        known.get(name)
    contexts.save(replace(known, used=name))
    text = f"{name} is the default context" if name else "there is no default context"
    write_done({"context": name, "is_used": bool(name)}, text, json=json)


@context.command(epilog="Example: motelog context remove site-a")
def remove(name: Name, json: Json = False) -> None:
    """Remove a context; the files that it names are kept."""
    contexts.save(contexts.load().without(name))
    write_done({"context": name, "is_removed": True}, f"removed {name}", json=json)


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
    """Return the file's absolute path; CliError if there is no such file."""
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
