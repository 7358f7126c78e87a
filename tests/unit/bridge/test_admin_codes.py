"""Admin has a method for each request of an operator that the broker answers, or a reason."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Final

from motelog.bridge import admin
from motelog.core.acl.needs import administrator
from motelog.core.broker.needs import NEEDS
from motelog.core.remoting.codes import RequestCode
from tests.support.broker_stage import broker_stage

NOT_ADMINS: Final = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: "put_topic, one after the other",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "put_group, one after the other",
    RequestCode.GET_TOPIC_CONFIG: "topic asks for all: RocketMQ 4 does not know this one",
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: "groups; and asking for one may create it",
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: "topics has the system's, too",
    RequestCode.GET_ALL_CONSUMER_OFFSET: "a slave asks; progress_of_all has the offsets",
    RequestCode.GET_ALL_DELAY_OFFSET: "a slave asks; offsets of its delay levels mean nothing else",
    RequestCode.FOLLOW_TABLES: "a slave asks",
    RequestCode.QUERY_TOPICS_BY_CONSUMER: "progress has the topics of a group",
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: "running_info has the subscriptions of a member",
    RequestCode.QUERY_MESSAGE: "trace, by bridge.query; else PullConsumer.query_by_key",
    RequestCode.VIEW_MESSAGE_BY_ID: "PullConsumer.view",
    RequestCode.AUTH_UPDATE_ACL: "put_rules sends AUTH_CREATE_ACL, which does the same",
}


def sent_by_admin() -> set[RequestCode]:
    """Return the codes that the text of Admin's module names."""
    return {
        RequestCode[node.attr]
        for node in ast.walk(ast.parse(inspect.getsource(admin)))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "RequestCode"
    }


def test_admin_sends_every_code_that_is_an_operator_s(tmp_path: Path) -> None:
    with broker_stage(tmp_path) as stage:
        answered = {RequestCode(code) for code in stage.processors.admin.processors()}
    answered |= {RequestCode(code) for code, need in NEEDS.items() if need is administrator}
    assert answered - sent_by_admin() == NOT_ADMINS.keys()
