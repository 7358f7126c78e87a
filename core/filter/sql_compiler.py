r"""The meaning of a SQL92 filter expression: its grammar, its checks, closures that evaluate it.

Owns: the grammar, three-valued logic, how texts compare. Must not touch: sockets, files, clocks,
how properties are found (filtered_reads). Imported with the first expression: lark loads slowly.
Spec: RocketMQ's filter module (SelectorParser, ComparisonExpression, LogicExpression, ...).

    OR                                                    binds least
    AND
    = <> IS [NOT] NULL
    > >= < <= [NOT] BETWEEN [NOT] IN [NOT] CONTAINS [NOT] STARTSWITH [NOT] ENDSWITH
    NOT + -                                               binds most

If RocketMQ has a result, it is the same here. So NOT a = 1 means (NOT a) = 1, and is refused.
a = b is unknown without a, and false if only b is missing. Two properties are compared as texts for
equality, as numbers for order. NOT CONTAINS is false without the property; a property alone is
never true.
RocketMQ fails on some comparisons: it drops the message with an error in its log. Here texts that
are numbers are then compared as numbers: 30.5 > 30, or a whole number beyond 32 bits with a small
one. If a text is not a decimal number (NaN, Infinity and hexadecimal ones are not), the message
does not match here either, whatever the rest of the expression says. 0.0 is allowed.
NOT a = 1, and text after the end of an expression, are errors here; in RocketMQ they do not mean
what they seem to.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any, Final, cast

from lark import (
    Lark,
    Token,
    Transformer,
    UnexpectedCharacters,
    UnexpectedInput,
    UnexpectedToken,
    v_args,
)

from motelog.core.filter.sql_terms import (
    SQL_DEPTH_MAX,
    SQL_WORDS_MAX,
    Evaluate,
    NotComparableError,
    Properties,
    SqlFilterError,
    Value,
)

GRAMMAR: Final = r"""
?start: disjunction
?disjunction: conjunction (_OR conjunction)*
?conjunction: equality (_AND equality)*
?equality: comparison
    | equality "=" comparison -> equal
    | equality "<>" comparison -> not_equal
    | equality _IS NULL -> is_null
    | equality _IS _NOT NULL -> is_not_null
?comparison: unary
    | comparison ORDER unary -> order
    | comparison _BETWEEN unary _AND unary -> between
    | comparison _NOT _BETWEEN unary _AND unary -> not_between
    | comparison _IN elements -> is_in
    | comparison _NOT _IN elements -> is_not_in
    | comparison SEARCH STRING -> search
    | comparison _NOT SEARCH STRING -> not_search
?unary: primary
    | "+" unary
    | MINUS unary -> negate
    | _NOT unary -> negation
?primary: STRING -> string
    | WHOLE -> whole
    | DECIMAL -> decimal
    | BOOLEAN -> boolean
    | NULL -> null
    | NAME -> property
    | "(" disjunction ")" -> bracket
elements: "(" STRING ("," STRING)* ")"

ORDER: /[<>]=|>|<(?!>)/
MINUS: "-"
STRING: /'(?:''|[^'])*'/
DECIMAL.2: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
WHOLE.1: /(?:0|[1-9][0-9]*)[lL]?/
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
%declare _OR _AND _NOT _IS NULL _BETWEEN _IN SEARCH BOOLEAN
%ignore /[ \t\n\r\f]+/
%ignore /--[^\r\n]*/
%ignore /\/\*(?s:.*?)\*\//
"""

_KEYWORDS: Final = {
    **{word: f"_{word}" for word in ("OR", "AND", "NOT", "IS", "BETWEEN", "IN")},
    **dict.fromkeys(("CONTAINS", "STARTSWITH", "ENDSWITH"), "SEARCH"),
    "NULL": "NULL",
    **dict.fromkeys(("TRUE", "FALSE"), "BOOLEAN"),
}
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_SEARCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_WHOLE_MAX: Final = (1 << 63) - 1
_WHOLE_DIGITS_MAX: Final = 20
_WORD: Final = re.compile(r"'(?:''|[^'])*'|[A-Za-z0-9_$.]+|<>|[<>]=|\S")
_WHOLE_TEXT: Final = re.compile(r"[+-]?[0-9]+")
# As in Java's Double.valueOf: with blanks around it, and f or d after it.
_NUMBER_TEXT: Final = re.compile(
    r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?\s*"
)
# A longer text does not count as a number: converting it would take long.
_NUMBER_CHARACTERS_MAX: Final = 512
_SHOWN_CHARACTERS: Final = 32


def compile_expression(expression: str) -> tuple[tuple[str, ...], Evaluate]:
    """Return the names of the properties it needs, and its evaluation.

    SqlFilterError if it is invalid. The evaluation takes the existing values, and may raise
    NotComparableError.
    """
    _check_words(expression)
    try:
        # The transformer makes a node of every rule, so the result is not a tree.
        node = cast("_Node", _parser().parse(expression))
    except UnexpectedInput as exc:
        raise _syntax_error(exc, expression) from None
    return tuple(sorted(node.names)), _as_boolean(node).evaluate


@dataclass(frozen=True, slots=True)
class _Node:
    """One part of an expression, with the facts that the checks of the parts around it need.

    ``literal`` counts only if ``is_literal``; ``name`` is set for a property alone.
    """

    evaluate: Evaluate
    column: int
    names: frozenset[str] = frozenset()
    depth: int = 1
    is_boolean: bool = False
    is_literal: bool = False
    literal: Value = None
    name: str | None = None


@v_args(inline=True)
class _Builder(Transformer[Token, _Node]):
    """Makes a node of each rule while the parser reduces it, innermost first: nothing recurses."""

    def disjunction(self, *parts: _Node) -> _Node:
        return _over(any_of([_as_boolean(part).evaluate for part in parts]), *parts)

    def conjunction(self, *parts: _Node) -> _Node:
        return _over(all_of([_as_boolean(part).evaluate for part in parts]), *parts)

    def equal(self, left: _Node, right: _Node) -> _Node:
        for node in (left, right):
            if node.is_literal and node.literal is None:
                raise SqlFilterError("= and <> with NULL: write IS NULL", column=node.column)
        for one, other in ((left, right), (right, left)):
            if one.is_boolean and other.is_literal and not other.is_boolean:
                reason = "a condition cannot be compared; NOT belongs before brackets"
                raise SqlFilterError(reason, column=other.column)
        return _over(_equal(left, right), left, right)

    def not_equal(self, left: _Node, right: _Node) -> _Node:
        return _over(inverted(self.equal(left, right).evaluate), left, right)

    def is_null(self, value: _Node, _: Token) -> _Node:
        return _over(_is_null(value.evaluate), value)

    def is_not_null(self, value: _Node, _: Token) -> _Node:
        return _over(inverted(_is_null(value.evaluate)), value)

    def order(self, left: _Node, sign: Token, right: _Node) -> _Node:
        for node in (left, right):
            _check_ordered(node)
        return _over(_order(left, _ORDERS[sign], right), left, right)

    def between(self, value: _Node, low: _Node, high: _Node) -> _Node:
        for node in (value, low, high):
            _check_ordered(node)
        if low.is_literal and high.is_literal and cast("Any", low.literal) > high.literal:
            raise SqlFilterError("the first bound of BETWEEN is the larger", column=low.column)
        parts = [_order(value, operator.ge, low), _order(value, operator.le, high)]
        return _over(all_of(parts), value, low, high)

    def not_between(self, value: _Node, low: _Node, high: _Node) -> _Node:
        for node in (value, low, high):
            _check_ordered(node)
        parts = [_order(value, operator.lt, low), _order(value, operator.gt, high)]
        return _over(any_of(parts), value, low, high)

    def is_in(self, value: _Node, elements: frozenset[str]) -> _Node:
        if value.name is None:
            raise SqlFilterError(
                "IN belongs after a property, and NOT before brackets", column=value.column
            )
        return _over(_is_in(value.name, elements), value)

    def is_not_in(self, value: _Node, elements: frozenset[str]) -> _Node:
        return _over(inverted(self.is_in(value, elements).evaluate), value)

    def search(self, value: _Node, word: Token, text: Token) -> _Node:
        found = _SEARCHES[word.upper()]
        return _over(_search(value.evaluate, found, _unquoted(text), wanted=True), value)

    def not_search(self, value: _Node, word: Token, text: Token) -> _Node:
        found = _SEARCHES[word.upper()]
        return _over(_search(value.evaluate, found, _unquoted(text), wanted=False), value)

    def negate(self, sign: Token, value: _Node) -> _Node:
        return _over(_negated(value.evaluate), value, column=_column(sign), is_boolean=False)

    def negation(self, value: _Node) -> _Node:
        return _over(inverted(_as_boolean(value).evaluate), value)

    def bracket(self, inner: _Node) -> _Node:
        _check_depth(inner.depth + 1, inner.column)
        return replace(inner, depth=inner.depth + 1)

    def string(self, token: Token) -> _Node:
        return _literal(_unquoted(token), token)

    def whole(self, token: Token) -> _Node:
        value = int(token.rstrip("lL")) if len(token) <= _WHOLE_DIGITS_MAX else _WHOLE_MAX + 1
        if value > _WHOLE_MAX:
            reason = f"the number is greater than {_WHOLE_MAX}"
            raise SqlFilterError(reason, column=_column(token))
        return _literal(value, token)

    def decimal(self, token: Token) -> _Node:
        value = float(token)
        if value == float("inf"):
            raise SqlFilterError("the number is too large", column=_column(token))
        return _literal(value, token)

    def boolean(self, token: Token) -> _Node:
        return replace(_literal(token.upper() == "TRUE", token), is_boolean=True)

    def null(self, token: Token) -> _Node:
        return replace(_literal(None, token), is_boolean=True)

    def property(self, token: Token) -> _Node:
        name = str(token)
        return _Node(_property(name), _column(token), frozenset([name]), name=name)

    def elements(self, *texts: Token) -> frozenset[str]:
        return frozenset(map(_unquoted, texts))


@cache
def _parser() -> Lark:
    """Return the parser, which the first expression creates."""
    # The basic lexer: as in RocketMQ, a keyword is never a name.
    return Lark(
        GRAMMAR,
        parser="lalr",
        lexer="basic",
        transformer=_Builder(),
        lexer_callbacks={"NAME": _keyword},
    )


def _keyword(token: Token) -> Token:
    kind = _KEYWORDS.get(token.upper())
    return token if kind is None else token.update(type=kind)


# --- errors


def _syntax_error(exc: UnexpectedInput, expression: str) -> SqlFilterError:
    if isinstance(exc, UnexpectedToken) and exc.token.type != "$END":
        found = exc.token.value
        return SqlFilterError(f"{_shown(found)} makes no sense here", column=_column(exc.token))
    if isinstance(exc, UnexpectedCharacters):
        at = exc.pos_in_stream
        assert at is not None
        is_text = expression[at] == "'"
        reason = "the text has no end" if is_text else f"{_shown(expression[at])} is not part of it"
        return SqlFilterError(reason, column=at + 1)
    return SqlFilterError("it ends too early", column=len(expression) + 1)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


def _column(token: Token) -> int:
    assert token.start_pos is not None
    return token.start_pos + 1


def _check_words(expression: str) -> None:
    """Refuse an expression with too many words: the parser needs some microseconds for each."""
    excess = next(islice(_WORD.finditer(expression), SQL_WORDS_MAX, None), None)
    if excess is not None:
        reason = f"it has more than {SQL_WORDS_MAX} words and signs"
        raise SqlFilterError(reason, column=excess.start() + 1)


def _check_depth(depth: int, column: int) -> None:
    if depth > SQL_DEPTH_MAX:
        raise SqlFilterError(f"it is nested more than {SQL_DEPTH_MAX} deep", column=column)


def _check_ordered(node: _Node) -> None:
    """Refuse an operand of an order comparison that is neither a property nor a number."""
    if node.is_boolean or (node.is_literal and isinstance(node.literal, str)):
        raise SqlFilterError(
            "only properties and numbers have an order; NOT belongs before brackets",
            column=node.column,
        )


# --- nodes


def _over(
    evaluate: Evaluate, *parts: _Node, column: int | None = None, is_boolean: bool = True
) -> _Node:
    """Return the node of an operator and its operands."""
    depth = max(part.depth for part in parts) + 1
    _check_depth(depth, parts[-1].column)
    names = frozenset[str]().union(*(part.names for part in parts))
    return _Node(evaluate, column or parts[0].column, names, depth, is_boolean)


def _literal(value: Value, token: Token) -> _Node:
    return _Node(lambda _: value, _column(token), is_literal=True, literal=value)


def _as_boolean(node: _Node) -> _Node:
    """Return a node that is a condition; a property alone is false, or unknown if missing."""
    if node.is_boolean:
        return node
    if node.name is None:
        raise SqlFilterError("a condition belongs here, not a value", column=node.column)
    name = node.name
    return replace(node, evaluate=lambda p: None if name not in p else False, is_boolean=True)


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")


# --- evaluated for each message: None is unknown


def any_of(parts: Sequence[Evaluate]) -> Evaluate:
    """Return an OR of ``parts``; those after the first true one are not evaluated."""

    def evaluate(p: Properties) -> Value:
        result: Value = False
        for part in parts:
            value = part(p)
            if value:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def all_of(parts: Sequence[Evaluate]) -> Evaluate:
    """Return an AND of ``parts``; those after the first false one are not evaluated."""

    def evaluate(p: Properties) -> Value:
        result: Value = True
        for part in parts:
            value = part(p)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    return evaluate


def inverted(part: Evaluate) -> Evaluate:
    def evaluate(p: Properties) -> Value:
        value = part(p)
        return None if value is None else not value

    return evaluate


def _property(name: str) -> Evaluate:
    return lambda p: p.get(name)


def _negated(part: Evaluate) -> Evaluate:
    """Return the negative number; unknown for anything else, even for properties."""

    def evaluate(p: Properties) -> Value:
        value = part(p)
        return -value if type(value) in (int, float) else None  # type: ignore[operator]  # no bool

    return evaluate


def _is_null(part: Evaluate) -> Evaluate:
    return lambda p: part(p) is None


def _is_in(name: str, elements: frozenset[str]) -> Evaluate:
    def evaluate(p: Properties) -> Value:
        value = p.get(name)
        return None if value is None else value in elements

    return evaluate


def _search(
    part: Evaluate, found: Callable[[str, str], bool], text: str, *, wanted: bool
) -> Evaluate:
    """Return a search that is never unknown: false without a value or a text to search for."""

    def evaluate(p: Properties) -> Value:
        value = part(p)
        return bool(text) and isinstance(value, str) and found(value, text) is wanted

    return evaluate


def _equal(left: _Node, right: _Node) -> Evaluate:
    if left.name is not None and right.is_literal:
        return _equals_literal(left.name, right.literal)
    first, second = left.evaluate, right.evaluate

    def evaluate(p: Properties) -> Value:
        one, other = first(p), second(p)
        if one is None:
            return True if other is None else None
        return other is not None and _are_equal(one, other)

    return evaluate


def _equals_literal(name: str, literal: Value) -> Evaluate:
    """Return the most common comparison, which does not check types for each message."""
    if isinstance(literal, str):

        def evaluate(p: Properties) -> Value:
            value = p.get(name)
            return None if value is None else value == literal

    else:
        converted = _converter(literal)

        def evaluate(p: Properties) -> Value:
            value = p.get(name)
            return None if value is None else converted(value) == literal

    return evaluate


def _are_equal(one: Value, other: Value) -> bool:
    if type(one) is type(other):
        return one == other
    if isinstance(one, str):
        one = _converter(other)(one)
    elif isinstance(other, str):
        other = _converter(one)(other)
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def _order(left: _Node, sign: Callable[[Any, Any], bool], right: _Node) -> Evaluate:
    if left.name is not None and right.is_literal:
        return _ordered_to_literal(left.name, sign, right.literal)
    first, second = left.evaluate, right.evaluate

    def evaluate(p: Properties) -> Value:
        one = first(p)
        if one is None:
            return None
        other = second(p)
        if other is None:
            return None
        if isinstance(one, str):
            one = _decimal(one) if isinstance(other, str) else _converter(other)(one)
        if isinstance(other, str):
            other = _converter(one)(other)
        return sign(one, other)

    return evaluate


def _ordered_to_literal(name: str, sign: Callable[[Any, Any], bool], literal: Value) -> Evaluate:
    converted = _converter(literal)

    def evaluate(p: Properties) -> Value:
        value = p.get(name)
        return None if value is None else sign(converted(value), literal)

    return evaluate


def _converter(like: Value) -> Callable[[str], bool | int | float]:
    """Return the conversion of texts to the type of ``like``; it raises NotComparableError."""
    if isinstance(like, bool):
        return _boolean
    return _number if isinstance(like, int) else _decimal


def _boolean(text: str) -> bool:
    return text.lower() == "true"


def _number(text: str) -> int | float:
    # True for nearly every text, and four times as fast as a regular expression.
    if text.isdecimal() and text.isascii() and len(text) <= _WHOLE_DIGITS_MAX:
        return int(text)
    if len(text) <= _NUMBER_CHARACTERS_MAX and _WHOLE_TEXT.fullmatch(text):
        return int(text)
    return _decimal(text)


def _decimal(text: str) -> float:
    number = _NUMBER_TEXT.fullmatch(text) if len(text) <= _NUMBER_CHARACTERS_MAX else None
    if number is None:
        raise NotComparableError
    return float(number[1])
