"""Logins: passwords, what is known again, queue and back-off."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from motelog.core.clock import ManualClock
from motelog.core.errors import ConfigError
from motelog.gateway.access.access import Access
from motelog.gateway.access.back_off import (
    FORGET_MS,
    FREE_OF_BOTH,
    FREE_OF_HOST,
    KEYS_MAX,
    WAIT_MS_MAX,
    BackOff,
)
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.access.login import Credentials, Denied, Identity
from motelog.gateway.access.logins import WAIT_MS_MAX as LOGIN_WAIT_MS_MAX
from motelog.gateway.access.logins import Logins
from motelog.gateway.access.password_file import (
    AccessFileError,
    changing,
    check_user_name,
    hash_password,
    parse_hash,
    read_users,
    write_users,
)
from motelog.gateway.metrics import GatewayMetrics
from tests.support.access_files import access_of, quick_hash, write_passwords


class Door:
    """The logins of a gateway, without the gateway."""

    def __init__(self, config: AccessConfig) -> None:
        self.clock = ManualClock(1_000_000)
        self.metrics = GatewayMetrics()
        self.access = Access(config, clock=self.clock, count_login=self.metrics.count_login)
        self.access.read()
        self.told: list[Identity | Denied] = []

    @property
    def logins(self) -> Logins:
        return self.access.logins

    def ask(
        self, user: str | None, password: bytes | None, host: str = "1.2.3.4"
    ) -> Identity | Denied | None:
        shown = Credentials("c", user, password, host=host)
        return self.logins.log_in(shown, self.told.append)

    def log_in(self, user: str, password: bytes, host: str = "1.2.3.4") -> Identity | Denied:
        found = self.ask(user, password, host)
        if found is None:
            job = self.logins.next()
            assert job is not None
            self.logins.done(job, job.slow.work())
            found = self.told.pop()
        return found


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(access_of(tmp_path))


def test_right_password_is_known_again_without_a_hash(door: Door) -> None:
    assert door.ask("alice", b"a") is None
    job = door.logins.next()
    assert job is not None
    door.logins.done(job, job.slow.work())
    assert isinstance(door.told.pop(), Identity)
    again = door.ask("alice", b"a")
    assert isinstance(again, Identity)
    assert (again.user_name, again.authenticator) == ("alice", "password")


@pytest.mark.parametrize(
    ("user", "password"), [("alice", b"b"), ("nobody", b"a"), ("alice", b"a "), ("Alice", b"a")]
)
def test_wrong_password_and_unknown_user_cost_one_hash_and_say_the_same(
    door: Door, user: str, password: bytes
) -> None:
    assert door.ask(user, password) is None
    assert door.logins.waiting_count == 1
    job = door.logins.next()
    assert job is not None
    door.logins.done(job, job.slow.work())
    assert door.told == [Denied("password", "wrong", "the user name or password is wrong")]
    assert door.metrics.sample()["logins_password_wrong"] == 1


@pytest.mark.parametrize("password", [b"", bytes(1025)])
def test_password_that_nobody_can_have_is_not_hashed(door: Door, password: bytes) -> None:
    assert isinstance(door.ask("alice", password), Denied)
    assert isinstance(door.ask("nobody", password), Denied)
    assert door.logins.waiting_count == 0


def test_what_was_right_ends_with_the_hash(door: Door, tmp_path: Path) -> None:
    identity = door.log_in("alice", b"a")
    assert isinstance(identity, Identity)
    assert door.logins.holds(identity)
    write_passwords(tmp_path / "passwords", alice="new", bob="b")
    door.access.read()
    assert not door.logins.holds(identity)
    assert isinstance(door.log_in("alice", b"a"), Denied)
    assert isinstance(door.log_in("alice", b"new"), Identity)


def test_a_change_while_a_hash_is_computed_counts(door: Door, tmp_path: Path) -> None:
    door.ask("alice", b"a")
    job = door.logins.next()
    assert job is not None
    is_right = job.slow.work()
    write_passwords(tmp_path / "passwords", bob="b")
    door.access.read()
    door.logins.done(job, is_right)
    assert isinstance(door.told[0], Denied)


def test_queue_is_bounded_and_so_is_the_wait(tmp_path: Path) -> None:
    door = Door(AccessConfig(password_file=access_of(tmp_path).password_file, logins_waiting_max=2))
    assert door.ask("alice", b"x") is None
    assert door.ask("bob", b"x") is None
    denied = door.ask("alice", b"a")
    assert isinstance(denied, Denied)
    assert (denied.outcome, denied.reason_code) == ("busy", 0x89)
    door.clock.advance(LOGIN_WAIT_MS_MAX)
    assert door.logins.next() is None
    assert [one.outcome for one in door.told if isinstance(one, Denied)] == ["busy", "busy"]


def test_failures_back_off_and_a_known_password_still_goes(door: Door) -> None:
    assert isinstance(door.log_in("alice", b"a"), Identity)
    for _ in range(FREE_OF_BOTH + 1):
        assert isinstance(door.log_in("alice", b"x"), Denied)
    denied = door.ask("alice", b"y")
    assert isinstance(denied, Denied)
    assert (denied.outcome, denied.reason_code) == ("backed_off", 0x9F)
    assert isinstance(door.ask("alice", b"a"), Identity)  # nobody locks a device out
    assert door.ask("alice", b"y", host="5.6.7.8") is None  # it is another address
    door.clock.advance(WAIT_MS_MAX)
    assert isinstance(door.log_in("alice", b"a", host="9.9.9.9"), Identity)
    assert door.ask("alice", b"y") is None


def test_back_off_grows_ends_and_is_bounded() -> None:
    back_off = BackOff()
    for _ in range(FREE_OF_BOTH):
        back_off.failed("h", "u", 0)
    assert back_off.wait_ms("h", "u", 0) == 0
    waits = []
    for _ in range(9):
        back_off.failed("h", "u", 0)
        waits.append(back_off.wait_ms("h", "u", 0))
    assert waits == [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000, 60000]
    assert back_off.wait_ms("h", "other", 0) == 0
    back_off.failed("h", "u", FORGET_MS)
    assert back_off.wait_ms("h", "u", FORGET_MS) == 0
    back_off.succeeded("h", "u")
    for number in range(FREE_OF_HOST):
        back_off.failed("h", f"u{number}", FORGET_MS)
    assert back_off.wait_ms("h", "any", FORGET_MS) > 0
    for number in range(KEYS_MAX):
        back_off.failed(f"h{number}", "", 0)
    assert len(back_off) == KEYS_MAX


def test_nobody_logs_in_while_a_file_is_wrong(door: Door) -> None:
    door.log_in("alice", b"a")
    door.logins.fault = "cannot read"
    for user, password in (("alice", b"a"), (None, None)):
        denied = door.ask(user, password)
        assert isinstance(denied, Denied)
        assert denied.reason_code == 0x89


async def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    config = access_of(tmp_path, "")
    door = Door(config)
    assert not await door.access.look()
    (tmp_path / "acl.toml").write_text("[[rule]]\nallow = ['publish']\ntopics = ['a']\n")
    assert await door.access.look()
    assert door.access.acl is not None
    assert len(door.access.acl.rules_of("alice")) == 1
    (tmp_path / "acl.toml").write_text("[[rule]\n")
    assert not await door.access.look()
    assert door.access.fault is not None
    assert len(door.access.acl.rules_of("alice")) == 1
    assert isinstance(door.ask("alice", b"a"), Denied)
    (tmp_path / "acl.toml").unlink()
    assert not await door.access.look()
    (tmp_path / "acl.toml").write_text("")
    assert await door.access.look()
    assert door.access.fault is None
    assert door.ask("alice", b"a") is None


def test_file_is_written_as_a_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_users(str(path), {"alice": quick_hash("a")})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    write_users(str(path), {"alice": quick_hash("a")})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640, "the server's user may be its group"
    assert read_users(str(path)) == {"alice": quick_hash("a")}
    assert list(tmp_path.iterdir()) == [path]
    with changing(str(path)) as users:
        users["bob"] = quick_hash("b")
    assert list(read_users(str(path))) == ["alice", "bob"]
    with pytest.raises(AccessFileError, match="cannot write"):
        write_users(str(tmp_path / "no" / "users"), {})


def test_hash_fits_its_password_alone() -> None:
    made = parse_hash(hash_password(b"secret"))
    assert made.fits(b"secret")
    assert not made.fits(b"Secret")
    assert hash_password(b"secret") != hash_password(b"secret")
    for wrong in (b"", bytes(1025)):
        with pytest.raises(ValueError, match="password"):
            hash_password(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "alice:secret",
        ":" + quick_hash("a"),
        "alice:$scrypt$ln=30,r=8,p=1$AAAA$" + "A" * 44,
        "alice:$scrypt$ln=19,r=1,p=1$AAAA$" + "A" * 44,
        "alice:$scrypt$ln=14,r=99,p=1$AAAA$" + "A" * 44,
        "alice:$scrypt$ln=1,r=1,p=1$AAAA$AAAA",
        f"alice:{quick_hash('a')}\nalice:{quick_hash('b')}",
        f"al\x07ice:{quick_hash('a')}",
    ],
)
def test_a_line_that_is_wrong_is_told_by_its_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "users"
    path.write_text(f"# users\n\n{line}\n")
    with pytest.raises(ConfigError, match=f"{path}:[34]: ") as caught:
        read_users(str(path))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a:b", "#a", " a", "a\n", "a" * 257])
def test_names_that_no_user_can_have(name: str) -> None:
    with pytest.raises(ValueError, match="user name"):
        check_user_name(name)


def test_name_in_a_certificate_is_the_user_whatever_else_is_shown() -> None:
    door = Door(AccessConfig(certificate_users=True))
    for name, is_in in (("dev42", True), ("a:b", False), ("", False), ("x\n", False)):
        shown = Credentials("c", "alice", b"x", certificate_name=name)
        found = door.logins.log_in(shown, door.told.append)
        assert isinstance(found, Identity) == is_in
        if isinstance(found, Identity):
            assert (found.user_name, found.authenticator) == (name, "certificate")
            assert door.logins.holds(found)
    assert isinstance(door.ask("alice", b"a"), Denied)
