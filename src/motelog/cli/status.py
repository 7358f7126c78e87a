"""Exit statuses: the same for every command, so that a script can tell what happened.

Owns: the table, and the status of each error. Must not touch: what is printed.
The table for users is in docs/commands.md.
"""

from __future__ import annotations

from enum import IntEnum

from motelog.core import errors as core
from motelog.core.errors import MotelogError


class Status(IntEnum):
    """How a command ended."""

    DONE = 0
    FAILED = 1
    """The command worked and found a fault, or failed for a reason that is not listed below."""
    USAGE = 2
    """The command line is wrong."""
    NOT_FOUND = 3
    """The requested object does not exist."""
    UNREACHABLE = 4
    """No server answers at that address, or it went away."""
    REFUSED = 5
    """A server refused the request."""
    TIME = 6
    """The request timed out."""
    CONFIG = 78
    """The configuration is wrong; EX_CONFIG of sysexits.h."""
    INTERRUPTED = 130
    """Ctrl-C; 128 plus the signal's number, as in shells."""


IS_IT_RUNNING = "is it running? `motelog dev` starts one"


def status_of(error: MotelogError) -> tuple[Status, str | None]:
    """Return the status of an error that no command has translated, and a remedy."""
    from motelog.bridge import errors as bridge

    match error:
        case core.CertificateError():
            text = "check the certificates with motelog doctor --config FILE"
            return Status.CONFIG, text
        case core.ConfigError():
            return Status.CONFIG, None
        case core.StoreFolderError():
            return Status.CONFIG, "choose a folder that this user can write to"
        case core.StoreHalfRestoredError():
            return Status.CONFIG, "empty the folder, and run motelog backup restore again"
        case core.StoreLockedError():
            text = "stop that process, or keep messages elsewhere: motelog dev --data DIR"
            return Status.FAILED, text
        case bridge.NoNameServerError():
            return Status.UNREACHABLE, IS_IT_RUNNING
        case bridge.RouteError():
            text = "the first message creates it: use motelog produce or motelog pub"
            return Status.NOT_FOUND, text
        case bridge.MessageRefusedError() | bridge.FilterError():
            return Status.USAGE, None
        case core.BrokerError():
            return Status.REFUSED, None
        case core.RemotingTimeoutError():
            return Status.TIME, None
        case core.RemotingConnectionError():
            return Status.UNREACHABLE, IS_IT_RUNNING
        case bridge.SendFailedError() | bridge.CommitFailedError():
            last = error.__cause__
            return status_of(last) if isinstance(last, MotelogError) else (Status.TIME, None)
        case _:
            return Status.FAILED, None
