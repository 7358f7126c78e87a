"""A pair of brokers as its operator has it: processes, roles, ``motelog broker`` and ``store cut``.

Owns: a name server, a gateway, two folders with a broker each, the line to each one's HA port, and
what the folders have. Must not touch: clients, what is promised to them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil
import trio

from motelog.bridge.admin import Admin
from motelog.bridge.admin_answers import Replication
from motelog.core.errors import MotelogError
from motelog.core.records.decode import StoredMessage, decode_messages
from motelog.core.records.layout import MAGIC_BLANK
from tests.support.cli import motelog
from tests.support.gateway_process import GatewayProcess
from tests.support.ha_line import HaLine
from tests.support.loop_disk import small_tmpfs
from tests.support.ports import free_ports
from tests.support.role_process import RoleProcess
from tests.support.stepped_clock import SteppedClock, build_clock

NAME: Final = "broker-a"
FILE_BYTES: Final = 1 << 21
DISK_BYTES: Final = 1 << 29
#: Longer than a promotion takes on a busy machine. If the records of sessions are refused because
#: their broker is away for longer, what was in flight to clients that leave meanwhile is lost.
_APPEND_WAIT_S: Final = 20
_ASKED_WITHIN_S: Final = 2.0
_HEAD: Final = struct.Struct(">II")  # size, magic


class ReplicaPair:
    """Two brokers of one name, 0 and 1 whatever their roles; 0 is the first master."""

    def __init__(
        self, folder: Path, replicate: str, *, has_disks: bool = False, has_clocks: bool = False
    ) -> None:
        """Each has a small disk of its own with ``has_disks``, a clock with ``has_clocks``."""
        namesrv, *ports = free_ports(3)
        self._folder = folder
        self._replicate = replicate
        self.namesrv = f"127.0.0.1:{namesrv}"
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        self._ha_addresses = [("127.0.0.1", port - 1) for port in ports]
        self._started = ExitStack()
        self.lines = [
            self._started.enter_context(HaLine(address)) for address in self._ha_addresses
        ]
        #: Number of the one that appends; the operator's configuration follows it.
        self.master = 0
        self._starts = 0
        self._namesrv = RoleProcess(folder, "namesrv", f'[namesrv]\nlisten = "{self.namesrv}"')
        self._brokers: dict[int, RoleProcess] = {}
        self.stores = [folder / "store-0", folder / "store-1"]
        #: Empty if both write to the folder's disk, and have the machine's clock.
        self.disks: list[Path] = []
        self.clocks: list[SteppedClock] = []
        if has_disks:
            self.disks = [self._mount(store) for store in self.stores]
            self.stores = [disk / "store" for disk in self.disks]
        if has_clocks:
            library = build_clock(folder)
            self.clocks = [SteppedClock(library, folder / f"clock-{n}") for n in (0, 1)]
        self.gateway = GatewayProcess(
            folder, namesrv=self.namesrv, settings=f"append_wait_s = {_APPEND_WAIT_S}"
        )

    @property
    def slave(self) -> int:
        return 1 - self.master

    def start(self) -> None:
        """Start all: the name server, both brokers, the gateway."""
        self._started.callback(self._namesrv.kill)
        self._namesrv.start()
        self.start_broker(self.master)
        self.start_broker(self.slave)
        self.gateway.start()
        self._started.callback(self.gateway.kill)

    def close(self) -> None:
        self._started.close()

    def _mount(self, store: Path) -> Path:
        """Return a small disk in this folder, which has what was on the disk when it is gone."""
        store.mkdir()
        disk = self._started.enter_context(small_tmpfs(store, DISK_BYTES))
        self._started.callback(shutil.copytree, disk, store, dirs_exist_ok=True)
        return disk

    # --- processes -----------------------------------------------------------------------

    def start_broker(self, number: int) -> None:
        """Start one in the role that it has now."""
        self._starts += 1
        folder = self._folder / f"start-{self._starts:03}-broker-{number}"
        folder.mkdir()
        host, port = self._ha_addresses[number]
        # What is acknowledged has a copy, also while the other one is away.
        slaves_min = int(self._replicate == "sync")
        self._brokers[number] = RoleProcess(
            folder,
            "broker",
            f'[broker]\nid = {int(number != self.master)}\nreplicate = "{self._replicate}"\n'
            f"slaves_min = {slaves_min}\n"
            f'vip = false\nlisten = "{self.addresses[number]}"\nha_listen = "{host}:{port}"\n'
            f'ha_advertise = "127.0.0.1:{self.lines[number].port}"\n'
            f'namesrv = ["{self.namesrv}"]\nsave_interval_s = 0.2\n'
            "transaction_timeout_s = 1\ntransaction_check_interval_s = 0.5\n"
            "transaction_check_max = 10000\n"
            f'[broker.store]\ndirectory = "{self.stores[number]}"\n'
            f"commitlog_file_bytes = {FILE_BYTES}\n"
            # Files are removed by age alone, and at once: none is old, whatever the clock shows.
            "disk_free_bytes_min = 0\ndisk_used_percent_max = 99\ncleanup_oldest_percent = 100\n"
            f"cleanup_hours = {list(range(24))}\ncleanup_interval_ms = 500\n"
            "index_slots = 1000\nindex_entries = 100000",
            self.clocks[number].environment if self.clocks else None,
        )
        self._started.callback(self._brokers[number].kill)
        self._brokers[number].start()

    def kill(self, number: int) -> None:
        self._brokers[number].kill()

    def stop(self, number: int) -> None:
        """End one with SIGTERM."""
        self._brokers[number].stop()

    def suspend(self, number: int) -> None:
        os.kill(self._brokers[number].pid, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        os.kill(self._brokers[number].pid, signal.SIGCONT)

    def connections(self) -> set[tuple[int, int]]:
        """Return the ports of the connections that gateway and slave have to brokers."""
        ours = (self.gateway.pid, self._brokers[self.slave].pid)
        brokers = {int(address.rpartition(":")[2]) for address in self.addresses}
        brokers |= {line.port for line in self.lines}
        return {
            (one.laddr.port, one.raddr.port)
            for pid in ours
            for one in psutil.Process(pid).net_connections("tcp")
            if one.raddr and one.raddr.port in brokers
        }

    def errors(self, number: int) -> str:
        """Return what its process has logged since it started."""
        return self._brokers[number].errors()

    # --- an operator's commands ----------------------------------------------------------

    def promote(self, *, is_forced: bool = False) -> int:
        """Make the slave the master; return the offset at which its log goes on."""
        options = ["--yes", "--json", *(["--force"] if is_forced else [])]
        done = motelog("broker", "promote", NAME, *options, "--namesrv", self.namesrv)
        assert done.returncode == 0, done.stderr
        self.master = self.slave
        return int(json.loads(done.stdout)["end_offset"])

    def cut(self, number: int, offset: int) -> None:
        """Cut the log of one that is stopped."""
        done = motelog("store", "cut", str(self.stores[number]), "--at", str(offset), "--yes")
        assert done.returncode == 0, done.stderr

    def is_intact(self, number: int) -> bool:
        """Return what ``motelog store verify`` says of one that is stopped."""
        return motelog("store", "verify", str(self.stores[number])).returncode == 0

    def empty(self, number: int) -> None:
        """Let one that is stopped begin with an empty folder."""
        for entry in self.stores[number].iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def state(self, number: int) -> Replication | None:
        """Return what one says of its log and copies; None if it does not answer."""

        async def ask() -> Replication | None:
            with trio.move_on_after(_ASKED_WITHIN_S):
                async with Admin(namesrv=self.namesrv) as admin:
                    return await admin.replication(NAME, broker_id=int(number != self.master))
            return None

        try:
            return trio.run(ask)
        except (MotelogError, OSError):
            return None

    # --- their logs ----------------------------------------------------------------------

    def log_files(self, number: int) -> list[Path]:
        # A file that is being made has another name.
        files = (self.stores[number] / "commitlog").iterdir()
        return sorted(file for file in files if file.name.isdigit())

    def difference(self, end: int) -> int | None:
        """Return the first offset below ``end`` at which the logs differ; None if there is none."""
        begin = max(int(self.log_files(number)[0].name) for number in (0, 1))
        while begin < end:
            size = min(FILE_BYTES - begin % FILE_BYTES, end - begin)
            ours, theirs = (self._bytes(number, begin, size) for number in (0, 1))
            if ours != theirs:
                pairs = enumerate(zip(ours, theirs, strict=True))
                return begin + next(at for at, (our, their) in pairs if our != their)
            begin += size
        return None

    def _file(self, number: int, offset: int) -> Path:
        return self.stores[number] / "commitlog" / f"{offset - offset % FILE_BYTES:020d}"

    def _bytes(self, number: int, begin: int, size: int) -> bytes:
        with self._file(number, begin).open("rb") as log:
            log.seek(begin % FILE_BYTES)
            return log.read(size)

    def flip(self, number: int, offset: int, size: int) -> None:
        """Flip bits in some bytes of a file."""
        with self._file(number, offset).open("r+b") as log:
            log.seek(offset % FILE_BYTES)
            data = log.read(size)
            log.seek(offset % FILE_BYTES)
            log.write(bytes(byte ^ 0x55 for byte in data))

    def messages(self, number: int, begin: int, end: int) -> Iterator[StoredMessage]:
        """Yield the messages of [begin, end), where a record begins and ends."""
        while begin < end:
            rest = FILE_BYTES - begin % FILE_BYTES
            data = self._bytes(number, begin, min(rest, end - begin))
            at = 0
            while at < len(data):
                size, magic = _HEAD.unpack_from(data, at)
                if magic == MAGIC_BLANK:
                    break
                assert size, f"no record at {begin + at} below the end {end}"
                at += size
            yield from decode_messages(data[:at])
            begin += rest if at < len(data) else at
