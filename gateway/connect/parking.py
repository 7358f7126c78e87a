"""CONNECTs that wait, for their logins or for their turns among gateways.

Owns: Parked, the packets that have come behind a CONNECT. Must not touch: how a CONNECT goes on
(``admission``).
Invariant: a connection whose CONNECT waits has no place in the table, and is not read from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from motelog.gateway.sessions.connect_rules import Accepted
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.state.claims import Claim, Claims
from motelog.gateway.turn import Packet, Turn

#: Bytes of the packets behind a CONNECT that is parked. Nothing more is read from such a client, so
#: that it is what came with the CONNECT.
KEPT_BYTES_MAX: Final = 1_048_576


class Parked:
    """A CONNECT that waits, and the packets that have come behind it.

    ``claim``: what it waits for its turn by; else it waits for its login.
    """

    __slots__ = ("accepted", "claim", "connection", "kept", "kept_bytes", "kept_bytes_max")

    def __init__(self, connection: Connection, accepted: Accepted, kept_bytes_max: int) -> None:
        self.connection = connection
        self.accepted = accepted
        self.claim: Claim | None = None
        self.kept_bytes_max = kept_bytes_max
        self.kept: list[Packet] = []
        self.kept_bytes = 0


class Parking:
    """The CONNECTs of one gateway that wait, by the number of their connection."""

    def __init__(self, turn: Turn, claims: Claims) -> None:
        self._turn = turn
        self._claims = claims
        self._by_number: dict[int, Parked] = {}

    def __iter__(self) -> Iterator[Parked]:
        """Iterate over those that wait now."""
        return iter(list(self._by_number.values()))

    def get(self, number: int) -> Parked | None:
        """Return what waits of a connection."""
        return self._by_number.get(number)

    def park(self, connection: Connection, accepted: Accepted, kept_bytes_max: int) -> Parked:
        """Have a CONNECT wait; nothing more is read from its client."""
        output, number = connection.output, connection.number
        parked = self._by_number[number] = Parked(connection, accepted, kept_bytes_max)
        self._turn.connections[number] = None
        output.pause(number)
        # Bytes that came with the CONNECT are cut into packets in the next turn.
        output.set_variant(number, accepted.version)
        return parked

    def keep(self, packet: Packet) -> Parked | None:
        """Keep a packet behind a CONNECT that waits; None if none does.

        Its ``kept_bytes`` may be above the limit afterwards.
        """
        parked = self._by_number.get(packet[0])
        if parked is not None:
            parked.kept.append(packet)
            parked.kept_bytes += sum(len(part) for part in packet[2:] if isinstance(part, bytes))
            parked.connection.output.pause(packet[0])
        return parked

    def take_out(self, parked: Parked) -> None:
        """Give a connection its place back, as its CONNECT goes on."""
        connection = parked.connection
        del self._by_number[connection.number]
        self._turn.connections[connection.number] = connection

    def go_on(self, parked: Parked) -> None:
        """Read on from a client whose CONNECT has been accepted, behind what was kept."""
        connection = parked.connection
        connection.output.resume(connection.number)
        self._turn.handle_again(connection, parked.kept)

    def forget(self, number: int) -> None:
        """Forget what waits of a connection that ends, and its claim."""
        parked = self._by_number.pop(number, None)
        if parked is not None and parked.claim is not None:
            self._claims.drop(parked.accepted.client_id, parked.claim)
