"""Configuration section of the broker; holds the store's.

Owns: BrokerConfig. Must not touch: files, environment; core.config reads those.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

from motelog.core.acl.addresses import parse_addresses
from motelog.core.addresses import format_address, parse_address
from motelog.core.config import SectionFault, refuse
from motelog.core.net.config import is_loopback
from motelog.core.remoting.config import ListenKeys
from motelog.core.replication.ha_frames import PORT_DISTANCE
from motelog.core.store.config import StoreConfig

# How far below its own port the broker listens for old clients, as RocketMQ does.
VIP_PORT_DISTANCE: Final = 2

NaturalInt = Annotated[int, msgspec.Meta(ge=0)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=127)]


#: Keys of the section itself that take effect while a broker runs, and their RocketMQ names.
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
    """HOST:PORT for clients; port 0 takes any free port. An address that other machines reach needs
    TLS, and ``acl_file`` or client certificates."""

    vip: bool = True
    """Also listen on the port two below ``listen``, to which RocketMQ clients before 4.5 send. No
    effect if ``listen`` has port 0. If another program has the port, that is only a warning."""

    advertise: str = ""
    """HOST:PORT that clients connect to, also written into message ids. Empty: the address of
    ``listen``. Required if ``listen`` is a wildcard. HOST must be an IP address. RocketMQ's
    brokerIP1."""

    name: Name = "broker-a"
    """Broker name; masters of one cluster need different names."""

    cluster: Name = "DefaultCluster"
    """Cluster name."""

    id: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """0: a master. Above: a slave, which copies the log of the master of its name, answers readers
    and refuses messages. It finds its master at ``namesrv``. RocketMQ's brokerId."""

    replicate: Literal["off", "async", "sync"] = "off"
    """Whether slaves may copy this master's log. sync: a message is acknowledged when a slave has
    it too (RocketMQ's SYNC_MASTER); ``slaves_min`` says what happens while no slave is near."""

    ha_listen: str = ""
    """HOST:PORT at which a master sends its log to slaves, RocketMQ's haListenPort. Empty: the host
    of ``listen``, one port above."""

    ha_advertise: str = ""
    """HOST:PORT at which slaves connect, RocketMQ's brokerIP2. Empty: the host of ``advertise`` or
    ``listen``, and the port of ``ha_listen``."""

    ha_peers: tuple[str, ...] = ()
    """Addresses of slaves, such as 10.1.2.3 or 10.1.2.*. Required if other machines reach
    ``ha_listen``: the protocol has neither TLS nor logins. Empty: only this machine."""

    slave_timeout_ms: PositiveInt = 2000
    """With ``replicate = "sync"``: a producer that waits longer for a slave gets
    FLUSH_SLAVE_TIMEOUT. RocketMQ's slaveTimeout, where it is 3000, after which RocketMQ's clients
    give up."""

    slaves_min: NaturalInt = 0
    """With ``replicate = "sync"``: messages are refused while fewer slaves than this are near
    (connected, and less than 256 MiB behind). 0: without a near slave the master alone
    acknowledges, to native producers with the warning SLAVE_NOT_AVAILABLE. RocketMQ 5's
    inSyncReplicas, which counts the master too."""

    seed: Literal["all", "last"] = "all"
    """Where an empty slave begins: at its master's oldest file, or at the last one, as RocketMQ's
    slaves do."""

    permission: Annotated[int, msgspec.Meta(ge=0, le=7)] = 6
    """What clients may do here, like RocketMQ's brokerPermission: 4 read, 2 write, 6 both. Without
    2 producers use other brokers; what they send anyway is accepted, except for ordered topics.
    Without 4 pulls are refused."""

    region: Name = "DefaultRegion"
    """Region, sent to producers and written into each message, as in RocketMQ."""

    namesrv: tuple[str, ...] = ()
    """HOST:PORT of each name server; the broker registers with all of them."""

    credentials_file: str = ""
    """File with accessKey and secretKey, like RocketMQ's tools.yml, with which the broker registers
    at name servers, and as a slave asks its master. Empty: requests are not signed."""

    tls_file: str = ""
    """File of trusted authorities (PEM), or a file like RocketMQ's tls.properties. With it the
    broker uses TLS to name servers. Empty: no TLS."""

    register_interval_s: PositiveFloat = 30.0
    """Seconds between registrations; name servers drop a broker after 120."""

    register_timeout_s: PositiveFloat = 6.0
    """Seconds to wait for the answer of a name server."""

    default_queue_count: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 8
    """Queues of the template topic TBW102, which is the most that an auto-created topic gets."""

    auto_create_topics: bool = True
    """Create a topic when the first message is sent to it."""

    auto_create_groups: bool = True
    """Create a consumer group at its first request."""

    topics_max: PositiveInt = 10_000
    """Most topics, including the system's; further ones are refused."""

    groups_max: PositiveInt = 10_000
    """Most consumer groups; further ones are refused."""

    clients_max: PositiveInt = 50_000
    """Most group memberships of connected producers and consumers; further ones are refused."""

    client_silence_s_max: PositiveInt = 120
    """Seconds without a heartbeat after which a client is removed; clients send one every 30 s."""

    offset_entries_max: PositiveInt = 1_000_000
    """Most consume offsets (group, topic, queue); commits that would add more are refused."""

    waiting_answers_max: NaturalInt = 100_000
    """Most sends that wait for the disk with sync flush; further ones get SYSTEM_BUSY."""

    fast_failure: bool = True
    """Answer SYSTEM_BUSY to a request that has waited too long (``send_wait_ms_max`` and so on),
    and to messages while the page cache is busy. RocketMQ's brokerFastFailureEnable."""

    send_wait_ms_max: PositiveInt = 200
    """How long a message may wait, to be read or for others to be appended, before its producer
    gets SYSTEM_BUSY. RocketMQ's waitTimeMillsInSendQueue."""

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
    """Seconds between writes of changed consume offsets, topics and groups to disk."""

    delay_save_interval_s: PositiveFloat = 1.0
    """Seconds between writes of the progress of delayed messages; those delivered since the last
    one may be delivered twice after a crash."""

    timers_near_max: NaturalInt = 100_000
    """Most messages with a delivery time whose places are in memory; others are read again."""

    reject_transaction_message: bool = False
    """Refuse transactional messages."""

    transaction_timeout_s: PositiveFloat = 6.0
    """Seconds before producers are asked about a transactional message that has been neither
    committed nor rolled back. A message may ask for more (CHECK_IMMUNITY_TIME_IN_SECONDS)."""

    transaction_check_interval_s: PositiveFloat = 30.0
    """Seconds between questions about a transactional message."""

    transaction_check_max: PositiveInt = 15
    """Most questions about a transactional message; after the last one it is rolled back, and
    stored in the topic TRANS_CHECK_MAX_TIME_TOPIC."""

    long_poll: bool = True
    """Hold a pull that finds no message for as long as it asks; else for ``short_poll_ms``."""

    short_poll_ms: PositiveInt = 1000
    """Milliseconds to hold a pull if ``long_poll`` is off."""

    hold_ms_max: NaturalInt = 60_000
    """Longest hold of a pull that a client may ask for."""

    held_pulls_max: NaturalInt = 100_000
    """Most pulls held at a time; further ones are answered at once."""

    held_pulls_per_connection_max: NaturalInt = 4096
    """Most pulls held for one connection; further ones are answered at once."""

    pull_bytes_max: Annotated[int, msgspec.Meta(ge=1, le=8_388_608)] = 4_194_304
    """Most bytes that a client may ask for in one pull (maxMsgBytes, clients since 5.0). A client
    that does not ask gets at most 262144. The first message is sent whatever its size. A client
    that does not read takes about this much of the broker's memory, and 1 MiB."""

    pull_count_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 16_384
    """Most messages in one pull's answer; a client that does not ask for bytes gets 32."""

    mapped_reads: bool = True
    """Let clients on this machine that can read the store's files (those of the same user) read
    records there. Access to topics is checked as usual."""

    enable_property_filter: bool = True
    """Let consumers filter by properties (expression type SQL92). RocketMQ's default is off; here
    the size of expressions and their time in one pull are limited."""

    server_side_reset: bool = True
    """Reset the offsets of running groups in the answer to their next pull; else the offsets are
    pushed to their members. RocketMQ's useServerSideResetOffset."""

    store_replies: bool = True
    """Also append replies to requests to ``<cluster>_REPLY_TOPIC``; RocketMQ's
    storeReplyMessageEnable."""

    recall_messages: bool = True
    """Let producers recall a message with a delivery time. RocketMQ's recallMessageEnable (off
    there)."""

    slave_read_enable: bool = False
    """As in RocketMQ: send readers of messages that are probably no longer in memory to their
    group's ``whichBrokerWhenConsumeSlowly``, and others to its ``brokerId``."""

    pop_retry_topic_v2: bool = False
    """Join group and topic with ``+`` instead of ``_`` in the names of POP's retry topics
    (RocketMQ's enableRetryTopicV2). Both are read."""

    pop_in_work_per_queue_max: PositiveInt = 10_000
    """Most messages of one queue that a group may have popped and not acknowledged; then the queue
    waits until some are acknowledged or time out."""

    pop_in_work_max: PositiveInt = 1_000_000
    """Most popped and unacknowledged messages in total; further pops get SYSTEM_BUSY."""

    connections_max: PositiveInt = 20_000
    """Most open connections; then accepting pauses."""

    idle_s_max: NaturalInt = 120
    """Seconds without a complete request after which a connection is closed."""

    frame_bytes_max: PositiveInt = 16_777_216
    """Largest request; RocketMQ's own limit."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def _faults(self) -> Iterator[SectionFault]:
        for key in ("name", "cluster", "region"):
            if not getattr(self, key).isprintable():
                yield SectionFault("must not contain control characters", (key,))
        for address in self.namesrv:
            yield from _address_faults("namesrv", address)
        yield from self.listen_faults("broker", self.listen)
        if self.advertise:
            yield from _address_faults("advertise", self.advertise, is_ip=True)
        elif self.listen.rpartition(":")[0] in ("0.0.0.0", "[::]"):
            text = f"listen is {self.listen}, so advertise must name the address that clients use"
            yield SectionFault(text, ("advertise", "listen"))
        if self.ha_advertise:
            yield from _address_faults("ha_advertise", self.ha_advertise)
        yield from self._copy_faults()

    def _copy_faults(self) -> Iterator[SectionFault]:
        """Yield faults of the keys for copies of the log."""
        try:
            parse_addresses(self.ha_peers)
        except ValueError as exc:
            yield SectionFault(str(exc), ("ha_peers",))
        if self.id and not self.namesrv:
            text = "a slave (id above 0) finds its master at a name server: add namesrv"
            yield SectionFault(text, ("id", "namesrv"))
        if self.slaves_min and self.replicate != "sync":
            yield SectionFault('slaves_min needs replicate = "sync"', ("slaves_min", "replicate"))
        if self.replicate == "off":
            return
        try:
            host, _ = parse_address(self.ha_address)
        except ValueError as exc:
            yield SectionFault(str(exc), ("ha_listen",))
            return
        if not (self.ha_peers or is_loopback(host)):
            text = (
                f"{self.ha_address} can be reached from other machines, and anyone who connects"
                ' gets a copy of the log: add ha_peers = ["ADDRESS OF A SLAVE", ...]'
            )
            yield SectionFault(text, ("ha_listen", "ha_peers"))

    @property
    def promise(self) -> str:
        """The meaning of an acknowledgement as text."""
        if self.id:
            return "copied from the master, unless this broker was promoted"
        copied = ", and when a slave has them" if self.replicate == "sync" else ""
        return self.store.promise + copied

    @property
    def ha_address(self) -> str:
        """HOST:PORT at which a master listens for slaves."""
        if self.ha_listen:
            return self.ha_listen
        host, port = parse_address(self.listen)
        return format_address(host, port + PORT_DISTANCE if port else 0)


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
        yield SectionFault(
            f"{text}: HOST must be an IP address, since message ids contain it", (key,)
        )
