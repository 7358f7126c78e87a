"""A master and its slave have faults under clients that go on, round by round.

Usage: python -m tests.fault.replica_rounds [--rounds 50] [--mode sync|async] [--java] [--long]
                                            [--seed N] [--folder DIR] [--json]

A name server, two brokers of one name, a gateway in front of them: processes that keep their ports
and folders over all rounds. Native clients are those of tests.fault.broker_kills (single, batch,
in order, delayed, transactions; push, pull, POP), MQTT clients those of tests.fault.session_kills.
The slave reaches its master's HA port over a line that has faults of its own.

    kill          the master is killed, the slave promoted; the old master comes back as its slave
    stop          the same, ended with SIGTERM
    fork          the same while the slave gets nothing: the old master's longer log is cut
    hang          the master stands still while the slave is promoted, and goes on
    slave-hang    the slave stands still
    slave-kill    the slave is killed
    slave-empty   and comes back with an empty folder
    slave-short   and comes back with a log that has lost its end
    slave-end     and comes back with a record whose head is damaged, in the last file of its log
    slave-middle  or in an earlier one: ``motelog store verify`` finds it, and it begins empty
    line-cut      the line is cut for a while
    line-byte     cut after some bytes, within a report or a frame
    line-up       it swallows what goes to the master
    line-down     it swallows what goes to the slave
    line-slow     it holds each piece up
    full-master   the master's disk is full to the last byte for a while; now and then the slave is
                  promoted meanwhile
    full-slave    the slave's disk is
    clock-master  the master's wall clock is set forward or back by hours or days; at the end it is
                  right again, or stays; now and then the slave is promoted meanwhile
    clock-slave   the slave's is

The old master and a slave come back by the documented commands alone (tests.support.replica_pair).
After each round the slave has copied all, the logs are equal, and all clients get on. With
``--mode sync`` what was acknowledged (SEND_OK, PUBACK, PUBCOMP) is in the master's log; at the end
each reader has it, MQTT's in order and at QoS 2 once. With ``async`` the loss of each promotion is
counted, and how much older than the fault its oldest message was; what readers skip is not judged.
A full master refuses publishes and says why, a full slave stops copying and goes on by itself. A
clock that is set ends no connection and expires nothing; a delayed message comes early only if the
clock was set forward while it waited.

Disks of a limited size need the permission to mount (tests.support.loop_disk), clocks a C compiler
(tests.support.stepped_clock); without them their kinds are left out.

These faults were planted, and were found within the first rounds of ``fork``: acknowledgements that
do not wait for the slave, a slave that does not compare, readers that see what no slave has.

``--long``: faults last as long as the protocol's silence allows (20 s) and longer.
The moments depend on the machine: a seed repeats the kinds and waits.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from motelog.core.remoting.codes import ResponseCode
from motelog.gateway.mqtt.packet_types import ReasonCode
from tests.support.delivery_audit import AuditError
from tests.support.durable_client import BadAnswerError
from tests.support.java import JavaDriver
from tests.support.loop_disk import NotPermittedError, fill_disk, small_tmpfs
from tests.support.native_load import NativeLoad
from tests.support.replica_devices import Devices, TimedAudit
from tests.support.replica_logs import ReplicaLogs
from tests.support.replica_pair import FILE_BYTES, ReplicaPair
from tests.support.rounds import Report
from tests.support.stepped_clock import NoCompilerError, SteppedClock, build_clock
from tests.support.wire_ledger import LedgerError

KINDS: Final = (
    "kill", "fork", "hang", "stop", "slave-kill", "slave-hang", "slave-empty", "slave-short",
    "slave-end", "slave-middle", "line-cut", "line-byte", "line-up", "line-down", "line-slow",
    "full-master", "full-slave", "clock-master", "clock-slave",
)  # fmt: skip
WEIGHTS: Final = (6, 4, 4, 2, 1, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 2, 1, 2, 1)
#: What RocketMQ's producers are answered while the disk is full.
FULL_CODES: Final = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE})
LOAD_S_MAX: Final = 1.5
AWAY_S_MAX: Final = 1.5
#: Longer than either side of the HA protocol waits in silence (SILENCE_S).
LONG_S: Final = 30.0
SETTLED_WITHIN_S: Final = 90.0
LOOK_S: Final = 0.2
#: Acknowledged of each kind of clients until a round is over.
ACKNOWLEDGED_MIN: Final = 5
FLIPPED_BYTES: Final = 16
#: Up to longer than messages are kept.
STEP_S: Final = (3600, 5 * 86_400)


@dataclass(frozen=True, slots=True)
class Round:
    """One round as it went; ``lost_ms`` is the age of the oldest lost message at the fault."""

    kind: str
    acknowledged: int
    lost: int = 0
    lost_ms: int = 0


class FullRefusals:
    """How publishes are refused from now on, by a master whose disk is full."""

    def __init__(self, native: NativeLoad, devices: Devices) -> None:
        self._native = native
        self._devices = devices
        self._before = native.refusals.copy(), devices.refusals, devices.endings

    def are_told(self) -> bool:
        """Return whether clients of both kinds have been refused; AuditError if wrongly."""
        codes = self._native.refusals - self._before[0]
        mqtt = self._devices.refusals - self._before[1]
        if codes.keys() - FULL_CODES or mqtt.keys() - {ReasonCode.QUOTA_EXCEEDED}:
            raise AuditError(f"a full master refuses with {codes}, and MQTT's with {mqtt}")
        # What may be in the log, as it was sent before, is not refused: the connection ends.
        ended = self._devices.endings - self._before[2]
        return bool(codes) and ReasonCode.QUOTA_EXCEEDED in mqtt | ended


class ReplicaRounds:
    """Rounds over one folder, which must be empty at the start."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        mode: str,
        kinds: Collection[str] = KINDS,
        *,
        is_long: bool,
        java: JavaDriver | None = None,
    ) -> None:
        self._chance = random.Random(seed)
        self._is_sync = mode == "sync"
        self._is_long = is_long
        self._pair = ReplicaPair(
            folder,
            mode,
            has_disks=any(kind.startswith("full-") for kind in kinds),
            has_clocks=any(kind.startswith("clock-") for kind in kinds),
        )
        self._audit = TimedAudit(forgives=not self._is_sync)
        self._seed = seed
        self._java = java
        self._workers = ThreadPoolExecutor(1)
        self._logs = ReplicaLogs(self._pair)
        self._lost: set[str] = set()
        self._fault_at = 0.0

    def __enter__(self) -> ReplicaRounds:
        with ExitStack() as opened:
            opened.callback(self._pair.close)
            self._pair.start()
            self._native = NativeLoad(
                self._pair.namesrv,
                self._pair.addresses[0],
                self._seed,
                in_order=self._is_sync,
                java=self._java,
            )
            self._native.start()
            opened.callback(self._native.close)
            self._devices = Devices(self._pair.gateway.address[1], self._seed, self._audit)
            opened.callback(self._devices.close)
            self._devices.first()
            self._wait_for(self._is_copying)
            self._logs.compare("the start")
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._opened.close()
        self._workers.shutdown()

    def run(self, kind: str) -> Round:
        """Do one round; AuditError or LedgerError says what is wrong."""
        before = len(self._acked())
        self._devices.next_round()
        self._play(self._chance.uniform(0.3, LOAD_S_MAX))
        if kind.startswith("line-"):
            self._line(kind)
        elif kind.startswith("slave-"):
            self._slave(kind)
        elif kind.startswith("full-"):
            self._full(kind)
        elif kind.startswith("clock-"):
            self._clock(kind)
        else:
            self._change_master(kind)
        lost = self._settle(kind)
        oldest = min((self._acked()[body] for body in lost), default=self._fault_at)
        return Round(
            kind,
            len(self._acked()) - before,
            len(lost),
            max(round((self._fault_at - oldest) * 1000), 0),
        )

    def end(self) -> str:
        """Have all delivered; return what came more than once."""
        if self._is_sync:
            self._devices.drain()
        self._native.end()
        return f"{self._native.uncopied} stored and not copied in time"

    # --- faults --------------------------------------------------------------------------

    def _change_master(self, kind: str, repair: Callable[[], None] = lambda: None) -> None:
        """Promote the slave; ``repair`` is called before the old master starts again."""
        pair, old = self._pair, self._pair.master
        line = pair.lines[old]
        if kind == "fork":  # a slave that only stands still would find it in its socket
            line.muted.add("down")
            self._play(self._chance.uniform(0.2, 1.0))
        self._fault_at = time.monotonic()
        if kind == "stop":
            self._do(pair.stop, old)
        elif kind == "hang":
            pair.suspend(old)
        else:
            pair.kill(old)
        line.heal()
        self._play(self._chance.uniform(0, AWAY_S_MAX))
        if pair.clocks and pair.clocks[pair.slave].ahead_s > pair.clocks[old].ahead_s:
            self._native.punctual.leaps.append(time.monotonic())
        begin = self._do(lambda: pair.promote(is_forced=kind == "hang"))
        self._logs.forget_from(begin)
        self._play(LONG_S if kind == "hang" and self._is_long else self._chance.uniform(0, 2))
        if kind == "hang":
            pair.resume(old)
            self._play(self._chance.uniform(0.5, 3))
            self._do(pair.stop, old)
        repair()
        self._come_back_as_slave(old, begin)

    def _come_back_as_slave(self, number: int, begin: int) -> None:
        """Start it; if its log has what the new master's has not, cut that off."""
        pair = self._pair
        self._do(pair.start_broker, number)
        if self._wait_for(self._is_copying, lambda: "motelog store cut" in self._fault()):
            return
        fault = self._fault()
        if f"store cut --at {begin})" not in fault:
            raise AuditError(f"the old master should be cut at {begin}: {fault}")
        self._do(pair.stop, number)
        self._do(pair.cut, number, begin)
        self._do(pair.start_broker, number)

    def _slave(self, kind: str) -> None:
        pair, slave = self._pair, self._pair.slave
        self._fault_at = time.monotonic()
        if kind == "slave-hang":
            pair.suspend(slave)
            self._play(LONG_S if self._is_long else self._chance.uniform(0.2, 4))
            pair.resume(slave)
            return
        pair.kill(slave)
        self._play(self._chance.uniform(0, AWAY_S_MAX))
        if kind == "slave-empty":
            pair.empty(slave)
        elif kind == "slave-short":
            places = [m.physical_offset for m in pair.messages(slave, 0, self._logs.copied)]
            self._do(pair.cut, slave, self._chance.choice(places[len(places) // 2 :]))
        elif kind in ("slave-end", "slave-middle"):
            self._flip(slave, is_last=kind == "slave-end")
            if not self._do(pair.is_intact, slave):
                pair.empty(slave)
            else:
                raise AuditError("motelog store verify does not find flipped bytes")
        self._do(pair.start_broker, slave)

    def _flip(self, number: int, *, is_last: bool) -> None:
        """Flip the head of a record of its log: no checksum covers more than head and body."""
        end = self._logs.copied
        begins = [int(file.name) for file in self._pair.log_files(number)]
        begins = [begin for begin in begins if begin < end]
        begin = begins[-1] if is_last or len(begins) == 1 else self._chance.choice(begins[:-1])
        records = list(self._pair.messages(number, begin, min(end, begin + FILE_BYTES)))
        self._pair.flip(number, self._chance.choice(records).physical_offset, FLIPPED_BYTES)

    def _line(self, kind: str) -> None:
        line = self._pair.lines[self._pair.master]
        self._fault_at = time.monotonic()
        away_s = LONG_S if self._is_long and kind != "line-byte" else self._chance.uniform(0.2, 3)
        if kind == "line-cut":
            line.hold()
            line.cut()
        elif kind == "line-byte":
            for _ in range(3):
                up = self._chance.random() < 0.3
                count = self._chance.randrange(20 if up else 20_000)
                line.cut_after("up" if up else "down", count)
                self._play(self._chance.uniform(0.2, 1.5))
        elif kind == "line-slow":
            line.delay_s = self._chance.uniform(0.01, 0.5)
        else:
            line.muted.add("up" if kind == "line-up" else "down")
        self._play(away_s)
        line.heal()

    def _full(self, kind: str) -> None:
        pair = self._pair
        number = pair.master if kind == "full-master" else pair.slave
        refusals = FullRefusals(self._native, self._devices)
        self._fault_at = time.monotonic()
        ballast = self._do(fill_disk, pair.disks[number])

        def is_told() -> bool:
            return "disk" in self._fault() if kind == "full-slave" else refusals.are_told()

        if not self._wait_for(is_told):
            raise AuditError(f"{kind} is not told: {self._fault() or 'it copies'}")
        self._play(LONG_S if self._is_long else self._chance.uniform(0.2, 4))
        is_told()
        if kind == "full-master" and self._chance.random() < 0.5:
            self._change_master("kill", repair=ballast.unlink)
        else:
            ballast.unlink()

    def _clock(self, kind: str) -> None:
        pair = self._pair
        clock = pair.clocks[pair.master if kind == "clock-master" else pair.slave]
        was_ahead_s, before = clock.ahead_s, pair.connections()
        self._fault_at = time.monotonic()
        self._set(clock, self._chance.choice((-1, 1)) * self._chance.randint(*STEP_S))
        self._play(LONG_S if self._is_long else self._chance.uniform(0.5, 4))
        if gone := before - pair.connections():
            raise AuditError(f"{kind} has ended connections: {gone}")
        if self._chance.random() < 0.3:
            self._change_master("kill")
        # Java's POP consumers drop what a broker whose clock is late hands out: they compare its
        # time with theirs (ConsumeMessagePopConcurrentlyService.isPopTimeout).
        if self._chance.random() < 0.5 or self._java is not None:
            self._set(clock, was_ahead_s)

    def _set(self, clock: SteppedClock, ahead_s: int) -> None:
        if ahead_s > clock.ahead_s:
            self._native.punctual.leaps.append(time.monotonic())
        self._do(clock.set, ahead_s)

    # --- judging -------------------------------------------------------------------------

    def _settle(self, kind: str) -> set[str]:
        """Wait until all are there and get on; return what was lost by this round."""
        native, mqtt = len(self._native.acked), len(self._audit.acked)
        got = self._native.got + self._devices.got
        if not self._wait_for(
            lambda: (
                self._is_copying()
                and len(self._native.acked) >= native + ACKNOWLEDGED_MIN
                and len(self._audit.acked) >= mqtt + ACKNOWLEDGED_MIN
                and (not self._is_sync or all((self._got() - got).get(name) for name in got))
            )
        ):
            after = self._got() - got
            silent = [name for name in got if not after.get(name)]
            raise AuditError(
                f"after {kind} the pair does not get on: {self._fault() or 'it copies'};"
                f" {len(self._native.acked) - native} native and"
                f" {len(self._audit.acked) - mqtt} MQTT messages were acknowledged; readers that"
                f" get nothing: {silent}"
            )
        lost = self._logs.lacking(self._acked().keys() - self._lost)
        if lost and self._is_sync:
            some = sorted(lost)[:5]
            raise AuditError(f"{kind} has lost {len(lost)} acknowledged messages: {some}")
        self._lost |= lost
        self._native.lost |= lost
        self._logs.compare(kind)
        return lost

    def _got(self) -> Counter[str]:
        return self._native.got + self._devices.got

    def _acked(self) -> dict[str, float]:
        return self._native.acked | self._audit.acked

    # --- waiting -------------------------------------------------------------------------

    def _play(self, seconds: float) -> None:
        self._devices.play(seconds)
        if self._native.failure is not None:
            raise self._native.failure

    def _do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do what blocks in a thread, while the clients go on."""
        doing = self._workers.submit(work, *arguments)
        while not doing.done():
            self._play(0.02)
        return doing.result()

    def _wait_for(
        self, is_true: Callable[[], bool], is_vain: Callable[[], bool] = lambda: False
    ) -> bool:
        """Return whether it came about in time; not if it ``is_vain`` before."""
        deadline = time.monotonic() + SETTLED_WITHIN_S
        while time.monotonic() < deadline:
            if is_true():
                return True
            if is_vain():
                return False
            self._play(LOOK_S)
        return False

    def _is_copying(self) -> bool:
        """Whether the slave has what the master had a moment ago."""
        master = self._do(self._pair.state, self._pair.master)
        slave = self._do(self._pair.state, self._pair.slave)
        return (
            master is not None
            and slave is not None
            and slave.copying is not None
            and not slave.copying.fault
            and slave.end_offset >= master.end_offset
        )

    def _fault(self) -> str:
        """Return why the slave does not copy."""
        state = self._do(self._pair.state, self._pair.slave)
        if state is None:
            return "the slave does not answer"
        return (state.copying.fault or "") if state.copying is not None else "it is no slave"


def rounds(
    folder: Path,
    seed: int,
    kinds: Sequence[str],
    mode: str,
    *,
    note: Callable[[str], None],
    is_long: bool = False,
    java: JavaDriver | None = None,
) -> Generator[Round, None, None]:
    """Do rounds of these kinds; ``note`` is told the last word."""
    with ReplicaRounds(folder, seed, mode, kinds, is_long=is_long, java=java) as going:
        for kind in kinds:
            yield going.run(kind)
        note(going.end())


def kinds_of(seed: int, count: int, without: Collection[str] = ()) -> list[str]:
    """Return kinds of rounds by chance, every kind among the first ones."""
    chance = random.Random(seed)
    first = chance.sample(KINDS, len(KINDS))
    more = chance.choices(KINDS, WEIGHTS, k=(count + len(first)) * (len(without) + 1))
    return [kind for kind in (*first, *more) if kind not in without][:count]


def not_possible() -> dict[str, str]:
    """Return the kinds that cannot be had on this machine, and why."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_tmpfs(Path(folder), 1 << 20):
                pass
        except NotPermittedError as exc:
            found |= dict.fromkeys(("full-master", "full-slave"), str(exc))
        try:
            build_clock(Path(folder))
        except NoCompilerError as exc:
            found |= dict.fromkeys(("clock-master", "clock-slave"), str(exc))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.replica_rounds")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--kinds", help="these in turn, with a comma between them")
    parser.add_argument("--java", action="store_true", help="with RocketMQ's Java client")
    parser.add_argument("--long", action="store_true", help=f"faults last up to {LONG_S:g} s")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=None, help="for the data; else below /tmp")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    # What clients say of servers that are away is no finding.
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("motelog.bridge").setLevel(logging.CRITICAL)
    report = Report.of(args.seed)
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp("", "motelog-replica-rounds.", args.folder))
    left_out = not_possible()
    for kind, reason in left_out.items():
        sys.stderr.write(f"there are no rounds of {kind} here: {reason}\n")
    kinds = kinds_of(report.seed, args.rounds, left_out)
    if args.kinds:
        some = [kind for kind in args.kinds.split(",") if kind not in left_out]
        kinds = [some[number % len(some)] for number in range(args.rounds if some else 0)]
    java = JavaDriver(errors=subprocess.DEVNULL) if args.java else None
    done: list[Round] = []
    said: list[str] = []
    going = rounds(
        folder, report.seed, kinds, args.mode, note=said.append, is_long=args.long, java=java
    )
    try:
        with closing(going):
            for one in going:
                done.append(one)
                sys.stderr.write(
                    f"round {len(done)} of {args.rounds}: {one.kind}, {one.acknowledged}"
                    f" acknowledged, {one.lost} lost ({one.lost_ms} ms)\n"
                )
        shutil.rmtree(folder)
    except (AuditError, BadAnswerError, LedgerError) as exc:
        report.failure = f"after {len(done)} rounds: {exc}; the folder is kept: {folder}"
    finally:
        if java is not None:
            java.close()
    lost = sum(one.lost for one in done)
    lost_ms = max((one.lost_ms for one in done), default=0)
    found = ", ".join((f"{lost} lost, up to {lost_ms} ms old", *said))
    return report.end(done, found, as_json=args.json, lost=lost, lost_ms=lost_ms)


if __name__ == "__main__":
    sys.exit(main())
