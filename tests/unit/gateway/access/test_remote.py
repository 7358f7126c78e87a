"""Logins that a service is asked about, keys of tokens at a URL, rules that come with a login."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from motelog.core.config import SectionFaultsError
from motelog.core.net.reactor_types import CloseReason
from motelog.gateway.access.access import Access
from motelog.gateway.access.acl import LOGIN_RULES_MAX, login_rules
from motelog.gateway.access.back_off import FREE_OF_BOTH
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.access.login import Credentials, Denied, Identity
from motelog.gateway.access.password_file import AccessFileError
from motelog.gateway.access.remote import ANSWER_BYTES_MAX
from motelog.gateway.access.tokens import KEPT_MS, MISSING_MS, Tokens
from motelog.gateway.mqtt.packet_types import Properties, ReasonCode, Will
from tests.support.gateway_stage import Stage, publish
from tests.support.http_service import HttpService, http_service
from tests.unit.gateway.access.test_gateway_access import connect, names, subscribe
from tests.unit.gateway.access.test_tokens import CLAIMS, EC, GOOD, NOW_S, RSA, ask, jwk, token

OWN = [{"allow": ["publish", "subscribe"], "topics": ["own/{user_name}/#"], "qos_max": 1}]


@pytest.fixture
def service() -> Iterator[HttpService]:
    with http_service() as running:
        yield running


# --- a service that is asked -----------------------------------------------------------------


def stage_of(service: HttpService, **what: Any) -> Stage:
    return closed_with(service, Stage(access=AccessConfig(http_url=service.url, **what)))


def closed_with(service: HttpService, stage: Stage) -> Stage:
    assert stage.access is not None
    service.ends.append(stage.access.close)
    return stage


def log_in(stage: Stage, shown: Credentials) -> Identity | Denied:
    assert stage.access is not None
    told: list[Identity | Denied] = []
    found = stage.access.logins.log_in(shown, told.append)
    if found is not None:
        return found
    stage.check_passwords()
    return told.pop()


def test_a_service_lets_in_and_is_told_what_a_client_shows(service: HttpService) -> None:
    service.answer = {"result": "allow", "user_name": "plant7", "expires_s": 1e12, "more": 1}
    stage = stage_of(service)
    found = log_in(stage, Credentials("c1", "u", b"p\xff", "CN", "192.0.2.7"))
    assert found == Identity("plant7", "http", expires_s=1e12)
    assert service.asked == [
        {
            "client_id": "c1",
            "user_name": "u",
            "password": None,
            "password_base64": "cP8=",
            "certificate_name": "CN",
            "host": "192.0.2.7",
        }
    ]
    assert stage.metrics.logins["http", "accepted"] == 1


def test_an_answer_is_known_for_a_while_and_for_this_client_alone(service: HttpService) -> None:
    service.answer = {"result": "allow"}
    stage = stage_of(service, http_known_s=60)
    shown = Credentials("c", "u", b"p")
    for _ in range(3):
        assert log_in(stage, shown) == Identity("u", "http")
    assert len(service.asked) == 1
    service.answer = {"result": "deny"}
    for other in (
        Credentials("c", "u", b"q"),
        Credentials("d", "u", b"p"),
        Credentials("c", "v", b"p"),
        Credentials("c", "u", b"p", "CN"),
        Credentials("c", "u", b"p", host="192.0.2.1"),
    ):
        assert isinstance(log_in(stage, other), Denied)
    stage.clock.advance(60_000)
    assert isinstance(log_in(stage, shown), Denied)
    assert len(service.asked) == 7


def test_a_known_answer_ends_with_the_login(service: HttpService) -> None:
    stage = stage_of(service)
    service.answer = {"result": "allow", "expires_s": stage.clock.now_ms() / 1000 + 5}
    shown = Credentials("c", "u", b"p")
    log_in(stage, shown)
    stage.clock.advance(5_000)
    log_in(stage, shown)
    assert len(service.asked) == 2


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (500, {"result": "allow"}),
        (204, b""),
        (302, {"result": "allow"}),
        (200, b"allow"),
        (200, b"[" * 5000),
        (200, {}),
        (200, {"result": "yes"}),
        (200, {"result": "allow", "user_name": 7}),
        (200, {"result": "allow", "user_name": "a\nb"}),
        (200, {"result": "allow", "expires_s": "tomorrow"}),
        (200, {"result": "allow", "rules": [{"allow": ["publish"]}]}),
        (200, {"result": "allow", "x": "x" * ANSWER_BYTES_MAX}),
    ],
    ids=lambda told: None if isinstance(told, int) else str(told)[:40],
)
def test_what_is_not_as_agreed_lets_nobody_in(
    service: HttpService, status: int, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "motelog")
    service.status, service.answer = status, answer
    service.headers = {"Location": service.url}
    stage = stage_of(service, http_rules=True)
    found = log_in(stage, Credentials("c", "u", b"secret"))
    assert isinstance(found, Denied)
    assert (found.outcome, found.reason_code) == ("busy", ReasonCode.SERVER_BUSY)
    assert len(service.asked) == 1
    assert "secret" not in caplog.text + found.why


def test_a_service_that_does_not_answer_lets_nobody_in(service: HttpService) -> None:
    service.goes_on.clear()
    found = log_in(stage_of(service, http_timeout_s=0.1), Credentials("c", "u", b"p"))
    assert isinstance(found, Denied)
    assert found.outcome == "busy"
    gone = closed_with(service, Stage(access=AccessConfig(http_url="http://127.0.0.1:1/")))
    found = log_in(gone, Credentials("c", "u", b"p"))
    assert isinstance(found, Denied)
    assert "ConnectError" in found.why


def test_wrong_logins_wait_longer_and_longer(service: HttpService) -> None:
    service.answer = {"result": "deny"}
    stage = stage_of(service)
    outcomes = []
    for _ in range(FREE_OF_BOTH + 3):
        found = log_in(stage, Credentials("c", "u", b"p", host="192.0.2.7"))
        assert isinstance(found, Denied)
        outcomes.append(found.outcome)
    assert outcomes[-1] == "backed_off"
    assert len(service.asked) < len(outcomes)


def test_nothing_shown_is_not_asked_about(service: HttpService) -> None:
    found = log_in(stage_of(service), Credentials("c"))
    assert isinstance(found, Denied)
    assert service.asked == []


# --- rules that come with a login ------------------------------------------------------------


def test_rules_of_an_answer_are_the_client_s(service: HttpService) -> None:
    service.answer = {"result": "allow", "rules": OWN}
    stage = stage_of(service, http_rules=True)
    assert connect(stage, 1, "alice") == 0
    service.answer = {"result": "allow"}
    assert connect(stage, 2, "bob", client_id="d") == 0
    stage.turn((1, publish("own/alice/x", b"", 1, version=5)))
    stage.turn((1, publish("own/bob/x", b"", 2, version=5)))
    stage.turn((2, publish("own/alice/x", b"", 1, version=5)))
    assert [packet[4:5] for packet in stage.sent(1)] == [b"", b"\x87"]
    assert [packet[4:5] for packet in stage.sent(2)] == [b"\x87"]
    assert names(stage) == ["own/alice/x"]
    assert subscribe(stage, 1, "own/alice/+", "own/#", qos=2) == [1, 0x87]


def test_a_will_granted_by_a_login_is_published_when_the_session_has_left(
    service: HttpService,
) -> None:
    service.answer = {"result": "allow", "rules": OWN}
    stage = stage_of(service, http_rules=True)
    elsewhere = Will("own/bob/x", b"", 1, False)
    assert connect(stage, 1, "alice", will=elsewhere) == 0x87
    late = Will("own/alice/x", b"", 1, False, Properties(will_delay_interval_s=30))
    assert connect(stage, 2, "alice", will=late) == 0
    stage.turn(closed=[(2, CloseReason.PEER)])
    stage.read_back(100)
    stage.clock.advance(31_000)
    stage.tick()
    assert names(stage) == ["own/alice/x"]


def test_rules_of_a_login_count_beside_the_file_s(service: HttpService, tmp_path: Path) -> None:
    acl = tmp_path / "acl.toml"
    acl.write_text(
        '[[rule]]\nallow = ["publish"]\ntopics = ["all"]\n'
        '[[rule]]\ndeny = ["publish"]\ntopics = ["own/+/no"]\n'
    )
    service.answer = {"result": "allow", "rules": OWN}
    stage = stage_of(service, http_rules=True, acl_file=str(acl))
    connect(stage, 1, "alice")
    for packet_id, topic in enumerate(("all", "own/alice/yes", "own/alice/no"), 1):
        stage.turn((1, publish(topic, b"", packet_id, version=5)))
    assert names(stage) == ["all", "own/alice/yes"]


def test_a_session_comes_back_with_the_rules_of_the_new_login(service: HttpService) -> None:
    service.answer = {"result": "allow", "rules": [{"allow": ["subscribe"], "topics": ["#"]}]}
    stage = stage_of(service, http_rules=True, http_known_s=0)
    connect(stage, 1, "alice")
    assert subscribe(stage, 1, "own/alice/+", "other/+") == [1, 1]
    stage.turn(closed=[(1, CloseReason.PEER)])
    stage.read_back(100)
    service.answer = {"result": "allow", "rules": OWN}
    assert connect(stage, 2, "alice") == 0
    assert list(stage.clients._table.by_client_id["c"].filters) == ["own/alice/+"]


@pytest.mark.parametrize(
    "told",
    [
        None,
        {},
        "publish",
        [7],
        [{"allow": ["publish"]}],
        [{"allow": ["fly"], "topics": ["a"]}],
        [{"allow": ["publish"], "topics": ["a/#/b"]}],
        [{"allow": ["publish"], "topics": ["{password}"]}],
        [{"allow": ["publish"], "topics": ["a"], "users": ["bob"]}],
        [{"allow": ["publish"], "topics": ["a"], "anonymous": True}],
        [{"allow": ["publish"], "topics": ["a"], "number": 3}],
        [{"allow": ["publish"], "topics": ["a"]}] * (LOGIN_RULES_MAX + 1),
    ],
    ids=lambda told: str(told)[:50],
)
def test_rules_that_cannot_be_read_are_refused(told: Any) -> None:
    with pytest.raises(ValueError, match="rules"):
        login_rules(told)


def test_rules_of_a_token(tmp_path: Path, service: HttpService) -> None:
    tokens, _ = tokens_at(service, jwt_rules_claim="acl")
    for told, found in (
        (OWN, login_rules(OWN)),
        ([], ()),
    ):
        identity = ask(tokens, token({**CLAIMS, "acl": told}))
        assert isinstance(identity, Identity)
        assert identity.rules == found
    identity = ask(tokens, GOOD)
    assert isinstance(identity, Identity)
    assert identity.rules == ()
    assert isinstance(ask(tokens, token({**CLAIMS, "acl": "all"})), Denied)
    without, _ = tokens_at(service)
    identity = ask(without, token({**CLAIMS, "acl": OWN}))
    assert isinstance(identity, Identity)
    assert identity.rules == ()


# --- keys at a URL ---------------------------------------------------------------------------


def tokens_at(service: HttpService, **what: Any) -> tuple[Tokens, Stage]:
    """Return the tokens of a gateway whose keys come from a URL, and the gateway."""
    service.answer = {"keys": [jwk(RSA, "one", alg="RS256")]}
    config = AccessConfig(jwt_keys_url=service.url, jwt_audience="motelog", **what)
    stage = closed_with(service, Stage(access=config))
    stage.clock.advance(NOW_S * 1000 - stage.clock.now_ms())
    assert stage.access is not None
    (tokens,) = stage.access.logins._chain.values()
    assert isinstance(tokens, Tokens)
    return tokens, stage


async def look(stage: Stage) -> bool:
    assert stage.access is not None
    return await stage.access.look()


async def test_keys_are_fetched_again_when_they_are_old(service: HttpService) -> None:
    tokens, stage = tokens_at(service, jwt_keys_s=100)
    await look(stage)
    assert isinstance(ask(tokens, GOOD), Identity)
    fetched = len(service.asked)
    stage.clock.advance(99_000)
    assert not await look(stage)
    assert len(service.asked) == fetched
    stage.clock.advance(1_000)
    assert not await look(stage)  # the same keys: nobody has to be looked at
    assert len(service.asked) == fetched + 1
    service.answer = {"keys": [jwk(EC, "two", alg="ES256")]}
    stage.clock.advance(100_000)
    assert await look(stage)
    found = ask(tokens, GOOD)
    assert isinstance(found, Denied)
    assert "no such key" in found.why


async def test_an_unknown_key_has_the_keys_fetched_soon_but_not_each_time(
    service: HttpService,
) -> None:
    tokens, stage = tokens_at(service)
    await look(stage)
    new = token(key=EC, algorithm="ES256")
    fetched = len(service.asked)
    for _ in range(3):
        assert isinstance(ask(tokens, new), Denied)
        await look(stage)
    assert len(service.asked) == fetched
    service.answer = {"keys": [jwk(RSA, "one", alg="RS256"), jwk(EC, "two", alg="ES256")]}
    stage.clock.advance(MISSING_MS)
    assert await look(stage)
    assert isinstance(ask(tokens, token({**CLAIMS, "exp": NOW_S + 600})), Identity)
    later = token({**CLAIMS, "exp": NOW_S + 600}, key=EC, algorithm="ES256")
    assert isinstance(ask(tokens, later), Identity)


async def test_the_keys_fetched_last_do_for_an_hour(
    service: HttpService, caplog: pytest.LogCaptureFixture
) -> None:
    service.url = service.url.replace("://", "://user:hunter2@")
    tokens, stage = tokens_at(service, jwt_keys_s=100)
    await look(stage)
    service.status = 503
    stage.clock.advance(KEPT_MS - 1)
    await look(stage)
    assert stage.access is not None
    assert stage.access.fault is None
    long = token({**CLAIMS, "exp": NOW_S + 2 * KEPT_MS // 1000})
    assert isinstance(ask(tokens, long), Identity)
    stage.clock.advance(100_000)
    await look(stage)
    assert stage.access.fault is not None
    assert "503" in stage.access.fault
    told = [stage.access.fault, *(r.getMessage() for r in caplog.records if "motelog" in r.name)]
    assert all("http://[removed]@127.0.0.1" in one for one in told)
    assert len(told) > 1
    service.status = 200
    await look(stage)
    assert stage.access.fault is None
    assert isinstance(ask(tokens, long), Identity)


def test_keys_that_cannot_be_fetched_end_the_start(service: HttpService) -> None:
    service.answer = b"{"
    config = AccessConfig(jwt_keys_url=service.url, jwt_audience="motelog")
    stage = Stage()
    access = Access(config, clock=stage.clock, count_login=stage.metrics.count_login)
    service.ends.append(access.close)
    with pytest.raises(AccessFileError, match="not a JSON object"):
        access.read()
    service.answer = json.dumps({"keys": []}).encode()
    with pytest.raises(AccessFileError, match="not a list"):
        access.read()


# --- the section -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "section",
    [
        {"http_url": "http://auth.example/x"},
        {"http_url": "ftp://127.0.0.1/x"},
        {"http_url": "auth.example"},
        {"http_url": "https:///x"},
        {"http_url": "https://[x/"},
        {"http_url": "https://auth.example/", "password_file": "p"},
        {"jwt_keys_url": "http://keys.example/", "jwt_audience": "a"},
        {"jwt_keys_url": "https://keys.example/"},
        {"jwt_keys_url": "https://keys.example/", "jwt_audience": "a", "jwt_keys_file": "k"},
    ],
    ids=lambda section: " ".join(f"{key}={value}" for key, value in section.items()),
)
def test_section_that_cannot_be_safe_is_refused(section: dict[str, Any]) -> None:
    with pytest.raises(SectionFaultsError):
        AccessConfig(**section)
