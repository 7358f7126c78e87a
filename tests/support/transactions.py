"""Transactions on a broker's stage: half messages, their ends, and what consumers see of them.

Owns: the requests of a transactional producer, and one that is asked about its messages. Must not
touch: sockets; time passes when a test moves the stage's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.frames import RemotingCommand
from tests.support.broker_stack import send_ext
from tests.support.broker_stage import BrokerStage, Client
from tests.support.stores import read_queue

COMMIT = 8
ROLLBACK = 12
UNKNOWN = 0
GROUP = "producers"
TIMEOUT_MS = 6_000


@dataclass(frozen=True, slots=True)
class Sent:
    """A half message that was acknowledged: where it is."""

    physical_offset: int
    queue_offset: int
    unique_key: str


def half_ext(topic: str = "T", *, key: str = "", queue_id: int = 0, **named: str) -> dict[str, Any]:
    """Return the header of a transactional send; ``named`` are further properties."""
    pairs = {"TRAN_MSG": "true", "PGROUP": GROUP} | ({"UNIQ_KEY": key} if key else {}) | named
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
    return send_ext(topic, queue_id=queue_id, properties=text, f=4)


def send_half(
    stage: BrokerStage, body: bytes, *, key: str = "", queue_id: int = 0, **named: str
) -> Sent:
    """Send one half message of topic T, born now."""
    ext = half_ext(key=key or body.hex().upper().rjust(32, "0"), queue_id=queue_id, **named)
    ext["g"] = stage.clock.now_ms()
    answer = stage.ask(RequestCode.SEND_MESSAGE_V2, ext, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert answer.ext["queueId"] == str(queue_id)
    return Sent(
        int(answer.ext["msgId"][-16:], 16),
        int(answer.ext["queueOffset"]),
        answer.ext["transactionId"],
    )


def end_ext(sent: Sent, end: int, **fields: Any) -> dict[str, Any]:
    """Return the header of a request that ends a transaction."""
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": sent.queue_offset,
        "commitLogOffset": sent.physical_offset,
        "commitOrRollback": end,
        "fromTransactionCheck": "false",
        "msgId": sent.unique_key,
    } | fields


def end(stage: BrokerStage, sent: Sent, how: int, **fields: Any) -> ResponseCode:
    """End a transaction, and return the code of the answer, for which the disk may be read."""
    client = Client()
    ext = {name: str(value) for name, value in end_ext(sent, how, **fields).items()}
    stage.process(RemotingCommand(RequestCode.END_TRANSACTION, ext=ext), client)

    async def read() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(stage.api.cold_reads.run, stage.processors.end_turn)
            while stage.api.cold_reads.waiting_count:  # noqa: ASYNC110  # it has no event
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()

    if not client.answers:
        trio.run(read)
    (answer,) = client.answers
    return ResponseCode(answer.code)


def seen(stage: BrokerStage, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """Return the bodies that consumers of a queue get."""
    return [message.body for message in read_queue(stage.store, topic, queue_id)]


def halves(stage: BrokerStage) -> list[StoredMessage]:
    return read_queue(stage.store, "RMQ_SYS_TRANS_HALF_TOPIC", 0)


def ops(stage: BrokerStage) -> list[StoredMessage]:
    return read_queue(stage.store, "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)


def check(stage: BrokerStage, *, after_ms: int = TIMEOUT_MS) -> None:
    """Let time go by, then have the broker look for open transactions."""
    stage.clock.advance(after_ms)
    trio.run(stage.check_back.make_pass)


@dataclass
class AskedProducer:
    """A member of a producer group; answers each question at once by what ``decide`` says."""

    stage: BrokerStage
    decide: Callable[[StoredMessage], int]
    client_id: str = "client"
    client: Client = field(default_factory=Client)
    questions: list[RemotingCommand] = field(default_factory=list)

    def __post_init__(self) -> None:
        body = {
            "clientID": self.client_id,
            "producerDataSet": [{"groupName": GROUP}],
            "consumerDataSet": [],
        }
        self.stage.ask(RequestCode.HEART_BEAT, body=body, client=self.client)
        self.client.answers.clear()

    def answer(self) -> list[StoredMessage]:
        """Answer the questions that have come, and return the messages they are about."""
        new, self.client.answers[:] = list(self.client.answers), []
        self.questions += new
        found = []
        for question in new:
            assert question.code == RequestCode.CHECK_TRANSACTION_STATE
            assert question.is_oneway
            (message,) = decode_messages(question.body)
            found.append(message)
            ext = question.ext
            named = Sent(
                int(ext["commitLogOffset"]), int(ext["tranStateTableOffset"]), ext["msgId"]
            )
            end(self.stage, named, self.decide(message), fromTransactionCheck="true")
        return found
