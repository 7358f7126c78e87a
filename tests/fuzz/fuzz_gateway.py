"""Fuzz a whole gateway in memory: clients that keep to MQTT beside clients that do not, and kills.

Usage: python tests/fuzz/fuzz_gateway.py [SECONDS] [SEED] [ROUND]. Prints the seed; exit status 1
and what went wrong, with the command that repeats its round. A round is one log and the gateways
that live on it one after the other. Clients with persistent sessions publish numbers at QoS 1 and 2
and subscribe; strangers send packets of all kinds, legal, odd and mutated. Meanwhile connections
end and are taken over, sockets fill, the log settles late, has records that are not at hand, and
creates topics late; the gateway is stopped or killed, and what the log had not taken is gone.

A fault is: an exception or a line of level ERROR; a broken invariant of a table; a message that a
client of the first kind lacks, has out of order, or twice at QoS 2; an acknowledgement of what the
log does not have; a session that is not there; a will that is published although it must not be, or
not although it must; a connection that is neither answered nor closed; anything kept for clients
that have all gone.
"""

from __future__ import annotations

import logging
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Final

# Behind everything else: `make fuzz` puts the kernels with sanitizers in front.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from motelog.core.net.reactor import CloseReason, Fault
from motelog.core.records.decode import decode_brief
from motelog.core.topic_names import MQTT_RETAINED_TOPIC, MQTT_SESSION_TOPIC
from motelog.gateway.config import GatewayConfig
from motelog.gateway.mapping.message_properties import TOPIC_PROPERTY
from motelog.gateway.mapping.topic_rule import TopicRule
from motelog.gateway.mqtt.acks import encode_ack
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.disconnect import encode_disconnect
from motelog.gateway.mqtt.packet_types import (
    Connect,
    PacketType,
    Properties,
    PropertyId,
    Subscribe,
    SubscribeEntry,
    Unsubscribe,
    Will,
)
from motelog.gateway.mqtt.properties import encode_properties
from motelog.gateway.mqtt.subscribe import encode_subscribe, encode_unsubscribe
from motelog.gateway.sessions.groups import Receiver
from tests.support.delivery_audit import Audit, Received
from tests.support.durable_client import Arrived, ClientSession, split
from tests.support.fake_log import FakeLog
from tests.support.fuzz_faults import Errors, FoundError
from tests.support.gateway_stage import Stage
from tests.support.mqtt_wire import varint

STEPS: Final = 150
#: Steps without a packet to anybody after which what is missing does not come any more.
STUCK_STEPS: Final = 60
CLIENTS: Final = 4
STRANGERS: Final = 3
SENDING_MAX: Final = 8
NUMBERS: Final = range(1, 13)
KEPT_S: Final = 100
#: A stranger's PINGREQ is answered behind whatever was sent to it before.
PINGREQ: Final = b"\xc0\x00"

TOPICS: Final = ("a", "b/x", "n/a/b", "one/c0/1", "/", "x/", "$SYS/x", "b/\x7f", "é/😀", "t" * 300)
FILTERS: Final = (
    *("#", "+", "f0/#", "+/+/2", "b/x", "a/#", "+/a/#", "/", "$SYS/#", "n/+/b", "é/+"),
    *("$share/g/#", "$share/g/f0/+/1", "$share//x", "$share/+/x", "a/#/b", "a+", "", "t" * 1100),
)
TEXTS: Final = ("", "s0", "s1", "s2", "é", "x" * 300, "a b")
U16: Final = (0, 1, 2, 3, 60, 255, 32_767, 65_534, 65_535)
U32: Final = (0, 1, 5, 100, 1 << 20, (1 << 32) - 1)


class Peer:
    """One end of a connection: what is on its way in both directions."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.frames: list[bytes] = []
        self.came = b""
        self.is_new = False

    def begin(self, number: int) -> None:
        self.number, self.frames, self.came, self.is_new = number, [], b"", True

    def end(self) -> None:
        self.number, self.frames, self.came = None, [], b""


class Client(Peer):
    """A client that keeps to MQTT, has a session and numbers what it publishes."""

    def __init__(self, name: str, version: int, window: int | None, game: Game) -> None:
        super().__init__()
        self.name = name
        self.game = game
        self.session = ClientSession(
            name,
            version=version,
            receive_maximum=window,
            packet_ids=12,
            on_message=self._arrived,
            on_done=self._done,
        )
        self.received: Received | None = None
        self.is_subscribed = False
        self.has_session = False
        #: The connection has a will with this payload; wills that must and must not come.
        self.will: str | None = None
        self._wills = 0

    def come(self, chance: random.Random) -> None:
        """Send CONNECT, sometimes with a will."""
        self.will, will = None, None
        if chance.random() < 0.4:
            self._wills += 1
            self.will = f"{self.name} {self._wills}"
            will = Will(f"will/{self.name}", self.will.encode(), chance.randrange(3), False)
        self.session.come(will=will)

    def forget(self) -> None:
        """Begin anew: the next CONNECT ends the session."""
        self.received = None
        self.is_subscribed = False
        self.has_session = False
        self.session.received.clear()

    def _arrived(self, message: Arrived) -> None:
        if self.received is None:
            raise FoundError(f"{self.name} has not subscribed and gets {message}")
        if message.topic.startswith("f"):
            self.received.arrived(message.topic, message.payload, message.qos, message.is_dup)

    def _done(self, topic: str, payload: bytes) -> None:
        if not self.game.has(topic, payload):
            raise FoundError(f"{topic} {payload!r} is acknowledged and not in the log")
        self.game.audit.done(topic, payload)


class Stranger(Peer):
    """A peer that sends what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 4
        self.is_pinging = False


class Game:
    """One round."""

    def __init__(self, seed: str, errors: Errors) -> None:
        self.chance = random.Random(seed)
        self.errors = errors
        self.audit = Audit()
        self.log = FakeLog()
        self.is_slow = self.chance.random() < 0.7
        chance = self.chance
        self.config = GatewayConfig(
            inflight_max=chance.choice((2, 5, 64)),
            receive_maximum=SENDING_MAX + 1,
            topic_alias_max=chance.choice((0, 2)),
            topics_max=chance.choice((50, 50)),
            topic_queue_count=chance.choice((1, 3, 8)),
            subscriptions_max=5,
            topic_map=chance.choice(((), (TopicRule(filter="f0/+/1", queue_topic="one"),))),
        )
        self.stage = self._start()
        self.clients = [
            Client(f"c{n}", chance.choice((4, 4, 5)), chance.choice((None, 1, 3)), self)
            for n in range(CLIENTS)
        ]
        self.strangers = [Stranger() for _ in range(STRANGERS)]
        self.generation = 0
        #: How many packets the gateway has been sent.
        self.packets_in = 0
        #: How many the gateway has sent, and peers have read.
        self._packets = 0
        self._known: set[tuple[str, bytes]] = set()
        self._seen: Counter[tuple[str, int]] = Counter()
        self.wills: Counter[str] = Counter()
        self.wills_due: set[str] = set()
        self.wills_none: set[str] = set()

    # --- the log -------------------------------------------------------------------------

    def _start(self) -> Stage:
        stage = Stage(self.config, log=self.log)
        # Only now may the log be slow: a gateway waits for it before it lets anybody in.
        self.log.settles_at_once = not self.is_slow
        return stage

    def has(self, topic: str, payload: bytes) -> bool:
        """Return whether the log has a message."""
        self._read_log()
        return (topic, payload) in self._known

    def _read_log(self) -> None:
        for key, records in self.log.records.items():
            if key[0] in (MQTT_SESSION_TOPIC, MQTT_RETAINED_TOPIC):
                continue
            for record in records[self._seen[key] :]:
                _, name, _, _, body, *_ = decode_brief(record, TOPIC_PROPERTY)[0]
                assert name is not None, "every message here is a publish"
                self._known.add((name.decode(), body))
                if name.startswith(b"will/"):
                    self.wills[body.decode()] += 1
            self._seen[key] = len(records)

    def _log_goes_on(self, *, wholly: bool) -> None:
        """Have the log do some of what it owes, or all of it."""
        log, chance = self.log, self.chance
        if wholly or chance.random() < 0.5:
            for topic in list(log.creating):
                log.created(topic)
        if wholly:
            log.settle()
        elif chance.random() < 0.6:
            log.settle(chance.randrange(1, 6))
        if wholly:
            log.cold.clear()
        elif self.is_slow and chance.random() < 0.1:
            log.cold.update(chance.sample(range(60), 5))
        if wholly or chance.random() < 0.5:
            log.paged_in(is_warm=wholly or chance.random() < 0.5)

    def _advance(self, ms: int) -> None:
        self.stage.clock.advance(ms)
        self.log.now_ms += ms

    # --- one round -----------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
        self._drain()
        self._all_go()

    def _step(self) -> None:
        chance = self.chance
        if chance.random() < 0.02:
            self._restart(is_kill=chance.random() < 0.7)
        if chance.random() < 0.05:
            self.generation += 1
        self._advance(chance.choice((0, 1, 20, 300)))
        closed: list[tuple[int, CloseReason]] = []
        opened: list[int] = []
        for client in self.clients:
            self._act(client, opened, closed)
        for stranger in self.strangers:
            self._act_oddly(stranger, opened, closed)
        self._turn(opened, closed)
        self._log_goes_on(wholly=False)
        if chance.random() < 0.2:
            self._tick()
        self._check()

    def _turn(self, opened: list[int], closed: list[tuple[int, CloseReason]]) -> None:
        chance = self.chance
        frames: list[tuple[int, bytes]] = []
        peers = [peer for peer in self._peers() if peer.number is not None and peer.frames]
        while peers:
            peer = chance.choice(peers)
            assert peer.number is not None
            frames.append((peer.number, peer.frames.pop(0)))
            if not peer.frames or chance.random() < 0.1:
                peers.remove(peer)
        drained = []
        faults = []
        for peer in self._peers():
            number = peer.number
            if number is None or number in opened:
                continue
            roll = chance.random()
            if roll < 0.05:
                self.stage.output.fill(number)
            elif roll < 0.2:
                self.stage.output.read_on(number)
                drained.append(number)
            elif roll < 0.203 or (isinstance(peer, Stranger) and roll < 0.21):
                faults.append((number, chance.choice(list(Fault))))
                if isinstance(peer, Client):
                    self._will_comes(peer)
        self.packets_in += len(frames)
        self.stage.turn(*frames, opened=opened, closed=closed, drained=drained, faults=faults)
        while self.stage.delivery.deliver(self.stage.clock.now_ms()):
            if chance.random() < 0.3:
                break
        self._hear()

    def _peers(self) -> list[Peer]:
        return [*self.clients, *self.strangers]

    def _hear(self) -> None:
        """Hand over what the gateway has sent to those that read."""
        output = self.stage.output
        for peer in self._peers():
            if peer.number is None:
                continue
            is_full = output.output_bytes(peer.number) > 0
            if not is_full:
                peer.came += b"".join(output.sent.pop(peer.number, []))
                self._take(peer)
            if peer.number is not None and peer.number not in output._open:
                self._ended(peer)

    def _take(self, peer: Peer) -> None:
        packets, peer.came = split(peer.came)
        self._packets += len(packets)
        for first_byte, body in packets:
            if isinstance(peer, Client):
                self._handle(peer, first_byte, body)
            elif isinstance(peer, Stranger) and first_byte == 0xD0:
                peer.is_pinging = False
        if isinstance(peer, Client):
            peer.frames += _frames(peer.session.take_out())

    def _handle(self, client: Client, first_byte: int, body: bytes) -> None:
        session = client.session
        session.handle(first_byte, body)
        if first_byte == 0x20:
            assert session.connack is not None
            if session.connack.reason_code:
                raise FoundError(f"{client.name} is refused: {session.connack}")
            if session.connack.session_present != client.has_session:
                raise FoundError(f"{client.name} {client.has_session=}: {session.connack}")
            client.has_session = True
        elif first_byte == 0x90:
            assert session.granted is not None
            if session.granted[0] > 2:
                raise FoundError(f"{client.name} is not granted its subscription")
            if client.received is not None and not client.is_subscribed:
                client.received.subscribed()
                client.is_subscribed = True

    def _ended(self, peer: Peer) -> None:
        """Note that the gateway has ended a connection."""
        if isinstance(peer, Client) and peer.number is not None:
            self._will_comes(peer)
        self.stage.output.closed = [n for n in self.stage.output.closed if n != peer.number]
        peer.end()

    # --- clients that keep to MQTT -------------------------------------------------------

    def _act(
        self, client: Client, opened: list[int], closed: list[tuple[int, CloseReason]]
    ) -> None:
        chance, session = self.chance, client.session
        roll = chance.random()
        if client.number is None:
            if roll < 0.3:
                self._connect(client, opened)
            return
        if session.connack is None:
            return
        if roll < 0.03:
            self._lose(client, closed)
        elif roll < 0.05:
            # It comes again while the gateway takes the old connection for alive.
            old = client.number
            client.end()
            self._will_comes(client)
            self._connect(client, opened)
            if chance.random() < 0.5:
                closed.append((old, CloseReason.PEER))
                self.stage.output.end(old)
            return
        elif roll < 0.07:
            session.disconnect()
            client.frames += _frames(session.take_out())
            if client.will is not None:
                # Whether the gateway has read it is not known: the connection may end before.
                client.will = None
        elif roll < 0.1:
            session.holds_back = not session.holds_back
        if client.number is None:
            return
        if client.received is None and roll > 0.8:
            topic_filter = chance.choice(("#", "+/+/+", "f0/#", "+/c1/+"))
            qos = chance.choice((1, 2))
            client.received = Received(client.name, self.audit, topic_filter, qos)
            client.received.subscribing()
            session.subscribe((topic_filter, qos))
        elif client.received is not None and not client.is_subscribed and roll > 0.7:
            # The connection has ended before SUBACK: ask again.
            received = client.received
            session.subscribe((received.filter, received.qos))
        elif client.is_subscribed and roll > 0.97:
            assert client.received is not None
            session.subscribe((client.received.filter, client.received.qos))
        for _ in range(chance.choice((0, 0, 0, 1, 2, 4))):
            if len(session.sending) < SENDING_MAX:
                qos = chance.choice((1, 2))
                topic = f"f{self.generation}/{client.name}/{qos}"
                session.publish(topic, self.audit.publish(topic), qos)
        if not session.holds_back:
            session.acknowledge()
        client.frames += _frames(session.take_out())

    def _connect(self, client: Client, opened: list[int]) -> None:
        number = self._free_number(opened)
        client.begin(number)
        opened.append(number)
        client.come(self.chance)
        client.frames = _frames(client.session.take_out())

    def _lose(self, client: Client, closed: list[tuple[int, CloseReason]]) -> None:
        """End a connection from the client's side without DISCONNECT."""
        assert client.number is not None
        closed.append((client.number, CloseReason.PEER))
        self._will_comes(client)
        client.end()

    def _will_comes(self, client: Client) -> None:
        if client.will is not None and client.session.connack is not None:
            self.wills_due.add(client.will)
        client.will = None

    def _free_number(self, opened: list[int]) -> int:
        taken = {peer.number for peer in self._peers()} | set(opened)
        known = self.stage.connections
        return self.chance.choice([n for n in NUMBERS if n not in taken and known[n] is None])

    # --- strangers -----------------------------------------------------------------------

    def _act_oddly(
        self, stranger: Stranger, opened: list[int], closed: list[tuple[int, CloseReason]]
    ) -> None:
        chance = self.chance
        if stranger.number is None:
            if chance.random() < 0.4:
                number = self._free_number(opened)
                stranger.begin(number)
                opened.append(number)
                stranger.is_pinging = False
                stranger.version = chance.choice((3, 4, 5))
                if chance.random() < 0.95:
                    stranger.frames.append(connect(chance, stranger.version))
            return
        if chance.random() < 0.04:
            closed.append((stranger.number, chance.choice(list(CloseReason))))
            stranger.end()
            return
        for _ in range(chance.randrange(5)):
            frame = packet(chance, stranger.version)
            if chance.random() < 0.05:
                frame = mutated(chance, frame)
            stranger.frames.append(frame)

    # --- the gateway's life --------------------------------------------------------------

    def _tick(self) -> None:
        self.stage.tick()
        while self.stage.journal.refresh(self.chance.choice((1, 7, 1000))):
            pass
        if self.chance.random() < 0.1:
            self.stage.journal.rewrite_older(self.stage.clock.now_ms() - 1000, 3)

    def _restart(self, *, is_kill: bool) -> None:
        log = self.log
        if not is_kill:
            self._log_goes_on(wholly=True)
            self.stage.clients._run.end_all(0x8B, "the end")
            self._log_goes_on(wholly=True)
        for client in self.clients:
            if client.number is not None and not is_kill:
                self._hear_last(client)
                self._will_comes(client)
            client.will = None
            client.end()
        for stranger in self.strangers:
            stranger.end()
        self._collect_garbage_of(self.stage)
        log.killed()
        log.settles_at_once = True
        log.cold.clear()
        self.stage = self._start()

    def _hear_last(self, client: Client) -> None:
        assert client.number is not None
        client.came += b"".join(self.stage.output.sent.pop(client.number, []))
        self._take(client)

    def _collect_garbage_of(self, stage: Stage) -> None:
        stage.view.close()

    # --- the end -------------------------------------------------------------------------

    def _drain(self) -> None:
        """Have everything delivered that was published."""
        for stranger in self.strangers:
            if stranger.number is not None:
                stranger.frames = [PINGREQ]
                stranger.is_pinging = True
        step, moved_at, before = 0, 0, 0
        while step <= 3 or self._missing():
            step += 1
            if self._packets != before:
                moved_at, before = step, self._packets
            elif step > moved_at + STUCK_STEPS:
                raise FoundError("it does not come: " + "; ".join(self._missing()))
            opened: list[int] = []
            for client in self.clients:
                session = client.session
                if client.number is None:
                    self._connect(client, opened)
                elif session.connack is not None:
                    if client.received is not None and not client.is_subscribed and step % 10 == 0:
                        received = client.received
                        session.subscribe((received.filter, received.qos))
                    session.holds_back = False
                    session.acknowledge()
                    client.frames += _frames(session.take_out())
            drained = []
            for peer in self._peers():
                if peer.number is not None:
                    self.stage.output.read_on(peer.number)
                    drained.append(peer.number)
            frames = [
                (p.number, f) for p in self._peers() if p.number is not None for f in p.frames
            ]
            for peer in self._peers():
                peer.frames = []
            self.packets_in += len(frames)
            self.stage.turn(*frames, opened=opened, drained=drained)
            self._log_goes_on(wholly=True)
            while self.stage.delivery.deliver(self.stage.clock.now_ms()):
                pass
            self._hear()
            self._advance(100)
            if step % 10 == 0:
                self._tick()
            self._check()

    def _missing(self) -> list[str]:
        found = []
        for client in self.clients:
            if client.number is None or client.session.connack is None:
                found.append(f"{client.name} is not connected")
            if client.session.sending:
                found.append(f"{client.name} waits for acknowledgements: {client.session.sending}")
            if client.received is not None:
                if not client.is_subscribed:
                    found.append(f"{client.name} gets no SUBACK")
                found += client.received.missing()
        for stranger in self.strangers:
            if stranger.number is not None and stranger.is_pinging and self._may_ping(stranger):
                found.append("a stranger is neither answered nor gone")
        return found

    def _may_ping(self, stranger: Stranger) -> bool:
        """Return whether the gateway has taken the stranger's CONNECT."""
        assert stranger.number is not None
        connection = self.stage.connections[stranger.number]
        return connection is not None and connection.session is not None

    def _all_go(self) -> None:
        """End all connections: nothing is kept in memory for anybody."""
        stage = self.stage
        closed = [(n, CloseReason.PEER) for n in NUMBERS if stage.connections[n] is not None]
        for client in self.clients:
            self._will_comes(client)
        stage.turn(closed=closed)
        for _ in range(5):
            self._log_goes_on(wholly=True)
            stage.turn()
            self._advance(1000)
            self._tick()
        metrics = stage.metrics
        left = metrics.sessions_now, metrics.subscriptions_now, metrics.receivers_lagging_now
        if left != (0, 0, 0):
            raise FoundError(f"sessions, subscriptions, lagging receivers are left: {left}")
        kept = {
            "sessions": stage.clients._table.by_client_id,
            "changed": stage.delivery._sender.changed,
            "held": stage.delivery._sender.marking.waiting,
            "queues": stage.delivery._queues.by_handle,
            "wanted": stage.delivery._queues._wanted,
            "returning": stage.delivery._catch_up.returning,
            "elevators": stage.delivery._catch_up.elevators,
            "idle elevators": stage.delivery._catch_up._idle,
            "reads": stage.delivery._catch_up._resending._reads._attempts,
            "plans": {k: v for k, v in stage.delivery._plans.by_name.items() if v is not None},
            "answers": stage.answers._waiting,
            "groups": stage.delivery.shares._by_number,
            "groups returning": stage.delivery.shares.lagging.returning,
            "sessions with room": stage.delivery.shares.lagging.roomy,
            "groups' reads": stage.delivery.shares.lagging._reads._attempts,
        }
        for name, what in kept.items():
            if what:
                raise FoundError(f"{name} are kept for nobody: {what}")
        self._read_log()
        for will in self.wills_due:
            if not self.wills[will]:
                raise FoundError(f"the will {will} has not been published")
        for will, count in self.wills.items():
            if count > 1 and will in self.wills_due:
                raise FoundError(f"the will {will} has been published {count} times")

    # --- what always holds ---------------------------------------------------------------

    def _check(self) -> None:
        self.errors.check()
        self.audit.check()
        stage = self.stage
        stage.sessions._subscriptions._check()
        sessions = stage.clients._table.by_client_id
        for client_id, session in sessions.items():
            if session.client_id != client_id or session.connection is None:
                raise FoundError(f"{client_id} is in memory without a connection")
            if not isinstance(session._inflight, int):
                session._inflight._check()
            for queue in session.lagging or ():
                if session not in queue.lagging:
                    raise FoundError(f"{client_id} lags in {queue.name} alone")
        groups = list(stage.delivery.shares._by_number.values())
        for group in groups:
            group._check()
        lagging: set[Receiver] = {group for group in groups if group.lagging is not None}
        for queue in stage.delivery._queues.by_handle.values():
            lagging |= queue.lagging
            for session in queue.lagging:
                if queue not in (session.lagging or ()):
                    raise FoundError(f"{queue.name} has {session.client_id} lag, which does not")
        counted = stage.metrics.receivers_lagging_now
        if len(lagging) != counted:
            raise FoundError(f"{lagging} lag, {counted} are counted")
        for elevator in stage.delivery._catch_up.elevators.values():
            elevator._check()


# --- packets of strangers --------------------------------------------------------------------


def connect(chance: random.Random, version: int) -> bytes:
    will = None
    if chance.random() < 0.4:
        properties = Properties()
        if version == 5 and chance.random() < 0.5:
            properties = Properties(will_delay_interval_s=chance.choice(U32))
        topic = chance.choice(TOPICS)
        will = Will(topic, b"w", chance.randrange(3), chance.random() < 0.2, properties)
    properties = Properties()
    if version == 5:
        properties = Properties(
            session_expiry_interval_s=chance.choice((None, *U32)),
            receive_maximum=chance.choice((None, 1, 2, 65_535)),
            maximum_packet_bytes=chance.choice((None, None, 20, 100, 1 << 20)),
            topic_alias_maximum=chance.choice((None, 1, 65_535)),
            request_problem_information=chance.choice((None, 0, 1)),
            user_properties=chance.choice(((), (("a", "b"),))),
        )
    return encode_connect(
        Connect(
            version=version,
            clean_start=chance.random() < 0.4,
            keep_alive_s=chance.choice(U16),
            client_id=chance.choice(TEXTS[1:4] if chance.random() < 0.9 else TEXTS),
            will=will,
            user_name=chance.choice((None, "u")),
            properties=properties,
        )
    )


def packet(chance: random.Random, version: int) -> bytes:
    """Return a packet as a client may send it, with fields that often make it wrong."""
    packet_id = chance.choice((1, 2, 3, 4, 5, 1, 2, 3, *U16))
    match chance.randrange(16):
        case 0 | 1 | 2 | 3:
            return publish(chance, version, packet_id)
        case 4:
            return encode_subscribe(version, subscription(chance, version, packet_id))
        case 5:
            filters = tuple(chance.choices(FILTERS[:8], k=chance.randrange(1, 3)))
            return encode_unsubscribe(version, Unsubscribe(packet_id, filters))
        case 6 | 7 | 8 | 9 | 10 | 11:
            kind = chance.choice(
                (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)
            )
            reason = chance.choice((0, 0, 0, 0x10, 0x80, 0x92, 0x97, 0xFF)) if version == 5 else 0
            return encode_ack(kind, version, packet_id, reason)
        case 12 | 13:
            return PINGREQ
        case 14:
            properties = None
            if version == 5 and chance.random() < 0.5:
                properties = {PropertyId.SESSION_EXPIRY_INTERVAL: chance.choice(U32)}
            return encode_disconnect(version, chance.choice((0, 0, 4, 0x82, 0xFF)), properties)
        case _:
            return connect(chance, version)


def publish(chance: random.Random, version: int, packet_id: int) -> bytes:
    qos = chance.choice((0, 1, 2, 2, 3 if chance.random() < 0.05 else 1))
    topic = chance.choice(TOPICS)
    flags = qos << 1 | chance.choice((0, 8)) | (chance.random() < 0.05)
    block = b""
    if version == 5:
        values: dict[PropertyId, Any] = {}
        if chance.random() < 0.3:
            values[PropertyId.TOPIC_ALIAS] = chance.choice((1, 2, 3, 0))
            topic = topic if chance.random() < 0.5 else ""
        if chance.random() < 0.2:
            values[PropertyId.MESSAGE_EXPIRY_INTERVAL] = chance.choice(U32)
        if chance.random() < 0.1:
            values[PropertyId.USER_PROPERTY] = (("k", "v" * chance.choice((1, 40, 60_000))),)
        block = encode_properties(values)
    name = topic.encode()
    body = len(name).to_bytes(2, "big") + name
    body += (packet_id.to_bytes(2, "big") if qos else b"") + block
    body += b"p" * chance.choice((0, 1, 30, 5000))
    return bytes((0x30 | flags,)) + varint(len(body)) + body


def subscription(chance: random.Random, version: int, packet_id: int) -> Subscribe:
    entries = tuple(
        SubscribeEntry(
            chance.choice(FILTERS),
            chance.randrange(3),
            no_local=version == 5 and chance.random() < 0.3,
            retain_as_published=version == 5 and chance.random() < 0.3,
            retain_handling=chance.randrange(3) if version == 5 else 0,
        )
        for _ in range(chance.choice((1, 1, 2, 3)))
    )
    properties = Properties()
    if version == 5 and chance.random() < 0.3:
        properties = Properties(subscription_identifiers=(chance.choice((1, 127, 268_435_455)),))
    return Subscribe(packet_id, entries, properties)


def mutated(chance: random.Random, frame: bytes) -> bytes:
    """Return a frame with some bytes changed whose length is right, as the reactor cuts them."""
    body = bytearray(split(frame)[0][0][1])
    first_byte = frame[0]
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(body) + 1)
        match chance.randrange(4):
            case 0:
                body[at : at + 1] = chance.randbytes(1)
            case 1:
                del body[at : at + chance.randrange(1, 4)]
            case 2:
                body[at:at] = chance.choice(
                    (b"\x00", b"\xff\xff", b"\x80\x80\x80\x80\x01", b"\x26")
                )
            case _:
                first_byte = chance.randrange(16, 256)
    return bytes((first_byte,)) + varint(len(body)) + bytes(body)


def _frames(data: bytes) -> list[bytes]:
    """Return the whole packets in ``data``, headers included."""
    packets, rest = split(data)
    assert not rest
    return [bytes((first_byte,)) + varint(len(body)) + body for first_byte, body in packets]


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    only = int(sys.argv[3]) if len(sys.argv) > 3 else None
    print(f"fuzz_gateway seed={seed}", flush=True)  # noqa: T201
    errors = Errors()
    logging.getLogger().addHandler(errors)
    logging.getLogger("motelog").setLevel(logging.ERROR)
    end = time.monotonic() + seconds
    number = 0 if only is None else only
    packets = 0
    while True:
        errors.texts.clear()
        try:
            game = Game(f"{seed}/{number}", errors)
            game.run()
        except Exception as exc:
            traceback.print_exception(exc)
            print(f"again: python tests/fuzz/fuzz_gateway.py 0 {seed} {number}")  # noqa: T201
            return 1
        packets += game.packets_in
        number += 1
        if only is not None or time.monotonic() >= end:
            break
    rounds = number - (only or 0)
    print(f"fuzz_gateway rounds={rounds} packets={packets}: no fault")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
