"""Errors of the native client.

Owns: ClientError and its leaves, where an error of the user's was raised. Must not touch: anything
else. A broker's refusal is a BrokerError, a fault of the network a RemotingError (core.errors).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from motelog.core.errors import BrokerError, MotelogError, leaves
from motelog.core.message import MessageQueue

#: Of what is listed in an error so many are told; the rest is counted.
LISTED_MAX: Final = 10


class ClientError(MotelogError):
    """Root of the errors that the native client itself decides on."""


class ClientClosedError(ClientError):
    """The producer or consumer is closed, not yet entered, or was created before a fork."""


class MessageRefusedError(ClientError):
    """The message cannot be sent as it is; nothing has left this process."""


class FilterError(ClientError):
    """A SQL92 filter is malformed, or the broker's ``enable_property_filter`` is off."""


class RouteError(ClientError):
    """No queue can be used for the topic.

    ``topic`` has no route, or none of its brokers may be written to or read from.
    """

    def __init__(self, message: str, *, topic: str) -> None:
        super().__init__(message)
        self.topic = topic


class SendFailedError(ClientError):
    """No attempt to send was acknowledged; a message may still have been stored by one of them.

    ``attempts`` has for each attempt which broker was asked and how it ended; the last one's error
    is the cause.
    """

    def __init__(self, message: str, *, attempts: tuple[str, ...]) -> None:
        # Attempts that ended alike are told once.
        super().__init__(f"{message}: {listed(dict.fromkeys(attempts), '; ')}")
        self.attempts = attempts


class CommitFailedError(ClientError):
    """The offsets of some queues are not committed; those of all others are.

    ``failures`` has these queues and their errors, the first of which is the cause. To commit
    again is safe. Until then their messages come again where the queues are read anew.
    """

    def __init__(self, failures: Mapping[MessageQueue, MotelogError]) -> None:
        places: dict[tuple[str, str, str], list[str]] = {}
        for queue in sorted(failures, key=lambda one: (one.broker_name, one.topic, one.queue_id)):
            place = (queue.broker_name, queue.topic, str(failures[queue]))
            places.setdefault(place, []).append(str(queue.queue_id))
        told = [
            f"broker {broker!r}, topic {topic!r}, queues {listed(numbers)}: {error}"
            for (broker, topic, error), numbers in places.items()
        ]
        is_refused = all(isinstance(error, BrokerError) for error in failures.values())
        advice = "" if is_refused else "see that the broker runs and can be reached, then "
        super().__init__(
            f"not committed: {listed(told, '; ')} (all other queues are; {advice}commit again)"
        )
        self.failures = dict(failures)


class UnreadableLogError(ClientError):
    """A record that a broker has named is not in its files, as far as this process can read them.

    Pulled again, it comes from the broker.
    """


class ReplyTimeoutError(ClientError):
    """A request was stored, and no reply to it has come in time."""


class OffsetStoreError(ClientError):
    """The user's offset store failed, or the file with the offsets is damaged."""


class NoNameServerError(ClientError):
    """None of the name servers answered."""


def raised_at(exc: BaseException) -> str:
    """Return FILE:LINE of where an error was raised, for a log line; of a group its first one's."""
    at = leaves(exc)[0].__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at is not None else "?"


def listed(texts: Iterable[str], between: str = ", ") -> str:
    """Return the texts as one; of many the first ones and how many more there are."""
    shown = list(texts)
    more = shown[LISTED_MAX:]
    return between.join([*shown[:LISTED_MAX], *([f"and {len(more)} more"] if more else ())])
