"""The compiled runs kernel answers like the reference, and takes what one by one is taken."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.core.message import MQTT_PROPERTIES, MQTT_QOS, SYS_FLAG_COMPRESSED
from motelog.gateway.deliver import _runs, _runs_py
from motelog.gateway.sessions.inflight import PACKET_ID_MAX, InflightWindow, flight_of

TEXTS = [
    b"",
    *(f"{MQTT_QOS}\x01{qos}\x02".encode() for qos in range(3)),
    f"{MQTT_PROPERTIES}\x01aa\x02".encode(),
    f"x\x01{MQTT_PROPERTIES}".encode(),
]
PROPERTIES = st.lists(st.sampled_from(TEXTS) | st.binary(max_size=3), max_size=3).map(b"".join)
NAMES = st.sampled_from([b"a", b"a", b"b", b"", b"else"])
RECORDS = st.tuples(
    st.integers(0, 2**48 - 1),
    NAMES | st.none(),
    st.just(b"t"),
    PROPERTIES,
    st.binary(max_size=9),
    st.sampled_from([0, 0, 0, 2, SYS_FLAG_COMPRESSED, 3]),
    st.integers(0, 2),
    st.just(0),
)
RECEIVER: Any = "receiver"
OPTIONS = st.sampled_from([0, 1, 1, 2, 2]) | st.integers(0, 63)
MATCHED = st.fixed_dictionaries({}, optional={RECEIVER: OPTIONS, "other": OPTIONS})
WANTS = OPTIONS | st.dictionaries(NAMES, MATCHED)
PACKET_IDS = st.sampled_from([0, 1, 2, 3, PACKET_ID_MAX - 1, PACKET_ID_MAX])


@settings(max_examples=500)
@given(
    records=st.lists(RECORDS, max_size=6),
    wants=WANTS,
    begin=st.integers(0, 3),
    taken=st.sets(PACKET_IDS.filter(bool)),
    limit=st.integers(1, 6) | st.just(PACKET_ID_MAX),
    last_packet_id=PACKET_IDS,
    queue_number=st.sampled_from([0, 1, 2**24 - 1]),
    plain_qos=st.integers(-1, 2),
    first_byte=st.sampled_from([0x30, 0x31]),
    aged_ms=st.sampled_from([0, 0, 1]),
    bytes_taken=st.integers(0, 40),
)
def test_compiled_kernel_answers_like_the_reference(
    records: list[Any], begin: int, wants: Any, taken: set[int], bytes_taken: int, **how: Any
) -> None:
    found = []
    for kernel in (_runs, _runs_py):
        parts: list[Any] = []
        flights = dict.fromkeys(taken, 7)
        answer = kernel.take_run(
            records, begin, wants, RECEIVER, parts, flights,
            bytes_taken=bytes_taken, bytes_high=60, **how,
        )  # fmt: skip
        found.append((answer, parts, list(flights.items())))
    assert found[0] == found[1]


@pytest.mark.parametrize("kernel", [_runs, _runs_py])
def test_packet_identifiers_are_those_of_the_window(kernel: Any) -> None:
    window = InflightWindow(5)
    window.restore([(PACKET_ID_MAX - 1, 0), (1, 1)])
    other = InflightWindow(5)
    other.restore(window)
    window.last_packet_id = other.last_packet_id = PACKET_ID_MAX - 1
    records = [(at, b"t", b"t", b"", b"", 0, 0, 0) for at in range(9)]
    parts: list[Any] = []
    end, last_packet_id, _ = kernel.take_run(
        records,
        1,
        1,
        RECEIVER,
        parts,
        window.lend(),
        5,
        window.last_packet_id,
        3,
        1,
        0x30,
        0,
        0,
        99,
    )
    expected = [other.allocate(flight_of(3, at, 1)) for at in range(1, 5)]
    assert end == 4
    assert [part[3] for part in parts] == expected[:3] == [PACKET_ID_MAX, 2, 3]
    assert last_packet_id == 3
    assert expected[3] == 0
    assert dict(window) == dict(other)


@pytest.mark.parametrize(
    "record",
    [
        None,
        (0, b"t", b"", b"", b"", 0, 0),
        (True, b"t", b"", b"", b"", 0, 0, 0),
        (2**48, b"t", b"", b"", b"", 0, 0, 0),
        (-1, b"t", b"", b"", b"", 0, 0, 0),
        (0, "t", b"", b"", b"", 0, 0, 0),
        (0, b"t", b"", None, b"", 0, 0, 0),
        (0, b"t", b"", b"", None, 0, 0, 0),
        (0, b"t", b"", b"", b"", "0", 0, 0),
        (0, b"t", b"", b"", b"", 0, 0.5, 0),
    ],
)
def test_kernel_refuses_what_is_no_record(record: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        _runs.take_run([record], 0, 1, RECEIVER, [], {}, 1, 0, 0, 2, 0x30, 0, 0, 9)


@pytest.mark.parametrize(
    ("begin", "limit", "last_packet_id"), [(-1, 1, 0), (0, -1, 0), (0, 65_536, 0), (0, 1, 65_536)]
)
def test_kernel_refuses_numbers_that_lead_nowhere(
    begin: int, limit: int, last_packet_id: int
) -> None:
    with pytest.raises(ValueError, match="range"):
        _runs.take_run([], begin, 1, RECEIVER, [], {}, limit, last_packet_id, 0, 2, 0x30, 0, 0, 9)
