"""Tokens of the admin listener: the file of names, roles and digests, and logins of browsers.

Owns: the file's format, looking up tokens, the cookie. Must not touch: what a role may do.
Invariants: the file contains no tokens, and a digest does not reveal one, since a token is 256
random bits. While the file cannot be read, every token is rejected. The logins of a token that is
deleted or expires end.

    prometheus:view:sha256=<64 hex digits>:never
    alice:admin:sha256=<64 hex digits>:2027-02-21T10:00:00Z

Changes of the file take effect with the next request.
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
#: The prefix by which secret scanners recognise a token.
TOKEN_PREFIX: Final = "motelog-"
NAME: Final = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_NEVER: Final = "never"
_LINE: Final = re.compile(
    rf"({NAME.pattern}):(view|operate|admin):sha256=([0-9a-f]{{64}}):(never|[0-9TZ:-]{{20}})"
)
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"

#: How long a browser stays logged in, and the limit of logins; the oldest is logged out.
LOGIN_S: Final = 12 * 3600
LOGINS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Token:
    """A line of the file; ``expires_s`` is None if the token never expires."""

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
    """The name is not valid for a token."""


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
            raise AccessFileError(f"{path}:{number}: this token is a duplicate")
        try:
            expires_s = None if expires == _NEVER else _seconds(expires)
        except ValueError:
            raise AccessFileError(f"{path}:{number}: {expires} is not a time") from None
        tokens[name] = Token(name, Role[role.upper()], digest, expires_s)
    return list(tokens.values())


def create(path: str, name: str, role: Role, expires_s: float | None) -> str:
    """Add a token to a file, which is created if missing, and return the token.

    The token itself is not stored. TokenNameError; ValueError if the name is taken;
    AccessFileError.
    """
    if NAME.fullmatch(name) is None:
        raise TokenNameError("a token's name has 1 to 64 letters, digits, '_', '.', '@' or '-'")
    text = TOKEN_PREFIX + secrets.token_urlsafe(32)
    with locked(path):
        tokens = read_tokens(path) if os.path.exists(path) else []
        if any(one.name == name for one in tokens):
            raise ValueError(f"the token {name!r} already exists")
        _write(path, [*tokens, Token(name, role, digest_of(text), expires_s)])
    return text


def delete(path: str, name: str) -> bool:
    """Delete a token from a file; return False if there is no such token. AccessFileError."""
    with locked(path):
        tokens = read_tokens(path)
        left = [one for one in tokens if one.name != name]
        if len(left) < len(tokens):
            _write(path, left)
    return len(left) < len(tokens)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


class Tokens:
    """The valid tokens, and the browsers that are logged in with them."""

    def __init__(self, path: str, *, now_s: Callable[[], float] = time.time) -> None:
        """AccessFileError if the file cannot be used."""
        self._path = path
        self._now_s = now_s
        self._stamp: object = None
        self._by_digest: dict[str, Token] = {}
        #: Digest of the cookie -> digest of the token, end of the login.
        self._logins: OrderedDict[str, tuple[str, float]] = OrderedDict()
        #: Why all tokens are rejected; None while all is well.
        self.fault: str | None = None
        self._look()
        if self.fault is not None:
            raise AccessFileError(self.fault)

    def find(self, text: str) -> Token | None:
        """Return the token of a request, None if it is not valid."""
        self._look()
        token = self._by_digest.get(digest_of(text))
        return token if token is not None and token.holds(self._now_s()) else None

    def log_in(self, text: str) -> str | None:
        """Return the login cookie for a browser, None if there is no such token."""
        token = self.find(text)
        if token is None:
            return None
        cookie = secrets.token_urlsafe(32)
        self._logins[digest_of(cookie)] = (token.digest, self._now_s() + LOGIN_S)
        while len(self._logins) > LOGINS_MAX:
            self._logins.popitem(last=False)
        return cookie

    def find_login(self, cookie: str) -> Token | None:
        """Return the token with which a browser is logged in, None if it is not."""
        self._look()
        digest, ends_s = self._logins.get(digest_of(cookie), ("", 0.0))
        token = self._by_digest.get(digest)
        now_s = self._now_s()
        return token if token is not None and token.holds(now_s) and now_s < ends_s else None

    def log_out(self, cookie: str) -> None:
        self._logins.pop(digest_of(cookie), None)

    def _look(self) -> None:
        """Read the file again if it has changed."""
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
    """A key for each login, which a form must return to prove that it is from our own page."""

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
