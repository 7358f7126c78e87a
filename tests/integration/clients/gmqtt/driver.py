"""gmqtt, as its users get it: reads orders and prints events, JSON line by JSON line.

Owns: the clients of one process. Must not touch: expectations (tests/support/mqtt_programs.py has
what orders and events mean). Its argument is the version of MQTT, 4 or 5.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import gmqtt


def say(client: str, event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"client": client, "event": event, **fields}) + "\n")
    sys.stdout.flush()


class Driver:
    """One client."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._name = str(order["client"])
        how: dict[str, Any] = {}
        if order.get("keep"):
            how = {"clean_session": False, "session_expiry_interval": 600}
        if will := order.get("will"):
            how["will_message"] = gmqtt.Message(
                will["topic"], will["payload"], qos=will["qos"], retain=will["retain"]
            )
        self.client = gmqtt.Client(order["id"], **how)
        # By default it waits 6 s, as long as all else in a test together.
        self.client.set_config({"reconnect_delay": 0.5})
        self.client.on_connect = self._on_connect
        self.client.on_message = self._on_message
        self.client.on_subscribe = self._on_subscribe

    def _on_connect(self, _client: Any, flags: int, _code: int, _properties: Any) -> None:
        say(self._name, "connected", present=bool(flags))

    def _on_message(
        self, _client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> int:
        retain = bool(properties["retain"])
        say(self._name, "message", topic=topic, payload=payload.decode(), qos=qos, retain=retain)
        return 0

    def _on_subscribe(self, *_: Any) -> None:
        say(self._name, "subscribed")

    async def carry_out(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "subscribe":
                self.client.subscribe(order["filter"], qos=order["qos"])
            case "publish":
                topic, payload = order["topic"], order["payload"]
                self.client.publish(topic, payload, qos=order["qos"], retain=order["retain"])
            case "drain":
                # It tells of no single message, but has a store of those that are not acknowledged.
                await self.client._persistent_storage.wait_empty()
                say(self._name, "drained")
            case "disconnect":
                await self.client.disconnect()
                say(self._name, "disconnected")


async def main(version: int) -> None:
    drivers: dict[str, Driver] = {}
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        if order["do"] == "connect":
            driver = drivers[order["client"]] = Driver(order)
            await driver.client.connect("127.0.0.1", order["port"], version=version)
        else:
            await drivers[order["client"]].carry_out(order)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
