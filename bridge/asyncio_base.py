"""The hand-written part of the clients for asyncio: how a call waits on a loop, the loops.

Owns: how a call gets into the thread of a client and back (bridge.background), and what cancelling
it does. Must not touch: decisions of the trio-native classes. ``bridge/asyncio.py`` has the rest of
the methods, written by ``python -m tests.twins``: each calls the native one of its name.
Used on one loop, by any number of its tasks.
Invariants: a cancelled call has ended in the thread before CancelledError propagates; messages of a
cancelled poll are handed out again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Self, TypeVar

import trio

from motelog.bridge.background import Background, Service
from motelog.bridge.errors import ClientClosedError
from motelog.bridge.push.consumer import PushConsumer
from motelog.bridge.transactions import TransactionState
from motelog.bridge.unseen import LoopedPullConsumer
from motelog.core.message import Message
from motelog.core.records.decode import StoredMessage

A = TypeVar("A")
T = TypeVar("T")

#: The user's functions, as the native classes name them.
Check = Callable[[StoredMessage], Coroutine[Any, Any, TransactionState]]
Execute = Callable[[Message], Awaitable[TransactionState]]
HandleOne = Callable[[StoredMessage], object]
HandleSome = Callable[[list[StoredMessage]], object]


class OnAsyncio(Generic[Service]):
    """What all these clients share: entering, leaving, and a call."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._name = name
        self._background: Background[Service] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._background = await asyncio.to_thread(Background, self._service, self._name)
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._background is not None
        await asyncio.to_thread(self._background.close)

    async def _call(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        """Return what ``method`` returns in the thread; its errors are raised here."""
        if self._background is None:
            raise ClientClosedError("not open: use it inside `async with`")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        scope = trio.CancelScope()

        def settle(outcome: Callable[[], object]) -> None:
            with suppress(RuntimeError):  # the loop is closed: no caller waits any more
                loop.call_soon_threadsafe(outcome)

        def refuse() -> None:
            settle(partial(future.set_exception, ClientClosedError("closed during the call")))

        async def work() -> None:
            outcome: Callable[[], object] | None = None
            try:
                with scope:
                    outcome = partial(future.set_result, await method(*args, **options))
                if scope.cancelled_caught:
                    outcome = future.cancel
            except Exception as exc:
                outcome = partial(future.set_exception, exc)
            finally:
                settle(outcome) if outcome is not None else refuse()

        self._background.start_soon(work, refuse)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with suppress(ClientClosedError):
                self._background.run_soon(scope.cancel)
            await asyncio.wait([future])
            raise

    async def _call_sync(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        async def call() -> T:
            return function(*args, **options)

        return await self._call(call)

    def _as_async(
        self, function: Callable[[A], Coroutine[Any, Any, T]]
    ) -> Callable[[A], Awaitable[T]]:
        """Return a function for trio that awaits a coroutine function of the user on the loop."""

        async def on_loop(argument: A) -> T:
            assert self._loop is not None
            future = asyncio.run_coroutine_threadsafe(function(argument), self._loop)
            try:
                return await trio.to_thread.run_sync(future.result, abandon_on_cancel=True)
            finally:
                future.cancel()

        return on_loop


class PullConsumerBase(OnAsyncio[LoopedPullConsumer]):
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        """Return the next message, however long it takes; errors as with ``poll``."""
        while (message := self._service.unseen.pop()) is None:
            await self._call(self._service.fetch)
        return message

    async def _poll(self, *, timeout_s: float, count_max: int) -> list[StoredMessage]:
        # Fetched messages stay with the other unseen ones until this task takes them.
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            left_s = max(0.0, deadline - loop.time())
            await self._call(self._service.fetch, timeout_s=left_s, count_max=count_max)
            found = self._service.unseen.take(count_max)
            if found or loop.time() >= deadline:
                return found


class PushConsumerBase(OnAsyncio[PushConsumer]):
    async def _run(self, handle: HandleOne) -> None:
        with _OnThisLoop(handle) as on_loop:
            await self._call(self._service.run, on_loop)

    async def _run_batches(self, handle: HandleSome) -> None:
        with _OnThisLoop(handle) as on_loop:
            await self._call(self._service.run_batches, on_loop)


class _OnThisLoop(Generic[T]):
    """A function for other threads that has the coroutines of ``handle`` run on this loop.

    It waits for each. Those that are left at the end of the ``with`` block are cancelled.
    """

    def __init__(self, handle: Callable[[T], object]) -> None:
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._left: set[Future[object]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for future in list(self._left):
            future.cancel()

    def __call__(self, argument: T) -> object:
        result = self._handle(argument)
        if not inspect.iscoroutine(result):
            return result
        future: Future[object] = asyncio.run_coroutine_threadsafe(result, self._loop)
        self._left.add(future)
        try:
            return future.result()
        finally:
            self._left.discard(future)
