"""Listening sockets: what is opened, and what an address that cannot be had says."""

from __future__ import annotations

import errno
import socket
from contextlib import closing, suppress

import pytest

from motelog.core.net.listen import hold_address, is_this_machine, open_listener


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


def test_own_addresses_are_told_from_others() -> None:
    assert is_this_machine("127.0.0.1")
    assert is_this_machine("127.3.2.1")
    for host in ("192.0.2.7", "2001:db8::7", "no address"):
        assert not is_this_machine(host)


def test_an_address_is_shared_by_those_who_say_so() -> None:
    with closing(hold_address("127.0.0.1:0")) as held:
        host, port = held.getsockname()
        address = f"{host}:{port}"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), timeout=5)
        with (
            closing(open_listener(address, is_shared=True)) as one,
            closing(open_listener(address, is_shared=True)) as other,
        ):
            met: set[socket.socket] = set()
            while len(met) < 2:  # by a hash of the client's port
                with closing(socket.create_connection((host, port), timeout=5)):
                    for listener in (one, other):
                        with suppress(BlockingIOError):
                            listener.accept()[0].close()
                            met.add(listener)
            for attempt in (open_listener, hold_address):
                with pytest.raises(OSError, match=f"cannot listen on {address}"):
                    attempt(address)


def test_a_held_address_is_kept_while_nobody_listens() -> None:
    with closing(hold_address("127.0.0.1:0")) as held:
        host, port = held.getsockname()
        open_listener(f"{host}:{port}", is_shared=True).close()
        with pytest.raises(OSError, match="in use"):
            open_listener(f"{host}:{port}")
    open_listener(f"{host}:{port}").close()
