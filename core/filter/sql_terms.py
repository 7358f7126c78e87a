"""The limits, values and errors that SQL92 filters and their compiler share.

Owns: these. Must not touch: anything else; it loads fast, unlike the compiler, which needs lark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import ResponseCode

# Limits of an expression; the worst within them is refused or compiled in some milliseconds.
SQL_CHARACTERS_MAX: Final = 4096
SQL_WORDS_MAX: Final = 512  # names, keywords, literals and signs
SQL_DEPTH_MAX: Final = 32  # brackets, NOTs, signs and operators inside each other

Value = str | int | float | bool | None
Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]


class SqlFilterError(BrokerError):
    """An expression is not a valid filter; ``column`` counts its characters from 1."""

    def __init__(self, reason: str, *, column: int) -> None:
        text = f"the SQL92 filter is wrong at column {column}: {reason}"
        super().__init__(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
        self.column = column


class NotComparableError(ValueError):
    """A property that is compared with a number is not a number; the message does not match."""
