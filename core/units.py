"""Sizes and times with a unit, as people write them: "64MiB", "1GB", "72h", "500ms".

Owns: the units and their spelling, and the unit of a plain number by the name of its key.
Must not touch: files, the environment, what a key means.

    key            plain number    also
    *_bytes*       bytes           B kB MB GB TB (powers of 1000), KiB MiB GiB TiB (of 1024)
    *_ms*          milliseconds    ms s m h d
    *_s, *_s_*     seconds         the same
    *_hours        hours           the same
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_SIZES: Final = {
    **{unit: Fraction(1000**power) for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))},
    **{unit: Fraction(1024**power) for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)},
}
_TIMES_MS: Final = {
    "ms": Fraction(1),
    "s": Fraction(1000),
    "m": Fraction(60_000),
    "h": Fraction(3_600_000),
    "d": Fraction(86_400_000),
}
_QUANTITY: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?) ?([A-Za-z]{1,3})")


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a key's plain number; ``scale`` has each unit of a text in terms of it."""

    name: str
    scale: Mapping[str, Fraction]
    example: str

    def parse(self, text: str) -> Fraction:
        """Return ``text`` as a number of this unit; ValueError if it is malformed."""
        found = _QUANTITY.fullmatch(text.strip())
        worth = self.scale.get(_SPELLING.get(found[2].lower(), "")) if found else None
        if found is None or worth is None:
            raise ValueError(f"{text!r} is not a number with a unit ({', '.join(self.scale)})")
        return Fraction(found[1]) * worth


# Case does not matter: "mb" cannot mean millibytes.
_SPELLING: Final = {unit.lower(): unit for unit in (*_SIZES, *_TIMES_MS)}


def unit_of(key: str) -> Unit | None:
    """Return the unit of a key's plain number by its name; None if it is a plain count."""
    words = key.split("_")
    return next((unit for word, unit in _UNITS.items() if word in words), None)


def _time(name: str, worth_ms: int, example: str) -> Unit:
    return Unit(name, {unit: ms / worth_ms for unit, ms in _TIMES_MS.items()}, example)


# Word of a key -> its unit. Bytes go first: publish_bytes_per_s_max is a size.
_UNITS: Final = {
    "bytes": Unit("bytes", _SIZES, "64MiB"),
    "ms": _time("milliseconds", 1, "500ms"),
    "s": _time("seconds", 1000, "30s"),
    "hours": _time("hours", 3_600_000, "72h"),
}


def span_text(seconds: float) -> str:
    """Return a duration for people, in its two largest units: "3 d 4 h", "12 s"."""
    for unit, worth, below in (("d", 86_400, "h"), ("h", 3600, "min"), ("min", 60, "s")):
        if seconds >= worth:
            rest = int(seconds % worth // (worth // 24 if unit == "d" else worth // 60))
            return f"{int(seconds // worth)} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{int(seconds)} s"
