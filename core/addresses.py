"""HOST:PORT as text and as values: the one parser and writer of addresses; URLs without logins.

Owns: these forms. Must not touch: sockets, which addresses are allowed.
"""

from __future__ import annotations

import re
from typing import Any, Final

PORT_MAX: Final = 65_535
_NOT_IN_HOST: Final = re.compile(r"[\s;\[\]]")
#: Shown in place of a secret.
REMOVED: Final = "[removed]"
# A password may have "@" in it, though it should not.
_LOGIN_OF_URL: Final = re.compile(r"(?<=://)[^/\s\"']+(?=@)")


def parse_address(text: str, *, port_min: int = 0) -> tuple[str, int]:
    """Return (host, port) of ``HOST:PORT`` or ``[IPV6]:PORT``; ValueError names the fault.

    A listener takes port 0 for any free one; to connect, pass ``port_min`` 1.
    """
    if "://" in text:
        raise ValueError(f"{without_logins(text)!r} is not HOST:PORT: remove the part before //")
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


def without_logins(value: Any) -> Any:
    """Return a value to be shown: URLs in a text, list or table lose their user and password."""
    match value:
        case str():
            return _LOGIN_OF_URL.sub(REMOVED, value)
        case list() | tuple():
            return type(value)(without_logins(one) for one in value)
        case dict():
            return {key: without_logins(one) for key, one in value.items()}
    return value
