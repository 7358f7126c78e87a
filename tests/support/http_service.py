"""A service of the operator's over HTTP, on loopback, for tests.

Owns: its answers and what it was asked. Must not touch: who asks.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HttpService:
    """Answers each request with ``status`` and ``answer``; ``asked`` has the bodies as JSON."""

    def __init__(self) -> None:
        self.status = 200
        self.answer: Any = {}
        self.headers: dict[str, str] = {}
        self.asked: list[Any] = []
        #: Answers wait for it.
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.url = ""
        #: What closes the connections of who asks.
        self.ends: list[Callable[[], None]] = []

    def reply(self, body: bytes) -> bytes:
        self.asked.append(json.loads(body) if body else None)
        self.goes_on.wait(30)
        return self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()


@contextmanager
def http_service() -> Iterator[HttpService]:
    """Run a service in threads."""
    service = HttpService()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = service.reply(self.rfile.read(length))
            self.send_response(service.status)
            for name, value in service.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    service.url = f"http://127.0.0.1:{server.server_address[1]}/asked"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield service
    finally:
        service.goes_on.set()
        for end in service.ends:
            end()
        server.shutdown()
        thread.join()
        server.server_close()
