"""Motelog's public face: what a program imports.

Owns: the list of public names and where each is found. Names are imported at first use, so that
``motelog --help`` does not pay for trio. Must not touch: any logic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from motelog.bridge.asyncio import AsyncioProducer, AsyncioPullConsumer, AsyncioSimpleConsumer
    from motelog.bridge.errors import (
        ClientError,
        MessageRefusedError,
        ReplyTimeoutError,
        RouteError,
        SendFailedError,
    )
    from motelog.bridge.producer import Producer, SendResult
    from motelog.bridge.pull import PullConsumer, PullResult
    from motelog.bridge.simple import PoppedMessage, SimpleConsumer
    from motelog.bridge.sync import SyncProducer, SyncPullConsumer, SyncSimpleConsumer
    from motelog.core.errors import (
        BrokerError,
        ConfigError,
        MotelogError,
        RemotingError,
        StoreError,
    )
    from motelog.core.message import Message, MessageQueue, StoredMessage

__all__ = [
    "AsyncioProducer",
    "AsyncioPullConsumer",
    "AsyncioSimpleConsumer",
    "BrokerError",
    "ClientError",
    "ConfigError",
    "Message",
    "MessageQueue",
    "MessageRefusedError",
    "MotelogError",
    "PoppedMessage",
    "Producer",
    "PullConsumer",
    "PullResult",
    "RemotingError",
    "ReplyTimeoutError",
    "RouteError",
    "SendFailedError",
    "SendResult",
    "SimpleConsumer",
    "StoreError",
    "StoredMessage",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncSimpleConsumer",
    "__version__",
]

_FOUND_IN = {
    "AsyncioProducer": ("motelog.bridge.asyncio", "AsyncioProducer"),
    "AsyncioPullConsumer": ("motelog.bridge.asyncio", "AsyncioPullConsumer"),
    "AsyncioSimpleConsumer": ("motelog.bridge.asyncio", "AsyncioSimpleConsumer"),
    "BrokerError": ("motelog.core.errors", "BrokerError"),
    "ClientError": ("motelog.bridge.errors", "ClientError"),
    "ConfigError": ("motelog.core.errors", "ConfigError"),
    "Message": ("motelog.core.message", "Message"),
    "MessageQueue": ("motelog.core.message", "MessageQueue"),
    "MessageRefusedError": ("motelog.bridge.errors", "MessageRefusedError"),
    "MotelogError": ("motelog.core.errors", "MotelogError"),
    "PoppedMessage": ("motelog.bridge.simple", "PoppedMessage"),
    "Producer": ("motelog.bridge.producer", "Producer"),
    "PullConsumer": ("motelog.bridge.pull", "PullConsumer"),
    "PullResult": ("motelog.bridge.pull", "PullResult"),
    "RemotingError": ("motelog.core.errors", "RemotingError"),
    "ReplyTimeoutError": ("motelog.bridge.errors", "ReplyTimeoutError"),
    "RouteError": ("motelog.bridge.errors", "RouteError"),
    "SendFailedError": ("motelog.bridge.errors", "SendFailedError"),
    "SendResult": ("motelog.bridge.producer", "SendResult"),
    "SimpleConsumer": ("motelog.bridge.simple", "SimpleConsumer"),
    "StoreError": ("motelog.core.errors", "StoreError"),
    "StoredMessage": ("motelog.core.message", "StoredMessage"),
    "SyncProducer": ("motelog.bridge.sync", "SyncProducer"),
    "SyncPullConsumer": ("motelog.bridge.sync", "SyncPullConsumer"),
    "SyncSimpleConsumer": ("motelog.bridge.sync", "SyncSimpleConsumer"),
}

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'motelog' has no attribute {name!r}")
    module, attribute = _FOUND_IN[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
