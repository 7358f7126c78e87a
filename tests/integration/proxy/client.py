"""Drives PyPI's rocketmq-python-client; prints JSON lines: what was sent, and who got what.

client.py ENDPOINTS: topics "py-normal", "py-fifo", "py-delay" and "py-bound", each for messages of
one kind; groups "py-simple", "py-bound" and "py-fifo" (in order).
"""

import json
import sys
import threading
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

NORMAL, FIFO, DELAY, BOUND = "py-normal", "py-fifo", "py-delay", "py-bound"
DEADLINE_S = 40
SETTINGS_S_MAX = 5
lock = threading.Lock()


def show(**fields: Any) -> None:
    with lock:
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def message(topic: str, body: str, **fields: Any) -> Message:
    made = Message()
    made.topic, made.body = topic, body.encode()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Listener(MessageListener):  # type: ignore[misc]  # the package is not here
    """Fails at the third message of one group of messages, once."""

    def __init__(self) -> None:
        self.taken = threading.Semaphore(0)
        self.has_failed = False

    def consume(self, got: Any) -> Any:
        show(got=got.body.decode(), by="push", attempt=got.delivery_attempt)
        if got.body == b"a2" and not self.has_failed:
            self.has_failed = True
            return ConsumeResult.FAILURE
        self.taken.release()
        return ConsumeResult.SUCCESS


class Checker(TransactionChecker):  # type: ignore[misc]  # the package is not here
    """Says of a transaction what its message says."""

    def check(self, asked: Any) -> Any:
        body = asked.body.decode()
        show(asked=body)
        return resolution(body)


def received(consumer: Any) -> Any:
    """Receive messages. Apache's proxy fails if it has not heard the consumer's settings yet."""
    end = time.monotonic() + SETTINGS_S_MAX
    while True:
        try:
            return consumer.receive(16, 30)
        except Exception as exc:
            if '"settings" is null' not in str(exc) or time.monotonic() > end:
                raise
        time.sleep(0.1)


def resolution(body: str) -> Any:
    is_committed = body.endswith("commit")
    return TransactionResolution.COMMIT if is_committed else TransactionResolution.ROLLBACK


config = ClientConfiguration(sys.argv[1], Credentials())
producer = Producer(config, (NORMAL, FIFO, DELAY, BOUND), checker=Checker())
producer.startup()
for body in ("now-commit", "now-rollback", "asked-commit", "asked-rollback"):
    transaction = producer.begin_transaction()
    producer.send(message(BOUND, body), transaction)
    if body == "now-commit":
        transaction.commit()
    elif body == "now-rollback":
        transaction.rollback()
try:
    producer.send(message(FIFO, "without a group of messages"))
except Exception as exc:
    show(refused=str(exc))
for i in range(6):
    receipt = producer.send(message(NORMAL, f"n{i}", tag="odd" if i % 2 else "even", keys=f"k{i}"))
    show(sent=f"n{i}", id=receipt.message_id)
for i in range(4):
    for group in "ab":
        producer.send(message(FIFO, f"{group}{i}", message_group=group))
due = int(time.time()) + 2
producer.send(message(DELAY, "later", delivery_timestamp=due))

simple = SimpleConsumer(
    config, "py-simple", {NORMAL: FilterExpression("odd"), DELAY: FilterExpression()}
)
simple.startup()
wanted = {"n1", "n3", "n5", "later"}
changed = False
end = time.monotonic() + DEADLINE_S
while wanted and time.monotonic() < end:
    for got in received(simple):
        body = got.body.decode()
        show(
            got=body,
            by="simple",
            attempt=got.delivery_attempt,
            early=body == "later" and time.time() < due,
        )
        if body == "n1" and not changed:
            # It comes again in ten seconds and not in thirty.
            changed = True
            simple.change_invisible_duration(got, 10)
            continue
        simple.ack(got)
        wanted.discard(body)

bound = SimpleConsumer(config, "py-bound", {BOUND: FilterExpression()})
bound.startup()
committed = {"now-commit", "asked-commit"}
end = time.monotonic() + DEADLINE_S
while committed and time.monotonic() < end:
    for got in received(bound):
        show(got=got.body.decode(), by="bound")
        bound.ack(got)
        committed.discard(got.body.decode())
bound.shutdown()

listener = Listener()
push = PushConsumer(config, "py-fifo", listener, {FIFO: FilterExpression()})
push.startup()
for _ in range(8):
    if not listener.taken.acquire(timeout=DEADLINE_S):
        break
# The last acknowledgements are on their way.
time.sleep(0.5)
push.shutdown()
simple.shutdown()
producer.shutdown()
