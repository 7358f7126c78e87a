"""Limits of the process and folders that cannot be used: one sentence, and what is open goes on."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from motelog.core.errors import StoreFolderError, StoreFullError
from motelog.core.records.dispatch import dispatched
from motelog.core.store.disk.files import OsStorage
from motelog.core.threads import Workers
from tests.support.cli import motelog
from tests.support.mqtt_wire import Wire, varint
from tests.support.stores import make_store, message, opened, read_bodies

ANY_PORTS = [f"--{name}=127.0.0.1:0" for name in ("mqtt", "namesrv", "broker", "admin")]
WITHIN_S = 20.0

#: More than one append makes.
ALLOCATIONS_MAX = 400
LIGHT_QUEUE = "%LMQ%one"
LIGHT_PROPERTIES = b"INNER_MULTI_DISPATCH\x01%LMQ%one\x02KEYS\x01k\x02"


@contextmanager
def limited(kind: int, limit: int) -> Iterator[None]:
    """Lower a limit of this process, and so of those it starts, for the length of the block."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def started(
    stack: ExitStack, errors: Path, *arguments: str
) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Start a server that logs into ``errors``; return it and its line, once it is ready."""
    command = [sys.executable, "-m", "motelog", "dev", "--json", *arguments, *ANY_PORTS]
    log = stack.enter_context(errors.open("w"))
    process = stack.enter_context(
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
        )
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_without_descriptors_one_line_is_logged_per_listener(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    with ExitStack() as stack:
        process, ready = started(stack, errors, "--ephemeral")
        open_now = len(os.listdir(f"/proc/{process.pid}/fd"))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (open_now + 4, open_now + 4))
        for role in ("mqtt", "namesrv", "broker", "admin"):
            for _ in range(8):
                opened = socket.create_connection(address_of(ready[role]), timeout=5)
                stack.enter_context(opened)
        deadline = time.monotonic() + WITHIN_S
        while errors.read_text().count("new connections have to wait") < 4:
            assert time.monotonic() < deadline, errors.read_text()
            time.sleep(0.05)
        # Long enough for what is tried ten times a second to show.
        time.sleep(1.5)
        text = errors.read_text()
        assert "Traceback" not in text
        assert text.count("new connections have to wait") == 4
        assert "ulimit -n" in text


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/motelog"])
def test_a_folder_that_cannot_be_used_is_wrong_configuration(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    result = motelog("dev", "--data", name, *ANY_PORTS, cwd=tmp_path)
    assert result.returncode == 78
    assert "Traceback" not in result.stderr
    assert f"the store cannot use the folder {name}" in result.stderr


def test_a_limit_of_file_sizes_at_the_start_is_a_sentence(tmp_path: Path) -> None:
    with limited(resource.RLIMIT_FSIZE, 1_000_000):
        result = motelog("dev", "--data", str(tmp_path / "data"), *ANY_PORTS)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "File too large; raise the limit of file sizes" in result.stderr


def test_too_few_descriptors_at_the_start_are_a_sentence(tmp_path: Path) -> None:
    for limit in (16, 22):
        command = f'ulimit -n {limit}; exec "$@"'
        motelog_dev = [sys.executable, "-m", "motelog", "dev", "--data", "data", *ANY_PORTS]
        result = subprocess.run(
            ["sh", "-c", command, "sh", *motelog_dev],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 1
        assert "Traceback" not in result.stderr
        assert "raise the limit of open files" in result.stderr


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", ["make_directory", "lock"])
def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    storage = OsStorage()
    monkeypatch.setattr(storage, call, fail)
    store = make_store(tmp_path, storage=storage)
    with pytest.raises(StoreFolderError, match=f"{tmp_path}: {os.strerror(code)}"):
        store.open()


def test_a_limit_of_file_sizes_refuses_messages_until_it_is_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(tmp_path)
    store.open()
    tail = store.queue_tail("T", 0)

    def append_files_full() -> None:
        for _ in range(1000):
            store.append([message(tail, b"x" * 1000)])

    with limited(resource.RLIMIT_FSIZE, 1000):
        for _ in range(3):
            with pytest.raises(StoreFullError, match="raise the limit of file sizes"):
                append_files_full()
    assert store.fence_reason is None
    (line,) = [text for text in caplog.messages if "messages are refused" in text]
    assert "ulimit -f" in line
    store.append([message(tail, b"x" * 1000)])
    store.close()


def test_appends_go_on_while_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path, commitlog_touch_ahead_bytes=65_536, index_entries=50)
    store.open()

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    tail = store.queue_tail("T", 0)
    keyed = message(tail, b"x" * 1000, properties=b"KEYS\x01key\x02")
    for _ in range(5_000):
        store.append([keyed])
    assert store.fence_reason is None
    assert len(store._log.queue.files) > 1
    assert len(store.index._files.kept) > 1
    monkeypatch.undo()
    store.close()


def test_what_no_worker_takes_is_asked_for_by_the_next_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path)
    store.open()
    tail = store.queue_tail("T", 0)
    submit, refused = Workers.submit, 0

    def refuse_each_second(*arguments: Any) -> Any:
        nonlocal refused
        refused += 1
        if refused % 2:
            raise OSError(errno.ENOMEM, "no thread takes work")
        return submit(*arguments)

    monkeypatch.setattr(Workers, "submit", refuse_each_second)
    while len(store._log.queue.files) < 3:
        store.append([message(tail, b"x" * 1000)])
    assert refused
    assert store.fence_reason is None
    store.close()


def test_a_batch_without_memory_for_room_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path)
    store.open()
    batch = [message(store.queue_tail("T", 0), b"x" * 1000)] * 20  # more than fits the first file

    def fail(*_: int, may_wait: bool) -> None:
        raise MemoryError

    monkeypatch.setattr(store._log, "make_room", fail)
    with pytest.raises(StoreFullError, match="free memory"):
        store.append(batch)
    monkeypatch.undo()
    store.append(batch)
    store.close()


def refuse_work(*_: Any) -> Any:
    raise OSError(errno.ENOMEM, "no thread takes work")


@pytest.mark.parametrize("settings", [{}, {"write_buffer": True}])
def test_an_append_that_lacks_memory_anywhere_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    testcapi = pytest.importorskip("_testcapi")
    store = make_store(tmp_path / "data", lmq=True, **settings)
    store.open()
    # An allocation that fails is to be the append's, and no thread's.
    monkeypatch.setattr(Workers, "submit", refuse_work)
    appended: dict[tuple[str, int], list[bytes]] = {}
    refused = 0
    for failing in range(ALLOCATIONS_MAX):
        tails = [store.queue_tail("T", queue_id) for queue_id in (0, 1, 2 + failing % 20)]
        light = store.queue_tail(LIGHT_QUEUE, 0)
        before = [tail.next_offset for tail in (*tails, light)]
        bodies = [b"%d-%d" % (failing, number) * 100 for number in range(4)]
        batch = [message(tail, body) for tail, body in zip(tails, bodies, strict=False)]
        batch.append(dispatched(message(tails[0], bodies[3], properties=LIGHT_PROPERTIES)))
        end_offset = store.end_offset
        placed = [(0, 0)]
        testcapi.set_nomemory(failing, failing + 1)
        try:
            store.append(batch, placed)
        except StoreFullError:
            refused += 1
            testcapi.remove_mem_hooks()
            assert placed == [(0, 0)]
            assert store.end_offset == end_offset
            assert [tail.next_offset for tail in (*tails, light)] == before
        else:
            testcapi.remove_mem_hooks()
            assert len(placed) == 5
            for key, number in ((0, 0), (1, 1), (2 + failing % 20, 2), (0, 3)):
                appended.setdefault(("T", key), []).append(bodies[number])
            appended.setdefault((LIGHT_QUEUE, 0), []).append(bodies[3])
        assert store.fence_reason is None
        store.unit_flusher._check()
        store._log.queue._check()
        for file in store._log.queue._made():
            if file.is_mapped:  # a used buffer has an older file's bytes there
                assert not bytes(file.view[max(store.end_offset - file.begin, 0) :]).strip(b"\0")
    assert 50 < refused < ALLOCATIONS_MAX
    assert read_bodies(store) == appended
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    store.close()
    monkeypatch.undo()
    with opened(tmp_path / "data", lmq=True, **settings) as again:
        assert read_bodies(again) == appended
    if not settings:
        with opened(tmp_path / "killed", lmq=True) as again:
            assert read_bodies(again) == appended


def test_a_process_without_memory_refuses_and_goes_on_when_there_is_some(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    folder = str(tmp_path / "data")
    with ExitStack() as stack:
        process, ready = started(stack, errors, "--data", folder)
        address = address_of(ready["mqtt"])
        no_limit = resource.RLIM_INFINITY
        limit = no_limit
        deadline = time.monotonic() + WITHIN_S
        number, half = 0, list[Wire]()
        # Half packets take what there is, then whole ones need more.
        head = bytes.fromhex("32") + varint(200_000) + bytes.fromhex("0001740001")
        while errors.read_text().count(" memory") < 3:
            assert time.monotonic() < deadline, errors.read_text()
            # It falls as the process does: a thread that ends gives up its stack and its arena.
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
            room = pages * resource.getpagesize() + 4 * 1024 * 1024
            limit = room if limit == no_limit else min(limit, room)
            resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, no_limit))
            number += 1
            with suppress(OSError):
                opened = Wire(address)
                half.append(opened)
                opened.socket.settimeout(0.5)
                opened.connect(f"c{number}")
                opened.send(head + bytes(199_995 if number % 2 else 100_000))
            if len(half) > 60:
                half.pop(0).socket.close()
        # Long enough for ticks of each role, without memory.
        time.sleep(3)
        for opened in half:
            opened.socket.close()
        assert process.poll() is None, errors.read_text()
        resource.prlimit(process.pid, resource.RLIMIT_AS, (no_limit, no_limit))
        last = stack.enter_context(Wire(address))
        last.connect("last")
        last.send(bytes.fromhex("320800017400016d6d6d"))
        assert last.packet() == (0x40, bytes.fromhex("0001"))
        process.terminate()
        assert process.wait(WITHIN_S) == 0
    assert "is fenced" not in errors.read_text()
