"""Making a slave the master by an operator's decision, and remembering it.

Owns: whether a broker may be promoted, the file that outlives its process. Must not touch: how a
role is changed (the broker's server opens its store again), what clients learn (registration).

    config/role.json   {"brokerId": 0, "configuredId": 1, "term": 1, "begin": 4096}

The number stands against the configuration that was there when it was written: with another ``id``
in the configuration that one counts. The term stays. A crash before it is written leaves a slave,
one after it a master, which the next start opens. A promotion ends when a start finds that another
broker has been promoted since: then the configured number counts again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import trio

from motelog.core.broker.replication.slave import Slave
from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import ResponseCode
from motelog.core.replication.role import Role
from motelog.core.state_file import StateFile

logger = logging.getLogger(__name__)


class _RoleJson(msgspec.Struct, rename="camel"):
    broker_id: int
    configured_id: int
    term: int
    begin: int


def read_role(file: StateFile, configured: Role) -> Role:
    """Return the role of a broker that starts: the configured one unless it was promoted since.

    Blocks. StoreDamagedError if the file and its copy are damaged.
    """

    def take(content: Mapping[str, Any]) -> _RoleJson:
        return msgspec.convert(content, _RoleJson)

    known = file.load(take)
    if known is None:
        return configured
    if known.configured_id != configured.broker_id:
        return replace(configured, term=known.term, term_begin=known.begin)
    if known.broker_id != configured.broker_id:
        logger.warning(
            "this broker was promoted to master: set id = 0 in [broker], which still has id = %d",
            configured.broker_id,
        )
    return replace(configured, broker_id=known.broker_id, term=known.term, term_begin=known.begin)


def end_promotion(file: StateFile, role: Role, configured_id: int) -> Role:
    """Return the role of a promoted broker in whose place another one has been promoted.

    Blocks until that is on the disk, if it can be written.
    """
    logger.warning(
        "another broker was promoted after this one, which is a slave again id=%d", configured_id
    )
    try:
        file.save(_content(configured_id, configured_id, role.term, role.term_begin))
    except OSError as exc:
        logger.warning("that is not written down, and found out at each start error=%s", exc)
    return replace(role, broker_id=configured_id)


def note_term(file: StateFile, configured_id: int, term: int) -> None:
    """Write down the term of a slave's master: this slave's own must be above it one day.

    Blocks; OSError if that fails.
    """
    file.save(_content(configured_id, configured_id, term, 0))


def _content(broker_id: int, configured_id: int, term: int, begin: int) -> Mapping[str, Any]:
    known = _RoleJson(broker_id, configured_id, term, begin)
    content: Mapping[str, Any] = msgspec.to_builtins(known)
    return content


class Promotion:
    """The promotion of one running broker; ``decided`` is set when its role must change."""

    def __init__(
        self, file: StateFile, slave: Slave | None, role: Role, configured_id: int
    ) -> None:
        self._file = file
        self._slave = slave
        self._term = role.term
        self._configured_id = configured_id
        self.decided = trio.Event()

    def promote(self, *, is_forced: bool) -> None:
        """Decide that this slave becomes the master; BrokerError says why it does not.

        Blocks until the decision is on the disk.
        """
        slave = self._slave
        if slave is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "this broker is the master already")
        if slave.is_copying and not is_forced:
            text = (
                f"its master {slave.master_address} sends its log to this broker: stop the master"
                " first, or there will be two"
            )
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        try:
            term = max(slave.master_term, self._term) + 1
            self._file.save(_content(0, self._configured_id, term, slave.end_offset))
        except OSError as exc:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"the decision cannot be written down: {exc}"
            ) from exc
        logger.warning("this broker becomes the master end=%d", slave.end_offset)
        self.decided.set()
