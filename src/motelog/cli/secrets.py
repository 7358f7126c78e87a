"""Removing secrets from texts that leave the machine.

Owns: what counts as a secret. Must not touch: where texts come from.

Two filters: values that are known from the machine's own files (password hashes, keys, tokens) are
removed wherever they occur; so is everything that looks like a secret, by its name or its form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from motelog.core.addresses import REMOVED, without_logins

#: Shorter values are ordinary words.
_KNOWN_CHARACTERS_MIN: Final = 7
_NAME: Final = (
    r"[\w.-]*(?:passw(?:or)?d|passwd|secret|token|credential|api_?key|access_?key)[\w.-]*"
)
_IS_NAME: Final = re.compile(_NAME, re.IGNORECASE)
_SHAPES: Final = (
    # A PEM block, except certificates, which are public.
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
    re.compile(r"\beyJ[\w-]{6,}\.[\w-]+\.[\w-]*"),  # a JSON Web Token
    re.compile(r"\bmotelog-[\w-]{40,}"),  # a token of the admin listener
    re.compile(r"(?i)(?<=\bbearer )\S+"),
    re.compile(r"(?i)(?<=\bbasic )[\w+/=]{6,}"),
    re.compile(r"\$(?:scrypt|pbkdf2|7|6|5|2[aby])[^\s\"']{8,}"),  # hashes of passwords
)
_PAIR: Final = re.compile(
    rf"(?i)(?P<name>[\"']?\b{_NAME}[\"']?\s*[=:]\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;}}\]]+)"
)
#: Keys whose values are file names and not secrets.
_FILES: Final = ("_file", "_ca", "_certificate")


def is_secret_name(name: str) -> bool:
    """Return whether a key or variable of this name has a secret as value, not a file's name."""
    last = name.rpartition(".")[2].lower()
    return bool(_IS_NAME.search(last)) and not last.endswith(_FILES)


def secrets_in_files(paths: Iterable[str]) -> set[str]:
    """Return the values after ``:`` and ``=`` in files of passwords, accounts, tokens and keys."""
    found: set[str] = set()
    for path in paths:
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            name, *parts = [part.strip(" \t\"',{}[]-") for part in re.split(r"[:=]", line)]
            found.update(part for part in (*parts, line.strip()) if _is_long(part))
            if _IS_NAME.search(name):
                found.update(part for part in parts if part)
        if "PRIVATE KEY" in text:
            found.update(line for line in text.splitlines() if _is_long(line))
    return found


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """Return the text with secrets replaced."""
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, REMOVED)
    for shape in _SHAPES:
        text = shape.sub(REMOVED, text)
    return _PAIR.sub(_pair_without, without_logins(text))


def _pair_without(pair: re.Match[str]) -> str:
    name = re.sub(r"[\"'\s=:]", "", pair["name"])
    return pair["name"] + REMOVED if is_secret_name(name) else pair[0]


def value_without(key: str, value: Any) -> Any:
    """Return a key's value, or the note that it was removed."""
    return REMOVED if value and is_secret_name(key) else value


def _is_long(text: str) -> bool:
    return len(text) >= _KNOWN_CHARACTERS_MIN and not text.isalpha()
