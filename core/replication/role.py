"""What a broker is to the others of its name: the one that appends, or one that copies.

Owns: Role. Must not touch: how a role is carried out; a value.
Spec: RocketMQ BrokerRole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Replicate = Literal["off", "async", "sync"]


@dataclass(frozen=True, slots=True)
class Role:
    """One broker's role; it changes only when the broker opens its store again."""

    #: 0: the master (MixAll.MASTER_ID).
    broker_id: int = 0
    #: Whether slaves may copy its log, and whether messages wait for them.
    replicate: Replicate = "off"
    #: Of a master's leadership: each promotion adds one, and of two masters the higher one stays.
    term: int = 0
    #: Where its log ended when it was promoted: what another log has beyond is not in this one.
    term_begin: int = 0

    @property
    def is_master(self) -> bool:
        """Whether it appends messages; else it copies the log of the master of its name."""
        return self.broker_id == 0

    @property
    def feeds(self) -> bool:
        """Whether slaves may copy its log."""
        return self.is_master and self.replicate != "off"

    @property
    def waits_for_slaves(self) -> bool:
        """Whether an acknowledgement promises a copy."""
        return self.is_master and self.replicate == "sync"

    @property
    def text(self) -> str:
        """Its name in RocketMQ."""
        if not self.is_master:
            return "SLAVE"
        return "SYNC_MASTER" if self.replicate == "sync" else "ASYNC_MASTER"


#: A master without slaves.
ALONE: Final = Role()
