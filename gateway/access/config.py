"""The ``[access]`` section: who may connect to the gateway, and where rights are configured.

Owns: AccessConfig, its defaults and the reasons for these.
Must not touch: the files that it names; ``access`` reads those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec

from motelog.core.config import SectionFault, refuse
from motelog.core.net.config import is_loopback

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
#: Algorithms with which a token may be signed. Never "none".
JwtAlgorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256",
    "ES384", "EdDSA",
]  # fmt: skip
_SYMMETRIC: Final = ("HS256", "HS384", "HS512")


class AccessConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who may connect to the gateway and what they may do. Without it everyone may do
    everything."""

    password_file: str = ""
    """File of users and password hashes, written by `motelog user`. A change takes effect within
    five seconds."""

    acl_file: str = ""
    """TOML file of rules: who may publish and subscribe to what. What no rule allows is refused.
    Empty: every user who has logged in may do everything."""

    allow_anonymous: bool = False
    """Whether clients may connect without a user name."""

    jwt_keys_file: str = ""
    """JSON file with the keys (a JWKS) that sign tokens, which clients send as their password."""

    jwt_keys_url: str = ""
    """URL of the keys, instead of a file. They are fetched again every `jwt_keys_s`, and when a
    token names an unknown key."""

    jwt_keys_s: Annotated[float, msgspec.Meta(ge=10, le=86_400)] = 300.0
    """Seconds between fetches of the keys. While the URL does not answer, the last keys are used
    for an hour."""

    jwt_algorithms: tuple[JwtAlgorithm, ...] = ("RS256", "ES256", "EdDSA")
    """Signature algorithms of tokens; any other is refused, whatever the token says."""

    jwt_audience: str = ""
    """The ``aud`` that a token must have, which says that the token is for this gateway."""

    jwt_issuer: str = ""
    """The ``iss`` that a token must have. Empty: any."""

    jwt_user_claim: str = "sub"
    """The claim with the user name."""

    jwt_client_id_claim: str = ""
    """The claim that the client identifier must equal. Empty: any client identifier is allowed."""

    jwt_rules_claim: str = ""
    """The claim with rules, each like a `[[rule]]` of the ACL file without users, in addition to
    that file's. A token may lack it. Empty: tokens carry no rules."""

    http_url: str = ""
    """URL of a service that checks logins; docs/access.md describes its answers. While it does not
    answer, logins are refused."""

    http_timeout_s: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 5.0
    """Seconds to wait for its answer."""

    http_known_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60.0
    """Seconds for which a positive answer is cached. 0: the service is asked at each login."""

    http_rules: bool = False
    """Whether its answers may contain rules, as tokens may."""

    certificate_users: bool = False
    """Whether the name in a client's certificate is its user name, so that it needs no password."""

    login_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    """Threads that check passwords, about 50 ms of CPU each unless known to be right, or ask the
    service."""

    logins_waiting_max: PositiveInt = 1000
    """Most logins that wait for such a thread; further clients get "server busy"."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    @property
    def has_logins(self) -> bool:
        """Whether there is any way to log in."""
        return bool(
            self.password_file or self.has_tokens or self.http_url or self.certificate_users
        )

    @property
    def has_tokens(self) -> bool:
        """Whether clients may log in with a token."""
        return bool(self.jwt_keys_file or self.jwt_keys_url)

    @property
    def has_rules(self) -> bool:
        """Whether rules limit what a client may do; else every client may do everything."""
        return bool(
            self.acl_file
            or (self.has_tokens and self.jwt_rules_claim)
            or (self.http_url and self.http_rules)
        )

    @property
    def logins(self) -> frozenset[str]:
        """The configured ways to log in, by the names of their authenticators."""
        keys = {
            "certificate": self.certificate_users,
            "jwt": self.has_tokens,
            "password": self.password_file,
            "scram": self.password_file,
            "http": self.http_url,
            "anonymous": self.allow_anonymous and self.is_set,
        }
        return frozenset(name for name, value in keys.items() if value)

    @property
    def is_set(self) -> bool:
        """Whether clients are authenticated at all."""
        return self.has_logins or bool(self.acl_file)

    def _faults(self) -> Iterator[SectionFault]:
        if self.has_tokens and not self.jwt_audience:
            text = (
                "tokens need an audience: without it a token for another service would be accepted"
            )
            yield SectionFault(text, ("jwt_audience",))
        if self.has_tokens and not self.jwt_algorithms:
            yield SectionFault("the list of algorithms for tokens is empty", ("jwt_algorithms",))
        is_symmetric = {name in _SYMMETRIC for name in self.jwt_algorithms}
        if len(is_symmetric) > 1:
            text = (
                "HS algorithms cannot be combined with others: a public key is not a shared secret"
            )
            yield SectionFault(text, ("jwt_algorithms",))
        if self.jwt_keys_file and self.jwt_keys_url:
            text = "give either a file or a URL for the keys of tokens, not both"
            yield SectionFault(text, ("jwt_keys_file", "jwt_keys_url"))
        if self.password_file and self.http_url:
            text = "both would check user name and password: set only one of them"
            yield SectionFault(text, ("password_file", "http_url"))
        for key in ("jwt_keys_url", "http_url"):
            url = getattr(self, key)
            if url and not is_url(url):
                text = f"{key} is not https://HOST/PATH; http:// is allowed only to this machine"
                yield SectionFault(text, (key,))
        if self.acl_file and not (self.has_logins or self.allow_anonymous):
            text = (
                "rules without a way to log in: set password_file, or allow_anonymous = true with"
                " rules for anonymous clients"
            )
            yield SectionFault(text, ("acl_file", "password_file", "allow_anonymous"))


def is_url(text: str) -> bool:
    """Whether the URL is allowed for a service: over TLS, or on this machine."""
    try:
        url = urlsplit(text)
        host = url.hostname or ""
    except ValueError:
        return False
    if url.scheme == "http":
        return is_loopback(host)
    return url.scheme == "https" and bool(host)
