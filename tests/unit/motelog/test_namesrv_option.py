"""``--namesrv`` of the commands, and where ``doctor`` finds the name server of a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from motelog.cli.advertised import own_namesrv
from motelog.cli.main import app
from motelog.cli.output import CliError
from motelog.cli.status import Status
from motelog.config import load_config


@pytest.mark.parametrize("command", [["topic", "list"], ["produce", "t", "-m", "1"], ["doctor"]])
@pytest.mark.parametrize("text", ["nowhere", "127.0.0.1:0", ";"])
def test_what_is_no_address_is_a_wrong_option(command: list[str], text: str) -> None:
    with pytest.raises(CliError, match=r"^--namesrv: .*HOST:PORT") as refused:
        app([*command, "--namesrv", text], prog_name="motelog", standalone_mode=False)
    assert refused.value.status is Status.USAGE


@pytest.mark.parametrize(
    ("lines", "address"),
    [
        ('listen = "0.0.0.0:9876"\ninsecure = "I know"', "127.0.0.1:9876"),
        ('listen = "[::1]:9877"', "[::1]:9877"),
        ('advertise = "names.example:9876"', "names.example:9876"),
        ('listen = "127.0.0.1:0"', None),
    ],
)
def test_name_server_of_a_configuration_is_where_clients_ask(
    tmp_path: Path, lines: str, address: str | None
) -> None:
    file = tmp_path / "motelog.toml"
    file.write_text(f'roles = ["namesrv"]\n[namesrv]\n{lines}\n')
    assert own_namesrv(load_config(file)) == address
