"""Two hundred devices before a cluster whose brokers are killed and come back; an audit judges.

Owns: Fleet: devices with persistent sessions, some of them with wills; watchers of all. Must not
touch: servers.

Each device publishes at QoS 1 and 2, some of it retained, and subscribes to what another device
publishes. Devices of MQTT 3.1.1 send again what was not acknowledged; those of MQTT 5 drop what is
refused. Now and then one loses its connection or disconnects.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from motelog.gateway.mqtt.packet_types import Will
from tests.support.delivery_audit import Audit, AuditError, Received
from tests.support.durable_client import Arrived, ClientSession, DurableClient, Sockets

DEVICES = 200
#: Each so many-th device has a will, which is in the log within this time.
WILL_EACH = 10
WILL_S = 1.0
TOPICS = 4
SENDING_MAX = 4
#: How often a device publishes, and how often it loses its connection or disconnects.
PERIOD_S = 0.5
BREAK_S = 20.0
COMES_BACK_S = 0.3
UNAVAILABLE = (3, 0x88)
DRAINED_WITHIN_S = 40.0


class Device:
    """One device with its subscription; ``come`` connects it."""

    def __init__(self, number: int, audit: Audit, topic_filter: str, qos: int) -> None:
        self.name = f"dev{number}"
        self.number = number
        self.audit = audit
        self.received = Received(self.name, audit, topic_filter, qos)
        self.will: bytes | None = None
        self.knows_session = False
        self.comes_at = 0.0
        self.refused = 0
        version = 5 if number % 3 == 0 else 4
        session = ClientSession(
            self.name,
            version=version,
            on_message=self._on_message,
            on_done=audit.done,
            on_refused=self._on_refused if version == 5 else None,
        )
        self.client = DurableClient(session)

    @property
    def will_topic(self) -> str:
        return f"will/{self.name}/1"

    def come(self, address: tuple[str, int]) -> None:
        """Connect, or try again a little later."""
        will = None
        if self.number % WILL_EACH == 0:
            self.will = self.audit.doubt(self.will_topic)
            will = Will(self.will_topic, self.will, 1, False)
        connack = self.client.connect(address, will=will)
        self.comes_at = time.monotonic() + COMES_BACK_S
        if connack is None:
            return
        if connack.reason_code in UNAVAILABLE:
            self.client.break_off()
            return
        if connack.reason_code:
            raise AuditError(f"{self.name} is refused: {connack.reason_code:#x}")
        if self.knows_session and not connack.session_present:
            raise AuditError(f"{self.name}: its session is lost")
        self.knows_session = True

    def publish(self, chance: random.Random) -> None:
        """Publish at QoS 1 or 2, or a retained message, unless much is not acknowledged."""
        session = self.client.session
        if len(session.sending) < SENDING_MAX:
            qos = chance.choice((1, 2))
            is_retained = qos == 1 and self.number % 4 == 1
            first = "state" if is_retained else f"fleet{self.number % TOPICS}"
            topic = f"{first}/{self.name}/{qos}"
            session.publish(topic, self.audit.publish(topic), qos, retain=is_retained)
            self.client.flush()

    def leave(self, *, is_clean: bool, is_whole: bool) -> None:
        """End the connection; without DISCONNECT its will is published."""
        if is_clean:
            self.client.disconnect()
            return
        self.client.break_off()
        if self.will is not None and is_whole:
            self.audit.expect(self.will_topic, self.will)

    def _on_message(self, message: Arrived) -> None:
        self.received.arrived(message.topic, message.payload, message.qos, message.is_dup)

    def _on_refused(self, topic: str, payload: bytes) -> None:
        self.refused += 1
        self.audit.refused(topic, payload)


class Fleet:
    """All devices, served by one thread."""

    def __init__(self, address: tuple[str, int], seed: int) -> None:
        self._address = address
        self._chance = random.Random(seed)
        self.audit = Audit(may_refuse=True)
        self._sockets = Sockets()
        self.devices = [
            Device(n, self.audit, f"+/dev{(n + 1) % DEVICES}/#", 2 if n % 5 else 1)
            for n in range(DEVICES)
        ]
        self.watchers = [
            Device(DEVICES + n, self.audit, topic_filter, qos)
            for n, (topic_filter, qos) in enumerate((("#", 2), ("state/#", 1), ("will/#", 1)))
        ]

    def begin(self) -> None:
        """Connect all, subscribe, and have all topics exist."""
        for device in self._all():
            device.come(self._address)
            if device.client.is_away:
                raise AuditError(f"{device.name} does not connect")
            session = device.client.session
            device.received.subscribing()
            session.subscribe((device.received.filter, device.received.qos))
            device.client.flush()
            deadline = time.monotonic() + DRAINED_WITHIN_S
            while session.granted is None:
                if time.monotonic() > deadline:
                    raise AuditError(f"{device.name} gets no SUBACK")
                self._serve(0.005)
            device.received.subscribed()

    def play(self, seconds: float, *, is_whole: bool) -> int:
        """Publish for some time; return how much was acknowledged.

        Unless the cluster ``is_whole``, and is so for WILL_S longer, a will may be refused, and its
        client does not hear of it.
        """
        before = self.audit.acknowledged
        chance, end = self._chance, time.monotonic() + seconds
        last = time.monotonic()
        while (now := time.monotonic()) < end:
            passed, last = now - last, now
            for device in self._all():
                if device.client.is_away:
                    self._bring_back(device)
                    continue
                if chance.random() < passed / PERIOD_S and device in self.devices:
                    device.publish(chance)
                if chance.random() < passed / BREAK_S:
                    is_safe = is_whole and now < end - WILL_S
                    device.leave(is_clean=chance.random() < 0.5, is_whole=is_safe)
            self._serve(0.02)
            self.audit.check()
        return self.audit.acknowledged - before

    def end(self) -> None:
        """Have everything delivered and acknowledged that was published; check the gaps."""
        deadline = time.monotonic() + DRAINED_WITHIN_S
        while missing := self._missing():
            if time.monotonic() > deadline:
                raise AuditError(f"{len(missing)} lack something: " + "; ".join(missing[:10]))
            for device in self._all():
                if device.client.is_away:
                    self._bring_back(device)
            self._serve(0.05)
            self.audit.check()
        self._serve(0.5)
        self.audit.check()
        if gaps := [text for device in self._all() for text in device.received.gaps()]:
            raise AuditError(f"{len(gaps)} gaps: " + "; ".join(gaps[:10]))
        self._check_retained()
        for device in self._all():
            device.client.disconnect()

    def _bring_back(self, device: Device) -> None:
        if time.monotonic() >= device.comes_at:
            device.come(self._address)

    def _check_retained(self) -> None:
        """A client that subscribes now gets of each topic the last message that was accepted.

        Or a later one that was refused: its copy was stored before the broker of the message was
        known to be away.
        """
        found: dict[str, int] = {}
        late = ClientSession(
            "late", on_message=lambda one: found.__setitem__(one.topic, int(one.payload))
        )
        client = DurableClient(late)
        client.connect(self._address)
        late.subscribe(("state/#", 1))
        client.flush()
        expected: dict[str, set[int]] = {}
        for topic, stream in self.audit.streams.items():
            accepted = set(range(stream.sent)) - stream.refused
            if topic.startswith("state/") and accepted:
                last = max(accepted)
                expected[topic] = {last, *(n for n in stream.refused if n > last)}
        deadline = time.monotonic() + DRAINED_WITHIN_S
        while wrong := {t: found.get(t) for t in expected if found.get(t) not in expected[t]}:
            if time.monotonic() > deadline:
                raise AuditError(f"retained messages: {wrong} in place of {expected}")
            self._sockets.serve([client], 0.05)
        client.disconnect()

    def _missing(self) -> list[str]:
        found = [
            f"{one.name} waits for {len(one.client.session.sending)} acknowledgements"
            for one in self._all()
            if one.client.session.sending
        ]
        return found + [text for one in self._all() for text in one.received.missing()]

    def _all(self) -> Iterator[Device]:
        yield from self.devices
        yield from self.watchers

    def _serve(self, seconds: float) -> None:
        self._sockets.serve([one.client for one in self._all()], seconds)
