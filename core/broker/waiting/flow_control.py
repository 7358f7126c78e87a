"""Flow control: when an overloaded broker answers SYSTEM_BUSY, at once and without work.

Owns: the three rules, the maximum wait of each kind of request, the count of refusals by rule.
Must not touch: appends and how long they take (append_line), sockets.
Spec: RocketMQ BrokerFastFailure, SendMessageProcessor.rejectRequest.

    a request has waited too long               [TIMEOUT_CLEAN_QUEUE]  any kind, each its own limit
    a message came while an append took >       [PCBUSY_CLEAN_QUEUE]   sends
      ``page_cache_busy_ms``
    the line's first batch has waited as long,  [REJECTREQUEST]        sends
      or there is no write buffer

What "waited" means here: RocketMQ's broker reads requests at once and lets them wait in queues.
This one reads a request when it is about to process it, so requests wait in their sockets while the
one thread is held up, and messages in the line while the next CommitLog file does not exist. The
kernel knows when a connection's last bytes came; it is asked only in the turns after the thread was
held up (``HELD_UP_MS``), so that this costs nothing in normal operation. A request that is followed
by others has waited longer than the kernel says, so no request is refused that did not wait. Time
in which the process did not run (pauses) does not count: RocketMQ's broker would not have read
either.
Concurrency: state changes within a turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.waiting.append_line import AppendLine, waited_too_long
from motelog.core.clock import Clock
from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.frames import RemotingCommand
from motelog.core.remoting.server import Connection, Processor
from motelog.core.store.message_store import MessageStore

#: A turn that begins this long after the last one may have requests that waited.
HELD_UP_MS: Final = 100
#: After this time all of these have been read.
_CATCH_UP_MS: Final = 1000

_REJECTED: Final = "[REJECTREQUEST]system busy, start flow control for a while"

_SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.RECALL_MESSAGE,
)


def _limits(config: BrokerConfig) -> Mapping[int, int]:
    """Return how many ms a request of each code may have waited; all others share a limit."""
    return {
        **dict.fromkeys(_SENDS, config.send_wait_ms_max),
        RequestCode.PULL_MESSAGE: config.pull_wait_ms_max,
        RequestCode.LITE_PULL_MESSAGE: config.pull_wait_ms_max,
        RequestCode.POP_MESSAGE: config.pull_wait_ms_max,
        RequestCode.HEART_BEAT: config.heartbeat_wait_ms_max,
        RequestCode.END_TRANSACTION: config.transaction_wait_ms_max,
        RequestCode.ACK_MESSAGE: config.ack_wait_ms_max,
        RequestCode.BATCH_ACK_MESSAGE: config.ack_wait_ms_max,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: config.ack_wait_ms_max,
    }


class FlowControl:
    """The server's check of late requests (``Lateness``), and the processors' check of sends."""

    def __init__(
        self, config: BrokerConfig, line: AppendLine, store: MessageStore, clock: Clock
    ) -> None:
        self._line = line
        self._store = store
        self._has_buffers = store.config.write_buffer
        self._clock = clock
        self._is_enabled = config.fast_failure
        self._send_wait_ms_max = config.send_wait_ms_max
        self._limits = _limits(config)
        self._others_ms_max = config.admin_wait_ms_max
        self._least_ms_max = min(*self._limits.values(), self._others_ms_max)
        self._turn_ms = clock.monotonic_ms()
        self._watch_until_ms = 0
        #: Requests refused because they had waited, because the page cache was busy, or in advance.
        self.waited_count = 0
        self.page_cache_count = 0
        self.rejected_count = 0

    def enable(self, is_on: bool) -> None:
        """Set the switch that RocketMQ calls brokerFastFailureEnable."""
        self._is_enabled = is_on

    @property
    def send_wait_ms_max(self) -> int | None:
        """How long a message may wait behind others in the line; None: no limit."""
        return self._send_wait_ms_max if self._is_enabled else None

    @property
    def is_refusing(self) -> bool:
        """Whether all sends are refused because nothing can be appended at the moment."""
        line = self._line
        return (bool(line.batches) and line.is_busy) or (
            self._has_buffers and self._store.lacks_buffer
        )

    def guard(self, process: Processor) -> Processor:
        """Return ``process`` for a send, with a refusal while all sends are refused."""

        def guarded(request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
            if self.is_refusing:
                self.rejected_count += 1
                raise BrokerError(ResponseCode.SYSTEM_BUSY, _REJECTED)
            return process(request, connection)

        return guarded

    def turn_begins(self) -> bool:
        """Note that a turn begins; return whether its requests may have waited."""
        now_ms = self._line.pauses.note()
        last_ms, self._turn_ms = self._turn_ms, now_ms
        if now_ms - last_ms >= HELD_UP_MS:
            self._watch_until_ms = now_ms + _CATCH_UP_MS
        return self._is_enabled and now_ms < self._watch_until_ms

    def is_late(self, waited_ms: int) -> bool:
        """Return whether a request that has waited so long may be too late, whatever its code."""
        if waited_ms >= self._least_ms_max and self._counted(waited_ms) >= self._least_ms_max:
            return True
        return self._came_while_busy(waited_ms)

    def refusal(self, request: RemotingCommand, waited_ms: int, behind: int) -> str | None:
        """Return why a request that has waited is refused, or None; ``behind`` others follow it."""
        counted_ms = self._counted(waited_ms)
        if counted_ms >= self._limits.get(request.code, self._others_ms_max):
            self.waited_count += 1
            return waited_too_long(counted_ms, behind)
        if request.code in _SENDS and self._came_while_busy(waited_ms):
            self.page_cache_count += 1
            return (
                "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue:"
                f" {waited_ms}ms, size of queue: {behind}"
            )
        return None

    def _counted(self, waited_ms: int) -> int:
        """Return the part of this time in which the thread was held up."""
        return waited_ms - self._line.pauses.within(waited_ms)

    def _came_while_busy(self, waited_ms: int) -> bool:
        slow_until_ms = self._line.slow_until_ms
        return slow_until_ms is not None and self._clock.monotonic_ms() - waited_ms < slow_until_ms
