"""Makes the parts of a store that take values of its configuration, not the whole section.

Owns: which value goes to which part. Must not touch: which part knows which (message_store), the
work of the parts.
"""

from __future__ import annotations

from collections.abc import Callable

from motelog.core.clock import Clock
from motelog.core.store.config import StoreConfig
from motelog.core.store.disk.files import Storage
from motelog.core.store.index.index_service import IndexService
from motelog.core.store.log.commitlog import CommitLog
from motelog.core.store.log.flush import Committer, GroupFlusher


def make_log(config: StoreConfig, storage: Storage, clock: Clock, store_host: bytes) -> CommitLog:
    return CommitLog(
        storage,
        f"{config.directory}/commitlog",
        config.commitlog_file_bytes,
        store_host=store_host,
        clock=clock,
        mapped_max=config.commitlog_files_mapped_max,
        buffers_max=config.write_buffer_files_max if config.write_buffer else 0,
        touch_bytes=config.commitlog_touch_ahead_bytes if config.flush == "async" else 0,
    )


def make_flusher(
    config: StoreConfig,
    log: CommitLog,
    sync: Callable[[int, int], None],
    on_failure: Callable[[str], None],
) -> GroupFlusher:
    return GroupFlusher(
        sync=sync,
        end_offset=lambda: log.end_offset,
        on_failure=on_failure,
        on_flushed=log.queue.give_back_buffers,
        interval_ms=config.flush_interval_ms,
    )


def make_committer(
    config: StoreConfig, log: CommitLog, on_failure: Callable[[str], None]
) -> Committer:
    return Committer(
        commit=log.commit, on_failure=on_failure, interval_ms=config.write_buffer_commit_ms
    )


def make_index(config: StoreConfig, storage: Storage, clock: Clock, log: CommitLog) -> IndexService:
    return IndexService(
        storage,
        config.directory,
        log,
        slots=config.index_slots,
        entries=config.index_entries,
        clock=clock,
    )
