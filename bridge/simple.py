"""Messages without queues: receive some, acknowledge each, or let it be delivered again.

Owns: SimpleConsumer, which broker and topic is asked next. Must not touch: connections and routes
(bridge.client), encoding of requests and answers (popped). Any number of tasks may receive and
acknowledge at once. Needs RocketMQ 5 or our broker. Spec: RocketMQ's SimpleConsumer (5.x).

    receive -> each broker of each topic in turn, without waiting   -> messages
            -> none has any -> one place: its pop waits
                            -> several: they notify when there are messages, which are then popped

Only a pop takes messages into work, and only one is in flight per call. So no message is taken
without being returned, unless an answer is lost: its messages are delivered again after their time.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Iterable
from typing import Any, Final, Self

import trio

from motelog.bridge.client import (
    REQUEST_TIMEOUT_S,
    Client,
    NameServers,
    check,
    check_group,
    check_subscribed,
)
from motelog.bridge.errors import ClientError, RouteError
from motelog.bridge.popped import (
    POP_COUNT_MAX,
    PoppedMessage,
    ack_command,
    ack_many_commands,
    change_command,
    changed,
    notification_command,
    pop_command,
    popped,
    read_receipt,
)
from motelog.bridge.selector import TAGS_ALL, Selector, select
from motelog.core.errors import BrokerError, MotelogError, RemotingError
from motelog.core.remoting.credentials import Credentials
from motelog.core.remoting.frames import RemotingCommand, ResponseCode
from motelog.core.remoting.tls import Tls

logger = logging.getLogger(__name__)

INVISIBLE_S: Final = 60.0
WAIT_S: Final = 15.0
# Added to the wait: brokers check for expired waits at intervals.
WAIT_GRACE_S: Final = 10.0

__all__ = ["INVISIBLE_S", "WAIT_S", "PoppedMessage", "SimpleConsumer"]

#: A topic and a broker with queues of it.
_Place = tuple[str, str]


class SimpleConsumer:
    """Receives messages of topics as a member of ``group``, and acknowledges each separately.

    ``async with SimpleConsumer(namesrv="127.0.0.1:9876", group="G") as consumer:``, then
    ``await consumer.subscribe("orders")``. A received message is invisible to the other members for
    ``invisible_s``. If it is not acknowledged by then, it is delivered again, to any member. A new
    group begins at the oldest message. With ``in_order`` a queue's messages come in their order,
    and the next ones only when all before them are acknowledged.
    """

    def __init__(
        self,
        *,
        namesrv: NameServers = "127.0.0.1:9876",
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        group: str = "motelog",
        in_order: bool = False,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.group = check_group(group)
        self._in_order = in_order
        self._request_timeout_s = request_timeout_s
        self._subscriptions: dict[str, Selector] = {}
        self._subscribed_at_ms = 0
        #: Topic -> routes from before this time are not used, since a broker did not answer.
        self._trusted_after: dict[str, float] = {}
        # The attempt of each place without an answer: repeated, it returns the same messages.
        self._attempts: dict[_Place, str] = {}
        self._turn = itertools.count()
        self._client = Client(
            namesrv=namesrv,
            groups=self._groups,
            unregister={"consumerGroup": group},
            credentials=credentials,
            tls=tls,
        )

    async def __aenter__(self) -> Self:
        await self._client.enter()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Unregister from the brokers. Unacknowledged messages are delivered again later."""
        await self._client.leave()

    async def subscribe(self, topic: str, *, tags: str = TAGS_ALL, sql: str | None = None) -> None:
        """Receive from now on the messages of ``topic`` that ``tags`` or ``sql`` select.

        RouteError if there is no such topic. All members of a group must use the same filter.
        """
        selector = select(tags, sql)
        await self._client.route(check_subscribed(topic))
        self._subscriptions[topic] = selector
        self._subscribed_at_ms = _now_ms()
        self._client.want_heartbeat()

    def unsubscribe(self, topic: str) -> None:
        """Stop receiving messages of ``topic``."""
        self._subscriptions.pop(topic, None)
        self._subscribed_at_ms = _now_ms()
        self._client.want_heartbeat()

    async def receive(
        self, max_messages: int = 16, *, invisible_s: float = INVISIBLE_S, wait_s: float = WAIT_S
    ) -> list[PoppedMessage]:
        """Return up to ``max_messages`` (32 at most) as soon as there are any; [] after ``wait_s``.

        Brokers that cannot be reached are skipped; if none can be, the last error is raised.
        """
        if not 1 <= max_messages <= POP_COUNT_MAX:
            raise ValueError(f"max_messages must be 1 to {POP_COUNT_MAX}, not {max_messages}")
        if invisible_s < 0 or wait_s < 0:
            raise ValueError("invisible_s and wait_s must be 0 or more")
        deadline = trio.current_time() + wait_s
        while True:
            places = await self._places()
            is_only_one = len(places) == 1
            at_once_s = wait_s if is_only_one else 0.0
            found = await self._pop_in_turn(places, max_messages, invisible_s, at_once_s)
            if found or is_only_one or trio.current_time() >= deadline:
                return found
            if not await self._wait_for_any(places, deadline - trio.current_time()):
                return []

    async def ack(self, message: PoppedMessage) -> None:
        """Acknowledge a message.

        RemotingError or RouteError if the broker cannot be reached: try again, or the message is
        delivered again.
        """
        await self._tell(message, ack_command(message, self.group))

    async def ack_many(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge messages, with one request to each broker.

        On an error some of them may be acknowledged.
        """
        for first, command in ack_many_commands(messages, self.group):
            await self._tell(first, command)

    async def change_invisible(self, message: PoppedMessage, invisible_s: float) -> PoppedMessage:
        """Let a message be delivered again ``invisible_s`` from now; 0: at once.

        Return it with its new receipt, which replaces the old one. BrokerError (NO_MESSAGE) if its
        time had already ended.
        """
        command = change_command(message, self.group, int(invisible_s * 1000))
        return changed(message, await self._tell(message, command))

    async def _tell(self, message: PoppedMessage, command: RemotingCommand) -> RemotingCommand:
        broker_name = read_receipt(message).broker_name
        timeout_s = self._request_timeout_s
        answer = await self._ask(message.topic, broker_name, command, timeout_s=timeout_s)
        return check(answer, message.topic)

    async def _ask(
        self, topic: str, broker_name: str, command: RemotingCommand, *, timeout_s: float
    ) -> RemotingCommand:
        """Return a broker's answer. Without one its route is requested again: it may have moved."""
        route = await self._client.route(topic, newer_than=self._trusted_after.get(topic))
        address = route.address(broker_name)
        if address is None:
            self._trusted_after[topic] = trio.current_time()
            text = (
                f"no master is registered for broker {broker_name!r}, which has topic"
                f" {topic!r}: is it running?"
            )
            raise RouteError(text, topic=topic)
        try:
            return await self._client.request(address, command, timeout_s=timeout_s)
        except RemotingError:
            self._trusted_after[topic] = trio.current_time()
            raise

    async def _places(self) -> list[_Place]:
        """Return the places to ask; each call begins with another one."""
        if not self._subscriptions:
            raise ClientError("there is no subscription: await subscribe(topic) first")
        places = []
        for topic in list(self._subscriptions):
            route = await self._client.route(topic)
            names = dict.fromkeys(queue.broker_name for queue in route.read_queues)
            places += [(topic, name) for name in names]
        if not places:
            topics = ", ".join(self._subscriptions)
            raise RouteError(f"no broker has readable queues of {topics}", topic=topics)
        begin = next(self._turn) % len(places)
        return places[begin:] + places[:begin]

    async def _pop_in_turn(
        self, places: list[_Place], count_max: int, invisible_s: float, wait_s: float
    ) -> list[PoppedMessage]:
        failure: MotelogError | None = None
        is_any_asked = False
        for place in places:
            try:
                found = await self._pop(place, count_max, invisible_s, wait_s)
            except (RemotingError, RouteError) as exc:
                failure = exc
                logger.warning(
                    "a broker cannot be reached; messages come from the others broker=%s error=%s",
                    place[1],
                    exc,
                )
                continue
            is_any_asked = True
            if found:
                return found
        if failure is not None and not is_any_asked:
            raise failure
        return []

    async def _pop(
        self, place: _Place, count_max: int, invisible_s: float, wait_s: float
    ) -> list[PoppedMessage]:
        topic, broker_name = place
        selector = self._subscriptions.get(topic)
        if selector is None:
            return []
        attempt = None
        if self._in_order:
            # Another task's pop of this place must not get the same messages.
            attempt = self._attempts.pop(place, None) or uuid.uuid4().hex
        command = pop_command(
            topic,
            self.group,
            selector,
            count_max=count_max,
            invisible_ms=int(invisible_s * 1000),
            wait_ms=int(wait_s * 1000),
            now_ms=_now_ms(),
            attempt=attempt,
        )
        timeout_s = wait_s + self._request_timeout_s + WAIT_GRACE_S
        try:
            answer = await self._ask(topic, broker_name, command, timeout_s=timeout_s)
        except RemotingError:
            if attempt is not None:
                self._attempts[place] = attempt
            raise
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            text = f"broker {broker_name} does not support POP: it is older than RocketMQ 5"
            raise BrokerError(answer.code, text)
        return popped(answer, topic, broker_name)

    async def _wait_for_any(self, places: list[_Place], wait_s: float) -> bool:
        """Return whether one of the places notifies of messages within ``wait_s``."""
        is_there = False
        async with trio.open_nursery() as nursery:

            async def wait_for(place: _Place) -> None:
                nonlocal is_there
                topic, broker_name = place
                command = notification_command(
                    topic,
                    self.group,
                    wait_ms=int(wait_s * 1000),
                    now_ms=_now_ms(),
                    is_order=self._in_order,
                )
                try:
                    answer = check(
                        await self._ask(
                            topic, broker_name, command, timeout_s=wait_s + WAIT_GRACE_S
                        )
                    )
                except MotelogError as exc:
                    logger.info(
                        "a broker cannot notify of messages broker=%s error=%s", broker_name, exc
                    )
                    return
                if answer.ext.get("hasMsg") == "true":
                    is_there = True
                    nursery.cancel_scope.cancel()

            nursery.cancel_scope.deadline = trio.current_time() + wait_s
            for place in places:
                nursery.start_soon(wait_for, place)
        return is_there

    def _groups(self) -> dict[str, list[dict[str, Any]]]:
        """Return the heartbeat's groups. Brokers create the group and show it to tools."""
        consumer = {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "consumeType": "CONSUME_POP",
            "groupName": self.group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [
                selector.subscription(topic, self._subscribed_at_ms)
                for topic, selector in self._subscriptions.items()
            ],
            "unitMode": False,
        }
        return {"consumerDataSet": [consumer], "producerDataSet": []}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
