"""SQL92 filters: they select messages for a consumer by their properties.

Owns: SqlFilter, the cache of filters in use. Must not touch: sockets, files, clocks; what an
expression means (sql_compiler, imported with the first one: lark takes time to load).
Spec: RocketMQ MessageSelector.bySql, SqlFilter, ExpressionMessageFilter.

Invariant: the expressions that SqlFilters holds, including refused ones, have at most
EXPRESSIONS_CHARACTERS together.
"""

from __future__ import annotations

from typing import Final

from motelog.core.errors import BrokerError
from motelog.core.filter.sql_terms import (
    SQL_CHARACTERS_MAX,
    Evaluate,
    NotComparableError,
    Properties,
    SqlFilterError,
)
from motelog.core.remoting.codes import SQL_EXPRESSION_TYPE, ResponseCode
from motelog.core.topic_names import shown

__all__ = [
    "EXPRESSIONS_CHARACTERS",
    "ParserNotLoadedError",
    "SqlFilter",
    "SqlFilterError",
    "SqlFilters",
    "compile_sql",
]

EXPRESSIONS_CHARACTERS: Final = 262_144


class ParserNotLoadedError(Exception):
    """A filter is needed, but the parser is not loaded; the caller has to load it."""


class SqlFilter:
    """One compiled expression; ``names`` are the properties that it needs."""

    __slots__ = ("_evaluate", "expression", "names")

    def __init__(self, expression: str, names: tuple[str, ...], evaluate: Evaluate) -> None:
        self.expression = expression
        self.names = names
        self._evaluate = evaluate

    def matches(self, values: Properties) -> bool:
        """Return whether a message with ``values`` of the properties in ``names`` matches.

        It does not match if the result is unknown.
        """
        try:
            return self._evaluate(values) is True
        except NotComparableError:
            return False


class SqlFilters:
    """The filters in use by their expressions, the least recently used first.

    Until ``is_loaded`` is true, nothing is parsed: see filter_gate.
    """

    def __init__(self, *, is_enabled: bool = True, is_loaded: bool = True) -> None:
        self.is_loaded = is_loaded
        self._is_enabled = is_enabled
        self._known: dict[str, SqlFilter | SqlFilterError] = {}
        self._characters = 0

    def enable(self, is_on: bool) -> None:
        self._is_enabled = is_on

    def get(self, expression_type: str | None, expression: str) -> SqlFilter:
        """Return the filter of an expression whose type is not tags.

        SqlFilterError names its fault; BrokerError if there are no filters of the type,
        ParserNotLoadedError if the parser is not loaded.
        """
        if not self._is_enabled or expression_type != SQL_EXPRESSION_TYPE:
            kind = shown(expression_type or "")[1:-1]
            text = f"The broker does not support consumer to filter message by {kind}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        # Checked here as well: refused expressions are cached, and long ones must not be.
        check_length(expression)
        if not self.is_loaded:
            raise ParserNotLoadedError
        known = self._known.pop(expression, None)
        if known is None:
            known = _compiled(expression)
            self._make_room(len(expression))
        self._known[expression] = known
        if isinstance(known, SqlFilterError):
            raise known.with_traceback(None)
        return known

    def _make_room(self, characters: int) -> None:
        self._characters += characters
        while self._characters > EXPRESSIONS_CHARACTERS:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._characters -= len(oldest)

    def _check(self) -> None:
        """Assert the invariants of the module docstring."""
        assert self._characters == sum(map(len, self._known)) <= EXPRESSIONS_CHARACTERS


def check_length(expression: str) -> None:
    if len(expression) > SQL_CHARACTERS_MAX:
        reason = f"it has {len(expression)} characters, at most {SQL_CHARACTERS_MAX} are allowed"
        raise SqlFilterError(reason, column=SQL_CHARACTERS_MAX + 1)


def compile_sql(expression: str) -> SqlFilter:
    """Return the filter of ``expression``; SqlFilterError names its fault."""
    check_length(expression)
    # Imported only when needed: few brokers and consumers ever see an expression.
    from motelog.core.filter.sql_compiler import compile_expression

    return SqlFilter(expression, *compile_expression(expression))


def _compiled(expression: str) -> SqlFilter | SqlFilterError:
    try:
        return compile_sql(expression)
    except SqlFilterError as exc:
        return exc
