"""A rule of the operator for topic names: ``[[gateway.topic_map]]``.

Owns: TopicRule, what it must look like. Must not touch: which rule applies (``topic_mapping``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from motelog.core.config import SectionFault, refuse
from motelog.gateway.mapping.templates import filter_fault, queue_topic_fault, template_faults


class TopicRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[[gateway.topic_map]]`` entry; the first one that matches a topic name applies.

    In templates ``{1}``, ``{2}``... are the levels of the topic name, ``{client_id}`` and
    ``{user_name}`` those of the publisher.
    """

    filter: str
    """Topic filter; the rule applies to topic names that match it."""

    queue_topic: str
    """Template of the queue topic."""

    tag: str = "{2}"
    """Template of the tag; if the filter has no second level, the default is no tag."""

    keys: str = ""
    """Template of the keys with which a message can be found."""

    queue_by: Literal["tag", "topic", "client_id"] = "tag"
    """Template of the text that is hashed to choose the queue; messages with the same text keep
    their order."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def _faults(self) -> Iterator[SectionFault]:
        fault = filter_fault(self.filter)
        if fault is not None:
            yield SectionFault(fault, ("filter",))
            return
        for key in ("queue_topic", "tag", "keys"):
            template = getattr(self, key)
            if (key, template) == ("tag", "{2}"):
                continue
            yield from (SectionFault(f, (key,)) for f in template_faults(template, self.filter))
        fault = queue_topic_fault(self.queue_topic)
        if fault is not None:
            yield SectionFault(fault, ("queue_topic",))
