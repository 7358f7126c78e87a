"""The pops that wait for messages: which queue each waits for, and which are woken.

Owns: HeldPops, HeldKey. Must not touch: what a pop reads (pop_reads), its answers (pop).
Spec: RocketMQ PopLongPollingService.

Each message wakes one pop of a group, and the next only if that found something: so a hundred
waiting consumers do not all read for one message. Requests that ask only whether there is a message
are all woken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeAlias, cast

import trio

from motelog.core.broker.api import QueueTail
from motelog.core.broker.processors.pop_request import Pop
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.tables.order_info import QueueKey
from motelog.core.broker.waiting.long_poll import HeldRequests
from motelog.core.broker.waiting.waker import Waker
from motelog.core.remoting.pop_fields import RETRY_V1, RETRY_V2, retry_topic
from motelog.core.remoting.server import Connection
from motelog.core.topic_names import RETRY_PREFIX

#: The key of held requests: a pop or a notice, topic, group, queue id or -1.
HeldKey: TypeAlias = tuple[str, str, str, int]
_TakeUp: TypeAlias = "Callable[[Pop, HeldKey, bool], None]"
POP: Final = "pop"
NOTICE: Final = "notice"
_RETRY_BYTES: Final = RETRY_PREFIX.encode()


class HeldPops:
    """The held pops of one broker; state changes only between two awaits of ``run``."""

    def __init__(self, shared: Shared) -> None:
        self.requests = HeldRequests(
            requests_max=shared.config.held_pulls_max,
            requests_per_owner_max=shared.config.held_pulls_per_connection_max,
        )
        #: The keys of held requests, by each topic that these read.
        self.awaited: dict[bytes, dict[HeldKey, None]] = {}
        # The keys that can be read again although no queue has grown.
        self._freed: dict[HeldKey, None] = {}
        self._waker = Waker(self.requests, shared.clock, wake=self.wake_grown)
        self._growth = shared.api.follow(self.awaited, self._waker.want)
        self._has_found = False

    def __len__(self) -> int:
        return len(self.requests)

    async def run(
        self,
        after: Callable[[], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Wake requests and end those whose deadline has passed; ``after`` follows each round."""
        await self._waker.run(after, task_status=task_status)

    def may_hold(self, pop: Pop) -> bool:
        """Return whether there is room for a request, and a client that waits for its answer."""
        return pop.connection.is_open and not self.requests.is_full_for(pop.connection)

    def keep(self, kind: str, pop: Pop, take_up: _TakeUp) -> HeldKey:
        """Hold a request of this kind until a queue grows, or until its deadline."""
        group = pop.group.group_name
        key = kind, pop.topic, group, pop.queue_id
        self._waker.hold(key, pop.deadline_ms, partial(take_up, pop, key), owner=pop.connection)
        for topic in _topics_of(key):
            self.awaited.setdefault(topic.encode(), {})[key] = None
        return key

    def read_again(self, key: HeldKey) -> None:
        """Wake the requests with this key soon, although no queue has grown."""
        self._freed[key] = None
        self._waker.want()

    def queues_freed(self, queues: list[QueueKey]) -> None:
        """Note that groups may pop queues again; ``run`` wakes their requests."""
        for topic, group, queue_id in queues:
            for key in self.awaited.get(topic.encode(), ()):
                if key[2] == group and (key[3] in (-1, queue_id) or topic.startswith(RETRY_PREFIX)):
                    self._freed[key] = None
        if self._freed:
            self._waker.want()

    def note_found(self) -> None:
        """Note that a woken pop has found something: there may be more for the next."""
        self._has_found = True

    def wake_grown(self) -> None:
        """Read again for requests whose queues grew: one per group, the next if it found any."""
        grown, self._freed = self._freed, {}
        for tail in self._growth.take():
            grown.update(dict.fromkeys(self._waiting_for(tail)))
        for key in grown:
            if key[0] == NOTICE:
                self.requests.wake(key)
            else:
                self._has_found = True
                while self._has_found and self.requests.is_held(key):
                    self._has_found = False
                    self.requests.wake(key, count_max=1)
            self.forget_if_gone(key)

    def _waiting_for(self, tail: QueueTail) -> Iterator[HeldKey]:
        """Yield the keys of requests that wait for a queue."""
        for key in self.awaited.get(tail.topic, ()):
            # A retry is for all requests that wait for the topic, whichever queue they name.
            if key[3] in (-1, tail.queue_id) or tail.topic.startswith(_RETRY_BYTES):
                yield key

    def connection_closed(self, connection: Connection) -> None:
        """Forget the requests of a connection."""
        keys = self.requests.keys_of(connection)
        self.requests.close_owner(connection)
        for key in keys:
            self.forget_if_gone(cast("HeldKey", key))

    def forget_if_gone(self, key: HeldKey) -> None:
        """Stop waiting for topics on behalf of a key without requests."""
        if self.requests.is_held(key):
            return
        for topic in map(str.encode, _topics_of(key)):
            keys = self.awaited.get(topic)
            if keys is not None:
                keys.pop(key, None)
                if not keys:
                    del self.awaited[topic]


def _topics_of(key: HeldKey) -> tuple[str, str, str]:
    """Return the topics for whose growth requests with this key wait."""
    _, topic, group, _ = key
    return topic, retry_topic(topic, group, RETRY_V1), retry_topic(topic, group, RETRY_V2)
