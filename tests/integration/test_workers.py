"""A server with several gateway processes: they serve as one, come back, and end with it."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

import httpx
import psutil
import pytest

from motelog.gateway.mqtt.connect import encode_connect
from motelog.gateway.mqtt.packet_types import Connect
from motelog.testing import MotelogProcess
from tests.support.cli import motelog, motelog_lines
from tests.support.durable_client import Arrived, ClientSession, DurableClient
from tests.support.gateway_process import GatewayProcess
from tests.support.worker_processes import wait_for_workers, worker_at, workers_of

DEADLINE_S = 20.0
NAMES = ["gateway-1", "gateway-2"]
CONNACK = b"\x20\x02\x00\x00"
#: So many want one client identifier, until so many have got it; how long nobody may get it.
RIVALS = 36
RIVALS_ACCEPTED = 40
STUCK_S = 5.0


class Client(DurableClient):
    """A client that is connected, and what it was sent."""

    def __init__(self, client_id: str) -> None:
        self.messages: list[Arrived] = []
        super().__init__(ClientSession(client_id, version=5, on_message=self.messages.append))

    def come_back(self, server: MotelogProcess) -> bool:
        """Connect; return whether the session is present."""
        connack = self.connect(server.mqtt)
        assert connack is not None
        assert connack.reason_code == 0
        return connack.session_present

    def wait(self, is_true: Callable[[], bool]) -> None:
        """Take what comes until something is so."""
        self.flush()
        deadline = time.monotonic() + DEADLINE_S
        while not is_true():
            left = deadline - time.monotonic()
            assert left > 0
            assert not self.is_away
            if select.select([self], [], [], min(left, 0.1))[0]:
                self.readable()

    def subscribe(self, topic_filter: str) -> None:
        self.session.subscribe((topic_filter, 1))
        self.wait(lambda: self.session.granted is not None)

    def publish(self, topic: str, payload: bytes) -> None:
        self.session.publish(topic, payload, 1)
        self.wait(lambda: not self.session.sending)

    def wait_for_end(self) -> None:
        self.wait(lambda: self.session.is_ended)


class Clients:
    """Makes clients, whose connections are broken off when a test ends."""

    def __init__(self) -> None:
        self._made: list[Client] = []

    def one(self, server: MotelogProcess, client_id: str) -> Client:
        client = Client(client_id)
        self._made.append(client)
        client.come_back(server)
        return client

    def at_each(self, server: MotelogProcess, prefix: str) -> dict[str, Client]:
        """Return one client of each process: the system chooses, so several may have to try."""
        found: dict[str, Client] = {}
        number = 0
        while len(found) < len(NAMES):
            number += 1
            assert number < 100, f"all connections are taken by {list(found)}"
            client = self.one(server, f"{prefix}{number}")
            name = worker_at(server.pid, client.address)
            assert name is not None
            if name in found:
                client.disconnect()
            else:
                found[name] = client
        return found

    def break_off(self) -> None:
        for client in self._made:
            client.break_off()


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    made.break_off()


def ask(server: MotelogProcess, path: str, method: str = "GET") -> httpx.Response:
    host, port = server.admin
    headers = {"X-Motelog": "test"}
    return httpx.request(method, f"http://{host}:{port}{path}", headers=headers, timeout=DEADLINE_S)


def metric(server: MotelogProcess, name: str) -> float:
    lines = ask(server, "/metrics").text.splitlines()
    return float(
        next(line for line in lines if line.startswith(f"motelog_gateway_{name} ")).split()[1]
    )


def runs(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has collected has."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def server() -> Iterator[MotelogProcess]:
    with MotelogProcess(options=["--workers", "2"]) as motelog:
        yield motelog


def test_a_message_reaches_the_clients_of_all_processes(
    server: MotelogProcess, clients: Clients
) -> None:
    assert server.ready["workers"] == 2
    found = clients.at_each(server, "reach")
    before = metric(server, "publishes_received_total")
    for client in found.values():
        client.subscribe("reach/#")
    for name, client in found.items():
        client.publish(f"reach/{name}", name.encode())
    for client in found.values():
        client.wait(lambda: len(client.messages) == 2)  # noqa: B023  # waited for here
        assert sorted(message.payload.decode() for message in client.messages) == NAMES
    wait_until(lambda: metric(server, "publishes_received_total") == before + 2)
    wait_until(lambda: metric(server, "sessions") == 2)
    assert metric(server, "workers") == 2
    for client in found.values():
        client.disconnect()


def test_members_at_all_processes_get_their_share(server: MotelogProcess, clients: Clients) -> None:
    members = list(clients.at_each(server, "member").values())
    for member in members:
        member.subscribe("$share/all/work/#")
    publisher = clients.one(server, "work-publisher")
    sent: list[bytes] = []

    def payloads() -> list[bytes]:
        for member in select.select(members, [], [], 0.05)[0]:
            member.readable()
            member.flush()
        return sorted(message.payload for member in members for message in member.messages)

    def all_have_some() -> bool:
        # The queues are divided some records after the SUBACK.
        for level in range(16):
            sent.append(b"%d" % len(sent))
            publisher.publish(f"work/{level}", sent[-1])
        payloads()
        return all(member.messages for member in members)

    wait_until(all_have_some)
    wait_until(lambda: payloads() == sorted(sent))


def test_an_operator_meets_one_gateway(server: MotelogProcess, clients: Clients) -> None:
    found = clients.at_each(server, "op")
    ids = {client.session.client_id for client in found.values()}
    listed = motelog_lines(
        "session", "list", "--prefix", "op", "--admin", "{}:{}".format(*server.admin), "--json"
    )
    assert {one["client_id"] for one in listed if one["since_ms"] and one["is_connected"]} == ids
    for client in found.values():
        client_id = client.session.client_id
        path = f"/api/v1/sessions/session?client_id={client_id}"
        assert ask(server, path).json()["peer"] == "{}:{}".format(*client.address)
        assert ask(server, path, "DELETE").json() == {"done": True}
        client.wait_for_end()
        wait_until(lambda: ask(server, path).status_code == 404)  # noqa: B023  # waited for here


def test_retained_messages_are_found_and_deleted(server: MotelogProcess, clients: Clients) -> None:
    found = clients.at_each(server, "keep")
    for name, client in found.items():
        client.session.publish(f"keep/{name}", b"x", 1, retain=True)
        client.wait(lambda: not client.session.sending)  # noqa: B023  # waited for here
        client.disconnect()
    wait_until(lambda: len(ask(server, "/api/v1/retained?filter=keep/%2B").json()["messages"]) == 2)
    wait_until(lambda: metric(server, "retained_messages") == 2)
    for name in NAMES:
        path = f"/api/v1/retained/message?topic=keep/{name}"
        assert ask(server, path, "DELETE").json() == {"done": True}
    wait_until(lambda: ask(server, "/api/v1/retained?filter=keep/%2B").json()["messages"] == [])


class Namesakes:
    """Connections with one client identifier, of which each comes back at once when it is ended."""

    def __init__(self, server: MotelogProcess, client_id: str, count: int) -> None:
        self._address = server.mqtt
        self._packet = encode_connect(Connect(4, True, 60, client_id))
        self._open = DefaultSelector()
        self.come_back = True
        #: How often one got in, when the last one did, and who has: these alone may stay.
        self.accepted = 0
        self.accepted_s = time.monotonic()
        self.present: set[socket.socket] = set()
        for _ in range(count):
            self._come()

    def __len__(self) -> int:
        return len(self._open.get_map())

    def _come(self) -> None:
        one = socket.create_connection(self._address, DEADLINE_S)
        one.sendall(self._packet)
        self._open.register(one, EVENT_READ)

    def step(self) -> None:
        for key, _ in self._open.select(0.1):
            one = key.fileobj
            assert isinstance(one, socket.socket)
            with suppress(ConnectionResetError):
                if answer := one.recv(100):
                    assert answer == CONNACK
                    self.present.add(one)
                    self.accepted += 1
                    self.accepted_s = time.monotonic()
                    continue
            self._close(one)
            if self.come_back:
                self._come()

    def _close(self, one: socket.socket) -> None:
        self._open.unregister(one)
        self.present.discard(one)
        one.close()

    def close(self) -> None:
        for key in list(self._open.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            self._close(key.fileobj)
        self._open.close()


def test_of_rivals_for_one_client_identifier_somebody_always_gets_in(
    server: MotelogProcess,
) -> None:
    with closing(Namesakes(server, "rival", RIVALS)) as rivals:
        deadline = time.monotonic() + DEADLINE_S
        while rivals.accepted < RIVALS_ACCEPTED:
            rivals.step()
            now = time.monotonic()
            assert now < deadline, f"{rivals.accepted} got in"
            assert now < rivals.accepted_s + STUCK_S, f"nobody gets in behind {rivals.accepted}"
        rivals.come_back = False
        while len(rivals) > 1 or not rivals.present:
            rivals.step()
            assert time.monotonic() < deadline + DEADLINE_S, f"{len(rivals)} are left"
        (holder,) = rivals.present
        holder.sendall(b"\xc0\x00")
        assert holder.recv(100) == b"\xd0\x00"  # it is served
        (listed,) = ask(server, "/api/v1/clients?prefix=rival").json()["clients"]
        assert listed["peer"] == "{}:{}".format(*holder.getsockname())


def test_a_process_that_is_killed_comes_back(server: MotelogProcess, clients: Clients) -> None:
    found = clients.at_each(server, "killed")
    received = metric(server, "publishes_received_total")
    victim, other = NAMES
    before = workers_of(server.pid)
    psutil.Process(before[victim]).kill()
    # Asked at once: on a busy machine the next one may be there before a client has done anything.
    answers = [ask(server, "/health/ready")]
    while answers[-1].status_code != 503:
        assert len(answers) < 1000
        answers.append(ask(server, "/health/ready"))
    found[other].subscribe("killed/#")  # the others go on
    fault = answers[-1].json()["faults"]["workers"]
    assert fault.startswith(f"{victim} ")
    assert "SIGKILL" in fault
    for number in range(5):
        clients.one(server, f"new{number}")  # whichever takes it
    wait_until(lambda: ask(server, "/health/ready").status_code == 200)
    after = workers_of(server.pid)
    assert (after[other], list(after)) == (before[other], [other, victim])
    assert metric(server, "workers_restarted_total") == 1
    assert metric(server, "publishes_received_total") >= received
    clients.at_each(server, "again")[victim].publish("killed/a", b"back")
    found[other].wait(lambda: len(found[other].messages) == 1)
    assert (
        f"a gateway process has ended and is restarted worker={victim} reason=ended by SIGKILL"
        in server.output()
    )


def test_the_address_is_shared_with_nobody_else(server: MotelogProcess) -> None:
    address = "{}:{}".format(*server.mqtt)
    ports = [f"--{name}=127.0.0.1:0" for name in ("namesrv", "broker", "admin")]
    second = motelog("dev", "--ephemeral", f"--mqtt={address}", *ports, "--workers", "2")
    assert second.returncode == 1
    assert f"the gateway cannot listen on {address}: another process uses" in second.stderr


def test_a_stop_tells_all_clients_and_keeps_their_sessions(
    tmp_path: Path, clients: Clients
) -> None:
    with MotelogProcess(data=tmp_path, options=["--workers", "2"]) as server:
        found = clients.at_each(server, "stop")
        for client in found.values():
            client.subscribe("stop/#")
        pids = list(workers_of(server.pid).values())
        assert server.stop() == 0
        for client in found.values():
            client.wait_for_end()
            assert client.session.end_code == 0x8B
        assert not any(map(runs, pids))
    with MotelogProcess(data=tmp_path, options=["--workers", "2"]) as server:
        for client in found.values():
            assert client.come_back(server)
        # No process outlives the server, not one that starts either, and the next server has
        # their address and views.
        stopped = workers_of(server.pid)[NAMES[0]]
        psutil.Process(stopped).terminate()
        wait_for_workers(server.pid, 2, not_pid=stopped)
        pids = list(workers_of(server.pid).values())
        address = "--mqtt={}:{}".format(*server.mqtt)
        server.kill()
        with MotelogProcess(data=tmp_path, options=["--workers", "2", address]) as following:
            assert not any(map(runs, pids))
            assert following.mqtt == server.mqtt
            for client in found.values():
                client.wait_for_end()
                assert client.come_back(following)


def test_brokers_may_be_elsewhere(tmp_path: Path, motelog_stack: MotelogProcess) -> None:
    namesrv = "{}:{}".format(*motelog_stack.namesrv)
    settings = f'workers = 2\nname = "far"\nview_path = "{tmp_path}/far.db"\n'
    with GatewayProcess(tmp_path, namesrv=namesrv, settings=settings) as gateway:
        assert set(workers_of(gateway.pid)) == {"far-1", "far-2"}
        assert {path.name for path in tmp_path.glob("far*.db")} == {"far-1.db", "far-2.db"}
        with closing(socket.create_connection(gateway.address, DEADLINE_S)):
            pass
        assert gateway.stop() == 0


def test_a_process_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = tmp_path / "motelog.toml"
    config.write_text(
        'roles = ["namesrv", "broker", "gateway"]\n[namesrv]\nlisten = "127.0.0.1:0"\n'
        f'[broker]\nlisten = "127.0.0.1:0"\n[broker.store]\ndirectory = "{tmp_path}/store"\n'
        "commitlog_file_bytes = 4194304\n"
        '[gateway]\nlisten = "127.0.0.1:0"\nworkers = 2\ntopic_map = []\n'
        f'view_path = "{tmp_path}/views/view.db"\n'
    )
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "view-2.db").mkdir()
    (tmp_path / "views" / "view-2.db.aside").touch()
    ended = motelog("up", "--config", str(config))
    assert ended.returncode == 78  # it would end so again
    assert "gateway-2 cannot start: " in ended.stderr
