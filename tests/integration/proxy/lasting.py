"""PyPI's rocketmq-python-client behind RocketMQ's proxy while servers are killed, for
tests/fault/broker_kills.py: sends and consumes until its standard input ends. A line of input stops
the sends; "idle" says that none is under way.

lasting.py ENDPOINTS TOPIC. Lines of output, separated by tabs; bodies are "TOPIC/WRITER/NUMBER":

    tried|acknowledged  BODY
    got  grpc  BODY
"""

import os
import sys
import threading
import time
import traceback

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

WRITERS = 2
PAUSE_S = 0.03
INVISIBLE_S = 10
#: A call waits at one broker while the other has messages; the proxy refuses less than 5 s.
AWAIT_S = 6
TAKERS = 4
lock = threading.Lock()
is_over = threading.Event()


def show(*words: str) -> None:
    with lock:
        sys.stdout.write("\t".join(words) + "\n")
        sys.stdout.flush()


def send(producer: Producer, writer: str, topic: str) -> None:
    number = 0
    while not is_over.is_set():
        made = Message()
        made.topic = topic
        body = f"{topic}/{writer}/{number}"
        made.body = body.encode()
        show("tried", body)
        try:
            producer.send(made)
            show("acknowledged", body)
        except Exception:  # the package has no root of its errors; a broker is away
            traceback.print_exc()
            time.sleep(0.05)
        number += 1
        time.sleep(PAUSE_S)


def take(consumer: SimpleConsumer) -> None:
    while True:
        try:
            for got in consumer.receive(32, INVISIBLE_S):
                show("got", "grpc", got.body.decode())
                consumer.ack(got)
        except Exception:  # as above; what is not acknowledged comes again
            traceback.print_exc()
            time.sleep(0.1)


endpoints, topic = sys.argv[1:]
config = ClientConfiguration(endpoints, Credentials())
producer = Producer(config, (topic,))
producer.startup()
consumer = SimpleConsumer(config, "grpc", {topic: FilterExpression()}, await_duration=AWAIT_S)
consumer.startup()
for _ in range(TAKERS):
    threading.Thread(target=take, args=(consumer,), daemon=True).start()
writers = [
    threading.Thread(target=send, args=(producer, f"grpc{number}", topic))
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
