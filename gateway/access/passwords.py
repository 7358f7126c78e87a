"""Logins by user name and password, from the password file.

Owns: the users that the file had when it was read, what has been right before.
Must not touch: the file's lines (``password_file``), threads (``logins``).
Invariants: a wrong password, and a user that there is not, cost one hash. What was right before is
known by a keyed digest of password and hash, so it ends with either; no password is kept.
"""

from __future__ import annotations

import hmac
import secrets
from functools import partial
from typing import Final

from motelog.gateway.access.login import Credentials, Denied, Identity, Slow
from motelog.gateway.access.password_file import (
    NOBODY,
    PASSWORD_BYTES_MAX,
    Stamp,
    file_stamp,
    parse_hash,
    read_users,
)


class Passwords:
    """The users of one password file."""

    name: Final = "password"

    def __init__(self, path: str) -> None:
        self.path = path
        self._users: dict[str, str] = {}
        #: User -> digest of the password that was right, under a key that nobody else has.
        self._right: dict[str, bytes] = {}
        self._key = secrets.token_bytes(32)

    def read(self) -> dict[str, str]:
        """Return the users of the file, for ``use``; AccessFileError. For a thread."""
        return read_users(self.path)

    def stamp(self) -> Stamp:
        return file_stamp(self.path)

    def use(self, users: dict[str, str]) -> None:
        """Go on with what ``read`` has returned."""
        self._users = users
        self._right = {name: known for name, known in self._right.items() if name in users}

    def told(self, user_name: str) -> str | None:
        """Return the text of a user's hash."""
        return self._users.get(user_name)

    def log_in(self, shown: Credentials) -> Identity | Denied | Slow | None:
        name, password = shown.user_name, shown.password
        if name is None or password is None:
            return None
        told = self._users.get(name)
        if told is not None and hmac.compare_digest(
            self._right.get(name, b""), self._digest(told, password)
        ):
            return Identity(name, self.name, told)
        if not 0 < len(password) <= PASSWORD_BYTES_MAX:
            return self._wrong()  # whoever it is said to be of
        fits = NOBODY.fits if told is None else parse_hash(told).fits
        return Slow(self.name, partial(fits, password), partial(self._decide, name, told, password))

    def _decide(
        self, name: str, told: str | None, password: bytes, is_right: bool
    ) -> Identity | Denied:
        # The file may have changed meanwhile: what counts is what it says now.
        if not is_right or told is None or self._users.get(name) != told:
            return self._wrong()
        self._right[name] = self._digest(told, password)
        return Identity(name, self.name, told)

    def holds(self, identity: Identity) -> bool:
        return self._users.get(identity.user_name) == identity.proof

    def _wrong(self) -> Denied:
        return Denied(self.name, "wrong", "user name or password are wrong")

    def _digest(self, told: str, password: bytes) -> bytes:
        return hmac.digest(self._key, told.encode() + b"\0" + password, "sha256")
