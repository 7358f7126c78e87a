"""``motelog doctor``: what this machine has, what it lacks, and the remedy for each.

Owns: the checks of the machine. Must not touch: fixing anything.
"""

from __future__ import annotations

import errno
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from motelog.cli import contexts
from motelog.cli.credentials import CredentialsFile, credentials_of
from motelog.cli.finding import Finding
from motelog.cli.native import checked_namesrv
from motelog.cli.output import stop, table, write, write_json
from motelog.cli.port_owner import port_owner
from motelog.cli.status import Status
from motelog.cli.tls import TlsFile, tls_of
from motelog.core.errors import ConfigError

if TYPE_CHECKING:
    from motelog.config import MotelogConfig

PYTHON_MIN = (3, 11)
DESCRIPTORS_WANTED = 20_000
FREE_BYTES_WANTED = 4 * 1024**3  # a CommitLog file of 1 GiB, its successor, and working space
JAVA_VERSIONS = range(17, 26)
ADMIN_PORT = 8080
READY_WITHIN_S = 2.0
PORTS = {
    1883: "--mqtt",
    ADMIN_PORT: "--admin",
    9876: "--namesrv",
    10909: "--broker",
    10911: "--broker",
}


def doctor(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for messages. [default: that of --config, else motelog-data]",
        ),
    ] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Dial the brokers that are registered with this name server.",
            callback=checked_namesrv,
        ),
    ] = None,
    credentials: CredentialsFile = None,
    tls: TlsFile = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Dial the addresses that the server with this configuration advertises.",
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --config: the authorities (PEM) that clients of its listeners trust.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Check this machine, and the addresses that servers advertise to clients.

    The exit status is 1 if Motelog cannot work here, or a client here could not reach a broker or
    listener. Run it where clients are: --namesrv connects as they do. --config also checks the
    files that the configuration names: run that as the server's user. With a context and neither
    option, the context's name servers are checked.
    """
    loaded = _loaded(config)
    found = findings(data or _folder(loaded))
    context = contexts.chosen()
    if context is not None and config is None and namesrv is None and context.namesrv:
        namesrv = context.namesrv
        credentials, tls = credentials or context.credentials_file, tls or context.tls_file
    if loaded is not None:
        found += _of_config(loaded, credentials, tls, ca_file)
    if namesrv is not None:
        found += _of_namesrv(namesrv, credentials, tls)
    is_ok = all(finding.level != "fault" for finding in found)
    if json:
        write_json({"ok": is_ok, "findings": [asdict(finding) for finding in found]})
    else:
        _write_findings(found)
    stop(Status.DONE if is_ok else Status.FAILED)


def _write_findings(found: list[Finding]) -> None:
    write(table([(finding.level, finding.name, finding.text) for finding in found]))
    for finding in found:
        if finding.remedy is not None:
            write(f"{finding.name}: {finding.remedy}")


def _loaded(file: Path | None) -> MotelogConfig | None:
    from motelog.config import load_config

    return None if file is None else load_config(file)


def _folder(config: MotelogConfig | None) -> Path:
    """Return the server's folder for messages; without a configuration, that of `motelog dev`."""
    if config is None or config.broker is None:
        return Path("motelog-data")
    return Path(config.broker.store.directory)


def _of_namesrv(namesrv: str, credentials: str | None, tls: str | None) -> list[Finding]:
    """Check what the brokers that a name server knows advertise to clients."""
    from motelog.cli.advertised import cluster_findings

    return cluster_findings(namesrv, credentials=credentials_of(credentials), tls=tls_of(tls))


def _of_config(
    config: MotelogConfig, credentials: str | None, tls: str | None, ca_file: Path | None
) -> list[Finding]:
    """Check what a server that runs with a configuration advertises to clients."""
    from motelog.cli.advertised import (
        cluster_findings,
        is_for_others,
        listener_findings,
        own_namesrv,
    )
    from motelog.cli.certificates import certificate_findings
    from motelog.cli.named_files import file_findings
    from motelog.config import client_files
    from motelog.core.remoting.tls import Tls

    known = None if ca_file is None else Tls(ca=str(ca_file))
    if known is not None:
        known.context()  # a file that cannot be used is the option's fault, not a listener's
    found = file_findings(config) + certificate_findings(config)
    found += listener_findings(config, known)
    namesrv = own_namesrv(config)
    if namesrv is not None:
        own_credentials, own_tls = client_files(config)
        try:
            account, secure = credentials_of(credentials or own_credentials), tls_of(tls or own_tls)
        except ConfigError as exc:
            remedy = "make credentials_file and tls_file, or --credentials and --tls, readable"
            return [*found, Finding("name server", "fault", f"not checked: {exc}", remedy)]
        is_others = is_for_others(config)
        found += cluster_findings(namesrv, credentials=account, tls=secure, is_for_others=is_others)
    return found


def findings(data: Path) -> list[Finding]:
    """Return the findings on this machine; ``data`` is the folder for messages."""
    return [
        _python(),
        _compiler(),
        *_kernels(),
        _java(),
        *_pyspark(),
        _mosquitto(),
        *_ports(),
        _disk(data),
        _descriptors(),
    ]


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info < PYTHON_MIN:
        return Finding("python", "fault", version, "install Python 3.11 or newer")
    return Finding("python", "ok", f"{version} at {sys.executable}")


def _compiler() -> Finding:
    import shlex
    import sysconfig

    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    found = shutil.which(shlex.split(command)[0])
    if found is None:
        remedy = "only needed to build from source: apt install build-essential"
        return Finding("compiler", "note", f"{command} not found", remedy)
    return Finding("compiler", "ok", found)


def _kernels() -> list[Finding]:
    from motelog.cli.kernels import COMPILED, KERNELS, kernel_states
    from motelog.cli.tools import install_command

    findings = []
    for name, state in kernel_states().items():
        if state == COMPILED:
            findings.append(Finding(f"kernel {name}", "ok", state))
        elif KERNELS[name] is not None and state.startswith("not installed"):
            findings.append(Finding(f"kernel {name}", "note", state))
        else:
            remedy = f"build it: {install_command()} (with a C compiler)"
            findings.append(Finding(f"kernel {name}", "fault", state, remedy))
    return findings


def _java() -> Finding:
    from motelog.cli.tools import find_java, java_version

    remedy = "only needed for Spark: apt install openjdk-17-jre-headless"
    java = find_java()
    if java is None:
        return Finding("java", "note", "not found", remedy)
    version = java_version(java)
    if version not in JAVA_VERSIONS:
        return Finding("java", "note", f"{java} is version {version}", remedy)
    return Finding("java", "ok", f"{version} at {java}")


def _pyspark() -> list[Finding]:
    from motelog.cli.tools import has_pyspark, install_command

    if not has_pyspark():
        remedy = f"only needed for Spark: {install_command('spark')}"
        return [Finding("pyspark", "note", "not installed", remedy)]
    return [Finding("pyspark", "ok", "installed"), _spark_workers()]


def _spark_workers() -> Finding:
    """Look for Motelog where Spark will look: in the Python that its workers run."""
    command = os.environ.get("PYSPARK_PYTHON", "python3")
    find = "from importlib.util import find_spec as f; print(f('pyspark_motelog') is not None)"
    try:
        done = subprocess.run([command, "-c", find], capture_output=True, text=True, timeout=20)
        is_there = done.stdout.strip() == "True"
    except (OSError, subprocess.TimeoutExpired):
        is_there = False
    if is_there:
        return Finding("spark workers", "ok", f"{command} has Motelog")
    remedy = f"for spark-submit and your own sessions: export PYSPARK_PYTHON={sys.executable}"
    return Finding(
        "spark workers", "note", f"Motelog is not installed for {command}, which they run", remedy
    )


def _mosquitto() -> Finding:
    found = shutil.which("mosquitto_pub")
    if found is None:
        remedy = "only needed for comparisons: apt install mosquitto mosquitto-clients"
        return Finding("mosquitto", "note", "clients not found", remedy)
    return Finding("mosquitto", "ok", found)


def _ports() -> list[Finding]:
    """Check the ports of ``motelog dev``; a running stack of ours on them is no fault."""
    findings = []
    stacks: dict[int, str] = {}
    for port in PORTS:
        fault = _bind_fault(port)
        if fault is None:
            findings.append(Finding(f"port {port}", "ok", "free"))
            continue
        owner = port_owner(port) if fault.errno == errno.EADDRINUSE else None
        if owner is None:
            text = fault.strerror or str(fault)
        elif owner.process_id is not None and owner.motelog_command is not None:
            stacks[owner.process_id] = str(owner)
            findings.append(Finding(f"port {port}", "ok", f"used by {owner}"))
            continue
        else:
            text = f"used by {owner}"
        remedy = f"stop it, or use motelog dev {PORTS[port]} 127.0.0.1:0, or --auto-port"
        findings.append(Finding(f"port {port}", "note", text, remedy))
    return [*findings, *(_stack(name) for name in stacks.values())]


def _bind_fault(port: int) -> OSError | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            return exc
    return None


def _stack(name: str) -> Finding:
    """Report the state of a running stack of ours, if its admin port is the usual one."""
    import http.client
    import json as json_module

    connection = http.client.HTTPConnection("127.0.0.1", ADMIN_PORT, timeout=READY_WITHIN_S)
    try:
        connection.request("GET", "/health/ready")
        health = json_module.loads(connection.getresponse().read())
        faults = {str(role): str(why) for role, why in dict(health["faults"]).items()}
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return Finding("stack", "ok", f"{name} is running; its state is not on port {ADMIN_PORT}")
    finally:
        connection.close()
    if not faults:
        return Finding("stack", "ok", f"{name} is running and ready")
    reasons = "; ".join(f"{role}: {why}" for role, why in faults.items())
    return Finding("stack", "note", f"{name} is running, but not ready: {reasons}")


def _disk(data: Path) -> Finding:
    place = data.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{free / 1024**3:.1f} GiB free at {place}"
    if not (place.is_dir() and os.access(place, os.W_OK)):
        remedy = "choose a --data or broker.store.directory that this user may write to"
        return Finding("disk", "fault", f"{place} cannot be used", remedy)
    if free < FREE_BYTES_WANTED:
        remedy = "free some space: motelog dev takes 64 MiB at a time, motelog up 1 GiB"
        return Finding("disk", "note", text, remedy)
    return Finding("disk", "ok", text)


def _descriptors() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_WANTED:
        remedy = f"each connection takes one: raise the limit with ulimit -Hn {DESCRIPTORS_WANTED}"
        return Finding("descriptors", "note", f"at most {hard}", remedy)
    return Finding("descriptors", "ok", f"at most {hard}")
