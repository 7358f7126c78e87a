"""A log in the process of its broker: which of the broker's reasons a publisher hears."""

from __future__ import annotations

from pathlib import Path

import pytest

from motelog.core.broker.api import BrokerApi
from motelog.core.broker.tables.topics import TopicTable
from motelog.core.clock import ManualClock
from motelog.core.errors import FlushTimeoutError, NoSlaveError, StoreError
from motelog.gateway.log.local_log import LocalLog
from tests.support.fake_acknowledge import FakeAcknowledge
from tests.support.stores import STORE_HOST, message, opened


@pytest.mark.parametrize("error", [NoSlaveError("none is near"), FlushTimeoutError("too slow")])
def test_a_broker_without_its_slave_acknowledges_what_it_has(
    tmp_path: Path, error: StoreError
) -> None:
    topics = TopicTable(
        broker_name="b", cluster="c", default_queue_count=4, auto_create=True, topics_max=100
    )
    acknowledge = FakeAcknowledge(0)
    with opened(tmp_path) as store:
        api = BrokerApi(
            store,
            topics,
            clock=ManualClock(),
            store_host=STORE_HOST,
            cold_reads_max=10,
            acknowledge=acknowledge,
        )
        log = LocalLog(api)
        ticket = log.append([message(api.queue_tail("T", 0))])
        assert not ticket.is_settled
        acknowledge.fail(error)
        assert ticket.is_settled
        assert ticket.error is (None if isinstance(error, NoSlaveError) else error)
