"""Administration: the requests of RocketMQ's tools to a broker, by subject.

Owns: the list of parts. Must not touch: what each of them answers.
In bodies keyed by a message queue, the key is its JSON object; ``dumps`` writes these bodies.
"""

from __future__ import annotations

from motelog.core.broker.admin.clients import ClientAdmin
from motelog.core.broker.admin.groups import GroupAdmin
from motelog.core.broker.admin.messages import MessageAdmin
from motelog.core.broker.admin.progress import ProgressAdmin
from motelog.core.broker.admin.queues import Queues
from motelog.core.broker.admin.state import StateAdmin
from motelog.core.broker.admin.topics import TopicAdmin
from motelog.core.broker.admin.users import UserAdmin
from motelog.core.broker.processors.shared import Shared
from motelog.core.remoting.server import Processor


class Admin:
    """Answers the tools of one broker."""

    def __init__(self, shared: Shared, state: StateAdmin) -> None:
        queues = Queues(shared)
        self.state = state
        self._parts = (
            TopicAdmin(shared, queues),
            GroupAdmin(shared),
            ProgressAdmin(shared, queues),
            MessageAdmin(shared, queues),
            ClientAdmin(shared),
            UserAdmin(shared),
            state,
        )

    def processors(self) -> dict[int, Processor]:
        return {code: take for part in self._parts for code, take in part.processors().items()}
