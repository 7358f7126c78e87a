"""HOST:PORT as text and as values: the one parser and writer of addresses.

Owns: that form. Must not touch: sockets, which addresses are allowed.
"""

from __future__ import annotations

import re
from typing import Final

PORT_MAX: Final = 65_535
_NOT_IN_HOST: Final = re.compile(r"[\s;\[\]]")


def parse_address(text: str, *, port_min: int = 0) -> tuple[str, int]:
    """Return (host, port) of ``HOST:PORT`` or ``[IPV6]:PORT``; ValueError says what is wrong.

    A listener takes port 0 for any free one; to connect, ask for ``port_min`` 1.
    """
    if "://" in text:
        raise ValueError(f"{text!r} is not HOST:PORT: leave out what is before //")
    host, colon, port_text = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address needs brackets, as in [::1]:1883")
    is_number = port_text.isascii() and port_text.isdigit() and len(port_text) <= 5
    if not colon or not host or _NOT_IN_HOST.search(host) or not is_number:
        raise ValueError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:1883")
    port = int(port_text)
    if not port_min <= port <= PORT_MAX:
        limits = f"a port is at least {port_min} and at most {PORT_MAX}"
        raise ValueError(f"{text!r} is not HOST:PORT: {limits}")
    return host, port


def format_address(host: str, port: int) -> str:
    """Return the text that ``parse_address`` reads as these values."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
