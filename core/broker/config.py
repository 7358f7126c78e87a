"""Configuration section of the broker; holds the store's.

Owns: BrokerConfig. Must not touch: files, environment; core.config reads those.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from motelog.core.addresses import parse_address
from motelog.core.config import SectionFault, refuse
from motelog.core.remoting.config import ListenKeys
from motelog.core.store.config import StoreConfig

# How far below its port the broker listens for old clients, as RocketMQ does.
VIP_PORT_DISTANCE: Final = 2

NaturalInt = Annotated[int, msgspec.Meta(ge=0)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=127)]


#: Keys of the section itself that a broker takes while it runs, and their names in RocketMQ.
LIVE: Final = {
    "auto_create_topics": "autoCreateTopicEnable",
    "auto_create_groups": "autoCreateSubscriptionGroup",
    "enable_property_filter": "enablePropertyFilter",
    "store_replies": "storeReplyMessageEnable",
    "recall_messages": "recallMessageEnable",
    "fast_failure": "brokerFastFailureEnable",
}


class BrokerConfig(ListenKeys, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one broker."""

    store: StoreConfig
    """The CommitLog store this broker owns."""

    listen: str = "127.0.0.1:10911"
    """HOST:PORT for clients; port 0 takes any free one. An address that other machines reach needs
    TLS, and ``acl_file`` or certificates of clients."""

    vip: bool = True
    """Listen on the port two below ``listen`` as well, where RocketMQ clients before 4.5 send to.
    Without effect when ``listen`` has port 0. That another program has the port is a warning."""

    advertise: str = ""
    """HOST:PORT told to clients and written into message ids; empty: the address of ``listen``.
    Needed when ``listen`` is a wildcard. HOST must be an IP address. RocketMQ's brokerIP1."""

    name: Name = "broker-a"
    """Broker name; masters of one cluster have different ones."""

    cluster: Name = "DefaultCluster"
    """Cluster name."""

    permission: Annotated[int, msgspec.Meta(ge=0, le=7)] = 6
    """What clients may do here, as RocketMQ's brokerPermission: 4 read, 2 write, 6 both. Name
    servers tell it with each topic. Without 2 producers go elsewhere; what they still send is
    taken, except for ordered topics. Without 4 pulls are refused."""

    region: Name = "DefaultRegion"
    """Region told to producers and written into each message, as RocketMQ does."""

    namesrv: tuple[str, ...] = ()
    """HOST:PORT of every name server; the broker registers with all of them."""

    credentials_file: str = ""
    """File with accessKey and secretKey, as RocketMQ's tools.yml, by which the broker registers at
    name servers with access control. Empty: it does not sign."""

    tls_file: str = ""
    """With it, the broker speaks TLS to name servers: file of the authorities (PEM), or in the
    shape of RocketMQ's tls.properties. Empty: without TLS."""

    register_interval_s: PositiveFloat = 30.0
    """Seconds between registrations; name servers drop a broker after 120."""

    register_timeout_s: PositiveFloat = 6.0
    """Seconds that one name server may take to answer."""

    default_queue_count: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 8
    """Queues of the template topic TBW102, so the most that an auto-created topic gets."""

    auto_create_topics: bool = True
    """Create a topic at the first message to it."""

    auto_create_groups: bool = True
    """Create a consumer group at its first request."""

    topics_max: PositiveInt = 10_000
    """Topics kept, the system's included; further ones are refused."""

    groups_max: PositiveInt = 10_000
    """Consumer groups kept; further ones are refused."""

    clients_max: PositiveInt = 50_000
    """Group memberships of connected producers and consumers; further ones are refused."""

    client_silence_s_max: PositiveInt = 120
    """Seconds without a heartbeat after which a client is forgotten; they come every 30 s."""

    offset_entries_max: PositiveInt = 1_000_000
    """Consume offsets kept (group, topic, queue); commits that would add more are refused."""

    waiting_answers_max: NaturalInt = 100_000
    """Sends that may wait for the disk under sync flush; further ones get SYSTEM_BUSY."""

    fast_failure: bool = True
    """Tell a client SYSTEM_BUSY whose request has waited for too long (``send_wait_ms_max`` and so
    on), or whose message came while the page cache was busy. RocketMQ's brokerFastFailureEnable."""

    send_wait_ms_max: PositiveInt = 200
    """Milliseconds that a message may wait, before it is read or for others to be appended, until
    its producer is told SYSTEM_BUSY. RocketMQ's waitTimeMillsInSendQueue."""

    pull_wait_ms_max: PositiveInt = 5000
    """The same for pulls (waitTimeMillsInPullQueue, waitTimeMillsInLitePullQueue)."""

    heartbeat_wait_ms_max: PositiveInt = 31_000
    """The same for heartbeats (waitTimeMillsInHeartbeatQueue)."""

    transaction_wait_ms_max: PositiveInt = 3000
    """The same for ends of transactions (waitTimeMillsInTransactionQueue)."""

    ack_wait_ms_max: PositiveInt = 3000
    """The same for acknowledgements of POP (waitTimeMillsInAckQueue)."""

    admin_wait_ms_max: PositiveInt = 5000
    """The same for requests of tools (waitTimeMillsInAdminBrokerQueue)."""

    save_interval_s: PositiveFloat = 5.0
    """Seconds between two writes of changed consume offsets, topics and groups to disk."""

    delay_save_interval_s: PositiveFloat = 1.0
    """Seconds between two notes of how far delayed messages have been delivered; those delivered
    since the last one may come twice after a crash."""

    timers_near_max: NaturalInt = 100_000
    """Messages for a time of their own whose places are kept in memory; others are read again."""

    reject_transaction_message: bool = False
    """Refuse transactional messages."""

    transaction_timeout_s: PositiveFloat = 6.0
    """Seconds before producers are asked about a transactional message that nobody has committed or
    rolled back. A message may ask for more (CHECK_IMMUNITY_TIME_IN_SECONDS)."""

    transaction_check_interval_s: PositiveFloat = 30.0
    """Seconds between two questions about a transactional message."""

    transaction_check_max: PositiveInt = 15
    """Questions about a transactional message; after the last one it is rolled back, and kept in
    the topic TRANS_CHECK_MAX_TIME_TOPIC."""

    long_poll: bool = True
    """Hold a pull that finds nothing for as long as it asks; else for ``short_poll_ms``."""

    short_poll_ms: PositiveInt = 1000
    """Milliseconds to hold a pull when ``long_poll`` is off."""

    hold_ms_max: NaturalInt = 60_000
    """Longest hold that a client may ask for."""

    held_pulls_max: NaturalInt = 100_000
    """Pulls held at once; further ones are answered at once."""

    held_pulls_per_connection_max: NaturalInt = 4096
    """Pulls held for one connection; further ones are answered at once."""

    pull_bytes_max: Annotated[int, msgspec.Meta(ge=1, le=8_388_608)] = 4_194_304
    """Most bytes of one pull's answer that a client may ask for (maxMsgBytes, clients from 5.0 on).
    An answer, and the one before it that is not sent yet, fit into a connection's output. One that
    does not ask gets 262144 at most. The first message is sent whatever its size. A client that
    does not read holds about this much memory of the broker, and 1 MiB."""

    pull_count_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 16_384
    """Most messages of one pull's answer; a client that does not ask for bytes gets 32."""

    mapped_reads: bool = True
    """Let clients on this machine that can read the store's files (those of the same user) read
    records there, and tell them only where the records are. Topics are guarded as for any pull."""

    enable_property_filter: bool = True
    """Let consumers filter by properties (expression type SQL92). Off by default in RocketMQ, but
    here what an expression may be is limited, and so is the time that one pull takes for it."""

    server_side_reset: bool = True
    """Reset offsets of running groups by the answer to their next pull; else the offsets are pushed
    to their members. RocketMQ's useServerSideResetOffset."""

    store_replies: bool = True
    """Append replies to requests to ``<cluster>_REPLY_TOPIC`` as well, besides pushing them to the
    client that waits; RocketMQ's storeReplyMessageEnable."""

    recall_messages: bool = True
    """Let producers take back a message that waits for a time of its own. RocketMQ's
    recallMessageEnable, which is off by default there."""

    slave_read_enable: bool = False
    """Send readers whose messages are likely not in memory any more to the broker that their group
    names (``whichBrokerWhenConsumeSlowly``), and others to its ``brokerId``; as in RocketMQ."""

    pop_retry_topic_v2: bool = False
    """Join group and topic by ``+`` instead of ``_`` in the names of the topics for messages that
    POP delivers again (RocketMQ's enableRetryTopicV2). Messages in the others are delivered too."""

    pop_in_work_per_queue_max: PositiveInt = 10_000
    """Messages of one queue that a group may have popped and not acknowledged; then it gets none of
    this queue until some are acknowledged or their time is over."""

    pop_in_work_max: PositiveInt = 1_000_000
    """Messages popped and not acknowledged in all; further pops get SYSTEM_BUSY."""

    connections_max: PositiveInt = 20_000
    """Open connections; above it accepting pauses."""

    idle_s_max: NaturalInt = 120
    """Seconds without a complete request after which a connection is closed."""

    frame_bytes_max: PositiveInt = 16_777_216
    """Largest request; RocketMQ's own limit."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def _faults(self) -> Iterator[SectionFault]:
        for key in ("name", "cluster", "region"):
            if not getattr(self, key).isprintable():
                yield SectionFault("must not hold control characters", (key,))
        for address in self.namesrv:
            yield from _address_faults("namesrv", address)
        yield from self.listen_faults("broker", self.listen)
        if self.advertise:
            yield from _address_faults("advertise", self.advertise, is_ip=True)
        elif self.listen.rpartition(":")[0] in ("0.0.0.0", "[::]"):
            text = f"listen is {self.listen}, so advertise must say what clients use"
            yield SectionFault(text, ("advertise", "listen"))


def _address_faults(key: str, text: str, *, is_ip: bool = False) -> Iterator[SectionFault]:
    try:
        host, _ = parse_address(text, port_min=1)
    except ValueError as exc:
        yield SectionFault(str(exc), (key,))
        return
    try:
        if is_ip:
            ipaddress.ip_address(host)
    except ValueError:
        yield SectionFault(f"{text}: HOST must be an IP address, as it is in message ids", (key,))
