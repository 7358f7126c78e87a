"""Running roles in the foreground until a signal: shared by ``dev`` and ``up``.

Owns: signals, the log lines of start and stop, the remedy for a port that is taken.
Must not touch: the roles.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial

import trio

from motelog import __version__, logs
from motelog.cli.output import CliError, write_error, write_json
from motelog.cli.port_owner import port_owner
from motelog.cli.status import Status, status_of
from motelog.config import MotelogConfig
from motelog.core.addresses import format_address, parse_address
from motelog.core.errors import MotelogError, comes_again, leaves
from motelog.core.store.disk.files import NO_ROOM, no_room_text
from motelog.core.store.state.progress import OnProgress, StartProgress
from motelog.roles import CannotListenError, PortTakenError, Roles, run_roles
from motelog.running_config import RunningConfig

logger = logging.getLogger(__name__)


def serve(
    config: MotelogConfig,
    ready: Callable[[Roles], None],
    option_of_role: Mapping[str, str],
    *,
    json: bool,
    source: str,
    running_config: RunningConfig | None = None,
) -> None:
    """Run the roles until a signal; call ``ready`` once when all have started.

    A long start reports its progress every two seconds: on standard error for people, or with
    ``json`` as a line on standard output. ``option_of_role`` names the option that moves a role to
    another address; ``source`` says where the configuration comes from, ``running_config`` reads it
    again. KeyboardInterrupt if Ctrl-C ends the start.
    """
    logs.set_up(config.log)
    run = _Run(config, ready, source, running_config)
    try:
        trio.run(run.serve, _show_json if json else _show)
    except BaseException as exc:
        run.note_stop(_reason(exc))
        _raise_helpful(exc, option_of_role)
        raise
    run.note_stop(run.reason)
    if run.is_interrupted:
        raise KeyboardInterrupt


def _show(progress: StartProgress) -> None:
    write_error(f"the store is starting: {progress}")


def _show_json(progress: StartProgress) -> None:
    write_json({"event": "starting", **asdict(progress)})


class _Run:
    """One run of the roles, which logs its start and its stop."""

    def __init__(
        self,
        config: MotelogConfig,
        ready: Callable[[Roles], None],
        source: str,
        running_config: RunningConfig | None,
    ) -> None:
        self._running_config = running_config
        self._config = config
        self._ready = ready
        self._source = source
        self._began_s = time.monotonic()
        self.reason = "ended"
        self._has_started = False
        #: Whether Ctrl-C was pressed before there was anything to stop.
        self.is_interrupted = False

    async def serve(self, on_progress: OnProgress) -> None:
        numbers = _ending_signals()
        # The receiver would restore the default handlers when it closes. The process is ending
        # then, and a second signal must not keep it from its last steps.
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        with trio.open_signal_receiver(*numbers) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_at_signal, signals, nursery.cancel_scope)
                run = partial(run_roles, running_config=self._running_config)
                roles = await nursery.start(run, self._config, on_progress)
                self._has_started = True
                self._note_start(roles)
                self._ready(roles)

    async def _cancel_at_signal(self, signals: object, scope: trio.CancelScope) -> None:
        async for number in signals:  # type: ignore[attr-defined]  # trio exports no type
            self.reason = signal.Signals(number).name
            self.is_interrupted = number == signal.SIGINT and not self._has_started
            scope.cancel()

    def _note_start(self, roles: Roles) -> None:
        broker = self._config.broker if "broker" in roles.addresses else None
        logger.info(
            "the server has started version=%s pid=%d config=%s data=%s roles=%s start_s=%.1f",
            __version__,
            os.getpid(),
            self._source,
            os.path.abspath(broker.store.directory) if broker is not None else "none",
            ",".join(f"{role}@{format_address(*at)}" for role, at in roles.addresses.items()),
            time.monotonic() - self._began_s,
        )

    def note_stop(self, reason: str) -> None:
        ran_s = time.monotonic() - self._began_s
        logger.info("the server has stopped reason=%s ran_s=%.1f", reason, ran_s)


def _reason(exc: BaseException) -> str:
    first = leaves(exc)[0]
    return f"{type(first).__name__}: {first}"


def _ending_signals() -> list[signal.Signals]:
    """Return the signals that shut the process down.

    SIGHUP is one of them: the terminal is gone. (The configuration is reloaded by a command.)
    Under nohup SIGHUP is ignored, and stays ignored.
    """
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


def _raise_helpful(exc: BaseException, option_of_role: Mapping[str, str]) -> None:
    """Raise the first expected error; one about a port says what to do.

    The exit status tells a service manager whether to try again.
    """
    for leaf in leaves(exc):
        status = Status.CONFIG if comes_again(leaf) else Status.FAILED
        if isinstance(leaf, PortTakenError | CannotListenError):
            option = option_of_role[leaf.role]
            host = leaf.listen.rpartition(":")[0]
            if isinstance(leaf, CannotListenError):
                remedy = f"choose another address with {option}"
                raise CliError(str(leaf), remedy=remedy, status=status) from exc
            next_one = "; --auto-port takes the next free one" if option.startswith("--") else ""
            remedy = (
                f"it is used by {port_owner(parse_address(leaf.listen)[1])}; stop that, or choose"
                f" another port: {option} {host}:0 takes any free port{next_one}"
            )
            raise CliError(str(leaf), remedy=remedy) from exc
        if isinstance(leaf, MotelogError):
            if status_of(leaf)[0] == Status.FAILED:
                raise CliError(str(leaf), remedy=status_of(leaf)[1], status=status) from exc
            raise leaf from exc
        if isinstance(leaf, OSError) and leaf.errno in NO_ROOM:
            raise CliError(f"cannot accept connections: {no_room_text(leaf)}") from exc
        if isinstance(leaf, OSError) and leaf.filename is not None:
            text = f"{leaf.filename} cannot be used: {leaf.strerror}"
            raise CliError(text, status=status) from exc
