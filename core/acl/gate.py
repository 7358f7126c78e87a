"""The gate before a server's processors: whose request it is, and whether that one may ask it.

Owns: the rules in force, the file that they come from, the refusal. Must not touch: what a request
does, which request needs what (a server's table).

    request -> signed by a known account? -> has it what the table says? -> processor
                       '---------------- NO_PERMISSION ----------------'

A request code that the table does not have is refused: a processor that is forgotten there is
closed, not open. A processor that finds out more than the request says asks ``demand``.
The file is looked at every second. If it cannot be read, or says nothing that can be used, all
doors close until it can: whoever was taken out of it must not come in because of a slip beside.
What has changed counts at once: connections on which an account signed that is gone or has other
rights are closed, and what they had asked for before and still wait for with them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import trio

from motelog.core.acl.accounts import Account, Need, Rules
from motelog.core.acl.files import read_rules
from motelog.core.acl.needs import NeedsOf, Table
from motelog.core.errors import BrokerError, ConfigError
from motelog.core.limited_log import LimitedByKey
from motelog.core.remoting.credentials import ACCESS_KEY, is_signed
from motelog.core.remoting.frames import RemotingCommand, ResponseCode
from motelog.core.remoting.server import Connection, Processor, RemotingServer

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
_NO_RULES: Final = Rules()
# An unknown account costs as much as a wrong signature.
_NO_SECRET: Final = bytes(16)
_UNSIGNED: Final = "this server takes signed requests only: the client needs an access key"
_WRONG: Final = "the access key is not known here, or the signature is not that of its secret key"

# What tells one content of a file from another: time, size, number; None without a file.
_Stamp = tuple[int, int, int] | None


class AclGate:
    """The rules of one file before one server; state changes only between two awaits of ``run``."""

    def __init__(self, path: str, table: Table) -> None:
        """Read the file; ConfigError if it cannot be used."""
        self._path = path
        self._table = table
        self._stamp = _stamp(path)
        self._rules = read_rules(path)
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
            # What is needed is read only for a known account: it may be a large body.
            account = self._account(request, connection)
            if account is not None:
                self._judge(request, connection, account, needs_of(request))
            return process(request, connection)

        return guarded

    def demand(self, request: RemotingCommand, connection: Connection, *needs: Need) -> None:
        """Refuse a request that has passed the gate unless its account has these, too.

        The rules may have changed since.
        """
        account = self._account(request, connection)
        if account is not None:
            self._judge(request, connection, account, needs)

    def may(self, connection: Connection, need: Need) -> bool:
        """Say whether a client may be told, unasked, what needs this.

        It may if one of the accounts could ask for it that have signed on its connection.
        """
        rules = self._rules
        host = connection.peer[0]
        if rules.white.holds(host):
            return True
        return any(
            account.may(need)
            for key in connection.access_keys
            if (account := rules.accounts.get(key)) is not None
        )

    def _account(self, request: RemotingCommand, connection: Connection) -> Account | None:
        """Return whose request it is, None where anybody may do everything."""
        rules = self._rules
        host = connection.peer[0]
        if rules.white.holds(host):
            return None
        key = request.ext.get(ACCESS_KEY)
        if not key:  # some clients send an empty one
            raise self._refusal(request, connection, _UNSIGNED)
        account = rules.accounts.get(key)
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
        account: Account,
        needs: Iterable[Need],
    ) -> None:
        for need in needs:
            if not account.may(need):
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

    async def run(self, server: RemotingServer) -> None:
        """Look at the file again and again, until cancelled."""
        seen = self._stamp
        while True:
            await trio.sleep(LOOK_INTERVAL_S)
            stamp = await trio.to_thread.run_sync(_stamp, self._path)
            # What has just changed may still be being written; it has a second to be finished.
            is_settled, seen = stamp == seen, stamp
            if is_settled and stamp != self._stamp:
                self._stamp = stamp
                await self._read(server)

    async def _read(self, server: RemotingServer) -> None:
        try:
            rules = await trio.to_thread.run_sync(read_rules, self._path)
        except ConfigError as exc:
            rules = _NO_RULES
            logger.error(
                "the file of accounts cannot be used, and all requests are refused until it can"
                " error=%s",
                exc,
            )
        else:
            logger.info(
                "the file of accounts has changed and counts path=%s accounts=%d",
                self._path,
                len(rules.accounts),
            )
        before, self._rules = self._rules, rules
        server.close_where(_has_lost(before, rules), "its account has changed")


def _has_lost(before: Rules, now: Rules) -> Callable[[Connection], bool]:
    """Return whether a connection was used under rights that are not the same any more."""
    changed = {key for key, account in before.accounts.items() if now.accounts.get(key) != account}
    is_whitelist_changed = before.white != now.white

    def has_lost(connection: Connection) -> bool:
        if not changed.isdisjoint(connection.access_keys):
            return True
        host = connection.peer[0]
        return is_whitelist_changed and before.white.holds(host) and not now.white.holds(host)

    return has_lost


def _closed(request: RemotingCommand) -> Iterable[Need]:
    text = f"request code {request.code} is not open where there is access control"
    raise BrokerError(ResponseCode.NO_PERMISSION, text)


def _stamp(path: str) -> _Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
