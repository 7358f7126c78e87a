"""Heartbeats as Java, C++ and JavaScript clients write them, and tag expressions."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motelog.core.broker.tables.heartbeat import decode_heartbeat, decode_tag_expression
from motelog.core.errors import RemotingDecodeError

JAVA = (
    b'{"clientID":"10.0.0.1@7","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"G","messageModel":"CLUSTERING",'
    b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG",'
    b'"subString":"TagA","subVersion":1511333414604,"tagsSet":["TagA"],"topic":"T"}],'
    b'"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"P"}],'
    b'"withoutSub":false}'
)
CPP = (
    b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"G",'
    b'"messageModel":1,"subscriptionDataSet":[{"codeSet":[],"subString":"*","subVersion":"12",'
    b'"tagsSet":[],"topic":"T"}]}],"producerDataSet":[]}'
)


def test_java_writes_names() -> None:
    beat = decode_heartbeat(JAVA)
    assert (beat.client_id, beat.producer_groups) == ("10.0.0.1@7", ("P",))
    (consumer,) = beat.consumers
    assert consumer.group == "G"
    assert consumer.from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert consumer.message_model == "CLUSTERING"
    subscription = consumer.subscriptions["T"]
    assert (subscription.sub_string, subscription.sub_version) == ("TagA", 1511333414604)
    assert subscription.is_tag_filter


@pytest.mark.parametrize("body", [CPP, CPP.replace(b'"12"', b"12")])
def test_cpp_writes_ordinals_and_a_version_as_text(body: bytes) -> None:
    (consumer,) = decode_heartbeat(body).consumers
    assert consumer.subscriptions["T"].sub_version == 12
    assert consumer.consume_type == "CONSUME_PASSIVELY"
    assert consumer.message_model == "CLUSTERING"
    assert consumer.from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert consumer.subscriptions["T"].is_tag_filter


def test_a_brief_one_has_a_fingerprint_and_no_subscriptions() -> None:
    beat = decode_heartbeat(
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[]}],'
        b'"heartbeatFingerprint":-7,"withoutSub":true}'
    )
    (consumer,) = beat.consumers
    assert (beat.fingerprint, consumer.fingerprint, consumer.is_brief) == (-7, -7, True)
    (consumer,) = decode_heartbeat(
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G"}]}'
    ).consumers
    assert (consumer.fingerprint, consumer.is_brief) == (0, False)


def test_missing_sets_are_empty() -> None:
    beat = decode_heartbeat(b'{"clientID":"c","producerDataSet":null}')
    assert (beat.producer_groups, beat.consumers) == ((), ())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"clientID":7}',
        JAVA.replace(b'"CLUSTERING"', b'"ELSE"'),
        JAVA.replace(b'"CLUSTERING"', b"2"),
        JAVA.replace(b'"CLUSTERING"', b"-1"),
        JAVA.replace(b'"groupName":"G",', b""),
        JAVA.replace(b'"subString":"TagA"', b'"subString":"' + b"x" * 70_000 + b'"'),
        b'{"clientID":' + b"[" * 10_000,
    ],
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(RemotingDecodeError):
        decode_heartbeat(body)


@given(body=st.binary(max_size=100))
def test_any_bytes_are_a_heartbeat_or_refused(body: bytes) -> None:
    with suppress(RemotingDecodeError):
        decode_heartbeat(body)


@pytest.mark.parametrize("expression", [None, "", "*", " ", "||", "A || *"])
def test_expressions_that_take_all(expression: str | None) -> None:
    assert decode_tag_expression(expression) is None


def test_tags_become_java_hashes() -> None:
    assert decode_tag_expression("TagA") == frozenset({2598919})
    assert decode_tag_expression(" TagA||TagB || TagA") == frozenset({2598919, 2598920})
