"""Devices come up one after another and publish telemetry; subscribers receive all of it.

    locust -f loadtest/scenarios/ramp_publish_subscribe.py --headless \
        --host 127.0.0.1:1883 --users 100 --spawn-rate 20 --run-time 60s

Without --headless Locust's page on port 8089 starts and shows the run. Ramp: --spawn-rate users per
second up to --users, of which --subscribers subscribe to everything and the others publish at
QoS --qos, each every --publish-interval-s seconds. All use MQTT --mqtt-version. The exit status is
1 if any request failed; a lost connection counts as one, by its reason.
One Locust process handles about 5,000 messages per second, sent and received together: this shows
behaviour. Measure throughput with ``motelog bench``.

Owns: the scenario and its options. Must not touch: how a client connects (loadtest.mqtt_user).
"""

from __future__ import annotations

import itertools
import sys
from typing import Any, ClassVar, Final

import gevent
from locust import events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from paho.mqtt.enums import MQTTProtocolVersion

from motelog.loadtest.mqtt_user import MqttLoadUser
from motelog.loadtest.report import row_of, summary

VERSIONS: Final = {"3.1.1": MQTTProtocolVersion.MQTTv311, "5": MQTTProtocolVersion.MQTTv5}
TELEMETRY = "telemetry/{device}/temp"
_devices = itertools.count(1)


class Device(MqttLoadUser):
    """Publishes one reading after another to its own topic."""

    topic_templates = (TELEMETRY,)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._topic = TELEMETRY.format(device=f"dev{next(_devices)}")
        self._readings = itertools.count()

    def wait_time(self) -> float:
        return float(self.environment.parsed_options.publish_interval_s)

    @task
    def publish_reading(self) -> None:
        reading = f'{{"n":{next(self._readings)},"t":21.5}}'.encode()
        self.publish(self._topic, reading, qos=self.environment.parsed_options.qos)


class Subscriber(MqttLoadUser):
    """Receives every device's telemetry; deliveries are reported as they arrive."""

    fixed_count = 1  # set from --subscribers; fixed users start before the others
    topic_templates = (TELEMETRY, "telemetry/#")
    filters: ClassVar[tuple[str, ...]] = ("telemetry/#",)

    def on_start(self) -> None:
        super().on_start()
        for topic_filter in self.filters:
            self.client.subscribe_always(topic_filter, self.environment.parsed_options.qos)

    @task
    def receive(self) -> None:
        gevent.sleep(1)


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]  # locust's
def _add_options(parser: LocustArgumentParser, **_: Any) -> None:
    options = parser.add_argument_group("ramp_publish_subscribe")
    options.add_argument("--subscribers", type=int, default=1, help="users that subscribe")
    options.add_argument(
        "--publish-interval-s", type=float, default=1.0, help="seconds between messages of a device"
    )
    options.add_argument(
        "--qos", type=int, default=1, choices=(0, 1), help="QoS of publishers and subscribers"
    )
    options.add_argument(
        "--mqtt-version", default="5", choices=tuple(VERSIONS), help="protocol version of all users"
    )


@events.init.add_listener  # type: ignore[untyped-decorator]  # locust's
def _apply_options(environment: Environment, **_: Any) -> None:
    if environment.parsed_options is not None:
        Subscriber.fixed_count = environment.parsed_options.subscribers
        MqttLoadUser.protocol = VERSIONS[environment.parsed_options.mqtt_version]


@events.quitting.add_listener  # type: ignore[untyped-decorator]  # locust's
def _print_summary(environment: Environment, **_: Any) -> None:
    sys.stdout.write(summary(row_of(entry) for entry in environment.stats.entries.values()))
    sys.stdout.flush()
