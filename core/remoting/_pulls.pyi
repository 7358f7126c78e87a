from typing import Any

# Any is an object with the buffer protocol, which Python 3.11 cannot name.

def split_pulls(data: Any, index: Any, items: list[Any]) -> None: ...
def encode_found(
    opaque: int,
    form: int,
    broker_id: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    body_bytes: int,
) -> bytes: ...
