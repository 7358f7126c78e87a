"""The rights that a request needs, read from its fields: the entries of a server's table of codes.

Owns: how a field names a topic or a group. Must not touch: which request needs what (the servers'
tables), who has which rights (accounts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from motelog.core.acl.accounts import ADMINISTRATOR, Need, Right, group_need, topic_need
from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import ResponseCode
from motelog.core.remoting.fields import text_field
from motelog.core.remoting.frames import RemotingCommand, loads
from motelog.core.topic_names import RETRY_PREFIX

#: Returns the needs of a request; without any, every account may send it.
NeedsOf: TypeAlias = Callable[[RemotingCommand], Iterable[Need]]
Table: TypeAlias = Mapping[int, NeedsOf]

# POP joins group and topic by one of these in the names of its retry topics.
_POP_JOINTS: Final = ("_", "+")


def administrator(_: RemotingCommand) -> Iterable[Need]:
    """An administrator's account: the request concerns more than a topic or a group."""
    return (ADMINISTRATOR,)


def any_account(_: RemotingCommand) -> Iterable[Need]:
    """Every account; the processor checks rights when it knows the topic or group."""
    return ()


def publish(name: str = "topic") -> NeedsOf:
    """PUB on the topic in this field."""
    return lambda request: (topic_need(text_field(request.ext, name), Right.PUB),)


def read(name: str = "topic") -> NeedsOf:
    """SUB on the topic in this field."""
    return lambda request: (topic_need(text_field(request.ext, name), Right.SUB),)


def use(name: str = "topic") -> NeedsOf:
    """PUB or SUB on the topic in this field."""
    return lambda request: (topic_need(text_field(request.ext, name), Right.EITHER),)


def member(name: str = "consumerGroup") -> NeedsOf:
    """SUB on the group in this field."""
    return lambda request: (group_need(text_field(request.ext, name)),)


def consume(group: str = "consumerGroup", topic: str = "topic") -> NeedsOf:
    """SUB on the group and on the topic in these fields."""
    return lambda request: (
        group_need(text_field(request.ext, group)),
        topic_need(text_field(request.ext, topic), Right.SUB),
    )


def settle(request: RemotingCommand) -> Iterable[Need]:
    """As ``consume``, for a message in work, which may be in a retry topic of POP."""
    return consumed(text_field(request.ext, "topic"), text_field(request.ext, "consumerGroup"))


def consumed(topic: str, group: str) -> Iterator[Need]:
    """Yield the needs of a group that handles a message it has received from this topic."""
    yield group_need(group)
    for joint in _POP_JOINTS:
        if topic.startswith(f"{RETRY_PREFIX}{group}{joint}"):
            topic = topic.removeprefix(f"{RETRY_PREFIX}{group}{joint}")
            break
    yield topic_need(topic, Right.SUB)


def json_body(request: RemotingCommand) -> dict[str, Any]:
    """Return the table in a request's body as its processor will read it; or refuse it."""
    value = loads(request.body)
    if not isinstance(value, dict):
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "the body is not a table")
    return value


def json_text(table: Mapping[str, Any], name: str) -> str:
    """Return a text from a body's table; or refuse the request."""
    value = table.get(name)
    if not isinstance(value, str):
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the body has no text {name}")
    return value
