"""POP's state in memory, and how a start reads it from the log.

Owns: PopState: the checkpoints and each group's next offset; reading the revive topic.
Must not touch: appends (service), files except through the store, apart from RocketMQ's timer
checkpoint.
``load`` blocks.

    revive topic  ck, ack, ck, bAck, ...  from the last finished record on
                  -> checkpoints that are not settled
                  -> after the marks: the groups' progress before the broker was killed

RocketMQ's broker lets these records wait in its timer until they are due. If it had the folder
before, those that still wait are taken over: the service writes them into the revive topic, and
notes how far the timer's topic has been read.

    rmq_sys_wheel_timer  ck, ack, ...  from the last record that was taken over, due at or after
                                       the time that config/timercheck begins with
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.pop.checkpoints import Checkpoint, Checkpoints
from motelog.core.broker.pop.progress import MARKS_GROUP, PopProgress
from motelog.core.broker.pop.records import AckRecord, decode_revive
from motelog.core.broker.tables.tables import Tables
from motelog.core.broker.tables.topics import REVIVE_QUEUES
from motelog.core.errors import BrokerError
from motelog.core.message import REAL_QID, REAL_TOPIC, TAGS, TIMER_OUT_MS, decode_properties
from motelog.core.records.decode import decode
from motelog.core.store.message_store import MessageStore
from motelog.core.store.store_reader import ReadStatus
from motelog.core.topic_names import REVIVE_PREFIX, ROCKETMQ_TIMER_TOPIC

logger = logging.getLogger(__name__)

#: Its offsets are the last finished records of the revive queues, as in RocketMQ.
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
#: The longest wait of a message in RocketMQ's timer, by its default configuration.
TIMER_WAIT_MS_MAX: Final = 3 * 86_400_000
_READ_COUNT: Final = 4096
_READ_BYTES: Final = 4_194_304
_GOES_ON: Final = (ReadStatus.FOUND, ReadStatus.MESSAGE_WAS_REMOVED, ReadStatus.OFFSET_TOO_SMALL)


class _Unknown(NamedTuple):
    """A pop that the saved offsets may not include, and the place of its record."""

    physical_offset: int
    offset: int
    is_marked: bool
    checkpoint: Checkpoint


class PopState:
    """The messages that a broker's consumers have in work; ``load`` needs open store and tables."""

    def __init__(self, config: BrokerConfig, store: MessageStore, tables: Tables) -> None:
        self.revive_topic = REVIVE_PREFIX + config.cluster
        self._reader = store.reader
        self._offsets = tables.offsets
        self._timer_file = Path(config.store.directory) / "config" / "timercheck"
        #: The last record of RocketMQ's timer that was taken over at this start.
        self.timer_taken: int | None = None
        self.checkpoints = Checkpoints(revive_queues=REVIVE_QUEUES)
        self.progress = PopProgress(tables.offsets, self.revive_topic)

    def load(self) -> None:
        """Read the revive topic from the last finished record on; blocks."""
        popped: list[_Unknown] = []
        for queue in range(REVIVE_QUEUES):
            popped += self._load_queue(queue)
        popped.sort(key=lambda one: one.physical_offset)
        for one in popped:
            self._go_on_behind(one.checkpoint, is_marked=one.is_marked)
        # The offsets include them now. Without this the next start would move groups back to them.
        for queue, last in {one.checkpoint.revive_queue: one.offset for one in popped}.items():
            with contextlib.suppress(BrokerError):
                self._offsets.commit(MARKS_GROUP, self.revive_topic, queue, last)
        self._take_over_timer()

    def _take_over_timer(self) -> None:
        """Take over the records that RocketMQ's timer had not yet put into the revive topic."""
        end = self._reader.max_offset(ROCKETMQ_TIMER_TOPIC, 0)
        taken = self._offsets.query(REVIVE_GROUP, ROCKETMQ_TIMER_TOPIC, 0)
        if end == 0 or taken == end - 1:
            return
        # Records that were due before are in the revive topic already.
        begin_ms = self._timer_read_ms()
        stored_ms = begin_ms - TIMER_WAIT_MS_MAX
        at = self._reader.offset_by_time(ROCKETMQ_TIMER_TOPIC, 0, stored_ms)
        at = max(at, 0 if taken is None else taken + 1)
        count = 0
        while at < end:
            found = self._reader.read(
                ROCKETMQ_TIMER_TOPIC, 0, at, count_max=_READ_COUNT, bytes_max=_READ_BYTES
            )
            for fields in decode(found.records):
                count += self._take_timer(decode_properties(fields[12]), fields[13], begin_ms)
            if found.status not in _GOES_ON:
                break
            at = found.next_offset
        self.timer_taken = end - 1
        logger.info(
            "POP messages that RocketMQ's broker had in work are taken over from its timer"
            " records=%d in_work=%d",
            count,
            len(self.checkpoints),
        )

    def _take_timer(self, pairs: Mapping[str, str], body: bytes, begin_ms: int) -> bool:
        """Take over a record of the timer; return whether it is POP's, and waiting."""
        due_ms, queue = pairs.get(TIMER_OUT_MS, ""), pairs.get(REAL_QID, "")
        if not (due_ms.isdecimal() and queue.isdecimal() and int(due_ms) >= begin_ms):
            return False
        if pairs.get(REAL_TOPIC) != self.revive_topic:
            return False
        said = decode_revive(pairs.get(TAGS), body, int(queue) % REVIVE_QUEUES)
        if isinstance(said, Checkpoint):
            if said.open and self.checkpoints.get(said.key) is None:
                self.checkpoints.adopt(said)
                self._go_on_behind(said, is_marked=False)
        elif said is not None and (checkpoint := self.checkpoints.get(said.key)) is not None:
            self.checkpoints.adopt(checkpoint)
            self.checkpoints.ack(checkpoint, said.offsets)
        return said is not None

    def _timer_read_ms(self) -> int:
        """Return the time that RocketMQ's timer was to deliver next; 0 if it is unknown."""
        try:
            data = self._timer_file.read_bytes()[:8]
        except FileNotFoundError:
            return 0
        return int.from_bytes(data, "big", signed=True)

    def _load_queue(self, queue: int) -> list[_Unknown]:
        """Load one revive queue; return the pops that the saved offsets may not include."""
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
            known = self.checkpoints.get(said.key)
            if said.open:
                self.checkpoints.add(said, offset)
            elif known is not None:
                self.checkpoints.settle(known)
        elif said is not None:
            checkpoint = self.checkpoints.get(said.key)
            if checkpoint is not None:
                self.checkpoints.ack(checkpoint, said.offsets)

    def _go_on_behind(self, checkpoint: Checkpoint, *, is_marked: bool) -> None:
        """Move the group past a pop that the saved offsets do not include.

        Without marks, another broker wrote the folder, or none were saved yet: no group moves back.
        """
        if not checkpoint.offsets:
            return
        topic, group, queue_id = checkpoint.queue_key
        next_offset = checkpoint.offsets[-1] + 1
        known = self._offsets.query(group, topic, queue_id)
        if is_marked or known is None or known < next_offset:
            # A full table cannot keep it: the messages are delivered twice.
            with contextlib.suppress(BrokerError):
                self._offsets.commit(group, topic, queue_id, next_offset)
