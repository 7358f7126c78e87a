"""Logins by SCRAM-SHA-256, of the users in the password file who have a verifier.

Owns: the outcome of an exchange. Must not touch: its messages (``scram``), packets, the file.
Invariants: an unknown user, or one without a verifier, gets the same answers as a wrong password.
No text contains a part of an exchange.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from motelog.gateway.access.login import Credentials, Denied, Identity
from motelog.gateway.access.scram import (
    VERIFIER,
    Exchange,
    ScramError,
    Verifier,
    parse_verifier,
    unknown_verifier,
)


class ScramLogins:
    """The users of a password file who have a verifier."""

    name: Final = "scram"

    def __init__(self, hash_of: Callable[[str], str | None]) -> None:
        """``hash_of`` returns the text of a user's present hash."""
        self._hash_of = hash_of
        self._key = secrets.token_bytes(32)

    def log_in(self, shown: Credentials) -> Identity | Denied | None:
        """Return None: a login of one packet is for other authenticators."""
        return None

    def holds(self, identity: Identity) -> bool:
        return self._hash_of(identity.user_name) == identity.proof

    def begin(self, message: bytes) -> Exchange:
        """Return the exchange that a client's first message begins; ScramError."""
        return Exchange(message, self._find)

    def finish(self, exchange: Exchange, message: bytes) -> tuple[Identity, bytes] | Denied:
        """Return who the client is and the server's last message."""
        wrong = Denied(self.name, "wrong", "the user name or password is wrong")
        try:
            shown = exchange.finish(message)
        except ScramError as exc:
            return Denied(self.name, "wrong", f"the login is refused: {exc}")
        hash_text = self._hash_of(exchange.user_name)
        # The file may have changed meanwhile: its present content counts.
        if shown is None or hash_text is None or hash_text != exchange.verifier.text:
            return wrong
        return Identity(exchange.user_name, self.name, hash_text), shown

    def _find(self, user_name: str) -> Verifier:
        """Return a user's verifier; for a user without one, a verifier that no password fits."""
        hash_text = self._hash_of(user_name)
        if hash_text is not None and hash_text.startswith(VERIFIER):
            return parse_verifier(hash_text)
        return unknown_verifier(user_name, self._key)
