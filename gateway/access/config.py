"""The ``[access]`` section: who may connect to the gateway, and where their rights are written.

Owns: AccessConfig, its defaults and the reasons for them.
Must not touch: the files that it names; ``access`` reads those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

from motelog.core.config import SectionFault, refuse

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
#: What a token may be signed by. Never "none".
JwtAlgorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256",
    "ES384", "EdDSA",
]  # fmt: skip
_SYMMETRIC: Final = ("HS256", "HS384", "HS512")


class AccessConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who may connect to the gateway and what they may do. Empty: everyone may do everything, as on
    a machine of one's own."""

    password_file: str = ""
    """File of users and password hashes, written by `motelog user`. A change takes effect within
    five seconds."""

    acl_file: str = ""
    """TOML file of rules: who may publish and subscribe to what. What no rule allows is refused.
    Empty: whoever has logged in may do everything."""

    allow_anonymous: bool = False
    """Whether clients may connect without a user name."""

    jwt_keys_file: str = ""
    """JSON file of keys (a JWKS) by which tokens are signed that clients send as their password."""

    jwt_algorithms: tuple[JwtAlgorithm, ...] = ("RS256", "ES256", "EdDSA")
    """What tokens may be signed by; any other is refused, whatever the token says."""

    jwt_audience: str = ""
    """The ``aud`` that a token must have; it says that the token is meant for this gateway."""

    jwt_issuer: str = ""
    """The ``iss`` that a token must have. Empty: any."""

    jwt_user_claim: str = "sub"
    """The claim that names the user."""

    jwt_client_id_claim: str = ""
    """The claim that a client identifier must equal. Empty: any client identifier goes."""

    certificate_users: bool = False
    """Whether the name in a client's certificate is its user name, so that it needs no password."""

    login_threads: Annotated[int, msgspec.Meta(ge=1, le=16)] = 2
    """Threads that compare passwords, which takes some 50 ms of a core for each; what has been
    right before costs nothing again."""

    logins_waiting_max: PositiveInt = 1000
    """Logins that wait for such a thread; further clients are told to come later."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    @property
    def has_logins(self) -> bool:
        """Whether anybody can log in."""
        return bool(self.password_file or self.jwt_keys_file or self.certificate_users)

    @property
    def is_login_needed(self) -> bool:
        """Whether nobody comes in who has not logged in."""
        return self.has_logins and not self.allow_anonymous

    @property
    def is_set(self) -> bool:
        """Whether clients are told apart at all."""
        return self.has_logins or bool(self.acl_file)

    def _faults(self) -> Iterator[SectionFault]:
        if self.jwt_keys_file and not self.jwt_audience:
            text = "tokens need an audience: a token meant for another service would do here"
            yield SectionFault(text, ("jwt_audience",))
        if self.jwt_keys_file and not self.jwt_algorithms:
            yield SectionFault("there is no algorithm that a token may have", ("jwt_algorithms",))
        is_symmetric = {name in _SYMMETRIC for name in self.jwt_algorithms}
        if len(is_symmetric) > 1:
            text = "HS algorithms and others exclude each other: a public key is no shared secret"
            yield SectionFault(text, ("jwt_algorithms",))
        if self.acl_file and not (self.has_logins or self.allow_anonymous):
            text = (
                "rules without a way to log in: set password_file, or allow_anonymous = true with"
                " rules for anonymous clients"
            )
            yield SectionFault(text, ("acl_file", "password_file", "allow_anonymous"))
