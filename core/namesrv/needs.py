"""The permissions that each request to a name server needs with access control.

Owns: the table. Must not touch: who has permissions (core.acl), what a request does. Codes that are
not in the table are refused. RocketMQ 4.9's name server checks nothing; this follows 5.3's.

Clients request a topic's route, and need some permission on it. Everything else is for brokers and
tools.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from motelog.core.acl.accounts import Need
from motelog.core.acl.needs import Table, administrator, any_account, use
from motelog.core.remoting.codes import RequestCode
from motelog.core.remoting.frames import RemotingCommand
from motelog.core.topic_names import DEFAULT_TOPIC

_use: Final = use()


def _route(request: RemotingCommand) -> Iterable[Need]:
    # Producers of a topic that does not exist yet ask for the template's route.
    is_template = request.ext.get("topic") == DEFAULT_TOPIC
    return any_account(request) if is_template else _use(request)


NEEDS: Final[Table] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.REGISTER_BROKER: administrator,
    RequestCode.UNREGISTER_BROKER: administrator,
    RequestCode.BROKER_HEARTBEAT: administrator,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: administrator,
    RequestCode.QUERY_DATA_VERSION: administrator,
    RequestCode.GET_BROKER_MEMBER_GROUP: administrator,
    RequestCode.GET_BROKER_CLUSTER_INFO: administrator,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: administrator,
    RequestCode.GET_TOPICS_BY_CLUSTER: administrator,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: administrator,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: administrator,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: administrator,
    RequestCode.PUT_KV_CONFIG: administrator,
    RequestCode.GET_KV_CONFIG: administrator,
    RequestCode.DELETE_KV_CONFIG: administrator,
    RequestCode.GET_KVLIST_BY_NAMESPACE: administrator,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: administrator,
    RequestCode.GET_NAMESRV_CONFIG: administrator,
    RequestCode.UPDATE_NAMESRV_CONFIG: administrator,
    RequestCode.GET_UNIT_TOPIC_LIST: administrator,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: administrator,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: administrator,
}
