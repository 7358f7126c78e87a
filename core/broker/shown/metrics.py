"""The part of /metrics about a broker and its store.

Owns: the table of the broker's sample; which topics and groups are shown by name.
Must not touch: what is counted (``assembly``, ``store.stats``, ``stats``), the exposition.
Invariant: at most NAMED_MAX topics and as many queues' groups are named, those with the most, so
that clients cannot make the exposition arbitrarily long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from operator import itemgetter
from typing import Final

from motelog.core.broker.shown.stats import MESSAGES, BrokerStats, Key
from motelog.core.broker.tables.consumer_offsets import ConsumerOffsets
from motelog.core.errors import StoreError
from motelog.core.metrics import Reading, Shown, counter, gauge, histogram
from motelog.core.store.disk.page_cache import NotInMemoryError
from motelog.core.store.stats import LATENCY_US_BOUNDS, SIZE_BOUNDS
from motelog.core.store.store_reader import StoreReader

#: Topics, and pairs of topic and group, that are shown by name: those with the most messages.
NAMED_MAX: Final = 20

_US: Final = 1e-6

BROKER_METRICS: Final[Mapping[str, Shown]] = {
    "topics_now": gauge("topics", "Topics, those of the system included."),
    "groups_now": gauge("consumer_groups", "Consumer groups that the broker knows."),
    "consumers_now": gauge("clients", "Native clients that send heartbeats.", role="consumer"),
    "producers_now": gauge("clients", "Native clients that send heartbeats.", role="producer"),
    "connections_now": gauge("connections", "Open connections of native clients."),
    "held_pulls_now": gauge("held_pulls", "Pulls that wait for a message."),
    "held_pulls_woken": counter("held_pulls_woken", "Held pulls that were read again."),
    "held_pops_now": gauge("held_pops", "Pops that wait for a message."),
    "messages_in_work_now": gauge(
        "messages_in_work", "Messages that consumers have popped and not acknowledged."
    ),
    "messages_revived": counter(
        "messages_revived", "Popped messages that were not acknowledged in time, delivered again."
    ),
    "messages_received": counter("messages_received", "Messages taken from native producers."),
    "messages_refused": counter("messages_refused", "Messages refused to native producers."),
    "messages_too_late_on_disk": counter(
        "messages_too_late_on_disk",
        "Messages answered FLUSH_DISK_TIMEOUT: they are stored, perhaps not on the disk yet.",
    ),
    "messages_uncopied": counter(
        "messages_uncopied",
        "Messages answered FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE: they are stored, perhaps at"
        " no slave.",
    ),
    "slaves_now": gauge("slaves", "Slaves that are connected to this master."),
    "slaves_near_now": gauge("slaves_near", "Those that lack less than 256 MiB."),
    "slaves_needed_now": gauge(
        "slaves_needed", 'How many of those a message needs: 1 with `replicate = "sync"`, else 0.'
    ),
    "nearest_slave_behind_bytes_now": gauge(
        "slave_behind_bytes", "Log that a slave lacks; without slaves not shown.", slave="nearest"
    ),
    "slowest_slave_behind_bytes_now": gauge(
        "slave_behind_bytes", "Log that a slave lacks; without slaves not shown.", slave="slowest"
    ),
    "copying_now": gauge(
        "copying", "1 while this slave copies its master's log, else 0; masters do not show it."
    ),
    "copying_behind_bytes_now": gauge(
        "copying_behind_bytes",
        "Log that this slave lacks of what its master had when it last said so.",
    ),
    "copying_silence_s_now": gauge(
        "copying_silence_seconds", "Time since this slave heard its master. +Inf: not yet."
    ),
    "copied_bytes": counter("copied_bytes", "Bytes that this slave got from its master."),
    "requests_busy_waited": counter(
        "requests_busy", "Requests answered SYSTEM_BUSY by flow control.", reason="waited"
    ),
    "requests_busy_page_cache": counter(
        "requests_busy", "Requests answered SYSTEM_BUSY by flow control.", reason="page_cache"
    ),
    "requests_busy_rejected": counter(
        "requests_busy", "Requests answered SYSTEM_BUSY by flow control.", reason="rejected"
    ),
    "messages_pulled": counter("messages_pulled", "Messages in answers to pulls."),
    "dead_letters": counter(
        "dead_letters", "Messages that a group has given up: look at the topic %DLQ%<group>."
    ),
    "cold_reads": counter("cold_reads", "Reads for which something was paged in."),
    "cold_reads_waiting_now": gauge("cold_reads_waiting", "Reads that wait for the disk."),
    "delayed_messages_recalled": counter(
        "delayed_messages_recalled", "Delayed messages not delivered, as producers recalled them."
    ),
    "delayed_messages_delivered": counter(
        "delayed_messages_delivered", "Delayed messages that have come due."
    ),
    "transactions_committed": counter(
        "transactions_ended", "Transactions that producers have ended.", result="committed"
    ),
    "transactions_rolled_back": counter(
        "transactions_ended", "Transactions that producers have ended.", result="rolled_back"
    ),
    "transactions_asked_about": counter(
        "transactions_asked_about", "Questions to producers about open transactions."
    ),
    "transactions_given_up": counter(
        "transactions_given_up",
        "Transactions rolled back since producers gave no answer: look at the topic"
        " TRANS_CHECK_MAX_TIME_TOPIC.",
    ),
    "timers_near_now": gauge("timers_near", "Delayed messages in memory, as they are due soon."),
    "sends_waiting_for_disk_now": gauge("sends_waiting_for_disk", "Sends that wait for a sync."),
    "store_put_messages": counter("store_put_messages", "Messages appended by anyone."),
    "store_put_bytes": counter("store_put_bytes", "Bytes of their records in the log."),
    "store_gets_found": counter("store_gets", "Reads of a queue.", result="found"),
    "store_gets_missed": counter("store_gets", "Reads of a queue.", result="nothing"),
    "store_got_messages": counter("store_got_messages", "Messages read."),
    "store_got_bytes": counter("store_got_bytes", "Bytes of their records."),
    "store_append_us": histogram(
        "store_append_seconds", "Time of one append of a batch.", LATENCY_US_BOUNDS, unit=_US
    ),
    "store_read_us": histogram(
        "store_read_seconds", "Time of one read of a queue.", LATENCY_US_BOUNDS, unit=_US
    ),
    "store_sync_us": histogram(
        "store_sync_seconds", "Time of one sync of the CommitLog.", LATENCY_US_BOUNDS, unit=_US
    ),
    "store_record_bytes": histogram(
        "store_record_bytes", "Sizes of records, each its batch's mean.", SIZE_BOUNDS
    ),
    "store_queue_files_rebuilt": counter(
        "store_queue_files_rebuilt", "ConsumeQueue files rebuilt, as a disk had changed them."
    ),
    "store_queue_files_aside_now": gauge(
        "store_queue_files_aside", "ConsumeQueue files in quarantine, which are being rebuilt."
    ),
    "store_messages_refused_full": counter(
        "store_messages_refused_full", "Messages refused, as the disk is over its limit."
    ),
    "store_full_now": gauge("store_full", "1 while appends are refused for that."),
    "store_disk_total_bytes_now": gauge("store_disk_total_bytes", "Size of the store's disk."),
    "store_disk_free_bytes_now": gauge("store_disk_free_bytes", "What is free of it."),
    "store_disk_reserve_bytes_now": gauge(
        "store_disk_reserve_bytes", "What must stay free: with less, appends are refused."
    ),
    "store_retention_left_s_now": gauge(
        "store_retention_left_seconds",
        "Time until the oldest messages are removed before retention_hours are over, as the disk is"
        " nearly full: at the log's growth of the last ten minutes. +Inf: the disk has room for all"
        " of them. 0: it happens.",
    ),
    "store_dispatch_behind_bytes_now": gauge(
        "store_dispatch_behind_bytes",
        "Log that no index file has yet. Queues and readers are never behind.",
    ),
    "store_sync_behind_bytes_now": gauge(
        "store_sync_behind_bytes", "Log that may not be on the disk yet."
    ),
    "store_log_bytes_now": gauge("store_log_bytes", "The whole log."),
    "store_mapped_bytes_now": gauge("store_mapped_bytes", "Files of log and index in memory."),
    "store_mapped_files_now": gauge("store_mapped_files", "How many these are."),
    "store_wrote_offset_now": gauge("store_offset", "How far the log is.", of="written"),
    "store_committed_offset_now": gauge("store_offset", "How far the log is.", of="committed"),
    "store_flushed_offset_now": gauge("store_offset", "How far the log is.", of="flushed"),
}


#: The metrics of topics and groups by name; the labels' values come with each reading.
TOPIC_METRICS: Final[Mapping[str, Shown]] = {
    shown.family: shown
    for shown in (
        counter("topic_put_messages", "Messages appended to the busiest topics.", topic=""),
        counter("topic_put_bytes", "Bytes of their records.", topic=""),
        counter("group_got_messages", "Messages that busy groups have pulled.", group="", topic=""),
        counter("group_got_bytes", "Bytes of their records.", group="", topic=""),
        gauge("group_lag_messages", "Messages not confirmed yet.", group="", topic=""),
        gauge("group_lag_seconds", "Age of the oldest of them.", 0.001, group="", topic=""),
    )
}


def topics_by_name(stats: BrokerStats) -> Iterator[Reading]:
    """Yield the appends of the busiest topics, and what the busiest groups have read of topics."""
    for (topic, *_), (_, messages, put_bytes) in nlargest(NAMED_MAX, stats.puts(), key=_messages):
        yield _reading("topic_put_messages", messages, topic)
        yield _reading("topic_put_bytes", put_bytes, topic)
    for name, (_, messages, got_bytes) in nlargest(NAMED_MAX, stats.gets(), key=_messages):
        topic, group = name
        yield _reading("group_got_messages", messages, group, topic)
        yield _reading("group_got_bytes", got_bytes, group, topic)


def _reading(family: str, value: float, *labels: str) -> Reading:
    return Reading(TOPIC_METRICS[family].labelled(*labels), value)


def _messages(item: tuple[Key, Sequence[int]]) -> int:
    return item[1][MESSAGES - 1]


def lag_by_group(offsets: ConsumerOffsets, reader: StoreReader, now_ms: int) -> Iterator[Reading]:
    """Yield the lag of the groups that lag most, in messages and in seconds.

    The time is the age of the oldest message that a group has not confirmed; it is left out if that
    message is not in memory.
    """
    lags = []
    for group, topic, queues in offsets.entries():
        behind = {
            queue_id: max(reader.min_offset(topic, queue_id), queue_offset)
            for queue_id, queue_offset in queues.items()
            if queue_offset < reader.max_offset(topic, queue_id)
        }
        count = sum(reader.max_offset(topic, at) - begin for at, begin in behind.items())
        lags.append((count, group, topic, behind))
    for count, group, topic, behind in nlargest(NAMED_MAX, lags, key=itemgetter(0)):
        yield _reading("group_lag_messages", count, group, topic)
        with suppress(NotInMemoryError, StoreError):
            times = [
                reader.store_timestamp(topic, queue_id, begin, may_wait=False)
                for queue_id, begin in behind.items()
            ]
            lag_ms = max((now_ms - stored_ms for stored_ms in times if stored_ms >= 0), default=0)
            yield _reading("group_lag_seconds", max(lag_ms, 0), group, topic)
