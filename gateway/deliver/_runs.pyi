from collections.abc import Sequence

from motelog.gateway.deliver.outgoing import BriefRecord
from motelog.gateway.deliver.runs import Wants
from motelog.gateway.mqtt.frames import Publish
from motelog.gateway.sessions.session import Session

def take_run(
    records: Sequence[BriefRecord],
    begin: int,
    wants: Wants,
    receiver: Session,
    parts: list[Publish],
    flights: dict[int, int],
    limit: int,
    last_packet_id: int,
    queue_number: int,
    plain_qos: int,
    first_byte: int,
    aged_ms: int,
    bytes_taken: int,
    bytes_high: int,
) -> tuple[int, int, int]: ...
