"""The options and the report of a bench.

Owns: BenchOptions, BenchReport, BenchError and its subclasses. Must not touch: running a bench.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from motelog.core.errors import MotelogError

PAYLOAD_BYTES_MIN: Final = 16  # send time, run and sequence number
WINDOW_MAX: Final = 30_000  # so that packet identifiers do not run out


class BenchError(MotelogError):
    """The bench cannot run: bad options, no server, or a server that refuses."""


class BenchUnreachableError(BenchError):
    """No server listens at the address, or it went away."""


class BenchRefusedError(BenchError):
    """The server refused a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to run; a run consists of connecting, warm-up, measuring and draining."""

    host: str = "127.0.0.1"
    port: int = 1883
    connections: int = 100
    """Publishers of ``pub`` and ``pipe``, sessions of ``connect``."""
    publishers: int = 1
    """Publishers of ``fanout``: each subscriber receives the messages of all of them."""
    subscribers: int = 100
    """Subscribers of ``fanout``; ``pipe`` has one per publisher."""
    is_persistent: bool = False
    """Whether sessions outlive their connections: clean session is 0. Only for MQTT 3."""
    run_id: int | None = None
    """Makes client identifiers, so that a later run can reuse them; None: new ones."""
    window: int = 20
    """Messages in flight per publisher."""
    rate: int = 0
    """Messages a second of all publishers together, evenly spaced; 0: as the windows allow."""
    names: int = 0
    """Number of topic names of the publishers of ``pub``; 0: one for each."""
    qos: int = 1
    payload_bytes: int = 64
    duration_s: float = 5.0
    """Time that is measured; for ``connect``: how long sessions are held."""
    warm_up_s: float = 1.0
    drain_s: float = 2.0
    """Longest wait for late answers at the end."""
    version: int = 4
    """4 is MQTT 3.1.1."""
    server_pid: int | None = None
    """A process whose CPU time and memory are reported."""
    connect_timeout_s: float = 30.0
    connecting_max: int = 90
    """Connections that are opened at once; a common listen backlog is 100."""
    keep_alive_s: int = 60
    """Keep alive of all clients; after three quarters of it they send PINGREQ."""
    tries_again: bool = False
    """Whether a client that a busy server refuses tries again, as devices do."""
    sources: tuple[str, ...] = ()
    """Local addresses of the connections, in turn; empty: the system chooses."""
    topic_prefix: str = "bench"
    progress: Callable[[str], None] | None = None
    """Called with a line about once a second."""

    def __post_init__(self) -> None:
        """Raise BenchError that names every invalid option."""
        faults = [
            f"{name} is {getattr(self, name)}, not in {low} .. {high}"
            for name, low, high in (
                ("port", 1, 65_535),
                ("connections", 1, 1_000_000),
                ("connecting_max", 1, 10_000),
                ("publishers", 1, 1_000_000),
                ("subscribers", 1, 1_000_000),
                ("window", 1, WINDOW_MAX),
                ("rate", 0, 10_000_000),
                ("names", 0, 100_000_000),
                ("qos", 0, 2),
                ("payload_bytes", PAYLOAD_BYTES_MIN, 1 << 20),
                ("duration_s", 0, 86_400),
                ("warm_up_s", 0, 3_600),
                ("drain_s", 0, 60),
                ("version", 4, 5),
                ("keep_alive_s", 1, 65_535),
            )
            if not low <= getattr(self, name) <= high
        ]
        if faults:
            raise BenchError("; ".join(faults))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """The results; times in microseconds are of single messages."""

    kind: str
    version: int
    qos: int
    publishers: int
    subscribers: int
    window: int
    rate_asked: int
    """Target rate of the publishers; 0: as the windows allow."""
    payload_bytes: int
    messages: int
    """Acknowledged (pub), delivered (pipe, fanout) or sessions opened (connect), while measured."""
    seconds: float
    rate: float
    """Messages a second."""
    latency_us_p50: float
    latency_us_p90: float
    latency_us_p99: float
    latency_us_p99_9: float
    lost: int
    """Never acknowledged or never delivered, over the whole run."""
    duplicates: int
    """Delivered or acknowledged more than once."""
    errors: int
    """Connections that ended, refusals, unexpected answers."""
    error_examples: tuple[str, ...]
    client_cpu_us: float
    server_cpu_us: float | None
    server_rss_bytes: int | None
    server_session_bytes: int | None
    """Growth of the server's memory per session (connect), without file pages."""
    """Whether this client used the reactor kernel."""
    python: str
    machine: str
