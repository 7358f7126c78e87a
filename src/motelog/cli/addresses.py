"""HOST:PORT options, of commands that connect and of commands that listen."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from motelog.cli.output import CliError
from motelog.cli.status import Status

PORTS_TRIED: Final = 100


def address(option: str, text: str) -> tuple[str, int]:
    """Return (host, port); CliError names the option."""
    from motelog.core.addresses import parse_address

    try:
        return parse_address(text)
    except ValueError as exc:
        raise CliError(f"{option}: {exc}", status=Status.USAGE) from exc


def next_free(
    option: str, text: str, *, avoid: AbstractSet[int], below: int = 0
) -> tuple[str, int]:
    """Return the address with the next free port, counting up from its own, and that port.

    Neither the port nor the one ``below`` it is in ``avoid``. Port 0 (any free port) stays 0.
    """
    from motelog.core.addresses import PORT_MAX, format_address
    from motelog.core.net.listen import open_listener

    host, first = address(option, text)
    if first == 0:
        return text, 0
    for port in range(first, min(first + PORTS_TRIED, PORT_MAX + 1)):
        if port in avoid or port - below in avoid:
            continue
        found = format_address(host, port)
        try:
            open_listener(found).close()
        except OSError:
            continue
        return found, port
    raise CliError(
        f"{option}: no port from {first} to {port} is free", remedy="port 0 takes any free port"
    )
