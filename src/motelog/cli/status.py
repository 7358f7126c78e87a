"""Exit statuses: the same in every command, so that a script can tell what happened.

Owns: the table, and which error ends with which status. Must not touch: what is printed.
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
    """The command did its work and found a fault, or nothing below says what happened."""
    USAGE = 2
    """What was typed cannot be meant."""
    NOT_FOUND = 3
    """What was asked for is not there."""
    UNREACHABLE = 4
    """No server answers at that address, or it went away."""
    REFUSED = 5
    """A server answers, and says no."""
    TIME = 6
    """The time ran out."""
    CONFIG = 78
    """The configuration cannot be used; EX_CONFIG of sysexits.h."""
    INTERRUPTED = 130
    """Ctrl-C; 128 and the signal's number, as shells have it."""


IS_IT_RUNNING = "is it running? `motelog dev` starts one"


def status_of(error: MotelogError) -> tuple[Status, str | None]:
    """Return the status of an error that no command has translated, and what to do about it."""
    from motelog.bridge import errors as bridge

    match error:
        case core.CertificateError():
            text = "motelog doctor --config FILE looks at each certificate, and says what to do"
            return Status.CONFIG, text
        case core.ConfigError():
            return Status.CONFIG, None
        case core.StoreFolderError():
            return Status.CONFIG, "choose a folder that this user can write to"
        case core.StoreHalfRestoredError():
            return Status.CONFIG, "empty the folder, and motelog backup restore again"
        case core.StoreLockedError():
            text = "stop that process, or keep messages elsewhere: motelog dev --data DIR"
            return Status.FAILED, text
        case bridge.NoNameServerError():
            return Status.UNREACHABLE, IS_IT_RUNNING
        case bridge.RouteError():
            text = "it is created by the first message: motelog produce, or motelog pub"
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
