"""Build the clients and servers of others that tests need, before the tests.

Owns: which there are. Must not touch: how one is built. Each test builds what it needs by itself;
done beforehand, it runs beside other work, and while there is a network. What cannot be built is
named here, and its tests are skipped.

    python -m tests.support.peers [pairings]     pairings: only those of Apache RocketMQ
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import pytest

from tests.integration.test_grpc_proxy import NODE_CLIENT
from tests.support import cpp, grpc_proxy, java, mqtt_programs, node

PAIRINGS: Final[Mapping[str, Callable[[], object]]] = {
    **{f"RocketMQ {version}": partial(java.class_path, version) for version in java.VERSIONS},
    "RocketMQ's proxy": grpc_proxy.proxy_libraries,
    "RocketMQ's client in Python": grpc_proxy.python_client,
    "RocketMQ's client in JavaScript": partial(node.node_modules, NODE_CLIENT),
    "ali-ons": partial(node.node_modules, node.ALI_ONS),
    "RocketMQ's client in C++": cpp.cpp_packages,
}
MQTT_CLIENTS: Final[Mapping[str, Callable[[], object]]] = {
    "MQTT.js": partial(node.node_modules, "mqtt@5"),
    "paho in Go": partial(mqtt_programs.go_program, "paho3"),
    "rumqttc": mqtt_programs.rumqttc_program,
    "HiveMQ's client": mqtt_programs.hivemq_program,
    "gmqtt": mqtt_programs.gmqtt_program,
}


def main() -> None:
    wanted = PAIRINGS if sys.argv[1:] == ["pairings"] else {**PAIRINGS, **MQTT_CLIENTS}
    for name, build in wanted.items():
        began = time.monotonic()
        try:
            build()
            outcome = "is there"
        except (pytest.skip.Exception, subprocess.TimeoutExpired) as exc:
            outcome = f"could not be had: {exc}"
        sys.stdout.write(f"{name} {outcome} ({time.monotonic() - began:.0f} s)\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
