"""Tokens of the admin listener: a file of names, roles and digests, and logins of browsers by them.

Owns: the file's lines, which token a request names, the cookie. Must not touch: what a role may do.
Invariants: the file has no token in it, and a digest leads to none, as a token is 256 random bits.
A file that cannot be read lets nobody in. A token that is deleted or over ends its logins.

    prometheus:view:sha256=<64 hex digits>:never
    alice:admin:sha256=<64 hex digits>:2027-02-21T10:00:00Z

Changes of the file count with the next request.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from motelog.console.gate import Role
from motelog.gateway.access.password_file import AccessFileError, locked, read_text, write_text

FILE_BYTES_MAX: Final = 1 << 20
#: What programs that look for secrets in files know a token by.
TOKEN_PREFIX: Final = "motelog-"
NAME: Final = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_NEVER: Final = "never"
_LINE: Final = re.compile(
    rf"({NAME.pattern}):(view|operate|admin):sha256=([0-9a-f]{{64}}):(never|[0-9TZ:-]{{20}})"
)
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"

#: How long a browser stays logged in, and how many do; the oldest is logged out.
LOGIN_S: Final = 12 * 3600
LOGINS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Token:
    """A line of the file; ``expires_s`` is None if it never does."""

    name: str
    role: Role
    digest: str
    expires_s: float | None

    def holds(self, now_s: float) -> bool:
        return self.expires_s is None or now_s < self.expires_s

    def line(self) -> str:
        return f"{self.name}:{self.role.name.lower()}:sha256={self.digest}:{self.expires_text()}"

    def expires_text(self) -> str:
        if self.expires_s is None:
            return _NEVER
        return datetime.fromtimestamp(self.expires_s, UTC).strftime(_TIME)


class TokenNameError(ValueError):
    """No token can have this name."""


def read_tokens(path: str) -> list[Token]:
    """Return the tokens of a file; AccessFileError says where it is wrong."""
    tokens: dict[str, Token] = {}
    for number, line in enumerate(read_text(path, FILE_BYTES_MAX).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            text = "not NAME:ROLE:sha256=DIGEST:EXPIRES as `motelog token create` writes it"
            raise AccessFileError(f"{path}:{number}: {text}")
        name, role, digest, expires = found.groups()
        if name in tokens:
            raise AccessFileError(f"{path}:{number}: the token is there twice")
        try:
            expires_s = None if expires == _NEVER else _seconds(expires)
        except ValueError:
            raise AccessFileError(f"{path}:{number}: {expires} is no time") from None
        tokens[name] = Token(name, Role[role.upper()], digest, expires_s)
    return list(tokens.values())


def create(path: str, name: str, role: Role, expires_s: float | None) -> str:
    """Add a token to a file, made if there is none, and return it.

    Nothing keeps the token itself. TokenNameError; ValueError if there is one of this name;
    AccessFileError.
    """
    if NAME.fullmatch(name) is None:
        raise TokenNameError("a token's name has 1 to 64 letters, digits, '_', '.', '@' or '-'")
    text = TOKEN_PREFIX + secrets.token_urlsafe(32)
    with locked(path):
        tokens = read_tokens(path) if os.path.exists(path) else []
        if any(one.name == name for one in tokens):
            raise ValueError(f"there is a token {name!r} already")
        _write(path, [*tokens, Token(name, role, digest_of(text), expires_s)])
    return text


def delete(path: str, name: str) -> bool:
    """Delete a token of a file; return False if there is none of this name. AccessFileError."""
    with locked(path):
        tokens = read_tokens(path)
        left = [one for one in tokens if one.name != name]
        if len(left) < len(tokens):
            _write(path, left)
    return len(left) < len(tokens)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


class Tokens:
    """The tokens that count at the moment, and who has logged in by them."""

    def __init__(self, path: str, *, now_s: Callable[[], float] = time.time) -> None:
        """AccessFileError if the file cannot be used."""
        self._path = path
        self._now_s = now_s
        self._stamp: object = None
        self._by_digest: dict[str, Token] = {}
        #: Digest of what the cookie says -> digest of the token, when the login is over.
        self._logins: OrderedDict[str, tuple[str, float]] = OrderedDict()
        #: Why nobody is let in; None while all is well.
        self.fault: str | None = None
        self._look()
        if self.fault is not None:
            raise AccessFileError(self.fault)

    def find(self, text: str) -> Token | None:
        """Return the token that a request names, None if there is none."""
        self._look()
        token = self._by_digest.get(digest_of(text))
        return token if token is not None and token.holds(self._now_s()) else None

    def log_in(self, text: str) -> str | None:
        """Return what the cookie of a browser shall say, None if there is no such token."""
        token = self.find(text)
        if token is None:
            return None
        cookie = secrets.token_urlsafe(32)
        self._logins[digest_of(cookie)] = (token.digest, self._now_s() + LOGIN_S)
        while len(self._logins) > LOGINS_MAX:
            self._logins.popitem(last=False)
        return cookie

    def find_login(self, cookie: str) -> Token | None:
        """Return the token that a browser has logged in by, None if it has not."""
        self._look()
        digest, ends_s = self._logins.get(digest_of(cookie), ("", 0.0))
        token = self._by_digest.get(digest)
        now_s = self._now_s()
        return token if token is not None and token.holds(now_s) and now_s < ends_s else None

    def log_out(self, cookie: str) -> None:
        self._logins.pop(digest_of(cookie), None)

    def _look(self) -> None:
        """Read the file again if it is another than it was."""
        try:
            found = os.stat(self._path)
            stamp: object = (found.st_mtime_ns, found.st_size, found.st_ino)
        except OSError as exc:
            stamp = exc.errno
        if stamp == self._stamp:
            return
        try:
            self._by_digest = {one.digest: one for one in read_tokens(self._path)}
            self.fault = None
        except AccessFileError as exc:
            self._by_digest = {}
            self.fault = str(exc)
        self._stamp = stamp


class FormKeys:
    """What a form must bring back, so that it comes from a page of ours: a key for each login."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def of(self, cookie: str) -> str:
        return hmac.new(self._secret, cookie.encode(errors="replace"), hashlib.sha256).hexdigest()

    def fits(self, key: str, cookie: str) -> bool:
        return hmac.compare_digest(key.encode(errors="replace"), self.of(cookie).encode())


def _seconds(text: str) -> float:
    return datetime.strptime(text, _TIME).replace(tzinfo=UTC).timestamp()


def _write(path: str, tokens: Iterable[Token]) -> None:
    write_text(path, "".join(f"{one.line()}\n" for one in tokens))
