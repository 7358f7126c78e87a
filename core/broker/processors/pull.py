"""Pulls: stored records from an offset on, as soon as there are some.

Owns: request codes 11 and 361, reading for a pull, holding it, its answer. Must not touch: what a
pull may ask for (pull_request), how records are found (the store), which pulls wait (long_poll).
Spec: RocketMQ PullMessageProcessor, PullRequestHoldService.

    pull -> read -> found                    -> answer 0 with the records
                 -> nothing yet, may suspend -> hold -> queue grew   -> read again -> answer | hold
                                                     -> deadline     -> answer 19 | 20
                 -> anything else            -> answer 19 | 20 | 21
                 -> not in memory            -> paged in by a thread -> read again (cold_reads)

A slave has what its master had, and perhaps not yet all of it. So it never tells a reader that its
offset is wrong: the reader is held, and is sent back to the master with its offset as it was.

A plain pull takes this path without being decoded. If it is refused, has a SQL92 filter, is not in
memory or is answered with a reset, it is decoded and begins again.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Final

import msgspec
import trio

from motelog.core.broker.api import NotInMemoryError, ReadResult, ReadStatus
from motelog.core.broker.processors.filtered_reads import read_matching
from motelog.core.broker.processors.offset_moved import OffsetMovedEvents
from motelog.core.broker.processors.pull_request import COMMIT_OFFSET, Pull, PullRequests
from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.tables.subscription_groups import SubscriptionGroup
from motelog.core.broker.waiting.long_poll import HeldRequests
from motelog.core.broker.waiting.waker import Waker
from motelog.core.errors import BrokerError, StoreError
from motelog.core.remoting.codes import LOG_FOLDER, LOG_UNITS
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode
from motelog.core.remoting.pulls import PlainPull, encode_found
from motelog.core.remoting.server import Connection, Processor, RemotingServer, answer_with
from motelog.core.topic_names import CONSOLE_GROUP

# Response code and, as RocketMQ names it, the remark for each outcome of a read.
_OUTCOMES: Final = {
    ReadStatus.FOUND: (ResponseCode.SUCCESS, "FOUND"),
    ReadStatus.NO_MATCH: (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"),
    ReadStatus.MESSAGE_WAS_REMOVED: (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "MESSAGE_WAS_REMOVING",
    ),
    ReadStatus.NO_QUEUE: (ResponseCode.PULL_OFFSET_MOVED, "NO_MATCHED_LOGIC_QUEUE"),
    ReadStatus.NO_MESSAGE_IN_QUEUE: (ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE"),
    ReadStatus.OFFSET_OVERFLOW_ONE: (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"),
    ReadStatus.OFFSET_OVERFLOW_BADLY: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY"),
    ReadStatus.OFFSET_TOO_SMALL: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL"),
}
_MOVING: Final = frozenset(
    status for status, (code, _) in _OUTCOMES.items() if code == ResponseCode.PULL_OFFSET_MOVED
)
_FOUND: Final = _OUTCOMES[ReadStatus.FOUND]


class PullProcessor:
    """Answers pulls; state changes only within a turn and in ``run``, between two awaits."""

    def __init__(self, shared: Shared) -> None:
        config = shared.config
        self._api = shared.api
        self._requests = PullRequests(shared)
        self._offsets = shared.tables.offsets
        self._cold = shared.api.cold_reads
        self._stats = shared.stats
        self._clock = shared.clock
        self._reader = shared.store.reader
        self._log_folder = os.path.abspath(config.store.directory)
        self._hold_ms_max = config.hold_ms_max
        self._short_poll_ms = None if config.long_poll else config.short_poll_ms
        self._moves_readers = shared.role.is_master
        # This much of the log's end counts as in memory; None: readers are never sent to a slave.
        self._cached_bytes = shared.store.reader.cached_bytes if config.slave_read_enable else None
        self._moved = OffsetMovedEvents(shared)
        self.held = HeldRequests(
            requests_max=config.held_pulls_max,
            requests_per_owner_max=config.held_pulls_per_connection_max,
        )
        self._waker = Waker(self.held, shared.clock, wake=self.wake_grown)
        self._growth = shared.api.follow(self.held.by_key, self._waker.want)
        self.woken_count = 0

    def processors(self) -> dict[int, Processor]:
        return {RequestCode.PULL_MESSAGE: self._pull, RequestCode.LITE_PULL_MESSAGE: self._pull}

    def take(self, plain: PlainPull, connection: Connection) -> bool:
        """Answer or hold a plain pull that reads from memory; False for any other.

        In that case nothing is counted. Its request is decoded and processed, which lets it wait
        for the disk, or refuses it with a reason.
        """
        _, opaque, form, _, topic, queue_id, queue_offset, sys_flag, commit_offset = plain[:9]
        accepted = self._requests.accept_plain(plain)
        if accepted is None:
            return False
        group, count_max, bytes_max, tag_codes = accepted
        offsets = self._offsets
        if offsets.resets and offsets.awaits_reset(group.group_name, topic, queue_id):
            return False
        try:
            if sys_flag & COMMIT_OFFSET:
                offsets.commit(group.group_name, topic, queue_id, commit_offset)
            result = self._api.read(
                topic,
                queue_id,
                queue_offset,
                count_max=count_max,
                bytes_max=bytes_max,
                tag_codes=tag_codes,
                may_wait=False,
            )
        except (BrokerError, StoreError, NotInMemoryError):
            return False
        if result.count and result.record_bytes <= bytes_max:
            self._tell_found(connection, opaque, form, group, topic, queue_id, result)
        else:
            pull = self._requests.pull_of(plain, accepted, connection)
            if not self._moves_readers:
                result = _unmoved(result, pull.queue_offset)
            answer = self._settle(pull, result)
            if answer is not None:
                connection.reply(answer)
        return True

    async def run(
        self,
        server: RemotingServer,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Wake held pulls and end those whose deadline has passed."""
        await self._waker.run(server.flush, task_status=task_status)

    def wake_grown(self) -> None:
        """Read again for the pulls that wait for a queue that grew."""
        for tail in self._growth.take():
            self.woken_count += self.held.wake((tail.topic, tail.queue_id))

    def connection_closed(self, connection: Connection) -> None:
        self.held.close_owner(connection)

    def _pull(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        pull = self._requests.accept(request, connection)
        # Once, before the first read: after a wait for the disk the group may have moved on.
        if pull.commit_offset is not None:
            group = pull.group.group_name
            self._offsets.commit(group, pull.topic, pull.queue_id, pull.commit_offset)
        reset = self._offsets.take_reset(pull.group.group_name, pull.topic, pull.queue_id)
        if reset is not None:
            return self._tell_reset(pull, reset)
        return self._cold.attempt(partial(self._read_first, pull), request, connection)

    def _tell_reset(self, pull: Pull, queue_offset: int) -> RemotingCommand:
        """Answer with the offset that an operator has set, at which the group is to continue."""
        begin = self._api.min_offset(pull.topic, pull.queue_id)
        end = self._api.max_offset(pull.topic, pull.queue_id)
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(queue_offset),
            "minOffset": str(begin),
            "maxOffset": str(end),
        }
        return pull.request.answer(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", ext)

    def _read_first(self, pull: Pull, may_wait: bool) -> RemotingCommand | None:
        """Read for a new pull: return its answer, or hold it."""
        return self._settle(pull, self._read(pull, may_wait=may_wait))

    def _settle(self, pull: Pull, result: ReadResult) -> RemotingCommand | None:
        """Return the answer to a new pull, or hold it."""
        may_hold = not result.count and pull.hold_ms > 0
        if may_hold and _code(pull, result) == ResponseCode.PULL_NOT_FOUND:
            hold_ms = pull.hold_ms if self._short_poll_ms is None else self._short_poll_ms
            pull.deadline_ms = self._clock.monotonic_ms() + min(hold_ms, self._hold_ms_max)
            return self._hold_or_answer(pull, result)
        return self._answer(pull, result)

    def _read(self, pull: Pull, *, may_wait: bool) -> ReadResult:
        result = self._read_here(pull, may_wait=may_wait)
        return result if self._moves_readers else _unmoved(result, pull.queue_offset)

    def _read_here(self, pull: Pull, *, may_wait: bool) -> ReadResult:
        if pull.sql_filter is not None:
            return read_matching(
                self._api,
                self._clock,
                pull.sql_filter,
                pull.topic,
                pull.queue_id,
                pull.queue_offset,
                count_max=pull.count_max,
                bytes_max=pull.bytes_max,
                may_wait=may_wait,
            )
        return self._api.read(
            pull.topic,
            pull.queue_id,
            pull.queue_offset,
            count_max=pull.count_max,
            bytes_max=pull.bytes_max,
            tag_codes=pull.tag_codes,
            may_wait=may_wait,
            as_units=pull.as_units,
        )

    def _hold_or_answer(self, pull: Pull, result: ReadResult) -> RemotingCommand | None:
        """Hold a pull until its deadline; if there is no room for it, return its answer."""
        if self.held.is_full_for(pull.connection) or not pull.connection.is_open:
            return self._answer(pull, result)
        queue = pull.topic.encode(), pull.queue_id
        take_up = partial(self._take_up, pull)
        self._waker.hold(queue, pull.deadline_ms, take_up, owner=pull.connection)
        return None

    def _take_up(self, pull: Pull, is_over: bool) -> None:
        """Continue a held pull: its queue has grown, or its time is over."""
        read = partial(self._read_last if is_over else self._try, pull)
        answer_with(partial(self._cold.attempt, read), pull.request, pull.connection)

    def _try(self, pull: Pull, may_wait: bool) -> RemotingCommand | None:
        """Read for a held pull whose queue grew: return its answer, or hold it again."""
        if pull.connection.is_congested:
            # The client asks again, and that request waits until the client has read its output.
            return self._retry_later(pull)
        result = self._read(pull, may_wait=may_wait)
        # Continue past messages that tags refuse, as long as there are some. A SQL92 filter takes
        # so much longer that the rest is left to the client's next pull.
        while (
            result.status == ReadStatus.NO_MATCH
            and result.next_offset < result.max_offset
            and pull.sql_filter is None
        ):
            pull.queue_offset = result.next_offset
            result = self._read(pull, may_wait=may_wait)
        if result.status == ReadStatus.NO_MATCH and result.next_offset >= result.max_offset:
            pull.queue_offset = result.next_offset
            return self._hold_or_answer(pull, result)
        if _code(pull, result) == ResponseCode.PULL_NOT_FOUND:
            return self._hold_or_answer(pull, result)
        return self._answer(pull, result)

    def _read_last(self, pull: Pull, may_wait: bool) -> RemotingCommand | None:
        """Read for a pull whose time is over, and answer with or without messages."""
        return self._answer(pull, self._read(pull, may_wait=may_wait))

    def _retry_later(self, pull: Pull) -> RemotingCommand:
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(pull.queue_offset),
            "minOffset": str(self._api.min_offset(pull.topic, pull.queue_id)),
            "maxOffset": str(self._api.max_offset(pull.topic, pull.queue_id)),
        }
        code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return pull.request.answer(code, "NO_MATCHED_MESSAGE", ext)

    def _answer(self, pull: Pull, result: ReadResult) -> RemotingCommand | None:
        """Send the messages that a read has found, or return another answer."""
        request = pull.request
        # The first message may be larger than requested, and perhaps than an answer may be.
        is_usual = result.count and len(result.records) <= pull.bytes_max
        if is_usual and not (pull.wants_folder or pull.as_units or request.is_oneway):
            opaque, form = request.opaque, request.serialize
            self._tell_found(
                pull.connection, opaque, form, pull.group, pull.topic, pull.queue_id, result
            )
            return None
        code, remark = _FOUND
        if result.count:
            self._note_found(pull.group, pull.topic, pull.queue_id, result)
        else:
            code, remark = self._nothing(pull, result)
        ext = self._places(pull.group, result)
        if pull.wants_folder:
            ext[LOG_FOLDER] = self._log_folder
        # A SQL92 filter has read the records, so its answer contains them.
        elif pull.as_units and pull.sql_filter is None:
            ext[LOG_UNITS] = str(self._reader.verified_from)
        return pull.request.answer(code, remark, ext, result.records)

    def _tell_found(
        self,
        connection: Connection,
        opaque: int,
        form: int,
        group: SubscriptionGroup,
        topic: str,
        queue_id: int,
        result: ReadResult,
    ) -> None:
        """Count and send the messages for a group."""
        self._note_found(group, topic, queue_id, result)
        head = encode_found(
            opaque,
            form,
            0 if self._cached_bytes is None else self._suggested_broker(group, result),
            result.next_offset,
            result.min_offset,
            result.max_offset,
            len(result.records),
        )
        connection.send(head, result.records)

    def _note_found(
        self, group: SubscriptionGroup, topic: str, queue_id: int, result: ReadResult
    ) -> None:
        """Count the messages for a group."""
        name = group.group_name
        if name == CONSOLE_GROUP:
            return
        self._stats.note_get(topic, name, result.count, result.record_bytes)
        self._offsets.note_pulled(name, topic, queue_id, result.next_offset)

    def _places(self, group: SubscriptionGroup, result: ReadResult) -> dict[str, str]:
        """Return the fields with a queue's begin and end, and the next offset."""
        return {
            "suggestWhichBrokerId": str(self._suggested_broker(group, result)),
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        }

    def _nothing(self, pull: Pull, result: ReadResult) -> tuple[ResponseCode, str]:
        """Return code and remark for a read without messages; note an offset that was moved."""
        code = _code(pull, result)
        # The filter refused messages while the pull was held: the client continues after them.
        if code == ResponseCode.PULL_NOT_FOUND and pull.queue_offset != pull.first_offset:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        if code == ResponseCode.PULL_OFFSET_MOVED:
            asked, group = pull.queue_offset, pull.group.group_name
            self._moved.note(group, pull.topic, pull.queue_id, asked, result.next_offset)
        return code, _OUTCOMES[result.status][1]

    def _suggested_broker(self, group: SubscriptionGroup, result: ReadResult) -> int:
        """Return the id of the broker for the group's next reads; 0 is the master."""
        if self._cached_bytes is None:
            return 0
        if result.behind_bytes > self._cached_bytes:
            return group.which_broker_when_consume_slowly
        return group.broker_id


def _unmoved(result: ReadResult, queue_offset: int) -> ReadResult:
    """Return what a slave's reader may hear: if its offset is not there, it has no message yet."""
    if result.status not in _MOVING:
        return result
    return msgspec.structs.replace(
        result, status=ReadStatus.OFFSET_OVERFLOW_ONE, next_offset=queue_offset
    )


def _code(pull: Pull, result: ReadResult) -> ResponseCode:
    """Return the response code of a read's outcome."""
    status = result.status
    if status in (ReadStatus.NO_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE) and not pull.queue_offset:
        return ResponseCode.PULL_NOT_FOUND
    return _OUTCOMES[status][0]
