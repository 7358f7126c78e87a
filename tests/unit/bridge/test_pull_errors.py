"""Which errors end the reading of a queue that has not begun yet."""

from __future__ import annotations

import pytest

from motelog.bridge.errors import RouteError
from motelog.bridge.pull import PullConsumer
from motelog.bridge.read_ahead import ReadAhead
from motelog.bridge.reader import Start
from motelog.bridge.selector import select
from motelog.core.message import MessageQueue


@pytest.mark.parametrize("is_subscribed", [True, False])
async def test_a_topic_that_is_gone_for_a_moment_ends_only_what_was_assigned(
    is_subscribed: bool,
) -> None:
    """A subscription's queues come from a route: the broker restarts and will be back."""
    gone = RouteError("topic 'T' does not exist", topic="T")
    async with PullConsumer(namesrv="127.0.0.1:1", group="G") as consumer:
        if is_subscribed:
            consumer.subscribe("T")
        reading = ReadAhead(MessageQueue("T", "b", 0), Start.COMMITTED, select("*", None))
        assert consumer._ends(reading, gone) is not is_subscribed
        assert (reading.failure is gone) is not is_subscribed
