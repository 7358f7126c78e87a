"""Requests of sends: the fields of their headers and their properties, read and checked.

Owns: SendRequests: the checks of a send that only need its header and properties, its topic and
queue, the properties that the broker adds. Must not touch: the store, which messages wait and
where, answers (send).
Spec: RocketMQ SendMessageProcessor, SendMessageRequestHeader, SendMessageRequestHeaderV2.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from motelog.core.broker.delay.delays import DELAY_PROPERTIES
from motelog.core.broker.processors.shared import Shared
from motelog.core.errors import BrokerError
from motelog.core.message import (
    NAME_END,
    PROPERTIES_BYTES_MAX,
    TRAN_MSG,
    UNIQ_KEY,
    VALUE_END,
)
from motelog.core.records.dispatch import MULTI_DISPATCH, MULTI_OFFSET
from motelog.core.remoting.codes import VERSION_5, Language, Permission
from motelog.core.remoting.fields import int32_field, int_field, text_field
from motelog.core.remoting.frames import RemotingCommand, ResponseCode
from motelog.core.topic_names import (
    GATEWAY_GROUP,
    GATEWAY_TOPICS,
    RETRY_PREFIX,
    TOPICS_CLOSED_TO_SENDERS,
    group_name_fault,
)
from motelog.core.unique_id import UniqueIds

_SYS_FLAG_TRANSACTION: Final = 0xC
_MSG_REGION: Final = "MSG_REGION"
_TRACE_ON: Final = "TRACE_ON"
_CLUSTER: Final = "CLUSTER"
#: A message with one of these is not plain.
ODD_NAMES: Final = (
    _MSG_REGION, _TRACE_ON, _CLUSTER, TRAN_MSG, MULTI_DISPATCH, MULTI_OFFSET,
    *sorted(DELAY_PROPERTIES),
)  # fmt: skip

# Default queue count, queue id, sysFlag, born timestamp, flag, reconsume times.
Numbers = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the header fields: in full (10) or as letters (310, 320)."""

    group: str = "producerGroup"
    topic: str = "topic"
    default_topic: str = "defaultTopic"
    default_queue_count: str = "defaultTopicQueueNums"
    queue_id: str = "queueId"
    sys_flag: str = "sysFlag"
    born_timestamp: str = "bornTimestamp"
    flag: str = "flag"
    properties: str = "properties"
    reconsume_times: str = "reconsumeTimes"
    reconsume_times_max: str = "maxReconsumeTimes"
    batch: str = "batch"


FULL: Final = Names()
LETTERS: Final = Names("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "l", "m")


class SendRequests:
    """Accepts sends, or refuses them with BrokerError."""

    def __init__(self, shared: Shared) -> None:
        config = shared.config
        self._topics = shared.tables.topics
        self._groups = shared.tables.groups
        self._locks = shared.tables.locks
        self._clock = shared.clock
        #: The properties that each message gets.
        self.added = {_MSG_REGION: config.region, _TRACE_ON: "true", _CLUSTER: config.cluster}
        self.added_text = join_properties(self.added)
        self._ids = UniqueIds(address=shared.api.store_host[:-4], process_id=os.getpid())
        #: Whether messages are only accepted for topics whose producers go elsewhere by themselves.
        self.is_closing = not config.permission & Permission.WRITE
        self._rejects_transactions = config.reject_transaction_message
        self._next_queue = 0

    def target(self, ext: dict[str, str], names: Names, numbers: Numbers) -> tuple[str, int]:
        """Check the topic and the queue of a send, and return them."""
        topic = ext[names.topic]
        is_gateway_s = topic in GATEWAY_TOPICS and ext[names.group] == GATEWAY_GROUP
        if topic in TOPICS_CLOSED_TO_SENDERS and not is_gateway_s:
            text = f"messages cannot be sent to the system topic {topic}"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        queue_count, queue_id, *_ = numbers
        config = self._topics.get(topic)
        if config is None:
            config = self._topics.create_for_message(
                topic, ext[names.default_topic], queue_count, self._clock.now_ms()
            )
        if not config.is_writable:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"topic {topic} is not writable")
        if self.is_closing and config.order:
            # Unlike others, its producers do not go elsewhere by themselves.
            text = f"this broker takes no messages for ordered topic {topic}: it is not writable"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        if queue_id < 0:
            self._next_queue += 1
            return topic, self._next_queue % config.write_queue_nums
        if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
            count = max(config.write_queue_nums, config.read_queue_nums)
            text = f"queue id {queue_id} is illegal: topic {topic} has {count} queues, from 0 on"
            raise BrokerError(ResponseCode.INVALID_PARAMETER, text)
        return topic, queue_id

    def check_transactional(self, pairs: dict[str, str], group: str) -> None:
        """Refuse a half message whose transaction the broker cannot carry out."""
        if self._rejects_transactions:
            text = "this broker is configured to refuse transactional messages"
            raise BrokerError(ResponseCode.NO_PERMISSION, text)
        fault = group_name_fault(group)
        if fault is not None:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, fault)
        refuse_delayed(pairs, "a transactional message cannot be delayed")

    def is_given_up(
        self, retry_topic: str, request: RemotingCommand, names: Names, reconsume_times: int
    ) -> bool:
        """Return whether a consumer sends a message to its retry topic once too often.

        Clients do so if sending it back (code 36) fails; they have already counted this retry.
        Those that consume in order only do so with a message that they give up, and not all of them
        have counted. Java clients before 5 expect brokers that compare with >=.
        """
        group = self._groups.find(retry_topic.removeprefix(RETRY_PREFIX))
        times_max = int32_field(request.ext, names.reconsume_times_max, group.retry_max_times)
        if times_max < 0:
            times_max = group.retry_max_times
        if request.language == Language.JAVA and request.version < VERSION_5:
            reconsume_times += 1
        return reconsume_times > times_max or self._locks.has_any(
            group.group_name, self._clock.monotonic_ms()
        )

    def properties(self, text: str, *, is_named: bool = False) -> tuple[bytes, dict[str, str]]:
        """Return the property text to store, including the broker's part, and the client's pairs.

        With ``is_named`` a message without a unique id gets one.
        """
        pairs = {}
        for item in text.split(VALUE_END):
            name, found, value = item.partition(NAME_END)
            if found and value:
                pairs[name] = value
        if MULTI_OFFSET in pairs:
            # Only the store sets the offsets of a message in light queues.
            del pairs[MULTI_OFFSET]
            text = join_properties(pairs)
        added_text = self.added_text
        if is_named and UNIQ_KEY not in pairs:
            pairs[UNIQ_KEY] = self._ids.next(self._clock.now_ms())
            added_text = join_properties({UNIQ_KEY: pairs[UNIQ_KEY]}) + added_text
        # A message that was consumed and is sent again already has the broker's properties.
        if _MSG_REGION in pairs or _TRACE_ON in pairs or _CLUSTER in pairs:
            text = join_properties(pairs | self.added)
        elif text and not text.endswith(VALUE_END):
            text = text + VALUE_END + added_text
        else:
            text += added_text
        if "\0" in text:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, "the properties hold a zero character")
        return encode_properties(text), pairs


def encode_properties(text: str) -> bytes:
    stored = text.encode()
    if len(stored) > PROPERTIES_BYTES_MAX:
        fault = f"the properties have {len(stored)} bytes, the limit is {PROPERTIES_BYTES_MAX}"
        raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, fault)
    return stored


def refuse_transactional(sys_flag: int, pairs: dict[str, str]) -> None:
    """Refuse a transaction; only a send of one message, with its property, may begin one."""
    if sys_flag & _SYS_FLAG_TRANSACTION or pairs.get(TRAN_MSG) == "true":
        text = "a transactional message is sent alone, with the property TRAN_MSG"
        raise BrokerError(ResponseCode.NO_PERMISSION, text)


def refuse_delayed(pairs: dict[str, str], text: str) -> None:
    if any(pairs.get(name, "0") != "0" for name in DELAY_PROPERTIES):
        raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, text)


def join_properties(pairs: dict[str, str]) -> str:
    return "".join([f"{name}{NAME_END}{value}{VALUE_END}" for name, value in pairs.items()])


def read_numbers(ext: dict[str, str], names: Names) -> Numbers:
    """Return the numbers of a send's header; BrokerError if a required one is missing or bad."""
    try:
        numbers = (
            int(ext[names.default_queue_count]),
            int(ext[names.queue_id]),
            int(ext[names.sys_flag]),
            int(ext[names.born_timestamp]),
            int(ext[names.flag]),
            int(ext.get(names.reconsume_times, "0")),
        )
    except (KeyError, ValueError):
        return _check_fields(ext, names)
    is_named = names.topic in ext and names.group in ext and names.default_topic in ext
    # One comparison for all fields: clients send numbers that fit into 31 bits without a sign.
    if (
        not is_named
        or min(numbers[2:]) < 0
        or numbers[3] >> 62
        or max(numbers[2], *numbers[4:]) >> 31
    ):
        return _check_fields(ext, names)
    return numbers


def _check_fields(ext: dict[str, str], names: Names) -> Numbers:
    """Read the fields one by one, to name the first bad one."""
    for name in (names.group, names.topic, names.default_topic):
        text_field(ext, name)
    return (
        int_field(ext, names.default_queue_count),
        int_field(ext, names.queue_id),
        int32_field(ext, names.sys_flag),
        int_field(ext, names.born_timestamp),
        int32_field(ext, names.flag),
        int32_field(ext, names.reconsume_times, 0),
    )
