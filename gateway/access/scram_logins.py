"""Logins by SCRAM-SHA-256, of the users in the password file who have a verifier.

Owns: who an exchange ends with. Must not touch: its messages (``scram``), packets, the file.
Invariants: a user that there is not, or who has no verifier, gets the same answers as a wrong
password. Nothing of an exchange gets into a text.
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
    nobody,
    parse_verifier,
)


class ScramLogins:
    """The users of a password file who have a verifier."""

    name: Final = "scram"

    def __init__(self, told: Callable[[str], str | None]) -> None:
        """``told`` has the text of a user's hash, as the file says it now."""
        self._told = told
        self._key = secrets.token_bytes(32)

    def log_in(self, shown: Credentials) -> Identity | Denied | None:
        """A login of one packet is for others."""
        return None

    def holds(self, identity: Identity) -> bool:
        return self._told(identity.user_name) == identity.proof

    def begin(self, message: bytes) -> Exchange:
        """Return the exchange that a client's first message begins; ScramError."""
        return Exchange(message, self._find)

    def finish(self, exchange: Exchange, message: bytes) -> tuple[Identity, bytes] | Denied:
        """Return who the client is and the server's last message."""
        wrong = Denied(self.name, "wrong", "user name or password are wrong")
        try:
            shown = exchange.finish(message)
        except ScramError as exc:
            return Denied(self.name, "wrong", f"the login is refused: {exc}")
        told = self._told(exchange.user_name)
        # The file may have changed meanwhile: what counts is what it says now.
        if shown is None or told is None or told != exchange.verifier.text:
            return wrong
        return Identity(exchange.user_name, self.name, told), shown

    def _find(self, user_name: str) -> Verifier:
        """Return a user's verifier; of one who has none, one that fits no password."""
        told = self._told(user_name)
        if told is not None and told.startswith(VERIFIER):
            return parse_verifier(told)
        return nobody(user_name, self._key)
