"""``$delayed/{seconds}/{topic}``: a publish that is delivered later.

Owns: the syntax of the delay. Must not touch: the wait; the log's broker keeps the message.
"""

from __future__ import annotations

from typing import Final

from motelog.gateway.log.log_port import DELAY_MS_MAX
from motelog.gateway.mqtt.errors import TopicNameError

DELAYED_PREFIX: Final = b"$delayed/"

_SECONDS_MAX: Final = DELAY_MS_MAX // 1000


def split_delayed(topic: bytes) -> tuple[int, bytes]:
    """Return the delay in ms and the topic name of a topic that begins with ``$delayed/``.

    TopicNameError if the log does not accept the delay, or if there is no topic name.
    """
    seconds, _, name = topic.removeprefix(DELAYED_PREFIX).partition(b"/")
    if not seconds.isdigit() or len(seconds) > 9 or not 0 < int(seconds) <= _SECONDS_MAX:
        raise TopicNameError(f"a publish is delayed by 1 to {_SECONDS_MAX} whole seconds")
    if not name:
        raise TopicNameError("$delayed/{seconds}/ without a topic name")
    return int(seconds) * 1000, name
