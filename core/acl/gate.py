"""The gate before a server's processors: which account sent a request, and whether it may do so.

Owns: the rules in force, the file that they come from, the refusal. Must not touch: what a request
does, which right a request needs (a server's table), the users that tools have created (users).

    request -> signed by a known account? -> does it have these rights?  -> processor
                       '---------------- NO_PERMISSION ----------------'

A request code that is missing from the table is refused, so a processor that was forgotten there is
closed, not open. A processor that learns more than the request says calls ``demand``.
The file is checked every second. While it cannot be read or is invalid, all requests are refused:
an account that was removed must not get access because of a typing error elsewhere in the file.
A change applies at once: if an account was removed or has other rights, the connections on which it
signed are closed within a second, together with the requests that they still wait for.

Users that tools have created are added to the file's accounts: a broker puts its own, and a name
server checks the broker's file as it checks its own. A name that is in both means the account.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from motelog.core.acl.accounts import Need, Principal, Rules
from motelog.core.acl.addresses import NO_ADDRESSES, Addresses
from motelog.core.acl.files import read_rules
from motelog.core.acl.needs import NeedsOf, Table
from motelog.core.acl.users import read_users
from motelog.core.errors import BrokerError, ConfigError, StoreDamagedError
from motelog.core.limited_log import LimitedByKey
from motelog.core.remoting.credentials import ACCESS_KEY, is_signed
from motelog.core.remoting.frames import RemotingCommand, ResponseCode
from motelog.core.remoting.server import Connection, Processor, RemotingServer
from motelog.core.threads import run_in_thread

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
# With this, an unknown account takes as long as a wrong signature.
_NO_SECRET: Final = bytes(16)
_UNSIGNED: Final = "this server accepts only signed requests: the client needs an access key"
_WRONG: Final = "the access key is not known here, or the signature is not that of its secret key"

# Differs when a file's content differs: time, size, inode number; None without a file.
_Stamp = tuple[int, int, int] | None


class AclGate:
    """The rules before one server; state changes only between two awaits of ``run``."""

    def __init__(self, path: str, table: Table, users_path: str = "") -> None:
        """Read the file, and the file of a broker's users if it is named; ConfigError if one of
        them cannot be used.
        """
        self._path = path
        self._users_path = users_path
        self._table = table
        self._stamps = self._look()
        self._users: Mapping[str, Principal] = {}
        self._file: Rules | None = None
        self._rules = _NOBODY
        self._take(*self._read())
        self._refusals = LimitedByKey(logger)
        self.refused_count = 0

    def guard(self, processors: Mapping[int, Processor]) -> dict[int, Processor]:
        """Return the processors, each behind the gate."""
        return {
            code: self._guarded(process, self._table.get(code, _closed))
            for code, process in processors.items()
        }

    def _guarded(self, process: Processor, needs_of: NeedsOf) -> Processor:
        def guarded(request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
            # The needs are read only for a known account: they may be in a large body.
            account = self._account(request, connection)
            if account is not None:
                self._judge(request, connection, account, needs_of(request))
            return process(request, connection)

        return guarded

    def demand(self, request: RemotingCommand, connection: Connection, *needs: Need) -> None:
        """Refuse a request that has passed the gate unless its account has these rights too.

        The rules may have changed since.
        """
        account = self._account(request, connection)
        if account is not None:
            self._judge(request, connection, account, needs)

    def may(self, connection: Connection, need: Need) -> bool:
        """Return whether the server may send a client, unasked, something that needs this right.

        It may if one of the accounts that have signed on its connection has the right.
        """
        rules = self._rules
        host = connection.peer[0]
        if rules.white.holds(host):
            return True
        return any(
            account.may(need, host)
            for key in connection.access_keys
            if (account := rules.principals.get(key)) is not None
        )

    def has_signed(
        self, request: RemotingCommand, connection: Connection, other: Connection
    ) -> bool:
        """Return whether a request's account signed on another connection or needs no rights."""
        account = self._account(request, connection)
        return account is None or account.access_key in other.access_keys

    def _account(self, request: RemotingCommand, connection: Connection) -> Principal | None:
        """Return the account of a request; None if its address needs no rights."""
        rules = self._rules
        host = connection.peer[0]
        if rules.white.holds(host):
            return None
        key = request.ext.get(ACCESS_KEY)
        if not key:  # some clients send an empty one
            raise self._refusal(request, connection, _UNSIGNED)
        account = rules.principals.get(key)
        passes = account is not None and account.white.holds(host)
        secret = _NO_SECRET if account is None else account.secret
        if not (passes or is_signed(request, secret)) or account is None:
            raise self._refusal(request, connection, _WRONG)
        if key not in connection.access_keys:
            connection.access_keys |= {key}
        return None if passes else account

    def _judge(
        self,
        request: RemotingCommand,
        connection: Connection,
        account: Principal,
        needs: Iterable[Need],
    ) -> None:
        for need in needs:
            if not account.may(need, connection.peer[0]):
                text = f"the account {account.access_key} does not have {need}"
                raise self._refusal(request, connection, text)

    def _refusal(self, request: RemotingCommand, connection: Connection, text: str) -> BrokerError:
        self.refused_count += 1
        host = connection.peer[0]
        self._refusals.warning(
            host,
            "access control has refused a request peer=%s:%d code=%d reason=%s count=%d",
            *connection.peer,
            request.code,
            ascii(text[:200]),
        )
        return BrokerError(ResponseCode.NO_PERMISSION, text)

    def put_users(self, users: Mapping[str, Principal]) -> None:
        """Replace the users that are accepted beside the file's accounts."""
        self._take(self._file, users)

    def is_in_file(self, name: str) -> bool:
        """Return whether the file of accounts has this name."""
        return self._file is not None and name in self._file.accounts

    def _take(self, file: Rules | None, users: Mapping[str, Principal]) -> None:
        """Put these rules in force; without a usable file all requests are refused."""
        self._file, self._users = file, users
        if file is None:
            self._rules = _NOBODY
            return
        both = sorted(users.keys() & file.accounts.keys())
        if both:
            logger.warning(
                "users that tools have created are also in the file of accounts, which applies:"
                " delete them here or there path=%s count=%d first=%a",
                self._path,
                len(both),
                both[0],
            )
        self._rules = _InForce({**users, **file.accounts}, file.white)

    async def run(self, server: RemotingServer) -> None:
        """Check the files every second, until cancelled."""
        seen, applied = self._stamps, self._rules
        while True:
            await trio.sleep(LOOK_INTERVAL_S)
            stamps = await run_in_thread(self._look)
            # A file that has just changed may be half written; it gets a second.
            is_settled, seen = stamps == seen, stamps
            if is_settled and stamps != self._stamps:
                self._stamps = stamps
                await self._read_again()
            if self._rules is not applied:
                before, applied = applied, self._rules
                server.close_where(_has_lost(before, applied), "its account has changed")

    async def _read_again(self) -> None:
        try:
            file, users = await run_in_thread(self._read)
        except ConfigError as exc:
            self._take(None, self._users)
            logger.error(
                "the file of accounts cannot be used, and all requests are refused until it can"
                " error=%s",
                exc,
            )
            return
        # A broker puts its own users, perhaps while the file was being read.
        self._take(file, users if self._users_path else self._users)
        logger.info(
            "the file of accounts has changed and applies path=%s accounts=%d users=%d",
            self._path,
            len(file.accounts),
            len(self._users),
        )

    def _read(self) -> tuple[Rules, Mapping[str, Principal]]:
        rules = read_rules(self._path)
        if not self._users_path:
            return rules, {}
        try:
            return rules, read_users(self._users_path)
        except (StoreDamagedError, OSError) as exc:
            raise ConfigError(f"{self._users_path}: cannot be read: {exc}") from exc

    def _look(self) -> tuple[_Stamp, _Stamp]:
        return _stamp(self._path), _stamp(self._users_path) if self._users_path else None


@dataclass(frozen=True, slots=True)
class _InForce:
    """The accounts and users by access key, and the addresses whose requests all pass."""

    principals: Mapping[str, Principal] = field(default_factory=dict)
    white: Addresses = NO_ADDRESSES


_NOBODY: Final = _InForce()


def _has_lost(before: _InForce, now: _InForce) -> Callable[[Connection], bool]:
    """Return a test whether a connection was used under rights that have changed since."""
    changed = {key for key, each in before.principals.items() if now.principals.get(key) != each}
    is_whitelist_changed = before.white != now.white

    def has_lost(connection: Connection) -> bool:
        if not changed.isdisjoint(connection.access_keys):
            return True
        host = connection.peer[0]
        return is_whitelist_changed and before.white.holds(host) and not now.white.holds(host)

    return has_lost


def _closed(request: RemotingCommand) -> Iterable[Need]:
    text = f"request code {request.code} is closed under access control"
    raise BrokerError(ResponseCode.NO_PERMISSION, text)


def _stamp(path: str) -> _Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
