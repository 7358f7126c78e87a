"""CONNECTs that wait for a login, or for a claim among gateways.

Owns: Parked, the packets that came after a waiting CONNECT. Must not touch: how a CONNECT continues
(``admission``).
Invariant: a connection whose CONNECT waits is not in the table, and is not read from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from motelog.gateway.sessions.connect_rules import Accepted
from motelog.gateway.sessions.connection import Connection
from motelog.gateway.state.claims import Claim, Claims
from motelog.gateway.turn import Packet, Turn

#: Bytes of the packets after a parked CONNECT. As nothing more is read from its client, these are
#: the packets that came along with the CONNECT.
KEPT_BYTES_MAX: Final = 1_048_576


class Parked:
    """A CONNECT that waits, and the packets that came after it.

    It waits for ``claim``, or for its login if ``claim`` is None.
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
        """Iterate over the CONNECTs that wait now."""
        return iter(list(self._by_number.values()))

    def get(self, number: int) -> Parked | None:
        """Return the waiting CONNECT of a connection, None if there is none."""
        return self._by_number.get(number)

    def park(self, connection: Connection, accepted: Accepted, kept_bytes_max: int) -> Parked:
        """Make a CONNECT wait; nothing more is read from its client."""
        output, number = connection.output, connection.number
        parked = self._by_number[number] = Parked(connection, accepted, kept_bytes_max)
        self._turn.connections[number] = None
        output.pause(number)
        # Bytes that came with the CONNECT are cut into packets in the next turn.
        output.set_variant(number, accepted.version)
        return parked

    def keep(self, packet: Packet) -> Parked | None:
        """Keep a packet that came after a waiting CONNECT; None if its connection has none.

        ``kept_bytes`` may be above the limit afterwards.
        """
        parked = self._by_number.get(packet[0])
        if parked is not None:
            parked.kept.append(packet)
            parked.kept_bytes += sum(len(part) for part in packet[2:] if isinstance(part, bytes))
            parked.connection.output.pause(packet[0])
        return parked

    def take_out(self, parked: Parked) -> None:
        """Put a connection back into the table, as its CONNECT continues."""
        connection = parked.connection
        del self._by_number[connection.number]
        self._turn.connections[connection.number] = connection

    def go_on(self, parked: Parked) -> None:
        """Handle the kept packets of an accepted client, then continue reading from it."""
        connection = parked.connection
        connection.output.resume(connection.number)
        self._turn.handle_again(connection, parked.kept)

    def forget(self, number: int) -> None:
        """Forget the waiting CONNECT of a connection that ends, and drop its claim."""
        parked = self._by_number.pop(number, None)
        if parked is not None and parked.claim is not None:
            self._claims.drop(parked.accepted.client_id, parked.claim)
