"""Errors of the native client.

Owns: ClientError and its subclasses, where a user's error was raised. Must not touch: anything
else. A broker's refusal is a BrokerError, a network fault a RemotingError (core.errors).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from motelog.core.errors import BrokerError, MotelogError, leaves
from motelog.core.message import MessageQueue

#: An error lists this many items, and counts the rest.
LISTED_MAX: Final = 10


class ClientError(MotelogError):
    """Root of the errors that the native client itself raises."""


class ClientClosedError(ClientError):
    """The producer or consumer is closed, not yet entered, or was created before a fork."""


class MessageRefusedError(ClientError):
    """The message cannot be sent as it is; nothing has left this process."""


class FilterError(ClientError):
    """A SQL92 filter is malformed, or the broker's ``enable_property_filter`` is off."""


class RouteError(ClientError):
    """No queue can be used for the topic.

    ``topic`` has no route, or none of its queues may be written to or read from.
    """

    def __init__(self, message: str, *, topic: str) -> None:
        super().__init__(message)
        self.topic = topic


class SendFailedError(ClientError):
    """No attempt to send was acknowledged; a message may still have been stored by one of them.

    ``attempts`` lists the broker and the outcome of each attempt; the last one's error is the
    cause.
    """

    def __init__(self, message: str, *, attempts: tuple[str, ...]) -> None:
        # Attempts with the same outcome are listed once.
        super().__init__(f"{message}: {listed(dict.fromkeys(attempts), '; ')}")
        self.attempts = attempts


class CommitFailedError(ClientError):
    """The offsets of some queues are not committed; those of all others are.

    ``failures`` maps these queues to their errors, the first of which is the cause. It is safe to
    commit again. Until then their messages are delivered again if another consumer reads the
    queues.
    """

    def __init__(self, failures: Mapping[MessageQueue, MotelogError]) -> None:
        places: dict[tuple[str, str, str], list[str]] = {}
        for queue in sorted(failures, key=lambda one: (one.broker_name, one.topic, one.queue_id)):
            place = (queue.broker_name, queue.topic, str(failures[queue]))
            places.setdefault(place, []).append(str(queue.queue_id))
        failed = [
            f"broker {broker!r}, topic {topic!r}, queues {listed(numbers)}: {error}"
            for (broker, topic, error), numbers in places.items()
        ]
        is_refused = all(isinstance(error, BrokerError) for error in failures.values())
        advice = "" if is_refused else "check that the broker is running and reachable, then "
        super().__init__(
            f"not committed: {listed(failed, '; ')} (all other queues are; {advice}commit again)"
        )
        self.failures = dict(failures)


class UnreadableLogError(ClientError):
    """This process cannot read, in the broker's files, a record that the broker has named.

    Another pull gets the record from the broker.
    """


class ReplyTimeoutError(ClientError):
    """A request was stored, but no reply arrived in time."""


class OffsetStoreError(ClientError):
    """The user's offset store failed, or the file with the offsets is damaged."""


class NoNameServerError(ClientError):
    """None of the name servers answered."""


def raised_at(exc: BaseException) -> str:
    """Return FILE:LINE where an error was raised, for a log line; for a group, its first error."""
    at = leaves(exc)[0].__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at is not None else "?"


def listed(texts: Iterable[str], between: str = ", ") -> str:
    """Return the texts joined; of many, the first ones and the number of the others."""
    shown = list(texts)
    more = shown[LISTED_MAX:]
    return between.join([*shown[:LISTED_MAX], *([f"and {len(more)} more"] if more else ())])
