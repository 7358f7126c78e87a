"""What Motelog writes is for its own user alone, whatever the umask and the mode of the folder."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from motelog.bridge.push.offsets import FileOffsets
from motelog.core.message import MessageQueue
from tests.support.cli import motelog_here, started_motelog


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Whatever this process and its children make has the mode that they ask for."""
    before = os.umask(0)
    yield
    os.umask(before)


def configuration(folder: Path, workers: int) -> Path:
    file = folder / "motelog.toml"
    file.write_text(
        f'[broker]\nlisten = "127.0.0.1:0"\n[broker.store]\ndirectory = "{folder}/store"\n'
        "commitlog_file_bytes = 4194304\n"
        f'[namesrv]\nlisten = "127.0.0.1:0"\n'
        f'[gateway]\nlisten = "127.0.0.1:0"\nworkers = {workers}\n'
        f'view_path = "{folder}/views/mqtt/view.db"\n'
        f'[access]\npassword_file = "{folder}/passwords"\nallow_anonymous = true\n'
        f'[admin]\nlisten = "127.0.0.1:0"\ntokens_file = "{folder}/tokens"\n'
        f'audit_file = "{folder}/audit"\n'
    )
    file.chmod(0o600)
    return file


def run(*arguments: str, environment: dict[str, str] | None = None) -> str:
    done = motelog_here(*arguments, environment=environment)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def lives(config: Path, times: int) -> Iterator[dict[str, Any]]:
    """Start a server again and again; yield each ready line."""
    for _ in range(times):
        with started_motelog("up", "--config", str(config), "--json") as process:
            assert process.stdout is not None
            ready: dict[str, Any] = {}
            for line in process.stdout:
                ready = json.loads(line)
                if ready["event"] == "ready":
                    break
            assert ready, process.communicate()
            yield ready
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def use(folder: Path, ready: dict[str, Any]) -> None:
    """Have a server write each kind of file that it knows."""
    host, port = ready["gateway"].split(":")
    mqtt, names = ["-h", host, "-p", port], ["--namesrv", ready["namesrv"]]
    run("sub", *mqtt, "-c", "-i", "dev42", "-t", "secret/#", "-E")
    run("pub", *mqtt, "-r", "-t", "secret/a", "-m", "retained")
    run("pub", *mqtt, "-q", "2", "-t", "$delayed/3600/secret/b", "-m", "delayed")
    run("topic", "create", "orders", *names)
    run("produce", "orders", "--key", "k", "-m", "native", *names)
    run("consume", "orders", "--group", "readers", "--until-end", *names)
    admin = ["--admin", ready["console"]]
    token = {"MOTELOG_TOKEN_FILE": str(folder / "token")}
    run("config", "set", "gateway.retained_count_max", "5000", *admin, environment=token)
    run("backup", "create", str(folder / "store"), str(folder / "backups" / "daily"))
    bundle = folder / "bundle.tar.gz"
    run(
        "support-bundle",
        "--out",
        str(bundle),
        "--config",
        str(folder / "motelog.toml"),
        *admin,
        environment=token,
    )


def readable_by_others(folder: Path) -> list[str]:
    """Return what a folder has that others may open, folders too."""
    found = []
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077:
                found.append(f"{path.relative_to(folder)} {path.stat().st_mode:o}")
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_that_is_written_can_be_read_by_others(
    tmp_path: Path, no_umask: None, workers: int
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o755)
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_text("p")
    passwords = str(folder / "passwords")
    run("user", "add", "alice", "--file", passwords, "--password-from", str(secret))
    token = folder / "token"
    token.touch(mode=0o600)
    made = run("token", "create", "ops", "--role", "admin", "--file", str(folder / "tokens"))
    token.write_text(made)
    store = folder / "store"
    store.mkdir()
    store.chmod(0o755)  # as another user had made it
    config = configuration(folder, workers)
    for life, ready in enumerate(lives(config, 2)):
        if life == 0:
            use(folder, ready)
            assert (folder / "views").is_dir()
        assert readable_by_others(folder) == ["store 40755"]
    names = {path.name for path in folder.rglob("*")}
    view = "view.db" if workers == 1 else "view-2.db"
    assert {view, "audit", "runtime.json", "00000000000000000000", "bundle.tar.gz"} <= names
    run("cert", "dev-ca", str(folder / "tls" / "certs"))
    run("backup", "restore", str(folder / "backups" / "daily"), str(folder / "again" / "store"))
    offsets = FileOffsets(folder / "offsets")
    for _ in range(2):
        offsets.save("group", {MessageQueue("orders", "broker-a", 0): 7})
    certificates = {"tls/certs/ca.pem 100644", "tls/certs/server.pem 100644"}  # no secrets
    assert set(readable_by_others(folder)) - certificates == {"store 40755"}


def test_views_of_earlier_releases_are_closed_to_others(tmp_path: Path, no_umask: None) -> None:
    from motelog.gateway.state.view import View

    path = tmp_path / "view.db"
    with ExitStack() as stack:
        before = View(str(path))
        before.open()
        stack.callback(before.close)
        for one in tmp_path.iterdir():
            one.chmod(0o644)
        again = View(str(path))
        again.open()
        stack.callback(again.close)
        assert readable_by_others(tmp_path) == []
        assert {one.name for one in tmp_path.iterdir()} >= {"view.db", "view.db-wal"}
