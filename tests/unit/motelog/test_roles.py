"""The order in which roles start and stop, and what a failing one does to the others."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from motelog import roles
from motelog.config import MotelogConfig
from motelog.console.health import Health
from motelog.core.broker.config import BrokerConfig
from motelog.core.metrics import Reading
from motelog.core.net.listeners import CertificateFile
from motelog.core.store.config import StoreConfig
from motelog.core.store.state.progress import OnProgress, StartProgress
from motelog.roles import CannotListenError, PortTakenError, Roles, run_roles

events: list[str] = []
failures: dict[str, BaseException] = {}
readiness: list[bool] = []


DISK = SimpleNamespace(fault=None)


class FakeService:
    name = ""
    metrics = type(
        "FakeMetrics", (), {"sample": staticmethod(dict), "histograms": staticmethod(dict)}
    )
    api = type("FakeApi", (), {"fence_reason": None, "disk": DISK, "steady_clock": None})
    is_registered = True
    operator = object()
    access_fault: str | None = None

    start_progress: StartProgress | None = None

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.arguments = arguments
        self.address = ("127.0.0.1", 0)
        self.listeners: dict[str, str] = {}

    def sample(self) -> dict[str, int]:
        return {}

    def histograms(self) -> dict[str, list[float]]:
        return {}

    def readings(self) -> list[Reading]:
        return []

    async def reload_certificates(self) -> list[CertificateFile]:
        return []

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        events.append(f"{self.name} starts")
        await trio.lowlevel.checkpoint()
        if self.name in failures:
            raise failures[self.name]
        self.address = ("127.0.0.1", 1000 + len(events))
        task_status.started()
        try:
            if f"later {self.name}" in failures:
                await trio.sleep(1)
                raise failures[f"later {self.name}"]
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1 if f"slow {self.name}" not in failures else 3600)
            events.append(f"{self.name} ends")


def fake(name: str) -> type[FakeService]:
    return type(name, (FakeService,), {"name": name})


@pytest.fixture(autouse=True)
def fake_services(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    events.clear()
    failures.clear()
    for attribute, name in (
        ("NameServer", "namesrv"),
        ("Broker", "broker"),
        ("Gateway", "gateway"),
        ("Console", "console"),
    ):
        monkeypatch.setattr(roles, attribute, fake(name))
    monkeypatch.setattr(roles, "LocalLog", lambda api: api)
    return iter((None,))


def config(**changes: Any) -> MotelogConfig:
    broker = BrokerConfig(store=StoreConfig(directory="unused"))
    return MotelogConfig(**{"broker": broker, **changes})


async def test_roles_start_in_order_and_stop_in_reverse(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        started = await nursery.start(run_roles, config())
        assert isinstance(started, Roles)
        assert list(started.addresses) == ["console", "namesrv", "broker", "gateway"]
        events.append("--")
        nursery.cancel_scope.cancel()
    order = ["console", "namesrv", "broker", "gateway"]
    starts = [f"{name} starts" for name in order]
    ends = [f"{name} ends" for name in reversed(order)]
    assert events == [*starts, "--", *ends]


async def test_only_the_named_roles_run(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        started = await nursery.start(run_roles, config(roles=("console", "namesrv")))
        assert list(started.addresses) == ["console", "namesrv"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("late", [False, True])
async def test_failing_role_stops_the_others_and_its_error_is_raised(
    autojump_clock: trio.testing.MockClock, late: bool
) -> None:
    failures["later gateway" if late else "gateway"] = RuntimeError("broken")
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="broken"), flatten_subgroups=True):
        await run_roles(config())
    ends = [event for event in events if event.endswith("ends")]
    if late:
        assert ends == ["gateway ends", "broker ends", "namesrv ends", "console ends"]
    else:
        assert ends == ["broker ends", "namesrv ends", "console ends"]


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.EADDRINUSE, PortTakenError, "another process uses that port"),
        (errno.EADDRNOTAVAIL, CannotListenError, "Cannot assign requested address"),
        (errno.EACCES, CannotListenError, "Permission denied"),
    ],
)
async def test_error_of_a_listener_names_role_and_address(
    autojump_clock: trio.testing.MockClock, number: int, kind: type[Exception], text: str
) -> None:
    import os

    failures["gateway"] = ExceptionGroup("inner", [OSError(number, os.strerror(number))])
    with pytest.RaisesGroup(
        pytest.RaisesExc(kind, match=rf"the gateway cannot listen on 127\.0\.0\.1:1883: {text}")
    ):
        await run_roles(config())
    assert "broker ends" in events


async def test_role_that_does_not_stop_is_named_and_the_rest_is_stopped(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    failures["slow gateway"] = RuntimeError()
    with caplog.at_level(logging.WARNING):
        async with trio.open_nursery() as nursery:
            await nursery.start(run_roles, config())
            nursery.cancel_scope.cancel()
    assert "is abandoned; " in caplog.text
    assert "the next start recovers role=gateway" in caplog.text
    assert events.index("broker ends") < events.index("gateway ends")


async def test_broker_registers_with_the_name_server_of_this_process(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[BrokerConfig] = []

    class Recording(FakeService):
        name = "broker"

        def __init__(self, section: BrokerConfig, on_progress: OnProgress, **more: object) -> None:
            super().__init__()
            seen.append(section)

    monkeypatch.setattr(roles, "Broker", Recording)
    async with trio.open_nursery() as nursery:
        started = await nursery.start(run_roles, config())
        host, port = started.addresses["namesrv"]
        assert seen[0].namesrv == (f"{host}:{port}",)
        nursery.cancel_scope.cancel()


def test_broker_registers_with_a_name_server_on_ipv6() -> None:
    broker = config().broker
    assert broker is not None
    section = roles._with_namesrv(broker, Roles(addresses={"namesrv": ("::1", 9876)}))
    assert section.namesrv == ("[::1]:9876",)


async def test_a_long_start_is_told_to_health_and_to_whoever_asked(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Health] = []
    told: list[StartProgress] = []
    progress = StartProgress("reading the log", 4_300_000_000, 10_000_000_000, 812e6, 7.0)

    class Observed(FakeService):
        name = "console"

        def __init__(self, section: object, health: Health, *more: object, **named: object) -> None:
            super().__init__()
            seen.append(health)

    class Slow(FakeService):
        name = "broker"

        def __init__(self, section: BrokerConfig, on_progress: OnProgress, **more: object) -> None:
            super().__init__()
            self.on_progress = on_progress

        async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
            assert seen[0].faults()["broker"] == "starting"
            self.start_progress = progress
            self.on_progress(progress)
            text = "starting: reading the log: 4.3 of 10.0 GB, 812 MB/s, 7 s left"
            assert seen[0].faults()["broker"] == text
            await super().run(task_status=task_status)

    monkeypatch.setattr(roles, "Console", Observed)
    monkeypatch.setattr(roles, "Broker", Slow)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_roles, config(), told.append)
        assert seen[0].faults() == {}
        nursery.cancel_scope.cancel()
    assert told == [progress]


async def test_a_start_that_takes_long_can_be_cancelled(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    class Waiting(FakeService):
        name = "gateway"

        async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
            try:
                await trio.sleep_forever()
            finally:
                ended.append("gateway")

    monkeypatch.setattr(roles, "Gateway", Waiting)
    with trio.move_on_after(1) as scope:
        await run_roles(config())
    assert scope.cancelled_caught
    assert ended == ["gateway"]


def test_health_says_what_is_missing() -> None:
    health = Health()
    health.starting("broker")
    assert health.faults() == {"broker": "starting"}
    health.started("broker")
    assert health.faults() == {"process": "starting or stopping"}
    health.is_ready = True
    assert health.faults() == {}
    health.checks["store"] = lambda: "fenced"
    assert health.faults() == {"store": "fenced"}


async def test_fenced_store_full_disk_and_lost_registration_end_readiness(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Health] = []

    class Recording(FakeService):
        name = "console"

        def __init__(self, section: object, health: Health, *more: object, **named: object) -> None:
            super().__init__()
            seen.append(health)

    monkeypatch.setattr(roles, "Console", Recording)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_roles, config())
        (health,) = seen
        assert health.faults() == {}
        monkeypatch.setattr(FakeService.api, "fence_reason", "a write failed")
        monkeypatch.setattr(FakeService, "is_registered", False)
        monkeypatch.setattr(DISK, "fault", "disk 91 % full")
        assert health.faults() == {
            "store": "a write failed",
            "disk": "disk 91 % full",
            "registration": "no name server accepted the last registration",
        }
        nursery.cancel_scope.cancel()
    assert health.is_ready is False
