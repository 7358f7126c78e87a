"""Motelog's public face: what a program imports.

Owns: the list of public names and where each is found. Names are imported at first use, so that
``motelog --help`` does not pay for trio. Must not touch: any logic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridge.errors import ClientError, MessageRefusedError, RouteError, SendFailedError
    from bridge.producer import Producer, SendResult
    from bridge.pull import PullConsumer, PullResult
    from bridge.sync import SyncProducer, SyncPullConsumer
    from core.errors import BrokerError, ConfigError, MotelogError, RemotingError, StoreError
    from core.message import Message, MessageQueue, StoredMessage

__all__ = [
    "BrokerError",
    "ClientError",
    "ConfigError",
    "Message",
    "MessageQueue",
    "MessageRefusedError",
    "MotelogError",
    "Producer",
    "PullConsumer",
    "PullResult",
    "RemotingError",
    "RouteError",
    "SendFailedError",
    "SendResult",
    "StoreError",
    "StoredMessage",
    "SyncProducer",
    "SyncPullConsumer",
    "__version__",
]

_FOUND_IN = {
    "BrokerError": ("core.errors", "BrokerError"),
    "ClientError": ("bridge.errors", "ClientError"),
    "ConfigError": ("core.errors", "ConfigError"),
    "Message": ("core.message", "Message"),
    "MessageQueue": ("core.message", "MessageQueue"),
    "MessageRefusedError": ("bridge.errors", "MessageRefusedError"),
    "MotelogError": ("core.errors", "MotelogError"),
    "Producer": ("bridge.producer", "Producer"),
    "PullConsumer": ("bridge.pull", "PullConsumer"),
    "PullResult": ("bridge.pull", "PullResult"),
    "RemotingError": ("core.errors", "RemotingError"),
    "RouteError": ("bridge.errors", "RouteError"),
    "SendFailedError": ("bridge.errors", "SendFailedError"),
    "SendResult": ("bridge.producer", "SendResult"),
    "StoreError": ("core.errors", "StoreError"),
    "StoredMessage": ("core.message", "StoredMessage"),
    "SyncProducer": ("bridge.sync", "SyncProducer"),
    "SyncPullConsumer": ("bridge.sync", "SyncPullConsumer"),
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
