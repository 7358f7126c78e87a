"""What the commands that query brokers and name servers share: options, clients for one call.

Owns: ``--namesrv``, ``--credentials`` and ``--tls``, running an Admin or a consumer for the length
of a call, which topics are the system's own. Must not touch: what is requested.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from motelog.cli.credentials import CredentialsFile, credentials_of
from motelog.cli.output import CliError
from motelog.cli.running import run_interruptibly
from motelog.cli.status import Status
from motelog.cli.tls import TlsFile, tls_of

if TYPE_CHECKING:
    from motelog.bridge.admin import Admin
    from motelog.bridge.admin_answers import BrokerInfo
    from motelog.bridge.pull import PullConsumer


def checked_namesrv(text: str | None) -> str | None:
    """Return the value of ``--namesrv``; CliError if it is not an address."""
    from motelog.bridge.client import parse_namesrv

    try:
        return text if text is None else ";".join(parse_namesrv(text))
    except ValueError as exc:
        raise CliError(f"--namesrv: {exc}", status=Status.USAGE) from exc


Namesrv = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT", help="Name server; separate several by ';'.", callback=checked_namesrv
    ),
]
NAMESRV: Final = "127.0.0.1:9876"
# For reading without a real group; nothing is committed for it.
GROUP: Final = "motelog-cli"

T = TypeVar("T")


@dataclass(frozen=True)
class Servers:
    """The servers that a command asks, as its options name them; clients of them."""

    namesrv: Namesrv = NAMESRV
    credentials: CredentialsFile = None
    tls: TlsFile = None

    @cached_property
    def options(self) -> dict[str, Any]:
        """What any native client is made with; ConfigError if a file cannot be used."""
        return {
            "namesrv": self.namesrv,
            "credentials": credentials_of(self.credentials),
            "tls": tls_of(self.tls),
        }

    def with_admin(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Call ``work`` with an Admin and return its result."""
        from motelog.bridge.admin import Admin

        options = self.options

        async def run() -> T:
            async with Admin(**options) as admin:
                return await work(admin)

        return run_interruptibly(run)

    def with_both(self, work: Callable[[Admin, PullConsumer], Awaitable[T]]) -> T:
        """Call ``work`` with an Admin and a consumer without a group, and return its result."""
        from motelog.bridge.pull import PullConsumer

        async def run(admin: Admin) -> T:
            async with PullConsumer(**self.options, group=GROUP) as consumer:
                return await work(admin, consumer)

        return self.with_admin(run)


def kind_of_topic(name: str, brokers: Iterable[BrokerInfo]) -> str:
    """Return what a topic is for: "messages", "retries", "dead letters", "light queue", "system".

    Brokers, ours and Apache's, have topics named after themselves and after their cluster.
    """
    from motelog.core import topic_names as names

    prefixes = {
        names.DLQ_PREFIX: "dead letters",
        names.RETRY_PREFIX: "retries",
        names.LMQ_PREFIX: "light queue",
    }
    for prefix, kind in prefixes.items():
        if name.startswith(prefix):
            return kind
    own = {text for one in brokers for text in (one.name, one.cluster)}
    is_reply_topic = name.removesuffix("_REPLY_TOPIC") in own
    if name in names.SYSTEM_TOPICS | own or is_reply_topic or name.lower().startswith("rmq_sys_"):
        return "system"
    return "messages"
