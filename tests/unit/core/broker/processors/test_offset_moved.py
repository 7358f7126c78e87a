"""What a broker writes about consumers whose offsets are outside their queues."""

from __future__ import annotations

import json
from pathlib import Path

from motelog.core.broker.processors.offset_moved import PERIOD_MS
from motelog.core.remoting.codes import RequestCode, ResponseCode
from tests.support.broker_stack import pull_ext, send_ext
from tests.support.broker_stage import broker_stage
from tests.support.stores import read_queue


def test_an_offset_outside_its_queue_is_an_event_now_and_then(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        stage.ask(RequestCode.SEND_MESSAGE_V2, send_ext("A"), b"x")

        def pull(offset: int, **fields: object) -> None:
            ext = pull_ext("A", offset) | fields
            assert stage.code(RequestCode.PULL_MESSAGE, ext) == ResponseCode.PULL_OFFSET_MOVED

        pull(5)
        (event,) = read_queue(stage.store, "OFFSET_MOVED_EVENT", 0)
        assert json.loads(event.body) == {
            "consumerGroup": "consumers",
            "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "A"},
            "offsetNew": 1,
            "offsetRequest": 5,
        }
        assert (event.tags, event.keys) == ("consumers", ("consumers",))
        pull(6)
        assert len(read_queue(stage.store, "OFFSET_MOVED_EVENT", 0)) == 1
        pull(6, consumerGroup="others")
        stage.clock.advance(PERIOD_MS)
        pull(7)
        events = read_queue(stage.store, "OFFSET_MOVED_EVENT", 0)
        asked = [json.loads(event.body)["offsetRequest"] for event in events]
        assert asked == [5, 6, 7]
