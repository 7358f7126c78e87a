"""Text in payloads -> dates, times, numbers: the part of the reference that all formats share.

Owns: which texts are dates, times or numbers. Must not touch: columns. Spec: RFC 3339, the number
of RFC 8259.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final

#: Milliseconds of 0001-01-01 and of the end of 9999.
TIME_MS_MIN: Final = -62_135_596_800_000
TIME_MS_MAX: Final = 253_402_300_799_999
NUMBER: Final = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_TIME: Final = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    rb"(?:\.([0-9]{1,9}))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_DATE: Final = re.compile(rb"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def date_days(text: bytes) -> int | None:
    """Return the days since 1970 of ``2026-11-21``; None for other texts."""
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    try:
        return date(*map(int, found.groups())).toordinal() - _EPOCH.toordinal()
    except ValueError:
        return None


def time_us(text: bytes) -> int | None:
    """Return the microseconds since 1970 of an RFC 3339 time; None for other texts."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    *day_and_clock, fraction, sign, hours, minutes = found.groups()
    try:
        year, month, day, hour, minute, second = map(int, day_and_clock)
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    offset_s = 0
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            return None
        offset_s = (int(hours) * 3600 + int(minutes) * 60) * (1 if sign == b"+" else -1)
    us = (moment - _EPOCH) // timedelta(microseconds=1)
    return us + int((fraction or b"0").ljust(6, b"0")[:6]) - offset_s * 1_000_000


def decimal_units(found: re.Match[bytes], precision: int, scale: int) -> int | None:
    """Return the number times 10^scale; None if that is not an integer or has too many digits."""
    fraction = (found[2] or b".")[1:]
    exponent = found[3] or b"e0"
    digits_of_power = exponent.lstrip(b"eE+-0") or b"0"
    # With a larger power only zero remains; int() refuses thousands of digits.
    power = int(digits_of_power) if len(digits_of_power) <= 9 else 10**9
    if exponent[1:2] == b"-":
        power = -power
    significant = (found[1] + fraction).lstrip(b"0")
    digits = significant.rstrip(b"0")
    if not digits:
        return 0
    shift = power - len(fraction) + len(significant) - len(digits) + scale
    if shift < 0 or len(digits) + shift > precision:
        return None
    units = int(digits) * int(10**shift)
    return -units if found[0].startswith(b"-") else units
