"""A console by itself, as the tests of its pages and its API have it."""

from __future__ import annotations

from typing import Final

from motelog.config import AdminConfig, MotelogConfig
from motelog.console.apis import Apis
from motelog.console.asking import GatewayHere
from motelog.console.health import Health
from motelog.console.server import Console
from motelog.console.status import Status
from motelog.core.config import Loaded
from motelog.core.metrics import Registry
from motelog.running_config import RunningConfig
from tests.conformance.peers import Gateway

_CONSOLE_ALONE: Final = MotelogConfig(roles=("console",))


def apis_of(gateway: Gateway | None = None, running_config: RunningConfig | None = None) -> Apis:
    """The API of a process with this gateway in memory; without one, none has started."""
    apis = Apis(running_config or RunningConfig(Loaded(_CONSOLE_ALONE, {})))
    if gateway is not None:
        apis.gateway.gateway = GatewayHere(gateway.stage.operator)
    return apis


def console_of(
    config: AdminConfig | None = None,
    apis: Apis | None = None,
    *,
    health: Health | None = None,
    registry: Registry | None = None,
    roles: dict[str, str] | None = None,
    data: str | None = None,
) -> Console:
    health, registry = health or Health(), registry or Registry()
    status = Status(health, registry, roles or {}, data=data)
    return Console(config or AdminConfig(), health, registry, apis or apis_of(), status)
