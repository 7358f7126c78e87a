"""HOST:PORT options of the commands that connect to something."""

from __future__ import annotations

from motelog.cli.output import CliError


def address(option: str, text: str) -> tuple[str, int]:
    """Return (host, port); CliError names the option."""
    from motelog.core.addresses import parse_address

    try:
        return parse_address(text)
    except ValueError as exc:
        raise CliError(f"{option}: {exc}", status=2) from exc
