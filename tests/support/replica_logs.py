"""What the logs of a pair have of what was acknowledged.

Owns: ReplicaLogs: the messages found in the master's log, how far the slave's was compared. Must
not touch: processes, clients.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from motelog.core.message import MQTT_TOPIC
from tests.support.delivery_audit import AuditError
from tests.support.replica_pair import ReplicaPair


class ReplicaLogs:
    """The logs of one pair, looked at after each round."""

    def __init__(self, pair: ReplicaPair) -> None:
        self._pair = pair
        # What the master's log is known to have, and where it was looked at last.
        self._stored: dict[str, int] = {}
        self._looked_to = 0
        #: Where the slave's log ended when it was last compared.
        self.copied = 0

    def forget_from(self, offset: int) -> None:
        """Look again at the log from where another one goes on."""
        self._looked_to = min(self._looked_to, offset)
        self._stored = {body: at for body, at in self._stored.items() if at < offset}

    def lacking(self, bodies: AbstractSet[str]) -> set[str]:
        """Return which of these the master's log has not."""
        state = self._pair.state(self._pair.master)
        assert state is not None
        for message in self._pair.messages(self._pair.master, self._looked_to, state.end_offset):
            topic = message.value_of(MQTT_TOPIC)
            body = message.body.decode(errors="replace")
            self._stored.setdefault(
                body if topic is None else f"{topic} {body}", message.physical_offset
            )
        self._looked_to = state.end_offset
        return set(bodies - self._stored.keys())

    def compare(self, kind: str) -> None:
        """Raise AuditError if the logs differ, or one has lost its beginning."""
        state = self._pair.state(self._pair.slave)
        assert state is not None
        self.copied = state.end_offset
        at = self._pair.difference(state.end_offset)
        if removed := [n for n in (0, 1) if int(self._pair.log_files(n)[0].name)]:
            raise AuditError(
                f"after {kind} files of the logs {removed} are removed before their time"
            )
        if at is not None:
            raise AuditError(f"after {kind} the logs differ at {at}, below {state.end_offset}")
