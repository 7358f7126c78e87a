"""Light queues: the further queues that a message is to be in, and whether that is allowed.

Owns: the check of INNER_MULTI_DISPATCH, how many light queues there may be. Must not touch: how
messages are dispatched (core.store.multi_dispatch), the properties' text (core.records.dispatch).
Spec: RocketMQ enableLmq, enableMultiDispatch, maxLmqConsumeQueueNum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from motelog.core.errors import BrokerError
from motelog.core.message import PROPERTIES_BYTES_MAX
from motelog.core.records.dispatch import MULTI_DISPATCH, MULTI_OFFSET, SEPARATOR
from motelog.core.remoting.codes import ResponseCode
from motelog.core.store.message_store import MessageStore
from motelog.core.topic_names import is_lmq, shown

# An offset with a separator; and the most that a delay or a transaction may add.
_OFFSET_BYTES: Final = 20
_ADDED_BYTES: Final = 1024


class LightQueues:
    """The light queues of one broker, by name."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._is_on = store.config.lmq
        self._count_max = store.config.lmq_queues_max
        self._names: set[str] | None = None  # known from the first message on

    def check(self, pairs: Mapping[str, str], properties_bytes: int) -> None:
        """Refuse a message that names queues that it cannot have."""
        if not self._is_on or MULTI_DISPATCH not in pairs:
            return
        names = pairs[MULTI_DISPATCH].split(SEPARATOR)
        for name in names:
            if not is_lmq(name):
                text = f"{MULTI_DISPATCH} names {shown(name)}, which is not a light queue: %LMQ%..."
                raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
        if len(set(names)) < len(names):
            text = f"{MULTI_DISPATCH} names a light queue twice"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
        wanted = properties_bytes + len(MULTI_OFFSET) + _OFFSET_BYTES * len(names) + _ADDED_BYTES
        if wanted > PROPERTIES_BYTES_MAX:
            text = f"{MULTI_DISPATCH} names {len(names)} light queues, which is too many"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)
        known = self._known()
        new = set(names) - known
        if len(known) + len(new) > self._count_max:
            text = f"the broker has {len(known)} light queues, the limit is {self._count_max}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        known |= new

    def _known(self) -> set[str]:
        if self._names is None:
            self._names = {topic for topic, _ in self._store.queues() if is_lmq(topic)}
        return self._names
