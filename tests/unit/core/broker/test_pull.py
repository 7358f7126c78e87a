"""Pulls that wait: who is read for when queues grow, and what a failing store answers."""

from __future__ import annotations

from pathlib import Path

from motelog.core.errors import StoreError
from motelog.core.remoting.frames import ResponseCode
from tests.support.pull_stage import QUEUES, TOPICS, Client, pull_stage
from tests.support.stores import message


def test_a_queue_that_grows_wakes_those_that_wait_for_it_alone(tmp_path: Path) -> None:
    with pull_stage(tmp_path) as stage:
        crowd, one, other = Client(), Client(), Client()
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                stage.pull(crowd, topic, queue_id)
        for client in (one, other):
            stage.pull(client, "B", 77)
        assert len(stage.held) > 10_000
        stage.api.reads.clear()
        # Nobody waits for D; 77 grows twice before anybody is woken.
        for topic, queue_id in (("B", 77), ("D", 0), ("B", 77), ("C", 5)):
            stage.store.append([message(stage.tail(topic, queue_id))])
        stage.pulls.wake_grown()
        assert sorted(stage.api.reads) == [("B", 77)] * 3 + [("C", 5)]
        assert [len(client.answers) for client in (crowd, one, other)] == [2, 1, 1]
        assert stage.pulls.woken_count == 4
        stage.pulls.wake_grown()
        assert len(stage.api.reads) == 4


def test_a_read_that_fails_answers_the_pull_and_no_more(tmp_path: Path) -> None:
    with pull_stage(tmp_path) as stage:
        client = Client()
        for queue_id in (0, 1):
            stage.pull(client, "A", queue_id)
        stage.api.fault = StoreError("the disk says no")
        stage.store.append([message(stage.tail("A", 0))])
        stage.pulls.wake_grown()
        (answer,) = client.answers
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the disk says no")
        assert len(stage.held) == 1
