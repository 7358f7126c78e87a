from collections.abc import Iterable
from typing import Any

# Any is an object with the buffer protocol, which Python 3.11 cannot name.

class SendRules:
    """What a broker adds to messages, and which properties it must examine itself."""

    def __init__(
        self,
        added: bytes,
        odd_names: Iterable[bytes],
        json_begin: bytes,
        json_end: bytes,
        binary_begin: bytes,
        binary_ext: bytes,
        host: bytes,
    ) -> None: ...

def split_sends(data: Any, index: Any, count: int, rules: SendRules) -> list[Any]: ...
def split_batch(
    body: bytes, tail: Any, born_ms: int, born_host: bytes, rules: SendRules
) -> list[Any] | None: ...
def answer_sends(
    staged: list[Any], placed: list[tuple[int, int]], rules: SendRules
) -> list[bytes | None]: ...
