"""Whatever clients send, the gateway goes on: no exception leaves a turn, and others are served.

Hypothesis plays turns of legal, nearly legal and damaged packets of several connections against the
listener, its clients and delivery over a log in memory; the frames are whole, as the reactor cuts
them.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from motelog.core.net.reactor import CloseReason, Fault
from motelog.gateway.config import GatewayConfig
from motelog.gateway.mapping.topic_rule import TopicRule
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect
from tests.support.gateway_stage import Stage, publish
from tests.support.mqtt_strategies import connects, nearly_packets, packets
from tests.support.mqtt_wire import varint

CONFIG = GatewayConfig(
    topics_max=2,
    subscriptions_max=3,
    inflight_max=2,
    topic_alias_max=2,
    topic_map=(
        TopicRule(filter="+/a/#", queue_topic="{1}", tag="{client_id}", keys="{2} {9}"),
        TopicRule(filter="b/#", queue_topic="b", tag="{user_name}", queue_by="client_id"),
    ),
)
CONNECTED = {1, 2, 3}
CONNECTIONS = st.sampled_from(sorted(CONNECTED))
CONNECTS = connects().map(encode_connect)
FRAMES = st.one_of(
    packets().map(lambda drawn: drawn[1]),
    nearly_packets().map(lambda drawn: drawn[1]),
    CONNECTS,
    st.sampled_from([publish("b/x", b"1"), publish("b/x", b"1", 7), publish("n/a/b", b"2", 8)]),
    st.sampled_from([bytes.fromhex("8206 0001 0001 23 01"), bytes.fromhex("8206 0001 0001 23 00")]),
)


def whole(frame: bytes) -> bytes:
    """Return a frame with these bytes whose length is right."""
    body = frame[2:]
    return frame[:1] + varint(len(body)) + body


TURNS = st.lists(
    st.tuples(
        st.lists(st.tuples(CONNECTIONS, FRAMES.map(whole)), max_size=8),
        st.lists(st.tuples(CONNECTIONS, st.sampled_from(Fault)), max_size=1),
        st.lists(st.tuples(CONNECTIONS, st.sampled_from(CloseReason)), max_size=1),
        st.sets(CONNECTIONS, max_size=3),
    ),
    max_size=12,
)


@settings(max_examples=200)
@given(turns=TURNS, versions=st.tuples(*[st.sampled_from([3, 4, 5])] * 3))
def test_no_packet_brings_the_gateway_down(
    turns: list[
        tuple[
            list[tuple[int, bytes]],
            list[tuple[int, Fault]],
            list[tuple[int, CloseReason]],
            set[int],
        ]
    ],
    versions: tuple[int, int, int],
) -> None:
    stage = Stage(CONFIG)
    stage.connect(9)
    gone = set(CONNECTED)
    for frames, faults, closed, full in turns:
        # A closed connection comes back as a new one, as its id does.
        for connection in sorted(gone):
            version = versions[connection - 1]
            connect = Connect(
                version=version, clean_start=True, keep_alive_s=5, client_id=f"c{connection}"
            )
            stage.turn((connection, encode_connect(connect)), opened=[connection])
        stage.output.closed.clear()
        for connection in CONNECTED:
            if connection in full:
                stage.output.fill(connection)
            else:
                stage.output.read_on(connection)
        stage.turn(*frames, faults=faults, closed=closed, drained=[2])
        gone = {connection for connection, _ in closed} | set(stage.output.closed) & CONNECTED
    stage.sent(9)
    stage.turn((9, publish("quiet/one", b"still here", 1)))
    assert b"\x40\x02\x00\x01" in stage.sent(9)
    for known in stage.connections:
        if known is not None and known.session is not None:
            known.session.inflight._check()
            assert known.session.subscriptions_count <= 3
    stage.turn(closed=[(c, CloseReason.PEER) for c in (1, 2, 3, 9)])
    metrics = stage.metrics
    assert (metrics.sessions_now, metrics.subscriptions_now, metrics.receivers_lagging_now) == (
        0,
        0,
        0,
    )
