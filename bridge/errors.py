"""Errors of the native client.

Owns: ClientError and its leaves. Must not touch: anything else. A broker's refusal is a
BrokerError, a fault of the network a RemotingError (core.errors).
"""

from __future__ import annotations

from motelog.core.errors import MotelogError


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
        super().__init__(f"{message}: {'; '.join(dict.fromkeys(attempts))}")
        self.attempts = attempts


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
