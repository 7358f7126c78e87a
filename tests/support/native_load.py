"""RocketMQ's kind of clients under load, in a thread of their own, while brokers come and go.

Owns: NativeLoad, the clients of tests.fault.broker_kills over one broker name whose members change;
when each message was acknowledged. Must not touch: servers.

A message counts as acknowledged when its copy is promised: SEND_OK.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import trio

from motelog.bridge.errors import SendFailedError
from motelog.bridge.producer import Producer, SendResult, SendStatus
from motelog.core.errors import BrokerError, MotelogError
from motelog.core.message import Message
from tests.fault.broker_kills import PLAIN, BrokerKills, RefusedError
from tests.support.java import VERSION_5, JavaDriver
from tests.support.wire_ledger import Ledger, LedgerError, Reader

_LATE_S = 1
_LATE_PAUSE_S = 0.2
#: A broker may have begun its turn before the message was sent.
_SLACK_S = 0.1


class _Servers:
    """What BrokerKills asks of servers, which others start and end here."""

    names: tuple[str, ...] = ()
    has_once = False

    def __init__(self, namesrv: str, master: str) -> None:
        self.namesrv_address = namesrv
        self.addresses = [master]


class PunctualLedger(Ledger):
    """A Ledger that knows when delayed messages are due, and when the brokers' time leapt ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.due: dict[str, float] = {}
        self.leaps: list[float] = []

    def got(self, body: str) -> None:
        super().got(body)
        due, now = self.due.pop(body, 0.0), time.monotonic()
        early_s = due - now
        # A leap explains it if the message was waiting then.
        is_explained = any(due - _LATE_S - _SLACK_S < at < now for at in self.leaps)
        if early_s > _SLACK_S and not is_explained:
            raise LedgerError(f"{body} comes {early_s:.3f} s before its time", body)


class NativeLoad(BrokerKills):
    """Producers and consumers; ``acked`` has each acknowledged body and when that was."""

    def __init__(
        self, namesrv: str, master: str, seed: int, *, in_order: bool, java: JavaDriver | None
    ) -> None:
        # Where messages are lost, who has read them goes on behind others that have their places.
        self._drains = in_order
        self.punctual = PunctualLedger()
        servers = _Servers(namesrv, master)
        super().__init__(servers, seed, java, VERSION_5, ledger=self.punctual)  # type: ignore[arg-type]  # stand-in
        if not in_order:  # what is lost leaves gaps
            for name in ("orderly", "java-orderly"):
                if name in self._readers:
                    known = self._readers[name]
                    self._readers[name] = Reader(name, self._ledger, known.topics)
        self.acked: dict[str, float] = {}
        #: Bodies whose loss is counted and forgiven.
        self.lost: set[str] = set()
        #: How often sends were refused, by response code.
        self.refusals = Counter[int]()
        #: Messages that were stored and not copied in time.
        self.uncopied = 0
        self.failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._over = trio.Event()
        self._scope = trio.CancelScope()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, daemon=True)

    def start(self) -> None:
        """Return when the clients are at work."""
        self._thread.start()
        self._ready.wait()

    def end(self) -> None:
        """Have all delivered that was acknowledged if nothing is lost; raise what has failed."""
        if self._token is not None and self.failure is None:
            self._token.run_sync_soon(self._over.set)
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """End the clients, whatever they are at."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()

    @property
    def got(self) -> Counter[str]:
        """Return how much each reader has got."""
        return Counter({name: one.total for name, one in self._readers.items()})

    def _run_thread(self) -> None:
        try:
            trio.run(self._run_clients)
        except BaseException as exc:
            self.failure = _first(exc) or exc
        finally:
            self._ready.set()

    async def _run_clients(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            await self._run_until_over()

    async def _run_until_over(self) -> None:
        await self._create_topics()
        async with (
            trio.open_nursery() as nursery,
            self._clients(nursery),
            Producer(namesrv=self._address, group="late") as producer,
        ):
            nursery.start_soon(self._load, partial(self._send_late, producer))
            self._ready.set()
            await self._over.wait()
            if self._drains:
                await self._drain()
                await self._check_log()
            # Before the producer is closed, which may be sending.
            nursery.cancel_scope.cancel()

    async def _send_late(self, producer: Producer) -> None:
        body = self._ledger.next(PLAIN, "late")
        self.punctual.due[body] = time.monotonic() + _LATE_S
        self._acknowledge(await producer.send(Message(PLAIN, body.encode()), delay=_LATE_S), body)
        await trio.sleep(_LATE_PAUSE_S)

    def _failed(self, error: MotelogError) -> None:
        cause = error.__cause__ if isinstance(error, SendFailedError) else error
        if isinstance(cause, BrokerError):
            self.refusals[cause.code] += 1

    def _acknowledge(self, result: SendResult, *bodies: str) -> None:
        if result.status is not SendStatus.OK:
            self.uncopied += len(bodies)
            return
        super()._acknowledge(result, *bodies)
        now = time.monotonic()
        for body in bodies:
            self.acked.setdefault(body, now)

    def _take(self, line: Sequence[str]) -> None:
        super()._take(line)
        if line[0] == "acknowledged":
            self.acked.setdefault(line[1], time.monotonic())

    async def _check_log(self) -> None:
        """Find what was committed, if its half message was acknowledged and was not lost."""
        safe = self.acked.keys() - self.lost
        self._decided = {body: state for body, state in self._decided.items() if body in safe}
        await super()._check_log()

    def _missing(self) -> dict[str, set[str]]:
        found = {name: missing - self.lost for name, missing in super()._missing().items()}
        return {name: missing for name, missing in found.items() if missing}


def _first(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_first, error.exceptions)), None)
    return error if isinstance(error, LedgerError | RefusedError) else None
