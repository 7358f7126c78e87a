"""The password file: users and their password hashes, as text that may be edited.

Owns: its format, the hash. Must not touch: logins (``passwords``).
Invariants: the file never contains a password. It is replaced as a whole, with mode 0600, so that
it is never read incompletely.

    alice:$scrypt$ln=14,r=8,p=1$<salt>$<hash>          salt and hash in base64; 2^ln is scrypt's N
    bob:$scram-sha-256$...                             see ``scram``
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from motelog.core.errors import ConfigError
from motelog.gateway.access.scram import VERIFIER, Verifier, make_verifier, parse_verifier

#: Longest password that is hashed; a longer one is wrong.
PASSWORD_BYTES_MAX: Final = 1024
#: Largest file that is read: about a million users.
FILE_BYTES_MAX: Final = 256 * 1024 * 1024

_LOG_N: Final = 14
_R: Final = 8
_P: Final = 1
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
#: Limits a line of the file, so that it cannot take all memory.
_LOG_N_MAX: Final = 20
_MEMORY_BYTES_MAX: Final = 1 << 28
_HASH: Final = re.compile(
    r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+)",
    re.ASCII,
)

#: A value that differs after a file has changed.
Stamp = tuple[int, ...] | None


class AccessFileError(ConfigError):
    """A file of passwords, keys or rules cannot be used; the text never has a secret in it."""


class PasswordHash(NamedTuple):
    """The hash of one password, with its parameters."""

    log_n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    def fits(self, password: bytes) -> bool:
        """Whether it is the hash of a password; takes about 50 ms without the GIL.

        If it cannot be computed for lack of memory, the result is False.
        """
        try:
            return hmac.compare_digest(self.digest, _scrypt(self, password, len(self.digest)))
        except (ValueError, MemoryError):
            return False


def hash_password(password: bytes) -> str:
    """Return the text of a new hash of a password; ValueError if it is empty or too long."""
    _check_password(password)
    made = PasswordHash(_LOG_N, _R, _P, secrets.token_bytes(_SALT_BYTES), b"")
    digest = _scrypt(made, password, _HASH_BYTES)
    salt, hash_text = (base64.b64encode(part).decode() for part in (made.salt, digest))
    return f"$scrypt$ln={_LOG_N},r={_R},p={_P}${salt}${hash_text}"


def scram_hash(password: bytes) -> str:
    """Return the text of a new verifier of a password; ValueError if it is empty or too long."""
    _check_password(password)
    return make_verifier(password).text


def _check_password(password: bytes) -> None:
    if not password:
        raise ValueError("the password is empty")
    if len(password) > PASSWORD_BYTES_MAX:
        raise ValueError(f"the password has more than {PASSWORD_BYTES_MAX} bytes")


def parse_hash(text: str) -> PasswordHash | Verifier:
    """Return the parsed hash of the file; ValueError if it is malformed."""
    if text.startswith(VERIFIER):
        return parse_verifier(text)
    found = _HASH.fullmatch(text)
    if found is None:
        raise ValueError("not a hash that `motelog user` writes")
    log_n, r, p = (int(number) for number in found.group(1, 2, 3))
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in found.group(4, 5))
    except binascii.Error:
        raise ValueError("not base64") from None
    fits = 1 <= log_n <= min(_LOG_N_MAX, 16 * r - 1) and r >= 1 and p >= 1  # RFC 7914, section 2
    if not fits or 128 * r * (1 << log_n) + 128 * r * p > _MEMORY_BYTES_MAX // 2:
        raise ValueError("its parameters are not supported")
    if not salt or len(digest) < 16:
        raise ValueError("its salt or hash is too short")
    return PasswordHash(log_n, r, p, salt, digest)


#: Compared if there is no such user, so that this takes as long.
UNKNOWN_USER: Final = PasswordHash(_LOG_N, _R, _P, bytes(_SALT_BYTES), bytes(_HASH_BYTES))


def check_user_name(name: str) -> None:
    """Raise ValueError unless a user can have this name."""
    if not name or len(name.encode()) > 256:
        raise ValueError("a user name must have 1 to 256 bytes")
    if not name.isprintable() or ":" in name or name != name.strip() or name.startswith("#"):
        raise ValueError(
            "a user name must not contain ':' or control characters, begin with '#', or begin or"
            " end with a space"
        )


def read_users(path: str) -> dict[str, str]:
    """Return the users of a file, each with the text of its hash; AccessFileError."""
    users: dict[str, str] = {}
    for number, line in enumerate(read_text(path, FILE_BYTES_MAX).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, text = line.partition(":")
        try:
            check_user_name(name)
            if not colon:
                raise ValueError("no ':' after the user name")
            parse_hash(text.strip())
        except ValueError as exc:
            raise AccessFileError(f"{path}:{number}: {exc}") from None
        if name in users:
            raise AccessFileError(f"{path}:{number}: this user is a duplicate")
        users[name] = text.strip()
    return users


@contextmanager
def changing(path: str) -> Iterator[dict[str, str]]:
    """Yield the users of a file, empty if there is none, and write them back when changed.

    Other processes that change files of the folder wait. AccessFileError.
    """
    with locked(path):
        users = read_users(path) if os.path.exists(path) else {}
        before = dict(users)
        yield users
        if users != before:
            write_users(path, users)


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Make other processes that change files of the folder wait; AccessFileError."""
    try:
        folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY)
    except OSError as exc:
        raise AccessFileError(f"cannot write {path}: {exc.strerror or exc}") from exc
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def write_users(path: str, users: dict[str, str]) -> None:
    """Replace the file as a whole; AccessFileError."""
    write_text(path, "".join(f"{name}:{hash_text}\n" for name, hash_text in users.items()))


def write_text(path: str, text: str) -> None:
    """Replace one of the operator's files as a whole; AccessFileError.

    A new file has mode 0600; an existing one keeps its owner, its group, and the group's read
    permission.
    """
    folder = os.path.dirname(os.path.abspath(path))
    try:
        # A symbolic link is kept: its target is replaced.
        target = os.path.realpath(path)
        handle, temporary = tempfile.mkstemp(prefix=".motelog-", dir=os.path.dirname(target))
        try:
            with open(handle, "wb") as file:  # mode 0600, from mkstemp
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            _keep_readers(target, temporary)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise AccessFileError(f"cannot write {path}: {exc.strerror or exc}") from exc


def file_stamp(path: str) -> Stamp:
    """Return a value that differs when a file has changed; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None  # reading it reports why
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_text(path: str, bytes_max: int) -> str:
    """Return the text of one of the operator's files; AccessFileError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise AccessFileError(f"{path}: larger than {bytes_max} bytes")
        return data.decode()
    except OSError as exc:
        raise AccessFileError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise AccessFileError(f"{path}: not UTF-8 at byte {exc.start}") from None


def _keep_readers(target: str, temporary: str) -> None:
    """Keep the readers of the old file: the server's user may be in its group."""
    try:
        old = os.stat(target)
    except FileNotFoundError:
        return
    if (old.st_uid, old.st_gid) != (os.getuid(), os.getgid()):
        os.chown(temporary, old.st_uid, old.st_gid)
    os.chmod(temporary, 0o600 | old.st_mode & stat.S_IRGRP)


def _scrypt(how: PasswordHash, password: bytes, size: int) -> bytes:
    return hashlib.scrypt(
        password,
        salt=how.salt,
        n=1 << how.log_n,
        r=how.r,
        p=how.p,
        maxmem=_MEMORY_BYTES_MAX,
        dklen=size,
    )
