"""Running roles in the foreground until a signal: shared by ``dev`` and ``up``.

Owns: signals, turning a taken port into an error that helps. Must not touch: the roles.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict

import trio

from motelog.cli.output import CliError, write_error, write_json
from motelog.config import MotelogConfig
from motelog.core.errors import MotelogError, leaves
from motelog.core.store.disk.files import NO_ROOM, no_room_text
from motelog.core.store.state.progress import OnProgress, StartProgress
from motelog.roles import CannotListenError, PortTakenError, Roles, run_roles


def serve(
    config: MotelogConfig,
    ready: Callable[[Roles], None],
    option_of_role: Mapping[str, str],
    *,
    json: bool,
) -> None:
    """Run the roles until a signal; call ``ready`` once when all have started.

    A start that takes long says every two seconds how far it is: on standard error for people, or
    with ``json`` as a line on standard output. ``option_of_role`` names the option that moves a
    role to another address.
    """
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        trio.run(_serve, config, ready, _show_json if json else _show)
    except BaseException as exc:
        _raise_helpful(exc, option_of_role)
        raise


def _show(progress: StartProgress) -> None:
    write_error(f"the store is starting: {progress}")


def _show_json(progress: StartProgress) -> None:
    write_json({"event": "starting", **asdict(progress)})


async def _serve(
    config: MotelogConfig, ready: Callable[[Roles], None], on_progress: OnProgress
) -> None:
    with trio.open_signal_receiver(*_ending_signals()) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_at_signal, signals, nursery.cancel_scope)
            ready(await nursery.start(run_roles, config, on_progress))


def _ending_signals() -> list[signal.Signals]:
    """Return the signals that end the process in order.

    SIGHUP is one of them: the terminal has gone. It may come to mean that the configuration is read
    again. Under nohup it is ignored, and stays so.
    """
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


async def _cancel_at_signal(signals: object, scope: trio.CancelScope) -> None:
    async for _ in signals:  # type: ignore[attr-defined]  # trio names no public type for it
        scope.cancel()


def _raise_helpful(exc: BaseException, option_of_role: Mapping[str, str]) -> None:
    """Raise the first error that was raised on purpose; one about a port says what to do."""
    for leaf in leaves(exc):
        if isinstance(leaf, PortTakenError | CannotListenError):
            option = option_of_role[leaf.role]
            host = leaf.listen.rpartition(":")[0]
            remedy = f"stop that process, or choose another port: {option} {host}:0 takes any"
            if isinstance(leaf, CannotListenError):
                remedy = f"choose another address with {option}"
            raise CliError(str(leaf), remedy=remedy) from exc
        if isinstance(leaf, MotelogError):
            raise leaf from exc
        if isinstance(leaf, OSError) and leaf.errno in NO_ROOM:
            raise CliError(f"no room to serve: {no_room_text(leaf)}") from exc
        if isinstance(leaf, OSError) and leaf.filename is not None:
            raise CliError(f"{leaf.filename} cannot be used: {leaf.strerror}") from exc
