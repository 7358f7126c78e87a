"""How long do the frames kernel and its reference take for one PUBLISH, in and out?

Usage: python tests/bench/bench_frames.py [--runs N]. Prints ns per packet, best and median of the
runs. Owns: nothing of the product. The batch is what one turn of the reactor hands over: 256 frames
of 32 connections, topic of 23 bytes, payload of 100 bytes.
"""

from __future__ import annotations

import argparse
import functools
import platform
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from motelog.gateway.mqtt import _frames, _frames_py  # noqa: E402  # after sys.path
from motelog.gateway.mqtt.acks import encode_ack  # noqa: E402
from motelog.gateway.mqtt.packet_types import PacketType  # noqa: E402

FRAMES = 256
TOPIC = b"telemetry/dev00042/temp"
UNICODE_TOPIC = "telemetrie/gerät042/wärme".encode()
PAYLOAD = b"x" * 100
PROPERTIES = b"\x23\x00\x07\x26\x00\x01k\x00\x01v"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    print(f"{platform.machine()}, Python {platform.python_version()}, commit {commit}")  # noqa: T201
    print(f"{'':34}{'kernel ns':>18}{'reference ns':>18}")  # noqa: T201
    for name, (data, index) in batches().items():
        report(name, functools.partial(split, data, index), FRAMES, runs)
    report(
        "encode PUBLISH QoS 1",
        lambda kernel: [kernel.encode_publish(TOPIC, PAYLOAD, 0x32, 4, None) for _ in range(256)],
        256,
        runs,
    )
    many = [(TOPIC, PAYLOAD, 0x32, 7, None)] * 256
    report("256 of them in one piece", lambda kernel: kernel.encode_publishes(many, 4), 256, runs)


def split(data: bytes, index: bytes, kernel: Any) -> None:
    kernel.split(data, index)


def batches() -> dict[str, tuple[bytes, bytes]]:
    def publish(topic: bytes, first_byte: int, version: int, block: bytes | None = None) -> bytes:
        packet, at = _frames.encode_publish(topic, PAYLOAD, first_byte, version, block)
        return packet[:at] + b"\x00\x07" + packet[at + 2 :] if at else packet

    return {
        "split PUBLISH QoS 0": batch(publish(TOPIC, 0x30, 4), 4),
        "split PUBLISH QoS 1": batch(publish(TOPIC, 0x32, 4), 4),
        "split PUBLISH QoS 1, not ASCII": batch(publish(UNICODE_TOPIC, 0x32, 4), 4),
        "split PUBLISH QoS 1 v5, properties": batch(publish(TOPIC, 0x32, 5, PROPERTIES), 5),
        "split PUBACK": batch(encode_ack(PacketType.PUBACK, 4, 7), 4),
    }


def batch(frame: bytes, version: int) -> tuple[bytes, bytes]:
    size = len(frame)
    index = b"".join(
        struct.pack("=4I", 1000 + i % 32, version, i * size, (i + 1) * size) for i in range(FRAMES)
    )
    return frame * FRAMES, index


def report(name: str, work: Callable[[Any], Any], count: int, runs: int) -> None:
    figures = [measure(work, kernel, count, runs) for kernel in (_frames, _frames_py)]
    columns = "".join(f"{best:>9.0f} {median:>8.0f}" for best, median in figures)
    print(f"{name:34}{columns}")  # noqa: T201


def measure(work: Callable[[Any], Any], kernel: Any, count: int, runs: int) -> tuple[float, float]:
    repeat = 100 if kernel is _frames else 4
    samples = []
    for _ in range(runs):
        begin = time.perf_counter_ns()
        for _ in range(repeat):
            work(kernel)
        samples.append((time.perf_counter_ns() - begin) / repeat / count)
    return min(samples), statistics.median(samples)


if __name__ == "__main__":
    main()
