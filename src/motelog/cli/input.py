"""Message bodies from an option or from standard input, shared by ``pub`` and ``produce``."""

from __future__ import annotations

from collections.abc import AsyncIterator


async def bodies(message: str | None, count: int) -> AsyncIterator[bytes]:
    """Yield ``message`` ``count`` times; without one, each line of standard input."""
    import sys

    import trio

    if message is not None:
        for _ in range(count):
            yield message.encode()
        return
    read = sys.stdin.buffer.readline
    while line := await trio.to_thread.run_sync(read, abandon_on_cancel=True):
        yield line.rstrip(b"\r\n")


async def whole() -> bytes:
    """Return all of standard input."""
    import os

    import trio

    parts: list[bytes] = []
    # The descriptor and not sys.stdin: an abandoned thread would keep the buffer's lock at exit.
    while part := await trio.to_thread.run_sync(os.read, 0, 65_536, abandon_on_cancel=True):
        parts.append(part)
    return b"".join(parts)
