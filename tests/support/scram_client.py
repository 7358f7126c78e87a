"""The client's side of SCRAM-SHA-256, for tests. Owns: its two messages. Spec: RFC 5802, 7677."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramClient:
    def __init__(self, user: str, password: str, nonce: str = "fyko+d2lbbFgONRv9qkxdawL") -> None:
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}"
        self._password = password.encode()
        self.first = f"n,,{self._bare}".encode()
        self.signature = b""

    def answer(self, challenge: bytes) -> bytes:
        """Return the last message; ``signature`` is what the server has to say then."""
        nonce, salt, iterations = (part[2:] for part in challenge.decode().split(",", 2))
        salted = hashlib.pbkdf2_hmac(
            "sha256", self._password, base64.b64decode(salt), int(iterations)
        )
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        last = f"c=biws,r={nonce}"
        said = ",".join((self._bare, challenge.decode(), last)).encode()
        mask = hmac.digest(hashlib.sha256(client_key).digest(), said, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, mask, strict=True))
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        self.signature = b"v=" + base64.b64encode(hmac.digest(server_key, said, "sha256"))
        return f"{last},p={base64.b64encode(proof).decode()}".encode()
