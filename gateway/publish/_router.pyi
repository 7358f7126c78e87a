from collections.abc import Hashable
from typing import Any

class Route:
    """Where the messages of one topic name go, for the rules of an operator.

    ``text`` is the part of their property text that the name decides. ``is_used`` is set whenever
    the route has made a message.
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
    """Topic name -> message to append, without a memory of names but for rules of an operator.

    ``levels`` says where names of a first level go. Of the others, those whose first level can be
    the name of a topic go to ``others``, the rest to ``unnameable``: no empty level, at most
    ``level_bytes_max`` long, each octet true in ``octets``. None, an empty list and a dict without
    the name mean: not known.
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

        ``text`` and ``origin`` end its property text. None where ``Routes.resolve`` has to say:
        where the name goes is not known, nobody may publish to it, or the text is too long.
        """
