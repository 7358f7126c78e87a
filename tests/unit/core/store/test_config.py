"""StoreConfig: what is refused before a folder is touched."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from motelog.core.store.config import StoreConfig


def test_the_defaults_are_rocketmqs_sizes() -> None:
    config = StoreConfig(directory="/data")
    assert config.commitlog_file_bytes == 1_073_741_824
    assert config.consume_queue_file_units * 20 == 6_000_000
    assert (config.flush, config.flush_interval_ms) == ("async", 500)


@pytest.mark.parametrize(
    "wrong",
    [
        {"commitlog_file_bytes": 5000},
        {"commitlog_file_bytes": 0},
        {"consume_queue_file_units": 0},
        {"message_bytes_max": 0},
        {"flush_interval_ms": 0},
        {"checkpoint_interval_ms": -1},
        {"disk_used_percent_max": 101},
        {"disk_free_bytes_min": -1},
        {"consume_queue_files_open_max": 1},
        {"commitlog_files_mapped_max": 0},
        {"commitlog_touch_ahead_bytes": -1},
        {"write_buffer": True, "flush": "sync"},
        {"write_buffer_commit_ms": 0},
        {"write_buffer_files_max": 0},
        {"flush": "never"},
        {"flush_intervall_ms": 5},
    ],
)
def test_an_impossible_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"directory": "/data", **wrong}, StoreConfig)
