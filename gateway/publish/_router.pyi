from collections.abc import Hashable
from typing import Any

class Route:
    """Where the messages of one topic name go, if rules of an operator may match it.

    ``text`` is the part of the property text that the name determines. ``is_used`` is set whenever
    a message is made with the route.
    """

    def __init__(self, queue: Hashable, text: bytes, tags_code: int) -> None: ...
    @property
    def queue(self) -> Hashable: ...
    @property
    def text(self) -> bytes: ...
    @property
    def tags_code(self) -> int: ...
    is_used: bool

# Queues for appends, in the order in which choose_queue counts them, or routes by topic name.
Place = list[Hashable] | dict[bytes, Route]

class Router:
    """Makes messages to append. Keeps nothing by topic name, unless rules of an operator need it.

    ``levels`` maps first levels to where their names go. If a first level is not in it but can be
    the name of a topic, its names go to ``others``: it is not empty, has at most
    ``level_bytes_max`` bytes, and each octet is true in ``octets``. All remaining names go to
    ``unnameable``. None, an empty list and a dict without the name mean that it is not known where
    a name goes.
    """

    others: Place | None
    unnameable: Place | None

    def __init__(self, octets: bytes, *, level_bytes_max: int, topic_bytes_max: int) -> None: ...
    @property
    def levels(self) -> dict[bytes, Place]: ...
    def message(
        self, topic: bytes, payload: bytes, text: bytes, origin: bytes, born_ms: int, host: bytes
    ) -> tuple[Any, ...] | None:
        """Return a publish as a ``core.records.append.AppendMessage``.

        ``text`` and ``origin`` are the end of its property text. None if ``Routes.resolve`` must
        decide: it is not known where the name goes, no client may publish to it, or the property
        text is too long.
        """
