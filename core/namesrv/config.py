"""Configuration section of the name server.

Owns: NamesrvConfig. Must not touch: files, environment; core.config reads those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from motelog.core.addresses import parse_address
from motelog.core.config import SectionFault, refuse
from motelog.core.remoting.config import ListenKeys

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class NamesrvConfig(ListenKeys, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one name server."""

    listen: str = "127.0.0.1:9876"
    """HOST:PORT to listen on; port 0 takes any free port. An address that other machines can reach
    needs TLS, and ``acl_file`` or client certificates."""

    advertise: str = ""
    """HOST:PORT that clients and brokers use, if it is not the address of ``listen``; this server
    shows it to people."""

    broker_silence_s_max: PositiveInt = 120
    """Seconds without a registration after which a broker is dropped; brokers register every 30 s.
    """

    scan_interval_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """Seconds between checks for silent brokers."""

    connections_max: PositiveInt = 10_000
    """Most open connections; then accepting pauses."""

    idle_s_max: PositiveInt = 120
    """Seconds without a request after which a connection is closed; clients send one every 30 s."""

    frame_bytes_max: PositiveInt = 16_777_216
    """Largest request; RocketMQ's own limit. A registration carries every topic of a broker."""

    brokers_max: PositiveInt = 10_000
    """Most broker addresses; registrations of further ones are refused."""

    topics_max: PositiveInt = 1_000_000
    """Most topics of all brokers; registrations that would exceed it are refused."""

    kv_entries_max: PositiveInt = 10_000
    """Most entries of the key-value table (order topics and the like)."""

    kv_entry_characters_max: PositiveInt = 65_536
    """Most characters of one entry's namespace, key and value together."""

    kv_characters_max: PositiveInt = 4_194_304
    """Most characters of all entries together. Each change rewrites the whole file."""

    kv_config_path: str = ""
    """File of the key-value table, like RocketMQ's kvConfig.json. Empty: namesrv/kvConfig.json in
    the store's folder of a broker in this process, else in the home folder, as in RocketMQ."""

    users_file: str = ""
    """With ``acl_file``: file of the users and rules that tools have created at a broker, which
    count here too; read every second. Empty: config/users.json in the store's folder of a broker in
    this configuration, if there is one."""

    def __post_init__(self) -> None:
        refuse(self, self._faults())

    def _faults(self) -> Iterator[SectionFault]:
        yield from self.listen_faults("namesrv", self.listen)
        if self.advertise:
            try:
                parse_address(self.advertise, port_min=1)
            except ValueError as exc:
                yield SectionFault(str(exc), ("advertise",))
