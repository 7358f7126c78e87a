"""Contexts: named clusters for the command line, and which one a command uses.

Owns: the file of contexts, reading files of secrets. Must not touch: options (``main`` sets the
defaults of commands), what a command does.
Invariants: the file holds addresses and file names, never a secret. It is replaced as a whole, and
only its owner can read it. A context's credentials are sent to that context's addresses only.

    the context of a command:  --context NAME, else MOTELOG_CONTEXT, else `motelog context use NAME`
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from motelog.cli.output import CliError
from motelog.cli.status import Status
from motelog.core.private_files import make_folders

VARIABLE: Final = "MOTELOG_CONTEXT"
#: Commands that query remote servers, and take their addresses from the context.
CLIENTS: Final = frozenset(
    [
        "pub",
        "sub",
        "produce",
        "consume",
        "topic",
        "group",
        "message",
        "dlq",
        "status",
        "top",
        "client",
        "retained",
        "session",
        "config",
        "support-bundle",
    ]
)


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster; a value that the context does not set is "". Files are read only when needed."""

    admin: str = ""
    namesrv: str = ""
    mqtt: str = ""
    ca_file: str = ""
    token_file: str = ""
    credentials_file: str = ""
    tls_file: str = ""
    user_name: str = ""
    password_file: str = ""

    def defaults(self) -> dict[str, str]:
        """Return the defaults of the commands' options: name -> value."""
        found = {
            "admin": self.admin,
            "namesrv": self.namesrv,
            "credentials": self.credentials_file,
            "tls": self.tls_file,
        }
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name; ``used`` is the default one, "" for none."""

    by_name: dict[str, Context]
    used: str = ""

    def get(self, name: str) -> Context:
        """Return a context; CliError if there is none of this name."""
        if name not in self.by_name:
            raise CliError(
                f"there is no context {name!r}",
                remedy="`motelog context list` lists them",
                status=Status.NOT_FOUND,
            )
        return self.by_name[name]

    def without(self, name: str) -> Contexts:
        self.get(name)
        rest = {other: one for other, one in self.by_name.items() if other != name}
        return replace(self, by_name=rest, used="" if self.used == name else self.used)


def path() -> Path:
    """Return the path of this user's contexts."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "motelog" / "contexts.json"


def load() -> Contexts:
    """Return the contexts of this user; CliError if their file cannot be read."""
    try:
        content: dict[str, Any] = json.loads(path().read_text(encoding="utf-8"))
        known = {field.name for field in fields(Context)}
        by_name = {
            str(name): Context(**{key: str(one[key]) for key in known & set(one)})
            for name, one in content["contexts"].items()
        }
        return Contexts(by_name, str(content.get("used", "")))
    except FileNotFoundError:
        return Contexts({})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
        raise CliError(
            f"cannot read the contexts in {path()}: {exc}", status=Status.CONFIG
        ) from exc


def save(contexts: Contexts) -> None:
    """Replace this user's file; on CliError it is unchanged."""
    content = {
        "used": contexts.used,
        "contexts": {
            name: {key: value for key, value in asdict(one).items() if value}
            for name, one in sorted(contexts.by_name.items())
        },
    }
    file = path()
    fresh = file.with_suffix(f".{os.getpid()}")
    try:
        make_folders(file.parent)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(content, stream, indent=2)
            stream.flush()
            os.fsync(descriptor)
        os.replace(fresh, file)
    except OSError as exc:
        fresh.unlink(missing_ok=True)
        raise CliError(f"cannot write the contexts to {file}: {exc.strerror}") from exc


def chosen() -> Context | None:
    """Return the context that this command uses, None for none; CliError if it does not exist."""
    name = os.environ.get(VARIABLE)
    contexts = load()
    name = contexts.used if name is None else name
    return contexts.get(name) if name else None


def of_admin(admin: str) -> Context | None:
    """Return the command's context if this is its admin listener, else None."""
    context = chosen()
    return context if context is not None and context.admin == admin else None


def secret_in(file: str) -> str:
    """Return the file's only line, a secret; CliError if other users may read the file."""
    try:
        if os.stat(file).st_mode & 0o077:
            raise CliError(
                f"users other than its owner may read {file}",
                remedy=f"chmod 600 {file}",
                status=Status.CONFIG,
            )
        return Path(file).read_text(encoding="utf-8").strip("\r\n")
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise CliError(f"cannot read {file}: {why}", status=Status.CONFIG) from exc
