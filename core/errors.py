"""Error trees of everything below the gateway: one root per part, leaves carry what is needed.

Owns: StoreError, BrokerError, RemotingError and their leaves; what a group of errors has.
Must not touch: anything; this module imports the standard library alone.
"""

from __future__ import annotations

import errno
from typing import Final

#: A file or folder with one of these cannot be used; trying again does not help.
NOT_USABLE: Final = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)


class MotelogError(Exception):
    """Root of every error Motelog raises on purpose.

    ``comes_again``: a start that ends with it does so each time, until a person mends the cause. A
    port that is taken, an address that is not up yet and a full disk may be otherwise in a second.
    """

    comes_again = False


def leaves(exc: BaseException) -> list[BaseException]:
    """Return the errors inside nested exception groups, in order."""
    if isinstance(exc, BaseExceptionGroup):
        return [leaf for inner in exc.exceptions for leaf in leaves(inner)]
    return [exc]


def comes_again(exc: BaseException) -> bool:
    """Say so of any error; one of the system does if it is about a path that cannot be used."""
    if isinstance(exc, MotelogError):
        return exc.comes_again
    return isinstance(exc, OSError) and exc.filename is not None and exc.errno in NOT_USABLE


class ConfigError(MotelogError):
    """The configuration cannot be used; the text says where, what is wrong, what was expected."""

    comes_again = True


class CertificateError(ConfigError):
    """A file of a certificate, a key or authorities cannot be used; the text names it.

    ``paths`` are those that it is about.
    """

    def __init__(self, text: str, *paths: str) -> None:
        super().__init__(text)
        self.paths = paths


class StoreError(MotelogError):
    """Root of the store's errors."""


class StoreFencedError(StoreError):
    """A write or flush failed, so nothing more is acknowledged until a restart (threats.md 12)."""


class StoreFullError(StoreError):
    """The disk is too full to accept messages; reads go on."""


class NextFileError(StoreError):
    """The next CommitLog file is not there yet, so nothing of the batch was written."""


class BusyError(StoreError):
    """Others have been waiting for the log for so long that a batch is not appended."""


class FlushTimeoutError(StoreError):
    """What was appended is in the log, but not on the disk within the time that it may take."""


class StoreDamagedError(StoreError):
    """A store file does not hold what its name says.

    ``path`` is the file, ``offset_bytes`` where in it the first wrong byte range begins.
    """

    comes_again = True

    def __init__(self, message: str, *, path: str, offset_bytes: int) -> None:
        super().__init__(f"{path}: {message} (at byte {offset_bytes})")
        self.path = path
        self.offset_bytes = offset_bytes


class StoreFolderError(StoreError):
    """The configured folder cannot be used: it cannot be made, entered or written to."""

    comes_again = True


class StoreHalfRestoredError(StoreError):
    """The folder is a backup that was not restored to its end."""

    comes_again = True


class StoreLockedError(StoreError):
    """Another process has this store folder open."""


class RecordTooLargeError(StoreError):
    """A message is larger than the store accepts; nothing was written."""


class RecordError(StoreError):
    """Bytes that should be a record are not one.

    ``offset_bytes`` is where in the given buffer the bad record begins.
    """

    def __init__(self, message: str, *, offset_bytes: int) -> None:
        super().__init__(f"{message} (at byte {offset_bytes})")
        self.offset_bytes = offset_bytes


class RemotingError(MotelogError):
    """Root of the remoting protocol's errors."""


class RemotingDecodeError(RemotingError):
    """A remoting frame cannot be parsed; the connection that sent it is closed."""


class RemotingTimeoutError(RemotingError):
    """The peer did not answer in time; the request may or may not have been carried out."""


class RemotingConnectionError(RemotingError):
    """The connection could not be made or ended while a request waited for its answer."""


class RemotingConnectError(RemotingConnectionError):
    """No connection could be made, so nothing was sent."""


class BrokerError(MotelogError):
    """A request that the broker or name server refuses.

    ``code`` is the remoting response code (core.remoting.frames.ResponseCode). The text is the
    ``remark`` and, at a client, ``where`` it is from and what to do.
    """

    def __init__(self, code: int, remark: str, *, where: str = "") -> None:
        super().__init__(f"{remark} ({where})" if where else remark)
        self.code = code
        self.remark = remark
