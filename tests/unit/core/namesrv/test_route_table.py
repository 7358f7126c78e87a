"""Routes with a time that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.errors import BrokerError
from motelog.core.namesrv.route_table import BrokerIdentity, RouteTable
from motelog.core.remoting.topic_config import DataVersion, TopicConfig

SILENCE_MS = 120_000
V1 = DataVersion(1, 1)
V2 = DataVersion(2, 2)


def make_table(brokers_max: int = 100, topics_max: int = 100) -> RouteTable:
    return RouteTable(silence_ms_max=SILENCE_MS, brokers_max=brokers_max, topics_max=topics_max)


def topics(*names: str, queues: int = 4, perm: int = 6) -> dict[str, TopicConfig]:
    return {
        name: TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
        )
        for name in names
    }


def broker(name: str = "a", broker_id: int = 0, address: str | None = None) -> BrokerIdentity:
    return BrokerIdentity("c", name, address or f"{name}{broker_id}:1", broker_id)


def test_a_registered_topic_has_queues_and_address() -> None:
    table = make_table()
    table.register(broker(), topics("T"), V1, owner=1, now_ms=0)
    route = table.route("T")
    assert route is not None
    assert [(q.broker_name, q.read_queue_nums, q.perm) for q in route.queues] == [("a", 4, 6)]
    assert [(b.name, b.cluster, b.addresses) for b in route.brokers] == [("a", "c", {0: "a0:1"})]
    assert table.route("U") is None
    table._check()


def test_two_brokers_share_a_topic() -> None:
    table = make_table()
    table.register(broker("a"), topics("T"), V1, owner=1, now_ms=0)
    table.register(broker("b"), topics("T", "U"), V1, owner=2, now_ms=0)
    route = table.route("T")
    assert route is not None
    assert [q.broker_name for q in route.queues] == ["a", "b"]
    assert table.topics_of_cluster("c") == ["T", "U"]
    assert table.topics_of_broker("a") == ["T"]
    assert table.topics_of_broker("x") is None
    assert table.clusters() == {"c": {"a", "b"}}


def test_a_slave_is_told_its_master_and_adds_its_address_only() -> None:
    table = make_table()
    assert table.register(broker(), topics("T"), V1, owner=1, now_ms=0, ha_address="a0:2") == (
        "",
        "",
    )
    answer = table.register(broker(broker_id=1), topics("X"), V1, owner=2, now_ms=0)
    assert answer == ("a0:1", "a0:2")
    assert table.route("X") is None
    route = table.route("T")
    assert route is not None
    assert route.brokers[0].addresses == {0: "a0:1", 1: "a1:1"}
    # The slave alone still answers for the topic.
    table.unregister(broker())
    route = table.route("T")
    assert route is not None
    assert route.brokers[0].addresses == {1: "a1:1"}
    table._check()


def test_topics_change_only_with_the_version_and_stay_when_left_out() -> None:
    table = make_table()
    table.register(broker(), topics("T", queues=4), V1, owner=1, now_ms=0)
    table.register(broker(), topics("T", queues=8), V1, owner=1, now_ms=1)
    route = table.route("T")
    assert route is not None
    assert route.queues[0].read_queue_nums == 4
    table.register(broker(), topics("U"), V2, owner=1, now_ms=2)
    assert sorted(table.topics()) == ["T", "U"]


def test_silence_drops_a_broker_and_its_topics() -> None:
    table = make_table()
    table.register(broker("a"), topics("T"), V1, owner=1, now_ms=0)
    table.register(broker("b"), topics("T"), V1, owner=2, now_ms=1000)
    assert table.expire(SILENCE_MS) == []
    assert table.expire(SILENCE_MS + 1) == [broker("a")]
    route = table.route("T")
    assert route is not None
    assert [q.broker_name for q in route.queues] == ["b"]
    assert table.expire(SILENCE_MS + 1001) == [broker("b")]
    assert table.topics() == []
    assert table.brokers() == {}
    assert table.clusters() == {}
    table._check()


def test_a_broker_may_ask_for_another_silence_and_questions_keep_it_alive() -> None:
    table = make_table()
    table.register(broker(), topics("T"), V1, owner=1, now_ms=0, silence_ms_max=10)
    assert table.query_version(broker(), now_ms=9) == V1
    assert table.query_version(broker("b"), now_ms=9) is None
    assert table.expire(19) == []
    assert table.expire(20) == [broker()]


def test_a_heartbeat_keeps_a_registered_broker_alive() -> None:
    table = make_table()
    table.register(broker(), topics("T"), V1, owner=1, now_ms=0, silence_ms_max=10)
    table.heartbeat(broker().cluster, broker().address, now_ms=9)
    table.heartbeat("another", broker().address, now_ms=15)
    table.heartbeat(broker().cluster, "another:1", now_ms=15)
    assert table.expire(19) == []
    assert table.expire(20) == [broker()]


def test_a_closed_connection_drops_what_it_registered() -> None:
    table = make_table()
    table.register(broker("a"), topics("T"), V1, owner=1, now_ms=0)
    table.register(broker("b"), topics("U"), V1, owner=1, now_ms=0)
    table.register(broker("a"), topics("T"), V1, owner=2, now_ms=1)  # a has reconnected
    assert table.close_owner(1) == [broker("b")]
    assert table.topics() == ["T"]
    table._check()


def test_a_broker_that_moves_leaves_no_trace_of_its_old_address() -> None:
    table = make_table()
    table.register(broker(), topics("T"), V1, owner=1, now_ms=0)
    table.register(broker(address="new:1"), topics("T"), V1, owner=2, now_ms=0)
    route = table.route("T")
    assert route is not None
    assert route.brokers[0].addresses == {0: "new:1"}
    assert table.close_owner(1) == []
    # The same address under another name: the old name is gone.
    table.register(broker("z", address="new:1"), topics("U"), V1, owner=3, now_ms=0)
    assert table.topics() == ["U"]
    table._check()


def test_unregister_needs_the_whole_identity() -> None:
    table = make_table()
    table.register(broker(), topics("T"), V1, owner=1, now_ms=0)
    table.unregister(broker(broker_id=1, address="a0:1"))
    assert table.topics() == ["T"]


def test_write_permission_of_a_broker_can_be_wiped_and_given_back() -> None:
    table = make_table()
    table.register(broker("a"), topics("T", "U"), V1, owner=1, now_ms=0)
    table.register(broker("b"), topics("T"), V1, owner=2, now_ms=0)
    assert table.set_write_permission("a", is_allowed=False) == 2
    route = table.route("T")
    assert route is not None
    assert [q.perm for q in route.queues] == [4, 6]
    assert table.set_write_permission("a", is_allowed=True) == 2
    route = table.route("T")
    assert route is not None
    assert [q.perm for q in route.queues] == [6, 6]


def test_a_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    table = make_table()
    table.register(broker("a"), topics("T", "U"), V1, owner=1, now_ms=0)
    table.delete_topic("T", "other")
    assert sorted(table.topics()) == ["T", "U"]
    table.delete_topic("T", "c")
    table.delete_topic("U")
    table.delete_topic("V")
    assert table.topics() == []
    table._check()


def test_one_topic_is_registered_of_known_brokers_within_the_limit() -> None:
    table = make_table(topics_max=2)
    table.register(broker(), topics("T"), V1, owner=1, now_ms=0)
    (config,) = topics("any", queues=7).values()
    for name in ("T", "U"):
        table.register_topic(name, {"a": config})
        route = table.route(name)
        assert route is not None
        assert [(q.broker_name, q.read_queue_nums) for q in route.queues] == [("a", 7)]
    with pytest.raises(BrokerError):
        table.register_topic("V", {"a": config})
    (other,) = topics("any", queues=1).values()
    table.register_topic("T", {"a": other, "nobody": other})
    table.register_topic("T", {})
    route = table.route("T")
    assert route is not None
    assert route.queues[0].read_queue_nums == 7
    assert table.topics() == ["T", "U"]
    table._check()
    # They go with their broker.
    table.unregister(broker())
    assert table.topics() == []


def test_limits_refuse_and_change_nothing() -> None:
    table = make_table(brokers_max=1, topics_max=2)
    table.register(broker(), topics("T", "U"), V1, owner=1, now_ms=0)
    with pytest.raises(BrokerError, match="brokers"):
        table.register(broker("b"), {}, V1, owner=1, now_ms=0)
    with pytest.raises(BrokerError, match="topics"):
        table.register(broker(), topics("X"), V2, owner=1, now_ms=0)
    assert table.topics() == ["T", "U"]
    table._check()


def test_one_broker_name_belongs_to_one_cluster() -> None:
    table = make_table()
    table.register(broker(), topics("T"), V1, owner=1, now_ms=0)
    with pytest.raises(BrokerError, match="cluster"):
        table.register(BrokerIdentity("d", "a", "a0:1"), {}, V1, owner=1, now_ms=0)
    table._check()


def test_names_that_cannot_be_topics_are_left_out() -> None:
    table = make_table()
    table.register(broker(), topics("T", "../x", "a b"), V1, owner=1, now_ms=0)
    assert table.topics() == ["T"]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["register", "unregister", "close", "expire", "delete"]),
        st.sampled_from("ab"),
        st.integers(0, 2),
        st.sampled_from(["x:1", "y:1", "z:1"]),
        st.integers(1, 3),
    ),
    max_size=30,
)


@given(operations=OPERATIONS)
def test_any_order_of_events_keeps_the_tables_consistent(
    operations: list[tuple[str, str, int, str, int]],
) -> None:
    table = make_table()
    for number, (kind, name, broker_id, address, owner) in enumerate(operations):
        identity = broker(name, broker_id, address)
        now_ms = number * SILENCE_MS // 4
        match kind:
            case "register":
                version = DataVersion(number, number)
                names = topics("T", f"T{owner}")
                table.register(identity, names, version, owner=owner, now_ms=now_ms)
            case "unregister":
                table.unregister(identity)
            case "close":
                table.close_owner(owner)
            case "expire":
                table.expire(now_ms)
            case _:
                table.delete_topic(f"T{owner}")
        table._check()
