"""Rights: what a client may publish and subscribe to, as a decision about values.

Owns: Who, the Authoriser protocol, which topic filters contain or meet each other.
Must not touch: files (``acl`` reads rules), sessions.
Spec: MQTT 5.0 section 4.7.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

#: Stands for a right that is not there, beside the QoS up to which one is.
NONE = -1


class Who(NamedTuple):
    """Whose rights are asked for; the user name of an anonymous client is empty.

    ``rules`` are further ones, which came with its login. ``certificate_name`` is that of the
    certificate which its connection has shown, empty if it has none.
    """

    user_name: str
    client_id: str
    rules: tuple[Any, ...] = ()
    certificate_name: str = ""


class Authoriser(Protocol):
    """Says what a client may do. What it does not allow is refused."""

    def publish_qos(self, who: Who, topic: str) -> int:
        """Return the highest QoS of publishes to a legal topic name, NONE if none may be."""
        ...

    def may_retain(self, who: Who, topic: str) -> bool:
        """Whether publishes to a topic name may be retained, where they are allowed."""
        ...

    def subscribe_qos(self, who: Who, topic_filter: str) -> int:
        """Return the highest QoS of a subscription, NONE if there may be none.

        ``topic_filter`` is legal; of a shared subscription it is what is behind the group.
        """
        ...


def contains(outer: str, inner: str) -> bool:
    """Whether a topic filter matches every topic name that another one matches; both are legal.

    As if there were an empty topic name, too, so ``/+/#`` does not contain ``/#``.
    """
    outer_levels = outer.split("/")
    inner_levels = inner.split("/")
    if inner_levels[0].startswith("$") and outer_levels[0] in ("+", "#"):  # [MQTT-4.7.2-1]
        return False
    for i, level in enumerate(outer_levels):
        if level == "#":
            return True  # section 4.7.1.2: the parent level and all below it
        if i == len(inner_levels):
            return False
        if inner_levels[i] == "#":
            # It matches the parent too, which nothing with a level here does. Only that a name has
            # one level at least is the same in both.
            return i == 0 and outer_levels == ["+", "#"]
        if level != "+" and level != inner_levels[i]:
            return False
    return len(outer_levels) == len(inner_levels)


def meets(one: str, other: str) -> bool:
    """Whether there is a topic name, be it empty, that both of two legal topic filters match."""
    one_levels = one.split("/")
    other_levels = other.split("/")
    for first, second in ((one_levels[0], other_levels[0]), (other_levels[0], one_levels[0])):
        if first in ("+", "#") and second.startswith("$"):  # [MQTT-4.7.2-1]
            return False
    for here, there in zip(one_levels, other_levels, strict=False):
        if here == "#" or there == "#":
            return True
        if here != there and "+" not in (here, there):
            return False
    longer = max(one_levels, other_levels, key=len)
    shared = min(len(one_levels), len(other_levels))
    return len(longer) == shared or longer[shared:] == ["#"]
