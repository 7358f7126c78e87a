"""A start that would fail again each time ends with status 78, in one process and with workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import motelog

#: What is added to a configuration that can be used, by section.
FAULTS = {
    "password file": {"access": 'password_file = "{missing}"'},
    "keys of tokens": {"access": 'jwt_keys_file = "{missing}"\njwt_audience = "a"'},
    "certificate": {
        "[listener]": 'name = "tls"\naddress = "127.0.0.1:0"\n'
        'tls_certificate = "{missing}"\ntls_key = "{missing}"'
    },
    "accounts": {"gateway": 'credentials_file = "{missing}"'},
    "authorities": {"gateway": 'tls_file = "{missing}"'},
    "folder of the view": {"gateway": 'view_path = "{file}/view.db"'},
    "folder of the store": {"broker.store": 'directory = "{file}/store"'},
    "files of the store": {"broker.store": 'directory = "{foreign}"'},
}


def configuration(folder: Path, workers: int, added: dict[str, str]) -> Path:
    sections = {
        "namesrv": 'listen = "127.0.0.1:0"',
        "broker": 'listen = "127.0.0.1:0"',
        "gateway": f'listen = "127.0.0.1:0"\nworkers = {workers}',
        "broker.store": "commitlog_file_bytes = 4194304",
    }
    if "directory" not in added.get("broker.store", ""):
        sections["broker.store"] += f'\ndirectory = "{folder}/store"'
    for name, text in added.items():
        sections[name] = f"{sections.get(name, '')}\n{text}"
    text = "\n".join(f"[{name}]\n{keys}\n" for name, keys in sections.items())
    paths = {"missing": folder / "missing", "file": folder / "file", "foreign": folder / "foreign"}
    (folder / "file").touch()
    (folder / "foreign" / "commitlog" / "notes.txt").mkdir(parents=True)
    file = folder / "motelog.toml"
    file.write_text('roles = ["namesrv", "broker", "gateway"]\n' + text.format_map(paths))
    return file


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_start_that_would_fail_again_ends_with_78(
    tmp_path: Path, fault: str, workers: int
) -> None:
    file = configuration(tmp_path, workers, FAULTS[fault])
    ended = motelog("up", "--config", str(file))
    assert ended.returncode == 78, ended.stderr
    assert "Traceback" not in ended.stderr
    assert str(tmp_path) in ended.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_an_address_that_may_come_up_later_is_worth_another_start(
    tmp_path: Path, workers: int
) -> None:
    listener = {"[listener]": 'name = "far"\naddress = "192.0.2.1:0"\ninsecure = "I know"'}
    file = configuration(tmp_path, workers, listener)
    ended = motelog("up", "--config", str(file))
    assert ended.returncode == 1
    assert "the listener far cannot be used" in ended.stderr
