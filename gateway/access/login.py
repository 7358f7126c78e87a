"""What a login is: what a client shows, who it turns out to be, who decides about that.

Owns: Credentials, Identity, Denied, Slow, the Authenticator protocol.
Must not touch: files, threads, connections.
Invariant: no text made of these values has a secret in it, be it a log line or a traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from motelog.gateway.access.acl import Rule
from motelog.gateway.mqtt.packet_types import ReasonCode

#: The authenticator of those who do not log in.
ANONYMOUS: Final = "anonymous"
#: Stands for one where clients are not told apart: the name is what the client says.
UNCHECKED: Final = ""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client shows at CONNECT; ``host`` is its address.

    ``logins`` are the authenticators that its listener has; empty: all.

    ``method`` is the enhanced authentication that it begins, ``data`` its first message there.
    """

    client_id: str
    user_name: str | None = None
    password: bytes | None = field(default=None, repr=False)
    certificate_name: str | None = None
    host: str = ""
    method: str | None = None
    data: bytes = field(default=b"", repr=False)
    logins: Collection[str] = ()

    def may_use(self, authenticator: str) -> bool:
        return not self.logins or authenticator in self.logins


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is, and which authenticator says so; an anonymous one has no user name.

    ``proof`` is what the login rests on, where that can change later: the password's hash.
    ``expires_s`` is when the login ends (seconds since 1970). ``rules`` are those that came with
    the login, beside the file's. ``certificate_name`` is that of the client's certificate, whoever
    has logged it in; empty if it has shown none.
    """

    user_name: str
    authenticator: str
    proof: str = field(default="", repr=False)
    expires_s: float | None = None
    rules: tuple[Rule, ...] = ()
    certificate_name: str = ""

    @property
    def owner(self) -> str | None:
        """Whose the sessions of such a client are; None where clients are not told apart."""
        return None if self.authenticator == UNCHECKED else self.user_name


@dataclass(frozen=True, slots=True)
class Denied:
    """Why there is no login; ``outcome`` is what the metrics count it as."""

    authenticator: str
    outcome: str
    why: str
    reason_code: int = ReasonCode.BAD_USER_NAME_OR_PASSWORD


class Slow(NamedTuple):
    """A login that takes a thread: ``work`` is done there, ``decide`` with its result here."""

    authenticator: str
    work: Callable[[], Any]
    decide: Callable[[Any], Identity | Denied]


class Authenticator(Protocol):
    """One way to log in. Several form a chain: the first that answers decides."""

    @property
    def name(self) -> str:
        """What the metrics call it."""
        ...

    def log_in(self, shown: Credentials) -> Identity | Denied | Slow | None:
        """Say who a client is; None if what it shows is not for this authenticator."""
        ...

    def holds(self, identity: Identity) -> bool:
        """Whether a login of this authenticator still stands, after its file has changed."""
        ...
