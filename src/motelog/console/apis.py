"""The parts of the admin API, in the order of its OpenAPI document.

Owns: which parts there are. Must not touch: what a part answers.
"""

from __future__ import annotations

from motelog.console.api import Endpoint
from motelog.console.certificates import CertificateApi
from motelog.console.configuration import ConfigApi
from motelog.console.gateway import GatewayApi
from motelog.console.message_path import MessagePathApi
from motelog.console.mqtt_tree import MqttTreeApi
from motelog.console.nodes import NodesApi
from motelog.console.queues import QueueApi
from motelog.gateway.mapping.topic_mapping import TopicMapping
from motelog.running_config import RunningConfig


class Apis:
    """The parts of a process's API. The named ones are filled in by roles as they start."""

    def __init__(self, running_config: RunningConfig) -> None:
        self.gateway = GatewayApi()
        self.queues = QueueApi()
        self.certificates = CertificateApi()
        self._running_config = running_config

    def endpoints(self) -> list[Endpoint]:
        gateway, queues = self.gateway, self.queues
        config = self._running_config.started_with.gateway
        mapping = TopicMapping(config.topic_map, default_topic=config.default_topic)
        return [
            *gateway.endpoints(),
            *queues.endpoints(),
            *MessagePathApi(gateway, queues).endpoints(),
            *MqttTreeApi(gateway, queues, mapping).endpoints(),
            *NodesApi(gateway, queues).endpoints(),
            *ConfigApi(self._running_config).endpoints(),
            *self.certificates.endpoints(),
        ]
