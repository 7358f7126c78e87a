"""A log of several brokers: what one of them delays or refuses touches its own messages alone."""

from __future__ import annotations

import random

import pytest

from motelog.core.clock import SystemClock
from motelog.core.errors import BrokerError, MotelogError
from motelog.gateway.log.log_port import Ticket
from motelog.gateway.metrics import GatewayMetrics
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from motelog.gateway.publish.acknowledge import Answers
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.sessions.session import Session
from motelog.gateway.turn import Turn
from tests.conformance.peers import Gateway, Peer, connect_packet, publish_packet
from tests.support.apart_log import ApartLog
from tests.support.memory_output import MemoryOutput

PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC
AWAY = BrokerError(14, "the broker is away")
REFUSED = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


@pytest.fixture
def gateway() -> Gateway:
    gateway = Gateway(log=ApartLog())
    gateway.connect(5).publish("here", b"0", 1)  # the topics are created
    gateway.connect(5).publish("there", b"0", 1)
    return gateway


def log_of(gateway: Gateway) -> ApartLog:
    log = gateway.stage.log
    assert isinstance(log, ApartLog)
    return log


def stored(gateway: Gateway, topic: str) -> list[bytes]:
    bodies = [record[13] for record in gateway.stage.stored() if record[0] == topic.encode()]
    return bodies[1:]


def answers(peer: Peer) -> list[tuple[PacketType, int, int]]:
    """Return (type, packet identifier, reason code) of what came."""
    return [
        (p.type, int.from_bytes(p.body[:2], "big"), p.body[2] if len(p.body) > 2 else 0)
        for p in peer.packets()
    ]


def test_only_those_wait_that_have_published_to_the_broker_that_is_away(gateway: Gateway) -> None:
    log = log_of(gateway)
    log.away.add("there")
    one, other, both = (gateway.connect(5) for _ in range(3))
    gateway.stage.turn(
        (one.number, publish_packet(5, "there", b"a", 1, packet_id=1)),
        (both.number, publish_packet(5, "there", b"b", 1, packet_id=1)),
        (both.number, publish_packet(5, "here", b"none", 0)),
        (both.number, publish_packet(5, "here", b"c", 1, packet_id=2)),
        (both.number, publish_packet(5, "there", b"d", 1, packet_id=3)),
        (other.number, publish_packet(5, "here", b"e", 1, packet_id=1)),
        (other.number, publish_packet(5, "here", b"f", 2, packet_id=2)),
    )
    assert answers(other) == [(PUBACK, 1, 0), (PUBREC, 2, 0)]
    assert answers(one) == answers(both) == []
    assert stored(gateway, "here") == [b"none", b"c", b"e", b"f"]
    other.put("here", b"g", 1, packet_id=3)
    assert answers(other) == [(PUBACK, 3, 0)]
    log.answer("there", AWAY)
    # In order, each with the fate of its own message.
    assert answers(one) == [(PUBACK, 1, REFUSED)]
    assert answers(both) == [(PUBACK, 1, REFUSED), (PUBACK, 2, 0), (PUBACK, 3, REFUSED)]
    assert stored(gateway, "there") == []
    assert gateway.stage.metrics.publishes_refused == 3
    both.put("there", b"h", 1, packet_id=4)
    assert answers(both) == [(PUBACK, 4, 0)]


def test_a_message_waits_for_its_mark_and_others_do_not(gateway: Gateway) -> None:
    log = log_of(gateway)
    lasting, passing = gateway.connect_persistent(5, "lasting"), gateway.connect(5)
    log.away.add("MQTT_SESSION")
    gateway.stage.turn(
        (lasting.number, publish_packet(5, "here", b"marked", 2, packet_id=1)),
        (passing.number, publish_packet(5, "here", b"not marked", 2, packet_id=1)),
        (passing.number, publish_packet(5, "there", b"nor this", 1, packet_id=2)),
        (lasting.number, publish_packet(5, "here", b"marked", 2, packet_id=1, dup=True)),
    )
    assert answers(passing) == [(PUBACK, 2, 0), (PUBREC, 1, 0)]
    assert answers(lasting) == []
    assert stored(gateway, "here") == [b"not marked"]
    log.answer("MQTT_SESSION", AWAY)
    assert answers(lasting)[0] == (PUBREC, 1, REFUSED)
    assert stored(gateway, "here") == [b"not marked"]
    lasting.put("here", b"new", 2, packet_id=1)
    assert answers(lasting) == [(PUBREC, 1, 0)]
    assert stored(gateway, "here") == [b"not marked", b"new"]


@pytest.mark.parametrize("retain", [False, True])
def test_what_is_sent_again_is_not_refused_with_a_code(gateway: Gateway, *, retain: bool) -> None:
    """The log may have it: its publisher would take it for lost, and publish it anew."""
    log = log_of(gateway)
    client = gateway.connect_persistent(5, "client")
    log.away.add("there")
    client.put("there", b"a", 1, packet_id=1, retain=retain)
    client.drop()
    log.answer("there")  # it is stored, and its publisher does not hear of it
    client = gateway.connect_persistent(5, "client")
    log.away.add("there")
    if retain:
        log.refused["there"] = AWAY
    client.put("there", b"a", 1, packet_id=1, dup=True, retain=retain)
    log.answer("there", AWAY)
    client.assert_ended(REFUSED)
    log.refused.clear()
    client = gateway.connect_persistent(5, "client")
    log.away.add("there")
    client.put("there", b"b", 1, packet_id=2)
    log.answer("there", AWAY)
    assert answers(client) == [(PUBACK, 2, REFUSED)]
    assert stored(gateway, "there") == [b"a"]


def test_a_stored_message_whose_mark_is_refused_is_not_refused_with_a_code(
    gateway: Gateway,
) -> None:
    log = log_of(gateway)
    client = gateway.connect_persistent(5, "client")
    client.put("here", b"a", 2, packet_id=1)
    client.drop()  # before its PUBREC, for all that it knows
    client = gateway.connect_persistent(5, "client")
    log.away.add("MQTT_SESSION")
    client.put("here", b"a", 2, packet_id=1, dup=True)
    log.answer("MQTT_SESSION", AWAY)
    client.assert_ended(REFUSED)
    client = gateway.connect_persistent(5, "client")
    client.put("here", b"a", 2, packet_id=1, dup=True)
    assert answers(client) == [(PUBREC, 1, 0)]
    assert stored(gateway, "here") == [b"a"]


def test_steps_of_exchanges_do_not_wait_for_a_broker_that_is_away(gateway: Gateway) -> None:
    log = log_of(gateway)
    client = gateway.connect_persistent(5, "client")
    client.put("here", b"a", 2, packet_id=1)
    assert answers(client) == [(PUBREC, 1, 0)]
    log.away |= {"there", "MQTT_SESSION"}
    client.put("there", b"b", 1, packet_id=2)
    client.answer(PacketType.PUBREL, 1)
    log.answer("MQTT_SESSION")
    assert answers(client) == [(PacketType.PUBCOMP, 1, 0)]
    client.put("here", b"c", 1, packet_id=3)
    assert answers(client) == []
    log.answer("there")
    assert answers(client) == [(PUBACK, 2, 0), (PUBACK, 3, 0)]


def test_a_retained_message_is_stored_after_its_copy(gateway: Gateway) -> None:
    log = log_of(gateway)
    log.away.add("MQTT_RETAINED")
    client = gateway.connect(5)
    gateway.stage.turn(
        (client.number, publish_packet(5, "here", b"kept", 1, packet_id=1, retain=True)),
        (client.number, publish_packet(5, "there", b"not", 1, packet_id=2)),
    )
    assert answers(client) == []
    assert (stored(gateway, "here"), stored(gateway, "there")) == ([], [b"not"])
    log.answer("MQTT_RETAINED")
    assert answers(client) == [(PUBACK, 1, 0), (PUBACK, 2, 0)]
    assert stored(gateway, "here") == [b"kept"]


def test_a_message_that_is_refused_at_once_is_not_retained(gateway: Gateway) -> None:
    log = log_of(gateway)
    log.refused["there"] = AWAY
    client, later = gateway.connect(5), gateway.connect(5)
    client.put("there", b"kept", 1, packet_id=1, retain=True)
    client.put("here", b"kept", 1, packet_id=2, retain=True)
    assert answers(client) == [(PUBACK, 1, REFUSED), (PUBACK, 2, 0)]
    later.subscribe("there", "here")
    assert [message.topic for message in later.messages()] == ["here"]


def test_while_no_session_can_be_stored_only_clients_connect_that_need_none(
    gateway: Gateway,
) -> None:
    log = log_of(gateway)
    kept = gateway.connect_persistent(5, "kept")
    gone = gateway.connect_persistent(5, "gone")
    gone.drop()
    log.refused["MQTT_SESSION"] = AWAY
    for client_id, how in (
        ("new", {"session_expiry_interval_s": 60}),
        ("gone", {"clean_start": False}),
        ("gone", {}),  # its old session could not be ended
    ):
        refused = gateway.open(5)
        refused.send(connect_packet(5, client_id, **how))
        connack = refused.read_connack()
        assert connack.reason_code == ReasonCode.SERVER_UNAVAILABLE
        why = "sessions cannot be stored at the moment: the broker is away"
        assert connack.properties.reason_string == why
    # Whoever is connected goes on, and so do clients whose sessions end with their connections.
    clean = gateway.connect(5, "clean")
    clean.subscribe("here")
    kept.put("here", b"b", 1, packet_id=7)
    assert answers(kept) == [(PUBACK, 7, 0)]
    assert [message.payload for message in clean.messages()] == [b"b"]
    again = gateway.connect(5, "clean")
    assert clean.is_closed
    again.subscribe("here")
    del log.refused["MQTT_SESSION"]
    gateway.connect_persistent(5, "gone")


@pytest.mark.parametrize("seed", range(30))
def test_answers_of_a_connection_keep_their_order_however_tickets_settle(seed: int) -> None:
    chance = random.Random(seed)
    output, turn = MemoryOutput(), Turn([])
    connections = []
    for number in range(3):
        output.open(number)
        connection = Connection(output, number, version=5)
        connection.session = Session(f"c{number}")
        connections.append(connection)
    turn.connections.extend(connections)
    made = Answers(
        turn, ApartLog(), output, GatewayMetrics(), receive_maximum=1000, clock=SystemClock()
    )
    published: dict[int, list[tuple[int, Ticket]]] = {number: [] for number in range(3)}
    open_tickets: list[Ticket] = []
    for packet_id in range(1, 200):
        count = chance.randint(1, 4)
        acks, tickets = [], []
        for step in range(count):
            if not open_tickets or chance.random() < 0.3:
                open_tickets.append(Ticket())
            ticket = chance.choice(open_tickets)
            acks.append((chance.randrange(3), packet_id * 10 + step))
            tickets.append(ticket)
            published[acks[-1][0]].append((acks[-1][1], ticket))
        made.answer_apart(PUBACK, acks, tickets)
        while len(open_tickets) > 4 or (open_tickets and packet_id == 199):
            settled: list[tuple[Ticket, MotelogError | None]] = []
            for _ in range(chance.randint(1, len(open_tickets))):
                ticket = open_tickets.pop(chance.randrange(len(open_tickets)))
                ticket.is_settled = True
                ticket.error = AWAY if chance.random() < 0.3 else None
                settled.append((ticket, ticket.error))
            made.settled(settled)
            for number, owed in published.items():
                # What is answered is all that has settled before the first that has not.
                done = next((n for n, (_, t) in enumerate(owed) if not t.is_settled), len(owed))
                sent = output.sent.get(number, [])
                found = [(int.from_bytes(p[2:4], "big"), len(p) > 4) for p in sent]
                assert found == [(n, t.error is not None) for n, t in owed[:done]]
    assert all(connection.unacknowledged == 0 for connection in connections)
