"""Work in threads while the system starts none: it waits, is refused, or is done where it is."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from motelog.core import threads
from motelog.core.threads import Workers, run_in_thread, start_thread

NO_THREAD = RuntimeError("can't start new thread")


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Errors with which the next threads are not started; ours are empty when it goes well."""
    refused: list[BaseException] = []
    run_sync, start = trio.to_thread.run_sync, threading.Thread.start

    async def run_if_possible(function: Callable[..., Any], *args: Any, **how: Any) -> Any:
        if refused:
            raise refused.pop(0)
        return await run_sync(function, *args, **how)

    def start_if_possible(thread: threading.Thread) -> None:
        if refused:
            raise refused.pop(0)
        start(thread)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_if_possible)
    monkeypatch.setattr(threading.Thread, "start", start_if_possible)
    monkeypatch.setattr(threads, "RETRY_S", 0.001)
    return refused


async def test_work_waits_for_a_thread_and_says_so_once(
    refusals: list[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    threads._lines._until_s = 0.0
    refusals += [NO_THREAD, MemoryError(), SystemError(), NO_THREAD]
    with caplog.at_level(logging.WARNING), trio.fail_after(10):
        assert await run_in_thread(divmod, 7, 2) == (3, 1)
    assert not refusals
    assert len([text for text in caplog.messages if "no thread can be started" in text]) == 1


@pytest.mark.parametrize("error", [NO_THREAD, MemoryError()])
async def test_an_error_of_the_work_itself_is_raised_and_not_tried_again(
    error: Exception,
) -> None:
    calls = []

    def work() -> None:
        calls.append(threading.get_ident())
        raise error

    with pytest.raises(type(error)), trio.fail_after(10):
        await run_in_thread(work)
    assert len(calls) == 1
    assert calls[0] != threading.get_ident()


async def test_at_an_end_work_is_done_without_a_thread(refusals: list[BaseException]) -> None:
    refusals.append(NO_THREAD)
    assert await run_in_thread(threading.get_ident, or_here=True) == threading.get_ident()
    assert await run_in_thread(threading.get_ident, or_here=True) != threading.get_ident()


async def test_a_thread_of_its_own_is_started_when_there_is_one(
    refusals: list[BaseException],
) -> None:
    refusals += [NO_THREAD, NO_THREAD]
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    with trio.fail_after(10):
        await start_thread(thread)
    thread.join(10)
    assert ran.is_set()


def test_workers_need_no_thread_later(refusals: list[BaseException]) -> None:
    workers = Workers(3, "early")
    refusals += [NO_THREAD] * 3
    at_once = threading.Barrier(3)
    for waiting in [workers.submit(at_once.wait, 10) for _ in range(3)]:
        waiting.result(10)
    refusals.clear()
    workers.shut_down()


def test_workers_that_cannot_be_started_lack_memory(refusals: list[BaseException]) -> None:
    refusals.append(NO_THREAD)
    with pytest.raises(OSError, match="no thread takes work") as caught:
        Workers(2, "early")
    assert caught.value.errno == errno.ENOMEM
