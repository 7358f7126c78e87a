"""The parts of a login: a client's credentials, its identity, authenticators.

Owns: Credentials, Identity, Denied, Slow, the Authenticator protocol.
Must not touch: files, threads, connections.
Invariant: no text made from these values contains a secret, neither a log line nor a traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from motelog.gateway.access.acl import Rule
from motelog.gateway.mqtt.packet_types import ReasonCode

#: The authenticator of clients that do not log in.
ANONYMOUS: Final = "anonymous"
#: The authenticator if there is no authentication: the name is what the client claims.
UNCHECKED: Final = ""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client presents at CONNECT; ``host`` is its address.

    ``logins`` are the authenticators of its listener; empty: all.

    ``method`` is the enhanced authentication that it begins, ``data`` its first message.
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
    """Who a client is, and the authenticator that says so; anonymous ones have no user name.

    ``proof`` is what the login depends on if that can change later: the password's hash.
    ``expires_s`` is when the login ends (seconds since 1970). ``rules`` are those carried by the
    login, in addition to the file's. ``certificate_name`` is that of the client's certificate,
    however it logged in; empty without a certificate.
    """

    user_name: str
    authenticator: str
    proof: str = field(default="", repr=False)
    expires_s: float | None = None
    rules: tuple[Rule, ...] = ()
    certificate_name: str = ""

    @property
    def owner(self) -> str | None:
        """The owner of such a client's sessions; None if there is no authentication."""
        return None if self.authenticator == UNCHECKED else self.user_name


@dataclass(frozen=True, slots=True)
class Denied:
    """Why a login is refused; ``outcome`` is its label in the metrics."""

    authenticator: str
    outcome: str
    why: str
    reason_code: int = ReasonCode.BAD_USER_NAME_OR_PASSWORD


class Slow(NamedTuple):
    """A login that needs a thread: ``work`` runs there, then ``decide`` here with its result."""

    authenticator: str
    work: Callable[[], Any]
    decide: Callable[[Any], Identity | Denied]


class Authenticator(Protocol):
    """One way to log in. Several form a chain: the first that answers decides."""

    @property
    def name(self) -> str:
        """Its name in the metrics."""
        ...

    def log_in(self, shown: Credentials) -> Identity | Denied | Slow | None:
        """Return the client's identity; None if its credentials are not for this authenticator."""
        ...

    def holds(self, identity: Identity) -> bool:
        """Whether a login of this authenticator is still valid after its file has changed."""
        ...
