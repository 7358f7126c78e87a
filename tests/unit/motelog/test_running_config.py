"""Reading the configuration again: what is applied, what waits, and what a fault leaves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_type_hints

import pytest

from motelog.cli.log_options import Level, loaded_with_log
from motelog.config import MotelogConfig, load_with_origins
from motelog.core.broker.config import LIVE as BROKER_LIVE
from motelog.core.broker.config import BrokerConfig
from motelog.core.config import ConfigFaultsError, Loaded
from motelog.core.store.config import LIVE as STORE_LIVE
from motelog.core.store.config import StoreConfig
from motelog.gateway.config import LIVE as GATEWAY_LIVE
from motelog.gateway.config import GatewayConfig
from motelog.running_config import KeyRefusedError, RunningConfig

FILE = """\
roles = ["namesrv", "broker", "gateway"]
[broker.store]
directory = "/tmp/x"
"""


class Server:
    """A configuration file and what a server has been told of it."""

    def __init__(self, path: Path, text: str = FILE) -> None:
        self.path = path / "m.toml"
        self.write(text)
        self.running = RunningConfig(self.read(), self.read)
        self.told: list[MotelogConfig] = []
        self.running.configure.append(self.told.append)

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def read(self, runtime: Mapping[str, str] | None = None) -> Loaded[MotelogConfig]:
        return load_with_origins(self.path, runtime)

    def value(self, key: str) -> tuple[object, str]:
        (one,) = [one for one in self.running.settings() if one.key == key]
        return one.value, one.origin.rpartition(":")[2]


def test_live_keys_are_keys() -> None:
    for kind, live in (
        (GatewayConfig, GATEWAY_LIVE),
        (BrokerConfig, BROKER_LIVE),
        (StoreConfig, STORE_LIVE),
    ):
        assert set(live) <= set(get_type_hints(kind))


def test_each_key_is_applied_or_waits_for_a_restart(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.write(
        f"{FILE}retention_hours = 24\nflush = 'sync'\n[log]\nlevel = 'debug'\n"
        "[gateway]\nsubscriptions_max = 7\nworkers = 2\n[admin]\nlisten = '127.0.0.1:0'\n"
    )
    expected = {
        "broker.store.retention_hours": "applied",
        "broker.store.flush": "needs restart",
        "log.level": "applied",
        "gateway.subscriptions_max": "applied",
        "gateway.workers": "needs restart",
        "admin.listen": "not used",
    }
    assert {one.key: one.outcome for one in server.running.changes()} == expected
    assert server.told == []
    assert server.value("log.level") == ("info", "default")
    assert {one.key: one.outcome for one in server.running.reload()} == expected
    (told,) = server.told
    assert told.gateway.subscriptions_max == 7
    assert server.value("log.level") == ("debug", "7")
    assert server.value("broker.store.flush") == ("async", "default")
    left = {one.key for one in server.running.reload()}
    assert left == {key for key, outcome in expected.items() if outcome != "applied"}
    assert len(server.told) == 1


def test_a_fault_changes_nothing(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.write(f"{FILE}retention_hours = 24\n[gateway]\nsubscriptions_max = 0\n")
    for ask in (server.running.changes, server.running.reload):
        with pytest.raises(ConfigFaultsError, match=r"m\.toml:6: gateway\.subscriptions_max"):
            ask()
    assert server.told == []
    assert server.value("broker.store.retention_hours") == (72, "default")


def test_workers_take_their_keys_when_they_start(tmp_path: Path) -> None:
    text = f"{FILE}[gateway]\nworkers = 2\n"
    server = Server(tmp_path, text)
    server.write(f"{text}subscriptions_max = 7\n[log]\nlevel = 'debug'\n")
    assert {one.outcome for one in server.running.reload()} == {"needs restart"}
    assert server.told == []


def test_a_listener_that_is_added_needs_a_restart(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.write(f"{FILE}[[listener]]\nname = 'second'\naddress = '127.0.0.1:1884'\n")
    changes = {one.key: one for one in server.running.changes()}
    assert changes["listener[0].name"].after == "second"
    assert {one.outcome for one in changes.values()} == {"needs restart"}


def test_an_option_counts_more_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(f"{FILE}[log]\nlevel = 'error'\n")

    def read(runtime: Mapping[str, str] | None = None) -> Loaded[MotelogConfig]:
        return loaded_with_log(load_with_origins(path, runtime), Level.DEBUG, None)

    running = RunningConfig(read(), read)
    (level,) = [one for one in running.settings() if one.key == "log.level"]
    assert (level.value, level.origin) == ("debug", "option --log-level")
    path.write_text(FILE)
    assert running.changes() == []


def stored(tmp_path: Path) -> Server:
    """A server whose folder for messages may have a runtime store."""
    return Server(tmp_path, FILE.replace("/tmp/x", str(tmp_path / "data")))


KEY = "gateway.retained_count_max"


def test_a_key_is_set_applied_and_there_after_a_restart(tmp_path: Path) -> None:
    server = stored(tmp_path)
    [change] = server.running.set_key(KEY, "50")
    assert (change.key, change.after, change.outcome) == (KEY, 50, "applied")
    assert [told.gateway.retained_count_max for told in server.told] == [50]
    place = tmp_path / "data" / "config" / "runtime.json"
    assert server.value(KEY) == (50, f"runtime store {place}")
    [waits] = server.running.set_key("broker.store.commitlog_file_bytes", "64MiB")
    assert (waits.after, waits.outcome) == (64 << 20, "needs restart")
    again = RunningConfig(server.read(), server.read)
    assert {one.key for one in again.settings() if one.origin != "default"} == {
        "roles", "broker.store.directory", KEY, "broker.store.commitlog_file_bytes",
    }  # fmt: skip
    [back] = again.set_key(KEY, None)
    assert back.origin == "default"
    with pytest.raises(KeyRefusedError, match="not set at runtime"):
        again.set_key(KEY, None)
    server.running.set_key("log.level", "debug")
    assert load_with_origins(server.path).section.log.level == "debug"


def test_a_key_has_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = stored(tmp_path)
    server.running.set_key(KEY, "50")
    server.write(server.path.read_text() + "[gateway]\nretained_count_max = 7\n")
    with pytest.raises(KeyRefusedError, match=r"m\.toml:5: change it there"):
        server.running.set_key(KEY, "60")
    assert load_with_origins(server.path).section.gateway.retained_count_max == 7
    monkeypatch.setenv("MOTELOG__LOG__LEVEL", "warning")
    with pytest.raises(KeyRefusedError, match="MOTELOG__LOG__LEVEL"):
        server.running.set_key("log.level", "debug")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("gateway.retained_count", "did you mean gateway.retained_count_max"),
        ("admin.listen", "set in the file"),
        ("access.password_file", "set in the file"),
        ("roles", "set in the file"),
        ("broker.store.directory", "change it there"),
    ],
)
def test_keys_that_cannot_be_set_say_why(tmp_path: Path, key: str, why: str) -> None:
    server = stored(tmp_path)
    with pytest.raises(KeyRefusedError, match=why):
        server.running.set_key(key, "x")
    assert not (tmp_path / "data").exists()


def test_a_wrong_value_is_not_stored(tmp_path: Path) -> None:
    server = stored(tmp_path)
    with pytest.raises(ConfigFaultsError, match=r"gateway\.retained_count_max.*many"):
        server.running.set_key(KEY, "many")
    assert not (tmp_path / "data").exists()
    assert server.told == []


def test_a_process_without_a_broker_names_its_runtime_store(tmp_path: Path) -> None:
    text = 'roles = ["gateway"]\n[gateway]\nnamesrv = ["127.0.0.1:9876"]\n'
    server = Server(tmp_path, text)
    with pytest.raises(KeyRefusedError, match="runtime_file"):
        server.running.set_key(KEY, "50")
    server.write(f'{text}[admin]\nruntime_file = "{tmp_path / "set.json"}"\n')
    assert server.running.set_key(KEY, "50")
    (tmp_path / "set.json").write_text("{")
    (tmp_path / "set.json.bak").unlink()
    with pytest.raises(ConfigFaultsError, match=r"set\.json"):
        load_with_origins(server.path)
