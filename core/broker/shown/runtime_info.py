"""The runtime information of a broker for RocketMQ's tools: the table of request code 28.

Owns: the keys and the texts of their values, the totals at the last two midnights. Must not touch:
what is counted. Spec: RocketMQ AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService,
BrokerStats; what `mqadmin brokerStatus` and `clusterList` read.

Some keys are about parts that this broker does not have, such as the queues of thread pools. They
have the values of an idle RocketMQ broker, because the tools fail if a key is missing. The queue of
sends is the line of appends, and the lock time of the page cache is how long its first batch waits.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Final

from motelog.core.broker.waiting.append_line import AppendLine
from motelog.core.clock import Clock
from motelog.core.metrics import Histogram, percentile
from motelog.core.remoting.frames import VERSION_CURRENT
from motelog.core.store.message_store import MessageStore

_VERSION_TEXT: Final = "V4_9_8"
# RocketMQ's classes of put latency: name and upper end in microseconds.
_PUT_CLASSES: Final = (
    ("<=0ms", 1_000),
    ("0~10ms", 10_000),
    ("10~50ms", 50_000),
    ("50~100ms", 100_000),
    ("100~200ms", 200_000),
    ("200~500ms", 500_000),
    ("500ms~1s", 1_000_000),
    ("1~2s", 2_000_000),
    ("2~3s", 3_000_000),
    ("3~4s", 4_000_000),
    ("4~5s", 5_000_000),
    ("5~10s", 10_000_000),
)
_POOLS: Final = ("send", "pull", "query", "litePull", "ack")
_ABSENT: Final = (
    *(f"{pool}ThreadPoolQueue{value}" for pool in _POOLS for value in ("Size", "Capacity")),
    *(f"{pool}ThreadPoolQueueHeadWaitTimeMills" for pool in _POOLS),
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "dispatchMaxBuffer",
    "startAcceptSendRequestTimeStamp",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerEnqueueTps",
    "timerDequeueTps",
)
# The value that RocketMQ shows if it has no write buffer of its own.
_NO_POOL: Final = 2**31 - 1


class RuntimeInfo:
    """One broker's table; ``tick`` is called once a second."""

    def __init__(
        self,
        store: MessageStore,
        *,
        clock: Clock,
        messages_in: Callable[[], int],
        messages_out: Callable[[], int],
        refused: Callable[[], int],
        timers_near: Callable[[], int],
        line: AppendLine,
    ) -> None:
        self._line = line
        self._store = store
        self._clock = clock
        self._messages_in = messages_in
        self._messages_out = messages_out
        self._refused = refused
        self._timers_near = timers_near
        self._started_ms = clock.now_ms()
        self._day = _day(self._started_ms)
        # (in, out) at the last midnight and at the one before; zeros before the first midnight.
        self._today_morning = (0, 0)
        self._yesterday_morning = (0, 0)

    def tick(self) -> None:
        """Note the counters for the rates, and the totals if a new day has begun."""
        self._store.stats.take_sample(self._clock.monotonic_ms())
        today = _day(self._clock.now_ms())
        # A clock that is set back does not begin a new day.
        if today > self._day:
            self._day = today
            self._yesterday_morning = self._today_morning
            self._today_morning = (self._messages_in(), self._messages_out())

    def table(self, *, may_wait: bool = True) -> dict[str, str]:
        """Return the table, all values as text."""
        return {
            **dict.fromkeys(_ABSENT, "0"),
            **self._broker(),
            **self._puts_and_gets(),
            **self._log(may_wait=may_wait),
        }

    def _broker(self) -> dict[str, str]:
        return {
            "brokerActive": "true",
            "brokerVersionDesc": _VERSION_TEXT,
            "brokerVersion": str(VERSION_CURRENT),
            "bootTimestamp": str(self._started_ms),
            "runtime": _runtime(self._clock.now_ms() - self._started_ms),
            "msgPutTotalYesterdayMorning": str(self._yesterday_morning[0]),
            "msgPutTotalTodayMorning": str(self._today_morning[0]),
            "msgPutTotalTodayNow": str(self._messages_in()),
            "msgGetTotalYesterdayMorning": str(self._yesterday_morning[1]),
            "msgGetTotalTodayMorning": str(self._today_morning[1]),
            "msgGetTotalTodayNow": str(self._messages_out()),
            "timerCongestNum": str(self._timers_near()),
            "sendThreadPoolQueueSize": str(len(self._line.batches)),
            "sendThreadPoolQueueHeadWaitTimeMills": str(self._line.head_waited_ms),
            "pageCacheLockTimeMills": str(self._line.head_waited_ms),
        }

    def _puts_and_gets(self) -> dict[str, str]:
        stats = self._store.stats
        got = _rates(stats.got_rates())
        total = [
            found + missed
            for found, missed in zip(stats.found_rates(), stats.missed_rates(), strict=True)
        ]
        return {
            "putTps": _rates(stats.put_rates()),
            "getFoundTps": _rates(stats.found_rates()),
            "getMissTps": _rates(stats.missed_rates()),
            "getTotalTps": _rates(total),
            # RocketMQ 5 has corrected the spelling.
            "getTransferedTps": got,
            "getTransferredTps": got,
            "putMessageTimesTotal": str(stats.put_messages),
            "putMessageFailedTimes": str(self._refused()),
            "putMessageSizeTotal": str(stats.put_bytes),
            "putMessageAverageSize": f"{stats.put_bytes / max(stats.put_messages, 1):.1f}",
            "putMessageDistributeTime": _classes(stats.append_us),
            "putMessageEntireTimeMax": str(stats.append_us_max // 1000),
            "putLatency99": _percentile_ms(stats.append_us, 0.99),
            "putLatency999": _percentile_ms(stats.append_us, 0.999),
            "getMessageEntireTimeMax": str(stats.read_us_max // 1000),
        }

    def _log(self, *, may_wait: bool) -> dict[str, str]:
        store = self._store
        usage = store.disk_watch.usage
        buffers = store.free_buffers_count
        ratio = f"{usage.used_percent / 100:.2f}"
        total, free = _readable(usage.total_bytes), _readable(usage.free_bytes)
        return {
            "commitLogMinOffset": str(store.begin_offset),
            "commitLogMaxOffset": str(store.end_offset),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
            "earliestMessageTimeStamp": str(store.reader.earliest_timestamp_ms(may_wait=may_wait)),
            "dispatchBehindBytes": str(store.dispatch_behind_bytes),
            "remainHowManyDataToFlush": _readable(store.end_offset - store.durable_offset),
            "remainTransientStoreBufferNumbs": str(_NO_POOL if buffers is None else buffers),
        }


def _percentile_ms(histogram: Histogram, share: float) -> str:
    return f"{percentile(histogram.bounds, histogram.counts, share) / 1000:.2f}"


def _day(now_ms: int) -> date:
    """Return the day of the broker's time zone."""
    return datetime.fromtimestamp(now_ms / 1000).astimezone().date()


def _runtime(passed_ms: int) -> str:
    minutes, seconds = divmod(max(passed_ms, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _rates(rates: list[float]) -> str:
    return " ".join(map(str, rates))


def _classes(histogram: Histogram) -> str:
    """Return counts since the start by RocketMQ's classes, in its text form."""
    text = ""
    below = 0
    for name, end_us in _PUT_CLASSES:
        seen = sum(histogram.counts[: histogram.bounds.index(end_us) + 1])
        text += f"[{name}]:{seen - below} "
        below = seen
    return f"{text}[10s~]:{sum(histogram.counts) - below} "


def _readable(count: int) -> str:
    """Return a count of bytes as RocketMQ shows it: 1.5 GiB."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    unit = ""
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):  # noqa: B007  # the one it ends with
        size /= 1024
        if size < 1024:
            break
    return f"{size:.1f} {unit}"
