"""RocketMQ's C++ client while servers are killed, for tests/fault/broker_kills.py: sends and
consumes until its standard input ends. A line of input stops the sends; "idle" says that none is
under way.

Owns: the clients of one process. Arguments: the name server's address and a topic. Lines of output,
separated by tabs; bodies are "TOPIC/WRITER/NUMBER":

    tried|acknowledged  BODY
    got  cpp  BODY
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from rocketmq.client import Message, Producer, PushConsumer, RecvMessage, SendStatus
from rocketmq.exceptions import RocketMQException, ffi_check
from rocketmq.ffi import _CConsumeStatus, dll

WRITERS = 3
PAUSE_S = 0.02
lock = threading.Lock()
is_over = threading.Event()


def show(*words: str) -> None:
    with lock:
        sys.stdout.write("\t".join(words) + "\n")
        sys.stdout.flush()


def send(producer: Any, writer: str, topic: str) -> None:
    number = 0
    while not is_over.is_set():
        body = f"{topic}/{writer}/{number}"
        made = Message(topic)
        made.set_body(body)
        show("tried", body)
        try:
            if producer.send_sync(made).status == SendStatus.OK:
                show("acknowledged", body)
        except RocketMQException:
            time.sleep(0.05)  # a broker is away
        number += 1
        time.sleep(PAUSE_S)


def handle(_consumer: Any, handle_of_message: Any) -> int:
    show("got", "cpp", RecvMessage(handle_of_message).body.decode())
    return int(_CConsumeStatus.CONSUME_SUCCESS)


namesrv, topic = sys.argv[1:]
producer = Producer("cpp-senders")
producer.set_namesrv_addr(namesrv)
producer.start()
consumer = PushConsumer("cpp")
consumer.set_namesrv_addr(namesrv)
ffi_check(dll.Subscribe(consumer._handle, topic.encode(), b"*"))
consumer._register_callback(handle)
consumer.start()
writers = [
    threading.Thread(target=send, args=(producer, f"cpp{number}", topic))
    for number in range(WRITERS)
]
for writer in writers:
    writer.start()
sys.stdin.readline()
is_over.set()
for writer in writers:
    writer.join()
show("idle")
sys.stdin.read()
os._exit(0)
