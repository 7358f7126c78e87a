"""How far the copies of a broker's log are: request code 907.

Owns: the shape of the answer. Must not touch: connections.
Spec: RocketMQ DefaultHAService.getRuntimeInfo, HARuntimeInfo.
"""

from __future__ import annotations

from motelog.core.broker.replication.master import Master
from motelog.core.replication.ha_frames import BEHIND_BYTES_MAX

_OF_A_SLAVE = (
    "lastReadTimestamp",
    "lastWriteTimestamp",
    "masterFlushOffset",
    "maxOffset",
    "transferredByteInSecond",
)


def master_status(end_offset: int, master: Master | None) -> dict[str, object]:
    """Return the answer of a master whose log ends at ``end_offset``; None: it feeds no slaves."""
    slaves = [] if master is None else master.slaves
    behind = [one.behind_bytes(end_offset) for one in slaves]
    return {
        "master": True,
        "masterCommitLogMaxOffset": end_offset,
        "inSyncSlaveNums": sum(count < BEHIND_BYTES_MAX for count in behind),
        "haConnectionInfo": [
            {
                "addr": one.address,
                "slaveAckOffset": one.confirmed_offset or 0,
                "diff": count,
                "inSync": count < BEHIND_BYTES_MAX,
                "transferredByteInSecond": one.bytes_per_s,
                "transferFromWhere": one.sent_offset,
            }
            for one, count in zip(slaves, behind, strict=True)
        ],
        "haClientRuntimeInfo": dict.fromkeys(_OF_A_SLAVE, 0),
    }
