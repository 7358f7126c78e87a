"""What well-known programs send when they come, byte by byte: no library of theirs or ours between.

Each script is written from the protocol, with the choices that the program makes by default: its
version, flags, keep alive, will, retained state. ``>`` is sent, ``<`` must come, in this order.
"""

from __future__ import annotations

from motelog.testing import MotelogProcess
from tests.support.mqtt_wire import Wire, varint


def text(value: str) -> bytes:
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def packet(first_byte: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes((first_byte,)) + varint(len(body)) + body


def connect(
    client_id: str, flags: int, keep_alive_s: int, *rest: bytes, name: str = "MQTT", level: int = 4
) -> bytes:
    head = text(name) + bytes((level, flags)) + keep_alive_s.to_bytes(2, "big")
    return packet(0x10, head, text(client_id), *rest)


def publish(topic: str, payload: bytes, *, qos: int = 0, retain: bool = False, dup: bool = False,
            packet_id: int = 1) -> bytes:  # fmt: skip
    first_byte = 0x30 | dup << 3 | qos << 1 | retain
    return packet(first_byte, text(topic), packet_id.to_bytes(2, "big") if qos else b"", payload)


def subscribe(packet_id: int, *filters: tuple[str, int]) -> bytes:
    entries = (text(topic_filter) + bytes((qos,)) for topic_filter, qos in filters)
    return packet(0x82, packet_id.to_bytes(2, "big"), *entries)


CLEAN, WILL, WILL_QOS_1, WILL_RETAIN, USER, PASSWORD = 0x02, 0x04, 0x08, 0x20, 0x80, 0x40
CONNACK = b"\x20\x02\x00\x00"
RESUMED = b"\x20\x02\x01\x00"
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
DISCONNECT = b"\xe0\x00"


def suback(packet_id: int, *granted: int) -> bytes:
    return packet(0x90, packet_id.to_bytes(2, "big"), bytes(granted))


Script = list[tuple[str, bytes]]

TASMOTA: Script = [
    # PubSubClient: 3.1.1, clean, keep alive 30, retained will at QoS 1, everything at QoS 0.
    (">", connect("DVES_3FA2C1", CLEAN | WILL | WILL_QOS_1 | WILL_RETAIN | USER | PASSWORD, 30,
                  text("tele/tasmota_3FA2C1/LWT"), text("Offline"), text("DVES_USER"), text(""))),
    ("<", CONNACK),
    (">", publish("tele/tasmota_3FA2C1/LWT", b"Online", retain=True)),
    (">", publish("cmnd/tasmota_3FA2C1/POWER", b"")),
    (">", subscribe(2, ("cmnd/tasmota_3FA2C1/#", 0))),
    ("<", suback(2, 0)),
    (">", subscribe(3, ("cmnd/tasmotas/#", 0))),
    ("<", suback(3, 0)),
    (">", publish("tele/tasmota_3FA2C1/INFO1", b'{"Info1":{"Module":"Sonoff Basic"}}')),
    (">", publish("stat/tasmota_3FA2C1/RESULT", b'{"POWER":"OFF"}')),
    (">", publish("tasmota/discovery/3FA2C1/config", b'{"ip":"10.0.0.7"}', retain=True)),
    (">", PINGREQ),
    ("<", PINGRESP),
]  # fmt: skip

ZIGBEE2MQTT: Script = [
    # MQTT.js: 3.1.1, clean, keep alive 60, retained will at QoS 1 with JSON.
    (">", connect("mqttjs_5b1e02f3", CLEAN | WILL | WILL_QOS_1 | WILL_RETAIN, 60,
                  text("zigbee2mqtt/bridge/state"), text('{"state":"offline"}'))),
    ("<", CONNACK),
    (">", subscribe(11, ("homeassistant/status", 0))),
    (">", subscribe(12, ("zigbee2mqtt/+/set", 0), ("zigbee2mqtt/+/+/set", 0))),
    ("<", suback(11, 0)),
    ("<", suback(12, 0, 0)),
    (">", publish("zigbee2mqtt/bridge/state", b'{"state":"online"}', retain=True, qos=1,
                  packet_id=13)),
    ("<", b"\x40\x02\x00\x0d"),
    (">", publish("zigbee2mqtt/lamp", b'{"state":"ON","brightness":254}', qos=0)),
    (">", publish("homeassistant/light/0x00158d/light/config", b"{}", retain=True, qos=1,
                  packet_id=14)),
    ("<", b"\x40\x02\x00\x0e"),
]  # fmt: skip

HOME_ASSISTANT: Script = [
    # paho: 3.1.1, clean, keep alive 60, retained will and birth; subscriptions in batches.
    (">", connect("2HkJ3VjfWqvGxQ", CLEAN | WILL | WILL_RETAIN, 60,
                  text("homeassistant/status"), text("offline"))),
    ("<", CONNACK),
    (">", subscribe(1, ("homeassistant/+/+/config", 0), ("homeassistant/+/+/+/config", 0),
                    ("tasmota/discovery/#", 0))),
    ("<", suback(1, 0, 0, 0)),
    # A new subscription gets what is retained, marked as that.
    ("<", publish("homeassistant/light/0x00158d/light/config", b"{}", retain=True)),
    ("<", publish("tasmota/discovery/3FA2C1/config", b'{"ip":"10.0.0.7"}', retain=True)),
    (">", publish("homeassistant/status", b"online", retain=True)),
    (">", publish("cmnd/tasmota_3FA2C1/POWER", b"ON", packet_id=0)),
]  # fmt: skip

ESPHOME: Script = [
    # ESP-IDF's client: 3.1.1, not clean, keep alive 15, retained will at QoS 0.
    (">", connect("kitchen-a4cf12", WILL | WILL_RETAIN, 15,
                  text("kitchen/status"), text("offline"))),
    ("<", CONNACK),
    (">", publish("kitchen/status", b"online", retain=True)),
    (">", subscribe(21, ("kitchen/switch/relay/command", 0))),
    ("<", suback(21, 0)),
    (">", publish("kitchen/sensor/temperature/state", b"21.5", retain=True)),
    (">", PINGREQ),
    ("<", PINGRESP),
]  # fmt: skip

ESP_IDF: Script = [
    # The example of ESP-IDF: 3.1.1, keep alive 120, QoS 0 and 1; it resends from its outbox.
    (">", connect("ESP32_a1B2c3", CLEAN, 120)),
    ("<", CONNACK),
    (">", publish("topic/qos1", b"data_3", qos=1, packet_id=0x7C2F)),
    (">", subscribe(0x1A2B, ("topic/qos0", 0))),
    (">", subscribe(0x1A2C, ("topic/qos1", 1))),
    ("<", b"\x40\x02\x7c\x2f"),
    ("<", suback(0x1A2B, 0)),
    ("<", suback(0x1A2C, 1)),
    (">", publish("topic/qos1", b"data_3", qos=1, dup=True, packet_id=0x7C2F)),
    ("<", b"\x40\x02\x7c\x2f"),
    ("<", publish("topic/qos1", b"data_3", qos=1, packet_id=1)),
    (">", b"\x40\x02\x00\x01"),
    (">", packet(0xA2, b"\x1a\x2d", text("topic/qos1"))),
    ("<", b"\xb0\x02\x1a\x2d"),
    (">", DISCONNECT),
]

NODE_RED: Script = [
    # MQTT.js with a fixed client identifier, not clean: what it missed comes when it is back.
    (">", connect("nodered_flows", 0, 60)),
    ("<", CONNACK),
    (">", subscribe(31, ("plant/+/alarm", 2))),
    ("<", suback(31, 2)),
    (">", DISCONNECT),
]

MQTT_3_1: Script = [
    # An old device: the protocol's former name and level.
    (">", connect("old-meter", CLEAN, 10, name="MQIsdp", level=3)),
    ("<", CONNACK),
    (">", publish("meter/7/kwh", b"1042.7", qos=2, packet_id=9)),
    ("<", b"\x50\x02\x00\x09"),
    (">", b"\x62\x02\x00\x09"),
    ("<", b"\x70\x02\x00\x09"),
    (">", DISCONNECT),
]


class Player:
    """Plays a script on a connection of its own."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.wire = Wire(address)

    def play(self, script: Script) -> None:
        for step, (direction, expected) in enumerate(script):
            if direction == ">":
                self.wire.send(expected)
            else:
                first_byte, body = self.wire.packet()
                assert packet(first_byte, body) == expected, f"step {step}"


def expect(wire: Wire, *expected: bytes) -> None:
    """Take as many packets, in any order: topics have an order each."""
    assert sorted(packet(*wire.packet()) for _ in expected) == sorted(expected)


def test_scripts_are_answered_as_they_expect(motelog_stack: MotelogProcess) -> None:
    for script in (TASMOTA, ZIGBEE2MQTT, ESPHOME, ESP_IDF, MQTT_3_1):
        player = Player(motelog_stack.mqtt)
        player.play(script)
        player.wire.socket.close()


def test_home_with_devices_that_come_and_go() -> None:
    with MotelogProcess() as motelog:
        tasmota, zigbee, home = (Player(motelog.mqtt) for _ in range(3))
        tasmota.play(TASMOTA)
        zigbee.play(ZIGBEE2MQTT)
        home.play(HOME_ASSISTANT[:4])
        expect(home.wire, *(expected for _, expected in HOME_ASSISTANT[4:6]))
        home.play(HOME_ASSISTANT[6:])
        expect(zigbee.wire, publish("homeassistant/status", b"online"))
        expect(tasmota.wire, publish("cmnd/tasmota_3FA2C1/POWER", b"ON"))
        # It loses its power: its will is told to those who look, and kept for those who come.
        home.wire.send(subscribe(2, ("tele/+/LWT", 1)))
        expect(home.wire, suback(2, 1), publish("tele/tasmota_3FA2C1/LWT", b"Online", retain=True))
        tasmota.wire.socket.close()
        expect(home.wire, publish("tele/tasmota_3FA2C1/LWT", b"Offline", qos=1, packet_id=1))
        late = Player(motelog.mqtt)
        late.play(
            [
                (">", connect("late", CLEAN, 60)),
                ("<", CONNACK),
                (">", subscribe(1, ("tele/+/LWT", 0))),
                ("<", suback(1, 0)),
                ("<", publish("tele/tasmota_3FA2C1/LWT", b"Offline", retain=True)),
            ]
        )
        for player in (zigbee, home, late):
            player.wire.socket.close()


def test_node_red_gets_what_it_missed(motelog_stack: MotelogProcess) -> None:
    first = Player(motelog_stack.mqtt)
    first.play(NODE_RED)
    first.wire.socket.close()
    meter = Player(motelog_stack.mqtt)
    meter.play(
        [
            *MQTT_3_1[:2],
            (">", publish("plant/7/alarm", b"hot", qos=2, packet_id=9)),
            *MQTT_3_1[3:],
        ]
    )
    meter.wire.socket.close()
    again = Player(motelog_stack.mqtt)
    again.play([NODE_RED[0], ("<", RESUMED)])
    got = packet(*again.wire.packet())
    number = got[-5:-3]  # in front of "hot"; it goes on at a random place
    assert got == publish("plant/7/alarm", b"hot", qos=2, packet_id=int.from_bytes(number))
    again.play(
        [
            (">", b"\x50\x02" + number),
            ("<", b"\x62\x02" + number),
            (">", b"\x70\x02" + number),
        ]
    )
    again.wire.socket.close()
