"""What clients are told: in what the server says of itself, and dialled by ``motelog doctor``."""

from __future__ import annotations

import json
import socket
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import trio

from motelog.cli import advertised
from motelog.core.net.config import ListenerConfig
from motelog.core.remoting.tls import Tls
from tests.support.broker_stack import started_stack
from tests.support.certificates import certificates, make_chain
from tests.support.cli import motelog_here
from tests.support.listeners import ListenerServer
from tests.support.tls_stack import secured

DEADLINE_S = 20.0
TRUSTING = Tls(ca=certificates().ca)


def server_tls() -> str:
    files = certificates()
    return f'tls_certificate = "{files.server}"\ntls_key = "{files.server_key}"\n'


def test_a_server_with_tls_everywhere_tells_what_it_advertises(tmp_path: Path) -> None:
    """Gateway processes, console and commands reach broker and name server by TLS alone."""
    files = certificates()
    tables = (
        '[[listener]]\nname = "public"\naddress = "127.0.0.1:0"\n'
        f'advertise = "mqtt.example:8883"\n{server_tls()}'
    )
    server = ListenerServer(
        tmp_path,
        tables,
        gateway="workers = 2",
        namesrv=f'advertise = "names.example:9876"\n{server_tls()}',
        broker=f'tls_file = "{files.ca}"\n{server_tls()}',
    )
    with server:
        assert server.listeners == {"public": "mqtts://mqtt.example:8883"}
        assert server.ready["advertised"] == {"namesrv": "names.example:9876"}
        with urlopen(f"http://{server.ready['console']}/status", timeout=DEADLINE_S) as answer:
            status = json.load(answer)
        assert status["ready"], status["faults"]
        assert status["addresses"]["namesrv"] == "names.example:9876"
        assert status["addresses"]["broker"] == server.ready["broker"]
        assert status["listeners"] == server.listeners
        namesrv = ("--namesrv", server.ready["namesrv"], "--tls", files.ca)
        done = motelog_here("pub", "--port", server.ready["gateway"].rpartition(":")[2],
                       "-t", "jobs/a", "-m", "hello", "-q", "1")  # fmt: skip
        assert done.returncode == 0, done.stderr
        got = motelog_here("consume", "jobs", "--until-end", *namesrv)
        assert "hello" in got.stdout, got.stderr
        console = f"http://{server.ready['console']}/api/v1/topics?limit=100"
        with urlopen(console, timeout=DEADLINE_S) as answer:
            assert '"jobs"' in answer.read().decode()
        found = json.loads(motelog_here("doctor", "--json", *namesrv).stdout)["findings"]
        (broker,) = [one for one in found if one["name"].startswith("broker ")]
        assert broker["level"] == "ok", broker
        assert broker["text"] == f"{server.ready['broker']} answers over TLS"


async def test_brokers_that_clients_would_not_reach_are_told_with_what_to_set(
    tmp_path: Path,
) -> None:
    look = partial(advertised._ask_cluster, credentials=None)
    async with secured(tmp_path) as stack:
        names = stack.namesrv_address
        here = await look(names, tls=TRUSTING, is_for_others=False)
        assert [one.level for one in here] == ["ok", "ok"]
        _, broker = await look(names, tls=TRUSTING, is_for_others=True)
        assert broker.level == "fault"
        assert f"it advertises {stack.broker_address}, which on a client's machine" in broker.text
        assert broker.remedy is not None
        assert 'set [broker] advertise = "IP:' in broker.remedy
        (names_alone,) = await look(names, tls=None, is_for_others=False)
        assert "it may require TLS" in names_alone.text
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        async with started_stack(tmp_path / "plain", advertise=nobody) as stack:
            _, broker = await look(stack.namesrv_address, tls=None, is_for_others=False)
            assert (broker.level, broker.text) == ("fault", f"{nobody}: Connection refused")
            assert broker.remedy is not None
            assert f"clients connect to {nobody}" in broker.remedy


async def dial(*, known: Tls | None = None, **keys: Any) -> tuple[str, str]:
    """Return level and text of what is found at a listener by who knows these authorities."""
    listener = ListenerConfig(name="tls", insecure="I know", **keys)
    found = await advertised._dial(listener, known)
    assert (found.remedy is None) == (found.level == "ok")
    return found.level, found.text


async def test_listeners_are_tried_by_the_authorities_that_clients_know(tmp_path: Path) -> None:
    files = make_chain(tmp_path)
    chain = files.joined(files.server, files.issuer)
    contexts = {}
    for certificate in (files.server, chain):
        contexts[certificate] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        contexts[certificate].load_cert_chain(certificate, files.server_key)

    async def tried(certificate: str, known: Tls | None) -> tuple[str, str]:
        async def serve(stream: trio.SocketStream) -> None:
            secured = trio.SSLStream(
                stream, contexts[certificate], server_side=True, https_compatible=True
            )
            with suppress(trio.BrokenResourceError):
                await secured.do_handshake()
                await secured.receive_some()

        async with trio.open_nursery() as nursery:
            (here,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            keys: dict[str, Any] = {"tls_certificate": certificate, "tls_key": files.server_key}
            address = f"127.0.0.1:{here.socket.getsockname()[1]}"
            found = await dial(known=known, address=address, **keys)
            nursery.cancel_scope.cancel()
        return found

    root = Tls(ca=files.ca)
    assert (await tried(chain, root))[0] == "ok"
    level, text = await tried(files.server, root)
    assert level == "fault"
    assert "unable to get local issuer certificate; " in text
    assert text.endswith("or the server lacks an intermediate one")
    assert (await tried(files.server, None))[0] == "ok"  # it is the listener's own


async def test_listeners_are_dialled_where_people_are_told_to(tmp_path: Path) -> None:
    files = certificates()
    tls: dict[str, Any] = {"tls_certificate": files.server, "tls_key": files.server_key}
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.server, files.server_key)

    async def serve(stream: trio.SocketStream) -> None:
        secured = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        with suppress(trio.BrokenResourceError):
            await secured.do_handshake()
            await secured.receive_some()

    async with trio.open_nursery() as nursery:
        (at_home,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = at_home.socket.getsockname()[1]
        everywhere = partial(trio.serve_tcp, serve, port, host="127.0.0.2")
        await nursery.start(everywhere)
        there = await dial(address=f"127.0.0.1:{port}", **tls)
        assert there == ("ok", f"mqtts://127.0.0.1:{port} answers")
        there = await dial(address="0.0.0.0:8883", advertise=f"localhost:{port}", **tls)
        assert there == ("ok", f"mqtts://localhost:{port} answers")
        level, text = await dial(address="0.0.0.0:8883", advertise=f"127.0.0.2:{port}", **tls)
        assert level == "fault"
        assert "its certificate is not accepted: IP address mismatch" in text
        level, text = await dial(address="0.0.0.0:8883", **tls)
        assert (level, text) == ("note", "mqtts://0.0.0.0:8883 is not an address that clients use")
        nursery.cancel_scope.cancel()
    level, text = await dial(address="0.0.0.0:8883", advertise=f"localhost:{port}", **tls)
    assert level == "fault"
    assert "refused" in text


def test_doctor_tries_listeners_by_what_clients_know_and_no_others(tmp_path: Path) -> None:
    """The name server has no TLS, which is nothing that the listeners' clients ask."""
    files = certificates()
    table = f'[[listener]]\nname = "tls"\naddress = "127.0.0.1:0"\n{server_tls()}'
    with ListenerServer(tmp_path, table) as server:
        config = tmp_path / "asked.toml"
        config.write_text(
            f'[namesrv]\nlisten = "{server.ready["namesrv"]}"\n'
            f'[broker.store]\ndirectory = "{tmp_path}"\n[[listener]]\nname = "tls"\n'
            f'address = "127.0.0.1:{server.port("tls")}"\n{server_tls()}'
        )
        (tmp_path / "aside").mkdir()
        for ca, level in ((files.ca, "ok"), (make_chain(tmp_path / "aside").ca, "fault")):
            done = motelog_here("doctor", "--json", "--config", str(config), "--ca-file", ca)
            found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
            assert found["listener tls"]["level"] == level, found["listener tls"]
            assert found["name server"]["level"] == "ok", found["name server"]
    unusable = motelog_here("doctor", "--config", str(config), "--ca-file", "/no/such.pem")
    assert (unusable.returncode, "/no/such.pem" in unusable.stderr) == (78, True)


def test_doctor_takes_the_configuration_of_the_server(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        file = tmp_path / "motelog.toml"
        file.write_text(
            f'roles = ["gateway"]\n[gateway]\nnamesrv = ["{nobody}"]\n'
            f'[[listener]]\nname = "ws"\naddress = "{nobody}"\nwebsocket = "/mqtt"\n'
        )
        done = motelog_here("doctor", "--config", str(file))
    assert done.returncode == 1
    assert f"ws://{nobody}/mqtt: " in done.stdout
    assert "listener ws: open that port to clients, or change" in done.stdout
    assert f"{nobody}: Connection refused" in done.stdout
