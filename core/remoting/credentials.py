"""Credentials of a remoting client, and the signature of a request.

Owns: Credentials, what is signed and how. Must not touch: files, connections, permissions.
Spec: RocketMQ AclClientRPCHook, AclUtils.combineRequestContent, AclSigner.

    signature = base64(HMAC-SHA1(secret key, values of all header fields in the order of their
                names, without Signature's, then the body))

It binds a request to a key only, neither to a time nor to a connection. Anyone who can read the
traffic can replay a request and see its content.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Final

from motelog.core.remoting.frames import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"

# Clients up to 4.9.3 add this field and do not sign it.
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_VERSION_4_9_3: Final = 399


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account with its secret, which is left out of its text representations."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            # The text omits the values: by mistake either may contain the secret.
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"credentials need a {name}, a str that is not empty")

    def sign(self, command: RemotingCommand) -> None:
        """Add the access key and the signature to a request before it is sent.

        Signing it again, for another server, replaces them.
        """
        command.ext[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            command.ext[SECURITY_TOKEN] = self.security_token
        command.ext[SIGNATURE] = signature(command, self.secret_key.encode())


def signature(command: RemotingCommand, secret: bytes) -> str:
    """Return the correct signature of a request."""
    ext = command.ext
    is_old = command.version <= _VERSION_4_9_3
    # The names are RocketMQ's and ASCII, so their order is the same as in Java.
    values = [
        ext[name]
        for name in sorted(ext)
        if name != SIGNATURE and not (is_old and name == _UNIQUE_KEY_QUERY)
    ]
    # Java also writes a question mark for half a surrogate pair.
    content = "".join(values).encode(errors="replace") + command.body
    return b64encode(hmac.digest(secret, content, "sha1")).decode()


def is_signed(command: RemotingCommand, secret: bytes) -> bool:
    """Return whether a request's signature is correct, in time independent of the difference."""
    given = command.ext.get(SIGNATURE, "").encode(errors="replace")
    return hmac.compare_digest(signature(command, secret).encode(), given)
