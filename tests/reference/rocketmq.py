"""docs/reference/rocketmq.md: which clients and requests of RocketMQ work.

Owns: that page's text, what names of request codes do not say. Must not touch: which codes are
served; the tables of broker and name server say that. The Java program is the one that is tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import fill
from typing import Final

from motelog.core.broker.assembly import (
    Processors,
    make_schedule,
    make_shared,
)
from motelog.core.broker.config import BrokerConfig
from motelog.core.broker.copies import (
    Copies,
    ServedAt,
    role_file,
)
from motelog.core.broker.pop.state import PopState
from motelog.core.broker.replication.promotion import Promotion
from motelog.core.broker.tables.tables import Tables
from motelog.core.broker.transactions.ledger import Ledger
from motelog.core.broker.waiting.cluster_queues import ClusterQueues
from motelog.core.clock import SystemClock
from motelog.core.message import encode_host
from motelog.core.namesrv.config import NamesrvConfig
from motelog.core.namesrv.server import NameServer
from motelog.core.remoting.codes import RequestCode
from motelog.core.replication.role import ALONE
from motelog.core.store.config import StoreConfig
from motelog.core.store.message_store import MessageStore
from tests.integration.test_grpc_proxy import NODE_CLIENT
from tests.reference.markdown import table
from tests.support.cpp import PACKAGE as CPP_PACKAGE
from tests.support.grpc_proxy import PYTHON_CLIENT
from tests.support.java import PROJECT, VERSION_5, VERSIONS
from tests.support.node import ALI_ONS

_HEAD: Final = """\
# RocketMQ clients and requests

Motelog's name server and broker speak RocketMQ's remoting protocol, as release 4.9.8 does.
RocketMQ's clients use them by their name server's address, by default 127.0.0.1:9876.

This page is written by `python -m tests.reference`.

## Clients

{clients}
Other clients of the remoting protocol should work as far as they use the requests below; they are
untested.

**What does not work** is the gRPC protocol of RocketMQ 5's newest clients without its proxy: start
`rocketmq-proxy` in cluster mode with our name server's address (`namesrvAddr`).

TLS and access keys ([how](../native-access.md)) are tried with the Java client, its tools and ours.
[rocketmq-features.md](../rocketmq-features.md) goes through RocketMQ's features one by one.

## From Java

The ordinary client, from Maven's `org.apache.rocketmq:rocketmq-client`. It runs in the tests as
it stands here:

```java"""

_MQTT: Final = """\
The tag is the second level of the MQTT topic: an MQTT subscriber of `telemetry/dev42` gets what
this producer sends, and the consumer gets what devices publish there
([mqtt-mapping.md](../mqtt-mapping.md)).
"""

_JAVA: Final = ", ".join(VERSIONS)
_CLIENTS: Final = (
    (
        "Java, `rocketmq-client`",
        _JAVA,
        "`DefaultMQProducer`: single, batch, asynchronous, oneway, ordered by a key, compressed,"
        " delay levels, transactions; messages found by key and both kinds of id."
        " `DefaultMQPushConsumer`: concurrent and orderly, broadcast, by tags and by SQL92, retries"
        " up to dead letters, reset while it runs; 5.3 also by POP and with queues that the broker"
        " chooses (`setClientRebalance(false)`). Request and reply. `DefaultLitePullConsumer`."
        " Message trace. Light queues (`%LMQ%`). [`mqadmin`](#rocketmqs-command-line-tools)",
        "`test_java_client`, `test_traces`, `test_light_queues`",
    ),
    (
        "JavaScript, `ali-ons`",
        ALI_ONS.partition("@")[2],
        "Producer; push consumer with tags. It cannot create a topic by a message: create it first."
        " A consumer that starts while a broker does not answer may get no message until it is"
        " started again. One that cannot read its offset, as while a broker restarts, begins at 0"
        " or at the end, by its `consumeFromWhere`",
        "`test_ali_ons`, `test_broker_kills`",
    ),
    (
        "C++ client, by PyPI's `rocketmq`",
        CPP_PACKAGE.partition("==")[2],
        "Its wheel has the C++ library in it (Linux on x86-64). Producer: single, batch,"
        " asynchronous, oneway, ordered; push consumer with tags, in order, retries; pull consumer."
        " In a listener an exception does not refuse a message for certain",
        "`test_cpp_client`, `test_broker_kills`",
    ),
    (
        "Python and JavaScript through RocketMQ 5's gRPC proxy",
        f"{PYTHON_CLIENT.partition('==')[2]}, {NODE_CLIENT.partition('@')[2]}, proxy {VERSION_5}",
        "`rocketmq-python-client`, `rocketmq-client-nodejs`: producer, FIFO and delayed messages;"
        " transactions, the broker's questions answered in Python; simple and push consumer, tags,"
        " in order, changed invisible time. Create a topic with the type of its messages"
        " (`mqadmin updateTopic -a +message.type=FIFO`), or set the proxy's"
        " `enableTopicMessageTypeCheck` to false",
        "`test_grpc_proxy`, `test_broker_kills`",
    ),
    (
        "Python, `motelog`",
        "this release",
        "Producers (requests and replies too), pull and push consumers, groups with Java's members,"
        f" also against Apache RocketMQ {_JAVA}; simple consumers (POP) against {VERSION_5}",
        "`test_apache_rocketmq`, `test_apache_ways`,"
        " `test_apache_slave`, `test_push_java`, `test_simple_consumer`",
    ),
    (
        "requests, byte by byte",
        "JSON and binary headers",
        "What such clients send, also what is wrong with it",
        "`test_broker_protocol`",
    ),
)

#: Commands of mqadmin that do not do here what they do at Apache's broker, and why.
NOT_HERE: Final = (
    (
        "`getBrokerEpoch`, `getSyncStateSet`, `electMaster`, `resetMasterFlushOffset`,"
        " `cleanBrokerMetadata`, `getControllerConfig`, `getControllerMetaData`,"
        " `updateControllerConfig`",
        "there are no in-sync sets and no controller",
    ),
    (
        "`updateAclConfig`, `deleteAclConfig`, `getAclConfig`, `clusterAclConfigVersion`,"
        " `updateGlobalWhiteAddr` of 4.9.7",
        "these accounts are in a file ([how](../native-access.md))",
    ),
    (
        "`createAcl`, `updateAcl`, `copyAcl` with other actions than `Pub`, `Sub`, `All`, or about"
        " a cluster; `createUser` with a password of less than seven characters",
        "refused: what tools do takes a user of type `Super`"
        " ([how](../native-access.md#users-and-rules-by-mqadmin))",
    ),
    (
        "`updateStaticTopic`, `remappingStaticTopic`",
        "queues are not numbered over brokers",
    ),
    (
        "`rocksDBConfigToJson`, `exportMetadataInRocksDB`, `checkRocksdbCqWriteProgress`,"
        " `dumpCompactionLog`, `exportPopRecord`",
        "tables are JSON files and queues plain ones; nothing is compacted",
    ),
    (
        "`getColdDataFlowCtrInfo`, `updateColdDataFlowCtrGroupConfig`,"
        " `removeColdDataFlowCtrGroupConfig`, `setCommitLogReadAheadMode`",
        "reads from the disk do not delay others, so they need no limit",
    ),
    ("`addBroker`, `removeBroker`", "a process is one broker and no container of several"),
    (
        "`clusterRT`, `startMonitoring`",
        "work; they run until they are stopped, so that no test compares what they print",
    ),
    (
        "`cloneGroupOffset` to a group that does not exist",
        "the group is created, as by RocketMQ 4; 5 refuses (26)",
    ),
    (
        "`getBrokerConfig`, `getNamesrvConfig`",
        "show only the settings that exist here",
    ),
    (
        "`updateNamesrvConfig`",
        "refused: the name server's settings are files, addresses and limits",
    ),
    (
        "`updateBrokerConfig` of anything but a few switches and `fileReservedTime`",
        "refused: other settings are changed in the configuration",
    ),
)

#: What the name of a request does not say.
_MORE: Final = {
    RequestCode.CONSUMER_SEND_MSG_BACK: "it comes later, or is a dead letter",
    RequestCode.SEND_REPLY_MESSAGE: "pushed to the client that waits",
    RequestCode.RECALL_MESSAGE: "one that waits for a time of its own",
    RequestCode.END_TRANSACTION: "commit or roll back",
    RequestCode.RESUME_CHECK_HALF_MESSAGE: "producers are asked from the first time",
    RequestCode.PULL_MESSAGE: "held until there are messages",
    RequestCode.POP_MESSAGE: "held until there are messages",
    RequestCode.NOTIFICATION: "whether there is anything to pop; held until there is",
    RequestCode.POLLING_INFO: "how many pops of a group wait",
    RequestCode.QUERY_ASSIGNMENT: "queues of a member of a group, by pulls or by POP",
    RequestCode.SET_MESSAGE_REQUEST_MODE: "whether a group gets a topic by pulls or by POP",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "the first at or behind a time; with boundaryType UPPER"
    " the last at or before it",
    RequestCode.CHECK_CLIENT_CONFIG: "whether a filter is valid",
    RequestCode.GET_BROKER_CONFIG: "by RocketMQ's names",
    RequestCode.GET_BROKER_RUNTIME_INFO: "`brokerStatus`",
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: "close one topic to a group, or open it",
    RequestCode.GET_CONSUME_STATS: "`consumerProgress`",
    RequestCode.VIEW_BROKER_STATS_DATA: "`statsAll`",
    RequestCode.DELETE_TOPIC_IN_BROKER: "messages, offsets and settings",
    RequestCode.UPDATE_BROKER_CONFIG: "until the broker restarts",
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "to a time or an offset",
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: "the next round of cleaning begins at once",
    RequestCode.CLEAN_UNUSED_TOPIC: "as CLEAN_EXPIRED_CONSUMEQUEUE; no queue is without a topic",
    RequestCode.DELETE_EXPIRED_COMMITLOG: "as CLEAN_EXPIRED_CONSUMEQUEUE",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "`consumerStatus`",
    RequestCode.QUERY_CORRECTION_OFFSET: "the lowest offsets of all groups",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "a running consumer processes one message at once",
    RequestCode.GET_BROKER_CONSUME_STATS: "`brokerConsumeStats`",
    RequestCode.QUERY_CONSUME_QUEUE: "`queryCq`",
    RequestCode.GET_ALL_PRODUCER_INFO: "`producer`",
    RequestCode.QUERY_TOPICS_BY_CONSUMER: "those in which a group has offsets",
    RequestCode.AUTH_CREATE_USER: "this and the next ones where there is access control",
    RequestCode.AUTH_LIST_USER: "those that tools have created",
    RequestCode.AUTH_UPDATE_ACL: "as AUTH_CREATE_ACL",
    RequestCode.BROKER_HEARTBEAT: "enableSlaveActingMaster",
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: "enableSingleTopicRegister",
    RequestCode.QUERY_DATA_VERSION: "whether the name server knows a broker's latest topics",
    RequestCode.GET_BROKER_CLUSTER_INFO: "`clusterList`",
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: "or those at a `brokerName`",
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: "producers stay away from it",
    RequestCode.ADD_WRITE_PERM_OF_BROKER: "they may use it again",
    RequestCode.PUT_KV_CONFIG: "order topics",
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: "the names of clusters and brokers",
    RequestCode.GET_UNIT_TOPIC_LIST: "none",
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: "none",
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: "none",
    RequestCode.UPDATE_NAMESRV_CONFIG: "refused",
    RequestCode.GET_NAMESRV_CONFIG: "by RocketMQ's names",
    RequestCode.GET_BROKER_HA_STATUS: "a master's slaves, or how far a slave is; `haStatus`",
    RequestCode.PROMOTE_BROKER: "a slave becomes the master; ours alone",
    RequestCode.FOLLOW_TABLES: "the tables of a master as they change, to slaves; ours alone",
}

#: Requests that a broker sends to clients. It serves none of them.
_TO_CLIENTS: Final = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}

_UNSERVED: Final = (
    "Any other request is answered with REQUEST_CODE_NOT_SUPPORTED (3). Of those that RocketMQ's"
    " servers take, these are: of slaves and controllers (60, 61, 402, 905, 906, 908, 1001 to"
    " 1013), of 4.9's accounts (50 to 54), of RocksDB (354, 355, 200056), of topics that are"
    " numbered over brokers (513), of containers (902, 903), of limits for reads from the disk"
    " (2001 to 2004). What their commands of `mqadmin` are is above, with the reason."
)


def page() -> str:
    program = PROJECT / "src" / "main" / "java" / "QuickStart.java"
    broker, namesrv = _broker_codes(), NameServer(NamesrvConfig()).processors()
    assert set(RequestCode) == broker.keys() | namesrv.keys() | _TO_CLIENTS
    return "\n".join(
        [
            _HEAD.format(
                clients="\n".join(table(("client", "tested with", "what", "by"), _CLIENTS))
            ),
            program.read_text(encoding="utf-8") + "```\n",
            _MQTT,
            "## RocketMQ's command line tools\n",
            "The commands of `mqadmin` from 4.9.7 and 5.3.3 that"
            " `tests/integration/test_mqadmin.py` runs print\nwhat they print of Apache RocketMQ,"
            " and those for users and rules\n(`createUser`, `createAcl` and so on) what"
            " `tests/integration/test_acl_java.py` says.\nThese do not:\n",
            *table(("command", "why"), NOT_HERE),
            "## What the broker answers\n",
            "Requests by code and name, with what the name does not say.\n",
            *_served(broker),
            "It tells the members of a group of changes by NOTIFY_CONSUMER_IDS_CHANGED (40), and"
            " pushes replies\nby PUSH_REPLY_MESSAGE_TO_CLIENT (326). Of running consumers it asks"
            " what tools want to know\n(221, 307, 309), and it pushes offsets that are reset"
            " (220).\n",
            "## What the name server answers\n",
            *_served(namesrv),
            "## What neither answers\n",
            fill(_UNSERVED, 98, break_on_hyphens=False) + "\n",
        ]
    )


def _served(codes: Iterable[int]) -> Iterator[str]:
    for code in map(RequestCode, sorted(codes)):
        yield f"- {code.value} {code.name}" + (f": {_MORE[code]}" if code in _MORE else "")
    yield ""


def _broker_codes() -> dict[int, object]:
    """Return what a broker serves; its parts are built, and none is started."""
    config, clock = BrokerConfig(store=StoreConfig(directory="never-created")), SystemClock()
    host = encode_host("127.0.0.1", 10911)
    store = MessageStore(config.store, store_host=host, clock=clock)
    tables = Tables.of(config, clock)
    shared = make_shared(config, clock, store, tables, store_host=host)
    pop_state = PopState(config, store, tables)
    queues = ClusterQueues(tables.topics, (), shared.clock, name=config.name)
    schedule = make_schedule(config, store)
    copies = Copies([], None, None, Promotion(role_file(config), None, ALONE, 0))
    served = ServedAt(("127.0.0.1", 10911), 10911)
    processors = Processors.of(
        shared, schedule, Ledger(), pop_state, queues, address=served, copies=copies
    )
    return dict(processors.by_code())
