"""Whether a server with this configuration can use its files of passwords, rules, tokens, accounts.

Owns: which files those are, and the remedy. Must not touch: certificates and keys
(``certificates``), the files' contents.
The files are read with the rights of the caller: run it as the server's user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from motelog.cli.finding import Finding
from motelog.core.errors import ConfigError

if TYPE_CHECKING:
    from motelog.config import MotelogConfig

REMEDY: Final = (
    "fix the file: a server does not start with it, and a running one rejects all logins"
)


def file_findings(config: MotelogConfig) -> list[Finding]:
    """Return a finding on each file that the configuration of the process's roles names."""
    return [_look(key, path, read) for key, path, read in _files(config) if path]


def _files(config: MotelogConfig) -> Iterator[tuple[str, str, Callable[[str], object]]]:
    from motelog.console.tokens import read_tokens
    from motelog.core.acl.files import read_credentials, read_rules
    from motelog.core.remoting.tls import read_tls
    from motelog.gateway.access.acl import read_acl
    from motelog.gateway.access.password_file import read_users
    from motelog.gateway.access.tokens import parse_keys

    access, algorithms = config.access, config.access.jwt_algorithms
    if "gateway" in config.roles:
        yield "access.password_file", access.password_file, read_users
        yield "access.acl_file", access.acl_file, read_acl
        yield (
            "access.jwt_keys_file",
            access.jwt_keys_file,
            lambda path: parse_keys(Path(path).read_bytes(), path, algorithms),
        )
        yield "gateway.credentials_file", config.gateway.credentials_file, read_credentials
        yield "gateway.tls_file", config.gateway.tls_file, read_tls
    if "namesrv" in config.roles:
        yield "namesrv.acl_file", config.namesrv.acl_file, read_rules
    if "broker" in config.roles and config.broker is not None:
        yield "broker.acl_file", config.broker.acl_file, read_rules
        yield "broker.credentials_file", config.broker.credentials_file, read_credentials
        yield "broker.tls_file", config.broker.tls_file, read_tls
    if "console" in config.roles:
        yield "admin.tokens_file", config.admin.tokens_file, read_tokens


def _look(key: str, path: str, read: Callable[[str], object]) -> Finding:
    try:
        read(path)
    except ConfigError as exc:
        return Finding(key, "fault", str(exc), REMEDY)
    except OSError as exc:
        return Finding(key, "fault", f"cannot read {path}: {exc.strerror}", REMEDY)
    return Finding(key, "ok", path)
