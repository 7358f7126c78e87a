"""The guard round reads for a request: run again when paged in, refused, forgotten."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from motelog.core.broker.waiting.cold_reads import ColdReads
from motelog.core.errors import BrokerError
from motelog.core.remoting.frames import FLAG_ONEWAY, RemotingCommand, ResponseCode
from motelog.core.remoting.server import Connection, answer_with
from motelog.core.store.disk.page_cache import NotInMemoryError, Pageable, Places

REQUEST = RemotingCommand(33)


@dataclass(eq=False)
class Client:
    """A connection that keeps what it is answered."""

    answers: list[RemotingCommand] = field(default_factory=list)
    deferred: deque[RemotingCommand] = field(default_factory=deque)
    is_open: bool = True
    is_congested: bool = False

    def reply(self, command: RemotingCommand) -> None:
        self.answers.append(command)


class Disk:
    """Pages in when it is told to."""

    def __init__(self) -> None:
        self.goes_on = trio.Event()
        self.paged_in: list[Sequence[Pageable]] = []

    async def page_in(self, missing: Sequence[Pageable]) -> None:
        await self.goes_on.wait()
        self.paged_in.append(missing)


class Reader:
    """A processor that misses one place after the other, the last one for ever."""

    def __init__(self, *begins: int, error: Exception | None = None) -> None:
        self.begins = begins
        self.error = error
        self.waits: list[bool] = []

    def process(
        self, request: RemotingCommand, _: Connection, may_wait: bool
    ) -> RemotingCommand | None:
        self.waits.append(may_wait)
        if self.error is not None and len(self.waits) > 1:
            raise self.error
        if may_wait:
            return request.answer()
        begin = self.begins[min(len(self.waits), len(self.begins)) - 1]
        raise NotInMemoryError([Places("file", ((begin, begin + 1),))])


@asynccontextmanager
async def running(cold: ColdReads, after: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(cold.run, after)
        yield
        nursery.cancel_scope.cancel()


def ask(cold: ColdReads, reader: Reader, client: Client, request: RemotingCommand) -> None:
    answer_with(cold.guard(reader.process), request, cast("Connection", client))


async def test_a_request_is_processed_again_until_its_reads_may_wait() -> None:
    disk, client, reader = Disk(), Client(), Reader(1, 2, 3, 4, 5)
    cold = ColdReads(disk.page_in, waiting_max=10)
    flushes: list[int] = []
    async with running(cold, lambda: flushes.append(len(client.answers))):
        ask(cold, reader, client, REQUEST)
        await wait_all_tasks_blocked()
        assert (reader.waits, client.answers, cold.loaded_count) == ([False], [], 0)
        disk.goes_on.set()
        await wait_all_tasks_blocked()
    # Five places are new, the last one is missing again twice.
    assert reader.waits == [False] * 7 + [True]
    assert [answer.code for answer in client.answers] == [ResponseCode.SUCCESS]
    assert cold.loaded_count == len(disk.paged_in) == 7
    # The answer is sent when it is there.
    assert flushes == [0] * 6 + [1]


async def test_nobody_is_answered_who_does_not_want_it() -> None:
    disk, gone, oneway = Disk(), Client(), Client()
    cold = ColdReads(disk.page_in, waiting_max=10)
    readers = Reader(1), Reader(1)
    async with running(cold):
        ask(cold, readers[0], gone, REQUEST)
        ask(cold, readers[1], oneway, RemotingCommand(33, flag=FLAG_ONEWAY))
        gone.is_open = False
        disk.goes_on.set()
        await wait_all_tasks_blocked()
    assert [len(reader.waits) for reader in readers] == [1, 4]
    assert not gone.answers + oneway.answers


async def test_a_client_that_does_not_read_is_served_when_it_has_read() -> None:
    disk, client, reader = Disk(), Client(), Reader(1)
    cold = ColdReads(disk.page_in, waiting_max=10)
    async with running(cold):
        ask(cold, reader, client, REQUEST)
        client.is_congested = True
        disk.goes_on.set()
        await wait_all_tasks_blocked()
    assert (reader.waits, client.answers, list(client.deferred)) == ([False], [], [REQUEST])


async def test_what_fails_in_the_end_is_the_answer() -> None:
    disk, client = Disk(), Client()
    cold = ColdReads(disk.page_in, waiting_max=10)
    async with running(cold):
        ask(cold, Reader(1, error=BrokerError(ResponseCode.NO_PERMISSION, "no")), client, REQUEST)
        disk.goes_on.set()
        await wait_all_tasks_blocked()
    assert [(a.code, a.remark) for a in client.answers] == [(ResponseCode.NO_PERMISSION, "no")]


def test_only_so_many_requests_wait() -> None:
    cold = ColdReads(Disk().page_in, waiting_max=2)
    client = Client()
    for _ in range(3):
        ask(cold, Reader(1), client, REQUEST)
    assert cold.waiting_count == 2
    assert [answer.code for answer in client.answers] == [ResponseCode.SYSTEM_BUSY]
    with pytest.raises(BrokerError):
        cold.guard(Reader(1).process)(REQUEST, cast("Connection", client))


async def test_who_waits_for_long_holds_nobody_else_up() -> None:
    disk, slow, quick = Disk(), Client(), Client()

    async def page_in(missing: Sequence[Pageable]) -> None:
        if missing[0].where[1] == 1:
            await disk.page_in(missing)

    cold = ColdReads(page_in, waiting_max=20)
    async with running(cold):
        for _ in range(19):
            ask(cold, Reader(1), slow, REQUEST)
        ask(cold, Reader(2), quick, REQUEST)
        await wait_all_tasks_blocked()
        assert (len(slow.answers), len(quick.answers), cold.waiting_count) == (0, 1, 19)
        disk.goes_on.set()
        await wait_all_tasks_blocked()
    assert (len(slow.answers), cold.waiting_count) == (19, 0)
