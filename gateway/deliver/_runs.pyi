from motelog.gateway.deliver.runs import Run
from motelog.gateway.mqtt.frames import Publish

def take_run(
    run: Run,
    begin: int,
    parts: list[Publish],
    flights: dict[int, int],
    limit: int,
    last_packet_id: int,
    queue_number: int,
    plain_qos: int,
    first_byte: int,
    bytes_taken: int,
    bytes_high: int,
) -> tuple[int, int, int]: ...
