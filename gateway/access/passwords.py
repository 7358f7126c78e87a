"""Logins by user name and password, from the password file.

Owns: the users in the file as last read, passwords that were right before.
Must not touch: the file's format (``password_file``), threads (``logins``).
Invariants: a wrong password and an unknown user cost one hash. A password that was right before is
remembered as a keyed digest of password and hash, so it ends with either; no password is stored.
"""

from __future__ import annotations

import hmac
import secrets
from functools import partial
from typing import Final

from motelog.gateway.access.login import Credentials, Denied, Identity, Slow
from motelog.gateway.access.password_file import (
    PASSWORD_BYTES_MAX,
    UNKNOWN_USER,
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
        #: User -> digest of the password that was right, under a random key.
        self._right: dict[str, bytes] = {}
        self._key = secrets.token_bytes(32)

    def read(self) -> dict[str, str]:
        """Return the users of the file for ``use``; AccessFileError. Runs in a thread."""
        return read_users(self.path)

    def stamp(self) -> Stamp:
        return file_stamp(self.path)

    def use(self, users: dict[str, str]) -> None:
        """Use the result of ``read``."""
        self._users = users
        self._right = {name: known for name, known in self._right.items() if name in users}

    def hash_of(self, user_name: str) -> str | None:
        """Return the text of a user's hash."""
        return self._users.get(user_name)

    def log_in(self, shown: Credentials) -> Identity | Denied | Slow | None:
        name, password = shown.user_name, shown.password
        if name is None or password is None:
            return None
        hash_text = self._users.get(name)
        if hash_text is not None and hmac.compare_digest(
            self._right.get(name, b""), self._digest(hash_text, password)
        ):
            return Identity(name, self.name, hash_text)
        if not 0 < len(password) <= PASSWORD_BYTES_MAX:
            return self._wrong()  # whatever the user name
        fits = UNKNOWN_USER.fits if hash_text is None else parse_hash(hash_text).fits
        return Slow(
            self.name, partial(fits, password), partial(self._decide, name, hash_text, password)
        )

    def _decide(
        self, name: str, hash_text: str | None, password: bytes, is_right: bool
    ) -> Identity | Denied:
        # The file may have changed meanwhile: its present content counts.
        if not is_right or hash_text is None or self._users.get(name) != hash_text:
            return self._wrong()
        self._right[name] = self._digest(hash_text, password)
        return Identity(name, self.name, hash_text)

    def holds(self, identity: Identity) -> bool:
        return self._users.get(identity.user_name) == identity.proof

    def _wrong(self) -> Denied:
        return Denied(self.name, "wrong", "the user name or password is wrong")

    def _digest(self, hash_text: str, password: bytes) -> bytes:
        return hmac.digest(self._key, hash_text.encode() + b"\0" + password, "sha256")
