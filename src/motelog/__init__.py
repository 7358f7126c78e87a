"""Motelog's public names: what a program imports.

Owns: the list of public names and the module of each. Names are imported at first use, so that
``motelog --help`` does not import trio. Must not touch: any logic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from motelog.bridge.admin import Admin
    from motelog.bridge.asyncio import (
        AsyncioProducer,
        AsyncioPullConsumer,
        AsyncioPushConsumer,
        AsyncioSimpleConsumer,
        AsyncioTransactionProducer,
    )
    from motelog.bridge.errors import (
        ClientError,
        CommitFailedError,
        MessageRefusedError,
        ReplyTimeoutError,
        RouteError,
        SendFailedError,
    )
    from motelog.bridge.producer import Producer, SendResult
    from motelog.bridge.pull import PullConsumer, PullResult
    from motelog.bridge.push.consumer import PushConsumer
    from motelog.bridge.push.offsets import FileOffsets, OffsetStore
    from motelog.bridge.simple import PoppedMessage, SimpleConsumer
    from motelog.bridge.sync import (
        SyncAdmin,
        SyncProducer,
        SyncPullConsumer,
        SyncPushConsumer,
        SyncSimpleConsumer,
        SyncTransactionProducer,
    )
    from motelog.bridge.trace.records import TraceKind, TraceRecord
    from motelog.bridge.transactions import (
        HalfMessage,
        TransactionProducer,
        TransactionResult,
        TransactionState,
    )
    from motelog.bridge.users import Rule
    from motelog.core.acl.files import read_credentials
    from motelog.core.errors import (
        BrokerError,
        ConfigError,
        MotelogError,
        RemotingError,
        StoreError,
    )
    from motelog.core.message import Message, MessageQueue
    from motelog.core.records.decode import StoredMessage
    from motelog.core.remoting.credentials import Credentials
    from motelog.core.remoting.tls import Tls, read_tls

__all__ = [
    "Admin",
    "AsyncioProducer",
    "AsyncioPullConsumer",
    "AsyncioPushConsumer",
    "AsyncioSimpleConsumer",
    "AsyncioTransactionProducer",
    "BrokerError",
    "ClientError",
    "CommitFailedError",
    "ConfigError",
    "Credentials",
    "FileOffsets",
    "HalfMessage",
    "Message",
    "MessageQueue",
    "MessageRefusedError",
    "MotelogError",
    "OffsetStore",
    "PoppedMessage",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PushConsumer",
    "RemotingError",
    "ReplyTimeoutError",
    "RouteError",
    "Rule",
    "SendFailedError",
    "SendResult",
    "SimpleConsumer",
    "StoreError",
    "StoredMessage",
    "SyncAdmin",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "SyncSimpleConsumer",
    "SyncTransactionProducer",
    "Tls",
    "TraceKind",
    "TraceRecord",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "__version__",
    "read_credentials",
    "read_tls",
]

_FOUND_IN = {
    "Admin": ("motelog.bridge.admin", "Admin"),
    "AsyncioProducer": ("motelog.bridge.asyncio", "AsyncioProducer"),
    "AsyncioPullConsumer": ("motelog.bridge.asyncio", "AsyncioPullConsumer"),
    "AsyncioPushConsumer": ("motelog.bridge.asyncio", "AsyncioPushConsumer"),
    "AsyncioSimpleConsumer": ("motelog.bridge.asyncio", "AsyncioSimpleConsumer"),
    "AsyncioTransactionProducer": ("motelog.bridge.asyncio", "AsyncioTransactionProducer"),
    "BrokerError": ("motelog.core.errors", "BrokerError"),
    "ClientError": ("motelog.bridge.errors", "ClientError"),
    "CommitFailedError": ("motelog.bridge.errors", "CommitFailedError"),
    "ConfigError": ("motelog.core.errors", "ConfigError"),
    "Credentials": ("motelog.core.remoting.credentials", "Credentials"),
    "FileOffsets": ("motelog.bridge.push.offsets", "FileOffsets"),
    "HalfMessage": ("motelog.bridge.transactions", "HalfMessage"),
    "Message": ("motelog.core.message", "Message"),
    "MessageQueue": ("motelog.core.message", "MessageQueue"),
    "MessageRefusedError": ("motelog.bridge.errors", "MessageRefusedError"),
    "MotelogError": ("motelog.core.errors", "MotelogError"),
    "OffsetStore": ("motelog.bridge.push.offsets", "OffsetStore"),
    "PoppedMessage": ("motelog.bridge.simple", "PoppedMessage"),
    "Producer": ("motelog.bridge.producer", "Producer"),
    "PullConsumer": ("motelog.bridge.pull", "PullConsumer"),
    "PullResult": ("motelog.bridge.pull", "PullResult"),
    "PushConsumer": ("motelog.bridge.push.consumer", "PushConsumer"),
    "RemotingError": ("motelog.core.errors", "RemotingError"),
    "ReplyTimeoutError": ("motelog.bridge.errors", "ReplyTimeoutError"),
    "RouteError": ("motelog.bridge.errors", "RouteError"),
    "Rule": ("motelog.bridge.users", "Rule"),
    "SendFailedError": ("motelog.bridge.errors", "SendFailedError"),
    "SendResult": ("motelog.bridge.producer", "SendResult"),
    "SimpleConsumer": ("motelog.bridge.simple", "SimpleConsumer"),
    "StoreError": ("motelog.core.errors", "StoreError"),
    "StoredMessage": ("motelog.core.records.decode", "StoredMessage"),
    "SyncAdmin": ("motelog.bridge.sync", "SyncAdmin"),
    "SyncProducer": ("motelog.bridge.sync", "SyncProducer"),
    "SyncPullConsumer": ("motelog.bridge.sync", "SyncPullConsumer"),
    "SyncPushConsumer": ("motelog.bridge.sync", "SyncPushConsumer"),
    "SyncSimpleConsumer": ("motelog.bridge.sync", "SyncSimpleConsumer"),
    "SyncTransactionProducer": ("motelog.bridge.sync", "SyncTransactionProducer"),
    "Tls": ("motelog.core.remoting.tls", "Tls"),
    "TraceKind": ("motelog.bridge.trace.records", "TraceKind"),
    "TraceRecord": ("motelog.bridge.trace.records", "TraceRecord"),
    "TransactionProducer": ("motelog.bridge.transactions", "TransactionProducer"),
    "TransactionResult": ("motelog.bridge.transactions", "TransactionResult"),
    "TransactionState": ("motelog.bridge.transactions", "TransactionState"),
    "read_credentials": ("motelog.core.acl.files", "read_credentials"),
    "read_tls": ("motelog.core.remoting.tls", "read_tls"),
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
