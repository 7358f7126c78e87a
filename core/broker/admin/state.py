"""The broker itself: its settings, its figures, and cleaning on request.

Owns: request codes 25, 26, 28, 45, 306, 315, 316, 329, 907, 32001. Must not touch: what a setting
does (the code that uses it changes it), how files are removed (the store).
Spec: RocketMQ AdminBrokerProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from motelog.core.broker.processors.shared import Shared
from motelog.core.broker.replication.promotion import Promotion
from motelog.core.broker.shown.runtime_info import RuntimeInfo
from motelog.core.errors import BrokerError
from motelog.core.remoting.fields import bool_field, text_field
from motelog.core.remoting.frames import RemotingCommand, RequestCode, ResponseCode, dumps
from motelog.core.remoting.server import Connection, Processor
from motelog.core.topic_names import shown

logger = logging.getLogger(__name__)

#: RocketMQ's name of the hours for which messages are kept, and the most that a request can set.
_RETENTION: Final = "fileReservedTime"
_HOURS_MAX: Final = 87_600
#: Sets a switch of the running broker.
Switch = Callable[[bool], None]


class StateAdmin:
    """Answers about the broker."""

    def __init__(
        self,
        shared: Shared,
        *,
        properties: dict[str, str],
        switches: Mapping[str, Switch],
        runtime: RuntimeInfo,
        delay_offsets: Callable[[], dict[int, int]],
        copies: Callable[[], dict[str, object]],
        promotion: Promotion,
    ) -> None:
        self._promotion = promotion
        self._topics = shared.tables.topics
        self._cleaner = shared.store.cleaner
        self._cold = shared.api.cold_reads
        self._stats = shared.stats
        self._properties = properties
        self._switches = switches
        self._runtime = runtime
        self._delay_offsets = delay_offsets
        self._copies = copies

    def processors(self) -> dict[int, Processor]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self._update_config,
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._cold.guard(self._runtime_info),
            RequestCode.GET_ALL_DELAY_OFFSET: self._delays,
            RequestCode.VIEW_BROKER_STATS_DATA: self._stats_data,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self._clean,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self._clean,
            RequestCode.CLEAN_UNUSED_TOPIC: self._clean,
            RequestCode.GET_BROKER_HA_STATUS: self._ha_status,
            RequestCode.PROMOTE_BROKER: self._promote,
        }

    def switch(self, name: str, is_on: bool) -> None:
        """Set a switch of the running broker, by RocketMQ's name."""
        self._switches[name](is_on)
        self._properties[name] = str(is_on).lower()

    def _update_config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Set the named switches of the running broker, or none of them if one is refused.

        Also how long messages are kept, which operators shorten when a disk fills. No request can
        set a file, a host or a command. A restart returns to the configuration, and the answer says
        so.
        """
        wanted: dict[str, bool | int] = {}
        for line in request.body.decode(errors="replace").splitlines():
            name, found, value = line.partition("=")
            if not line.strip() or line.startswith("#"):
                continue
            name, value = name.strip(), value.strip().lower()
            if found and name == _RETENTION:
                if not (value.isdecimal() and 1 <= int(value) <= _HOURS_MAX):
                    raise _invalid(f"{name} is 1 to {_HOURS_MAX} hours, not {shown(value)[1:-1]}")
                wanted[name] = int(value)
                continue
            if not found or name not in self._switches:
                text = f"{shown(name)[1:-1]} cannot be changed while the broker runs, only "
                raise _invalid(text + ", ".join(sorted((*self._switches, _RETENTION))))
            if value not in ("true", "false"):
                raise _invalid(f"{name} is true or false, not {shown(value)[1:-1]}")
            wanted[name] = value == "true"
        if not wanted:
            raise _invalid("no setting is named")
        for name, setting in wanted.items():
            if name == _RETENTION:
                self._cleaner.keep(setting)
                self._properties[name] = str(setting)
            else:
                self.switch(name, bool(setting))
            logger.warning(
                "a setting was changed by a request and holds until the broker restarts: put it"
                " into the configuration name=%s value=%s peer=%s:%d",
                name,
                self._properties[name],
                *connection.peer,
            )
        return request.answer(remark="holds until the broker restarts")

    def _config(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        text = "".join(f"{name}={value}\n" for name, value in self._properties.items())
        version = msgspec.json.encode(self._topics.version).decode()
        return request.answer(ext={"version": version}, body=text.encode())

    def _runtime_info(
        self, request: RemotingCommand, _: Connection, may_wait: bool
    ) -> RemotingCommand:
        table = self._runtime.table(may_wait=may_wait)
        return request.answer(body=msgspec.json.encode({"table": table}))

    def _delays(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.answer(body=dumps({"offsetTable": self._delay_offsets()}))

    def _ha_status(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.answer(body=msgspec.json.encode(self._copies()))

    def _promote(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self._promotion.promote(is_forced=bool_field(request.ext, "force"))
        return request.answer()

    def _stats_data(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        name, key = text_field(request.ext, "statsName"), text_field(request.ext, "statsKey")
        data = self._stats.find(name, key)
        if data is None:
            text = f"The stats <{shown(name)[1:-1]}> <{shown(key)[1:-1]}> not exist"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, text)
        windows = {"statsMinute": data.minute, "statsHour": data.hour, "statsDay": data.day}
        return request.answer(body=msgspec.json.encode(windows))

    def _clean(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Begin the next round of cleaning at once, which would soon begin by itself.

        It removes expired files of the log, then of queues. There are no queues without a topic.
        """
        self._cleaner.want()
        return request.answer()


def _invalid(text: str) -> BrokerError:
    return BrokerError(ResponseCode.INVALID_PARAMETER, text)
