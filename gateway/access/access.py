"""The access control of one gateway: its logins, its rules, and their files.

Owns: which files there are, when they are reloaded, what happens if a file cannot be read.
Must not touch: connections (``clients`` checks them again after a change).
Invariant: a file that cannot be read denies access. At the start, the start fails. Later, all
logins are refused until it is readable again; connected clients keep their rights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from motelog.core.clock import Clock
from motelog.core.lasting import run_again
from motelog.core.net.config import ListenerConfig
from motelog.core.threads import run_in_thread
from motelog.gateway.access.acl import Acl, read_acl
from motelog.gateway.access.certificates import Certificates
from motelog.gateway.access.config import AccessConfig
from motelog.gateway.access.login import Authenticator
from motelog.gateway.access.logins import Logins
from motelog.gateway.access.password_file import AccessFileError, Stamp, file_stamp
from motelog.gateway.access.passwords import Passwords
from motelog.gateway.access.remote import RemoteLogins
from motelog.gateway.access.scram_logins import ScramLogins

if TYPE_CHECKING:
    from motelog.gateway.access.tokens import Tokens

logger = logging.getLogger(__name__)

#: How often files are checked for changes; a change takes effect within five seconds.
LOOK_S: Final = 1.0


class _Read(Protocol):
    """Content that is read from a file, and used if reading succeeded."""

    path: str

    def stamp(self) -> Stamp: ...

    def read(self) -> Any:
        """Return the content for ``use``; None if it is unchanged."""
        ...

    def use(self, content: Any, /) -> None: ...


class Rules:
    """The rules of the ACL file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.acl = Acl(())

    def stamp(self) -> Stamp:
        return file_stamp(self.path)

    def read(self) -> Acl:
        return read_acl(self.path)

    def use(self, acl: Acl) -> None:
        self.acl = acl


@dataclass(slots=True)
class _File:
    """One file, when it was last read, and why it could not be read."""

    content: _Read
    stamp: Stamp = None
    fault: str | None = None


class Access:
    """Which clients may connect to one gateway, and what they may do."""

    def __init__(
        self,
        config: AccessConfig,
        *,
        clock: Clock,
        count_login: Callable[[str, str], None],
        listeners: Sequence[ListenerConfig] = (),
    ) -> None:
        """``listeners`` are those other than the plain one, which accepts any login.

        ``count_login`` is called with the authenticator and the outcome of each login.
        """
        #: Listener number -> its logins, empty for all.
        self.logins_of: tuple[tuple[str, ...], ...] = ((), *(one.logins for one in listeners))
        chain: list[Authenticator] = []
        self._files: list[_File] = []
        self._services: list[RemoteLogins | Tokens] = []
        #: For clients that prove that they know a password; None if there are no passwords.
        self.scram: ScramLogins | None = None
        if config.certificate_users:
            chain.append(Certificates())
        if config.has_tokens:
            # Imported here, since its cryptography takes memory.
            from motelog.gateway.access.tokens import Tokens

            tokens = Tokens(config, clock=clock)
            chain.append(tokens)
            self._services.append(tokens)
            self._files.append(_File(tokens))
        if config.password_file:
            passwords = Passwords(config.password_file)
            chain.append(passwords)
            self.scram = ScramLogins(passwords.hash_of)
            chain.append(self.scram)
            self._files.append(_File(passwords))
        if config.http_url:
            remote = RemoteLogins(config, clock=clock)
            chain.append(remote)
            self._services.append(remote)
        self._rules = Rules(config.acl_file) if config.has_rules else None
        if self._rules is not None and config.acl_file:
            self._files.append(_File(self._rules))
        self.logins = Logins(
            chain,
            count=count_login,
            clock=clock,
            allow_anonymous=config.allow_anonymous,
            waiting_max=config.logins_waiting_max,
            threads=config.login_threads,
        )

    @property
    def acl(self) -> Acl | None:
        """The current rules; None if every client that has logged in may do everything."""
        return None if self._rules is None else self._rules.acl

    def read(self) -> None:
        """Read all files, before the first client is accepted; AccessFileError."""
        for file in self._files:
            file.stamp = file.content.stamp()
            file.content.use(file.content.read())

    @property
    def fault(self) -> str | None:
        """Why no client can log in; None while all files are readable."""
        return next((file.fault for file in self._files if file.fault is not None), None)

    async def follow(self, changed: Callable[[], None]) -> None:
        """Reload changed files until cancelled; call ``changed`` after each."""
        try:
            await run_again(self._look_regularly, changed)
        finally:
            self.close()

    async def _look_regularly(self, changed: Callable[[], None]) -> None:
        while True:
            await trio.sleep(LOOK_S)
            if await self.look():
                changed()

    def close(self) -> None:
        """Close the connections to services."""
        for one in self._services:
            one.close()

    async def look(self) -> bool:
        """Reload the changed files; return whether any of them could be read."""
        has_changed = False
        for file in self._files:
            stamp = await run_in_thread(file.content.stamp)
            if stamp == file.stamp and file.fault is None:
                continue
            try:
                content = await run_in_thread(file.content.read)
            except AccessFileError as exc:
                if str(exc) != file.fault:
                    logger.error("no client can log in until a file is fixed: %s", exc)
                file.fault = str(exc)
                continue
            file.fault, file.stamp = None, stamp
            if content is not None:
                logger.info("a file of logins or rights was reloaded path=%s", file.content.path)
                file.content.use(content)
                has_changed = True
        self.logins.fault = self.fault
        return has_changed
