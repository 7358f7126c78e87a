"""Reference of the runs kernel: the same answers as _runs.pyx in plain Python.

Owns: which messages are plain, packet identifiers and flights of a run. Must not touch: sessions,
outputs.
runs.py has the docstrings.
"""

from __future__ import annotations

from typing import Any

from motelog.core.message import SYS_FLAG_COMPRESSED
from motelog.gateway.deliver.outgoing import V5_PROPERTIES, message_qos
from motelog.gateway.mqtt.frames import PUBLISH_OVERHEAD_BYTES
from motelog.gateway.sessions.inflight import PACKET_ID_MAX, flight_of
from motelog.gateway.sessions.subscriptions import PARTICULAR, QOS_MASK


def take_run(
    records: Any,
    begin: int,
    wants: Any,
    receiver: Any,
    parts: list[Any],
    flights: dict[int, int],
    limit: int,
    last_packet_id: int,
    queue_number: int,
    plain_qos: int,
    first_byte: int,
    aged_ms: int,
    bytes_taken: int,
    bytes_high: int,
) -> tuple[int, int, int]:
    position = begin
    for queue_offset, name, _, properties, body, sys_flag, store_ms, _ in records[begin:]:
        options = wants
        if isinstance(wants, dict):
            matched = wants.get(name)
            if matched is None:
                break
            options = matched.get(receiver)
            if options is None:
                position += 1
                continue
        if name is None or sys_flag & SYS_FLAG_COMPRESSED or store_ms < aged_ms:
            break
        qos = min(options & QOS_MASK, message_qos(properties))
        if options & PARTICULAR or qos > plain_qos or properties.find(V5_PROPERTIES) >= 0:
            break
        if bytes_taken > bytes_high:
            break
        packet_id = 0
        if qos:
            if len(flights) >= limit:
                break
            packet_id = last_packet_id
            while True:  # ends: fewer than ``limit`` of the identifiers are taken
                packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
                if packet_id not in flights:  # [MQTT-2.2.1-4]
                    break
            flights[packet_id] = flight_of(queue_number, queue_offset, qos)
            last_packet_id = packet_id
        parts.append((name, body, first_byte | qos << 1, packet_id, None))
        bytes_taken += len(name) + len(body) + PUBLISH_OVERHEAD_BYTES
        position += 1
    return position, last_packet_id, bytes_taken
