"""HTTP services: checking logins, fetching the keys of tokens.

Owns: the requests, the format of answers, cached answers.
Must not touch: the event loop; every request is made in a thread.
Invariants: if a service does not answer, or its answer is late, too large or malformed, logins are
refused. Redirects are not followed, and proxies of the environment are not used. No text contains a
secret or a part of an answer.

    POST URL {"client_id": "c1", "user_name": "u", "password": "p", "password_base64": "cA==",
              "certificate_name": null, "host": "192.0.2.7"}
    200 {"result": "allow", "user_name": "u", "expires_s": 1800000000, "rules": [...]}
    200 {"result": "deny"}
"""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from collections import OrderedDict
from functools import partial
from typing import Any, Final, Literal

import msgspec

from motelog.core.clock import Clock
from motelog.gateway.access.acl import login_rules
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.access.login import Credentials, Denied, Identity, Slow
from motelog.gateway.access.password_file import check_user_name
from motelog.gateway.mqtt.packet_types import ReasonCode

ANSWER_BYTES_MAX: Final = 65_536
#: Logins whose answers are cached.
KNOWN_MAX: Final = 100_000


class _Answer(msgspec.Struct, frozen=True):
    """The service's answer; further fields are ignored."""

    result: Literal["allow", "deny"]
    user_name: str | None = None
    expires_s: float | None = None
    rules: list[dict[str, Any]] | None = None


class ServiceError(Exception):
    """There is no usable answer; the text says why, without its content."""


class RemoteLogins:
    """The users of an HTTP service."""

    name: Final = "http"

    def __init__(self, config: AccessConfig, *, clock: Clock) -> None:
        self._service = Service(config.http_url, config.http_timeout_s, ANSWER_BYTES_MAX)
        self._has_rules = config.http_rules
        self._known_ms = round(config.http_known_s * 1000)
        self._clock = clock
        #: Digest of the credentials, under a random key -> (identity, until when).
        self._known: OrderedDict[bytes, tuple[Identity, int]] = OrderedDict()
        self._key = secrets.token_bytes(32)

    def log_in(self, shown: Credentials) -> Identity | Denied | Slow | None:
        if shown.user_name is None and shown.password is None and shown.certificate_name is None:
            return None
        digest = self._digest(shown)
        known = self._known.get(digest)
        if known is not None:
            identity, until_ms = known
            ends_s = identity.expires_s
            is_over = ends_s is not None and ends_s <= self._clock.now_ms() / 1000
            if self._clock.monotonic_ms() < until_ms and not is_over:
                return identity
            del self._known[digest]
        return Slow(self.name, partial(self._ask, shown), partial(self._decide, shown, digest))

    def holds(self, identity: Identity) -> bool:
        """Whether a login is still valid: it ends when the service has said so."""
        return True

    def close(self) -> None:
        self._service.close()

    def _ask(self, shown: Credentials) -> _Answer | str:
        """Return the answer, or why there is no usable one. Runs in a thread."""
        password = shown.password
        asked = {
            "client_id": shown.client_id,
            "user_name": shown.user_name,
            "password": None if password is None else _text(password),
            "password_base64": None if password is None else base64.b64encode(password).decode(),
            "certificate_name": shown.certificate_name,
            "host": shown.host,
        }
        try:
            return msgspec.json.decode(self._service.ask(asked), type=_Answer)
        except (msgspec.DecodeError, RecursionError):
            return "its answer is malformed"
        except ServiceError as exc:
            return str(exc)

    def _decide(
        self, shown: Credentials, digest: bytes, answer: _Answer | str
    ) -> Identity | Denied:
        if isinstance(answer, str):
            why = f"logins cannot be checked at the moment: {answer}"
            return Denied(self.name, "busy", why, ReasonCode.SERVER_BUSY)
        if answer.result != "allow":
            return Denied(self.name, "wrong", "the user name or password is wrong")
        try:
            user = answer.user_name or shown.user_name or shown.certificate_name or ""
            check_user_name(user)
            rules = login_rules(answer.rules or []) if self._has_rules else ()
        except ValueError:
            why = "logins cannot be checked at the moment: its answer is malformed"
            return Denied(self.name, "busy", why, ReasonCode.SERVER_BUSY)
        identity = Identity(user, self.name, expires_s=answer.expires_s, rules=rules)
        if self._known_ms:
            self._known[digest] = identity, self._clock.monotonic_ms() + self._known_ms
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        return identity

    def _digest(self, shown: Credentials) -> bytes:
        parts = (shown.client_id, shown.user_name, shown.password, shown.certificate_name)
        return hmac.digest(self._key, msgspec.msgpack.encode((*parts, shown.host)), "sha256")


class Service:
    """One of the operator's services, at a URL; connections are kept open. For any thread."""

    def __init__(self, url: str, timeout_s: float, bytes_max: int) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._bytes_max = bytes_max
        self._client: Any = None

    def ask(self, asked: dict[str, Any] | None = None) -> bytes:
        """Return the body of an answer with status 200, to a GET if ``asked`` is None;
        ServiceError."""
        import httpx  # imported here to save memory if it is not used

        if self._client is None:
            self._client = httpx.Client(timeout=self._timeout_s, trust_env=False)
        ends_s = time.monotonic() + self._timeout_s
        body = bytearray()
        try:
            method = "GET" if asked is None else "POST"
            with self._client.stream(method, self._url, json=asked) as answer:
                if answer.status_code != 200:
                    raise ServiceError(f"the service answers {answer.status_code}")
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > self._bytes_max:
                        raise ServiceError(f"the answer has more than {self._bytes_max} bytes")
                    if time.monotonic() > ends_s:
                        raise ServiceError(f"the answer takes longer than {self._timeout_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
            text = f"the service does not answer ({type(exc).__name__})"
            raise ServiceError(text) from None
        return bytes(body)

    def close(self) -> None:
        """Close its connections; the next request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _text(password: bytes) -> str | None:
    try:
        return password.decode()
    except UnicodeDecodeError:
        return None
