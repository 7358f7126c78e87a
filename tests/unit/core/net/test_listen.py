"""Listening sockets: what is opened, and what an address that cannot be had says."""

from __future__ import annotations

import errno
import socket
from contextlib import closing

import pytest

from motelog.core.net.listen import open_listener


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0"])
def test_a_listener_takes_connections_and_does_not_block(address: str) -> None:
    with closing(open_listener(address)) as listener:
        assert not listener.getblocking()
        with pytest.raises(BlockingIOError):
            listener.accept()
        with closing(socket.create_connection(listener.getsockname()[:2], timeout=5)):
            pass


def test_a_taken_address_is_named() -> None:
    with closing(open_listener("127.0.0.1:0")) as listener:
        host, port = listener.getsockname()
        with pytest.raises(OSError, match=f"cannot listen on {host}:{port}") as taken:
            open_listener(f"{host}:{port}")
    assert taken.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("address", ["127.0.0.1", "::1:80", "127.0.0.1:65536", ":80"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"address|HOST:PORT|65535"):
        open_listener(address)
