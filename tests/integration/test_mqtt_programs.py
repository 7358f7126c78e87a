"""Clients of other languages in their default settings: Go, Java, Rust, and gmqtt.

The same scenarios with the same expectations for each, and for both versions of MQTT where a client
has both. What a client must be asked for is asked for (a session that stays, a QoS, a will); all
else is what its users get who do not know better. Connections go through a line that the test cuts:
no client is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from motelog.testing import MotelogProcess
from tests.support.certificates import certificates
from tests.support.cut_line import CutLine
from tests.support.listeners import ListenerServer
from tests.support.mqtt import sent_again_after_pubrel
from tests.support.mqtt_programs import (
    DEADLINE_S,
    Program,
    ProgramClient,
    gmqtt_program,
    go_program,
    hivemq_program,
    rumqttc_program,
)

pytestmark = pytest.mark.timeout(500)  # whoever comes first builds the program

PROGRAMS: dict[str, tuple[Callable[[], list[str]], pytest.MarkDecorator]] = {
    "paho-go-3": (lambda: go_program("paho3"), pytest.mark.go),
    "paho-go-5": (lambda: go_program("paho5"), pytest.mark.go),
    "hivemq-3": (lambda: [*hivemq_program(), "4"], pytest.mark.java),
    "hivemq-5": (lambda: [*hivemq_program(), "5"], pytest.mark.java),
    "rumqttc-3": (lambda: [*rumqttc_program(), "4"], pytest.mark.rust),
    "rumqttc-5": (lambda: [*rumqttc_program(), "5"], pytest.mark.rust),
    "gmqtt-3": (lambda: [*gmqtt_program(), "4"], pytest.mark.gmqtt),
    "gmqtt-5": (lambda: [*gmqtt_program(), "5"], pytest.mark.gmqtt),
}
# What is not acknowledged is kept in a map by default.
SENDS_AGAIN_IN_ANY_ORDER = ("paho-go-3",)
COUNT = 20
NUMBERS = [str(number) for number in range(COUNT)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=mark) for name, (_, mark) in PROGRAMS.items()],
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def program(kind: str) -> Iterator[Program]:
    with Program(PROGRAMS[kind][0]()) as running:
        yield running


@pytest.fixture
def line(motelog_stack: MotelogProcess) -> Iterator[CutLine]:
    with CutLine(motelog_stack.mqtt) as cut_line:
        yield cut_line


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_published_arrives_once_and_in_order(
    motelog_stack: MotelogProcess, program: Program, kind: str, qos: int
) -> None:
    port = motelog_stack.mqtt[1]
    base = f"{kind}/exchange{qos}"
    reader = ProgramClient(program, f"{base}-r", port=port)
    writer = ProgramClient(program, f"{base}-w", port=port)
    reader.subscribe(f"{base}/+", qos)
    for number in NUMBERS:
        writer.publish(f"{base}/t", number, qos)
    writer.drain()
    assert reader.take(COUNT) == [(f"{base}/t", number, qos, False) for number in NUMBERS]
    for client in (reader, writer):
        client.disconnect()


@pytest.fixture(scope="module")
def by_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListenerServer]:
    files = certificates()
    tls = f'tls_certificate = "{files.server}"\ntls_key = "{files.server_key}"\n'
    tables = "".join(
        f'[[listener]]\nname = "{name}"\naddress = "127.0.0.1:0"\n{keys}'
        for name, keys in {
            "tls": tls,
            "ws": 'websocket = "/mqtt"\n',
            "wss": tls + 'websocket = "/mqtt"\n',
        }.items()
    )
    with ListenerServer(tmp_path_factory.mktemp("by-tls"), tables) as running:
        yield running


@pytest.mark.java
@pytest.mark.parametrize("version", ["4", "5"])
def test_hivemq_s_client_exchanges_by_tls_and_websocket(
    by_tls: ListenerServer, version: str
) -> None:
    with Program([*hivemq_program(), version]) as running:
        for listener in ("tls", "ws", "wss"):
            how: dict[str, Any] = {"port": by_tls.port(listener)}
            how |= {"ca": certificates().ca} if listener != "ws" else {}
            how |= {"websocket": "mqtt"} if listener != "tls" else {}
            base = f"{listener}-{version}"
            reader = ProgramClient(running, f"{base}-r", **how)
            writer = ProgramClient(running, f"{base}-w", **how)
            reader.subscribe(f"{base}/+", 2)
            for number in NUMBERS:
                writer.publish(f"{base}/t", number, 2)
            writer.drain()
            assert reader.take(COUNT) == [(f"{base}/t", number, 2, False) for number in NUMBERS]
            for client in (reader, writer):
                client.disconnect()


def test_retained_message_is_replaced_and_removed(
    motelog_stack: MotelogProcess, program: Program, kind: str
) -> None:
    port = motelog_stack.mqtt[1]
    topic = f"{kind}/retained/t"
    writer = ProgramClient(program, f"{kind}-retained-w", port=port)
    for payload in ("old", "new"):
        writer.publish(topic, payload, 1, retain=True)
    writer.drain()
    first = ProgramClient(program, f"{kind}-retained-1", port=port)
    first.subscribe(f"{kind}/retained/#", 1)
    assert first.take(1) == [(topic, "new", 1, True)]
    writer.publish(topic, "", 1, retain=True)
    writer.drain()
    assert first.take(2)[1:] == [(topic, "", 1, False)]
    second = ProgramClient(program, f"{kind}-retained-2", port=port)
    second.subscribe(f"{kind}/retained/#", 1)
    writer.publish(topic, "live", 1)
    assert second.take(1) == [(topic, "live", 1, False)]
    for client in (writer, first, second):
        client.disconnect()


def test_will_is_published_when_the_line_is_cut(
    motelog_stack: MotelogProcess, program: Program, kind: str, line: CutLine
) -> None:
    port = motelog_stack.mqtt[1]
    topic = f"{kind}/will/status"
    watcher = ProgramClient(program, f"{kind}-watcher", port=port)
    watcher.subscribe(topic, 1)
    will = {"topic": topic, "payload": "offline", "qos": 1, "retain": True}
    device = ProgramClient(program, f"{kind}-device", port=line.port, will=will)
    device.publish(topic, "online", 1, retain=True)
    assert watcher.take(1) == [(topic, "online", 1, False)]
    device.drain()
    line.hold()
    line.cut()
    assert watcher.take(2)[1:] == [(topic, "offline", 1, False)]
    late = ProgramClient(program, f"{kind}-late", port=port)
    late.subscribe(topic, 1)
    assert late.take(1) == [(topic, "offline", 1, True)]
    # One that says goodbye leaves no will.
    other = ProgramClient(program, f"{kind}-polite", port=port, will=will)
    other.disconnect()
    watcher.disconnect()
    late.disconnect()
    assert len(watcher.messages) == 2


def test_members_share_a_subscription(
    motelog_stack: MotelogProcess, program: Program, kind: str
) -> None:
    port = motelog_stack.mqtt[1]
    members = [ProgramClient(program, f"{kind}-member{n}", port=port) for n in range(2)]
    for member in members:
        member.subscribe(f"$share/group/{kind}/shared/#", 1)
    writer = ProgramClient(program, f"{kind}-shared-w", port=port)
    watcher = ProgramClient(program, f"{kind}-shared-watch", port=port)
    watcher.subscribe(f"{kind}/shared/#", 1)
    for number in NUMBERS:
        writer.publish(f"{kind}/shared/t", number, 1)
    writer.drain()
    watcher.take(COUNT)
    # Of neither it is known how many come; both are there when the last has come to one of them.
    program.wait(f"{kind}-member0", lambda _: sum(len(m.messages) for m in members) == COUNT)
    got = [[payload for _, payload, _, _ in member.messages] for member in members]
    assert sorted(got[0] + got[1], key=int) == NUMBERS
    for numbers in got:
        assert numbers
        assert numbers == sorted(numbers, key=int)
    for client in (*members, writer, watcher):
        client.disconnect()


@pytest.mark.parametrize("qos", [1, 2])
def test_session_is_kept_while_the_line_is_down_and_for_the_next_run(
    motelog_stack: MotelogProcess, program: Program, kind: str, line: CutLine, qos: int
) -> None:
    topic = f"{kind}/kept{qos}/t"
    client_id = f"{kind}-kept{qos}"
    writer = ProgramClient(program, f"{client_id}-w", port=motelog_stack.mqtt[1])
    reader = ProgramClient(program, client_id, port=line.port, keep=True)
    assert reader.wait_connected(1) is False
    reader.subscribe(topic, qos)
    line.hold()
    line.cut()
    for number in NUMBERS:
        writer.publish(topic, number, qos)
    writer.drain()
    assert reader.messages == []
    line.release()
    assert reader.wait_connected(2) is not False
    assert reader.take(COUNT) == [(topic, number, qos, False) for number in NUMBERS]
    # There and back until the exchanges are over. What a client has not finished it forgets with
    # its process, and then rumqttc takes PUBREL for a fault, connection after connection.
    for _ in range(3):
        reader.subscribe(f"{topic}/other", qos)
    reader.disconnect()
    for number in NUMBERS:
        writer.publish(topic, number, qos)
    writer.drain()
    again = ProgramClient(program, f"{client_id}-2", port=line.port, client_id=client_id, keep=True)
    assert again.wait_connected(1) is True
    assert again.take(COUNT) == [(topic, number, qos, False) for number in NUMBERS]
    again.disconnect()
    writer.disconnect()


@pytest.mark.parametrize("qos", [1, 2])
def test_publishes_outlive_a_line_that_is_cut_between_two_bytes(
    motelog_stack: MotelogProcess, program: Program, kind: str, line: CutLine, qos: int
) -> None:
    topic = f"{kind}/cut{qos}/t"
    reader = ProgramClient(program, f"{kind}-cut{qos}-r", port=motelog_stack.mqtt[1])
    reader.subscribe(topic, qos)
    writer = ProgramClient(program, f"{kind}-cut{qos}-w", port=line.port, keep=True)
    line.cut_and_hold_after(150)
    for number in NUMBERS:
        writer.publish(topic, number, qos)
    assert line.wait_cut(DEADLINE_S)
    assert len(reader.messages) < COUNT
    line.release()
    writer.drain()
    program.wait(f"{kind}-cut{qos}-r", lambda _: {m[1] for m in reader.messages} == set(NUMBERS))
    numbers = [payload for _, payload, _, _ in reader.messages]
    if qos == 2:
        # paho-go-3 stores that it sent PUBREL after it did, and sends PUBLISH again where the line
        # is cut in between: the same message to it, another one to any server.
        twice = [payload.decode() for payload in sent_again_after_pubrel(line.sent)]
        assert Counter(numbers) <= Counter(NUMBERS + twice)
    numbers = list(dict.fromkeys(numbers))  # the first copies
    if kind in SENDS_AGAIN_IN_ANY_ORDER:
        numbers.sort(key=int)
    assert numbers == NUMBERS
    writer.disconnect()
    reader.disconnect()
