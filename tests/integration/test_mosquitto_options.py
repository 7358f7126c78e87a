"""``motelog pub`` and ``sub`` beside mosquitto_pub and mosquitto_sub, with the same arguments.

The command lines are those of mosquitto's man pages and their kind, against our server.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from motelog.testing import MotelogProcess
from tests.support.cli import motelog, started_motelog

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="mosquitto's clients are not installed"
)

# In mosquitto_pub(1), "Examples"; then what its options add.
PUBLISHED = [
    ["-t", "sensors/temperature", "-m", "32", "-q", "1"],
    ["-t", "sensors/temperature", "-m", "1266193804 32"],
    ["-r", "-t", "switches/kitchen_lights/status", "-m", "on"],
    ["-t", "my/topic", "-f", "{file}"],
    ["-t", "my/topic", "-s"],
    ["-t", "sensors/cc128", "-l"],
    ["-t", "my/topic", "-n"],
    ["-t", "my/topic", "-m", "x", "-V", "mqttv31", "-q", "2", "-i", "me", "-k", "10"],
    ["-t", "my/topic", "-m", "x", "-V", "311", "-c", "-i", "me", "-u", "user", "-P", "secret"],
    ["-t", "my/topic", "-m", "x", "-V", "5", "-D", "publish", "content-type", "text/plain",
     "-D", "publish", "user-property", "name", "value", "-D", "publish", "response-topic", "r"],
    ["-t", "my/topic", "-m", "x", "--will-topic", "gone", "--will-payload", "bye",
     "--will-qos", "1", "--will-retain"],
    ["-t", "my/topic", "-m", "x", "--repeat", "2", "--repeat-delay", "0.01"],
]  # fmt: skip
LINES = b"first \\0\nsecond\n\nlast"

RETAINED = {
    "man/plain": "hello",
    "man/json": '{"a": {"b": "ü"}}',
    "man/deep/er": "x y",
    "out/a": "o",
}
# In mosquitto_sub(1), "Examples"; then what its options add. Messages are retained, so that none
# can be missed.
SUBSCRIBED = [
    ["-t", "man/plain", "-q", "1", "-C", "1"],
    ["-t", "man/+/er", "-C", "1"],
    ["-v", "-t", "man/#", "-C", "3"],
    ["-F", "@Y-@m-@dT@H:@M:@S@z : %t : %x", "-t", "man/#", "-C", "3"],
    ["-F", "@s.@N : %r : %q : %m : %l", "-q", "2", "-t", "man/plain", "-C", "1"],
    ["-F", r"\e[92m%t \e[96m%p\e[0m", "-q", "2", "-t", "man/#", "-C", "3"],
    ["-t", "man/#", "-T", "man/json", "-C", "2"],
    ["-t", "man/plain", "-t", "out/a", "-N", "-F", "[%-9t|%3.2t|%05l|%X]", "-C", "2", "-V", "5"],
    ["-t", "man/json", "-F", "%j", "-q", "0", "-C", "1"],
    ["-t", "man/json", "-F", "%J", "-q", "0", "-C", "1", "--pretty"],
    ["-t", "out/a", "-E", "-i", "leaves", "-c"],
    ["-t", "man/#", "-R", "-W", "1"],
]
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z?[+]\d{4}|\d{10}\.\d{9}")


def run(program: list[str], arguments: list[str], port: int) -> subprocess.CompletedProcess[bytes]:
    command = [*program, "-h", "localhost", "-p", str(port), *arguments]
    return subprocess.run(command, input=LINES, capture_output=True, timeout=30, check=False)


def ours(command: str) -> list[str]:
    return [sys.executable, "-m", "motelog", command]


def test_published_messages_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"of a file\n\xff")
    with MotelogProcess() as stack:
        port = stack.mqtt[1]
        shown = "%t %x %r %C %P %R"
        options = ["-t", "#", "-F", shown, "--retain-as-published", "--to", stack.ready["mqtt"]]
        with started_motelog("sub", *options) as subscriber:
            assert subscriber.stderr is not None
            assert subscriber.stdout is not None
            assert subscriber.stderr.readline() == "subscribed to # with QoS 1\n"
            for number, line in enumerate(PUBLISHED):
                arguments = [word.format(file=tmp_path / "data") for word in line]
                outcomes = []
                for program in (["mosquitto_pub"], ours("pub")):
                    result = run(program, arguments, port)
                    mark = ["-t", "mark", "-m", str(number)]
                    run(["mosquitto_pub"], mark, port)
                    messages = list(
                        iter(subscriber.stdout.readline, f"mark {mark[3].encode().hex()} 0   \n")
                    )
                    outcomes.append((result.returncode, result.stdout, messages))
                assert outcomes[0] == outcomes[1], line
                assert outcomes[0][2], line
            subscriber.terminate()


def test_received_messages_are_printed_the_same() -> None:
    def outcome(program: list[str], line: list[str]) -> list[str]:
        result = run(program, line, port)
        text = TIME.sub("TIME", result.stdout.decode())
        # Which of several retained messages comes first is the server's business.
        return sorted(text.splitlines())

    with MotelogProcess() as stack, ThreadPoolExecutor(4) as pool:
        port = stack.mqtt[1]
        for topic, text in RETAINED.items():
            run(["mosquitto_pub"], ["-t", topic, "-m", text, "-r", "-q", "1"], port)
        # One after the other: they share client identifiers.
        theirs = list(pool.map(lambda line: outcome(["mosquitto_sub"], line), SUBSCRIBED))
        mine = pool.map(lambda line: outcome(ours("sub"), line), SUBSCRIBED)
        for line, expected, printed in zip(SUBSCRIBED, theirs, mine, strict=True):
            assert printed == expected, line
        # What -c has left behind are sessions.
        sessions = motelog("session", "list", "--admin", stack.ready["admin"], "--json").stdout
        assert '"leaves"' in sessions


def test_retained_messages_are_removed_as_mosquitto_does() -> None:
    with MotelogProcess() as stack:
        port = stack.mqtt[1]
        for topic in ("bbc/one", "bbc/two"):
            run(["mosquitto_pub"], ["-t", topic, "-m", "x", "-r", "-q", "1"], port)
        result = run(ours("sub"), ["-t", "bbc/#", "--remove-retained", "-C", "2"], port)
        assert result.stdout == b"x\nx\n"
        result = run(["mosquitto_sub"], ["-t", "bbc/#", "-W", "1"], port)
        assert result.stdout == b""
