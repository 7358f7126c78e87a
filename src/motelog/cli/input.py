"""Message bodies from an option or from standard input, shared by ``pub`` and ``produce``.

Owns: the option, reading standard input. Must not touch: what is done with a body.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated

import typer

READ_BYTES = 65_536

Body = Annotated[
    str | None,
    typer.Option(
        "--message", "-m", metavar="TEXT", help="Body. [default: each line of standard input]"
    ),
]


async def bodies(message: str | None, count: int) -> AsyncGenerator[bytes]:
    """Yield ``message`` ``count`` times; without one, each line of standard input."""
    if message is not None:
        for _ in range(count):
            yield message.encode()
        return
    rest: list[bytes] = []
    async for part in _parts():
        *complete, last = part.split(b"\n")
        for line in complete:
            yield b"".join((*rest, line)).rstrip(b"\r")
            rest.clear()
        rest.append(last)
    if line := b"".join(rest).rstrip(b"\r"):
        yield line


async def whole() -> bytes:
    """Return all of standard input."""
    return b"".join([part async for part in _parts()])


async def _parts() -> AsyncIterator[bytes]:
    """Yield pieces of standard input as they arrive."""
    import os

    import trio

    # The descriptor, not sys.stdin: an abandoned thread would hold the buffer's lock at exit.
    while part := await trio.to_thread.run_sync(os.read, 0, READ_BYTES, abandon_on_cancel=True):
        yield part
