"""The steps of QoS 2 exchanges before a log that takes its time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from motelog.core.errors import NoSlaveError, StoreError
from motelog.gateway.log.log_port import LogRead
from motelog.gateway.mqtt.acks import encode_ack
from motelog.gateway.mqtt.packet_types import PacketType, ReasonCode
from tests.conformance.peers import Gateway, Peer, publish_packet

PUBREC, PUBREL = PacketType.PUBREC, PacketType.PUBREL
NO_ANSWER = StoreError("the broker has not answered")


def released(peer: Peer) -> list[int]:
    return [int.from_bytes(p.body[:2], "big") for p in peer.packets() if p.type == PUBREL]


def test_a_step_that_another_record_takes_along_waits_for_that_record() -> None:
    gateway = Gateway(receive_maximum=1)
    reader, faulty = (gateway.connect_persistent(5, name) for name in ("reader", "faulty"))
    reader.subscribe("t", qos=2)
    for payload in (b"0", b"1"):
        gateway.connect(5).publish("t", payload, 2)
    first, second = (message.packet_id for message in reader.messages())
    faulty.put("t", b"2", 2, packet_id=1)
    log = gateway.stage.log
    log.settles_at_once = False
    reader.answer(PUBREC, first)
    # A client that exceeds Receive Maximum in the same turn has its session stored, and the steps
    # that were taken before.
    gateway.stage.turn(
        (reader.number, encode_ack(PUBREC, 5, second, 0)),
        (faulty.number, publish_packet(5, "t", b"3", 2, packet_id=2)),
    )
    assert released(reader) == []
    log.settle()
    assert released(reader) == [first, second]


def payloads(gateway: Gateway, topic: str) -> list[bytes]:
    return [record[13] for record in gateway.stage.stored() if record[0] == topic.encode()]


def answers(peer: Peer) -> list[tuple[PacketType, int]]:
    return [(p.type, int.from_bytes(p.body[:2], "big")) for p in peer.packets()]


def published_before_a_failure(
    gateway: Gateway, version: int, *, is_stored: bool, before: Sequence[bytes] = ()
) -> None:
    """Have a client's message refused by the log after its connection has ended."""
    log = gateway.stage.log
    client = gateway.connect_persistent(version, "client")
    log.settles_at_once = False
    gateway.connect(5).put("other", b"0", 1)  # the failure waits behind it
    if not is_stored:
        log.error = NO_ANSWER
    client.put("t", b"1", 2, packet_id=7)
    log.error = None
    client.drop()
    log.settle(1)
    log.settle(error=NO_ANSWER if is_stored else None)
    log.settles_at_once = True
    log.settle()
    assert payloads(gateway, "t") == [*before, b"1"][: len(before) + is_stored]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("is_stored", [False, True])
def test_what_the_log_has_refused_behind_a_connection_is_looked_up_when_it_comes_again(
    version: int, is_stored: bool
) -> None:
    gateway = Gateway()
    published_before_a_failure(gateway, version, is_stored=is_stored)
    client = gateway.connect_persistent(version, "client")
    client.put("t", b"1", 2, packet_id=7, dup=True)
    assert answers(client) == [(PUBREC, 7)]
    assert payloads(gateway, "t") == [b"1"]


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_refusal_that_ends_the_connection_does_not_double_what_the_log_has(
    is_stored: bool,
) -> None:
    gateway = Gateway()
    log = gateway.stage.log
    client = gateway.connect_persistent(4, "client")
    log.settles_at_once = False
    gateway.connect(5).put("other", b"0", 1)
    log.error = None if is_stored else NO_ANSWER
    client.put("t", b"1", 2, packet_id=7)
    log.error = None
    log.settle(1)
    log.settle(error=NO_ANSWER if is_stored else None)
    log.settles_at_once = True
    log.settle()
    assert client.is_closed
    client = gateway.connect_persistent(4, "client")
    client.put("t", b"1", 2, packet_id=7, dup=True)
    assert answers(client) == [(PUBREC, 7)]
    assert payloads(gateway, "t") == [b"1"]


def test_what_is_stored_but_at_no_slave_is_not_doubled_by_a_client_that_sends_it_again() -> None:
    gateway = Gateway()
    log = gateway.stage.log
    client = gateway.connect_persistent(5, "client")
    log.settles_at_once = False
    client.put("t", b"1", 2, packet_id=7)
    log.settle(error=NoSlaveError("stored, but no slave is there"))
    log.settles_at_once = True
    log.settle()
    assert client.is_closed  # a PUBREC that refuses it would end the exchange
    client = gateway.connect_persistent(5, "client")
    client.put("t", b"1", 2, packet_id=7, dup=True)
    assert answers(client) == [(PUBREC, 7)]
    assert payloads(gateway, "t") == [b"1"]


@pytest.mark.parametrize("error", [None, NO_ANSWER])
def test_what_comes_again_before_the_log_has_told_is_answered_as_the_first(
    error: StoreError | None,
) -> None:
    gateway = Gateway()
    log = gateway.stage.log
    client = gateway.connect_persistent(5, "client")
    log.settles_at_once = False
    twice = [publish_packet(5, "t", b"1", 2, packet_id=7, dup=dup) for dup in (False, True)]
    client.send(b"".join(twice))
    client.put("t", b"1", 2, packet_id=7, dup=True)
    assert answers(client) == []
    log.settle(error=error)
    assert [p.body[:2] for p in client.packets() if p.type == PUBREC] == [b"\0\7"] * 3
    assert payloads(gateway, "t") == [b"1"]


def test_what_comes_again_over_another_connection_is_appended_once() -> None:
    gateway = Gateway()
    log = gateway.stage.log
    client = gateway.connect_persistent(4, "client")
    log.settles_at_once = False
    client.put("t", b"1", 2, packet_id=7)
    client = gateway.connect_persistent(4, "client")
    client.put("t", b"1", 2, packet_id=7, dup=True)
    assert answers(client) == []
    log.settle()
    assert answers(client) == [(PUBREC, 7)]
    assert payloads(gateway, "t") == [b"1"]


def test_a_message_that_another_gateway_may_still_append_is_waited_for() -> None:
    gateway = Gateway()
    log = gateway.stage.log
    published_before_a_failure(gateway, 4, is_stored=False)
    log.append_ms_max = 6_000
    client = gateway.connect_persistent(4, "client")
    client.put("t", b"1", 2, packet_id=7, dup=True)
    client.assert_ended(ReasonCode.SERVER_BUSY)
    gateway.pass_s(7)
    client = gateway.connect_persistent(4, "client")
    client.put("t", b"1", 2, packet_id=7, dup=True)
    assert answers(client) == [(PUBREC, 7)]
    assert payloads(gateway, "t") == [b"1"]


@pytest.mark.parametrize("is_quick", [True, False])
def test_what_is_not_at_hand_is_read_once_the_client_is_back(is_quick: bool) -> None:
    gateway = Gateway()
    log = gateway.stage.log
    published_before_a_failure(gateway, 4, is_stored=True)
    log.cold = set(range(10))
    client = gateway.connect_persistent(4, "client")
    if is_quick:
        log.paged_in()
    client.put("t", b"1", 2, packet_id=7, dup=True)
    if not is_quick:
        client.assert_ended(ReasonCode.SERVER_BUSY)
        log.paged_in()
        client = gateway.connect_persistent(4, "client")
        client.put("t", b"1", 2, packet_id=7, dup=True)
    assert answers(client) == [(PUBREC, 7)]
    assert payloads(gateway, "t") == [b"1"]


def test_what_was_stored_behind_the_connection_is_known_without_reading() -> None:
    gateway = Gateway()
    log = gateway.stage.log
    client = gateway.connect_persistent(4, "client")
    log.settles_at_once = False
    client.put("t", b"1", 2, packet_id=7)
    client.drop()
    log.settle()
    log.settles_at_once = True
    log.settle()
    log.cold = set(range(10))
    client = gateway.connect_persistent(4, "client")
    client.put("t", b"1", 2, packet_id=7, dup=True)
    assert answers(client) == [(PUBREC, 7)]
    assert payloads(gateway, "t") == [b"1"]


def comes_back(gateway: Gateway, version: int) -> Peer:
    """Connect again, before a log that does not tell whether it keeps what it has."""
    gateway.stage.log.settles_at_once = False
    return gateway.connect_persistent(version, "client")


def assert_waits(
    gateway: Gateway, client: Peer, answer: tuple[PacketType, int], error: StoreError | None
) -> None:
    """Check that an answer leaves when the log keeps what it says, and not if it does not."""
    assert answers(client) == []
    gateway.stage.log.settle(error=error)
    if error is None:
        assert answers(client)[0] == answer
    else:  # a PUBREC that refuses would say that the message is not in the log
        client.assert_ended(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)


either = pytest.mark.parametrize("error", [None, NO_ANSWER])
versions = pytest.mark.parametrize("version", [4, 5])


@versions
@either
def test_a_message_that_is_found_in_the_log_is_acknowledged_when_the_log_keeps_it(
    version: int, error: StoreError | None
) -> None:
    gateway = Gateway()
    published_before_a_failure(gateway, version, is_stored=True)
    client = comes_back(gateway, version)
    gateway.stage.log.settle()
    client.put("t", b"1", 2, packet_id=7, dup=True)
    assert_waits(gateway, client, (PUBREC, 7), error)
    assert payloads(gateway, "t") == [b"1"]


@versions
@either
@pytest.mark.parametrize(("sent", "answer"), [(PUBREL, PacketType.PUBCOMP), (PUBREC, PUBREL)])
def test_a_step_that_is_over_already_is_answered_when_the_log_keeps_that(
    version: int, error: StoreError | None, sent: PacketType, answer: PacketType
) -> None:
    gateway = Gateway()
    gateway.connect_persistent(version, "client").drop()
    client = comes_back(gateway, version)
    gateway.stage.log.settle()
    client.answer(sent, 7)
    assert_waits(gateway, client, (answer, 7), error)


@versions
@either
@pytest.mark.parametrize("is_released", [False, True])
def test_what_was_in_flight_is_sent_again_when_the_log_keeps_what_it_says_of_it(
    version: int, error: StoreError | None, is_released: bool
) -> None:
    gateway = Gateway()
    client = gateway.connect_persistent(version, "client")
    client.subscribe("t", qos=2)
    gateway.connect(5).publish("t", b"1", 2)
    packet_id = client.message().packet_id
    if is_released:
        client.answer(PUBREC, packet_id)
        assert released(client) == [packet_id]
    client.drop()
    client = comes_back(gateway, version)
    gateway.deliver()
    assert client.packets() == []
    gateway.stage.log.settle(error=error)
    gateway.deliver()
    if error is not None:
        client.assert_ended(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
    elif is_released:
        assert released(client) == [packet_id]
    else:
        message = client.message()
        assert (message.packet_id, message.dup) == (packet_id, True)


@pytest.mark.parametrize("least_tail", [0, 1, 5])
@pytest.mark.parametrize("clock_ms", [-600_000, 0, 600_000])
def test_a_message_is_found_at_a_broker_whose_clock_was_set(clock_ms: int, least_tail: int) -> None:
    """Without the place at which something was stored last, it can be too late for its time."""
    gateway = Gateway()
    log = gateway.stage.log
    log.now_ms += clock_ms
    gateway.connect(5).put("t", b"0", 1)
    log.knows_tails = False
    log.least_tails = least_tail  # 5: the log has lost its end since
    published_before_a_failure(gateway, 4, is_stored=True, before=[b"0"])
    client = gateway.connect_persistent(4, "client")
    log.tell_tails()
    log.tell_tails()
    client.put("t", b"1", 2, packet_id=7, dup=True)
    assert answers(client) == [(PUBREC, 7)]
    is_doubled = clock_ms < 0 and least_tail != 1
    assert payloads(gateway, "t") == [b"0", b"1", b"1"][: 3 if is_doubled else 2]


def test_a_message_that_readers_do_not_see_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As long as a slave serves reads, or what its master has is still on its way."""
    gateway = Gateway()
    log = gateway.stage.log
    log.knows_tails = False
    published_before_a_failure(gateway, 4, is_stored=True)
    read = log.read
    monkeypatch.setattr(log, "read", lambda queue, at, **_: LogRead(b"", at, at, is_more=False))
    for is_seen in (False, False, True):
        if is_seen:
            monkeypatch.setattr(log, "read", read)
        client = gateway.connect_persistent(4, "client")
        log.tell_tails()
        log.tell_tails()
        client.put("t", b"1", 2, packet_id=7, dup=True)
        if not is_seen:
            client.assert_ended(ReasonCode.SERVER_BUSY)
    assert answers(client) == [(PUBREC, 7)]
    assert payloads(gateway, "t") == [b"1"]
