"""How far the copies of a broker's log are: request code 907, the broker's sample, a warning.

Owns: the shape of these. Must not touch: connections.
Spec: RocketMQ DefaultHAService.getRuntimeInfo, HARuntimeInfo.
"""

from __future__ import annotations

from motelog.core.broker.replication.master import Master
from motelog.core.broker.replication.slave import Slave
from motelog.core.replication.ha_frames import BEHIND_BYTES_MAX
from motelog.core.store.message_store import MessageStore

_OF_A_SLAVE = (
    "lastReadTimestamp",
    "lastWriteTimestamp",
    "masterFlushOffset",
    "maxOffset",
    "transferredByteInSecond",
)


def status_of_copies(
    store: MessageStore, master: Master | None, slave: Slave | None
) -> dict[str, object]:
    """Return the answer of a broker that feeds slaves (``master``), is one, or is neither."""
    if slave is not None:
        return _of_slave(store, slave)
    return _of_master(store.end_offset, master)


def _of_slave(store: MessageStore, slave: Slave) -> dict[str, object]:
    heard_ms = 0 if slave.heard_at_ms is None else slave.heard_at_ms
    return {
        "master": False,
        "masterCommitLogMaxOffset": slave.master_end or 0,
        "inSyncSlaveNums": 0,
        "haConnectionInfo": [],
        "haClientRuntimeInfo": {
            "masterAddr": slave.master_ha_address,
            "transferredByteInSecond": slave.received.per_s,
            "maxOffset": store.end_offset,
            "lastReadTimestamp": heard_ms,
            "lastWriteTimestamp": heard_ms,
            "masterFlushOffset": 0,
        },
        # A member of ours: why nothing is copied; "" while it is.
        "fault": "" if slave.is_copying else slave.reason,
    }


def _of_master(end_offset: int, master: Master | None) -> dict[str, object]:
    slaves = [] if master is None else master.slaves
    behind = [one.behind_bytes(end_offset) for one in slaves]
    return {
        "master": True,
        "masterCommitLogMaxOffset": end_offset,
        "inSyncSlaveNums": 0 if master is None else master.near_count,
        "haConnectionInfo": [
            {
                "addr": one.address,
                "slaveAckOffset": one.confirmed_offset or 0,
                "diff": count,
                "inSync": count < BEHIND_BYTES_MAX,
                "transferredByteInSecond": one.sent.per_s,
                "transferFromWhere": one.sent_offset,
            }
            for one, count in zip(slaves, behind, strict=True)
        ],
        "haClientRuntimeInfo": dict.fromkeys(_OF_A_SLAVE, 0),
    }


def sample_of_copies(
    end_offset: int, master: Master | None, slave: Slave | None, *, waits: bool
) -> dict[str, float]:
    """Return what ``status_of_copies`` tells, as gauges; ``waits``: whether sends wait for a slave.

    Slaves are not shown one by one: an address with its port is a new label at each connection.
    """
    if slave is not None:
        return {
            "copying_now": slave.is_copying,
            "copying_behind_bytes_now": slave.behind_bytes,
            "copying_silence_s_now": slave.silence_s,
            "copied_bytes": slave.received.total,
        }
    if master is None:
        return {}
    behind = [one.behind_bytes(end_offset) for one in master.slaves]
    found: dict[str, float] = {
        "slaves_now": len(behind),
        "slaves_near_now": master.near_count,
        "slaves_needed_now": waits,
    }
    if behind:
        found["nearest_slave_behind_bytes_now"] = min(behind)
        found["slowest_slave_behind_bytes_now"] = max(behind)
    return found


def fault_of_copies(master: Master | None, slave: Slave | None, *, waits: bool) -> str | None:
    """Return why there is no copy although there should be one; None if there is nothing to say."""
    if slave is not None and not slave.is_copying:
        return f"the master's log is not copied: {slave.reason}"
    if waits and master is not None and not master.is_followed:
        return (
            "no slave is connected, or all are far behind: messages are on this disk alone, or"
            " refused if slaves_min is above 0"
        )
    return None
