"""Where a push consumer stores its offsets.

Owns: OffsetStore, which a user may implement; FileOffsets; the common interface of the brokers'
table and a user's store. Must not touch: when offsets are saved.
Spec: RocketMQ RemoteBrokerOffsetStore, LocalFileOffsetStore (which writes the same file).

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:42}}
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import trio

from motelog.bridge.errors import OffsetStoreError
from motelog.bridge.queue_requests import QueueRequests
from motelog.core.errors import RemotingDecodeError
from motelog.core.message import MessageQueue
from motelog.core.private_files import make_folders, open_private
from motelog.core.remoting.fields import Int32, Int64
from motelog.core.remoting.frames import dumps, loads

logger = logging.getLogger(__name__)

# Called with each queue and offset that was saved.
Saved = Callable[[MessageQueue, int], None]

T = TypeVar("T")


class OffsetStore(Protocol):
    """Offsets of consumer groups, in a place of the user's choice: a database, for example.

    The methods are called in a thread, one at a time, and may block. What they raise is logged, and
    they are called again.
    """

    def load(self, group: str, queue: MessageQueue) -> int | None:
        """Return the last saved offset, None if there is none."""
        ...

    def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Store the offsets atomically; when this returns they survive a crash."""
        ...


class Offsets(Protocol):
    """The consumer's interface to the brokers' table or an OffsetStore. Raises MotelogError."""

    async def load(self, queue: MessageQueue) -> int | None: ...

    async def save(
        self, offsets: Mapping[MessageQueue, int], saved: Saved, forward: Container[MessageQueue]
    ) -> None:
        """Save offsets and call ``saved`` for each; queues in ``forward`` must not go back."""
        ...


class BrokerOffsets:
    """Offsets stored by the brokers, by each broker those of its queues."""

    def __init__(self, requests: QueueRequests) -> None:
        self._requests = requests

    async def load(self, queue: MessageQueue) -> int | None:
        return await self._requests.committed(queue)

    async def save(
        self, offsets: Mapping[MessageQueue, int], saved: Saved, forward: Container[MessageQueue]
    ) -> None:
        await self._requests.commit(offsets, saved, forward=forward)


class StoredOffsets:
    """Offsets stored in an OffsetStore."""

    def __init__(self, store: OffsetStore, *, group: str) -> None:
        self._store = store
        self._group = group
        self._thread = trio.CapacityLimiter(1)

    async def load(self, queue: MessageQueue) -> int | None:
        return await self._call(lambda: self._store.load(self._group, queue))

    async def save(
        self, offsets: Mapping[MessageQueue, int], saved: Saved, forward: Container[MessageQueue]
    ) -> None:
        del forward  # a user's store decides this itself
        await self._call(lambda: self._store.save(self._group, offsets))
        for queue, offset in offsets.items():
            saved(queue, offset)

    async def _call(self, function: Callable[[], T]) -> T:
        try:
            return await trio.to_thread.run_sync(function, limiter=self._thread)
        except OffsetStoreError:
            raise
        except Exception as exc:  # anything that the user's store raises
            raise OffsetStoreError(f"the offset store failed: {exc!r}") from exc


class FileOffsets:
    """A JSON file as Java's consumers write it, one for each group: PATH/GROUP/offsets.json.

    The default ``path`` is Java's, ~/.rocketmq_offsets/ADDRESS@DEFAULT. Two programs that broadcast
    on one machine need different paths or groups.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def load(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset in the file, or in its backup copy if the file is damaged."""
        with self._naming(group, "read"):
            return self._find(group)[0].get(queue)

    def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Replace the file with one that has these offsets and the others of the old file."""
        with self._naming(group, "written"):
            self._replace(group, offsets)

    @contextmanager
    def _naming(self, group: str, what: str) -> Iterator[None]:
        """Add the file and some advice to errors of the operating system."""
        try:
            yield
        except OSError as exc:
            raise OffsetStoreError(
                f"the offsets cannot be {what}: {exc.filename or self._file(group)}: "
                f"{exc.strerror}: give FileOffsets a folder that this program may write to"
            ) from exc

    def _replace(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        path = self._file(group)
        known, is_good = self._find(group)
        text = dumps({"offsetTable": {**known, **offsets}})
        make_folders(path.parent)
        new = path.with_suffix(".json.tmp")
        new.unlink(missing_ok=True)  # a file left by a kill would keep its mode
        with open(new, "xb", opener=open_private) as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        # A damaged file must not replace an intact copy.
        if is_good:
            path.replace(path.with_suffix(".json.bak"))
        new.replace(path)

    def _find(self, group: str) -> tuple[dict[MessageQueue, int], bool]:
        """Return the offsets, and whether they are from the file and not from its copy."""
        path = self._file(group)
        fault: Exception | None = None
        for candidate in (path, path.with_suffix(".json.bak")):
            try:
                table = msgspec.convert(loads(candidate.read_bytes()), _OffsetsJson).offsetTable
                found = {_queue(key): offset for key, offset in table.items()}
                return found, candidate is path
            except FileNotFoundError:
                continue
            except (RemotingDecodeError, msgspec.DecodeError) as exc:
                fault = exc
        if fault is not None:
            raise OffsetStoreError(
                f"{path} and its copy are damaged: {fault}: if you delete both, the group begins "
                "like a new one"
            )
        return {}, False

    def _file(self, group: str) -> Path:
        return self._path / group / "offsets.json"


class _OffsetsJson(msgspec.Struct):
    offsetTable: dict[str, Int64] = {}


class _QueueJson(msgspec.Struct):
    topic: str
    brokerName: str
    queueId: Int32


def _queue(key: str) -> MessageQueue:
    found = msgspec.json.decode(key, type=_QueueJson)
    return MessageQueue(found.topic, found.brokerName, found.queueId)


def decode_offset_table(body: bytes) -> dict[MessageQueue, int]:
    """Return the offsets of a reset (code 220), which brokers write in two ways."""
    try:
        found = loads(body).get("offsetTable") or {}
        if isinstance(found, dict):
            table = msgspec.convert(found, dict[str, int])
            return {_queue(key): offset for key, offset in table.items()}
        rows = msgspec.convert(found, list[_ResetRow])
    except (msgspec.DecodeError, AttributeError) as exc:
        raise RemotingDecodeError(f"the offsets of a reset: {exc}") from exc
    return {MessageQueue(row.topic, row.brokerName, row.queueId): row.offset for row in rows}


class _ResetRow(_QueueJson):
    offset: int
