"""TLS of broker and name server: all of our clients, both modes, certificates, hostile peers."""

from __future__ import annotations

import logging
import re
import shutil
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.asyncio import AsyncioProducer
from motelog.bridge.errors import SendFailedError
from motelog.bridge.producer import Producer
from motelog.bridge.pull import PullConsumer
from motelog.bridge.sync import SyncAdmin
from motelog.core.errors import ConfigError, RemotingError
from motelog.core.limited_log import LINES_MAX, LimitedLog
from motelog.core.message import Message
from motelog.core.net.config import ListenerConfig
from motelog.core.net.listeners import open_listeners
from motelog.core.remoting.client import RemotingClient, connect
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.server import ConnectionLimits, RemotingServer
from motelog.core.remoting.tls import Tls
from motelog.core.topic_names import MQTT_SESSION_TOPIC
from motelog.gateway.log.remote.remote_log import RemoteLog
from tests.support.broker_stack import connected, eventually, routed, started_stack
from tests.support.certificates import certificates, make_certificates, make_chain
from tests.support.cli import motelog
from tests.support.every_client import use_every_client
from tests.support.openssl import check_versions_and_ciphers, s_client
from tests.support.tls_stack import secured, server_keys

TRUSTING = Tls(ca=certificates().ca)
SHOWING = Tls(
    ca=certificates().ca, certificate=certificates().client, key=certificates().client_key
)


async def test_all_of_our_clients_speak_tls(tmp_path: Path) -> None:
    async with secured(tmp_path) as stack:
        who: dict[str, Any] = {"namesrv": stack.namesrv_address, "tls": TRUSTING}
        async with Admin(**who) as admin:
            await admin.put_topic("jobs", queues=2)
            assert "jobs" in await admin.topics()
        await routed(stack, "jobs")
        await use_every_client(who)

        def in_threads() -> list[str]:
            with SyncAdmin(**who) as sync_admin:
                return sync_admin.topics()

        assert "jobs" in await trio.to_thread.run_sync(in_threads)
        async with Producer(**who) as producer:
            await producer.send(Message("large", bytes(range(256)) * 12_000))
        async with PullConsumer(**who, group="large") as consumer:
            consumer.assign(await consumer.queues("large"))
            with trio.fail_after(30):
                (message,) = await consumer.poll(timeout_s=20)
            assert message.body == bytes(range(256)) * 12_000


async def test_gateway_elsewhere_and_commands_speak_tls(tmp_path: Path) -> None:
    async with secured(tmp_path) as stack, trio.open_nursery() as nursery:
        log = RemoteLog(stack.namesrv_address, tls=TRUSTING)
        await nursery.start(log.run)
        log.create_topic(MQTT_SESSION_TOPIC, 1)
        with trio.fail_after(10):
            await eventually(lambda: log.has_topic(MQTT_SESSION_TOPIC))
        log.close()
        namesrv = ("--namesrv", stack.namesrv_address)
        call = partial(motelog, "produce", "jobs", "-m", "text", *namesrv, "--tls", TRUSTING.ca)
        done = await trio.to_thread.run_sync(call)
        assert (done.returncode, done.stdout) == (0, "sent 1\n"), done.stderr
        consume = ("consume", "jobs", "--until-end", *namesrv)
        call = partial(motelog, *consume, environment={"MOTELOG_TLS": TRUSTING.ca})
        done = await trio.to_thread.run_sync(call)
        assert done.returncode == 0, done.stderr
        assert "text" in done.stdout
        done = await trio.to_thread.run_sync(partial(motelog, *consume))
        assert done.returncode != 0
        assert "it may require TLS" in done.stderr
        nursery.cancel_scope.cancel()


def test_the_twin_for_asyncio_speaks_tls(tmp_path: Path) -> None:
    import asyncio

    sent: list[str] = []

    async def main() -> None:
        async with secured(tmp_path) as stack:

            async def send() -> None:
                async with AsyncioProducer(namesrv=stack.namesrv_address, tls=TRUSTING) as producer:
                    sent.append((await producer.send(Message("jobs", b"1"))).message_id)

            await trio.to_thread.run_sync(lambda: asyncio.run(send()))

    trio.run(main)
    assert sent


async def ask_namesrv(address: str, tls: Tls | None) -> int:
    """Return the code of an answer; RemotingError if there is none."""
    stream = await connect(address, timeout_s=5.0, tls=tls)
    client = RemotingClient(stream, peer=address)
    request = RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    failed: RemotingError | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        try:
            code = (await client.request(request, timeout_s=5.0)).code
        except RemotingError as exc:
            failed = exc
        await client.aclose()
    if failed is not None:
        raise failed
    return code


async def test_permissive_servers_take_both_on_one_port(tmp_path: Path) -> None:
    async with secured(tmp_path, tls_mode="permissive") as stack:
        for address in (stack.namesrv_address, stack.broker_address):
            for tls in (None, TRUSTING, None):
                async with connected(address, tls=tls) as peer:
                    assert (await peer.ask(RequestCode.HEART_BEAT)).is_response
        async with (
            Producer(namesrv=stack.namesrv_address) as plain,
            Producer(namesrv=stack.namesrv_address, tls=TRUSTING) as secure,
        ):
            for producer in (plain, secure, plain):
                await producer.send(Message("jobs", b"x" * 100_000))


async def test_enforcing_servers_take_no_plain_client_and_it_is_told_why(tmp_path: Path) -> None:
    async with secured(tmp_path) as stack:
        for address in (stack.namesrv_address, stack.broker_address):
            with pytest.raises(RemotingError, match="it may require TLS"):
                await ask_namesrv(address, None)
        async with Producer(namesrv=stack.namesrv_address) as producer:
            with pytest.raises(SendFailedError, match="it may require TLS"):
                await producer.send(Message("jobs", b"x"))


async def test_servers_that_are_not_trusted_get_no_request(tmp_path: Path) -> None:
    other = make_certificates(tmp_path)
    async with secured(tmp_path) as stack:
        address = stack.namesrv_address
        for tls in (Tls(ca=other.ca), Tls()):
            with pytest.raises(RemotingError, match="its certificate is not accepted: "):
                await ask_namesrv(address, tls)
        with pytest.raises(RemotingError, match="not accepted: IP address mismatch"):
            await connect_through(address, TRUSTING)
        await connect_through(address, replace(TRUSTING, check_name=False))
        assert await ask_namesrv(address, Tls(verify=False)) == ResponseCode.SUCCESS
        with pytest.raises(ConfigError, match=r"nowhere\.pem: cannot be used: No such file"):
            Producer(namesrv=address, tls=Tls(ca="/nowhere.pem"))
    async with started_stack(tmp_path / "plain") as stack:
        with pytest.raises(RemotingError, match="it may have no TLS"):
            await ask_namesrv(stack.namesrv_address, TRUSTING)


async def connect_through(address: str, tls: Tls) -> None:
    """Connect to a server by another address of this machine, which its certificate has not."""
    host, _, port = address.rpartition(":")

    async def relay(stream: trio.SocketStream) -> None:
        behind = await trio.open_tcp_stream(host, int(port))
        async with stream, behind, trio.open_nursery() as nursery:
            for source, sink in ((stream, behind), (behind, stream)):
                nursery.start_soon(copy, source, sink)

    async def copy(source: trio.SocketStream, sink: trio.SocketStream) -> None:
        with_data = True
        while with_data:
            data = await source.receive_some()
            with_data = bool(data)
            await (sink.send_all(data) if data else sink.send_eof())

    failed: RemotingError | None = None
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, relay, 0, host="127.0.0.2")
        (listener,) = await nursery.start(serve)
        at = f"127.0.0.2:{listener.socket.getsockname()[1]}"
        try:
            await trio.aclose_forcefully(await connect(at, timeout_s=5.0, tls=tls))
        except RemotingError as exc:
            failed = exc
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed


async def test_clients_show_certificates_where_they_must(tmp_path: Path) -> None:
    ca = certificates().ca
    stranger = make_certificates(tmp_path)
    strange = Tls(ca=ca, certificate=stranger.client, key=stranger.client_key)
    async with secured(tmp_path, tls_client_ca=ca) as stack:
        address = stack.broker_address
        assert await ask_namesrv(stack.namesrv_address, SHOWING) == ResponseCode.SUCCESS
        with pytest.raises(RemotingError, match="certificate required"):
            await ask_namesrv(address, TRUSTING)
        with pytest.raises(RemotingError, match="unknown ca"):
            await ask_namesrv(address, strange)
    async with secured(tmp_path, tls_client_ca=ca, tls_client_certificates="optional") as stack:
        for tls in (SHOWING, TRUSTING):
            assert await ask_namesrv(stack.namesrv_address, tls) == ResponseCode.SUCCESS
        with pytest.raises(RemotingError, match="unknown ca"):
            await ask_namesrv(stack.namesrv_address, strange)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("mode", ["enforcing", "permissive"])
async def test_openssl_finds_tls_1_2_and_1_3_alone(tmp_path: Path, mode: str) -> None:
    async with secured(tmp_path, tls_mode=mode) as stack:
        for address in (stack.namesrv_address, stack.broker_address):
            port = int(address.rpartition(":")[2])
            await trio.to_thread.run_sync(check_versions_and_ciphers, port)


async def test_clients_that_know_the_root_alone_follow_the_chain_of_the_server(
    tmp_path: Path,
) -> None:
    files = make_chain(tmp_path)
    chain = files.joined(files.server, files.issuer)
    showing = Tls(
        ca=files.ca, certificate=files.joined(files.client, files.issuer), key=files.client_key
    )
    tls_file = tmp_path / "tls.properties"
    tls_file.write_text(
        f"tls.client.trustCertPath={showing.ca}\ntls.client.certPath={showing.certificate}\n"
        f"tls.client.keyPath={showing.key}\n"
    )
    section = server_keys(files, tls_certificate=chain, tls_client_ca=files.ca)
    async with started_stack(
        tmp_path / "store", namesrv_fields=section, tls_file=str(tls_file), **section
    ) as stack:
        await eventually(lambda: stack.broker.is_registered)
        for address in (stack.namesrv_address, stack.broker_address):
            async with connected(address, tls=showing) as peer:
                assert (await peer.ask(RequestCode.HEART_BEAT)).is_response
            with pytest.raises(RemotingError, match="unknown ca"):
                await ask_namesrv(address, replace(showing, certificate=files.client))
            said = await trio.to_thread.run_sync(
                partial(s_client, int(address.rpartition(":")[2]), ca=files.ca)
            )
            assert "Verify return code: 0 (ok)" in said
            assert "depth=2" in said


async def test_server_without_the_authority_in_between_is_told_so(tmp_path: Path) -> None:
    files = make_chain(tmp_path)
    async with started_stack(tmp_path / "store", namesrv_fields=server_keys(files)) as stack:
        lacks = "its certificate is not accepted: unable to get local issuer certificate; .* lacks"
        with pytest.raises(RemotingError, match=lacks):
            await ask_namesrv(stack.namesrv_address, Tls(ca=files.ca))
        knows = Tls(ca=files.joined(files.ca, files.issuer))
        assert await ask_namesrv(stack.namesrv_address, knows) == ResponseCode.SUCCESS


async def test_certificate_is_read_again_and_nobody_is_dropped(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    async with secured(tmp_path, files) as stack:
        old = Tls(ca=shutil.copy(files.ca, str(tmp_path / "old.pem")))
        async with connected(stack.broker_address, tls=old) as kept:
            make_certificates(tmp_path)
            with trio.fail_after(20):
                while True:
                    try:
                        await ask_namesrv(stack.broker_address, Tls(ca=files.ca))
                        break
                    except RemotingError:
                        await trio.sleep(0.2)
            with pytest.raises(RemotingError, match="its certificate is not accepted"):
                await ask_namesrv(stack.broker_address, old)
            assert (await kept.ask(RequestCode.HEART_BEAT)).is_response


async def test_connection_ends_when_its_client_s_certificate_does() -> None:
    days = 0
    files = certificates()
    ca = {"tls_client_ca": files.ca, "tls_client_certificates": "optional"}

    def now_s() -> float:
        return time.time() + days * 86_400

    async with served(connections_max=8, keys=ca, now_s=now_s) as (server, port):
        address = f"127.0.0.1:{port}"
        async with (
            connected(address, tls=SHOWING) as shown,
            connected(address, tls=TRUSTING) as not_,
        ):
            for peer in (shown, not_):
                assert (await peer.ask(PING)).remark == "pong"
            days = 3  # the certificates are for two
            await eventually(lambda: server.connections_count == 1)
            assert (await not_.ask(PING)).remark == "pong"
            with pytest.raises(RemotingError):
                await shown.ask(PING)


# --- hostile peers

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
PING = 1000


@asynccontextmanager
async def served(
    *, connections_max: int, keys: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[RemotingServer, int]]:
    """Run a server whose first request has to come within a second; ``keys`` are of its TLS."""
    server = RemotingServer(
        {PING: lambda request, _: request.answer(remark="pong")},
        ConnectionLimits(
            connections_max=connections_max,
            frame_bytes_max=1 << 16,
            idle_s_max=60,
            first_frame_s=1,
        ),
        **options,
    )
    told = {**server_keys(certificates()), **(keys or {})}
    config = ListenerConfig(name="a", protocol="broker", address="127.0.0.1:0", **told)
    (listener,) = open_listeners(config)
    server.listen(listener)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server, listener.address[1]
        nursery.cancel_scope.cancel()


async def test_half_open_connections_end_in_time_and_keep_nobody_out() -> None:
    """Silent ones, begun handshakes, handshakes byte by byte: 500 of them."""
    async with served(connections_max=600) as (server, port):
        address = f"127.0.0.1:{port}"
        async with connected(address, tls=TRUSTING) as client:
            opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(500)]
            try:
                for number, sock in enumerate(opened):
                    if number % 3:
                        sock.sendall(HELLO[: number % 3 * 100])
                await eventually(lambda: server.connections_count > 500)
                sent = 0
                with trio.fail_after(20):
                    while server.connections_count > 1:
                        sent += 1
                        for sock in opened[:30]:
                            with suppress(OSError):
                                sock.sendall(b"\0")
                        assert (await client.ask(PING)).remark == "pong"
                        await trio.sleep(0.02)
                assert sent > 1
                async with connected(address, tls=TRUSTING) as another:
                    assert (await another.ask(PING)).remark == "pong"
            finally:
                for sock in opened:
                    sock.close()


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\xff\xff", b"GET / HTTP/1.1\r\n\r\n", bytes(4000)])
async def test_what_is_no_handshake_ends_at_once_and_is_told(
    caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    caplog.set_level(logging.INFO)
    async with served(connections_max=8) as (server, port):
        server._closings = LimitedLog(logging.getLogger("closings"), monotonic_s=lambda: 0.0)
        for _ in range(LINES_MAX + 5):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(sent)
                with trio.fail_after(5), suppress(trio.BrokenResourceError):
                    while await stream.receive_some():
                        pass
        told = [one.getMessage() for one in caplog.records if "refused" in one.getMessage()]
        assert re.search("the TLS handshake failed: |the client does not speak TLS: ", told[0])
        assert len(told) == LINES_MAX, "a peer must not fill the disk with lines"
        async with connected(f"127.0.0.1:{port}", tls=TRUSTING) as client:
            assert (await client.ask(PING)).remark == "pong"
        assert server.connections_count <= 1
