"""The guides of docs/operations: what they print runs, and what they tell to deploy is sound."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cryptography import x509

from motelog.core.net.listen import open_listener
from tests.support.cli import motelog_here
from tests.support.repository import ROOT

GUIDES = ROOT / "docs" / "operations"


def blocks(guide: str, language: str = "sh") -> list[str]:
    text = (GUIDES / guide).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def free_port() -> int:
    with open_listener("127.0.0.1:0") as sock:
        return int(sock.getsockname()[1])


def test_tls_in_ten_minutes_runs_as_it_is_printed(tmp_path: Path) -> None:
    made, configured, started, published, refused = blocks("tls.md")
    ports = {name: free_port() for name in ("8883", "NAMESRV", "BROKER", "GATEWAY", "ADMIN")}
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "MOTELOG__BROKER__STORE__COMMITLOG_FILE_BYTES": "1MiB",
        **{
            f"MOTELOG__{name}__LISTEN": f"127.0.0.1:{port}"
            for name, port in ports.items()
            if name != "8883"
        },
    }

    def run(script: str) -> str:
        script = script.replace("8883", str(ports["8883"]))
        script = script.replace(
            "--until-end", f"--until-end --namesrv 127.0.0.1:{ports['NAMESRV']}"
        )
        result = subprocess.run(
            ["sh", "-ec", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert "dev42.key" in run(made)
    assert "valid" in run(configured)
    command = started.strip().removesuffix("&").split()
    server = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "Motelog is ready.\n"
        assert run(published).rstrip().endswith("21.5")
        assert run(refused) == "refused\n"
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)


def test_certificates_of_the_development_authority(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    result = motelog_here("cert", "dev-ca", str(folder), "--host", "broker.local", "--client", "a")
    assert result.returncode == 0, result.stderr
    tables = result.stdout.partition("For the configuration:")[2]
    assert tomllib.loads(tables)["listener"][0]["tls_key"] == str(folder / "server.key")
    authority = (folder / "ca.pem").read_bytes()
    assert motelog_here("cert", "dev-ca", str(folder), "--client", "b").returncode == 0
    assert (folder / "ca.pem").read_bytes() == authority
    issuer = x509.load_pem_x509_certificate(authority)
    for name in ("server", "a", "b"):
        made = x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())
        made.verify_directly_issued_by(issuer)
        assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert stat.S_IMODE((folder / f"{name}.key").stat().st_mode) == 0o600
    for wrong in (["--client", "../x"], ["--client", "ca"], ["--host", "ä"]):
        assert motelog_here("cert", "dev-ca", str(folder), *wrong).returncode == 2
    (folder / "ca.key").write_bytes((folder / "a.key").read_bytes())
    other = motelog_here("cert", "dev-ca", str(folder))
    assert (other.returncode, "is not the key of" in other.stderr) == (1, True)


@pytest.mark.parametrize("guide", sorted(path.name for path in GUIDES.glob("*.md")))
def test_a_guide_s_configurations_are_accepted(guide: str, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(guide, "toml")):
        if "<" in block or "#:schema" in block:
            continue
        text = re.sub(r'"/[\w/.-]*/([\w.-]+)"', rf'"{tmp_path}/\1"', block)
        if "directory" not in text:
            text += f'\n[broker.store]\ndirectory = "{tmp_path}"\n'
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        result = motelog_here("config", "check", str(path))
        assert result.returncode == 0, f"{guide}:\n{block}\n{result.stderr}"
