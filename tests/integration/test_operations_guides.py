"""The guides of docs/operations: what they print runs, and what they tell to deploy is sound."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeVar
from urllib.request import urlopen

import paho.mqtt.client as paho
import pytest
import trio
from cryptography import x509
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.certificates import certificates
from tests.support.cli import motelog_here
from tests.support.java import VERSION_5, ApacheServer
from tests.support.listeners import ListenerServer
from tests.support.ports import free_port, free_ports
from tests.support.repository import ROOT

GUIDES = ROOT / "docs" / "operations"
DEADLINE_S: Final = 20.0
T = TypeVar("T")


def blocks(guide: str, language: str = "sh") -> list[str]:
    text = (GUIDES / guide).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def haproxy(folder: Path, ports: dict[str, int]) -> list[str]:
    """Write the guide's configuration and what a test needs; return the command."""
    files = certificates()
    both = folder / "both.pem"
    both.write_text(Path(files.server).read_text() + Path(files.server_key).read_text())
    (text,) = (block for block in blocks("balancers.md", "text") if "frontend" in block)
    text = text.replace("bind :8883", f"bind 127.0.0.1:{ports['outside']}")
    text = text.replace("/etc/haproxy/mqtt.pem", str(both))
    text = text.replace(":1884", f":{ports['balanced']}").replace("8080", str(ports["console"]))
    configuration = folder / "haproxy.cfg"
    checks = "    log stdout format raw local0 debug\n    option log-health-checks\n"
    configuration.write_text(text.replace("mode tcp\n", f"mode tcp\n{checks}", 1))
    return ["-db", "-f", str(configuration)]


def nginx(folder: Path, ports: dict[str, int]) -> list[str]:
    files = certificates()
    (text,) = (block for block in blocks("balancers.md", "text") if "stream {" in block)
    text = text.replace("listen 8883", f"listen 127.0.0.1:{ports['outside']}")
    text = text.replace("/etc/nginx/mqtt.pem", files.server)
    text = text.replace("/etc/nginx/mqtt.key", files.server_key)
    text = text.replace(":1884", f":{ports['balanced']}")
    modules = Path("/usr/lib/nginx/modules").glob("ngx_stream_module.so")  # Debian's is apart
    first = [f"load_module {module};" for module in modules]
    first += ["daemon off;", f"pid {folder}/pid;", "error_log stderr;", "events {}"]
    configuration = folder / "nginx.conf"
    configuration.write_text("\n".join([*first, text]))
    return ["-c", str(configuration), "-p", str(folder)]


@pytest.mark.parametrize("configure", [haproxy, nginx], ids=lambda made: made.__name__)
def test_devices_reach_the_gateway_through_a_balancer(
    configure: Callable[[Path, dict[str, int]], list[str]], tmp_path: Path
) -> None:
    program = shutil.which(configure.__name__, path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip(f"{configure.__name__} is not installed")
    (table, *_) = blocks("balancers.md", "toml")
    with ListenerServer(tmp_path, table.replace(":1884", ":0")) as server:
        console = server.ready["console"]
        ports = {
            "outside": free_port(),
            "balanced": server.port("balanced"),
            "console": int(console.rpartition(":")[2]),
        }
        said = tmp_path / "said"
        with said.open("w") as output:
            balancer = subprocess.Popen(
                [program, *configure(tmp_path, ports)], stdout=output, stderr=subprocess.STDOUT
            )
        try:
            client = wait_for(lambda: connected(ports["outside"]), said)
            if configure is haproxy:
                # The server is ready by the answer that the check had.
                wait_for(lambda: "check passed, code: 200" in said.read_text(), said)
            with urlopen(f"http://{console}/api/v1/clients", timeout=DEADLINE_S) as answer:
                (found,) = json.load(answer)["clients"]
            sock = client.socket()
            assert isinstance(sock, ssl.SSLSocket)
            address, port = sock.getsockname()
            assert found["peer"] == f"{address}:{port}"
            published = client.publish("a", b"x", qos=1)
            while not published.is_published():
                assert client.loop(DEADLINE_S) is paho.MQTT_ERR_SUCCESS
            client.disconnect()
        finally:
            balancer.terminate()
            balancer.wait(DEADLINE_S)


def connected(port: int) -> paho.Client | None:
    """Return a device that a balancer has let in, None while it is not there."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "device")
    client.tls_set(certificates().ca)
    try:
        client.connect("127.0.0.1", port)
        while not client.is_connected():
            if client.loop(1.0) is not paho.MQTT_ERR_SUCCESS:
                return None
    except OSError:
        return None
    return client


def wait_for(found: Callable[[], T | None], said: Path) -> T:
    give_up_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up_s:
        result = found()
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError(said.read_text())


def test_tls_in_ten_minutes_runs_as_it_is_printed(tmp_path: Path) -> None:
    made, configured, started, published, refused = blocks("tls.md")
    names = ("NAMESRV", "BROKER", "GATEWAY", "ADMIN")
    port, *ports = free_ports(1 + len(names))
    listens = {
        f"MOTELOG__{name}__LISTEN": f"127.0.0.1:{one}"
        for name, one in zip(names, ports, strict=True)
    }
    run = Shell(
        tmp_path,
        {"MOTELOG__BROKER__STORE__COMMITLOG_FILE_BYTES": "1MiB", **listens},
        {"8883": str(port), "--until-end": f"--until-end --namesrv 127.0.0.1:{ports[0]}"},
    )
    assert "dev42.key" in run(made)
    assert "valid" in run(configured)
    with run.server(started):
        assert run(published).rstrip().endswith("21.5")
        assert run(refused) == "refused\n"


@pytest.mark.java
@pytest.mark.timeout(400)
async def test_in_front_of_a_cluster_runs_as_it_is_printed(tmp_path: Path) -> None:
    reached, configured, started, published = blocks("rocketmq-cluster.md")
    mqtt, admin = free_ports(2)
    async with ApacheServer(VERSION_5, tmp_path / "store") as apache:
        run = Shell(
            tmp_path,
            {},
            {
                "127.0.0.1:9876": apache.namesrv_address,
                "1883": str(mqtt),
                "127.0.0.1:8080": f"127.0.0.1:{admin}",
            },
        )

        def try_all() -> None:
            assert apache.broker_address in run(reached)
            assert "valid" in run(configured)
            with run.server(started):
                assert run(published).rstrip().endswith("21.5")

        await trio.to_thread.run_sync(try_all)


@pytest.mark.timeout(180)
def test_a_pair_runs_as_it_is_printed(tmp_path: Path) -> None:
    configured, *started, copied, read, promoted = blocks("replicas.md")
    namesrv, slave_namesrv, broker, slave, admin, slave_admin = free_ports(6)
    at = f"--namesrv 127.0.0.1:{namesrv}"
    sections = f"""
[namesrv]
listen = "127.0.0.1:{namesrv}"
[admin]
listen = "127.0.0.1:{admin}"
"""
    run = Shell(
        tmp_path,
        {"MOTELOG__BROKER__STORE__COMMITLOG_FILE_BYTES": "1MiB"},
        {
            'directory = "master"': f'directory = "master"{sections}',
            "[broker]\nreplicate": f'[broker]\nlisten = "127.0.0.1:{broker}"\nreplicate',
            "9876": str(namesrv),
            "9877": str(slave_namesrv),
            "10921": str(slave),
            "8081": str(slave_admin),
            "-m 21.5": f"-m 21.5 {at}",
            "broker list": f"broker list {at}",
            "broker promote broker-a": "broker promote broker-a --yes",
            "kill %1": "",  # where the master's block ends
        },
    )
    run(configured)
    status = f"motelog status --admin 127.0.0.1:{slave_admin}"
    with ExitStack() as master, ExitStack() as others:
        master.enter_context(run.server(started[0]))
        others.enter_context(run.server(started[1]))
        wait_for(lambda: "warning" not in run(status), tmp_path / "slave.toml")
        assert "slave, 0 bytes behind" in run(status)
        assert "sent 1" in run(copied)
        assert "master, 1 slave, the nearest 0 bytes behind" in run(
            f"motelog status --admin 127.0.0.1:{admin}"
        )
        master.close()
        shown = run(read)
        assert " 21.5\n" in shown
        assert "warning: the master's log is not copied: " in shown
        assert "sent 1" in run(promoted)


@pytest.mark.timeout(180)
def test_a_pair_on_two_machines_has_tls_and_accounts(tmp_path: Path) -> None:
    (printed,) = blocks("replicas.md", "toml")
    addresses = ["127.0.0.1", "127.0.0.2"]
    namesrv, broker, *admins = free_ports(4)
    hosts = [text for address in addresses for text in ("--host", address)]
    assert motelog_here("cert", "dev-ca", str(tmp_path), *hosts).returncode == 0
    key, secret = "accessKey: operator-1", "secretKey: secret-of-operator"
    (tmp_path / "tools.yml").write_text(f"{key}\n{secret}")
    accounts = f"accounts:\n  - {key}\n    {secret}\n    admin: true"
    (tmp_path / "plain_acl.yml").write_text(accounts)
    for number, admin in enumerate(admins):
        own, other = addresses[number], addresses[1 - number]
        text = printed.replace("/etc/motelog", str(tmp_path))
        text = text.replace("/var/lib/motelog/store", f"store-{number}")
        text = text.replace('["10.0.0.2"]', '["127.0.0.1"]')  # from there both connect
        text = text.replace("10.0.0.1", own).replace("10.0.0.2", other)
        text = text.replace("9876", str(namesrv)).replace("10911", str(broker))
        text = text.replace("[broker]", f"[broker]\nid = {number}")
        text += f'commitlog_file_bytes = "1MiB"\n[admin]\nlisten = "127.0.0.1:{admin}"\n'
        (tmp_path / f"{number}.toml").write_text(text)
    run = Shell(tmp_path, {}, {})
    access = "--tls ca.pem --credentials tools.yml --namesrv"
    status = f"motelog status --admin 127.0.0.1:{admins[1]}"
    with ExitStack() as master, ExitStack() as slave:
        master.enter_context(run.server("motelog up --config 0.toml"))
        slave.enter_context(run.server("motelog up --config 1.toml"))
        wait_for(lambda: "warning" not in run(status), tmp_path / "1.toml")
        run(f"motelog produce T -m x {access} 127.0.0.1:{namesrv}")
        listed = run(f"motelog broker list --json {access} 127.0.0.2:{namesrv}").splitlines()
        assert [json.loads(line)["fault"] for line in listed] == [None, None]
        master.close()
        read = f"motelog consume T --until-end {access} 127.0.0.2:{namesrv}"
        assert run(read).endswith(" x\n")


class Shell:
    """Runs a guide's blocks in one folder, with other addresses than those that are printed."""

    def __init__(self, folder: Path, environment: dict[str, str], instead: dict[str, str]) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        self._instead = instead

    def __call__(self, script: str) -> str:
        for printed, here in self._instead.items():
            script = script.replace(printed, here)
        result = subprocess.run(
            ["sh", "-ec", script],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    @contextmanager
    def server(self, started: str) -> Iterator[None]:
        """Run the block that starts a server, for the length of the block."""
        command = started.strip().removesuffix("&").split()
        server = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=self._folder, env=self._environment,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "Motelog is ready.\n"
            yield
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
        result = motelog_here("config", "check", str(path), "--no-files")
        assert result.returncode == 0, f"{guide}:\n{block}\n{result.stderr}"
