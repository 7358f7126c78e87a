"""Chromium as a test's browser, told over a pipe what to do (Chrome DevTools Protocol).

Owns: its process, the pages that it opens, what they have asked the network for.
Must not touch: expectations; those are the tests'.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

DEADLINE_S: Final = 60.0
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")


def found() -> str | None:
    """Return the program, None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page; ``requests`` are the addresses that it has asked for, ``faults`` its errors."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._number = 0
        self._read = b""
        self._session = ""
        self._loads = 0
        self.requests: list[str] = []
        self.faults: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def open(self, address: str) -> None:
        """Load a page to its end."""
        self.leads_on(lambda: self._ask("Page.navigate", url=address))

    def leads_on(self, act: Callable[[], Any]) -> None:
        """Do what leads to another page, and wait for its end."""
        loads = self._loads
        act()
        while self._loads == loads:
            self._note(self._next())

    def value(self, script: str) -> Any:
        """Return what a script comes to; it may await."""
        answer = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: Callable[[], Any]) -> None:
        """Return when something is so."""
        end_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end_s, "it has not come about"
            self.value("new Promise(then => setTimeout(then, 50))")

    def press(self, key: str, code: int) -> None:
        """Press a key, as Tab (9), Enter (13) or Space (32)."""
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        name = {"Space": " "}.get(key, key)
        about = {"key": name, "code": key, "windowsVirtualKeyCode": code}
        self._ask("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self._ask("Input.dispatchKeyEvent", type="keyUp", **about)

    def shows(self, width: int, height: int, scheme: str) -> None:
        """Have the page shown in a size, light or dark."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._ask("Emulation.setEmulatedMedia", features=[feature])

    def without_scripts(self, address: str) -> str:
        """Load a page in which no script runs, and return it as it is shown."""
        self._ask("Emulation.setScriptExecutionDisabled", value=True)
        self.open(address)
        root = self._ask("DOM.getDocument")["root"]["nodeId"]
        html: str = self._ask("DOM.getOuterHTML", nodeId=root)["outerHTML"]
        return html

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        about = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loads += 1
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            case "Runtime.exceptionThrown":
                self.faults.append(str(about["exceptionDetails"]))
            case "Log.entryAdded":
                self.faults.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            data = os.read(self._answers, 1 << 16)
            assert data, "the browser has gone"
            self._read += data
        line, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def opened(folder: Path) -> Iterator[Page]:
    """Run Chromium with a profile of its own, for the length of the block."""
    program = found()
    assert program is not None
    ours_out, theirs_in = os.pipe()[::-1]
    ours_in, theirs_out = os.pipe()
    options = (
        "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run"
        " --disable-background-networking --disable-component-update --remote-debugging-pipe"
    )
    # The pipe is at descriptors 3 and 4; a shell puts it there.
    shell = f'exec "{program}" {options} --user-data-dir="{folder}" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", shell],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_out, ours_in)
    finally:
        os.close(ours_out)  # it ends with the pipe
        os.close(ours_in)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
