"""Logins by client certificate: the name in it is the user.

Owns: only that. Must not touch: certificates, which were checked where TLS ends.
"""

from __future__ import annotations

from typing import Final

from motelog.gateway.access.login import Credentials, Denied, Identity
from motelog.gateway.access.password_file import check_user_name
from motelog.gateway.mqtt.packet_types import ReasonCode


class Certificates:
    """Names in certificates as users."""

    name: Final = "certificate"

    def log_in(self, shown: Credentials) -> Identity | Denied | None:
        user = shown.certificate_name
        if user is None:
            return None
        try:
            check_user_name(user)
        except ValueError:
            why = "the name in the certificate is not a valid user name"
            return Denied(self.name, "wrong", why, ReasonCode.NOT_AUTHORIZED)
        return Identity(user, self.name)

    def holds(self, identity: Identity) -> bool:
        return True  # as long as the connection does
