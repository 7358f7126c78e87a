"""What logins and rights come to at a gateway: CONNECT, sessions of users, publishes, filters."""

from __future__ import annotations

import logging
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from motelog.core.message import MQTT_TOPIC, decode_properties
from motelog.core.net.codec import Certificate
from motelog.core.net.config import ListenerConfig
from motelog.core.net.reactor_types import CloseReason
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import (
    NO_PROPERTIES,
    Connect,
    Properties,
    Subscribe,
    SubscribeEntry,
    Will,
)
from motelog.gateway.mqtt.subscribe import encode_subscribe
from motelog.gateway.state.stored import EXPIRY_NEVER
from tests.support.access_files import access_of, write_passwords
from tests.support.gateway_fleet import Fleet
from tests.support.gateway_stage import Stage, publish

OPEN = '[[rule]]\nallow = ["publish", "subscribe", "retain"]\ntopics = ["#"]\n'
OWN = '[[rule]]\nallow = ["publish", "subscribe"]\ntopics = ["{user_name}/#"]\n'
MINUTE = Properties(session_expiry_interval_s=60)
GOODBYE = Will(topic="gone/c", payload=b"gone", qos=0, retain=False)


def connect(
    stage: Stage,
    number: int,
    user: str | None = None,
    password: bytes | None = None,
    *,
    client_id: str = "c",
    version: int = 5,
    clean_start: bool = False,
    properties: Properties = MINUTE,
    will: Will | None = None,
) -> int:
    """Send a CONNECT, with the right password of alice and bob; return CONNACK's code."""
    if password is None and user is not None:
        password = user[:1].encode()
    packet = Connect(
        version=version,
        clean_start=clean_start,
        keep_alive_s=60,
        client_id=client_id,
        will=will,
        user_name=user,
        password=password,
        properties=properties if version == 5 else NO_PROPERTIES,
    )
    stage.turn((number, encode_connect(packet)), opened=[number])
    if stage.access is not None:
        stage.check_passwords()
    connack = stage.output.sent[number].pop(0)
    assert connack[0] == 0x20
    return connack[3]


def subscribe(stage: Stage, number: int, *filters: str, qos: int = 1, **how: Any) -> list[int]:
    """Return SUBACK's codes."""
    entries = tuple(SubscribeEntry(topic_filter, qos, **how) for topic_filter in filters)
    connection = stage.connections[number]
    assert connection is not None
    version = connection.version
    stage.turn((number, encode_subscribe(version, Subscribe(7, entries))))
    [suback] = [packet for packet in stage.sent(number) if packet[0] == 0x90]
    return list(suback[-len(filters) :])


def names(stage: Stage) -> list[str]:
    return [decode_properties(message[12])[MQTT_TOPIC] for message in stage.stored()]


def filters_of(stage: Stage, client_id: str = "c") -> list[str]:
    stored = stage.sessions.describe(client_id)
    return [] if stored is None else [one.topic_filter for one in stored.filters]


# --- CONNECT ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "password", "codes"),
    [
        ("alice", b"a", (0, 0, 0)),
        ("alice", b"b", (4, 4, 0x86)),
        ("nobody", b"a", (4, 4, 0x86)),
        ("alice", b"", (4, 4, 0x86)),
        (None, None, (5, 5, 0x87)),
    ],
)
def test_connect_is_checked(
    tmp_path: Path, user: str | None, password: bytes | None, codes: tuple[int, ...]
) -> None:
    for version, code in zip((3, 4, 5), codes, strict=True):
        stage = Stage(access=access_of(tmp_path))
        assert connect(stage, 1, user, password, version=version, clean_start=True) == code
        assert (stage.metrics.sessions_now, stage.output.closed) == (
            (1, []) if code == 0 else (0, [1])
        )


def test_user_name_without_password_is_refused(tmp_path: Path) -> None:
    stage = Stage(access=access_of(tmp_path, allow_anonymous=True))
    packet = Connect(version=5, clean_start=True, keep_alive_s=60, client_id="c", user_name="alice")
    stage.turn((1, encode_connect(packet)), opened=[1])
    assert stage.sent(1)[0][3] == 0x86


def test_anonymous_is_let_in_where_that_is_allowed(tmp_path: Path) -> None:
    stage = Stage(access=access_of(tmp_path, allow_anonymous=True))
    assert connect(stage, 1) == 0
    assert connect(stage, 2, "alice", b"x", client_id="d") == 0x86
    assert stage.metrics.sample()["logins_anonymous_accepted"] == 1


def test_a_listener_has_the_logins_that_are_its_own(tmp_path: Path) -> None:
    config = access_of(tmp_path, allow_anonymous=True)
    config = msgspec.structs.replace(config, certificate_users=True)
    listeners = [
        ListenerConfig(name="anyone", address="127.0.0.1:1", logins=("anonymous",)),
        ListenerConfig(name="users", address="127.0.0.1:2", logins=("password", "scram")),
    ]
    stage = Stage(access=config, listeners=listeners)
    stage.output.listeners = {1: 1, 2: 1, 3: 2, 4: 2, 5: 2}
    stage.output.certificates[5] = Certificate("carol")
    assert connect(stage, 1, client_id="1") == 0
    assert connect(stage, 2, "alice", client_id="2") == 0x86
    assert connect(stage, 3, client_id="3") == 0x87
    assert connect(stage, 4, "alice", client_id="4") == 0
    assert connect(stage, 5, "bob", client_id="5") == 0
    assert stage.clients._table.by_client_id["5"].owner == "bob"  # and not the certificate's
    for number, user in enumerate((None, "alice"), 6):  # at the plain one any login goes
        assert connect(stage, number, user, client_id=str(number)) == 0


def test_what_comes_behind_a_connect_waits_for_the_login(tmp_path: Path) -> None:
    stage = Stage(access=access_of(tmp_path))
    for number, password in ((1, b"a"), (2, b"x")):
        packet = Connect(4, True, 60, f"c{number}", user_name="alice", password=password)
        stage.turn(
            (number, encode_connect(packet)), (number, publish("t", b"x", 1)), opened=[number]
        )
        stage.turn((number, publish("t", b"y", 2)))
        assert number in stage.output.paused
        assert stage.sent(number) == []
        assert stage.output.limits.get(number) is None  # as small a packet as before CONNECT
    assert names(stage) == []
    stage.check_passwords()
    assert [message[13] for message in stage.stored()] == [b"x", b"y"]
    assert stage.sent(1)[0][3] == 0
    assert [packet[3] for packet in stage.sent(2)] == [4]


def test_a_client_that_goes_while_its_login_waits_leaves_nothing(tmp_path: Path) -> None:
    stage = Stage(access=access_of(tmp_path))
    packet = Connect(4, True, 60, "c", user_name="alice", password=b"a", will=GOODBYE)
    stage.turn((1, encode_connect(packet)), opened=[1])
    stage.turn(closed=[(1, CloseReason.PEER)])
    stage.check_passwords()
    assert (stage.metrics.sessions_now, names(stage)) == (0, [])
    assert stage.metrics.connections_opened == stage.metrics.connections_closed == 1


def test_too_much_behind_a_connect_ends_it(tmp_path: Path) -> None:
    stage = Stage(access=access_of(tmp_path))
    packet = Connect(4, True, 60, "c", user_name="alice", password=b"a")
    big = publish("t", bytes(50_000))
    stage.turn((1, encode_connect(packet)), (1, big), (1, big), opened=[1])
    assert stage.output.closed == [1]
    stage.check_passwords()
    assert stage.metrics.sessions_now == 0


def test_without_the_section_nobody_is_told_apart() -> None:
    stage = Stage()
    assert connect(stage, 1, "whoever", b"x") == 0
    assert connect(stage, 2, "another", b"y") == 0  # the same client identifier
    assert stage.metrics.sessions_taken_over == 1


# --- whose a session is ----------------------------------------------------------------------

COMERS = {
    "alice": ("alice", b"a"),
    "bob": ("bob", b"b"),
    "anonymous": (None, None),
    "wrong": ("alice", b"x"),
}


@pytest.mark.parametrize("clean_start", [False, True])
@pytest.mark.parametrize(
    ("maker", "state", "comer"),
    list(product(("alice", "anonymous"), ("connected", "away", "expired"), COMERS)),
)
def test_identities_against_sessions(
    tmp_path: Path, maker: str, state: str, comer: str, clean_start: bool
) -> None:
    stage = Stage(access=access_of(tmp_path, OPEN, allow_anonymous=True))
    (tmp_path / "acl.toml").write_text(
        OPEN + '[[rule]]\nanonymous = true\nallow = ["publish", "subscribe"]\ntopics = ["#"]\n'
    )
    assert stage.access is not None
    stage.access.read()
    assert connect(stage, 1, *COMERS[maker], will=GOODBYE) == 0
    assert subscribe(stage, 1, "t") == [1]
    if state != "connected":
        stage.turn(closed=[(1, CloseReason.PEER)])
    if state == "expired":
        stage.clock.advance(61_000)
    before, wills = stage.log.end_offset, names(stage)
    code = connect(stage, 2, *COMERS[comer], clean_start=clean_start)
    if comer == "wrong":
        assert code == 0x86
    elif state == "expired" or comer == maker:
        assert code == 0
        is_kept = state != "expired" and not clean_start
        assert filters_of(stage) == (["t"] if is_kept else [])
        assert (stage.connections[1] is None, stage.connections[2] is None) == (True, False)
        return
    else:
        assert code == 0x87
        assert stage.metrics.sessions_not_owned == 1
    # Nothing of the session was touched.
    assert (stage.log.end_offset, names(stage)) == (before, wills)
    assert filters_of(stage) == ["t"]
    assert (stage.connections[1] is not None) == (state == "connected")
    assert stage.connections[2] is None
    if state == "away":
        assert connect(stage, 3, *COMERS[maker]) == 0
        assert filters_of(stage) == ["t"]


def test_session_that_began_before_logins_is_his_who_comes_first(tmp_path: Path) -> None:
    before = Stage()
    assert connect(before, 1, "alice", b"?") == 0
    subscribe(before, 1, "bob/#", "alice/#")
    before.turn(closed=[(1, CloseReason.PEER)])
    stage = Stage(log=before.log, access=access_of(tmp_path, OWN))
    assert connect(stage, 1, "bob") == 0
    assert filters_of(stage) == ["bob/#"]  # by his own rights
    stage.turn(closed=[(1, CloseReason.PEER)])
    assert connect(stage, 2, "alice") == 0x87


def test_owner_is_found_again_after_a_restart(tmp_path: Path) -> None:
    first = Stage(access=access_of(tmp_path))
    assert connect(first, 1, "alice") == 0
    again = Stage(log=first.log, access=access_of(tmp_path))
    assert connect(again, 1, "bob") == 0x87
    assert connect(again, 2, "alice") == 0


def test_another_gateway_hands_no_session_to_another_user(tmp_path: Path) -> None:
    fleet = two_gateways(tmp_path)
    login(fleet, "a", 1, "alice")
    assert fleet["a"].output.sent[1].pop(0)[3] == 0
    login(fleet, "b", 1, "bob")
    assert fleet["b"].output.sent[1].pop(0)[3] == 0x87
    assert fleet["a"].connections[1] is not None
    login(fleet, "b", 1, "alice")
    assert fleet["b"].output.sent[1].pop(0)[3] == 0
    assert fleet["a"].connections[1] is None


def test_session_that_the_log_does_not_have_is_not_taken_over_elsewhere(tmp_path: Path) -> None:
    fleet = two_gateways(tmp_path)
    login(fleet, "a", 1, "alice", properties=NO_PROPERTIES)
    login(fleet, "b", 1, "bob", properties=NO_PROPERTIES)
    for _ in range(3):
        fleet.tick()
    assert fleet["a"].connections[1] is not None
    login(fleet, "b", 2, "alice", client_id="d", properties=NO_PROPERTIES)
    login(fleet, "a", 2, "alice", client_id="d", properties=NO_PROPERTIES)
    assert fleet["b"].connections[2] is None


def two_gateways(folder: Path) -> Fleet:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.stages[name] = Stage(
            log=fleet.log, name=name, clock=fleet.clock, access=access_of(folder)
        )
    fleet.settle()
    return fleet


def login(fleet: Fleet, name: str, number: int, user: str, **how: Any) -> None:
    fleet.connect(name, number, user_name=user, password=user[:1].encode(), **how)
    fleet[name].check_passwords()
    fleet.settle()


# --- rights ----------------------------------------------------------------------------------

RULES = """
[[rule]]
allow = ["publish", "subscribe"]
topics = ["{user_name}/#"]

[[rule]]
allow = ["publish", "subscribe"]
topics = ["low/#"]
qos_max = 0
"""


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(access=access_of(tmp_path, RULES))


def change(stage: Stage, text: str) -> None:
    """Change the rules, as a file that was read again does."""
    assert stage.access is not None
    rules = stage.access._rules
    assert rules is not None
    Path(rules.path).write_text(text)
    recheck(stage)


def recheck(stage: Stage) -> None:
    assert stage.access is not None
    stage.access.read()
    stage.clients.access_changed()
    while stage.recheck():
        pass


def test_publish_is_checked_by_topic_name(stage: Stage) -> None:
    connect(stage, 1, "alice")
    for packet_id, topic in ((1, "alice/x"), (2, "bob/x"), (3, "alice/x"), (4, "bob/x")):
        stage.turn((1, publish(topic, b"", packet_id, version=5)))
    # 0x87 for each that is refused, also for the name that was asked for before
    assert [packet[4:5] for packet in stage.sent(1)] == [b"", b"\x87", b"", b"\x87"]
    assert names(stage) == ["alice/x", "alice/x"]
    assert stage.metrics.publishes_not_allowed == 2


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_without_a_right_by_version_and_qos(stage: Stage, qos: int) -> None:
    body = b"\0\5bob/x" + (b"\0\1" if qos else b"")
    for number, version in ((1, 3), (2, 4), (3, 5)):
        connect(stage, number, "alice", client_id=f"c{number}", version=version, clean_start=True)
        packet = body + (b"\0" if version == 5 else b"")
        stage.turn((number, bytes((0x30 | qos << 1, len(packet))) + packet))
    # MQTT 3 can refuse a publish by the end of the connection alone.
    assert stage.output.closed == ([1, 2] if qos else [])
    answers = [bytes((0x30 + 0x10 * qos, 3, 0, 1, 0x87))] if qos else []
    assert stage.sent(3) == answers
    assert names(stage) == []


def test_qos_of_publishes_and_subscriptions_is_bounded(stage: Stage) -> None:
    connect(stage, 1, "alice")
    stage.turn((1, publish("low/x", b"", 0, version=5)))
    stage.turn((1, publish("low/x", b"", 1, version=5)))
    assert [packet[4] for packet in stage.sent(1)] == [0x87]
    assert names(stage) == ["low/x"]
    assert subscribe(stage, 1, "low/#", "alice/#", qos=2) == [0, 2]


def test_alias_delayed_and_retained_publishes_are_checked(stage: Stage) -> None:
    connect(stage, 1, "alice")
    alias = b"\x03\x23\0\1"
    for name in (b"bob/x", b""):
        body = len(name).to_bytes(2, "big") + name + b"\0\1" + alias
        stage.turn((1, bytes((0x32, len(body))) + body))
    stage.turn((1, publish("$delayed/1/bob/x", b"", 2, version=5)))
    retained = bytearray(publish("alice/x", b"x", 3, version=5))
    retained[0] |= 1
    stage.turn((1, bytes(retained)))
    assert [packet[4] for packet in stage.sent(1)] == [0x87] * 4
    assert names(stage) == []


def test_subscriptions_are_checked_each_for_itself(stage: Stage) -> None:
    connect(stage, 1, "alice")
    filters = ("alice/#", "#", "+/x", "bob/x", "$share/g/alice/x", "$share/g/#", "$SYS/#", "$bob/#")
    codes = subscribe(stage, 1, *filters)
    assert codes == [1, 0x87, 0x87, 0x87, 1, 0x87, 0x87, 0x87]
    assert filters_of(stage) == ["alice/#", "$share/g/alice/x"]
    connect(stage, 2, "alice", client_id="d", version=4, clean_start=True)
    assert subscribe(stage, 2, "bob/x", "alice/x") == [0x80, 1]


def test_streams_are_checked(stage: Stage) -> None:
    connect(stage, 1, "alice")
    properties = Properties(user_properties=(("stream-offset", "earliest"),))
    entry = SubscribeEntry("$stream/bob/#", 1)
    stage.turn((1, encode_subscribe(5, Subscribe(7, (entry,), properties))))
    assert [packet[-1] for packet in stage.sent(1)] == [0x87]


def test_retained_messages_are_for_those_with_a_right(stage: Stage) -> None:
    change(stage, OPEN)
    connect(stage, 1, "bob", client_id="writer")
    retained = bytearray(publish("bob/x", b"kept", version=5))
    retained[0] |= 1
    stage.turn((1, bytes(retained)))
    change(stage, RULES)
    connect(stage, 2, "alice")
    assert subscribe(stage, 2, "bob/x", "#") == [0x87, 0x87]
    stage.turn()
    assert stage.sent(2) == []


def test_resume_asks_for_each_filter_again(stage: Stage) -> None:
    change(stage, OPEN)
    connect(stage, 1, "alice")
    subscribe(stage, 1, "alice/#", "bob/#", "$share/g/bob/#", "$share/g/alice/#")
    connect(stage, 2, "bob", client_id="writer")
    stage.turn((2, publish("bob/inflight", b"", 1, version=5)))
    stage.turn((2, publish("alice/inflight", b"", 2, version=5)))
    stage.turn(closed=[(1, CloseReason.PEER)])
    stage.turn((2, publish("bob/later", b"", 3, version=5)))
    stage.sent(1)
    change(stage, RULES)
    assert connect(stage, 1, "alice") == 0
    assert filters_of(stage) == ["alice/#", "$share/g/alice/#"]
    while stage.delivery.deliver(stage.clock.now_ms()):
        pass
    # What was in flight of a filter that is left comes again, and nothing else does.
    got = b"".join(stage.packets(1))
    assert b"alice/inflight" in got
    assert b"bob/" not in got


def test_will_needs_a_right_at_connect_and_when_it_fires(stage: Stage) -> None:
    for will in (
        Will(topic="bob/x", payload=b"", qos=0, retain=False),
        Will(topic="alice/x", payload=b"", qos=0, retain=True),
        Will(topic="low/x", payload=b"", qos=1, retain=False),
    ):
        assert connect(stage, 1, "alice", will=will) == 0x87
    will = Will(topic="alice/x", payload=b"", qos=1, retain=False)
    assert connect(stage, 2, "alice", will=will) == 0
    stage.turn(closed=[(2, CloseReason.PEER)])
    assert names(stage) == ["alice/x"]
    late = Will("alice/x", b"", 1, False, Properties(will_delay_interval_s=30))
    assert connect(stage, 3, "alice", will=late) == 0
    stage.turn(closed=[(3, CloseReason.PEER)])
    change(stage, "")
    stage.read_back(100)
    stage.clock.advance(31_000)
    stage.tick()
    assert names(stage) == ["alice/x"]
    assert stage.metrics.wills_not_allowed == 4


@pytest.mark.parametrize("has_logins", [True, False])
def test_connection_ends_when_its_certificate_does(stage: Stage, has_logins: bool) -> None:
    if not has_logins:
        stage = Stage()
    user = "alice" if has_logins else None
    now_s = stage.clock.now_ms() / 1000
    stage.output.certificates = {
        1: Certificate("a", expires_s=now_s + 60),
        2: Certificate("b", expires_s=now_s + 120),
        3: Certificate("c"),
    }
    for number in (1, 2, 3, 4):
        assert connect(stage, number, user, client_id=str(number)) == 0
    stage.clock.advance(59_000)
    stage.tick()
    assert not stage.output.closed
    stage.clock.advance(1000)
    stage.tick()
    assert stage.output.closed == [1]
    assert stage.sent(1) == [bytes((0xE0, 1, 0x87))]  # Not authorized
    # The number is another client's meanwhile, which has shown none.
    stage.turn(closed=[(1, CloseReason.LOCAL), (2, CloseReason.PEER)])
    stage.output.certificates.clear()
    assert connect(stage, 2, user, client_id="5") == 0
    stage.clock.advance(600_000)
    stage.tick()
    assert stage.output.closed == [1]


def test_rules_can_name_the_certificate_of_whoever_has_logged_in(stage: Stage) -> None:
    rule = '[[rule]]\nallow = ["publish", "subscribe"]\ntopics = ["line/{certificate_name}/#"]\n'
    change(stage, rule)
    stage.output.certificates = {1: Certificate("press-7"), 2: Certificate("a/b")}
    will = Will("line/press-7/gone", b"", 1, False, Properties(will_delay_interval_s=30))
    assert connect(stage, 1, "alice", client_id="1", will=will) == 0
    assert subscribe(stage, 1, "line/press-7/#", "line/press-8/#") == [1, 0x87]
    stage.turn((1, publish("line/press-7/x", b"", 1, version=5)))
    assert stage.sent(1)[0] == bytes((0x40, 2, 0, 1))
    # A name that is no level, and no certificate: the rule is none for them.
    for number in (2, 3):
        assert connect(stage, number, "alice", client_id=str(number)) == 0
        assert subscribe(stage, number, "line/a/b/#", "line//x") == [0x87, 0x87]
    stage.turn(closed=[(1, CloseReason.PEER)])
    stage.read_back(100)
    stage.clock.advance(31_000)
    stage.tick()
    assert names(stage) == ["line/press-7/x", "line/press-7/gone"]


def test_rights_follow_the_login_and_not_what_a_client_says(stage: Stage) -> None:
    change(stage, OPEN + '[[rule]]\nusers = ["bob"]\ndeny = ["publish"]\ntopics = ["x"]\n')
    connect(stage, 1, "bob", client_id="alice")
    stage.turn((1, publish("x", b"", 1, version=5)))
    assert stage.sent(1)[0][4] == 0x87


# --- changes ---------------------------------------------------------------------------------


def test_a_change_of_rules_ends_only_who_has_lost_something(stage: Stage) -> None:
    change(stage, OPEN)
    for number, user, topic_filter in ((1, "alice", "a/#"), (2, "bob", "a/#"), (3, "bob", "b")):
        connect(stage, number, user, client_id=f"c{number}")
        assert subscribe(stage, number, topic_filter) == [1]
        stage.turn((number, publish("b", b"", 1, version=5)))
        assert stage.sent(number)[0] == bytes((0x40, 2, 0, 1))
    change(
        stage, OPEN + '[[rule]]\nusers = ["bob"]\ndeny = ["publish", "subscribe"]\ntopics = ["a"]\n'
    )
    assert stage.output.closed == [2]
    assert stage.sent(2)[-1] == b"\xe0\x01\x87"
    change(stage, OPEN + '[[rule]]\nusers = ["bob"]\ndeny = ["publish"]\ntopics = ["b"]\n')
    assert stage.output.closed == [2]
    for number in (1, 3):
        stage.sent(number)
        stage.turn((number, publish("b", b"", 1, version=5)))
        [puback] = [packet for packet in stage.sent(number) if packet[0] == 0x40]
        assert puback[4:5] == (b"\x87" if number == 3 else b"")


def test_a_change_of_passwords_ends_only_who_could_not_log_in(stage: Stage, tmp_path: Path) -> None:
    for number, user in ((1, "alice"), (2, "bob")):
        connect(stage, number, user, client_id=user)
    write_passwords(tmp_path / "passwords", alice="a", bob="new")
    recheck(stage)
    assert stage.output.closed == [2]
    assert connect(stage, 3, "bob", client_id="bob") == 0x86
    assert connect(stage, 4, "bob", b"new", client_id="bob") == 0


def test_a_refused_publish_is_logged_with_user_and_topic(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    assert connect(stage, 1, "alice", client_id="dev42") == 0
    # Also where the topic is told by its alias alone.
    alias = b"\x23\x00\x03"
    stage.turn((1, publish("bob/x", b"", 1, version=5, block=alias)))
    stage.turn((1, publish("", b"", 2, version=5, block=alias)))
    lines = [one.getMessage() for one in caplog.records if "refuses a publish" in one.getMessage()]
    assert len(lines) == 2
    for line in lines:
        assert "client_id='dev42' qos=1 reason_code=0x87 user='alice' topic='bob/x' why=" in line


def test_lines_of_refused_publishes_are_limited(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    assert connect(stage, 1, "alice") == 0
    stage.turn(*((1, publish("bob/x", b"", 0, version=5)) for _ in range(1000)))
    assert stage.metrics.publishes_refused == 1000
    assert 0 < len([one for one in caplog.records if "refuses a publish" in one.getMessage()]) <= 20


# --- secrets ---------------------------------------------------------------------------------


def test_no_secret_is_told_anywhere(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = b"pl4nted-s3cret"
    token = b"eyJhbGciOiJub25lIn0.pl4nted-s3cret.x"
    for number, (user, password) in enumerate(
        [("alice", secret), ("nobody", secret), ("alice", token)] * 4, 1
    ):
        connect(stage, number, user, password, client_id=f"c{number}")
    packet = Connect(5, True, 60, "c", user_name="alice", password=secret)
    stage.clock.advance(120_000)
    stage.turn((14, encode_connect(packet)), opened=[14])
    texts = [caplog.text, *stage.reasons, repr(packet), repr(stage.metrics.sample())]
    accepted = stage.clients._admission._rules.decide(
        0x10, encode_connect(packet)[2:], new_client_id=str
    )
    texts += [repr(accepted), repr(stage.clients._parking._by_number[14].accepted)]
    assert stage.access is not None
    job = stage.access.logins._waiting[-1]
    texts += [repr(job.shown), repr(AccessConfig(password_file=str(tmp_path / "passwords")))]
    assert "why=the user name or password is wrong" in caplog.text
    assert not [text for text in texts if "s3cret" in text]


def test_session_that_never_expires_has_its_owner_too(stage: Stage) -> None:
    never = Properties(session_expiry_interval_s=EXPIRY_NEVER)
    assert connect(stage, 1, "alice", properties=never) == 0
    stored = stage.sessions.describe("c")
    assert stored is not None
    assert stored.owner == "alice"
