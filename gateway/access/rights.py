"""Rights: what a client may publish and subscribe to, as pure decisions.

Owns: Who, the Authoriser protocol, which topic filters contain or overlap each other.
Must not touch: files (``acl`` reads rules), sessions.
Spec: MQTT 5.0 section 4.7.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

#: The value for no right, instead of the highest QoS.
NONE = -1


class Who(NamedTuple):
    """The client whose rights are checked; the user name of an anonymous client is empty.

    ``rules`` are additional ones, carried by its login. ``certificate_name`` is that of its
    connection's certificate, empty if it has none.
    """

    user_name: str
    client_id: str
    rules: tuple[Any, ...] = ()
    certificate_name: str = ""


class Authoriser(Protocol):
    """Decides what a client may do. What it does not allow is refused."""

    def publish_qos(self, who: Who, topic: str) -> int:
        """Return the highest QoS for publishing to a legal topic name, NONE if not allowed."""
        ...

    def may_retain(self, who: Who, topic: str) -> bool:
        """Whether publishes to a topic name may be retained, if they are allowed."""
        ...

    def subscribe_qos(self, who: Who, topic_filter: str) -> int:
        """Return the highest QoS of a subscription, NONE if it is not allowed.

        ``topic_filter`` is legal; for a shared subscription it is the filter after the group.
        """
        ...


def contains(outer: str, inner: str) -> bool:
    """Whether a topic filter matches every topic name that another one matches; both are legal.

    An empty topic name counts too, so ``/+/#`` does not contain ``/#``.
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
            # It matches the parent too, which no filter with a level here does. Only "+/#"
            # contains "#": both need at least one level.
            return i == 0 and outer_levels == ["+", "#"]
        if level != "+" and level != inner_levels[i]:
            return False
    return len(outer_levels) == len(inner_levels)


def meets(one: str, other: str) -> bool:
    """Whether some topic name, perhaps an empty one, matches both of two legal topic filters."""
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
