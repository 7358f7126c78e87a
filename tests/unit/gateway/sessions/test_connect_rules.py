"""CONNECT: what is accepted, on which terms, and what is refused with which code."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from motelog.gateway.config import GatewayConfig
from motelog.gateway.mqtt.connect import decode_connack, encode_connect
from motelog.gateway.mqtt.packet_types import NO_PROPERTIES, Connack, Connect, Properties, Will
from motelog.gateway.sessions.connect_rules import Accepted, ConnectRules, Refused
from motelog.gateway.sessions.connection import PACKET_BYTES_LIMIT
from tests.support.mqtt import body_of
from tests.support.reasons import without_reason

CONFIG = GatewayConfig()
VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
SYSTEM_WILL = Will(topic="$SYS/x", payload=b"gone", qos=0, retain=False)


def connect(version: int, **asked: Any) -> Connect:
    return replace(
        Connect(version=version, clean_start=True, keep_alive_s=60, client_id="c"), **asked
    )


def decide(packet: Connect | str, config: GatewayConfig = CONFIG) -> Accepted | Refused:
    raw = bytes.fromhex(packet) if isinstance(packet, str) else encode_connect(packet)
    return ConnectRules(config).decide(raw[0], body_of(raw), new_client_id=lambda: "assigned")


def connack_of(terms: Accepted, config: GatewayConfig = CONFIG) -> bytes:
    return ConnectRules(config).connack(terms, session_present=False)


def plain(refused: Refused) -> bytes:
    """Return the CONNACK without the Reason String, which says why."""
    connack, reason = without_reason(refused.connack) if refused.connack else (b"", "")
    assert reason in ("", refused.why)
    return connack


def accepted(packet: Connect, config: GatewayConfig = CONFIG) -> tuple[Accepted, Connack]:
    decision = decide(packet, config)
    assert isinstance(decision, Accepted)
    connack = decode_connack(packet.version, body_of(connack_of(decision, config)))
    assert connack.reason_code == 0
    assert not connack.session_present
    return decision, connack


@VERSIONS
def test_plain_connect_is_accepted(version: int) -> None:
    terms, _ = accepted(connect(version, user_name="u"))
    assert (terms.version, terms.client_id, terms.user_name) == (version, "c", "u")
    assert (terms.keep_alive_s, terms.idle_s_max) == (60, 90)
    assert (terms.inflight_max, terms.packet_bytes_max) == (CONFIG.inflight_max, PACKET_BYTES_LIMIT)


def test_connack_tells_version_5_what_is_not_offered() -> None:
    _, connack = accepted(connect(5))
    granted = connack.properties
    assert (granted.maximum_qos, granted.retain_available) == (None, None)
    assert granted.shared_subscription_available is None
    assert granted.subscription_identifier_available is None
    assert granted.receive_maximum == CONFIG.receive_maximum
    assert granted.maximum_packet_bytes == CONFIG.packet_bytes_max
    assert granted.topic_alias_maximum == CONFIG.topic_alias_max
    assert granted.server_keep_alive_s is None
    assert granted.assigned_client_id is None
    assert granted.session_expiry_interval_s is None


@pytest.mark.parametrize(
    ("asked_s", "given_s", "idle_s"), [(1, 1, 2), (60, 60, 90), (101, 100, 150), (0, 100, 150)]
)
def test_keep_alive_of_version_5_is_bounded(asked_s: int, given_s: int, idle_s: int) -> None:
    packet = connect(5, keep_alive_s=asked_s)
    terms, connack = accepted(packet, GatewayConfig(keep_alive_max_s=100))
    assert (terms.keep_alive_s, terms.idle_s_max) == (given_s, idle_s)
    assert connack.properties.server_keep_alive_s == (given_s if given_s != asked_s else None)


@pytest.mark.parametrize(("asked_s", "idle_s"), [(0, 0), (1, 2), (101, 152), (65535, 98303)])
@pytest.mark.parametrize("version", [3, 4])
def test_keep_alive_that_cannot_be_changed_is_kept(version: int, asked_s: int, idle_s: int) -> None:
    terms, _ = accepted(connect(version, keep_alive_s=asked_s), GatewayConfig(keep_alive_max_s=100))
    assert (terms.keep_alive_s, terms.idle_s_max) == (asked_s, idle_s)


@pytest.mark.parametrize(("version", "code"), [(3, 3), (4, 3), (5, 0x97)])
def test_will_above_the_limit_is_refused(version: int, code: int) -> None:
    config = GatewayConfig(will_bytes_max=10)
    accepted(connect(version, will=Will("t/1", bytes(10), 1, False)), config)
    refused = decide(connect(version, will=Will("t/1", bytes(11), 1, False)), config)
    assert isinstance(refused, Refused)
    assert "will payload" in refused.why
    assert decode_connack(version, body_of(refused.connack)).reason_code == code


@pytest.mark.parametrize("version", [4, 5])
def test_client_without_an_identifier_is_given_one(version: int) -> None:
    terms, connack = accepted(connect(version, client_id=""))
    assert terms.client_id == "assigned"
    told = connack.properties.assigned_client_id
    assert told == ("assigned" if version == 5 else None)


@pytest.mark.parametrize(
    ("template", "client_id", "told"),
    [
        ("", "meter", None),
        ("replies", "meter", "replies"),
        ("reply/{client_id}/x", "meter", "reply/meter/x"),
        ("reply/{client_id}", "", "reply/assigned"),
        ("{client_id}/reply", "$SYS", None),
        ("reply/{client_id}", "$SYS", "reply/$SYS"),
        ("reply/{client_id}", "a/b", None),
        ("reply/{client_id}", "+", None),
        ("reply/{client_id}", "#", None),
    ],
)
def test_response_information_is_a_topic_name_of_the_client_s_own(
    template: str, client_id: str, told: str | None
) -> None:
    config = GatewayConfig(response_information=template)
    asks = Properties(request_response_information=1)
    _, connack = accepted(connect(5, client_id=client_id, properties=asks), config)
    assert connack.properties.response_information == told
    for properties in (NO_PROPERTIES, Properties(request_response_information=0)):
        _, connack = accepted(connect(5, client_id=client_id, properties=properties), config)
        assert connack.properties.response_information is None


@pytest.mark.parametrize(("asked", "given"), [(None, 64), (10, 10), (64, 64), (65535, 64)])
def test_window_is_the_smaller_of_the_client_s_and_ours(asked: int | None, given: int) -> None:
    terms, _ = accepted(connect(5, properties=Properties(receive_maximum=asked)))
    assert terms.inflight_max == given


def test_client_s_largest_packet_is_kept() -> None:
    terms, _ = accepted(connect(5, properties=Properties(maximum_packet_bytes=500)))
    assert terms.packet_bytes_max == 500


@pytest.mark.parametrize(
    ("asked", "shorter"), [({}, "2003009500"), ({"client_id": ""}, "2003009500")]
)
def test_client_that_does_not_take_its_connack_is_refused(
    asked: dict[str, Any], shorter: str
) -> None:
    connack_bytes = len(connack_of(accepted(connect(5, **asked))[0]))
    for packet_bytes_max, told in ((connack_bytes - 1, shorter), (5, shorter), (4, ""), (1, "")):
        properties = Properties(maximum_packet_bytes=packet_bytes_max)
        refused = decide(connect(5, properties=properties, **asked))
        assert isinstance(refused, Refused)
        assert (refused.reason_code, refused.connack.hex()) == (0x95, told)
    properties = Properties(maximum_packet_bytes=connack_bytes)
    terms, _ = accepted(connect(5, properties=properties, **asked))
    assert len(connack_of(terms)) == terms.packet_bytes_max


def test_refusal_is_not_sent_to_a_client_that_does_not_take_it() -> None:
    properties = Properties(maximum_packet_bytes=4, authentication_method="SCRAM")
    refused = decide(connect(5, properties=properties))
    assert isinstance(refused, Refused)
    assert (refused.reason_code, refused.connack) == (0x8C, b"")


@pytest.mark.parametrize(("asked_s", "given_s"), [(0, 0), (9, 9), (100, 100), (101, 100)])
@pytest.mark.parametrize("is_clean", [True, False])
def test_session_expiry_is_bounded(is_clean: bool, asked_s: int, given_s: int) -> None:
    properties = Properties(session_expiry_interval_s=asked_s)
    asked = connect(5, clean_start=is_clean, properties=properties)
    terms, connack = accepted(asked, GatewayConfig(session_expiry_max_s=100))
    assert (terms.clean_start, terms.expiry_s) == (is_clean, given_s)
    told_s = connack.properties.session_expiry_interval_s
    assert told_s == (given_s if given_s != asked_s else None)


@pytest.mark.parametrize(("is_clean", "given_s"), [(True, 0), (False, 100)])
@pytest.mark.parametrize("version", [3, 4])
def test_session_of_mqtt_3_lives_as_long_as_allowed(
    version: int, is_clean: bool, given_s: int
) -> None:
    packet = connect(version, clean_start=is_clean)
    terms, _ = accepted(packet, GatewayConfig(session_expiry_max_s=100))
    assert terms.expiry_s == given_s


@pytest.mark.parametrize(("version", "present"), [(3, False), (4, True), (5, True)])
def test_connack_says_that_there_is_a_session(version: int, present: bool) -> None:
    terms, _ = accepted(connect(version, clean_start=False))
    raw = ConnectRules(CONFIG).connack(terms, session_present=True)
    assert decode_connack(version, body_of(raw)).session_present is present  # 3.1 has no flag


@VERSIONS
def test_will_is_kept_as_the_session_stores_it(version: int) -> None:
    told = Properties(will_delay_interval_s=7, content_type="x") if version == 5 else NO_PROPERTIES
    will = Will(topic="t/1", payload=b"gone", qos=2, retain=False, properties=told)
    terms, _ = accepted(connect(version, will=will, user_name="u"))
    assert terms.will is not None
    assert (terms.will.topic, terms.will.payload, terms.will.qos) == ("t/1", b"gone", 2)
    assert (terms.will.retain, terms.will.user_name) == (False, "u")
    assert terms.will.delay_s == (7 if version == 5 else 0)
    assert (b"contentType" in terms.will.properties) is (version == 5)


@pytest.mark.parametrize(("asked", "given"), [(None, 0), (0, 0), (5, 5), (1000, 32)])
def test_topic_aliases_towards_the_client_are_bounded(asked: int | None, given: int) -> None:
    terms, _ = accepted(connect(5, properties=Properties(topic_alias_maximum=asked)))
    assert terms.topic_alias_max == given


@pytest.mark.parametrize(
    ("version", "asked", "reason_code", "connack"),
    [
        (4, {"will": SYSTEM_WILL}, 0x90, ""),
        (5, {"will": SYSTEM_WILL}, 0x90, "2003009000"),
        (3, {"client_id": "c" * 9}, 0x85, "20020002"),
        (4, {"client_id": "c" * 9}, 0x85, "20020002"),
        (5, {"client_id": "c" * 9}, 0x85, "2003008500"),
        (5, {"client_id": "ü" * 5}, 0x85, "2003008500"),  # bytes count
        (5, {"properties": Properties(authentication_method="SCRAM")}, 0x8C, "2003008c00"),
        (4, {"client_id": "a\x01"}, 0x85, "20020002"),
        (5, {"client_id": "a\x01"}, 0x85, "2003008500"),
    ],
)
def test_connect_that_cannot_be_served_is_refused(
    version: int, asked: dict[str, Any], reason_code: int, connack: str
) -> None:
    refused = decide(connect(version, **asked), GatewayConfig(client_id_bytes_max=8))
    assert isinstance(refused, Refused)
    assert (refused.reason_code, plain(refused).hex()) == (reason_code, connack)
    assert refused.why


@pytest.mark.parametrize(
    ("packet", "reason_code", "connack"),
    [
        ("100c 00044d5154540400003c0000", 0x85, "20020002"),  # 3.1.1, clean session 0, empty id
        ("100e 00064d5149736470030200 3c0000", 0x85, "20020002"),  # 3.1 with an empty client id
        ("100d 00044d5154540602003c000161", 0x84, "20020001"),  # protocol level 6
        ("100d 00044d5154548402003c000161", 0x84, "20020001"),  # 3.1.1 of a bridge
        ("100f 00064d51497364708302003c000161", 0x84, "20020001"),  # 3.1 of a bridge
        ("100d 00044d5154540202003c000161", 0x84, "20020001"),  # protocol level 2
        ("100d 00044d5154540403003c000161", 0x81, ""),  # reserved flag: 3.1.1 has no code for it
        ("100e 00044d5154540503003c00000161", 0x81, "2003008100"),
        ("110d 00044d5154540402003c000161", 0x81, ""),  # flags in the first byte
        ("1f0e 00044d5154540502003c00000161", 0x81, "2003008100"),
        ("c000", 0x82, ""),  # not a CONNECT: nobody knows the version
        ("8206 0001 0001 23 00", 0x82, ""),
        ("1000", 0x81, ""),
    ],
)
def test_first_packet_that_is_no_legal_connect_is_refused(
    packet: str, reason_code: int, connack: str
) -> None:
    refused = decide(packet)
    assert isinstance(refused, Refused)
    assert (refused.reason_code, plain(refused).hex()) == (reason_code, connack)


@pytest.mark.parametrize("first_byte", range(0x11, 0x20))
def test_flags_of_a_3_1_connect_are_not_used(first_byte: int) -> None:
    packet = f"{first_byte:02x}0f 00064d51497364700302003c000163"
    assert decide(packet) == decide(connect(3))


@VERSIONS
def test_limit_itself_is_accepted(version: int) -> None:
    terms, _ = accepted(connect(version, client_id="c" * 8), GatewayConfig(client_id_bytes_max=8))
    assert terms.client_id == "c" * 8
