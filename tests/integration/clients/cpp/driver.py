"""RocketMQ's C++ client by PyPI's ``rocketmq``; prints JSON lines: what was sent, who got what.

Owns: the clients of one process. Must not touch: expectations. Its argument is the name server's
address. Topic "Cpp" is made by the first message; the groups are "cpp-push", "cpp-order" and
"cpp-pull".
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import _CConsumeStatus, dll

TOPIC, ORDERED = "Cpp", "CppOrdered"
COUNT = 8
LARGE = "L" * 20_000
DEADLINE_S = 40
lock = threading.Lock()


def show(**fields: Any) -> None:
    with lock:
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def message(topic: str, body: str, number: int) -> Any:
    made = Message(topic)
    made.set_body(body)
    made.set_keys(f"key{number}")
    made.set_tags("ABC"[number % 3])
    made.set_property("number", str(number))
    return made


def sent(way: str, result: Any) -> None:
    show(sent=way, status=result.status.name, offset=result.offset)


def produce(namesrv: str) -> None:
    producer = Producer("cpp-producers")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    for i in range(COUNT):
        sent("sync", producer.send_sync(message(TOPIC, f"sync{i}", i)))
    sent("large", producer.send_sync(message(TOPIC, LARGE, 0)))
    sent("batch", producer.send_batch([message(TOPIC, f"batch{i}", i) for i in range(COUNT)]))
    answered = threading.Semaphore(0)

    def succeeded(result: Any) -> None:
        sent("async", result)
        answered.release()

    for i in range(COUNT):
        producer.send_async(message(TOPIC, f"async{i}", i), succeeded, None)
    for _ in range(COUNT):
        answered.acquire(timeout=DEADLINE_S)
    for i in range(COUNT):
        producer.send_oneway(message(TOPIC, f"oneway{i}", i))
        sent("orderly", producer.send_orderly(message(ORDERED, f"orderly{i}", i), i % 2))
    producer.shutdown()


def push(
    namesrv: str, topic: str, group: str, expression: str, count: int, *, in_order: bool
) -> None:
    """Take so many messages; the first is refused once, and comes again."""
    taken: set[bytes] = set()
    refused: list[bytes] = []
    is_done = threading.Event()

    def handle(_consumer: Any, handle_of_message: Any) -> int:
        got = RecvMessage(handle_of_message)
        body = got.body
        with lock:
            is_refused = not refused
            if is_refused:
                refused.append(body)
            else:
                taken.add(body)
        show(
            by=group,
            got=body.decode(),
            tag=got.tags.decode(),
            key=got.keys.decode(),
            number=got.get_property("number").decode(),
            queue=got.queue_id,
            offset=got.queue_offset,
            refused=is_refused,
        )
        if len(taken) == count:
            is_done.set()
        outcome = _CConsumeStatus.RECONSUME_LATER if is_refused else _CConsumeStatus.CONSUME_SUCCESS
        return int(outcome)

    consumer = PushConsumer(group, orderly=in_order)
    consumer.set_namesrv_addr(namesrv)
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), expression.encode()))
    # What ``subscribe`` of the package registers answers anything after an exception.
    consumer._register_callback(handle)
    consumer.start()
    is_done.wait(DEADLINE_S)
    # The last offsets are noted when the listener has returned, and committed at the end.
    time.sleep(0.5)
    consumer.shutdown()


def pull(namesrv: str) -> None:
    consumer = PullConsumer("cpp-pull")
    consumer.set_namesrv_addr(namesrv)
    consumer.start()
    for got in consumer.pull(TOPIC):
        show(by="cpp-pull", got=got.body.decode())
    consumer.shutdown()


address = sys.argv[1]
produce(address)
# Of each kind three of eight have tag A, three B, two C; the large one has A.
push(address, TOPIC, "cpp-push", "A || B", 4 * 6 + 1, in_order=False)
push(address, ORDERED, "cpp-order", "*", COUNT, in_order=True)
pull(address)
