"""What does it cost to send stored records to a reader, and would sendfile cost less?

Usage: python -m tests.bench.pulls [SECONDS]. One JSON line. A log in page cache holds the
records of one queue among those of others; answers of up to 256 KiB go over a TCP connection on
loopback to a process that throws them away. CPU time of the sending thread per MB, in microseconds,
the best of three rounds of SECONDS (0.5) each:

    head and body    records gathered into one buffer, sent behind the head as it is: what pulls do
    one frame        the same joined into one buffer first
    sendfile         head, then one os.sendfile for each run of records without a gap
    from the map     head and each run as buffers of one sendmsg
    floor            one sendmsg of bytes that are there already

``apart`` is how many records of others lie between two of the queue; 0: none.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context

from motelog.core.records.append import QueueTail, encode_batch
from motelog.core.records.read import gather
from tests.bench.report import environment, say

HOST = bytes([127, 0, 0, 1, 0, 0, 7, 91])
ANSWER_BYTES = 262_144
FILE_BYTES = 64 << 20
CASES = [(100, 0), (100, 31), (1024, 0), (1024, 3), (1024, 31), (16_384, 0), (16_384, 3)]
HEAD = bytes(200)
VECTORS_MAX = 1024
UNIT = struct.Struct(">qiq")


class Log:
    """One file of records and the answers that read the queue through: units and runs of each."""

    def __init__(self, path: str, body_bytes: int, apart: int) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.file, FILE_BYTES)
        self._map = mmap.mmap(self.file, FILE_BYTES)
        self.view = memoryview(self._map)
        mine, others = QueueTail(b"bench", 0, 0), QueueTail(b"bench", 1, 0)
        body = bytes(range(256)) * (body_bytes // 256) + bytes(body_bytes % 256)
        tails = [mine] + [others] * apart
        row = [(tail, body, b"", 0, 1, HOST, 0, 0, 0, 0) for tail in tails]
        at = 0
        while True:
            written, at = encode_batch(self.view, at, FILE_BYTES, 0, row, 0, 1, HOST, [], None)
            if written < len(row):
                break
        units = mine.units(mine.first_offset, mine.pending)
        size = UNIT.unpack_from(units)[1]
        step = max(1, ANSWER_BYTES // size) * UNIT.size
        self.answers = [units[i : i + step] for i in range(0, len(units) - step + 1, step)]
        self.runs = [list(_runs(answer)) for answer in self.answers]
        self.answer_bytes = step // UNIT.size * size

    def close(self) -> None:
        self.view.release()
        self._map.close()
        os.close(self.file)


def _runs(units: bytes) -> Iterator[tuple[int, int]]:
    """Yield [begin, end) of records that follow each other without a gap."""
    begin = end = -1
    for physical, size, _ in UNIT.iter_unpack(units):
        if physical != end:
            if end >= 0:
                yield begin, end
            begin = physical
        end = physical + size
    yield begin, end


def head_and_body(log: Log, out: socket.socket, number: int) -> None:
    units = log.answers[number]
    send_all(out, [HEAD, gather(log.view, 0, units, 0, len(units) // UNIT.size)])


def one_frame(log: Log, out: socket.socket, number: int) -> None:
    units = log.answers[number]
    records = gather(log.view, 0, units, 0, len(units) // UNIT.size)
    send_all(out, [b"".join((HEAD, records))])


def from_the_map(log: Log, out: socket.socket, number: int) -> None:
    buffers: list[bytes | memoryview] = [HEAD]
    buffers += [log.view[begin:end] for begin, end in log.runs[number]]
    for at in range(0, len(buffers), VECTORS_MAX):
        send_all(out, buffers[at : at + VECTORS_MAX])


def sendfile(log: Log, out: socket.socket, number: int) -> None:
    out.sendall(HEAD, socket.MSG_MORE)
    for begin, end in log.runs[number]:
        while begin < end:
            begin += os.sendfile(out.fileno(), log.file, begin, end - begin)


def floor(log: Log, out: socket.socket, _: int) -> None:
    send_all(out, [log.view[: log.answer_bytes]])


def send_all(out: socket.socket, buffers: list[bytes | memoryview]) -> None:
    sent = out.sendmsg(buffers)
    for buffer in buffers:
        if sent < len(buffer):
            out.sendall(buffer[sent:])
        sent = max(0, sent - len(buffer))


METHODS: dict[str, Callable[[Log, socket.socket, int], None]] = {
    "head and body": head_and_body,
    "one frame": one_frame,
    "sendfile": sendfile,
    "from the map": from_the_map,
    "floor": floor,
}


def measure(log: Log, out: socket.socket, method: str, seconds: float) -> float:
    """Return microseconds of CPU time per MB."""
    send = METHODS[method]
    begin, cpu = time.perf_counter(), time.thread_time()
    count = 0
    while time.perf_counter() < begin + seconds:
        send(log, out, count % len(log.answers))
        count += 1
    used_us = (time.thread_time() - cpu) * 1e6
    return float(used_us / (count * log.answer_bytes / 1e6))


def throw_away(address: tuple[str, int]) -> None:
    """Read until the other side ends; in a process of its own."""
    with socket.create_connection(address) as source:
        buffer = bytearray(1 << 20)
        while source.recv_into(buffer):
            pass


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
    results: dict[str, dict[str, float]] = {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader = get_context("spawn").Process(target=throw_away, args=(server.getsockname(),))
        reader.start()
        out, _ = server.accept()
    with out, tempfile.TemporaryDirectory() as folder:
        for body_bytes, apart in CASES:
            log = Log(f"{folder}/log", body_bytes, apart)
            # Best of rounds that take turns, so that what else runs here hits all of them.
            rounds = [{m: measure(log, out, m, seconds) for m in METHODS} for _ in range(3)]
            name = f"{body_bytes} B bodies, {apart} apart"
            results[name] = {m: round(min(r[m] for r in rounds), 1) for m in METHODS}
            log.close()
            os.unlink(f"{folder}/log")
    reader.join()
    report = {"bench": "pulls", "unit": "us of CPU per MB", **environment(), "cases": results}
    say(json.dumps(report))


if __name__ == "__main__":
    main()
