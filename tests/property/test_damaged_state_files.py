"""Every small file that is read back and has a copy: damage of any shape falls to the copy.

What is damaged in a way that still reads is taken; then it is a whole table, which can be saved and
read again. Nothing else is raised than the error that names the file.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from motelog import runtime_store
from motelog.bridge.errors import OffsetStoreError
from motelog.bridge.push.offsets import FileOffsets
from motelog.core.acl.users import UserTable
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.delay import schedule
from motelog.core.broker.tables.tables import Tables
from motelog.core.clock import Jump, ManualClock
from motelog.core.errors import ConfigError, RemotingDecodeError, StoreDamagedError
from motelog.core.message import MessageQueue
from motelog.core.namesrv.kv_config import KvConfig
from motelog.core.remoting.frames import dumps, loads
from motelog.core.state_file import StateFile
from motelog.core.store.config import StoreConfig
from motelog.core.store.disk.files import OsStorage
from motelog.core.store.state.checkpoint import (
    ClockNotes,
    IndexFileState,
    IndexTable,
    QueueTable,
    StateFiles,
    StoreCheckpoint,
)

QUEUE: Final = MessageQueue("T", "b", 0)
ODD_VALUES: Final[tuple[Any, ...]] = (
    None, True, 7, -1, 1.5, 1e30, 1 << 70, "", "x", "a@b@c", "\0", [], [1], ["x"], {}, {"x": 1},
    {"-1": -1}, {"x": {"y": "z"}}, {"@": {"0": {}}}, {"1": None}, {"x@y": {str(1 << 70): 1}},
)  # fmt: skip
ODD_KEYS: Final = ("", "x", "@", "a@", "@g", "-1", "1e3", str(1 << 70), "{}", "[1]", "{", "é")


@dataclass(frozen=True)
class StateReader:
    """Reads ``name`` in a folder; the value of ``content`` when the file has that."""

    name: str
    content: dict[str, Any]
    read: Callable[[Path], Any]
    encode: Callable[[Any], bytes] = msgspec.json.encode
    refusal: type[Exception] = StoreDamagedError


def table(make: Callable[[], Any], *, has_check: bool = False) -> Callable[[Path], Any]:
    """Read a table; what it has taken is whole, and the same after another save."""

    def read(path: Path) -> Any:
        first, again = make(), make()
        StateFile(str(path), holds="it").load(first.load)
        if has_check:
            first._check()
        told = msgspec.json.encode(first.snapshot())
        again.load(json.loads(told))
        assert msgspec.json.encode(again.snapshot()) == told
        return told

    return read


def of_broker(name: str, *, has_check: bool = False) -> Callable[[Path], Any]:
    config = BrokerConfig(store=StoreConfig(directory="unused"))
    return table(lambda: getattr(Tables.of(config, ManualClock()), name), has_check=has_check)


def taken(take: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Any]:
    return lambda path: StateFile(str(path), holds="it").load(take)


VERSION: Final = {"counter": 1, "stateVersion": 0, "timestamp": 5}
ORDER: Final = {"popTime": 1, "i": 2, "o": [1, 2], "l": 3, "cm": 1, "ot": {"1": 2}, "a": "x"}
TOPIC: Final = {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
MODE: Final = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 1}
READERS: Final = [
    StateReader(
        "consumerOffset.json",
        {
            "dataVersion": VERSION,
            "offsetTable": {"T@G": {"0": 1, "1": 2}},
            "lmqOffsetTable": {"%LMQ%x@G": 4},
        },
        of_broker("offsets", has_check=True),
    ),
    StateReader(
        "consumerOrderInfo.json",
        {"table": {"T@G": {"0": ORDER}}},
        of_broker("orders", has_check=True),
    ),
    StateReader(
        "messageRequestMode.json",
        {"messageRequestModeMap": {"T": {"G": MODE}}},
        of_broker("request_modes"),
    ),
    StateReader(
        "topics.json",
        {
            "dataVersion": VERSION,
            "topicConfigTable": {"T": TOPIC},
            "deletedQueueTable": {"D": {"0": 5}},
        },
        of_broker("topics"),
    ),
    StateReader(
        "subscriptionGroup.json",
        {
            "dataVersion": VERSION,
            "subscriptionGroupTable": {"G": {"groupName": "G", "retryMaxTimes": 3}},
            "forbiddenTable": {"G": {"T": 1}},
        },
        of_broker("groups"),
    ),
    StateReader(
        "users.json",
        {"users": {"u": {"password": "p", "userType": "Normal", "userStatus": "enable"}}},
        table(UserTable),
    ),
    StateReader(
        "kvConfig.json",
        {"configTable": {"N": {"key": "value"}}},
        table(lambda: KvConfig(entries_max=9, entry_characters_max=99, characters_max=999)),
    ),
    StateReader("delayOffset.json", {"offsetTable": {"1": 5, "2": 6}}, taken(schedule._levels)),
    StateReader(
        "timerOffset.json", {"dueMs": 5, "queueOffset": 6}, taken(schedule._timer_progress)
    ),
    StateReader(
        "runtime.json",
        {"keys": {"broker.fast_failure": "true"}},
        lambda path: runtime_store.load(str(path)),
        refusal=ConfigError,
    ),
    StateReader(
        "G/offsets.json",
        {"offsetTable": {'{"brokerName":"b","queueId":0,"topic":"T"}': 42}},
        lambda path: FileOffsets(path.parent.parent).load("G", QUEUE),
        refusal=OffsetStoreError,
    ),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each part of a JSON value, itself first."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from places(part, (*path, index))


def changed(value: Any) -> Iterator[Any]:
    """Yield the value with each of its parts replaced, and each of its keys renamed."""
    yield from ODD_VALUES
    for *way, last in filter(None, places(value)):
        for odd in ODD_VALUES:
            whole = copy.deepcopy(value)
            part(whole, way)[last] = odd
            yield whole
        for key in ODD_KEYS if isinstance(part(value, way), dict) else ():
            whole = copy.deepcopy(value)
            part(whole, way)[key] = part(whole, way).pop(last)
            yield whole


def part(value: Any, way: list[Any]) -> Any:
    for step in way:
        value = value[step]
    return value


def broken(text: bytes) -> Iterator[bytes]:
    """Yield what is no longer the text: cut, zeroed, of other bytes, too deep, with more behind."""
    yield from (text[:size] for size in range(len(text)))
    yield from (text[:at] + bytes([text[at] ^ 0x80]) + text[at + 1 :] for at in range(len(text)))
    yield from (
        bytes(len(text)),
        b"\xef\xbb\xbf" + text,
        text + text,
        text.decode().encode("utf-16"),
    )
    yield from (b"[" * 100_000, b'{"a":' * 100_000, b"{" * 100_000, b'"' + b"x" * 100_000)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@pytest.mark.parametrize("copy_is", ["good", "damaged", "missing"])
def test_a_damaged_file_is_its_copy_or_is_named(
    tmp_path: Path, reader: StateReader, copy_is: str
) -> None:
    path = tmp_path / reader.name
    path.parent.mkdir(exist_ok=True)
    good = reader.encode(reader.content)
    path.write_bytes(good)
    value = reader.read(path)
    assert value
    backup = path.with_name(f"{path.name}.bak")
    shapes = [reader.encode(shape) for shape in changed(reader.content)]
    refused = 0
    for data in [*broken(good), *shapes]:
        path.write_bytes(data)
        if copy_is != "missing":
            backup.write_bytes(good if copy_is == "good" else data)
        found, fault = outcome(reader, path)
        if fault is not None:
            assert copy_is != "good", data
            assert str(path) in fault
            refused += 1
            continue
        # What is no JSON object is never taken.
        if copy_is == "good" and not is_object(data):
            assert found == value, data
    assert (refused == 0) == (copy_is == "good")


def outcome(reader: StateReader, path: Path) -> tuple[Any, str | None]:
    """Return what is read, and the text of the error that a reader may raise."""
    try:
        return reader.read(path), None
    except reader.refusal as exc:
        return None, str(exc)


def is_object(data: bytes) -> bool:
    try:
        return isinstance(loads(data), dict)
    except RemotingDecodeError:
        return False


SEALED: Final[list[tuple[str, Callable[[StateFiles], Any], bytes]]] = [
    ("checkpoint", StateFiles.read_checkpoint, StoreCheckpoint(3, 2, 1, 99).encode()),
    ("queues.json", StateFiles.read_queues, QueueTable(9, True, [("T", 0, 3)]).encode()),
    (
        "index.json",
        StateFiles.read_index,
        IndexTable(9, [IndexFileState("f", 1, 2, 3, 4, 5)]).encode(),
    ),
    ("clock.json", StateFiles.read_clock, ClockNotes(5, [Jump(1, 2)]).encode()),
]


@pytest.mark.parametrize(("name", "read", "good"), SEALED, ids=[name for name, *_ in SEALED])
def test_a_damaged_file_of_the_store_is_its_copy_or_nothing(
    tmp_path: Path, name: str, read: Callable[[StateFiles], Any], good: bytes
) -> None:
    path, backup = tmp_path / name, tmp_path / f"{name}.bak"
    backup.write_bytes(good)
    value = read(StateFiles(OsStorage(), str(tmp_path)))
    assert value
    # A page of zeros is not among them: a checkpoint of RocketMQ begins with it.
    text = good.rstrip(b"\0")
    flipped = text[:-4] + bytes([text[-4] ^ 1]) + text[-3:]
    damaged = [text[:40], b"", b"\xff" * len(good), flipped.ljust(len(good), b"\0"), b"[" * 99_999]
    for data in damaged:
        path.write_bytes(data)
        assert read(StateFiles(OsStorage(), str(tmp_path))) == value
        backup.write_bytes(data)
        assert read(StateFiles(OsStorage(), str(tmp_path))) in (None, StoreCheckpoint())
        backup.write_bytes(good)


def test_a_damaged_file_of_offsets_does_not_take_its_copy_s_place(tmp_path: Path) -> None:
    store, path = FileOffsets(tmp_path), tmp_path / "G" / "offsets.json"
    store.save("G", {QUEUE: 1})
    store.save("G", {QUEUE: 2})
    path.write_bytes(dumps({"offsetTable": {"garbage": 5}}))
    assert store.load("G", QUEUE) == 1
    store.save("G", {QUEUE: 3})
    assert store.load("G", QUEUE) == 3
    path.write_bytes(b"")
    assert store.load("G", QUEUE) == 1
