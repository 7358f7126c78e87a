"""A listener's door: what accepting does that fails, and who waits how long."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self, cast

import pytest
import trio

from motelog.console import door
from motelog.console.door import Door, Waiting
from motelog.core import lasting
from motelog.core.net.listen import open_listener

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Listener:
    """A listening socket whose ``accept`` fails first, once for each of ``errors``.

    0 stands for a SystemError, which a lack of memory may be.
    """

    def __init__(self, *errors: int) -> None:
        self.sock = open_listener("127.0.0.1:0")
        self.errors = list(errors)

    def fileno(self) -> int:
        return self.sock.fileno()

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, "it failed") if number else SystemError
        return self.sock.accept()

    def close(self) -> None:
        self.sock.close()

    def dial(self) -> socket.socket:
        return socket.create_connection(self.sock.getsockname())


class Full(bytearray):
    """Memory that cannot grow."""

    def __iadd__(self, _: object) -> Self:
        raise MemoryError


class Opened:
    """A door and what it has told."""

    def __init__(self, listener: Listener) -> None:
        self.asked, self.heads = trio.Event(), list[bytes]()
        self.gone = 0
        self.went = trio.Event()
        self.door = Door(
            cast("socket.socket", listener),
            is_coded=False,
            comes=lambda one: True,
            asks=self._asks,
            goes=self._goes,
        )

    def _asks(self, one: Waiting) -> None:
        one.sock.close()
        self.heads.append(bytes(one.head))
        self.asked.set()

    def _goes(self, one: Waiting) -> None:
        self.gone += 1
        self.went.set()


@asynccontextmanager
async def opened(listener: Listener) -> AsyncIterator[Opened]:
    running = Opened(listener)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.door.run)
            yield running
            nursery.cancel_scope.cancel()
    assert listener.fileno() == -1


async def test_accepting_that_fails_is_told_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(door, "REST_S", 0)
    listener = Listener(errno.EMFILE, errno.ECONNABORTED, errno.ENOMEM, errno.EINVAL)
    async with opened(listener) as running:
        with listener.dial() as client:
            client.sendall(REQUEST)
            await running.asked.wait()
    assert running.heads == [REQUEST]
    [line] = caplog.messages
    assert "new connections have to wait" in line


async def test_a_door_that_lacks_memory_opens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "AGAIN_S", 0)
    listener = Listener(0)
    async with opened(listener) as running:
        with listener.dial() as client:
            client.sendall(REQUEST)
            await running.asked.wait()


async def test_one_that_lacks_memory_for_its_head_goes_alone() -> None:
    listener = Listener()
    async with opened(listener) as running:
        with listener.dial() as first, listener.dial() as second:
            await trio.testing.wait_all_tasks_blocked(0.05)
            one, _ = running.door._waiting.values()
            one.head = Full()
            first.sendall(REQUEST)
            await running.went.wait()
            second.sendall(REQUEST)
            await running.asked.wait()
    assert (running.gone, running.heads) == (1, [REQUEST])


async def test_one_that_ends_or_is_reset_before_its_head_has_come_goes() -> None:
    listener = Listener()
    async with opened(listener) as running:
        for begin in (b"", REQUEST[:-1]):
            for linger in (b"\1\0\0\0\0\0\0\0", bytes(8)):
                running.went, running.asked = trio.Event(), trio.Event()
                with listener.dial() as client:
                    client.sendall(begin)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                is_half = begin and not linger[0]
                await (running.asked if is_half else running.went).wait()
    # Of a head that is cut off the client is told.
    assert (running.gone, running.heads) == (3, [REQUEST[:-1]])


async def test_those_that_wait_are_closed_with_the_door() -> None:
    listener = Listener()
    with listener.dial() as client:
        client.sendall(REQUEST[:-1])
        async with opened(listener) as running:
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not running.went.is_set()
        assert running.gone == 1
        assert client.recv(1) == b""
