"""A broker's settings under the names that RocketMQ's tools know: request code 26.

Owns: which settings are shown, and how. Must not touch: the configuration.
"""

from __future__ import annotations

from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.replication.namesakes import FILE_BYTES, TERM, TERM_BEGIN
from motelog.core.replication.role import Role


def shown_properties(
    config: BrokerConfig, role: Role, *, port: int, ha_port: int, file_bytes: int
) -> dict[str, str]:
    """Return the settings of a broker that listens on ``port``."""
    return {
        "brokerName": config.name,
        "brokerClusterName": config.cluster,
        "brokerId": str(role.broker_id),
        "brokerPermission": str(config.permission),
        "namesrvAddr": ";".join(config.namesrv),
        "listenPort": str(port),
        "brokerRole": role.text,
        TERM: str(role.term),
        TERM_BEGIN: str(role.term_begin),
        "haListenPort": str(ha_port),
        "slaveTimeout": str(config.slave_timeout_ms),
        FILE_BYTES: str(file_bytes),
        "fileReservedTime": str(config.store.retention_hours),
        "filterServerNums": "0",
        "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
        "traceOn": "true",
        "traceTopicEnable": "false",
        "useTLS": "false",
        "regionId": config.region,
        "messageDelayLevel": config.store.delay_levels,
        "storeReplyMessageEnable": _flag(config.store_replies),
        "recallMessageEnable": _flag(config.recall_messages),
        "useServerSideResetOffset": _flag(config.server_side_reset),
        "flushDiskType": f"{config.store.flush.upper()}_FLUSH",
        "defaultTopicQueueNums": str(config.default_queue_count),
        "autoCreateTopicEnable": _flag(config.auto_create_topics),
        "autoCreateSubscriptionGroup": _flag(config.auto_create_groups),
        "maxMessageSize": str(config.store.message_bytes_max),
        "rejectTransactionMessage": _flag(config.reject_transaction_message),
        "transactionTimeOut": str(round(config.transaction_timeout_s * 1000)),
        "transactionCheckInterval": str(round(config.transaction_check_interval_s * 1000)),
        "transactionCheckMax": str(config.transaction_check_max),
        "brokerFastFailureEnable": _flag(config.fast_failure),
        "waitTimeMillsInSendQueue": str(config.send_wait_ms_max),
        "waitTimeMillsInPullQueue": str(config.pull_wait_ms_max),
        "waitTimeMillsInLitePullQueue": str(config.pull_wait_ms_max),
        "waitTimeMillsInHeartbeatQueue": str(config.heartbeat_wait_ms_max),
        "waitTimeMillsInTransactionQueue": str(config.transaction_wait_ms_max),
        "waitTimeMillsInAckQueue": str(config.ack_wait_ms_max),
        "waitTimeMillsInAdminBrokerQueue": str(config.admin_wait_ms_max),
        "osPageCacheBusyTimeOutMills": str(config.store.page_cache_busy_ms),
        "longPollingEnable": _flag(config.long_poll),
        "enablePropertyFilter": _flag(config.enable_property_filter),
        "slaveReadEnable": _flag(config.slave_read_enable),
        "enableLmq": _flag(config.store.lmq),
        "enableMultiDispatch": _flag(config.store.lmq),
        "maxLmqConsumeQueueNum": str(config.store.lmq_queues_max),
        "accessMessageInMemoryMaxRatio": str(config.store.cached_memory_percent),
    }


def _flag(value: bool) -> str:
    return str(value).lower()
