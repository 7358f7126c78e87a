"""The rights that each request to a broker needs under access control.

Owns: the table. Must not touch: who has rights (core.acl), what a request does. A code that is not
here is closed. Spec: RocketMQ 4.9 PlainAccessResource, 5.3 DefaultAuthorizationContextBuilder;
requests that 4.9 allows to every account need the rights of 5.3, or an administrator.

Producer groups have no rights of their own, as in RocketMQ. Some requests give the place of a
message but not its topic; their processors demand the right when they have found the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from motelog.core.acl.accounts import Need, Right, group_need, topic_need
from motelog.core.acl.needs import (
    Table,
    administrator,
    any_account,
    consume,
    consumed,
    json_body,
    json_text,
    member,
    publish,
    read,
    settle,
    use,
)
from motelog.core.broker.tables.heartbeat import decode_heartbeat
from motelog.core.errors import BrokerError
from motelog.core.remoting.codes import RequestCode, ResponseCode
from motelog.core.remoting.frames import RemotingCommand


def _heartbeat(request: RemotingCommand) -> Iterator[Need]:
    for consumer in decode_heartbeat(request.body).consumers:
        yield group_need(consumer.group)
        for topic in consumer.subscriptions:
            yield from consumed(topic, consumer.group)


def _goodbye(request: RemotingCommand) -> Iterator[Need]:
    group = request.ext.get("consumerGroup")
    if group is not None:
        yield group_need(group)


def _group_in_body(request: RemotingCommand) -> Iterator[Need]:
    yield group_need(json_text(json_body(request), "consumerGroup"))


def _check_client(request: RemotingCommand) -> Iterator[Need]:
    yield group_need(json_text(json_body(request), "group"))


def _assignment(request: RemotingCommand) -> Iterator[Need]:
    body = json_body(request)
    yield group_need(json_text(body, "consumerGroup"))
    yield topic_need(json_text(body, "topic"), Right.SUB)


def _settle_several(request: RemotingCommand) -> Iterator[Need]:
    acks = json_body(request).get("acks") or []
    if not isinstance(acks, list) or not all(isinstance(ack, dict) for ack in acks):
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "acknowledgements must be a list of tables")
    for group, topic in {(json_text(ack, "c"), json_text(ack, "t")) for ack in acks}:
        yield from consumed(topic, group)


def _consume_stats(request: RemotingCommand) -> Iterator[Need]:
    yield from member()(request)
    topic = request.ext.get("topic")
    if topic:
        yield topic_need(topic, Right.SUB)


NEEDS: Final[Table] = {
    # Producers.
    RequestCode.SEND_MESSAGE: publish(),
    RequestCode.SEND_MESSAGE_V2: publish("b"),
    RequestCode.SEND_BATCH_MESSAGE: publish("b"),
    RequestCode.SEND_REPLY_MESSAGE: publish(),
    RequestCode.SEND_REPLY_MESSAGE_V2: publish("b"),
    RequestCode.RECALL_MESSAGE: publish(),
    RequestCode.END_TRANSACTION: any_account,
    # Consumers.
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _goodbye,
    RequestCode.CHECK_CLIENT_CONFIG: _check_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: member(),
    RequestCode.QUERY_ASSIGNMENT: _assignment,
    RequestCode.LOCK_BATCH_MQ: _group_in_body,
    RequestCode.UNLOCK_BATCH_MQ: _group_in_body,
    RequestCode.PULL_MESSAGE: consume(),
    RequestCode.LITE_PULL_MESSAGE: consume(),
    RequestCode.CONSUMER_SEND_MSG_BACK: member("group"),
    RequestCode.QUERY_CONSUMER_OFFSET: consume(),
    RequestCode.UPDATE_CONSUMER_OFFSET: consume(),
    RequestCode.POP_MESSAGE: consume(),
    RequestCode.PEEK_MESSAGE: consume(),
    RequestCode.NOTIFICATION: consume(),
    RequestCode.POLLING_INFO: consume(),
    RequestCode.ACK_MESSAGE: settle,
    RequestCode.BATCH_ACK_MESSAGE: _settle_several,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: settle,
    # Either of them.
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: read(),
    RequestCode.GET_MAX_OFFSET: read(),
    RequestCode.GET_MIN_OFFSET: read(),
    RequestCode.GET_EARLIEST_MSG_STORETIME: read(),
    RequestCode.QUERY_MESSAGE: read(),
    RequestCode.VIEW_MESSAGE_BY_ID: any_account,
    RequestCode.GET_TOPIC_CONFIG: use(),
    RequestCode.GET_TOPIC_STATS_INFO: read(),
    RequestCode.GET_CONSUME_STATS: _consume_stats,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: member("group"),
    # Operators.
    RequestCode.UPDATE_AND_CREATE_TOPIC: administrator,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: administrator,
    RequestCode.GET_ALL_TOPIC_CONFIG: administrator,
    RequestCode.UPDATE_BROKER_CONFIG: administrator,
    RequestCode.GET_BROKER_CONFIG: administrator,
    RequestCode.GET_BROKER_RUNTIME_INFO: administrator,
    RequestCode.GET_BROKER_HA_STATUS: administrator,
    RequestCode.GET_ALL_CONSUMER_OFFSET: administrator,
    RequestCode.GET_ALL_DELAY_OFFSET: administrator,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: administrator,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: administrator,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: administrator,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: administrator,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: administrator,
    RequestCode.DELETE_TOPIC_IN_BROKER: administrator,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: administrator,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: administrator,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: administrator,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: administrator,
    RequestCode.QUERY_CONSUME_TIME_SPAN: administrator,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: administrator,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: administrator,
    RequestCode.GET_CONSUMER_RUNNING_INFO: administrator,
    RequestCode.QUERY_CORRECTION_OFFSET: administrator,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: administrator,
    RequestCode.CLONE_GROUP_OFFSET: administrator,
    RequestCode.VIEW_BROKER_STATS_DATA: administrator,
    RequestCode.CLEAN_UNUSED_TOPIC: administrator,
    RequestCode.GET_BROKER_CONSUME_STATS: administrator,
    RequestCode.QUERY_CONSUME_QUEUE: administrator,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: administrator,
    RequestCode.GET_ALL_PRODUCER_INFO: administrator,
    RequestCode.DELETE_EXPIRED_COMMITLOG: administrator,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: administrator,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: administrator,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: administrator,
    RequestCode.SET_MESSAGE_REQUEST_MODE: administrator,
    RequestCode.AUTH_CREATE_USER: administrator,
    RequestCode.AUTH_UPDATE_USER: administrator,
    RequestCode.AUTH_DELETE_USER: administrator,
    RequestCode.AUTH_GET_USER: administrator,
    RequestCode.AUTH_LIST_USER: administrator,
    RequestCode.AUTH_CREATE_ACL: administrator,
    RequestCode.AUTH_UPDATE_ACL: administrator,
    RequestCode.AUTH_DELETE_ACL: administrator,
    RequestCode.AUTH_GET_ACL: administrator,
    RequestCode.AUTH_LIST_ACL: administrator,
    RequestCode.PROMOTE_BROKER: administrator,
    RequestCode.FOLLOW_TABLES: administrator,
}
