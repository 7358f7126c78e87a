"""SCRAM-SHA-256: the exchange, its place in CONNECT, re-authentication, hostile messages."""

from __future__ import annotations

import base64
import logging
from pathlib import Path

import pytest

from motelog.core.net.config import ListenerConfig
from motelog.core.net.reactor_types import CloseReason
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.access.password_file import parse_hash, scram_hash
from motelog.gateway.access.scram import (
    ITERATIONS_MIN,
    METHOD,
    Exchange,
    ScramError,
    Verifier,
    make_verifier,
    parse_verifier,
)
from motelog.gateway.config import GatewayConfig
from motelog.gateway.mqtt.auth import Auth, decode_auth, encode_auth
from motelog.gateway.mqtt.connect import decode_connack, encode_connect
from motelog.gateway.mqtt.packet_types import Connect, Properties, ReasonCode
from tests.support.access_files import quick_hash
from tests.support.gateway_stage import Stage, publish
from tests.support.mqtt_wire import varint
from tests.support.scram_client import ScramClient
from tests.unit.gateway.access.test_gateway_access import connect, names

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = make_verifier(b"pencil", salt=SALT, iterations=4096)
QUICK = make_verifier(b"s", salt=SALT, iterations=ITERATIONS_MIN)


# --- the exchange ----------------------------------------------------------------------------


def test_example_of_rfc_7677() -> None:
    exchange = Exchange(
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        {"user": PENCIL}.__getitem__,
        nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    )
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert exchange.challenge == b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert (
        exchange.finish(b"c=biws,r=" + nonce + b",p=" + proof)
        == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )


def found(name: str) -> Verifier:
    return QUICK


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=ext,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,n=a=b,r=abc",
        b"n,,n=a=2c,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=" + b"a" * 257,
        b"n,,n=user,r=abc\xff",
        b"n,,n=user,r=abc,",
        b"n,,n=" + b"u" * 5000 + b",r=abc",
    ],
    ids=lambda told: told[:24].hex(),
)
def test_first_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        Exchange(message, found)


def test_user_names_are_unescaped() -> None:
    assert Exchange(b"y,a=a=2Cb,n=a=2Cb,r=x,e=more", found).user_name == "a,b"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),
        (b"c=biws", b"c=biw"),
        (b"r=", b"r=x"),
        (b",p=", b",p=A"),
        (b",p=", b",p="),
        (b"=,p=", b"=,q="),
    ],
    ids=str,
)
def test_last_message_that_does_not_fit_is_refused(old: bytes, new: bytes) -> None:
    exchange = Exchange(b"n,,n=user,r=abc", found)
    client = ScramClient("user", "s", "abc")
    good = client.answer(exchange.challenge)
    assert exchange.finish(good) == client.signature
    bad = good.replace(old, new, 1)
    if bad == good:
        bad = good[:-8]
    with pytest.raises(ScramError):
        exchange.finish(bad)


def test_a_wrong_proof_is_not_let_in() -> None:
    exchange = Exchange(b"n,,n=user,r=abc", found)
    assert exchange.finish(ScramClient("user", "S", "abc").answer(exchange.challenge)) is None


def test_verifier_is_read_back_and_fits_its_password_alone() -> None:
    told = scram_hash("päss wörd".encode())
    read = parse_hash(told)
    assert isinstance(read, Verifier)
    assert read.text == told
    # As every client prepares it: a no-break space is a space.
    assert read.fits("päss\u00a0wörd".encode())
    assert not read.fits(b"pass word")


@pytest.mark.parametrize(
    "text",
    [
        "$scram-sha-256$i=100$" + "$".join(QUICK.text.split("$")[3:]),
        "$scram-sha-256$i=9999999$" + "$".join(QUICK.text.split("$")[3:]),
        QUICK.text[:-12],
        "$scram-sha-1$i=4096$a$b$c",
        QUICK.text.replace("W22Z", "W2=Z"),
    ],
    ids=range(5),
)
def test_verifier_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"hash|base64|iterations|short"):
        parse_verifier(text)


# --- CONNECT ---------------------------------------------------------------------------------


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    path = tmp_path / "passwords"
    path.write_text(f"alice:{QUICK.text}\nbob:{quick_hash('b')}\ncarol:{QUICK.text}\n")
    return Stage(access=AccessConfig(password_file=str(path)))


def begin(stage: Stage, number: int, client: ScramClient, **more: Properties) -> bytes | None:
    """Send a CONNECT; return the challenge, None if there is none."""
    asked = Properties(authentication_method=METHOD, authentication_data=client.first)
    packet = Connect(5, True, 60, "c", properties=asked)
    stage.turn((number, encode_connect(packet)), opened=[number])
    sent = stage.output.sent[number][-1]
    if sent[0] != 0xF0:
        return None
    return auth_of(stage, number, 0x18)


def auth_of(stage: Stage, number: int, code: int) -> bytes:
    """Return the data of the AUTH that a client was sent."""
    packet = stage.output.sent[number].pop()
    auth = decode_auth(5, packet[0], packet[2:])
    assert (auth.reason_code, auth.method) == (code, METHOD)
    return auth.data


def answer(stage: Stage, number: int, data: bytes, code: int = 0x18, method: str = METHOD) -> None:
    stage.turn((number, encode_auth(Auth(code, method, data))))


def connack_of(stage: Stage, number: int) -> tuple[int, Properties]:
    packet = stage.output.sent[number].pop(0)
    assert packet[0] == 0x20
    told = decode_connack(5, packet[2:])
    return told.reason_code, told.properties


def log_in(stage: Stage, number: int, user: str, password: str) -> tuple[int, Properties]:
    client = ScramClient(user, password)
    challenge = begin(stage, number, client)
    if challenge is not None:
        answer(stage, number, client.answer(challenge))
    code, told = connack_of(stage, number)
    if code == 0:
        assert told.authentication_data == client.signature
    return code, told


def test_a_client_proves_that_it_knows_its_password(stage: Stage) -> None:
    code, told = log_in(stage, 1, "alice", "s")
    assert (code, told.authentication_method) == (0, METHOD)
    stage.turn((1, publish("a", b"x", 1, version=5)))
    assert names(stage) == ["a"]
    assert stage.metrics.logins["scram", "accepted"] == 1
    session = stage.clients._table.by_client_id["c"]
    assert session.owner == "alice"


def test_the_method_is_offered_after_a_change_of_limits_too(stage: Stage) -> None:
    stage.configure(GatewayConfig(will_bytes_max=9))
    assert log_in(stage, 1, "alice", "s")[0] == 0


@pytest.mark.parametrize(("user", "password"), [("alice", "x"), ("bob", "b"), ("nobody", "s")])
def test_wrong_passwords_and_other_users_look_alike(
    stage: Stage, user: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "motelog")
    assert log_in(stage, 1, user, password)[0] == ReasonCode.BAD_USER_NAME_OR_PASSWORD
    assert 1 in stage.output.closed
    assert stage.metrics.logins["scram", "wrong"] == 1
    first = begin(stage, 2, ScramClient(user, password, "x"))
    again = begin(stage, 3, ScramClient(user, password, "x"))
    assert first is not None
    assert again is not None
    assert first.split(b",")[1:] == again.split(b",")[1:]  # the same salt each time
    assert ",r=" not in caplog.text


def test_a_verifier_is_a_password_too(stage: Stage) -> None:
    assert connect(stage, 1, "alice", b"s") == 0
    assert connect(stage, 2, "alice", b"x", client_id="d") == 0x86


def test_failures_are_backed_off(stage: Stage) -> None:
    codes = [log_in(stage, number, "alice", "x")[0] for number in range(1, 7)]
    assert codes[0] == ReasonCode.BAD_USER_NAME_OR_PASSWORD
    assert codes[-1] == ReasonCode.CONNECTION_RATE_EXCEEDED


def test_a_change_of_the_password_ends_an_exchange(stage: Stage) -> None:
    client = ScramClient("alice", "s")
    challenge = begin(stage, 1, client)
    assert challenge is not None
    assert stage.access is not None
    path = Path(stage.access._files[0].content.path)
    path.write_text(f"alice:{scram_hash(b's')}\n")
    stage.access.read()
    answer(stage, 1, client.answer(challenge))
    assert connack_of(stage, 1)[0] == ReasonCode.BAD_USER_NAME_OR_PASSWORD


@pytest.mark.parametrize(
    ("code", "method"), [(0x18, "SCRAM-SHA-1"), (0x19, METHOD), (0x00, METHOD)]
)
def test_auth_that_does_not_go_on_is_refused(stage: Stage, code: int, method: str) -> None:
    client = ScramClient("alice", "s")
    challenge = begin(stage, 1, client)
    assert challenge is not None
    answer(stage, 1, client.answer(challenge), code, method)
    assert connack_of(stage, 1)[0] == ReasonCode.PROTOCOL_ERROR
    assert 1 in stage.output.closed


def test_other_packets_in_an_exchange_end_it(stage: Stage) -> None:
    begin(stage, 1, ScramClient("alice", "s"))
    stage.turn((1, publish("a", b"x", 1, version=5)))
    assert connack_of(stage, 1)[0] == ReasonCode.PROTOCOL_ERROR
    begin(stage, 2, ScramClient("alice", "s"))
    stage.turn((2, b"\xe0\x00"))
    assert 2 in stage.output.closed
    begin(stage, 3, ScramClient("alice", "s"))
    stage.turn(closed=[(3, CloseReason.PEER)])
    begin(stage, 4, ScramClient("alice", "s"))
    stage.turn((4, b"\xf0" + varint(1) + b"\x77"))
    assert connack_of(stage, 4)[0] == ReasonCode.PROTOCOL_ERROR
    assert stage.clients._proofs is not None
    assert stage.clients._proofs._proving == {}
    assert names(stage) == []


def test_the_method_is_not_offered_without_passwords(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("")
    stage = Stage(access=AccessConfig(acl_file=str(acl), allow_anonymous=True))
    assert begin(stage, 1, ScramClient("alice", "s")) is None
    assert connack_of(stage, 1)[0] == ReasonCode.BAD_AUTHENTICATION_METHOD


def test_listener_without_the_login_does_not_offer_the_method(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"alice:{QUICK.text}\n")
    listeners = [
        ListenerConfig(name="one", address="127.0.0.1:1", logins=("password",)),
        ListenerConfig(name="two", address="127.0.0.1:2", logins=("scram",)),
    ]
    stage = Stage(access=AccessConfig(password_file=str(path)), listeners=listeners)
    stage.output.listeners = {1: 1, 2: 1, 3: 2, 4: 2}
    assert log_in(stage, 1, "alice", "s")[0] == ReasonCode.BAD_AUTHENTICATION_METHOD
    assert stage.metrics.logins["scram", "refused"] == 1
    assert connect(stage, 2, "alice", b"s", client_id="two") == 0
    assert log_in(stage, 3, "alice", "s")[0] == 0
    assert connect(stage, 4, "alice", b"s", client_id="four") == 0x86
    client = ScramClient("alice", "s")
    answer(stage, 3, client.answer(begin_again(stage, client, 3)))
    assert auth_of(stage, 3, 0) == client.signature


# --- re-authentication -----------------------------------------------------------------------


def begin_again(stage: Stage, client: ScramClient, number: int = 1) -> bytes:
    answer(stage, number, client.first, 0x19)
    return auth_of(stage, number, 0x18)


def test_a_connected_client_proves_itself_again(stage: Stage) -> None:
    log_in(stage, 1, "alice", "s")
    client = ScramClient("alice", "s", "again")
    challenge = begin_again(stage, client)
    stage.turn((1, publish("a", b"x", 1, version=5)))  # it goes on meanwhile
    assert names(stage) == ["a"]
    stage.output.sent[1].clear()
    answer(stage, 1, client.answer(challenge))
    assert auth_of(stage, 1, 0x00) == client.signature
    assert stage.metrics.logins["scram", "accepted"] == 2


@pytest.mark.parametrize(("user", "password"), [("alice", "x"), ("carol", "s")])
def test_who_fails_to_prove_itself_again_is_disconnected(
    stage: Stage, user: str, password: str
) -> None:
    log_in(stage, 1, "alice", "s")
    client = ScramClient(user, password, "again")
    answer(stage, 1, client.answer(begin_again(stage, client)))
    assert stage.output.sent[1].pop()[:3:2] == b"\xe0\x87"
    assert 1 in stage.output.closed


@pytest.mark.parametrize("code", [0x00, 0x18, 0x19])
def test_auth_out_of_place_is_a_protocol_error(stage: Stage, code: int) -> None:
    log_in(stage, 1, "alice", "s")
    answer(stage, 1, b"", code, METHOD if code != 0x19 else "SCRAM-SHA-1")
    assert stage.output.sent[1].pop()[:3:2] == b"\xe0\x82"
    connect(stage, 2, "bob", b"b", client_id="d")
    answer(stage, 2, ScramClient("bob", "b").first, 0x19)
    assert stage.output.sent[2].pop()[:3:2] == b"\xe0\x82"
