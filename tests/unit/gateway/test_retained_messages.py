"""Retained messages from PUBLISH to replay: slices, windows, restarts, limits."""

from __future__ import annotations

from typing import Any

import pytest

from motelog.core.errors import StoreFullError
from motelog.core.topic_names import MQTT_RETAINED_TOPIC
from motelog.gateway.deliver import replay as replay_module
from motelog.gateway.deliver.replay import AHEAD_BYTES_MAX, NAME_COST, REPLAY_COUNT_MAX
from motelog.gateway.mqtt.packet_types import PacketType, Will
from motelog.gateway.state.retained import CHANGES_MAX
from tests.conformance.peers import Gateway, Message, Peer
from tests.support.gateway_stage import Stage

KEY = (MQTT_RETAINED_TOPIC, 0)
MANY = [f"many/{number:03}/state" for number in range(200)]


def retain(gateway: Gateway, *names: str, qos: int = 1, **more: Any) -> None:
    """Retain a message of each topic name, with the name as its payload."""
    peer = gateway.connect(5, "retains")
    for name in names:
        peer.publish(name, more.get("payload", name.encode()), qos, retain=True)
    peer.drop()


def payloads(peer: Peer) -> list[bytes]:
    peer.gateway.deliver()
    return peer.payloads()


def messages(peer: Peer) -> list[Message]:
    peer.gateway.deliver()
    return peer.messages()


def read_all(peer: Peer) -> list[bytes]:
    """Acknowledge until nothing more comes; return the payloads."""
    found: list[bytes] = []
    while True:
        part = messages(peer)
        if not part:
            return found
        found += [message.payload for message in part]
        acknowledge(peer, *part)


def acknowledge(peer: Peer, *part: Message) -> None:
    for message in part:
        if message.qos:
            kind = PacketType.PUBACK if message.qos == 1 else PacketType.PUBREC
            peer.answer(kind, message.packet_id)
    released = [message for message in part if message.qos == 2]
    assert all(peer.packet().type == PacketType.PUBREL for _ in released)
    for message in released:
        peer.answer(PacketType.PUBCOMP, message.packet_id)


def kill(gateway: Gateway) -> Gateway:
    """Return the next gateway on the same log, which knows only what the log says."""
    restarted = Gateway()
    restarted.stage = Stage(log=gateway.stage.log)
    return restarted


def tick(gateway: Gateway) -> None:
    gateway.stage.tick()
    while gateway.stage.delivery.refresh_retained(1000):
        pass


# --- slices and windows ----------------------------------------------------------------------


def test_replay_comes_in_slices_between_which_others_are_served() -> None:
    gateway = Gateway()
    names = [f"many/{number:04}" for number in range(3 * REPLAY_COUNT_MAX)]
    retain(gateway, *names)
    other = gateway.connect(5)
    other.subscribe("live")
    publisher = gateway.connect(5)
    peer = gateway.connect(5)
    peer.subscribe("many/#", qos=0)
    found = len(peer.messages())
    assert found == REPLAY_COUNT_MAX
    publisher.put("live")  # its turn has one slice more
    assert len(other.messages()) == 1
    found += len(peer.messages())
    assert found == 2 * REPLAY_COUNT_MAX
    assert len(payloads(peer)) == REPLAY_COUNT_MAX
    assert not gateway.stage.delivery.deliver(0)


def test_replay_goes_through_the_window() -> None:
    gateway = Gateway(inflight_max=2)
    retain(gateway, *"abcde")
    peer = gateway.connect(5)
    peer.subscribe("#")
    first, second = messages(peer)
    assert (first.payload, first.retain, second.payload) == (b"a", True, b"b")
    peer.answer(PacketType.PUBACK, first.packet_id)
    assert payloads(peer) == [b"c"]
    peer.answer(PacketType.PUBACK, second.packet_id)
    assert payloads(peer) == [b"d"]


def test_replay_goes_on_when_half_the_window_is_free() -> None:
    gateway = Gateway(inflight_max=4)
    retain(gateway, *(f"t/{number}" for number in range(8)))
    peer = gateway.connect(5)
    peer.subscribe("t/#")
    first = messages(peer)
    assert len(first) == 4
    peer.answer(PacketType.PUBACK, first[0].packet_id)
    assert payloads(peer) == []
    peer.answer(PacketType.PUBACK, first[1].packet_id)
    assert payloads(peer) == [b"t/4", b"t/5"]


def test_names_that_are_subscribed_to_one_by_one_come_several_at_once() -> None:
    gateway = Gateway()
    retain(gateway, *MANY)
    peer = gateway.connect(5)
    peer.subscribe(*MANY[:90], qos=0)
    found = peer.payloads()
    assert len(found) == -(-REPLAY_COUNT_MAX // (NAME_COST + 1))
    found += payloads(peer)
    assert found == [name.encode() for name in MANY[:90]]
    peer.subscribe("many/000/+", "many/001/+", "many/002/+", qos=0)
    assert peer.payloads() == [MANY[0].encode()]  # each of these may look at many names
    assert payloads(peer) == [name.encode() for name in MANY[1:3]]


def test_receiver_whose_window_is_full_is_served_again_when_it_acknowledges() -> None:
    gateway = Gateway(inflight_max=4)
    retain(gateway, *(f"t/{number}" for number in range(12)))
    peer = gateway.connect(5)
    catch_up = gateway.stage.delivery._catch_up
    for filters in (["t/#"], ["t/+", "+/3"]):
        peer.subscribe(*filters)
        for _ in range(3):
            assert not catch_up.returning  # else others' turns would look at it for nothing
            part = peer.messages()
            assert len(part) == 4
            acknowledge(peer, *part)
    assert peer.messages()[0].topic == "t/3"


def test_replay_at_qos_0_waits_for_a_slow_receiver() -> None:
    gateway = Gateway()
    retain(gateway, *"abc")
    peer = gateway.connect(5)
    gateway.stage.output.fill(peer.number)
    peer.subscribe("#", qos=0)
    assert payloads(peer) == []
    gateway.stage.output.read_on(peer.number)
    gateway.stage.turn(drained=[peer.number])
    assert payloads(peer) == [b"a", b"b", b"c"]
    assert gateway.stage.metrics.messages_dropped_qos0 == 0


def test_replay_begins_behind_suback() -> None:
    gateway = Gateway()
    retain(gateway, "a")
    peer = gateway.connect_persistent(5, "dev")
    gateway.stage.log.settles_at_once = False
    peer.send_subscribe("#")
    gateway.deliver()
    assert peer.packets() == []
    gateway.stage.log.settle()
    gateway.deliver()
    assert [packet.type for packet in peer.packets()] == [PacketType.SUBACK, PacketType.PUBLISH]


# --- what is published while a replay waits --------------------------------------------------


def test_newer_message_comes_live_and_the_older_one_not_behind_it() -> None:
    gateway = Gateway(inflight_max=1)
    retain(gateway, "a", "b", "c")
    peer = gateway.connect(5)
    peer.subscribe("#")
    retain(gateway, "b", payload=b"newer")
    retain(gateway, "c", payload=b"")
    assert sorted(read_all(peer)) == [b"", b"a", b"newer"]
    late = gateway.connect(5)
    late.subscribe("#")
    assert read_all(late) == [b"a", b"newer"]


def half_replayed(topic_filter: str = "many/#", **config: Any) -> tuple[Gateway, Peer, list[bytes]]:
    """Return a peer to which half of MANY has been replayed, and more has been read for it."""
    gateway = Gateway(inflight_max=4, **config)
    retain(gateway, *MANY)
    tick(gateway)
    peer = gateway.connect(5)
    peer.subscribe(topic_filter)
    found: list[bytes] = []
    while len(found) < 100:
        part = messages(peer)
        found += [message.payload for message in part]
        acknowledge(peer, *part)
    assert gateway.stage.delivery._replays._aheads
    return gateway, peer, found


def reads_of(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each read of retained messages is added, with how many it found."""
    reads: list[int] = []
    read = gateway.stage.retained.rows

    def counted(*what: Any, **more: Any) -> Any:
        found = read(*what, **more)
        reads.append(len(found.rows))
        return found

    monkeypatch.setattr(gateway.stage.retained, "rows", counted)
    return reads


@pytest.mark.parametrize("topic_filter", ["many/#", "many/+/state"])
def test_receiver_that_goes_on_is_read_ahead_for(
    topic_filter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway(inflight_max=4)
    retain(gateway, *MANY)
    tick(gateway)
    reads = reads_of(gateway, monkeypatch)
    peer = gateway.connect(5)
    peer.subscribe(topic_filter)
    assert read_all(peer) == [name.encode() for name in MANY]
    assert reads == [1, 4, 8, 16, 32, 64, 76]  # the first one for SUBSCRIBE: is there anything?


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize("is_read_back", [False, True])
def test_what_was_read_ahead_is_not_sent_behind_a_newer_message(
    is_removed: bool, is_read_back: bool
) -> None:
    gateway, peer, found = half_replayed()
    changed = MANY[len(found) + 7]
    newer = b"" if is_removed else b"newer"
    retain(gateway, changed, payload=newer)
    if is_read_back:
        tick(gateway)
    found += read_all(peer)
    expected = [name.encode() for name in MANY if name != changed]
    assert [payload for payload in found if payload != newer] == expected
    assert found.count(newer) == 1


def test_what_was_read_ahead_stays_where_other_names_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway, peer, found = half_replayed()
    reads = reads_of(gateway, monkeypatch)
    for other in (MANY[0], "many", "other"):
        retain(gateway, other, payload=b"newer")
        part = messages(peer)
        assert part[0].payload in (b"newer", MANY[len(found)].encode())
        found += [m.payload for m in part if m.payload != b"newer"]
        acknowledge(peer, *part)
    assert not reads
    found += [payload for payload in read_all(peer) if payload != b"newer"]
    assert found == [name.encode() for name in MANY]


def test_more_changes_than_are_known_by_name_have_it_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway, peer, found = half_replayed()
    reads = reads_of(gateway, monkeypatch)
    publisher = gateway.connect(5)
    for number in range(CHANGES_MAX + 1):
        publisher.put(f"other/{number}", b"x", retain=True)
    found += read_all(peer)
    assert found == [name.encode() for name in MANY]
    assert reads[0] == 2  # as much as the window has room for


def test_message_comes_whose_replacement_was_refused_while_it_was_read_ahead() -> None:
    gateway, peer, found = half_replayed()
    publisher = gateway.connect(5)
    gateway.stage.log.error = StoreFullError("full")
    publisher.put(MANY[len(found) + 7], b"newer", 1, retain=True)
    gateway.stage.log.error = None
    tick(gateway)
    found += read_all(peer)
    assert found == [name.encode() for name in MANY]


def test_what_a_receiver_does_not_take_is_not_kept_for_it() -> None:
    gateway, peer, found = half_replayed()
    replays = gateway.stage.delivery._replays
    for is_kept in (True, False):
        assert bool(replays._aheads) is is_kept
        tick(gateway)
        tick(gateway)
    found += read_all(peer)
    assert found == [name.encode() for name in MANY]


def test_messages_are_read_ahead_for_so_many_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "AHEADS_MAX", 2)
    gateway = Gateway(inflight_max=4)
    retain(gateway, *MANY)
    peers = [gateway.connect(5) for _ in range(4)]
    for peer in peers:
        peer.subscribe("many/#")
    found: list[list[bytes]] = [[] for _ in peers]
    while any(len(one) < len(MANY) for one in found):
        for peer, one in zip(peers, found, strict=True):
            part = messages(peer)
            one += [message.payload for message in part]
            acknowledge(peer, *part)
            assert len(gateway.stage.delivery._replays._aheads) <= 2
    assert found == [[name.encode() for name in MANY]] * 4


def test_nothing_stays_read_ahead_for_a_receiver_that_has_left() -> None:
    gateway, peer, _ = half_replayed()
    peer.drop()
    tick(gateway)
    tick(gateway)
    assert not gateway.stage.delivery._replays._aheads


def test_large_messages_are_read_ahead_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway()
    large = b"x" * (AHEAD_BYTES_MAX // 3)
    retain(gateway, *"abcdefgh", payload=large)
    tick(gateway)
    reads = reads_of(gateway, monkeypatch)
    peer = gateway.connect(5)
    peer.subscribe("#")
    assert read_all(peer) == [large] * 8
    assert max(reads) == 2


def test_retained_message_of_the_subscribe_s_own_turn_comes_once() -> None:
    gateway = Gateway()
    other = gateway.connect(5)
    other.subscribe("a")
    peer = gateway.connect(5)
    peer.put("a", b"x", retain=True)
    peer.subscribe("a", qos=0)
    assert [(m.payload, m.retain) for m in messages(peer)] == [(b"x", True)]


def test_unsubscribe_ends_the_replay() -> None:
    gateway = Gateway(inflight_max=1)
    retain(gateway, "a", "b")
    peer = gateway.connect(5)
    peer.subscribe("#")
    peer.unsubscribe("#")
    assert read_all(peer) == [b"a"]


def test_replay_has_the_identifier_of_its_subscription_alone() -> None:
    gateway = Gateway()
    retain(gateway, "a/b")
    peer = gateway.connect(5)
    peer.subscribe("a/#", identifier=1)
    peer.subscribe("a/+", identifier=2)
    found = [message.properties.subscription_identifiers for message in messages(peer)]
    assert found == [(1,), (2,)]


def test_no_local_does_not_hold_back_what_the_client_has_retained_itself() -> None:
    peer = Gateway().connect(5, "both")
    peer.publish("own/before", b"before", retain=True)
    peer.subscribe("own/#", no_local=True)
    peer.publish("own/then", b"then", retain=True)
    assert read_all(peer) == [b"before"]


def test_replays_of_several_filters_follow_each_other() -> None:
    gateway = Gateway(inflight_max=1)
    retain(gateway, "a/1", "a/2", "b/1")
    peer = gateway.connect(5)
    peer.subscribe("a/+", "b/+", "c/+")
    assert read_all(peer) == [b"a/1", b"a/2", b"b/1"]


def test_message_that_the_log_refuses_is_not_retained() -> None:
    gateway = Gateway()
    retain(gateway, "a", payload=b"old")
    peer = gateway.connect(5)
    gateway.stage.log.error = StoreFullError("full")
    peer.put("a", b"new", 1, retain=True)
    gateway.stage.log.error = None
    tick(gateway)
    late = gateway.connect(5)
    late.subscribe("a")
    assert payloads(late) == [b"old"]
    assert gateway.stage.retained.count == 1


# --- reconnects and restarts -----------------------------------------------------------------


@pytest.mark.parametrize("ends", ["reconnect", "tick and kill", "kill"])
@pytest.mark.parametrize("qos", [1, 2])
def test_unfinished_replay_goes_on(ends: str, qos: int) -> None:
    gateway = Gateway(inflight_max=2)
    retain(gateway, *"abcde", qos=qos)
    peer = gateway.connect_persistent(5, "dev")
    peer.subscribe("#", qos=qos)
    first = messages(peer)
    assert [message.payload for message in first] == [b"a", b"b"]
    if ends == "reconnect":
        peer.drop()
    else:
        if ends == "tick and kill":
            tick(gateway)
        gateway = kill(gateway)
    peer = gateway.connect_persistent(5, "dev")
    assert peer.connack.session_present
    again = messages(peer)
    if ends == "kill" and qos == 1:
        # Nothing has told of the first two: they come as new ones.
        assert [(m.payload, m.dup) for m in again] == [(name.encode(), False) for name in "abcde"]
        return
    told = [(m.payload, m.packet_id, m.dup, m.retain) for m in again[:2]]
    assert told == [(m.payload, m.packet_id, True, True) for m in first]
    if ends == "reconnect":  # its window is full
        acknowledge(peer, *again)
        again += messages(peer)
        acknowledge(peer, *again[2:])
        again += messages(peer)
    assert [(m.payload, m.dup, m.retain) for m in again[2:]] == [
        (name.encode(), False, True) for name in "cde"
    ]


def test_finished_replay_does_not_come_again_after_a_kill() -> None:
    gateway = Gateway()
    retain(gateway, *"ab")
    peer = gateway.connect_persistent(5, "dev")
    peer.subscribe("#")
    assert read_all(peer) == [b"a", b"b"]
    tick(gateway)
    gateway = kill(gateway)
    peer = gateway.connect_persistent(5, "dev")
    assert payloads(peer) == []


def test_subscription_without_retained_messages_tells_nothing_more() -> None:
    gateway = Gateway()
    retain(gateway, "a")
    peer = gateway.connect_persistent(5, "dev")
    peer.subscribe("other/#")
    stored = gateway.stage.journal.load("dev")
    assert stored is not None
    assert stored.replays == ()


def test_retained_messages_survive_a_kill() -> None:
    gateway = Gateway()
    retain(gateway, "a", "b")
    retain(gateway, "a", payload=b"")
    gateway = kill(gateway)
    peer = gateway.connect(4)
    peer.subscribe("#")
    assert [(m.payload, m.retain) for m in messages(peer)] == [(b"b", True)]


def test_repeated_qos_2_publish_is_retained_once() -> None:
    gateway = Gateway()
    peer = gateway.connect_persistent(5, "dev")
    for dup in (False, True):
        peer.put("a", b"x", 2, packet_id=9, retain=True, dup=dup)
    assert len(gateway.stage.log.records[KEY]) == 1
    assert gateway.stage.metrics.publishes_received == 1


# --- limits ----------------------------------------------------------------------------------


def test_one_message_more_than_the_limit_is_refused_where_it_can_be_told() -> None:
    gateway = Gateway(retained_count_max=2)
    other = gateway.connect(5)
    other.subscribe("#", retain_handling=2)
    peer = gateway.connect(5)
    peer.publish("a", b"1", 1, retain=True)
    peer.publish("b", b"2", 1, retain=True)
    peer.packets()
    peer.put("c", b"3", 1, retain=True)
    assert peer.read_ack(PacketType.PUBACK).reason_code == 0x97
    peer.put("a", b"4", 1, retain=True)
    assert peer.read_ack(PacketType.PUBACK).reason_code == 0
    assert payloads(other) == [b"1", b"2", b"4"]
    peer.put("b", b"", 1, retain=True)
    assert peer.read_ack(PacketType.PUBACK).reason_code == 0
    peer.put("c", b"5", 1, retain=True)
    assert peer.read_ack(PacketType.PUBACK).reason_code == 0
    assert gateway.stage.metrics.retained_refused == 1


@pytest.mark.parametrize(("version", "qos"), [(4, 0), (4, 1), (5, 0)])
def test_message_above_the_limit_is_delivered_where_it_cannot_be_told(
    version: int, qos: int
) -> None:
    gateway = Gateway(retained_count_max=1)
    retain(gateway, "a")
    other = gateway.connect(5)
    other.subscribe("#", retain_handling=2)
    peer = gateway.connect(version)
    peer.put("b", b"x", qos, retain=True)
    assert not peer.is_closed
    assert payloads(other) == [b"x"]
    assert gateway.stage.retained.get("b") is None
    assert gateway.stage.metrics.retained_refused == 1


def test_bytes_are_limited_too() -> None:
    gateway = Gateway(retained_bytes_max=1000)
    peer = gateway.connect(5)
    peer.put("a", bytes(700), 1, retain=True)
    peer.put("b", bytes(700), 1, retain=True)
    codes = [peer.read_ack(PacketType.PUBACK).reason_code for _ in range(2)]
    assert codes == [0, 0x97]
    peer.put("a", bytes(800), 1, retain=True)
    assert peer.read_ack(PacketType.PUBACK).reason_code == 0
    tick(gateway)
    metrics = gateway.stage.metrics
    assert metrics.retained_messages_now == 1
    assert 800 < metrics.retained_bytes_now <= 1000


def test_one_client_cannot_have_all_retained_messages() -> None:
    gateway = Gateway(retained_client_count_max=2)
    greedy, other = gateway.connect(5, "greedy"), gateway.connect(5, "other")

    def code(peer: Peer, topic: str, payload: bytes = b"x") -> int:
        peer.put(topic, payload, 1, retain=True)
        return peer.read_ack(PacketType.PUBACK).reason_code

    def codes(peer: Peer, *topics: str) -> list[int]:
        return [code(peer, topic) for topic in topics]

    assert codes(greedy, "a", "b", "a", "c", "b") == [0, 0, 0, 0x97, 0]
    assert gateway.stage.metrics.retained_refused == 1
    tick(gateway)  # read back
    assert codes(greedy, "c") == [0x97]
    assert codes(other, "a") == [0]
    assert codes(greedy, "c", "a") == [0, 0x97]
    tick(gateway)
    assert (codes(greedy, "d"), codes(other, "d", "e")) == ([0x97], [0, 0x97])
    assert code(greedy, "c", b"") == 0
    assert codes(greedy, "e") == [0]
    counts = gateway.stage.retained
    tick(gateway)
    assert (counts.count_of("greedy"), counts.count_of("other"), counts.count) == (2, 2, 4)
    gateway.stage.view.rebuild("for the test")
    tick(gateway)
    assert (counts.count_of("greedy"), counts.count_of("other")) == (2, 2)


def test_what_expires_is_not_counted_for_its_client_any_more() -> None:
    gateway = Gateway(retained_client_count_max=1)
    peer = gateway.connect(5)
    peer.publish("a", b"1", 1, retain=True, message_expiry_interval_s=5)
    peer.packets()
    tick(gateway)
    gateway.pass_s(6)
    tick(gateway)
    peer.put("b", b"2", 1, retain=True)
    assert peer.read_ack(PacketType.PUBACK).reason_code == 0


def test_a_clock_that_is_set_forward_expires_no_retained_message_early() -> None:
    gateway = Gateway()
    peer = gateway.connect(5)
    peer.publish("a", b"1", 1, retain=True, message_expiry_interval_s=10)
    tick(gateway)
    gateway.pass_s(2)
    gateway.stage.clock.step_wall(3_600_000)
    tick(gateway)
    peer.packets()
    peer.subscribe("a")
    [message] = messages(peer)
    assert (message.payload, message.properties.message_expiry_interval_s) == (b"1", 8)
    gateway.pass_s(8)
    tick(gateway)
    assert gateway.stage.retained.count == 0


def test_will_above_the_limit_is_published_and_not_retained() -> None:
    gateway = Gateway(retained_count_max=1)
    other = gateway.connect(5)
    other.subscribe("w/#")
    for number in range(2):
        will = Will(f"w/{number}", b"gone", qos=1, retain=True)
        gateway.connect(5, f"dev{number}", will=will).drop()
    assert payloads(other) == [b"gone", b"gone"]
    assert gateway.stage.retained.count == 1


def test_expired_message_makes_room() -> None:
    gateway = Gateway(retained_count_max=1)
    peer = gateway.connect(5)
    peer.publish("a", b"1", 1, retain=True, message_expiry_interval_s=5)
    peer.packets()
    gateway.pass_s(6)
    tick(gateway)
    peer.put("b", b"2", 1, retain=True)
    assert peer.read_ack(PacketType.PUBACK).reason_code == 0
    assert gateway.stage.retained.count == 1
