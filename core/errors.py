"""Error trees of everything below the gateway: one root per part, leaves carry details.

Owns: StoreError, BrokerError, RemotingError and their leaves; flattening exception groups.
Must not touch: anything; this module imports only the standard library.
"""

from __future__ import annotations

import errno
from typing import Final

#: A file or folder that fails with one of these cannot be used; a retry does not help.
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
    """Root of every error that Motelog raises on purpose.

    ``comes_again``: a start that fails with it will fail each time, until a person fixes the cause.
    A used port, an address that is not up yet and a full disk may be fine a second later.
    """

    comes_again = False


def leaves(exc: BaseException) -> list[BaseException]:
    """Return the errors inside nested exception groups, in order."""
    if isinstance(exc, BaseExceptionGroup):
        return [leaf for inner in exc.exceptions for leaf in leaves(inner)]
    return [exc]


def comes_again(exc: BaseException) -> bool:
    """Return ``comes_again`` of any error; True for an OSError about a path that is not usable."""
    if isinstance(exc, MotelogError):
        return exc.comes_again
    return isinstance(exc, OSError) and exc.filename is not None and exc.errno in NOT_USABLE


class ConfigError(MotelogError):
    """The configuration is wrong; the text names the place, the fault and the expected value."""

    comes_again = True


class CertificateError(ConfigError):
    """A file with a certificate, a key or authorities cannot be used; the text names it.

    ``paths`` are the files concerned.
    """

    def __init__(self, text: str, *paths: str) -> None:
        super().__init__(text)
        self.paths = paths


class StoreError(MotelogError):
    """Root of the store's errors."""


class StoreFencedError(StoreError):
    """A write or flush failed: nothing is acknowledged until a restart (threats.md 12)."""


class StoreFullError(StoreError):
    """The disk is too full to accept messages; reads continue."""


class NextFileError(StoreError):
    """The next CommitLog file is not ready yet, so nothing of the batch was written."""


class BusyError(StoreError):
    """Other batches have waited for the log for so long that this batch is not appended."""


class RivalMasterError(MotelogError):
    """Another broker is the master of this one's name, so this one must not start as a master."""


class StoredError(StoreError):
    """The batch is in the log, but not where an acknowledgement would promise it to be."""


class FlushTimeoutError(StoredError):
    """The batch is in the log, but did not reach the disk within the allowed time."""


class SlaveTimeoutError(StoredError):
    """The batch is in the log, but did not reach a slave within the allowed time."""


class NoSlaveError(StoredError):
    """The batch is in the log, but no slave is there to take a copy, or all are far behind."""


class TooFewSlavesError(StoreError):
    """Fewer slaves are near than messages need (slaves_min): nothing was written."""


class StoreDamagedError(StoreError):
    """A store file does not contain what it should.

    ``path`` is the file, ``offset_bytes`` the position of the first wrong bytes in it.
    """

    comes_again = True

    def __init__(self, message: str, *, path: str, offset_bytes: int) -> None:
        super().__init__(f"{path}: {message} (at byte {offset_bytes})")
        self.path = path
        self.offset_bytes = offset_bytes


class StoreFolderError(StoreError):
    """The configured folder cannot be used: it cannot be created, entered or written to."""

    comes_again = True


class StoreCutError(StoreError):
    """The log cannot be cut at this offset; nothing was changed."""


class StoreHalfRestoredError(StoreError):
    """The folder is a backup whose restore was not completed."""

    comes_again = True


class StoreLockedError(StoreError):
    """Another process has this store folder open."""


class StoreRoleError(StoreError):
    """A follower appends no messages of its own, and a leader no bytes of another log."""


class ReceivedOffsetError(StoreError):
    """Bytes of a leader's log do not continue the follower's."""

    def __init__(self, *, offset: int, expected: int) -> None:
        super().__init__(f"bytes from offset {offset} on do not continue a log up to {expected}")
        self.offset = offset
        self.expected = expected


class ReceivedRecordError(StoreError):
    """A record of a leader's log is not intact, or not in its place; it is not in the log."""

    def __init__(self, reason: str, *, physical_offset: int) -> None:
        super().__init__(f"the record at offset {physical_offset} is refused: {reason}")
        self.reason = reason
        self.physical_offset = physical_offset


class RecordTooLargeError(StoreError):
    """A message is larger than the store accepts; nothing was written."""


class RecordError(StoreError):
    """Bytes that should be a record are not a valid one.

    ``offset_bytes`` is the position of the bad record in the given buffer.
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
    """The connection failed, or ended while a request waited for its answer."""


class RemotingConnectError(RemotingConnectionError):
    """No connection could be opened, so nothing was sent."""


class BrokerError(MotelogError):
    """The broker or name server refused a request.

    ``code`` is the remoting response code (core.remoting.frames.ResponseCode). The text is the
    ``remark``, followed at a client by ``where``: the server, and what to do.
    """

    def __init__(self, code: int, remark: str, *, where: str = "") -> None:
        super().__init__(f"{remark} ({where})" if where else remark)
        self.code = code
        self.remark = remark
