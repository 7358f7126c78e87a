"""When a broker says SYSTEM_BUSY: who has waited too long, a busy page cache, no write buffer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from motelog.core.broker.waiting.flow_control import HELD_UP_MS, FlowControl
from motelog.core.broker.waiting.pauses import PAUSE_MS
from motelog.core.errors import NextFileError
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from tests.support.broker_stack import pull_ext, send_ext
from tests.support.broker_stage import BrokerStage, Client, broker_stage

SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
BUSY = ResponseCode.SYSTEM_BUSY


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[BrokerStage]:
    with broker_stage(tmp_path) as made:
        yield made


def flow_of(stage: BrokerStage) -> FlowControl:
    return stage.processors.flow


def block(stage: BrokerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a message wait in the line for a file that does not come."""

    def fail(*_: object, **__: object) -> int:
        raise NextFileError("not there yet")

    monkeypatch.setattr(stage.api.line, "_append_now", fail)
    send(stage)
    assert stage.api.line.is_waiting


def send(stage: BrokerStage, body: bytes = b"") -> Client:
    """Send a message; return the client, which may have no answer yet."""
    client = Client()
    ext = {name: str(value) for name, value in send_ext("A").items()}
    stage.process(RemotingCommand(SEND, ext=ext, body=body), client)
    return client


def send_while_an_append_takes(
    ms: int, stage: BrokerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = stage.api.line
    append = line._append_now

    def slow(*arguments: object, **names: object) -> int:
        stage.clock.advance(ms)
        return append(*arguments, **names)  # type: ignore[arg-type]  # handed on as it came

    monkeypatch.setattr(line, "_append_now", slow)
    assert stage.code(SEND, send_ext("A")) == ResponseCode.SUCCESS


def test_each_kind_of_request_may_wait_for_a_time_of_its_own(stage: BrokerStage) -> None:
    flow = flow_of(stage)
    limits = {
        SEND: 200,
        RequestCode.CONSUMER_SEND_MSG_BACK: 200,
        PULL: 5000,
        RequestCode.LITE_PULL_MESSAGE: 5000,
        RequestCode.HEART_BEAT: 31_000,
        RequestCode.END_TRANSACTION: 3000,
        RequestCode.ACK_MESSAGE: 3000,
        RequestCode.GET_BROKER_RUNTIME_INFO: 5000,
    }
    for code, ms_max in limits.items():
        request = RemotingCommand(code)
        assert flow.refusal(request, ms_max - 1, 0) is None
        assert flow.refusal(request, ms_max, 7) == (
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
            f"{ms_max}ms, size of queue: 7"
        )
    assert flow.waited_count == len(limits)
    assert (flow.is_late(199), flow.is_late(200)) == (False, True)


def test_requests_are_looked_at_only_after_the_thread_was_held_up(stage: BrokerStage) -> None:
    flow = flow_of(stage)
    flow.turn_begins()
    stage.clock.advance(2_000)
    assert flow.turn_begins()
    # Requests that waited may come in several turns.
    stage.clock.advance(10)
    assert flow.turn_begins()
    for _ in range(100):
        stage.clock.advance(HELD_UP_MS - 1)
        watched = flow.turn_begins()
    assert not watched
    stage.clock.advance(HELD_UP_MS)
    assert flow.turn_begins()
    flow.enable(False)
    assert not flow.turn_begins()
    assert flow.send_wait_ms_max is None


@pytest.mark.parametrize("pauses", [[400], [390, 10], [200, 200], [20] * 20])
def test_what_came_while_the_process_did_not_run_has_not_waited(
    stage: BrokerStage, pauses: list[int]
) -> None:
    flow, request = flow_of(stage), RemotingCommand(SEND)
    flow.turn_begins()
    for pause_ms in pauses:
        stage.clock.advance(pause_ms)
        flow.turn_begins()
    assert flow.turn_begins() == (max(pauses) >= HELD_UP_MS)
    assert not flow.is_late(400)
    assert flow.refusal(request, 400, 3) is None
    # What is still late when all of it could have been read is refused.
    for _ in range(4):
        stage.clock.work(49)
        flow.turn_begins()
    assert flow.refusal(request, 596, 3) is None
    stage.clock.work(4)
    flow.turn_begins()
    assert flow.is_late(600)
    refusal = flow.refusal(request, 600, 3)
    assert refusal is not None
    assert "period in queue: 200ms" in refusal
    assert flow.waited_count == 1


def test_what_came_while_the_thread_worked_or_appended_has_waited(
    stage: BrokerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = flow_of(stage)
    flow.turn_begins()
    stage.clock.work(150)
    stage.clock.advance(PAUSE_MS - 1)
    send_while_an_append_takes(150, stage, monkeypatch)
    assert flow.turn_begins()
    for waited_ms in (200, 300):
        assert flow.is_late(waited_ms)
        assert flow.refusal(RemotingCommand(SEND), waited_ms, 0) is not None
    # A pause behind it adds nothing.
    stage.clock.advance(1_000)
    flow.turn_begins()
    assert flow.refusal(RemotingCommand(SEND), 1_199, 0) is None
    assert flow.refusal(RemotingCommand(SEND), 1_200, 0) is not None


def test_sends_that_came_during_a_slow_append_are_refused_and_later_ones_are_not(
    stage: BrokerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = flow_of(stage)
    send_while_an_append_takes(1_001, stage, monkeypatch)
    stage.clock.advance(5)
    request, pull = RemotingCommand(SEND), RemotingCommand(PULL)
    assert flow.is_late(100)
    refused = flow.refusal(request, 100, 3)
    assert refused is not None
    assert refused.startswith(
        "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 100ms"
    )
    assert flow.refusal(pull, 100, 3) is None
    # It came when the append was over.
    assert not flow.is_late(5)
    assert flow.refusal(request, 5, 0) is None
    assert flow.page_cache_count == 1


def test_sends_are_refused_at_once_while_the_line_is_busy(
    stage: BrokerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(stage, monkeypatch)
    stage.clock.advance(1_000)
    assert send(stage).answers == []
    stage.clock.advance(1)
    answer = stage.ask(SEND, send_ext("A"))
    assert answer.code == BUSY
    assert answer.remark == "[REJECTREQUEST]system busy, start flow control for a while"
    assert stage.code(RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "G", "offset": 0}) == BUSY
    assert flow_of(stage).rejected_count == 2
    # Whatever is not a message is served.
    assert stage.code(PULL, pull_ext("A", 0)) == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_message_behind_another_is_refused_after_its_time(
    stage: BrokerStage, monkeypatch: pytest.MonkeyPatch, is_enabled: bool
) -> None:
    block(stage, monkeypatch)
    flow_of(stage).enable(is_enabled)
    client = send(stage)
    stage.clock.advance(200)
    stage.api.line.go_on()
    if is_enabled:
        (answer,) = client.answers
        assert answer.code == BUSY
        assert answer.remark is not None
        assert answer.remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy")
        assert stage.processors.send.answers.refused_count == 1
    else:
        assert client.answers == []


def test_sends_are_refused_while_there_is_no_write_buffer(tmp_path: Path) -> None:
    with broker_stage(
        tmp_path, write_buffer=True, write_buffer_files_max=2, commitlog_file_bytes=4_096
    ) as stage:
        codes = [send_slowly(stage, bytes(1_000)) for _ in range(12)]
        taken = codes.index(BUSY)
        # Two files had buffers, and one was begun without.
        assert 6 < taken < 12
        assert set(codes[:taken]) == {ResponseCode.SUCCESS}
        assert set(codes[taken:]) == {BUSY}
        store = stage.store
        store._flush_log(0, store.end_offset)
        store._log.queue.give_back_buffers(store.end_offset)
        assert send_slowly(stage, b"") == ResponseCode.SUCCESS


def send_slowly(stage: BrokerStage, body: bytes) -> int:
    """Send a message, and wait for the worker that makes the next file if that is missing."""
    client = send(stage, body)
    for _ in range(5_000):
        if client.answers:
            break
        time.sleep(0.001)
        stage.api.line.go_on()
    (answer,) = client.answers
    return answer.code
