"""SCRAM-SHA-256: a login without sending the password, in which the server proves its identity too.

Owns: the verifier in the password file, the messages of an exchange.
Must not touch: the packets that carry the messages, who has logged in (``scram_logins``).
Invariant: reading a verifier does not allow a login. No text contains a part of an exchange.
Spec: RFC 5802 (without channel binding), RFC 7677; MQTT 5.0 section 4.12.

    client: n,,n=alice,r=NONCE                     server: r=NONCE2,s=SALT,i=ITERATIONS
    client: c=biws,r=NONCE2,p=PROOF                server: v=SIGNATURE

    alice:$scram-sha-256$i=15000$<salt>$<stored key>$<server key>       in base64
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final, NamedTuple

METHOD: Final = "SCRAM-SHA-256"
#: The iterations of the client's key derivation; RFC 7677 requires at least 4096.
ITERATIONS: Final = 15_000
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 1_000_000
MESSAGE_BYTES_MAX: Final = 4096
NONCE_CHARS_MAX: Final = 256

_KEY_BYTES: Final = 32
_SALT_BYTES: Final = 16
_HASH: Final = re.compile(
    r"\$scram-sha-256\$i=(\d{1,7})\$([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+)",
    re.ASCII,
)
VERIFIER: Final = "$scram-sha-256$"
#: Header, user name and nonce; extensions may follow, and are ignored.
_FIRST: Final = re.compile(
    r"((?:n|y),(?:a=([^,]*))?,)(n=([^,]*),r=([\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]=[^,]*)*)"
)
_FINAL: Final = re.compile(
    r"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]=[^,]*)*),p=([A-Za-z0-9+/=]+)"
)


class ScramError(ValueError):
    """A client's message does not belong to the exchange; the text may be sent to it."""


class Verifier(NamedTuple):
    """What the server stores for a password."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @property
    def text(self) -> str:
        """The verifier as in the password file."""
        parts = (base64.b64encode(part).decode() for part in self[1:])
        return f"$scram-sha-256$i={self.iterations}$" + "$".join(parts)

    def fits(self, password: bytes) -> bool:
        """Whether it was made from a password; takes about 10 ms without the GIL."""
        made = make_verifier(password, salt=self.salt, iterations=self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)


def make_verifier(
    password: bytes, *, salt: bytes | None = None, iterations: int = ITERATIONS
) -> Verifier:
    """Return the verifier for a password."""
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", _prepared(password), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return Verifier(iterations, salt, hashlib.sha256(client_key).digest(), server_key)


def parse_verifier(text: str) -> Verifier:
    """Return the parsed verifier of the password file; ValueError if it is malformed."""
    found = _HASH.fullmatch(text)
    if found is None:
        raise ValueError("not a hash that `motelog user` writes")
    iterations = int(found[1])
    try:
        salt, stored, server = (
            base64.b64decode(part, validate=True) for part in found.groups()[1:]
        )
    except binascii.Error:
        raise ValueError("not base64") from None
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"iterations must be {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    if not salt or len(stored) != _KEY_BYTES or len(server) != _KEY_BYTES:
        raise ValueError("its salt or keys are too short")
    return Verifier(iterations, salt, stored, server)


class Exchange:
    """One login: ``challenge`` is the server's first message; ``finish`` takes the second."""

    def __init__(
        self, message: bytes, find: Callable[[str], Verifier], *, nonce: str | None = None
    ) -> None:
        """ScramError if ``message``, the client's first one, cannot be read."""
        found = _FIRST.fullmatch(_text(message))
        if found is None:
            raise ScramError("not the first message of SCRAM without channel binding")
        self._header, authorized, self._first, name, theirs = found.groups()
        self.user_name = _unescaped(name)
        if authorized and _unescaped(authorized) != self.user_name:
            raise ScramError("acting for another user is not supported")
        if len(theirs) > NONCE_CHARS_MAX:
            raise ScramError(f"the nonce has more than {NONCE_CHARS_MAX} characters")
        self._nonce = theirs + (nonce or secrets.token_urlsafe(24))
        self.verifier = find(self.user_name)
        salt = base64.b64encode(self.verifier.salt).decode()
        self.challenge = f"r={self._nonce},s={salt},i={self.verifier.iterations}".encode()

    def finish(self, message: bytes) -> bytes | None:
        """Return the server's last message, None if the proof is wrong; ScramError."""
        found = _FINAL.fullmatch(_text(message))
        if found is None:
            raise ScramError("not the last message of SCRAM")
        without_proof, header, nonce, proof_text = found.groups()
        proof = _bytes(proof_text)
        if _bytes(header) != self._header.encode() or len(proof) != _KEY_BYTES:
            raise ScramError("not the last message of this exchange")
        if not hmac.compare_digest(nonce.encode(), self._nonce.encode()):
            raise ScramError("the nonce does not match")
        said = b",".join((self._first.encode(), self.challenge, without_proof.encode()))
        signature = hmac.digest(self.verifier.stored_key, said, "sha256")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(
            hashlib.sha256(client_key).digest(), self.verifier.stored_key
        )
        if not is_right:
            return None
        shown = hmac.digest(self.verifier.server_key, said, "sha256")
        return b"v=" + base64.b64encode(shown)


def unknown_verifier(user_name: str, key: bytes) -> Verifier:
    """Return a verifier that no password fits, for an unknown user; always the same."""
    made = hmac.digest(key, user_name.encode(), "sha512")
    return Verifier(ITERATIONS, made[:_SALT_BYTES], made[-_KEY_BYTES:], made[-_KEY_BYTES:])


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramError(f"a message has more than {MESSAGE_BYTES_MAX} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message is not UTF-8") from None


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("not base64") from None


def _unescaped(name: str) -> str:
    """Return a user name; "," and "=" in it are written =2C and =3D."""
    if re.search("=(?!2C|3D)", name):
        raise ScramError("the user name has an invalid '=' escape")
    return name.replace("=2C", ",").replace("=3D", "=")


def _prepared(password: bytes) -> bytes:
    """Return a password as clients prepare it (SASLprep, RFC 4013, its mappings)."""
    try:
        text = password.decode()
    except UnicodeDecodeError:
        return password
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in text
        if not stringprep.in_table_b1(char)
    )
    return unicodedata.normalize("NFKC", mapped).encode()
