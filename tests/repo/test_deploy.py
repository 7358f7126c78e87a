"""What is deployed: the systemd unit, the container's recipe and its configuration."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from motelog.cli.main import COMMANDS
from motelog.config import MotelogConfig
from motelog.core.config import load_with_origins
from motelog.core.errors import ConfigError
from tests.support.repository import ROOT

DEPLOY = ROOT / "deploy"


def unit() -> dict[str, list[str]]:
    """Return the unit's settings; some come several times."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "motelog.service").read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NoNewPrivileges", "true"),
        ("CapabilityBoundingSet", ""),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "true"),
        ("PrivateTmp", "true"),
        ("PrivateDevices", "true"),
        ("ProtectKernelTunables", "true"),
        ("ProtectControlGroups", "true"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
        ("MemoryDenyWriteExecute", "true"),
        ("SystemCallArchitectures", "native"),
        ("UMask", "0077"),
        ("User", "motelog"),
        ("StateDirectoryMode", "0700"),
    ],
)
def test_the_unit_is_hardened(name: str, value: str) -> None:
    assert unit()[name] == [value]


def test_the_unit_has_descriptors_and_time_to_stop() -> None:
    found = unit()
    assert int(found["LimitNOFILE"][0]) >= 1_000_000
    assert int(found["TimeoutStopSec"][0]) >= 30
    assert found["RestartPreventExitStatus"] == ["78"]
    assert found["Restart"] == ["on-failure"]


def test_the_unit_s_commands_are_there() -> None:
    found = unit()
    assert "ExecStartPre" not in found, "its exit status does not keep systemd from starting again"
    commands = [found[name][0] for name in ("ExecStart", "ExecReload")]
    for command in commands:
        program, name, *_ = shlex.split(command)
        assert program == "/opt/motelog/bin/motelog"
        assert name in COMMANDS


def instructions() -> list[tuple[str, str]]:
    """Return the recipe's instructions, continued lines joined."""
    text = (DEPLOY / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def test_the_image_s_bases_are_named_with_a_version() -> None:
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert len(bases) == 2
    for base in bases:
        name, _, tag = base.rpartition(":")
        assert "/" in name, "the registry is named"
        assert re.match(r"\d+\.\d+", tag), base


def test_the_image_runs_as_nobody_in_particular() -> None:
    last = [index for index, (word, _) in enumerate(instructions()) if word == "FROM"][-1]
    users = [rest for word, rest in instructions()[last:] if word == "USER"]
    assert users
    assert all(user.isdigit() and int(user) > 0 for user in users), "a number, for runAsNonRoot"


def test_the_recipe_has_none_of_the_usual_faults() -> None:
    found = instructions()
    words = [word for word, _ in found]
    assert "ADD" not in words, "COPY says what it does"
    assert words.count("ENTRYPOINT") == words.count("CMD") == words.count("HEALTHCHECK") == 1
    for word, rest in found:
        if word in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list), "no shell between: it would keep the signals"
        if word == "RUN":
            assert "sudo" not in rest
            assert not re.search(r"(?:curl|wget)[^|]*\|", rest)
            if "apt-get install" in rest:
                assert "--no-install-recommends" in rest
                assert rest.startswith("apt-get update")
                assert "rm -rf /var/lib/apt/lists" in rest
            if "pip install" in rest:
                assert "--no-cache-dir" in rest
        if word in ("ENV", "ARG"):
            assert not re.search(r"(?i)password|secret|token|key", rest)
        if word == "COPY" and "--from" not in rest:
            source, _ = rest.split()
            assert (ROOT / source).exists(), source
        if word == "EXPOSE":
            assert rest.split() == ["8883"], "what is reached from elsewhere has TLS"


def test_the_image_does_not_get_the_checkout_s_history_and_builds() -> None:
    ignored = (ROOT / ".containerignore").read_text().split()
    assert {".git", ".venv", "build", "tests", "**/*.so"} <= set(ignored)


def test_the_image_s_configuration_is_accepted() -> None:
    text = (DEPLOY / "container.toml").read_text()
    try:
        config = load_with_origins(MotelogConfig, text, {}, name="container.toml").section
    except ConfigError as exc:
        pytest.fail(str(exc))
    assert config.broker is not None
    assert config.broker.store.directory.startswith("/var/lib/motelog/")
    (listener,) = config.listener
    assert listener.is_reached_from_afar
    assert listener.tls_client_ca
