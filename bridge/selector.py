"""A consumer's message filter: by tag, or by a SQL92 filter over properties.

Owns: Selector, its form in heartbeats and pulls. Must not touch: sockets, trio, the meaning of a
filter (core.filter.sql_filter). Spec: RocketMQ MessageSelector, SubscriptionData, FilterAPI.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from motelog.bridge.errors import FilterError
from motelog.core.filter.sql_filter import SqlFilterError, compile_sql
from motelog.core.message import string_hash
from motelog.core.records.decode import StoredMessage
from motelog.core.remoting.codes import SQL_EXPRESSION_TYPE, TAG_EXPRESSION_TYPE

TAGS_ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Selector:
    """One expression and its kind."""

    expression: str = TAGS_ALL
    expression_type: str = TAG_EXPRESSION_TYPE

    @property
    def is_sql(self) -> bool:
        return self.expression_type == SQL_EXPRESSION_TYPE

    @property
    def tags(self) -> tuple[str, ...]:
        """The selected tags; () for all, or with a SQL92 filter."""
        return () if self.is_sql else parse_tags(self.expression)

    def keep(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages with one of the tags; the broker compared only hashes."""
        tags = self.tags
        return [message for message in messages if message.tags in tags] if tags else messages

    def subscription(self, topic: str, version: int) -> dict[str, Any]:
        """Return the SubscriptionData for heartbeats."""
        return {
            "classFilterMode": False,
            "codeSet": [string_hash(tag) for tag in self.tags],
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": version,
            "tagsSet": list(self.tags),
            "topic": topic,
        }


SELECT_ALL: Final = Selector()


def select(tags: str, sql: str | None) -> Selector:
    """Return the selector of ``sql`` if there is one, else of ``tags``.

    ValueError if both are given or the tags are malformed, FilterError if the filter is malformed.
    """
    for name, text in (("tags", tags), ("sql", "" if sql is None else sql)):
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a str, not {type(text).__name__}")
    if sql is None:
        parse_tags(tags)
        return Selector(tags)
    if tags != TAGS_ALL:
        raise ValueError("give tags or sql, not both: in a filter write TAGS IN ('a', 'b')")
    _check(sql)
    return Selector(sql, SQL_EXPRESSION_TYPE)


# Cached: a consumer has few filters, and may name one with each pull.
@lru_cache(maxsize=64)
def _check(sql: str) -> None:
    try:
        compile_sql(sql)
    except SqlFilterError as exc:
        raise FilterError(exc.remark) from exc


def parse_tags(expression: str) -> tuple[str, ...]:
    """Return the tags of "A || B", () for all; ValueError if a tag is empty."""
    expression = expression.strip()
    if expression in ("", TAGS_ALL):
        return ()
    tags = tuple(tag for part in expression.split("||") if (tag := part.strip()))
    if not tags:
        raise ValueError(f"the tag expression {expression!r} has no tag")
    return tags
