"""What does one idle session with one subscription cost in memory?

Usage: python tests/bench/bench_session_memory.py [--sessions N]. Builds N sessions as the gateway
does (session, client identifier, table by client identifier, subscription) and prints the growth of
the resident memory per session. The reactor's share (socket, connection slot) is not in it.
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from motelog.gateway.mqtt.fields import FieldReader, encode_string  # after sys.path
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.session import Session
from motelog.gateway.sessions.subscriptions import SubscriptionTree
from tests.support.memory_output import MemoryOutput


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sessions", type=int, default=200_000)
    count = parser.parse_args().sessions
    print(f"{platform.machine()}, Python {platform.python_version()}, {count} sessions")  # noqa: T201
    for filter_form in ("cmd/{}", "dev/{}/#", "dev/{}/+/set"):
        print(f"{filter_form:16}{bytes_per_session(filter_form, count):8.0f} B")  # noqa: T201


def bytes_per_session(filter_form: str, count: int) -> float:
    gc.collect()
    before = resident_bytes()
    tree: SubscriptionTree[Session] = SubscriptionTree()
    by_client_id: dict[str, Session] = {}
    by_number: list[Connection | None] = [None] * count
    output = MemoryOutput()
    for number in range(count):
        # Through the decoder, as text from the wire is not interned or shared.
        client_id = FieldReader(encode_string(f"device-{number:07}")).string()
        topic_filter = FieldReader(encode_string(filter_form.format(client_id))).string()
        connection = Connection(output, number, version=5)
        session = Session(client_id)
        session.attach(connection, inflight_max=32)
        session.add_filter(topic_filter)
        tree.add(topic_filter, session, 1)
        by_client_id[client_id] = session
        by_number[number] = connection
    gc.collect()
    grown = resident_bytes() - before
    assert len(tree) == len(by_client_id) == len(by_number) == count
    return grown / count


def resident_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise OSError("no Rss in /proc/self/smaps_rollup")


if __name__ == "__main__":
    main()
