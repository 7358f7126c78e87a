"""Logins by a signed token (JWT) instead of a password.

Owns: what a token must contain, the keys that may sign it.
Must not touch: passwords; what does not look like a token is for other authenticators.
Invariants: the algorithms are those of the configuration, whatever the token's header says, and a
key is used only for its purpose. ``exp`` and ``aud`` are required. No text contains a part of a
token.
Spec: RFC 7519, 7517, 8725.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

import jwt
import msgspec

from motelog.core.addresses import without_logins
from motelog.core.clock import Clock
from motelog.gateway.access.acl import Rule, login_rules
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.access.login import Credentials, Denied, Identity
from motelog.gateway.access.password_file import (
    AccessFileError,
    Stamp,
    check_user_name,
    file_stamp,
    read_text,
)
from motelog.gateway.access.remote import Service, ServiceError

logger = logging.getLogger(__name__)

TOKEN_BYTES_MAX: Final = 16_384
FILE_BYTES_MAX: Final = 1024 * 1024
#: How far clocks may differ.
LEEWAY_S: Final = 10
KEYS_MAX: Final = 100
FETCH_TIMEOUT_S: Final = 10.0
#: How soon after a fetch a token with an unknown key causes the next one.
MISSING_MS: Final = 30_000
#: How long keys stay in use if they cannot be fetched again.
KEPT_MS: Final = 3_600_000

_TOKEN: Final = re.compile(rb"[\w-]+\.[\w-]*\.[\w-]*", re.ASCII)
#: What a token can raise besides PyJWT's own errors: unbounded numbers and nesting.
_FAULTS: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)

_Keys = dict[str, jwt.PyJWK]


class Tokens:
    """The tokens signed by one set of keys."""

    name: Final = "jwt"

    def __init__(self, config: AccessConfig, *, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        #: For display, if it is a URL.
        self.path = config.jwt_keys_file or without_logins(config.jwt_keys_url)
        self._keys: _Keys = {}
        self._service = (
            Service(config.jwt_keys_url, FETCH_TIMEOUT_S, FILE_BYTES_MAX)
            if config.jwt_keys_url
            else None
        )
        #: How often they were due, and when they were last (monotonic milliseconds).
        self._due_count = 0
        self._due_ms = 0
        self._fetched: bytes = b""
        self._fetched_ms = 0
        self._is_one_missing = False

    def stamp(self) -> Stamp:
        """Return a value that changes when the keys must be read again."""
        if self._service is None:
            return file_stamp(self.path)
        now_ms = self._clock.monotonic_ms()
        wait_ms = MISSING_MS if self._is_one_missing else self._config.jwt_keys_s * 1000
        if not self._due_count or now_ms - self._due_ms >= wait_ms:
            self._due_count += 1
            self._due_ms, self._is_one_missing = now_ms, False
        return (self._due_count,)

    def read(self) -> _Keys | None:
        """Return the keys for ``use``, None if they are unchanged; AccessFileError.

        Runs in a thread.
        """
        algorithms = self._config.jwt_algorithms
        if self._service is None:
            return parse_keys(read_text(self.path, FILE_BYTES_MAX), self.path, algorithms)
        try:
            fetched = self._service.ask()
            keys = None if fetched == self._fetched else parse_keys(fetched, self.path, algorithms)
        except (ServiceError, AccessFileError) as exc:
            if self._fetched and self._clock.monotonic_ms() - self._fetched_ms < KEPT_MS:
                logger.warning("the last fetched keys stay in use: %s: %s", self.path, exc)
                return None
            self._fetched = b""
            raise AccessFileError(f"cannot read {self.path}: {exc}") from None
        self._fetched, self._fetched_ms = fetched, self._clock.monotonic_ms()
        return keys

    def use(self, keys: _Keys) -> None:
        """Use the result of ``read``."""
        self._keys = keys

    def close(self) -> None:
        if self._service is not None:
            self._service.close()

    def log_in(self, shown: Credentials) -> Identity | Denied | None:
        token = shown.password
        if token is None or not token.startswith(b"eyJ") or _TOKEN.fullmatch(token) is None:
            return None
        try:
            return self._identity(shown, token)
        except _FAULTS as exc:
            # The error's own text may contain parts of the token.
            return Denied(self.name, "wrong", f"the token is refused: {_reason(exc)}")

    def _identity(self, shown: Credentials, token: bytes) -> Identity:
        config = self._config
        if len(token) > TOKEN_BYTES_MAX:
            raise _RefusedError(f"it has more than {TOKEN_BYTES_MAX} bytes")
        header = jwt.get_unverified_header(token)
        key = self._key_of(header)
        claims = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=config.jwt_audience,
            issuer=config.jwt_issuer or None,
            options={
                "require": ["exp", "aud"],
                # The times are compared below with the gateway's own clock.
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )
        now_s = self._clock.now_ms() / 1000
        expires_s = _time(claims, "exp")
        assert expires_s is not None, "it is required"
        begins_s = _time(claims, "nbf")
        if expires_s <= now_s - LEEWAY_S:
            raise _RefusedError("it has expired")
        if begins_s is not None and begins_s > now_s + LEEWAY_S:
            raise _RefusedError("it is not valid yet")
        user = claims.get(config.jwt_user_claim)
        if not isinstance(user, str):
            raise _RefusedError(f"its {config.jwt_user_claim!r} is missing or not text")
        check_user_name(user)
        if config.jwt_client_id_claim:
            client_id = claims.get(config.jwt_client_id_claim)
            if not isinstance(client_id, str) or client_id != shown.client_id:
                raise _RefusedError("it is for another client identifier")
        return Identity(user, self.name, key.key_id or "", expires_s, self._rules(claims))

    def _rules(self, claims: dict[str, Any]) -> tuple[Rule, ...]:
        name = self._config.jwt_rules_claim
        if not name or name not in claims:
            return ()
        try:
            return login_rules(claims[name])
        except ValueError as exc:
            raise _RefusedError(str(exc)) from None

    def _key_of(self, header: dict[str, Any]) -> jwt.PyJWK:
        """Return the key that a token names; without a name, the only one."""
        if "crit" in header:
            raise _RefusedError("it needs an extension")
        name = header.get("kid", "")
        key = self._keys.get(name) if isinstance(name, str) else None
        if key is None and not name and len(self._keys) == 1:
            (key,) = self._keys.values()
        if key is None:
            self._is_one_missing = True
            raise _RefusedError("there is no such key")
        if header.get("alg") != key.algorithm_name:
            raise _RefusedError("its algorithm is not that of the key")
        return key

    def holds(self, identity: Identity) -> bool:
        return identity.proof in self._keys


class _RefusedError(ValueError):
    """The token is refused, for a reason that may be sent to the client."""


def parse_keys(text: str | bytes, path: str, algorithms: tuple[str, ...]) -> _Keys:
    """Return the keys of a JWKS, by name; AccessFileError names ``path``."""
    try:
        value = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise AccessFileError(f"{path}: not a JSON object") from None
    listed = value.get("keys")
    if not isinstance(listed, list) or not 1 <= len(listed) <= KEYS_MAX:
        raise AccessFileError(f"{path}: 'keys' is not a list of 1 to {KEYS_MAX} keys")
    keys: _Keys = {}
    for number, one in enumerate(listed, 1):
        try:
            key = _key(one, algorithms)
        except _FAULTS as exc:
            raise AccessFileError(f"{path}: key {number}: {_reason(exc)}") from None
        name = key.key_id or ""
        if name in keys:
            raise AccessFileError(f"{path}: key {number}: another key has the same 'kid'")
        keys[name] = key
    return keys


def _key(value: Any, algorithms: tuple[str, ...]) -> jwt.PyJWK:
    if not isinstance(value, dict) or not isinstance(value.get("kid", ""), str):
        raise _RefusedError("not an object with a text 'kid'")
    if value.get("use", "sig") != "sig":
        raise _RefusedError("it is not for signatures")
    key = jwt.PyJWK(value)
    if key.algorithm_name not in algorithms:
        raise _RefusedError(f"{key.algorithm_name} is not one of {', '.join(algorithms)}")
    return key


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _RefusedError(f"its {name!r} is not a number")
    if not 0 <= value < 1 << 53:  # NaN is not, either
        raise _RefusedError(f"its {name!r} is not a time")
    return float(value)


def _reason(error: BaseException) -> str:
    """Return the reason in our own words: a library's text may quote the token."""
    match error:
        case _RefusedError():
            return str(error)
        case jwt.InvalidAudienceError():
            return "it is for another audience"
        case jwt.InvalidIssuerError():
            return "it is from another issuer"
        case jwt.MissingRequiredClaimError():
            return "it lacks 'exp' or 'aud'"
        case jwt.InvalidSignatureError():
            return "its signature is wrong"
        case jwt.PyJWKError() | jwt.InvalidKeyError():
            return "it is not a usable key"
    return "it cannot be read"
