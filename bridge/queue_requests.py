"""A consumer's requests to the broker of a queue: bounds, a group's offsets, messages.

Owns: QueueRequests, the fields of these requests. Must not touch: when they are sent, the use of
answers (bridge.reader, bridge.pull, bridge.push). Errors are RouteError, NoNameServerError,
RemotingError and BrokerError, unless a method says more.
Spec: RocketMQ MQAdminImpl, RemoteBrokerOffsetStore, PullAPIWrapper.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

import trio

from motelog.bridge.client import Client, check, int_field
from motelog.bridge.errors import (
    ClientClosedError,
    CommitFailedError,
    FilterError,
    NoNameServerError,
    RouteError,
)
from motelog.bridge.pull_request import (
    PullResult,
    pull_command,
    pull_result,
    queue_ext,
)
from motelog.bridge.routes import MASTER_ID
from motelog.bridge.selector import SELECT_ALL, Selector
from motelog.core.errors import BrokerError, MotelogError, RemotingError, RemotingTimeoutError
from motelog.core.message import MessageQueue
from motelog.core.remoting.codes import ONLY_FORWARD
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode, dumps

# Added to the hold time: the broker checks for expired holds every 5 s.
HOLD_GRACE_S: Final = 10.0

# Pause before a broker that did not accept a commit is asked again.
RETRY_PAUSE_S: Final = 0.1
RETRY_PAUSE_S_MAX: Final = 0.8

# How long the previous member may still save the offset of a queue that this one has taken over.
TAKEN_OVER_WITHIN_S: Final = 30.0

#: Answers of a broker that may be different a moment later.
PASSING_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
    }
)

# Answers of a broker that refuses a filter, or that supports no filters.
_REFUSALS: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED})

T = TypeVar("T")


class QueueRequests:
    """Requests for the queues of any topic, with the committed offsets of one group."""

    def __init__(self, client: Client, *, group: str, timeout_s: float) -> None:
        self._client = client
        self._group = group
        self._timeout_s = timeout_s
        #: Topic -> routes from before this time are not used.
        self._trusted_after: dict[str, float] = {}

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        *,
        selector: Selector,
        count_max: int,
        bytes_max: int,
        hold_s: float,
        broker_id: int = MASTER_ID,
    ) -> PullResult:
        command = pull_command(
            queue,
            queue_offset,
            group=self._group,
            count_max=count_max,
            bytes_max=bytes_max,
            hold_s=hold_s,
            selector=selector,
        )
        answer = await self.ask(
            queue,
            RequestCode.PULL_MESSAGE,
            command.ext,
            timeout_s=self._timeout_s + (hold_s + HOLD_GRACE_S if hold_s > 0 else 0),
            broker_id=broker_id,
        )
        return pull_result(answer, answer.body)

    async def check_selector(self, queue: MessageQueue, selector: Selector, version: int) -> None:
        """Ask the broker whether it accepts the filter; FilterError with its text if not."""
        body = {
            "clientId": self._client.client_id,
            "group": self._group,
            "subscriptionData": selector.subscription(queue.topic, version),
        }
        answer = await self.ask(queue, RequestCode.CHECK_CLIENT_CONFIG, {}, body=dumps(body))
        if answer.code in _REFUSALS:
            raise FilterError(
                answer.remark or f"the broker of queue {queue} does not accept SQL92 filters"
            )
        check(answer, queue.topic)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, None if it has none."""
        ext = queue_ext(queue) | {"consumerGroup": self._group}
        answer = await self.ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return int_field(check(answer, queue.topic), "offset")

    async def commit(
        self,
        offsets: Mapping[MessageQueue, int],
        done: Callable[[MessageQueue, int], None] = lambda queue, offset: None,
        *,
        forward: Container[MessageQueue] = (),
        timeout_s: float = 0.0,
    ) -> None:
        """Store offsets; return when every broker has confirmed. ``done`` is called for each.

        For queues in ``forward``, a higher offset that another member has stored meanwhile is kept.
        (Apache's brokers store whatever comes last.)
        A broker that is unreachable or busy is asked again for ``timeout_s``; 0 asks once. It does
        not delay the others. CommitFailedError has the queues that are not committed.
        """
        deadline = trio.current_time() + timeout_s if timeout_s > 0 else None
        self._look_for_masters(offsets)
        failures: dict[MessageQueue, MotelogError] = {}

        async def commit(queue: MessageQueue) -> None:
            is_forward = queue in forward
            error = await self._commit_until(queue, offsets[queue], is_forward, deadline, timeout_s)
            if error is None:
                done(queue, offsets[queue])
            else:
                failures[queue] = error

        async def commit_all(queues: list[MessageQueue]) -> None:
            # One queue of each topic and broker goes first. RocketMQ creates the table for a
            # group's first commit to a topic without a lock, and loses some of several concurrent
            # ones. And if a broker is unreachable, one queue finds out for all.
            first, *others = queues
            await commit(first)
            error = failures.get(first)
            if error is not None and _is_away(error):
                failures.update(dict.fromkeys(others, error))
            else:
                await for_each(others, commit)

        places: defaultdict[tuple[str, str], list[MessageQueue]] = defaultdict(list)
        for queue in offsets:
            places[queue.topic, queue.broker_name].append(queue)
        await for_each(places.values(), commit_all)
        for error in failures.values():
            if isinstance(error, ClientClosedError):
                raise error
        if failures:
            raise CommitFailedError(failures) from next(iter(failures.values()))

    async def offset(self, queue: MessageQueue, code: RequestCode, ext: dict[str, str]) -> int:
        """Return the broker's answer to GET_MIN_OFFSET, GET_MAX_OFFSET, SEARCH_OFFSET_BY_..."""
        answer = await self.ask(queue, code, queue_ext(queue) | ext)
        return int_field(check(answer, queue.topic), "offset")

    async def offsets(
        self, queues: Iterable[MessageQueue], code: RequestCode, ext: dict[str, str]
    ) -> dict[MessageQueue, int]:
        found: dict[MessageQueue, int] = {}

        async def ask(queue: MessageQueue) -> None:
            found[queue] = await self.offset(queue, code, ext)

        queues = list(queues)
        await for_each(queues, ask)
        return {queue: found[queue] for queue in queues}

    async def ask(
        self,
        queue: MessageQueue,
        code: RequestCode,
        ext: dict[str, str],
        *,
        body: bytes = b"",
        timeout_s: float | None = None,
        broker_id: int = MASTER_ID,
        is_for_master: bool = False,
    ) -> RemotingCommand:
        """Return the answer of the queue's broker; the caller checks its code.

        A slave is asked while the master is unreachable, unless only the master may answer.
        """
        address = await self.address(queue, broker_id, is_for_master=is_for_master)
        request = RemotingCommand(code, ext=ext, body=body)
        return await self._client.request(address, request, timeout_s=timeout_s or self._timeout_s)

    def distrust(self, topic: str) -> None:
        """Make the next request ask the name servers again, since a broker did not answer."""
        self._trusted_after[topic] = trio.current_time()

    async def address(
        self, queue: MessageQueue, broker_id: int = MASTER_ID, *, is_for_master: bool = False
    ) -> str:
        """Return the address of the queue's broker: that member of its group, or another one."""
        topic = queue.topic
        route = await self._client.route(topic, newer_than=self._trusted_after.get(topic))
        if is_for_master:
            address = route.address(queue.broker_name)
        else:
            address = route.any_address(queue.broker_name, broker_id)
        if address is None:
            kind = "master of broker" if is_for_master else "broker"
            raise RouteError(
                f"topic {queue.topic!r} has no {kind} {queue.broker_name!r}", topic=queue.topic
            )
        return address

    def _look_for_masters(self, queues: Iterable[MessageQueue]) -> None:
        """Make requests ask the name servers again where only slaves are known.

        A slave accepts offsets while its master is down, but later replaces them by its master's.
        """
        for topic, broker_name in {(queue.topic, queue.broker_name) for queue in queues}:
            route = self._client.known_route(topic)
            if route is not None and route.address(broker_name) is None:
                self.distrust(topic)

    async def _commit_until(
        self,
        queue: MessageQueue,
        queue_offset: int,
        is_forward: bool,
        deadline: float | None,
        timeout_s: float,
    ) -> MotelogError | None:
        """Commit, with retries until ``deadline`` if they may help; return the error, if any."""
        error: MotelogError | None = None
        pause_s = RETRY_PAUSE_S
        with trio.move_on_at(math.inf if deadline is None else deadline):
            while True:
                try:
                    await self._commit(queue, queue_offset, is_forward)
                    return None
                except MotelogError as exc:
                    error = exc
                if _is_away(error):
                    self.distrust(queue.topic)  # it may come back at another address
                elif not (isinstance(error, BrokerError) and error.code in PASSING_CODES):
                    return error
                if deadline is None:
                    return error
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_PAUSE_S_MAX)
        return error or RemotingTimeoutError(f"no answer within {timeout_s:.3g} s")

    async def _commit(self, queue: MessageQueue, queue_offset: int, is_forward: bool) -> None:
        ext = queue_ext(queue) | {
            "consumerGroup": self._group,
            "commitOffset": str(queue_offset),
        }
        if is_forward:
            ext[ONLY_FORWARD] = "true"
        answer = await self.ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            # RocketMQ 5 learns of a group from its members or pulls, and there were none yet.
            await self.pull(
                queue, queue_offset, selector=SELECT_ALL, count_max=1, bytes_max=1, hold_s=0
            )
            answer = await self.ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        check(answer, queue.topic)


def _is_away(error: MotelogError) -> bool:
    """Return whether the broker could not be reached; while it restarts it has no route."""
    return isinstance(error, RemotingError | NoNameServerError | RouteError)


async def saved_ahead(
    offsets: Mapping[MessageQueue, int], load: Callable[[MessageQueue], Awaitable[int | None]]
) -> set[MessageQueue]:
    """Return the queues whose saved offsets are above ``offsets``.

    A queue's previous member may save its offset late: after it has learned of the new assignment
    and finished messages in work. A lower offset would let those be handled a third time.
    """
    found = set()

    async def compare(queue: MessageQueue) -> None:
        saved = await load(queue)
        if saved is not None and saved > offsets[queue]:
            found.add(queue)

    # A broker that does not answer will not accept an offset either, which is reported then.
    with suppress(MotelogError):
        await for_each(offsets, compare)
    return found


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Run ``work`` on all items at once; raise the first error after all have ended."""
    errors: list[MotelogError] = []

    async def run(item: T) -> None:
        try:
            await work(item)
        except MotelogError as exc:
            errors.append(exc)

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(run, item)
    if errors:
        raise errors[0]
