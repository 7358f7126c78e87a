"""TLS with RocketMQ's own code: its client and mqadmin at ours, our clients at its broker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.errors import NoNameServerError
from motelog.bridge.producer import Producer
from motelog.core.remoting.tls import Tls
from tests.support.broker_stack import routed
from tests.support.certificates import certificates, make_certificates
from tests.support.every_client import use_every_client
from tests.support.java import VERSION_4, VERSION_5, ApacheServer, JavaDriver, run_tool
from tests.support.tls_stack import secured

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

COUNT = 5


def client_options(ca: str, *, has_certificate: bool = True) -> tuple[str, ...]:
    """Return what tells a JVM of RocketMQ's client to speak TLS."""
    files = certificates()
    told = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": ca,
    }
    if has_certificate:
        told |= {"tls.client.certPath": files.client, "tls.client.keyPath": files.client_key}
    return tuple(f"-D{name}={value}" for name, value in told.items())


@pytest.mark.parametrize(
    "version", [VERSION_5, pytest.param(VERSION_4, marks=pytest.mark.java_all)]
)
async def test_java_client_with_a_certificate_sends_and_consumes(
    tmp_path: Path, version: str
) -> None:
    ca = certificates().ca
    driver = JavaDriver(options=client_options(ca))
    try:
        async with secured(tmp_path, tls_client_ca=ca) as stack:
            order = (stack.namesrv_address, "FromJava")
            sent = await driver.run(version, "send", *order, "P", str(COUNT))
            kinds = Counter(kind for kind, *_ in sent)
            assert kinds == {"single": COUNT, "batch": 1, "async": COUNT, "large": 1}
            assert {status for _, status, *_ in sent} == {"SEND_OK"}
            total = 4 * COUNT + 1
            got = await driver.run(version, "consume", *order, "G", str(total), "*")
            assert len(got) == total
    finally:
        driver.close()


@pytest.mark.java_all
@pytest.mark.parametrize("version", [VERSION_5, VERSION_4])
async def test_tools_of_rocketmq_speak_tls(tmp_path: Path, version: str) -> None:
    async with secured(tmp_path) as stack:
        where = ("-n", stack.namesrv_address, "-b", stack.broker_address)
        command = ("updateTopic", *where, "-t", "orders", "-r", "1", "-w", "1")
        trusting = client_options(certificates().ca, has_certificate=False)
        done = await run_tool(version, tmp_path / "home", *command, options=trusting)
        assert "create topic to" in done
        await routed(stack, "orders")
        with_plain = await run_tool(version, tmp_path / "home", *command)
        assert "create topic to" not in with_plain
        stranger = make_certificates(tmp_path).ca
        distrusting = client_options(stranger, has_certificate=False)
        refused = await run_tool(version, tmp_path / "home", *command, options=distrusting)
        assert "create topic to" not in refused


@pytest.mark.java_all
async def test_our_clients_at_apache_s_servers_with_tls(tmp_path: Path) -> None:
    files = certificates()
    tls = Tls(ca=files.ca, certificate=files.client, key=files.client_key)
    options = (
        *client_options(files.ca),
        "-Dtls.server.mode=enforcing",
        f"-Dtls.server.certPath={files.server}",
        f"-Dtls.server.keyPath={files.server_key}",
        "-Dtls.server.authClient=true",
        "-Dtls.server.need.client.auth=require",
        f"-Dtls.server.trustCertPath={files.ca}",
        "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    )  # fmt: skip
    apache = ApacheServer(VERSION_5, tmp_path / "store", options=options, tls=tls, has_timer=True)
    async with apache:
        async with Admin(namesrv=apache.namesrv_address, tls=tls) as admin:
            await admin.put_topic("jobs", queues=2)
        async with Producer(namesrv=apache.namesrv_address, tls=tls) as producer:
            with trio.fail_after(60):
                while len(await producer.queues("jobs")) != 2:  # noqa: ASYNC110  # no event
                    await trio.sleep(0.1)
        await use_every_client({"namesrv": apache.namesrv_address, "tls": tls})
        async with Producer(namesrv=apache.namesrv_address, tls=Tls(ca=files.ca)) as producer:
            with pytest.raises(NoNameServerError):
                await producer.queues("jobs")
