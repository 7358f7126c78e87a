"""Framing does not depend on how a stream is cut, and is what the length rules say."""

from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from motelog.core.net.reactor import CloseReason, Fault, Framing
from tests.support.reactor_loop import mqtt_frame
from tests.support.reactor_streams import (
    Outcome,
    expected,
    random_stream,
    run_streams,
    split_at,
)

FRAME_BYTES_MAX = 100_000
framings = st.sampled_from(list(Framing))
cuts = st.lists(st.integers(0, 1 << 20), max_size=8)


@settings(max_examples=60)
# The socket is full with its last byte unsent, and stays so for some turns.
@example(bodies=[bytes(43_349), bytes(90_000), bytes(90_000)], cuts=[4096])
@given(
    bodies=st.lists(st.binary(max_size=300) | st.integers(0, 90_000).map(bytes), max_size=8),
    cuts=cuts,
)
def test_framing_does_not_depend_on_how_the_stream_is_cut(
    bodies: list[bytes], cuts: list[int]
) -> None:
    frames = [mqtt_frame(body) for body in bodies]
    pieces = split_at(b"".join(frames), cuts)
    outcome = run_streams(Framing.MQTT, [pieces], frame_bytes_max=FRAME_BYTES_MAX)
    assert outcome == [Outcome(frames, None, CloseReason.PEER)]


@settings(max_examples=100)
@given(
    framing=framings,
    streams=st.lists(st.tuples(st.binary(max_size=400), cuts), min_size=1, max_size=5),
)
def test_any_bytes_give_what_the_rules_say(
    framing: Framing, streams: list[tuple[bytes, list[int]]]
) -> None:
    pieces = [split_at(stream, cuts) for stream, cuts in streams]
    wanted = [expected(framing, stream, frame_bytes_max=200) for stream, _ in streams]
    outcomes = run_streams(framing, pieces, frame_bytes_max=200)
    assert [(o.frames, o.fault) for o in outcomes] == [(w.frames, w.fault) for w in wanted]


@settings(max_examples=40)
@given(framing=framings, seed=st.integers(0, 1 << 32), cuts=cuts)
def test_damaged_frames_give_what_the_rules_say(
    framing: Framing, seed: int, cuts: list[int]
) -> None:
    rng = random.Random(seed)
    streams = [random_stream(rng, framing) for _ in range(3)]
    pieces = [split_at(stream, cuts) for stream in streams]
    wanted = [expected(framing, stream, frame_bytes_max=FRAME_BYTES_MAX) for stream in streams]
    outcomes = run_streams(framing, pieces, frame_bytes_max=FRAME_BYTES_MAX)
    assert [(o.frames, o.fault) for o in outcomes] == [(w.frames, w.fault) for w in wanted]
    for outcome in outcomes:
        assert (outcome.fault is None) == (outcome.closed is not None)
        assert outcome.fault is not Fault.IDLE
