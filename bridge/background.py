"""A thread that runs trio, so that callers without trio can use a trio-native service.

Owns: that thread, its life, how calls reach it. Must not touch: what the service does.
The thread lives from construction to ``close``. After a fork the child has no such thread: a call
there raises ClientClosedError.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

import trio

from motelog.bridge.errors import ClientClosedError

T = TypeVar("T")
Service = TypeVar("Service", bound=AbstractAsyncContextManager[Any])


class Background(Generic[Service]):
    """Runs a trio-native service in its own thread; other threads call it."""

    def __init__(self, service: Service, name: str) -> None:
        self.service = service
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._is_closed = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self._leave: trio.Event | None = None
        self._nursery: trio.Nursery | None = None
        # A daemon thread, so that a program that forgets to close it can still exit.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Close the service and end the thread; safe to call twice, and after a fork."""
        with self._lock:
            if self._is_closed or self._process_id != os.getpid():
                return
            self._is_closed = True
        assert self._token is not None
        assert self._leave is not None
        with suppress(trio.RunFinishedError):  # raised when the thread has ended by itself
            self._token.run_sync_soon(self._leave.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def call(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        """Run ``method`` in the thread and return its result or raise its error."""
        token = self._check_open()
        try:
            return trio.from_thread.run(partial(method, *args, **options), trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise ClientClosedError("closed while the call was running") from None

    def start_call(
        self,
        method: Callable[..., Awaitable[T]],
        *args: Any,
        callback: Callable[[Future[T]], object] | None = None,
        **options: Any,
    ) -> Future[T]:
        """Run ``method`` in the thread and return a future for its result at once.

        ``close`` ends it with ClientClosedError. ``callback`` is called in the thread with the
        future.
        """
        future: Future[T] = Future()
        if callback is not None:
            future.add_done_callback(callback)

        def refuse() -> None:
            future.set_exception(ClientClosedError("closed while the call was running"))

        async def work() -> None:
            try:
                future.set_result(await method(*args, **options))
            except Exception as exc:
                future.set_exception(exc)
            finally:
                if not future.done():
                    refuse()

        self.start_soon(work, refuse)
        return future

    def call_sync(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        token = self._check_open()
        try:
            return trio.from_thread.run_sync(partial(function, *args, **options), trio_token=token)
        except trio.RunFinishedError:
            raise ClientClosedError("closed while the call was running") from None

    def start_soon(
        self, task: Callable[[], Awaitable[object]], refuse: Callable[[], object]
    ) -> None:
        """Run ``task`` in the thread until ``close`` cancels it; it handles its own errors.

        If ``close`` comes first, ``refuse`` is called instead.
        """

        def start() -> None:
            assert self._nursery is not None
            if self._is_closed:
                refuse()
            else:
                self._nursery.start_soon(task)

        self.run_soon(start)

    def run_soon(self, function: Callable[[], object]) -> None:
        """Call ``function`` in the thread without waiting for it."""
        token = self._check_open()
        try:
            token.run_sync_soon(function)
        except trio.RunFinishedError:
            raise ClientClosedError("closed") from None

    def _check_open(self) -> trio.lowlevel.TrioToken:
        if self._process_id != os.getpid():
            raise ClientClosedError(
                "this object was created before a fork: create it in the process that uses it"
            )
        if self._is_closed or self._token is None:
            raise ClientClosedError("closed: create a new one")
        return self._token

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as exc:
            # Raised by the constructor or ``close``, since a thread has no caller to raise to.
            self._failure = exc
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._leave = trio.Event()
        async with self.service, trio.open_nursery() as nursery:
            self._token = trio.lowlevel.current_trio_token()
            self._nursery = nursery
            self._started.set()
            await self._leave.wait()
            nursery.cancel_scope.cancel()
