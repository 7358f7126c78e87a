"""What POP keeps in memory, and how a start finds it again in the log.

Owns: PopState: the checkpoints and where each group goes on; reading the revive topic. Must not
touch: appends (service), files other than through the store. ``load`` blocks.

    revive topic  ck, ack, ck, bAck, ...  from the last record that is done with
                  -> checkpoints that are not settled
                  -> behind the marks: how far groups had popped before the broker was killed
"""

from __future__ import annotations

import contextlib
from typing import Final, NamedTuple

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.pop.checkpoints import Checkpoint, Checkpoints
from motelog.core.broker.pop.progress import MARKS_GROUP, PopProgress
from motelog.core.broker.pop.records import AckRecord, decode_revive
from motelog.core.broker.tables.tables import Tables
from motelog.core.broker.tables.topics import REVIVE_QUEUES
from motelog.core.errors import BrokerError
from motelog.core.message import TAGS, decode_properties
from motelog.core.records.decode import decode
from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadStatus
from motelog.core.topic_names import REVIVE_PREFIX

#: Its offsets are the last records of the revive queues that are done with, as in RocketMQ.
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_READ_COUNT: Final = 4096
_READ_BYTES: Final = 4_194_304
_GOES_ON: Final = (ReadStatus.FOUND, ReadStatus.MESSAGE_WAS_REMOVED, ReadStatus.OFFSET_TOO_SMALL)


class _Unknown(NamedTuple):
    """A pop that the saved offsets may not know of, and where its record is."""

    physical_offset: int
    offset: int
    is_marked: bool
    checkpoint: Checkpoint


class PopState:
    """What one broker's consumers have in work; ``load`` it when store and tables are open."""

    def __init__(self, config: BrokerConfig, store: MessageStore, tables: Tables) -> None:
        self.revive_topic = REVIVE_PREFIX + config.cluster
        self._reader = store.reader
        self._offsets = tables.offsets
        self.checkpoints = Checkpoints(revive_queues=REVIVE_QUEUES)
        self.progress = PopProgress(tables.offsets, self.revive_topic)

    def load(self) -> None:
        """Read the revive topic from where the broker was done with it; blocks."""
        popped: list[_Unknown] = []
        for queue in range(REVIVE_QUEUES):
            popped += self._load_queue(queue)
        popped.sort(key=lambda one: one.physical_offset)
        for one in popped:
            self._go_on_behind(one.checkpoint, is_marked=one.is_marked)
        # The offsets know of them now. The next start would set groups back to these pops.
        for queue, last in {one.checkpoint.revive_queue: one.offset for one in popped}.items():
            with contextlib.suppress(BrokerError):
                self._offsets.commit(MARKS_GROUP, self.revive_topic, queue, last)

    def _load_queue(self, queue: int) -> list[_Unknown]:
        """Take in one revive queue; return the pops that the offsets may not know of."""
        done = self._offsets.query(REVIVE_GROUP, self.revive_topic, queue)
        mark = self._offsets.query(MARKS_GROUP, self.revive_topic, queue)
        if done is not None:
            self.checkpoints.saw(queue, done)
        at = 0 if done is None else done + 1
        unknown: list[_Unknown] = []
        while True:
            found = self._reader.read(
                self.revive_topic, queue, at, count_max=_READ_COUNT, bytes_max=_READ_BYTES
            )
            for fields in decode(found.records):
                _, _, offset, physical, *_, text, body = fields
                tag = decode_properties(text).get(TAGS)
                said = decode_revive(tag, body, queue)
                self._take(said, queue, offset)
                if not isinstance(said, Checkpoint) or said.is_again:
                    continue
                if mark is None or offset > mark:
                    unknown.append(_Unknown(physical, offset, mark is not None, said))
            at = found.next_offset
            if found.status not in _GOES_ON or at >= found.max_offset:
                return unknown

    def _take(self, said: Checkpoint | AckRecord | None, queue: int, offset: int) -> None:
        self.checkpoints.saw(queue, offset)
        if isinstance(said, Checkpoint):
            if said.open:
                self.checkpoints.add(said, offset)
        elif said is not None:
            checkpoint = self.checkpoints.get(said.key)
            if checkpoint is not None:
                self.checkpoints.ack(checkpoint, said.offsets)

    def _go_on_behind(self, checkpoint: Checkpoint, *, is_marked: bool) -> None:
        """Have the group go on behind a pop that the saved offsets do not know of.

        Without marks, another broker wrote the folder, or none was saved yet: no group goes back.
        """
        if not checkpoint.offsets:
            return
        topic, group, queue_id = checkpoint.queue_key
        next_offset = checkpoint.offsets[-1] + 1
        known = self._offsets.query(group, topic, queue_id)
        if is_marked or known is None or known < next_offset:
            # A table that is full cannot keep it: the messages come twice.
            with contextlib.suppress(BrokerError):
                self._offsets.commit(group, topic, queue_id, next_offset)
