"""Password and ACL files for tests, with a hash that costs nothing.

Owns: the files' content. Must not touch: what comes of it.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from motelog.gateway.access.config import AccessConfig


@cache
def quick_hash(password: str) -> str:
    """Return a hash as the file has it, of the least cost that it allows."""
    salt = b"salt of tests..."
    digest = hashlib.scrypt(password.encode(), salt=salt, n=2, r=1, p=1, dklen=32)
    parts = (base64.b64encode(part).decode() for part in (salt, digest))
    return "$scrypt$ln=1,r=1,p=1$" + "$".join(parts)


def write_passwords(path: Path, **passwords: str) -> None:
    path.write_text("".join(f"{user}:{quick_hash(told)}\n" for user, told in passwords.items()))


def access_of(
    folder: Path, acl: str | None = None, *, allow_anonymous: bool = False
) -> AccessConfig:
    """Return the section for alice (password "a"), bob ("b") and the rules of ``acl``."""
    write_passwords(folder / "passwords", alice="a", bob="b")
    acl_file = ""
    if acl is not None:
        (folder / "acl.toml").write_text(acl)
        acl_file = str(folder / "acl.toml")
    return AccessConfig(
        password_file=str(folder / "passwords"), acl_file=acl_file, allow_anonymous=allow_anonymous
    )
